/* SPDX-License-Identifier: Apache-2.0 */
/* One attention call: checks the tensors in a column, fills the parameter struct, walks the plan. */
#include "cpu_instance.h"

call_cache_t cpu_cache_of(const attn_instance_t *in) {
    return (call_cache_t){.role = in->p.role,
                          .kv = in->kv,
                          .storage = in->storage,
                          .kv_heads = in->shape.num_kv_heads,
                          .block_size = in->block_size,
                          .head_size = in->shape.head_size,
                          .head_size_v = in->shape.head_size_v,
                          .is_separate = in->is_separate,
                          .layout = in->p.kv_layout != 0 ? in->p.kv_layout : (uint32_t)ATTN_LAYOUT_HND,
                          .dtype = in->p.dtype};
}

float cpu_scale_at(const DLTensor *scale, int64_t head) {
    if (scale == NULL) return 1.0f;
    const float *values = attn_data(scale);
    return scale->ndim == 0 || scale->shape[0] == 1 ? values[0] : values[head * scale->strides[0]];
}

static struct cpu_rows rows_of_page(const DLTensor *t, const attn_kv_part_t *part) {
    return (struct cpu_rows){(char *)attn_data(t) + part->at, attn_byte_stride(t, 0), part->head,
                             part->token};
}

void cpu_cache_rows(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache, int side,
                    struct cpu_rows *rows, struct cpu_rows *scales) {
    const DLTensor *t = in->is_separate && side ? v_cache : kv_cache;
    const call_cache_t c = cpu_cache_of(in);
    if (in->is_latent) { /* both sides are the same rows */
        *rows = (struct cpu_rows){attn_data(t), attn_byte_stride(t, 0), 0, attn_byte_stride(t, 1)};
        *scales = (struct cpu_rows){0};
        return;
    }
    if (attn_kv_is_whole_page(c.kv)) {
        const attn_kv_page_t page = call_cache_page(&c);
        *rows = rows_of_page(t, &page.values[side]);
        *scales = (struct cpu_rows){0};
        if (page.scales[side].row != 0) *scales = rows_of_page(t, &page.scales[side]);
        return;
    }
    *rows = (struct cpu_rows){attn_data(t), attn_byte_stride(t, 0), attn_byte_stride(t, 1),
                              attn_byte_stride(t, 2)};
    if (side && !in->is_separate) rows->base += call_cache_row_bytes(&c, 0);
    *scales = (struct cpu_rows){0};
    if (attn_kv_is_per_token_head(c.kv) && in->shape.kv_dtype != CPU_PACKED) {
        *scales = *rows;
        scales->base += call_cache_data_bytes(&c, side);
    }
}

const float *cpu_channel_scales(const attn_instance_t *in, const DLTensor *scale) {
    const int size = in->shape.head_size_v;
    for (int h = 0; h < in->shape.num_kv_heads; h++)
        for (int d = 0; d < size; d++)
            in->v_channel[(size_t)h * (size_t)size + (size_t)d] =
                scale->ndim == 2 ? ((const float *)attn_data(scale))[h * scale->strides[0] + d]
                                 : cpu_scale_at(scale, 0);
    return in->v_channel;
}

