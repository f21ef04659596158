/* SPDX-License-Identifier: Apache-2.0 */
/* forward: absorb, attend, merge, project, slice after slice of the tokens (semantics 7.4). The latents of a
 * slice live in the workspace: attention reads the absorbed queries there and leaves its result in their
 * place; where the caller projects (7.11), both are the caller's tensors as far as their strides allow. Where
 * the query is fp8, what attention reads are e4m3 numbers in 16 bits, and q_scale is a factor of its
 * scores. */
#include "kernels/cuda/dense/flash_launch.h"
#include "mla_instance.h"

static int check_unserved(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error) {
    const struct {
        const DLTensor *t;
        const char *name;
    } unserved[] = {{a->sinks, "sinks"}, {a->alibi_slopes, "alibi_slopes"}, {a->qq_bias, "qq_bias"}};
    for (size_t i = 0; i < sizeof unserved / sizeof unserved[0]; i++)
        if (unserved[i].t != NULL)
            return attn_fail(error, ATTN_E_INVALID, unserved[i].name,
                             "%s was given, but %s has no such feature; leave it "
                             "NULL",
                             unserved[i].name, in->backend->name);
    return ATTN_OK;
}

static int check_args(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                      attn_error_t *error) {
    const uint32_t dtype =
        in->is_fp8_query && !in->projects ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : in->problem.dtype;
    int status = gpu_check_rows(a->query, "query", dtype, in->heads, in->nope + in->rope, tokens, 16, error);
    if (status == ATTN_OK) status = mla_check_output(in, a, tokens, error);
    if (status == ATTN_OK) status = mla_check_cache(in, a->kv_cache, a->v_cache, error);
    if (status == ATTN_OK) status = mla_check_scale(a->scales.k, "k_scale", error);
    if (status == ATTN_OK && in->is_fp8_query) status = mla_check_scale(a->scales.q, "q_scale", error);
    if (status == ATTN_OK) status = gpu_check_lse(a->lse, in->heads, tokens, error);
    if (status == ATTN_OK && in->plan.topk != 0) {
        const int64_t shape[2] = {-1, in->plan.topk};
        status = attn_check_tensor(a->topk_indices, "topk_indices", ATTN_DTYPE_INT32, 2, shape, error);
        if (status == ATTN_OK) status = gpu_check_tensor_device(a->topk_indices, "topk_indices", error);
        if (status == ATTN_OK && a->topk_indices->shape[0] < tokens)
            status = attn_fail(error, ATTN_E_INVALID, "topk_indices",
                               "topk_indices has %lld rows; the batch has %lld tokens",
                               (long long)a->topk_indices->shape[0], (long long)tokens);
    } else if (status == ATTN_OK && a->topk_indices != NULL)
        status = attn_fail(error, ATTN_E_INVALID, "topk_indices",
                           "topk_indices was given; role mla attends to every token");
    if (status == ATTN_OK && in->projects &&
        (a->weight_space == NULL || a->weight_space_bytes < in->weight_bytes))
        status = attn_fail(error, ATTN_E_INVALID, "weight_space",
                           "weight_space has %llu bytes, expected %llu; call prepare_weights after loading",
                           (unsigned long long)(a->weight_space ? a->weight_space_bytes : 0),
                           (unsigned long long)in->weight_bytes);
    return status;
}

