/* SPDX-License-Identifier: Apache-2.0 */
/* One attention call: tensors are checked and become kernel parameters; then at most four launches: decode,
 * reduce, prefill, group scales. No allocation, no waiting, no compilation. */
#include "../common/output_scales.h"
#include "triton_instance.h"

static int read_lse(const attn_instance_t *in, const DLTensor *t, int64_t tokens, triton_params_t *p,
                    attn_error_t *error) {
    int status = gpu_check_lse(t, in->problem.num_heads, tokens, error);
    if (status == ATTN_OK && t != NULL)
        p->lse = attn_data(t), p->lse_head = t->strides[0], p->lse_token = t->strides[1];
    return status;
}

static int read_bias(const attn_instance_t *in, const DLTensor *t, int64_t tokens, triton_params_t *p,
                     attn_error_t *error) {
    if (!in->config.qq_bias)
        return t == NULL
                   ? ATTN_OK
                   : attn_fail(error, ATTN_E_INVALID, "qq_bias",
                               "qq_bias was given, but the problem does not have the feature; ask for it");
    int status = attn_check_tensor(t, "qq_bias", ATTN_DTYPE_FLOAT32, 2, NULL, error);
    if (status == ATTN_OK) status = gpu_check_tensor_device(t, "qq_bias", error);
    if (status == ATTN_OK && (t->shape[0] < tokens || t->shape[1] > INT32_MAX))
        status =
            attn_fail(error, ATTN_E_INVALID, "qq_bias", "qq_bias has %lld rows; the batch has %lld tokens",
                      (long long)t->shape[0], (long long)tokens);
    if (status == ATTN_OK)
        p->qq_bias = attn_data(t), p->qq_row = t->strides[0], p->qq_width = (int32_t)t->shape[1];
    return status;
}

static int read_scales(const attn_instance_t *in, const attn_forward_t *a, triton_params_t *p,
                       attn_error_t *error) {
    int kv_stride = -1, q_stride = -1, out_stride = -1;
    int status = gpu_check_scale(a->scales.k, "k_scale", in->kv_heads, &kv_stride, error);
    if (status == ATTN_OK)
        status = in->config.v_channels
                     ? triton_view_channels(in, a->scales.v, &p->v_scale_head, &p->v_scale_channel, error)
                     : gpu_check_scale(a->scales.v, "v_scale", in->kv_heads, &kv_stride, error);
    if (status == ATTN_OK) status = gpu_check_scale(a->scales.q, "q_scale", in->kv_heads, &q_stride, error);
    if (status == ATTN_OK) status = output_scales_given(a, in->features, error);
    if (status == ATTN_OK) status = gpu_check_scale(a->output_scale, "output_scale", 1, &out_stride, error);
    if (status != ATTN_OK) return status;
    if (in->has_cache && attn_kv_has_static_scales(in->problem.kv_cache_dtype)) {
        p->k_scale = a->scales.k ? attn_data(a->scales.k) : NULL;
        p->v_scale = a->scales.v ? attn_data(a->scales.v) : NULL;
    }
    if (in->config.v_channels) p->v_scale = attn_data(a->scales.v);
    p->kv_scale_stride = kv_stride > 0;
    p->q_scale = a->scales.q ? attn_data(a->scales.q) : NULL;
    p->q_scale_stride = q_stride > 0;
    p->out_scale = a->output_scale ? attn_data(a->output_scale) : NULL;
    return ATTN_OK;
}

