/* SPDX-License-Identifier: Apache-2.0 */
/* run_batch.c: the arguments of build_metadata and forward, made of a case and its inputs. */
#include "case_run.h"

#include <attn/attn_plugin_util.h>

#include <string.h>

int32_t kit_case_more_tokens(const kit_case_t *c, int r) {
    return (c->problem.features & ATTN_F_DEVICE_LENGTHS) != 0 && r % 3 == 1 ? 2 : 0;
}
/* Keys likewise. */
static int32_t more_keys(const kit_run_t *x, int r) {
    const kit_case_t *c = x->c;
    if ((c->problem.features & ATTN_F_DEVICE_LENGTHS) == 0) return 0;
    const int64_t most = c->problem.max_model_len - c->seq_lens[r], more = 2 + r * 37 % 90;
    return (int32_t)(more < most ? more : most);
}

int64_t kit_run_padding(const kit_run_t *x) {
    int64_t rows = x->c->padded_tokens;
    for (int r = 0; r < x->c->num_reqs; r++)
        rows += kit_case_more_tokens(x->c, r);
    return rows;
}

/* Rows of a strided case are wider than the table; what is behind them is not a page id. Behind a request's
 * own keys and up to what the host says are keys of page 0, which nobody wrote. */
static kit_tensor_t *make_table(kit_run_t *x) {
    const int64_t n = x->c->num_reqs, bs = x->c->problem.block_size, own = x->in->table_width;
    int64_t width = own;
    for (int r = 0; r < n; r++) {
        const int64_t needed = (x->c->seq_lens[r] + more_keys(x, r) + bs - 1) / bs;
        width = needed > width ? needed : width;
    }
    const int64_t shape[2] = {n, width}, strides[2] = {width + 7, 1};
    const int is_wide = (x->c->flags & (KIT_STRIDED | KIT_HEADS_FIRST)) != 0;
    kit_tensor_t *t =
        kit_tensor_make(&x->all, "block_table", ATTN_DTYPE_INT32, 2, shape, is_wide ? strides : NULL, 0);
    for (int64_t r = 0; t != NULL && r < n; r++) {
        int32_t *row = (int32_t *)(void *)kit_tensor_at(t, r, 0);
        memset(row, 0, (size_t)width * sizeof *row);
        memcpy(row, x->in->block_table + r * own, (size_t)own * sizeof *row);
        for (int64_t i = (x->c->seq_lens[r] + bs - 1) / bs;
             i < (x->c->seq_lens[r] + more_keys(x, (int)r) + bs - 1) / bs; i++)
            row[i] = 0;
    }
    kit_tensor_send(&x->all, t);
    return t;
}

/* Rows of a strided case are further apart; what lies between them is no span that anybody gave. */
static kit_tensor_t *make_spans(kit_run_t *x) {
    const int64_t n = x->c->num_reqs, row = 2 * (int64_t)x->c->num_spans;
    const int64_t shape[3] = {n, x->c->num_spans, 2}, strides[3] = {row + 4, 2, 1};
    const int is_wide = (x->c->flags & (KIT_STRIDED | KIT_HEADS_FIRST)) != 0;
    kit_tensor_t *t =
        kit_tensor_make(&x->all, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, shape, is_wide ? strides : NULL, 0);
    for (int64_t r = 0; t != NULL && r < n; r++)
        memcpy(kit_tensor_at(t, r, 0), x->spans + r * row, (size_t)row * sizeof *x->spans);
    kit_tensor_send(&x->all, t);
    return t;
}

/* Members that a batch may have and that change nothing. */
static void add_optional(kit_run_t *x) {
    const kit_case_t *c = x->c;
    int is_full = 1;                                 /* no request is without a token */
    x->batch.max_seq_len = c->problem.max_model_len; /* an upper bound is allowed */
    for (int r = 0; r < c->num_reqs; r++) {
        const int32_t query = x->batch.query_start_loc_host[r + 1] - x->batch.query_start_loc_host[r];
        if (query > x->batch.max_query_len) x->batch.max_query_len = query;
        is_full &= query > 0;
    }
    /* so it is here, but where decodes, said to be such, have padding among them */
    if (is_full && (x->batch.max_query_len == 1 || c->num_reqs == 1)) x->batch.max_query_len += 2;
}

/* The device's lists are the case's, the host's are bounds of them. */
static void say_bounds(kit_run_t *x) {
    const kit_case_t *c = x->c;
    x->bound_starts[0] = 0;
    for (int r = 0; r < c->num_reqs; r++) {
        x->bound_starts[r + 1] = x->bound_starts[r] + c->query_lens[r] + kit_case_more_tokens(c, r);
        x->bound_lens[r] = c->seq_lens[r] + more_keys(x, r);
        if (x->bound_lens[r] < c->query_lens[r] + kit_case_more_tokens(c, r)) /* at max_model_len */
            x->bound_lens[r] = c->query_lens[r] + kit_case_more_tokens(c, r);
    }
    x->batch.num_actual_tokens = x->bound_starts[c->num_reqs];
    x->batch.query_start_loc_host = x->bound_starts;
    x->batch.seq_lens_host = x->bound_lens;
}