static mla_attend_params attend_params(const attn_instance_t *in, const attn_forward_t *a,
                                       const attn_space_t *s) {
    char *meta = s->metadata, *work = s->workspace;
    mla_attend_params p = {.counts = (const mla_counts *)(void *)meta,
                           .items = (const mla_item *)(void *)(meta + in->items_at),
                           .splits = (const mla_split *)(void *)(meta + in->splits_at),
                           .absorbed = work,
                           .absorbed_row = in->latent,
                           .absorbed_rows = in->plan.slice_tokens * in->heads,
                           .latent = work,
                           .query = attn_data(a->query),
                           .q_token = a->query->strides[0],
                           .q_head = a->query->strides[1],
                           .cache = attn_data(a->kv_cache),
                           .cache_page = attn_byte_stride(a->kv_cache, 0),
                           .cache_row = attn_byte_stride(a->kv_cache, 1),
                           .num_pages = a->kv_cache->shape[0],
                           .k_scale = a->scales.k ? attn_data(a->scales.k) : NULL,
                           .part_out = (float *)(void *)(work + in->part_out_at),
                           .part_lse = (float *)(void *)(work + in->part_lse_at),
                           .scale = (float)in->problem.scale,
                           .num_heads = in->heads,
                           .latent_rank = in->latent,
                           .nope = in->nope,
                           .page_size = in->page_size,
                           .dtype = in->dtype,
                           .cache_kind = in->cache_kind,
                           .stages = in->stages,
                           .tile_rows = in->plan.tile_rows,
                           .reads_lengths = in->plan.is_bound};
    if (in->is_fp8_query) { /* the rope of the slice, as e4m3 numbers, lies in the workspace */
        p.q_token = (int64_t)in->heads * in->rope, p.q_head = in->rope, p.nope = 0;
        p.q_scale = a->scales.q ? attn_data(a->scales.q) : NULL;
    }
    if (in->plan.topk != 0) {
        p.topk = attn_data(a->topk_indices), p.topk_row = a->topk_indices->strides[0];
        p.topk_count = in->plan.topk;
        if (mla_packed_bytes(&in->config, p.topk_count) > 0)
            p.lists = (int32_t *)(void *)(work + in->lists_at);
    }
    if (a->lse != NULL)
        p.lse = attn_data(a->lse), p.lse_head = a->lse->strides[0], p.lse_token = a->lse->strides[1];
    return p;
}

/* Absorbed queries to p->latent. */
static int absorb(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s, int32_t token0,
                  int32_t tokens, const mla_attend_params *p, void *stream) {
    const mla_project_params absorb = {.counts = p->counts,
                                       .a = (const uint16_t *)attn_data(a->query) +
                                            token0 * a->query->strides[0],
                                       .b = a->weight_space,
                                       .c = p->latent,
                                       .a_token = a->query->strides[0],
                                       .a_head = a->query->strides[1],
                                       .b_head = (int64_t)(in->nope + in->value) * in->latent,
                                       .b_row = in->latent,
                                       .c_token = (int64_t)in->heads * in->latent,
                                       .c_head = in->latent,
                                       .token0 = token0,
                                       .tokens = tokens,
                                       .num_heads = in->heads,
                                       .n = in->latent,
                                       .k = in->nope,
                                       .dtype = in->dtype,
                                       .rope = in->is_fp8_query ? (char *)s->workspace + in->rope_at : NULL,
                                       .q_scale = p->q_scale};
    return in->backend->device->multiply(in, MLA_ABSORB, &absorb, stream);
}

/* The latents in p->latent to values in the output. */
static int project_values(const attn_instance_t *in, const attn_forward_t *a, int32_t token0, int32_t tokens,
                          const mla_attend_params *p, void *stream) {
    const mla_project_params values = {.counts = p->counts,
                                       .a = p->latent,
                                       .b =
                                           (const uint16_t *)a->weight_space + (int64_t)in->nope * in->latent,
                                       .c = (uint16_t *)attn_data(a->output) + token0 * a->output->strides[0],
                                       .a_token = (int64_t)in->heads * in->latent,
                                       .a_head = in->latent,
                                       .b_head = (int64_t)(in->nope + in->value) * in->latent,
                                       .b_row = in->latent,
                                       .c_token = a->output->strides[0],
                                       .c_head = a->output->strides[1],
                                       .token0 = token0,
                                       .tokens = tokens,
                                       .num_heads = in->heads,
                                       .n = in->value,
                                       .k = in->latent,
                                       .b_is_nk = 1,
                                       .dtype = in->dtype,
                                       .early = in->compute_capability >= 90,
                                       .q_scale = p->q_scale};
    return in->backend->device->multiply(in, MLA_VALUES, &values, stream);
}

