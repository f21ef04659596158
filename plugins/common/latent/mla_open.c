/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: the problem and the device become limits and the layout of the buffers; kernels are loaded here,
 * so that no later call allocates or compiles. */
#include "../cache_shape.h"
#include "mla_instance.h"

#include <stdlib.h>

/* Limits and buffers: only what the numbers say. */
static int configure(attn_instance_t *in, attn_error_t *error) {
    const attn_problem_t *p = &in->problem;
    in->limits.max_seqs = (int32_t)(p->max_num_seqs ? p->max_num_seqs : 256);
    in->limits.max_tokens = (int32_t)(p->max_num_batched_tokens ? p->max_num_batched_tokens : 8192);
    in->plan.num_heads = in->heads;
    in->plan.topk = (int32_t)p->topk, in->plan.is_full = p->mask == ATTN_MASK_FULL;
    int status = in->backend->device->choose(in, error);
    if (status != ATTN_OK) return status;
    in->plan.tile_rows = in->config.tile_rows, in->plan.parts = in->config.parts;
    in->plan.slots = attn_problem_features(p) & ATTN_F_BATCH_INVARIANT ? 0 : in->config.slots;
    in->plan.is_bound = (p->features & ATTN_F_DEVICE_LENGTHS) != 0;
    in->plan.slice_tokens = in->plan.is_bound ? in->limits.max_tokens /* rows move, and stay in their slice */
                                              : mla_slice_tokens(in->heads, in->limits.max_tokens);
    in->plan.border = in->backend->widen != NULL;
    if (mla_plan_capacity(&in->limits, &in->plan))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "max_num_batched_tokens",
                         "%d tokens of %d heads are more rows than 31 bits count", in->limits.max_tokens,
                         in->heads);
    const mla_plan_limits *l = &in->limits;
    size_t at = sizeof(mla_counts);
    in->slices_at = at;
    at += (size_t)l->max_slices * sizeof(mla_slice);
    in->parts_at = at;
    at += (size_t)l->max_slices * ((size_t)in->plan.parts + 1) * sizeof(int32_t);
    in->items_at = at = mla_round_up(at, 32);
    at += (size_t)l->max_items * sizeof(mla_item);
    in->splits_at = at;
    at += (size_t)l->max_splits * sizeof(mla_split);
    in->metadata.bytes = mla_round_up(at, 256);
    size_t rows = (size_t)l->max_slots * (size_t)in->plan.tile_rows, latent = (size_t)in->latent;
    in->part_out_at = mla_round_up((size_t)in->plan.slice_tokens * (size_t)in->heads * latent * 2, 256);
    in->part_lse_at = in->part_out_at + mla_round_up(rows * latent * 4, 256);
    in->lists_at = in->part_lse_at + mla_round_up(rows * 4, 256);
    in->rope_at = in->lists_at;
    in->rope_at += mla_round_up(mla_packed_bytes(&in->config, in->plan.topk), 256);
    in->metadata.workspace_bytes = in->rope_at;
    if (in->is_fp8_query)
        in->metadata.workspace_bytes +=
            mla_round_up((size_t)in->plan.slice_tokens * (size_t)in->heads * (size_t)in->rope * 2, 256);
    if (in->projects)
        in->weight_bytes = (uint64_t)in->heads * (uint64_t)(in->nope + in->value) * (uint64_t)in->latent * 2;
    return ATTN_OK;
}

int mla_open(const mla_backend *backend, const attn_problem_t *problem, const attn_device_t *device,
             const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
             attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t dev;
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK)
        status = problem_check(&p, &dev, backend->capabilities, backend->name, backend->supports, error);
    if (status != ATTN_OK) return status;
    attn_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *in);
    in->backend = backend;
    in->problem = p;
    in->heads = (int)p.num_heads, in->latent = (int)p.kv_lora_rank, in->rope = (int)p.qk_rope_head_dim;
    in->projects = attn_problem_projects(&p);
    in->nope = in->projects ? (int)p.qk_nope_head_dim : in->latent;
    in->value = in->projects ? (int)p.v_head_dim : in->latent;
    in->page_size = (int)(p.block_size ? p.block_size : backend->capabilities->preferred_block_size);
    in->dtype = p.dtype == ATTN_DTYPE_FLOAT16 ? MLA_F16 : MLA_BF16;
    in->is_fp8_query = p.query_dtype == ATTN_DTYPE_FP8_E4M3;
    in->kv = p.kv_cache_dtype ? p.kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    if (p.role == ATTN_ROLE_MLA_SPARSE && in->kv == ATTN_KV_FP8_E4M3) { /* semantics 5.7 */
        in->kv = ATTN_KV_FP8_DS_MLA;
        if (host != NULL && host->log != NULL)
            host->log(host->ctx, ATTN_LOG_INFO,
                      "FLASHMLA_SPARSE keeps an fp8 cache as fp8_ds_mla, 656 bytes a token; REFERENCE has "
                      "the plain fp8 rows");
    }
    in->storage = attn_kv_storage(in->kv, p.dtype);
    in->cache_kind = in->kv == ATTN_KV_FP8_E4M3     ? MLA_CACHE_E4M3
                     : in->kv == ATTN_KV_FP8_DS_MLA ? MLA_CACHE_DS
                                                    : MLA_CACHE_16;
    in->row_elements = in->cache_kind == MLA_CACHE_DS ? MLA_DS_ROW : in->latent + in->rope;
    status = backend->device->find(in, &dev, options, num_options, error);
    if (status == ATTN_OK) status = configure(in, error);
    if (status == ATTN_OK && backend->prefill != NULL && in->projects && !in->plan.is_bound)
        status = backend->prefill->open(in, host, &dev, error);
    if (status == ATTN_OK && backend->widen != NULL) backend->widen->open(in, options, num_options);
    in->metadata.magic = MLA_MAGIC, in->metadata.copy = backend->device->copy;
    in->metadata.mirror_at = mla_mirror_at(in); /* behind the plan of the multi-head form */
    if (status == ATTN_OK && mla_output_is_quantised(in)) {
        in->output_at = in->metadata.workspace_bytes;
        in->metadata.workspace_bytes +=
            mla_round_up((size_t)in->limits.max_tokens * (size_t)in->heads * (size_t)in->value * 2, 256);
    }
    gpu_device_guard guard;
    if (status == ATTN_OK && (status = backend->device->enter(in, &guard, error)) == ATTN_OK) {
        status = backend->device->load(in, options, num_options, host, error);
        backend->device->leave(in, &guard);
    }
    if (status != ATTN_OK) {
        mla_close(in);
        return status;
    }
    *instance = in;
    return ATTN_OK;
}

void mla_close(attn_instance_t *in) {
    if (in != NULL && in->prefill != NULL) in->backend->prefill->close(in->prefill);
    if (in != NULL) in->backend->device->close(in);
    free(in);
}

int mla_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error) {
    attn_problem_t p = in->problem;
    p.kv_cache_dtype = in->kv; /* what open made of it */
    return cache_shape_give(&p, ATTN_LAYOUT_NHD, (uint32_t)in->page_size, num_blocks, shape, error);
}

int mla_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error) {
    return gpu_give_space_needed(&in->metadata, in->weight_bytes, needed, error);
}