static void make_batch(kit_run_t *x) {
    const kit_case_t *c = x->c;
    int32_t *start = x->starts, *spans = x->spans, causal[KIT_MAX_REQS];
    start[0] = 0;
    for (int r = 0; r < c->num_reqs; r++) {
        start[r + 1] = start[r] + c->query_lens[r];
        causal[r] = c->causal[r];
        for (int i = 0; i < c->num_spans * 2; i++)
            spans[r * c->num_spans * 2 + i] = c->spans[r][i / 2][i % 2];
    }
    x->batch = (attn_batch_t){.struct_size = sizeof x->batch,
                              .num_reqs = c->num_reqs,
                              .num_actual_tokens = start[c->num_reqs],
                              .common_prefix_len = c->common_prefix_len,
                              .query_start_loc_host = start,
                              .seq_lens_host = c->seq_lens};
    kit_tensor_t *t = kit_run_ints(x, "query_start_loc", start, ATTN_DTYPE_INT32, c->num_reqs + 1, 0, 0);
    if (t != NULL) x->batch.query_start_loc = &t->t;
    t = kit_run_ints(x, "seq_lens", c->seq_lens, ATTN_DTYPE_INT32, c->num_reqs, 0, 0);
    if (t != NULL) x->batch.seq_lens = &t->t;
    if (x->in->block_table != NULL) {
        if ((t = make_table(x)) != NULL) x->batch.block_table = &t->t;
        if ((c->flags & KIT_BARE_BATCH) == 0 && (c->problem.features & ATTN_F_DEVICE_LENGTHS) == 0) {
            x->batch.block_table_host = x->in->block_table;
            x->batch.block_table_host_stride = x->in->table_width;
        }
    }
    if (c->problem.mask == ATTN_MASK_PER_REQUEST) {
        t = kit_run_ints(x, "causal", causal, ATTN_DTYPE_INT32, c->num_reqs, 0, 0);
        if (t != NULL) x->batch.causal = &t->t;
        x->batch.causal_host = c->causal;
    }
    if (c->num_spans > 0) {
        if ((t = make_spans(x)) != NULL) x->batch.mm_prefix_ranges = &t->t;
        if ((c->flags & KIT_BARE_BATCH) == 0) x->batch.mm_prefix_ranges_host = spans;
        x->batch.num_mm_ranges = c->num_spans;
    }
    if (c->problem.rswa_window != 0) {
        t = kit_run_ints(x, "rswa_prefix_lens", c->rswa_prefix_lens, ATTN_DTYPE_INT32, c->num_reqs, 0, 0);
        if (t != NULL) x->batch.rswa_prefix_lens = &t->t;
        if ((c->flags & KIT_BARE_BATCH) == 0) x->batch.rswa_prefix_lens_host = c->rswa_prefix_lens;
    }
    if ((c->problem.features & ATTN_F_DEVICE_LENGTHS) != 0) say_bounds(x);
    if ((c->problem.features & ATTN_F_KEY_LENGTHS) != 0) x->batch.key_start_loc_host = x->key_starts;
    if ((c->flags & KIT_FULL_BATCH) != 0) add_optional(x);
}

static void make_args(kit_run_t *x) {
    const kit_case_t *c = x->c;
    const uint64_t f = c->problem.features;
    const int has_key = (c->flags & KIT_NO_KEY) == 0 || x->cache == NULL || x->slots != NULL;
    kit_tensor_t *t;
    x->args = (attn_forward_t){.struct_size = sizeof x->args,
                               .query = &x->query->t,
                               .key = has_key ? &x->key->t : NULL,
                               .value = has_key ? &x->value->t : NULL,
                               .kv_cache = x->k_view != NULL ? &x->k_view->t : NULL,
                               .v_cache = x->v_view != NULL ? &x->v_view->t : NULL,
                               .output = &x->output->t,
                               .lse = x->lse != NULL ? &x->lse->t : NULL,
                               .scales = kit_run_scales(x)};
    if ((f & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_NVFP4)) != 0 &&
        (t = kit_run_floats(x, "output_scale", &x->in->output_scale, 1, 0)) != NULL)
        x->args.output_scale = &t->t;
    if (x->block_scale != NULL) x->args.output_block_scale = &x->block_scale->t;
    if ((f & ATTN_F_SINK) != 0 && (t = kit_run_floats(x, "sinks", x->in->sinks, x->z.heads, 0)) != NULL)
        x->args.sinks = &t->t;
    if ((f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0 &&
        (t = kit_run_floats(x, "alibi_slopes", x->in->alibi_slopes, x->z.heads, 0)) != NULL)
        x->args.alibi_slopes = &t->t;
    if ((f & ATTN_F_REL_BIAS) != 0 &&
        (t = kit_run_floats(x, "rel_bias", x->in->rel_bias, x->z.heads, 2 * x->in->rel_max + 1)) != NULL)
        x->args.rel_bias = &t->t;
    if ((f & ATTN_F_QQ_BIAS) != 0 &&
        (t = kit_run_floats(x, "qq_bias", x->in->qq_bias, x->in->bias_rows, x->in->bias_width)) != NULL)
        x->args.qq_bias = &t->t;
    if (x->in->topk_indices != NULL) {
        t = kit_run_ints(x, "topk_indices", x->in->topk_indices, ATTN_DTYPE_INT32, x->in->num_tokens,
                         c->problem.topk, 0);
        if (t != NULL) x->args.topk_indices = &t->t;
    }
    if (x->slots != NULL) x->args.slot_mapping = &x->slots->t;
    if (x->weights != NULL) {
        x->args.weight_space = x->weights->t.data;
        x->args.weight_space_bytes = x->needed.weight_bytes;
    }
}

int kit_run_arguments(kit_run_t *x) {
    make_batch(x);
    make_args(x);
    return x->all.failed ? kit_run_no_memory(x) : ATTN_OK;
}