static int check_call(const attn_instance_t *in, const attn_forward_t *a, const struct cpu_metadata *m,
                      attn_error_t *error) {
    const int64_t tokens = m->num_tokens, rows = m->num_key_rows;
    const struct cpu_attn *s = &in->shape;
    const call_cache_t c = cpu_cache_of(in);
    int status = call_check_rows(a->query, "query", in->projects ? in->p.dtype : in->query_dtype,
                                 s->num_q_heads, attn_query_size(&in->p), tokens, error);
    if (status == ATTN_OK && in->is_latent)
        status = call_check_latent_cache(a->kv_cache, a->v_cache, in->storage, in->block_size,
                                         cpu_latent_row(in), error);
    else if (status == ATTN_OK && in->has_cache)
        status = call_check_caches(&c, a->kv_cache, a->v_cache, error);
    if (status == ATTN_OK && a->topk_indices != NULL && !in->is_sparse)
        status = attn_fail(error, ATTN_E_INVALID, "topk_indices",
                           "topk_indices was given; role %s attends to every token it sees",
                           attn_role_name(in->p.role));
    if (status == ATTN_OK && !in->has_cache)
        status = call_check_key_rows(a->key, "key", in->p.dtype, s->num_kv_heads, s->head_size, rows, error);
    if (status == ATTN_OK && !in->has_cache)
        status =
            call_check_key_rows(a->value, "value", in->p.dtype, s->num_kv_heads, s->head_size_v, rows, error);
    if (status == ATTN_OK) status = cpu_output_check(in, a, tokens, error);
    if (status == ATTN_OK && in->projects) status = cpu_latent_check(in, a, error);
    if (status == ATTN_OK) status = call_check_lse(a->lse, s->num_q_heads, tokens, error);
    attn_forward_t extras = *a; /* scales of channels have a check of their own */
    if (status == ATTN_OK && attn_kv_has_channel_scales(in->kv)) {
        status = call_check_channel_scale(a->scales.v, s->num_kv_heads, s->head_size_v, error);
        extras.scales.v = NULL;
    }
    return status == ATTN_OK
               ? call_check_extras(&extras, in->features, s->num_q_heads, s->num_kv_heads, tokens, error)
               : status;
}

