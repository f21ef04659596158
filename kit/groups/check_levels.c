/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_levels.c: the part of group numerics about scores far from zero. Every finite score counts (semantics
 * 10.5), so that equal ones average the values wherever they lie. Keys are the same in most cases here: what
 * they differ by would drown in the level.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Rows whose every score is far below zero or above it: the mean of their values, and with a key that is
 * ahead of the others, that key's. A kernel that subtracts the maximum's product, rounded, in the instruction
 * that multiplies is off by the rounding: a power of two at 1e8, out of float32's range at 1e10. */
static void score_levels(check_t *c) {
    /* two checks, since on a device only the first few cases of one may be asked */
    static const double levels[2][8] = {{-3000, 3000, 80, -80, -20000, 30000, -1e6},
                                        {-1e10, 1e10, -1e30, -1e8, -1e36}};
    for (size_t i = 0; levels[c->arg][i / 2] != 0; i++) {
        const double level = levels[c->arg][i / 2];
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.family = KIT_EQUAL_KEYS;
        kit_case_add(&k, 1, 90);
        kit_case_add(&k, 5, 40);
        kit_case_add(&k, 150, 170);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        const double key = level / (64 * k.problem.scale);
        if (k.problem.dtype == ATTN_DTYPE_FLOAT16 && fabs(key) > 60000) {
            kit_inputs_free(in);
            continue;
        }
        for (int64_t t = 0; t < in->num_tokens * z.heads; t++) /* one channel carries the level */
            in->query[t * z.query] = 64;
        for (int64_t t = 0; t < in->num_keys * z.kv_heads; t++)
            in->key[t * z.key] = kit_round(k.problem.dtype, key);
        for (int r = 0; i % 2 == 1 && r < k.num_reqs; r++)
            for (int64_t h = 0; h < z.kv_heads; h++) /* the first key, which every row sees */
                in->key[(in->key_start[r] * z.kv_heads + h) * z.key] =
                    kit_round(k.problem.dtype, key + fabs(key) / 64);
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* A mask that adds the lowest float to every score of a row hides none of its keys: the values' mean.
 * The LSE is not asked: in units of log2 it has left float32. */
static void lowest_biases(check_t *c) {
    const uint64_t feature = c->arg == 0 ? ATTN_F_QQ_BIAS : ATTN_F_REL_BIAS;
    static const float levels[] = {-1e10f, -2e38f, -FLT_MAX};
    int found = 0;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0] && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.family = KIT_EQUAL_KEYS;
        k.problem.features = (k.problem.features | feature) & ~(uint64_t)ATTN_F_LSE;
        kit_case_add(&k, 5, 5); /* no context, whose keys have no bias among queries */
        kit_case_add(&k, 70, 70);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        for (int64_t j = 0; j < (in->num_tokens + 1) * in->bias_width; j++)
            in->qq_bias[j] = levels[i];
        for (int64_t j = 0; in->rel_bias != NULL && j < k.problem.num_heads * (2 * in->rel_max + 1); j++)
            in->rel_bias[j] = levels[i];
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
        found = 1;
    }
    if (!found) check_skip(c, "the kit found no case that the backend serves");
}

/* Equal scores of 1e8 to 1e10 by the scale, for all types and a cache of e4m3: one channel makes them, so
 * that no order of sums matters; of each row its own, above zero and below. */
enum { E4M3_CACHE = 256, E4M3_QUERY = 512, DTYPE = 255 };
static void large_scale(check_t *c) {
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    k.problem.dtype = c->arg & DTYPE;
    k.family = KIT_EQUAL_KEYS;
    k.problem.scale = 1e6;
    if (c->arg & (E4M3_CACHE | E4M3_QUERY)) k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    if (c->arg & E4M3_QUERY) k.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
    kit_case_add(&k, 1, 90);
    kit_case_add(&k, 5, 40);
    kit_case_add(&k, 150, 170);
    if (!check_is_served(c, &k)) {
        check_skip(c, "the backend does not serve it");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    for (int64_t t = 0; t < in->num_tokens * z.heads; t++)
        for (int64_t d = 0; d < z.query; d++)
            in->query[t * z.query + d] = d == 0 ? ((double)(t * 5 % 16) - 7.5) * 16 : 0;
    for (int64_t t = 0; t < in->num_keys * z.kv_heads; t++)
        in->key[t * z.key] = 96;
    check_run(c, c->backend, &k, in);
    kit_inputs_free(in);
}

void check_levels_list(check_list_t *list, const check_t *c) {
    static const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    check_add(list, "numerics", 1, score_levels, 0, "scores far from zero");
    check_add(list, "numerics", 1, score_levels, 1, "scores very far from zero");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const uint32_t d = dtypes[i];
        if (!(c->can.dtypes & ATTN_BIT(d))) continue;
        check_add(list, "numerics", 1, large_scale, d, "scores far from zero by the scale, %s",
                  attn_dtype_name(d));
        if (!(c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3))) continue;
        check_add(list, "numerics", 1, large_scale, d | E4M3_CACHE,
                  "scores far from zero by the scale, %s, cache fp8_e4m3", attn_dtype_name(d));
        if (c->can.features & ATTN_F_QUANT_QUERY)
            check_add(list, "numerics", 1, large_scale, d | E4M3_QUERY,
                      "scores far from zero by the scale, %s, queries and cache fp8_e4m3",
                      attn_dtype_name(d));
    }
    if (c->can.features & ATTN_F_QQ_BIAS)
        check_add(list, "numerics", 1, lowest_biases, 0, "biases of the lowest float, qq_bias");
    if (c->can.features & ATTN_F_REL_BIAS)
        check_add(list, "numerics", 1, lowest_biases, 1, "biases of the lowest float, rel_bias");
}
