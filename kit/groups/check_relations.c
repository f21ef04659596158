/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_relations.c: group relations. What has to hold between two results of the same backend, whatever the
 * right numbers are: no oracle is asked, so nothing is taken over from it. Two results agree within the
 * tolerances of the case.
 */
#include "../run/check_engine.h"

#include <math.h>
#include <stdlib.h>

static int start(check_t *c, kit_case_t *k) {
    if (!check_start(c, k)) return 0;
    k->num_reqs = 0;
    kit_case_add(k, 1, 60);
    kit_case_add(k, 7, 33);
    kit_case_add(k, 12, 48);
    k->padded_tokens = 0;
    return 1;
}

static kit_inputs_t *make(const kit_case_t *k) {
    kit_inputs_t *in = kit_inputs_make(k);
    if (in == NULL) abort();
    return in;
}

/* Rows of b, first to first + n, against rows of a from `at` on, times factor. */
static void expect_rows(check_t *c, const kit_case_t *k, const kit_result_t *a, int64_t at,
                        const kit_result_t *b, int64_t first, int64_t n, double factor, const char *what) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    const int64_t row = z.heads * z.output;
    double atol, rtol;
    kit_tolerance(k, &atol, &rtol);
    for (int64_t i = 0; i < n * row; i++) {
        const double want = factor * a->out[at * row + i], got = b->out[first * row + i];
        if (fabs(got - want) <= atol + rtol * fabs(want)) continue;
        check_fail(c, "%s: output %lld is %.9g, %.9g was expected", what, (long long)(first * row + i), got,
                   want);
        return;
    }
    c->report->num_cases++;
}

static int run(check_t *c, const kit_case_t *k, const kit_inputs_t *in, kit_result_t *result) {
    return check_run_alone(c, c->backend, k, in, c->memory, result);
}

/* The requests of a batch in another order: each keeps its result. */
static void permuted(check_t *c) {
    static const int order[3] = {2, 0, 1};
    kit_case_t k, p;
    kit_result_t a, b;
    if (!start(c, &k)) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    kit_inputs_t *in = make(&k);
    p = k;
    p.num_reqs = 0;
    for (int i = 0; i < 3; i++)
        kit_case_add(&p, k.query_lens[order[i]], k.seq_lens[order[i]]);
    kit_inputs_t *moved = make(&p);
    int64_t from[4] = {0}, to = 0;
    for (int r = 0; r < 3; r++)
        from[r + 1] = from[r] + k.query_lens[r];
    for (int i = 0; i < 3; i++) {
        const int r = order[i];
        const int64_t q = z.heads * z.query, kk = z.kv_heads * z.key, v = z.kv_heads * z.value;
        memcpy(moved->query + to * q, in->query + from[r] * q, (size_t)(k.query_lens[r] * q) * sizeof(float));
        memcpy(moved->key + moved->key_start[i] * kk, in->key + in->key_start[r] * kk,
               (size_t)(k.seq_lens[r] * kk) * sizeof(float));
        memcpy(moved->value + moved->key_start[i] * v, in->value + in->key_start[r] * v,
               (size_t)(k.seq_lens[r] * v) * sizeof(float));
        to += k.query_lens[r];
    }
    if (!run(c, &k, in, &a) || !run(c, &p, moved, &b)) return;
    to = 0;
    for (int i = 0; i < 3; to += k.query_lens[order[i++]])
        expect_rows(c, &k, &a, from[order[i]], &b, to, k.query_lens[order[i]], 1,
                    "requests in another order");
}

/* The same history in other pages, and in more of them than are used. */
static void other_pages(check_t *c) {
    kit_case_t k;
    kit_result_t a, b;
    if (!start(c, &k)) return;
    if (!attn_role_has_cache(k.problem.role)) {
        check_skip(c, "no role with a cache");
        return;
    }
    kit_inputs_t *in = make(&k);
    if (!run(c, &k, in, &a)) return;
    const int32_t shift = (int32_t)in->num_blocks;
    in->num_blocks = 3 * in->num_blocks;
    for (int64_t i = 0; i < k.num_reqs * in->table_width; i++)
        if (in->block_table[i] < shift) in->block_table[i] = 3 * shift - 1 - in->block_table[i];
    if (!run(c, &k, in, &b)) return;
    expect_rows(c, &k, &a, 0, &b, 0, in->num_tokens, 1, "the history in other pages");
}