static int read_keys(const attn_instance_t *in, const attn_forward_t *a, int64_t rows, triton_params_t *p,
                     attn_error_t *error) {
    if (in->has_cache) {
        gpu_cache_view c;
        int status = triton_view_cache(in, a->kv_cache, a->v_cache, &c, error);
        if (status == ATTN_OK) {
            p->k = c.k, p->v = c.v;
            p->last_page = (int32_t)(c.pages - 1);
            p->k_page = c.k_page, p->k_token = c.k_token, p->k_head = c.k_head;
            p->v_page = c.v_page, p->v_token = c.v_token, p->v_head = c.v_head;
            p->k_rows_scales = c.scales[0].at, p->v_rows_scales = c.scales[1].at;
            p->ks_page = c.scales[0].page, p->ks_token = c.scales[0].token, p->ks_head = c.scales[0].head;
            p->vs_page = c.scales[1].page, p->vs_token = c.scales[1].token, p->vs_head = c.scales[1].head;
        }
        return status;
    }
    const triton_config_t *c = &in->config;
    int status =
        gpu_check_key_rows(a->key, "key", in->problem.dtype, in->kv_heads, c->d, rows, c->kv_vec, error);
    if (status == ATTN_OK)
        status = gpu_check_key_rows(a->value, "value", in->problem.dtype, in->kv_heads, c->dv, rows,
                                    c->kv_vec, error);
    if (status != ATTN_OK) return status;
    p->k = attn_data(a->key), p->k_token = a->key->strides[0], p->k_head = a->key->strides[1];
    p->v = attn_data(a->value), p->v_token = a->value->strides[0], p->v_head = a->value->strides[1];
    return ATTN_OK;
}

static uint32_t out_dtype(const attn_instance_t *in) {
    return in->problem.out_dtype ? in->problem.out_dtype : in->problem.dtype;
}

_Static_assert((int)OUTPUT_FLOATS == (int)TL_SCALE_FLOATS && (int)OUTPUT_POWERS == (int)TL_SCALE_POWERS &&
                   (int)OUTPUT_EXPONENTS == (int)TL_SCALE_EXPONENTS &&
                   (int)OUTPUT_NVFP4 == (int)TL_SCALE_NVFP4,
               "the kernel numbers the kinds as plugins do");

/* Group scales: attention writes model rows to the workspace, and tl_quantize makes the output of them. */
static int read_groups(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                       int64_t tokens, triton_params_t *p, triton_quantize_params_t *g, attn_error_t *error) {
    const int64_t width = (int64_t)in->problem.num_heads * in->config.dv;
    int status = output_block_scale_check(a->output_block_scale, in->features, width, tokens, error);
    if (status == ATTN_OK)
        status = gpu_check_tensor_device(a->output_block_scale, "output_block_scale", error);
    if (status != ATTN_OK) return status;
    const output_groups o = output_groups_of(a, in->features, width);
    *g = (triton_quantize_params_t){.from = (char *)s->workspace + in->rows_at,
                                    .to = p->out,
                                    .from_token = width,
                                    .scales = o.scales,
                                    .tensor = p->out_scale,
                                    .to_token = p->out_token,
                                    .to_head = p->out_head,
                                    .tile = o.tile,
                                    .four = o.four,
                                    .row = o.row,
                                    .part = o.part,
                                    .one = o.one,
                                    .num_groups = (int32_t)o.count,
                                    .group_size = o.size,
                                    .kind = o.kind,
                                    .pads = o.pads,
                                    .counts = s->metadata};
    p->out = (char *)s->workspace + in->rows_at, p->out_token = width, p->out_head = in->config.dv;
    p->out_scale = NULL; /* attention writes the model's type */
    return ATTN_OK;
}

static int read_rel_bias(const attn_instance_t *in, const DLTensor *t, triton_params_t *p,
                         attn_error_t *error) {
    int status = call_check_rel_bias(t, in->config.rel_bias, in->problem.num_heads, error);
    if (status == ATTN_OK && t != NULL) status = gpu_check_tensor_device(t, "rel_bias", error);
    if (status != ATTN_OK || t == NULL) return status;
    p->rel_bias = attn_data(t);
    p->rel_head = t->strides[0];
    p->rel_max = (int32_t)(t->shape[1] / 2);
    return ATTN_OK;
}

