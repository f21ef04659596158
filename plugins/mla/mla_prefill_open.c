/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the multi-head form of prefill: which kernel, how large the passes are, where their buffers lie. */
#include "mla_prefill.h"
#include "kernels/cuda/latent/mla_prefill_params.h"

#include <stdlib.h>

/* Projected keys and values of one launch at most: all heads of a prompt of 8192 tokens and 128 heads, or 16
 * heads of the largest pass, so that a launch has tiles for every multiprocessor. */
#define KV_BYTES ((int64_t)576 << 20)

static const attn_plan_table_t *plan_table(const attn_host_t *host) {
    if (host == NULL || host->get_extension == NULL) return NULL;
    const attn_plan_table_t *t = host->get_extension(host->ctx, ATTN_PLAN_EXTENSION);
    size_t needed = offsetof(attn_plan_table_t, mla_context) + sizeof t->mla_context;
    return t != NULL && t->struct_size >= needed && t->mla_context != NULL ? t : NULL;
}

/* Sizes of whole 64-column slabs, for which there are kernels. */
static int sizes_are_served(const mla_prefill_sizes *s) {
    int key = s->nope + s->rope;
    return s->nope % 64 == 0 && s->rope == 64 &&
           ((key == 192 && s->value <= 128) || (key == 256 && s->value <= 256)) && s->latent % 64 == 0;
}

static int prepare_kernels(const attn_instance_t *in, mla_prefill *f, int is_sm90) {
    int e = flash_runtime_init(&f->runtime, in->backend->dense, f->runtime.num_sms, is_sm90);
    if (!e) e = flash_run_prefill(NULL, &f->shape, &f->config, 0, &f->runtime, NULL);
    return e;
}

static int choose_kernel(const attn_instance_t *in, const attn_device_t *device, mla_prefill *f,
                         attn_error_t *error, int *is_served) {
    gpu_device g;
    int status = gpu_find_device(device, in->backend->name, &g, error);
    if (status != ATTN_OK) return status;
    const flash_device d = {g.major, g.minor, g.num_sms, g.smem_optin, g.smem_per_sm};
    int dtype = in->dtype == MLA_BF16 ? FLASH_BF16 : FLASH_F16;
    f->runtime.num_sms = d.num_sms;
    f->shape = (flash_shape){.q_dtype = dtype,
                             .kv_dtype = dtype,
                             .num_q_heads = in->heads,
                             .num_kv_heads = in->heads,
                             .force_sm80 = in->portable,
                             .head_size = in->nope + MLA_ROPE,
                             .head_size_v = in->value};
    *is_served = flash_choose_prefill(&f->shape, &d, &f->config) == 0;
    return ATTN_OK;
}

/* Buffers in the workspace, one after the other; the absorbed form uses the same memory at another time. */
static void place_buffers(const attn_instance_t *in, mla_prefill *f, int64_t rows, size_t *workspace) {
    const size_t row = (size_t)(in->latent + MLA_ROPE) * 2, tokens = (size_t)f->limits.max_tokens;
    int64_t one_head = rows * f->row_elements;
    f->limits.kv_elements = one_head > KV_BYTES / 2 ? one_head : KV_BYTES / 2;
    if (f->limits.kv_elements > one_head * in->heads) f->limits.kv_elements = one_head * in->heads;
    int64_t heads = f->limits.kv_elements / one_head;
    f->merges_inside = flash_has_more(&f->config);
    f->limits.part_heads = f->merges_inside ? in->heads : (int32_t)heads;
    f->kv_at = mla_round_up((size_t)rows * row, 256);
    f->part_at = f->kv_at + mla_round_up((size_t)f->limits.kv_elements * 2, 256);
    size_t at = f->part_at;
    if (!f->merges_inside) at += mla_round_up(tokens * (size_t)heads * (size_t)in->value * 2, 256);
    for (int i = 0; i < (f->merges_inside ? 1 : 3); i++) {
        f->lse_at[i] = at;
        at += mla_round_up(tokens * (size_t)in->heads * 4, 256);
    }
    f->ticket_at = at;
    *workspace = at + 256;
}

static int allocate_scratch(mla_prefill *f, attn_error_t *error) {
    const size_t seqs = (size_t)f->limits.max_seqs + 1,
                 tiles = (size_t)mla_prefill_tile_capacity(&f->limits, f->config.block_rows) + 1;
    f->scratch.q_start = calloc(seqs, sizeof(int32_t));
    f->scratch.lens = calloc(seqs, sizeof(int32_t));
    f->scratch.causal = calloc(seqs, sizeof(int32_t));
    f->scratch.tiles = calloc(tiles, sizeof(flash_plan_tile));
    if (f->scratch.q_start && f->scratch.lens && f->scratch.causal && f->scratch.tiles) return ATTN_OK;
    return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the plan of %zu requests", seqs - 1);
}

static void close_prefill(mla_prefill *f) {
    if (f == NULL) return;
    free(f->scratch.q_start), free(f->scratch.lens), free(f->scratch.causal), free(f->scratch.tiles);
    free(f);
}