/* Twice the values, twice the output; the scale of a power of two is exact. */
static void scaled_values(check_t *c) {
    kit_case_t k;
    kit_result_t a, b;
    if (!start(c, &k)) return;
    kit_inputs_t *in = make(&k);
    const kit_sizes_t z = kit_sizes(&k.problem);
    if (!run(c, &k, in, &a)) return;
    for (int64_t i = 0; i < in->num_keys * z.kv_heads * z.value; i++)
        in->value[i] *= -4;
    if (!run(c, &k, in, &b)) return;
    expect_rows(c, &k, &a, 0, &b, 0, in->num_tokens, -4, "values times -4");
}

/* A row that has a scale of its own keeps small values as well as large ones: 2^-9 times the values, and 2^9
 * times their output, is what they give. */
static void small_rows(check_t *c) {
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_ && !c->report->is_failed; kv++) {
        const attn_kv_format_t *f = attn_kv_format(kv);
        kit_case_t k;
        kit_result_t a, b;
        if (f->scale != ATTN_KV_SCALE_ROW_INLINE || f->scale_dtype != ATTN_DTYPE_FLOAT32) continue;
        if (!start(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER || !(c->can.kv_cache_dtypes & ATTN_BIT(kv))) continue;
        k.problem.kv_cache_dtype = kv;
        check_fit_size(c, &k);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = make(&k);
        const kit_sizes_t z = kit_sizes(&k.problem);
        if (!run(c, &k, in, &b)) return;
        for (int64_t i = 0; i < in->num_keys * z.kv_heads * z.value; i++)
            in->value[i] *= 0x1p-9f;
        if (!run(c, &k, in, &a)) return;
        expect_rows(c, &k, &a, 0, &b, 0, in->num_tokens, 512, attn_kv_name(kv));
    }
    if (c->report->num_cases == 0) check_skip(c, "no cache format with scales of its rows");
}

/* One and the same value behind every key is the output, to the last place but one. */
static void constant_value(check_t *c) {
    kit_case_t k;
    kit_result_t a;
    if (!start(c, &k)) return;
    kit_inputs_t *in = make(&k);
    const kit_sizes_t z = kit_sizes(&k.problem);
    for (int64_t i = z.kv_heads * z.value; i < in->num_keys * z.kv_heads * z.value; i++)
        in->value[i] = in->value[i % (z.kv_heads * z.value)];
    const int64_t group = z.heads / z.kv_heads;
    const double unit = k.problem.dtype == ATTN_DTYPE_FLOAT32   ? 4e-6
                        : k.problem.dtype == ATTN_DTYPE_FLOAT16 ? 0x1p-8
                                                                : 0x1p-6;
    if (!run(c, &k, in, &a)) return;
    for (int64_t t = 0; t < in->num_tokens; t++)
        for (int64_t h = 0; h < z.heads; h++)
            for (int64_t i = 0; i < z.output; i++) {
                const double got = a.out[(t * z.heads + h) * z.output + i],
                             v = (double)in->value[h / group * z.value + i];
                if (fabs(got - v) <= unit * fabs(v)) continue;
                check_fail(c, "every key has the value %.9g; output[%lld][%lld][%lld] is %.9g", v,
                           (long long)t, (long long)h, (long long)i, got);
                return;
            }
    c->report->num_cases++;
}

/* What lies left of the window changes nothing, whatever it is. */
static void window_shift(check_t *c) {
    kit_case_t k;
    kit_result_t a, b;
    if (!start(c, &k)) return;
    if (k.problem.role != ATTN_ROLE_DECODER || !(c->can.features & ATTN_F_SLIDING_WINDOW)) {
        check_skip(c, "no window");
        return;
    }
    k.problem.sliding_window = 9;
    if (!check_is_served(c, &k)) return;
    kit_inputs_t *in = make(&k);
    const kit_sizes_t z = kit_sizes(&k.problem);
    if (!run(c, &k, in, &a)) return;
    for (int r = 0; r < k.num_reqs; r++)
        for (int64_t i = 0; i < k.seq_lens[r] - k.query_lens[r] - 8; i++)
            for (int64_t j = 0; j < z.kv_heads * z.key; j++) {
                in->key[(in->key_start[r] + i) * z.kv_heads * z.key + j] = 100;
                in->value[(in->key_start[r] + i) * z.kv_heads * z.key + j] = 1e4f;
            }
    if (!run(c, &k, in, &b)) return;
    expect_rows(c, &k, &a, 0, &b, 0, in->num_tokens, 1, "other keys left of the window");
}

