/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_weights.c: the part of group numerics about weights that are easily lost: tiny ones under large
 * values, those of far keys under slopes below 0, those of an infinite value, and parts of many rows.
 */
#include "../run/check_engine.h"

#include <math.h>

enum { PEAK = 20 }; /* the key that has the largest score */

/* The model's type in which a weight of any size keeps its digits: float16 may round it to nothing. */
static int wide_type(const check_t *c) {
    return c->can.dtypes & ATTN_BIT(ATTN_DTYPE_BFLOAT16)  ? ATTN_DTYPE_BFLOAT16
           : c->can.dtypes & ATTN_BIT(ATTN_DTYPE_FLOAT32) ? ATTN_DTYPE_FLOAT32
                                                          : 0;
}

/* One key a given score above all others, whose values make up for their weights: each finite score counts
 * (semantics 10.5), so the outputs are about 1. */
static void tiny_weights(check_t *c) {
    static const int gaps[] = {9, 13, 17, 25, 60};
    for (size_t i = 0; i < sizeof gaps / sizeof gaps[0] && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if ((k.problem.dtype = (uint32_t)wide_type(c)) == 0) break;
        k.problem.kv_cache_dtype = ATTN_KV_AUTO;
        kit_case_add(&k, 1, 150);
        kit_case_add(&k, 5, 90);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        for (int64_t n = 0; n < in->num_tokens * z.heads * z.query; n++)
            in->query[n] = n % z.query == 0 ? 16 : 0;
        const float high = kit_round(k.problem.dtype, gaps[i] / (16 * k.problem.scale));
        const double weight = exp(-16 * k.problem.scale * (double)high) * 100;
        for (int r = 0; r < k.num_reqs; r++)
            for (int64_t at = in->key_start[r] * z.kv_heads; at < in->key_start[r + 1] * z.kv_heads; at++) {
                const int is_peak = at / z.kv_heads == in->key_start[r] + PEAK;
                in->key[at * z.key] = is_peak ? high : 0;
                for (int64_t e = 0; e < z.value; e++) {
                    float *v = &in->value[at * z.value + e];
                    *v = is_peak ? 0 : kit_round(k.problem.dtype, (1 + 0.25 * (double)*v) / weight);
                }
            }
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "no bfloat16 and no float32 with a cache of its type");
}

/* Slopes below 0 make the farthest keys the ones that count, where distances rounded to 11 bits are equal for
 * several keys. Scores of thousands leave float32 sums what a 16-bit model asks for. */
static void negative_slopes(check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT16; d <= ATTN_DTYPE_BFLOAT16 && !c->report->is_failed; d++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if (!(c->can.dtypes & ATTN_BIT(d))) continue;
        k.problem.dtype = d;
        k.problem.features |= ATTN_F_ALIBI;
        k.problem.max_model_len = 8192;
        kit_case_add(&k, 1, 5003);
        kit_case_add(&k, 4, 301);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        for (uint32_t h = 0; h < k.problem.num_heads; h++)
            in->alibi_slopes[h] = h % 2 == 0 ? -1.0f : -0.375f;
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the plain case in 16 bits is not served with ALiBi");
}

/* An infinite value of a request makes that channel of its rows infinite, whatever the output's type, and
 * nothing of other requests. */
static void infinite_values(check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16 && !c->report->is_failed; d++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if (!(c->can.dtypes & ATTN_BIT(d))) continue;
        k.problem.dtype = d;
        k.problem.kv_cache_dtype = ATTN_KV_AUTO;
        k.problem.scale *= 0.25; /* no weight is so small that it rounds to 0 */
        kit_case_add(&k, 1, 40);
        kit_case_add(&k, 1, 33);
        kit_case_add(&k, 1, 24);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        in->value[(in->key_start[1] + 2) * z.kv_heads * z.value + 2] = INFINITY;
        in->value[(in->key_start[2] + 5) * z.kv_heads * z.value + 1] = -INFINITY;
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the plain case is not served over a cache of its type");
}

/* The largest group of the table over so many keys that they are attended to in several parts, in room for no
 * more than that. */
static void large_group_parts(check_t *c) {
    kit_case_t k;
    if (!check_start_decoder(c, &k)) return;
    const uint32_t most = c->can.max_group;
    k.problem.num_kv_heads = 1;
    k.problem.num_heads = most == 0 || most > 64 ? 64 : most;
    k.problem.head_size = check_head_size(c, 8);
    k.problem.scale = 1 / sqrt((double)k.problem.head_size);
    k.problem.max_num_seqs = k.problem.max_num_batched_tokens = 1;
    k.problem.max_model_len = 20000;
    kit_case_add(&k, 1, 20000);
    if (check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
    if (c->report->num_cases == 0) check_skip(c, "the plain case is not served with such a group");
}

void check_weights_list(check_list_t *list, const check_t *c) {
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, tiny_weights, 0, "tiny weights under large values");
    if (c->can.features & ATTN_F_ALIBI)
        check_add(list, "numerics", CHECK_RUNS_ON_CPU, negative_slopes, 0, "slopes below 0 over 5000 keys");
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, infinite_values, 0, "infinite values of a request");
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, large_group_parts, 0, "the largest group over 20000 keys");
}