static int read_tensors(const attn_instance_t *in, const attn_forward_t *a, const triton_host_header_t *h,
                        triton_params_t *p, attn_error_t *error) {
    const int64_t tokens = h->head.num_tokens;
    const triton_config_t *c = &in->config;
    int heads = (int)in->problem.num_heads;
    uint32_t query_dtype = in->problem.query_dtype ? in->problem.query_dtype : in->problem.dtype;
    int status = gpu_check_rows(a->query, "query", query_dtype, heads, c->d, tokens, c->q_vec, error);
    if (status == ATTN_OK)
        status = gpu_check_rows(a->output, "output", out_dtype(in), heads, attn_output_columns(&in->problem),
                                tokens, c->out_group ? 1 : c->out_vec, error);
    if (status == ATTN_OK) status = gpu_check_vector(a->sinks, "sinks", "sink", c->sinks, heads, error);
    if (status == ATTN_OK)
        status =
            gpu_check_vector(a->alibi_slopes, "alibi_slopes", "alibi or alibi_sqrt", c->alibi, heads, error);
    if (status == ATTN_OK) status = read_rel_bias(in, a->rel_bias, p, error);
    if (status == ATTN_OK) status = read_scales(in, a, p, error);
    if (status == ATTN_OK) status = read_lse(in, a->lse, tokens, p, error);
    if (status == ATTN_OK) status = read_bias(in, a->qq_bias, tokens, p, error);
    if (status == ATTN_OK) status = read_keys(in, a, h->num_key_rows, p, error);
    if (status != ATTN_OK) return status;
    p->q = attn_data(a->query), p->q_token = a->query->strides[0], p->q_head = a->query->strides[1];
    p->out = attn_data(a->output), p->out_token = a->output->strides[0], p->out_head = a->output->strides[1];
    p->sinks = a->sinks ? attn_data(a->sinks) : NULL;
    p->alibi = a->alibi_slopes ? attn_data(a->alibi_slopes) : NULL;
    return ATTN_OK;
}

/* writes: the writer was launched just now. Decode starts beside it, and waits for it. */
static int launch(const attn_instance_t *in, const triton_host_header_t *h, triton_params_t *p,
                  triton_quantize_params_t *g, int writes, void *stream) {
    const triton_driver_t *d = &in->driver;
    const triton_config_t *c = &in->config;
    void *args[1] = {p};
    unsigned kv_heads = (unsigned)in->kv_heads, heads = in->problem.num_heads;
    int e = 0;
    if (h->grid_items > 0) {
        void *const decode = h->is_wide ? in->decode_wide : in->decode;
        const triton_config_t *by = h->is_wide ? &in->wide : c;
        const unsigned row_blocks = (unsigned)triton_row_blocks(c->group, by->decode_rows, h->decode_tokens);
        const unsigned x = kv_heads * row_blocks, y = (unsigned)h->grid_items,
                       threads = (unsigned)by->decode_threads, smem = (unsigned)by->decode_smem;
        e = writes && !c->exact ? triton_driver_launch_after(d, decode, x, y, threads, smem, stream, args)
                                : d->launch(decode, x, y, 1, threads, 1, 1, smem, stream, args, NULL);
    }
    if (e == 0 && h->grid_splits > 0 && in->reduce != NULL)
        e = d->launch(in->reduce, (unsigned)h->grid_splits, ((unsigned)h->decode_tokens * heads + 3) / 4, 1,
                      128, 1, 1, 0, stream, args, NULL);
    if (h->cut_rows > 0) p->max_rows = h->cut_rows; /* decode has read its own */
    if (e == 0 && h->grid_tiles > 0)
        e = d->launch(in->prefill, kv_heads * (unsigned)h->grid_tiles, 1, 1, (unsigned)c->prefill_threads, 1,
                      1, (unsigned)c->prefill_smem, stream, args, NULL);
    if (e == 0 && c->out_group) {
        void *last[1] = {g};
        const unsigned units = (unsigned)(g->num_groups * g->group_size / 8);
        e = d->launch(in->quantize, (unsigned)h->head.num_tokens, (units + 255) / 256, 1, 256, 1, 1, 0,
                      stream, last, NULL);
    }
    return e;
}