/* Tokens in two chunks give what they give at once. */
static void chunked(check_t *c) {
    kit_case_t k, late;
    kit_result_t a, b;
    if (!start(c, &k)) return;
    if (k.problem.role != ATTN_ROLE_DECODER || k.problem.mask != ATTN_MASK_CAUSAL) {
        check_skip(c, "not a causal decoder");
        return;
    }
    k.num_reqs = 0;
    kit_case_add(&k, 50, 50);
    late = k;
    late.query_lens[0] = 19; /* the last tokens alone */
    kit_inputs_t *in = make(&k), *tail = make(&late);
    const kit_sizes_t z = kit_sizes(&k.problem);
    memcpy(tail->query, in->query + 31 * z.heads * z.query, (size_t)(19 * z.heads * z.query) * sizeof(float));
    memcpy(tail->key, in->key, (size_t)(50 * z.kv_heads * z.key) * sizeof(float));
    memcpy(tail->value, in->value, (size_t)(50 * z.kv_heads * z.value) * sizeof(float));
    if (!run(c, &k, in, &a) || !run(c, &late, tail, &b)) return;
    expect_rows(c, &k, &a, 31, &b, 0, 19, 1, "the last 19 of 50 tokens");
}

/* A history that repeats itself has the same weights, and so the same output; its LSE grows by ln of how
 * often. */
static void repeated_pages(check_t *c) {
    enum { TIMES = 64 };
    kit_case_t k, longer;
    kit_result_t a, b;
    if (!start(c, &k)) return;
    if (k.problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "not a decoder");
        return;
    }
    const int32_t n = (int32_t)k.problem.block_size * 2;
    k.num_reqs = 0;
    kit_case_add(&k, 1, n);
    longer = k;
    longer.seq_lens[0] = n * TIMES;
    longer.problem.max_model_len = k.problem.max_model_len = n * TIMES;
    kit_inputs_t *in = make(&k), *many = make(&longer);
    const kit_sizes_t z = kit_sizes(&k.problem);
    memcpy(many->query, in->query, (size_t)(z.heads * z.query) * sizeof(float));
    for (int i = 0; i < TIMES; i++) {
        memcpy(many->key + i * n * z.kv_heads * z.key, in->key,
               (size_t)(n * z.kv_heads * z.key) * sizeof(float));
        memcpy(many->value + i * n * z.kv_heads * z.value, in->value,
               (size_t)(n * z.kv_heads * z.value) * sizeof(float));
        many->block_table[2 * i] = many->block_table[0];
        many->block_table[2 * i + 1] = many->block_table[1];
    }
    if (!run(c, &k, in, &a) || !run(c, &longer, many, &b)) return;
    expect_rows(c, &k, &a, 0, &b, 0, 1, 1, "two pages 64 times");
    for (int64_t h = 0; a.lse != NULL && b.lse != NULL && h < a.num_lse; h++)
        if (!(fabs(b.lse[h] - a.lse[h] - log(TIMES)) < 1e-3))
            check_fail(c, "two pages 64 times: the LSE of head %lld grows by %.6g, ln 64 is %.6g",
                       (long long)h, b.lse[h] - a.lse[h], log(TIMES));
}

void check_relations_list(check_list_t *list, const check_t *c) {
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    check_add(list, "relations", 1, permuted, 0, "requests in another order");
    check_add(list, "relations", 1, other_pages, 0, "a history in other pages");
    check_add(list, "relations", 1, scaled_values, 0, "values times a power of two");
    if (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))
        check_add(list, "relations", 1, small_rows, 0, "small values in rows with a scale of their own");
    check_add(list, "relations", 1, constant_value, 0, "a constant value is the output");
    check_add(list, "relations", 1, window_shift, 0, "keys left of the window change nothing");
    check_add(list, "relations", 1, chunked, 0, "chunked prefill equals the whole");
    check_add(list, "relations", 1, repeated_pages, 0, "repeated pages");
}