static int check_space(const attn_instance_t *in, const attn_space_t *s, attn_error_t *error) {
    const struct cpu_metadata *m = s->metadata;
    if (m == NULL || s->metadata_bytes < in->metadata_bytes)
        return attn_fail(error, ATTN_E_SPACE, "metadata",
                         "the metadata buffer has %llu bytes; space_needed says %zu",
                         (unsigned long long)(m != NULL ? s->metadata_bytes : 0), in->metadata_bytes);
    if (m->magic != CPU_METADATA_MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was never built, or building it failed; call build_metadata first");
    if (s->workspace == NULL || s->workspace_bytes < in->workspace_bytes || (uintptr_t)s->workspace % 64 != 0)
        return attn_fail(error, ATTN_E_SPACE, "workspace",
                         "the workspace has %llu bytes at %p; space_needed says %zu, aligned to 64",
                         (unsigned long long)(s->workspace != NULL ? s->workspace_bytes : 0), s->workspace,
                         in->workspace_bytes);
    return ATTN_OK;
}

static const float *copy_vector(const DLTensor *t, int64_t n, float *to) {
    if (t == NULL) return NULL;
    for (int64_t i = 0; i < n; i++)
        to[i] = ((const float *)attn_data(t))[i * t->strides[0]];
    return to;
}

/* Static scales count for the formats that have them; the query's scale multiplies the same scores as K's. */
static void set_scales(const attn_instance_t *in, const attn_scales_t *s, struct cpu_attn *c) {
    const int is_scaled = attn_kv_has_static_scales(in->kv);
    const int has_q = in->query_dtype == ATTN_DTYPE_FP8_E4M3 && s->q != NULL;
    for (int h = 0; h < c->num_kv_heads; h++) {
        in->k_scale[h] = (is_scaled ? cpu_scale_at(s->k, h) : 1.0f) * (has_q ? cpu_scale_at(s->q, h) : 1.0f);
        in->v_scale[h] = is_scaled ? cpu_scale_at(in->is_latent ? s->k : s->v, h) : 1.0f;
    }
    c->k_scale = in->k_scale;
    c->v_scale = in->v_scale;
}

static void set_call(const attn_instance_t *in, const attn_forward_t *a, const struct cpu_metadata *m,
                     struct cpu_attn *c) {
    *c = in->shape;
    c->q = attn_data(a->query);
    c->q_token = attn_byte_stride(a->query, 0);
    c->q_head = attn_byte_stride(a->query, 1);
    c->out = attn_data(a->output);
    c->out_token = attn_byte_stride(a->output, 0);
    c->out_head = attn_byte_stride(a->output, 1);
    if (a->lse != NULL) {
        c->lse = attn_data(a->lse);
        c->lse_head = a->lse->strides[0];
        c->lse_token = a->lse->strides[1];
    }
    if (in->has_cache) {
        const int is_apart = attn_kv_is_whole_page(in->kv);
        cpu_cache_rows(in, a->kv_cache, a->v_cache, 0, &c->k, is_apart ? &c->k_apart : &c->k_row_scale);
        cpu_cache_rows(in, a->kv_cache, a->v_cache, 1, &c->v, is_apart ? &c->v_apart : &c->v_row_scale);
        if (attn_kv_has_channel_scales(in->kv)) c->v_channel = cpu_channel_scales(in, a->scales.v);
        c->block_table = m->block_table;
        c->block_table_row = m->block_table_row;
    } else {
        c->k =
            (struct cpu_rows){attn_data(a->key), 0, attn_byte_stride(a->key, 1), attn_byte_stride(a->key, 0)};
        c->v = (struct cpu_rows){attn_data(a->value), 0, attn_byte_stride(a->value, 1),
                                 attn_byte_stride(a->value, 0)};
    }
    c->sinks = copy_vector(a->sinks, c->num_q_heads, in->sinks);
    c->alibi = copy_vector(a->alibi_slopes, c->num_q_heads, in->alibi);
    if (a->rel_bias != NULL) {
        c->rel_max = (int32_t)(a->rel_bias->shape[1] / 2);
        c->rel_stride = a->rel_bias->strides[0];
        c->rel_bias = (const float *)attn_data(a->rel_bias) + c->rel_max;
    }
    if (a->qq_bias != NULL) {
        c->qq_bias = attn_data(a->qq_bias);
        c->qq_stride = a->qq_bias->strides[0];
        c->qq_width = a->qq_bias->shape[1];
    }
    set_scales(in, &a->scales, c);
}

/* The profiling run, without metadata: zero for every row (semantics 7.10). */
static int zero_output(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error) {
    const int status = call_check_rows(a->output, "output", in->out_dtype, in->shape.num_q_heads,
                                       attn_output_columns(&in->p), 0, error);
    if (status == ATTN_OK) call_zero_rows(a->output);
    return status;
}

int cpu_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    struct cpu_attn call;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && space == NULL) return zero_output(in, &a, error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK) status = check_space(in, &s, error);
    if (status != ATTN_OK) return status;
    struct cpu_metadata *m = s.metadata;
    status = check_call(in, &a, m, error);
    if (status != ATTN_OK) return status;
    if (in->has_cache && m->max_block >= a.kv_cache->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "block_table",
                         "block_table names block %d; the cache has %lld blocks", m->max_block,
                         (long long)a.kv_cache->shape[0]);
    struct cpu_plan *plan = cpu_metadata_plan(m);
    status = in->is_sparse ? cpu_sparse_check(in, &a, m, error)
                           : cpu_plan_of_call(in, m, s.workspace, &plan, error);
    attn_kv_update_t update;
    if (status == ATTN_OK) status = call_update_of_forward(&a, in->features, &update, error);
    if (status == ATTN_OK && update.slot_mapping != NULL)
        status = cpu_update_kv_cache(in, &update, stream, error);
    if (status != ATTN_OK) return status;
    struct cpu_plain_output plain;
    attn_forward_t run = a;
    run.output = cpu_output_plain(in, &a, s.workspace, &plain);
    set_call(in, &run, m, &call);
    if (in->is_sparse)
        cpu_sparse_run(in, &run, m, &call, s.workspace);
    else if (in->projects)
        cpu_latent_run(in, &run, m, plan, &call, s.workspace);
    else
        cpu_plan_run(plan, in->k, &call, &in->tiling, &in->limits, s.workspace, 0);
    cpu_output_finish(in, &a, cpu_plan_tokens(plan), s.workspace);
    return ATTN_OK;
}