static int fill(attn_instance_t *in, const attn_device_t *device, mla_prefill *f, attn_error_t *error,
                int *is_served) {
    const attn_problem_t *p = &in->problem;
    int status = choose_kernel(in, device, f, error, is_served);
    if (status != ATTN_OK || !*is_served) return status;
    const int is_sm90 = f->config.kind == FLASH_PREFILL_SM90;
    f->sizes.block_rows = f->config.block_rows, f->sizes.ctas = f->runtime.num_sms;
    f->row_elements =
        in->nope + in->value + (is_sm90 ? 0 : MLA_ROPE); /* the portable kernel reads whole rows */
    f->limits.max_seqs = in->limits.max_seqs, f->limits.max_tokens = in->limits.max_tokens;
    mla_prefill_capacity(&f->limits, f->config.block_rows);
    const attn_mla_workspace_t ws = {.struct_size = sizeof ws,
                                     .block_size = in->page_size,
                                     .max_num_seqs = f->limits.max_seqs,
                                     .max_model_len = p->max_model_len ? p->max_model_len : 131072};
    int64_t rows;
    status = f->table->mla_workspace(&ws, &f->limits.workspace_tokens, &rows, error);
    if (status != ATTN_OK) return status;
    size_t workspace;
    place_buffers(in, f, rows + f->limits.max_tokens, &workspace);
    if (is_sm90) in->up_rows = rows + f->limits.max_tokens, in->up_elements = f->limits.kv_elements;
    in->prefill_at = in->metadata.bytes;
    in->metadata.bytes += f->limits.metadata_bytes;
    in->prefill_plan_bytes = sizeof(mla_prefill_plan);
    if (workspace > in->metadata.workspace_bytes) in->metadata.workspace_bytes = workspace;
    status = allocate_scratch(f, error);
    gpu_device_guard guard;
    if (status == ATTN_OK && (status = gpu_enter(in->device_id, &guard, error)) == ATTN_OK) {
        int e = prepare_kernels(in, f, is_sm90);
        gpu_leave(&guard);
        if (e) status = gpu_fail(error, e, "loading the prefill kernels");
    }
    return status;
}

static int open_prefill(attn_instance_t *in, const attn_host_t *host, const attn_device_t *device,
                        attn_error_t *error) {
    const mla_prefill_sizes sizes = {
        .heads = in->heads, .latent = in->latent, .rope = MLA_ROPE, .nope = in->nope, .value = in->value};
    const attn_plan_table_t *table = plan_table(host);
    /* which form a request takes depends on its neighbours */
    if (table == NULL || in->prefill_choice == MLA_PREFILL_ABSORBED || !sizes_are_served(&sizes) ||
        (attn_problem_features(&in->problem) & ATTN_F_BATCH_INVARIANT))
        return ATTN_OK;
    mla_prefill *f = calloc(1, sizeof *f);
    if (f == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for %zu bytes of the prefill",
                         sizeof *f);
    f->table = table, f->sizes = sizes;
    int is_served = 0, status = fill(in, device, f, error, &is_served);
    if (status == ATTN_OK && is_served)
        in->prefill = f;
    else
        close_prefill(f);
    return status;
}

static mla_border build_prefill(const attn_instance_t *in, const attn_batch_t *b, mla_prefill_plan *plan,
                                char *mirror) {
    const mla_prefill *f = in->prefill;
    int32_t border = mla_prefill_border(b->query_start_loc_host, b->seq_lens_host, b->num_reqs, &f->sizes,
                                        in->prefill_choice == MLA_PREFILL_PROJECTED);
    const mla_border absorbed = {b->num_reqs, b->num_actual_tokens, 0};
    size_t used = 0;
    memset(plan, 0, offsetof(mla_prefill_plan, passes));
    plan->first_request = b->num_reqs, plan->first_token = b->num_actual_tokens;
    /* replays may have other lengths */
    if (border == b->num_reqs || b->flags & ATTN_BATCH_CAPTURE) return absorbed;
    mla_prefill_input input = {.table = f->table,
                               .q_start = b->query_start_loc_host,
                               .seq_lens = b->seq_lens_host,
                               .num_reqs = b->num_reqs,
                               .first_request = border,
                               .page_size = in->page_size,
                               .row_elements = f->row_elements,
                               .num_heads = in->heads,
                               .tiles = {.block_rows = f->config.block_rows}};
    int32_t passes =
        mla_prefill_build(&input, &f->limits, &f->scratch, plan->passes, mirror + in->prefill_at, &used);
    if (passes == 0) return absorbed;
    plan->num_passes = passes;
    plan->first_request = border, plan->num_reqs = b->num_reqs - border;
    plan->first_token = b->query_start_loc_host[border];
    plan->num_tokens = b->num_actual_tokens - plan->first_token;
    return (mla_border){border, plan->first_token, used};
}

const mla_prefill_ops mla_prefill_functions = {open_prefill, close_prefill, build_prefill,
                                               mla_prefill_forward};