/* The profiling run: the output becomes zero. One fill where heads lie side by side, else one for each
 * head. */
static int fill_with_zero(const attn_instance_t *in, const DLTensor *out, void *stream) {
    size_t element = out->dtype.bits / 8u, row = (size_t)out->shape[2] * element,
           heads = (size_t)out->shape[1];
    int dense = out->shape[1] == 1 || out->strides[1] == out->shape[2], e = 0;
    size_t pitch = (size_t)out->strides[0] * element, width = dense ? row * heads : row;
    if (out->shape[0] == 1) pitch = width;
    for (size_t i = 0; i < (dense ? 1 : heads) && e == 0; i++)
        e = in->driver.fill_2d((unsigned long long)(uintptr_t)attn_data(out) +
                                   i * (size_t)out->strides[1] * element,
                               pitch, 0, width, (size_t)out->shape[0], stream);
    return e;
}

static int profile(attn_instance_t *in, const attn_forward_t *a, void *stream, attn_error_t *error) {
    int status = gpu_check_rows(a->output, "output", out_dtype(in), (int)in->problem.num_heads,
                                attn_output_columns(&in->problem), 0, 1, error);
    if (status != ATTN_OK || a->output->shape[0] == 0) return status;
    status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK) return status;
    int e = fill_with_zero(in, a->output, stream);
    triton_driver_leave(&in->driver);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "the profiling run", error);
}

int triton_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && space == NULL) return profile(in, &a, stream, error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK) status = gpu_check_forward(&in->metadata, &s, error);
    if (status != ATTN_OK) return status;
    const triton_host_header_t *h = s.host;
    triton_params_t p;
    memset(&p, 0, sizeof p);
    triton_quantize_params_t g;
    memset(&g, 0, sizeof g);
    status = read_tensors(in, &a, h, &p, error);
    if (status == ATTN_OK && in->config.out_group)
        status = read_groups(in, &a, &s, h->head.num_tokens, &p, &g, error);
    attn_kv_update_t update = {.slot_mapping = NULL};
    if (status == ATTN_OK) status = call_update_of_forward(&a, in->features, &update, error);
    const int writes = status == ATTN_OK && update.slot_mapping != NULL && update.slot_mapping->shape[0] > 0;
    if (status == ATTN_OK && update.slot_mapping != NULL)
        status = triton_update_kv_cache(in, &update, stream, error);
    if (status != ATTN_OK || h->head.num_tokens == 0) return status;
    char *meta = s.metadata;
    p.counts = (const triton_counts_t *)(void *)meta;
    p.q_start = (const int32_t *)(void *)(meta + in->q_start_at);
    if (in->k_start_at != 0) p.k_start = (const int32_t *)(void *)(meta + in->k_start_at);
    p.seq_lens = (const int32_t *)(void *)(meta + in->seq_lens_at);
    if (h->device_lens != NULL) p.q_start = h->device_starts, p.seq_lens = h->device_lens;
    p.causal = (const int32_t *)(void *)(meta + in->causal_at);
    p.items = (const triton_item_t *)(void *)(meta + in->items_at);
    p.splits = (const triton_split_t *)(void *)(meta + in->splits_at);
    p.tickets = (int32_t *)(void *)(meta + in->tickets_at);
    p.tiles = (const triton_tile_t *)(void *)(meta + in->tiles_at);
    p.part_out = s.workspace;
    p.part_lse = s.workspace ? (float *)(void *)((char *)s.workspace + in->part_lse_at) : NULL;
    p.num_kv_heads = in->kv_heads;
    p.max_rows = in->plan_input.decode_tokens * (int)in->problem.num_heads;
    status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK) return status;
    int e = launch(in, h, &p, &g, writes, stream);
    triton_driver_leave(&in->driver);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "launching a kernel", error);
}