static int launch(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s, void *stream) {
    const mla_host_header *h = s->host;
    const mla_launch_size *sizes = (const mla_launch_size *)(const void *)(h + 1);
    char *rope = (char *)s->workspace + in->rope_at;
    mla_attend_params p = attend_params(in, a, s);
    mla_plan_input plan = in->plan;
    const int copies = h->widened.num_pages > 0;
    plan.border = copies ? h->widened.first_token : 0;
    int e = copies ? in->backend->widen->copy(in, &p, s, &h->widened, stream) : 0;
    for (int32_t i = 0, token0 = 0, tokens; i < h->num_slices && !e; i++, token0 += tokens) {
        tokens = mla_slice_end(&plan, token0, h->num_absorbed) - token0;
        if (copies && token0 >= h->widened.first_token) in->backend->widen->use(in, s, &h->widened, &p);
        e = in->projects ? absorb(in, a, s, token0, tokens, &p, stream)
                         : mla_latent_begin(in, a, s, token0, tokens, &p, stream);
        /* lists are read while the absorption ends, so what wrote them must have ended before it: a kernel of
         * cuBLAS may itself have started early */
        if (in->plan.topk != 0 && (int64_t)tokens * in->heads > in->config.own_rows) p.in_order = 1;
        p.slice = (const mla_slice *)(void *)((char *)s->metadata + in->slices_at) + i;
        p.slice_row0 = token0 * in->heads;
        if (in->is_fp8_query) /* kernels count tokens from the first of the batch */
            p.query = (const void *)((uintptr_t)rope - (uintptr_t)(token0 * p.q_token * 2));
        p.parts = (const int32_t *)(void *)((char *)s->metadata + in->parts_at) + i * (in->plan.parts + 1);
        if (!e && sizes[i].items > 0) e = in->backend->device->attend(in, &p, sizes[i].items, stream);
        if (!e && sizes[i].splits > 0) e = in->backend->device->merge(in, &p, sizes[i].splits, stream);
        if (!e)
            e = in->projects ? project_values(in, a, token0, tokens, &p, stream)
                             : mla_latent_end(in, a, token0, tokens, &p, stream);
    }
    const struct mla_prefill_plan *prefill =
        (const struct mla_prefill_plan *)(const void *)((const char *)s->host + mla_prefill_plan_at(in));
    if (!e && in->prefill != NULL) e = in->backend->prefill->forward(in, a, s, prefill, stream);
    return e;
}

int mla_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    gpu_device_guard guard;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && space != NULL) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK) status = check_unserved(in, &a, error);
    if (status == ATTN_OK && space == NULL) /* the profiling run */
        status = mla_check_output(in, &a, 0, error);
    else if (status == ATTN_OK)
        status = gpu_check_forward(&in->metadata, &s, error);
    int64_t tokens = status != ATTN_OK ? 0
                     : space == NULL   ? a.output->shape[0]
                                       : gpu_header_of(&s)->num_tokens;
    if (status == ATTN_OK && space != NULL) status = check_args(in, &a, tokens, error);
    if (status != ATTN_OK || tokens == 0) return status;
    status = in->backend->device->enter(in, &guard, error);
    if (status != ATTN_OK) return status;
    int e = 0;
    if (space == NULL) { /* 16 bits at a time */
        const int n = mla_output_is_quantised(in) ? 2 : 1;
        const int columns = (int)attn_output_columns(&in->problem);
        e = in->backend->device->zero_rows(in, attn_data(a.output), tokens, columns / n,
                                           a.output->strides[0] / n, a.output->strides[1] / n, stream);
    } else if (mla_output_is_quantised(in)) {
        gpu_output_view view;
        attn_forward_t inner = a;
        mla_output_begin(in, &s, &view);
        inner.output = &view.t;
        e = launch(in, &inner, &s, stream);
        const mla_host_header *h = s.host;
        const mla_counts *counts = h->num_absorbed == tokens ? s.metadata : NULL;
        if (!e) e = mla_output_finish(in, &a, &view, tokens, counts, stream);
    } else
        e = launch(in, &a, &s, stream);
    in->backend->device->leave(in, &guard);
    if (e < 0) /* FLASH_E_MAP_*: only the query has strides of the caller */
        return attn_fail(error, ATTN_E_INVALID, e == FLASH_E_MAP_Q ? "query" : "workspace",
                         "%s cannot be read by tensor copies; its strides must be below 2^40 bytes",
                         e == FLASH_E_MAP_Q ? "query" : "the workspace");
    return e ? in->backend->device->fail(in, error, e, "launching a kernel") : ATTN_OK;
}
