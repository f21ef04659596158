/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_families.c: the part of group numerics about inputs that are not centred normal, and about how
 * results are rounded. One check for each element type, so that a backend which compiles its kernels does so
 * once in a child.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"

#include <math.h>
#include <stdlib.h>

static void families(check_t *c) {
    kit_case_t k;
    for (uint32_t family = KIT_NORMAL; family < KIT_NUM_FAMILIES; family++) {
        if (family == KIT_ENDS) continue; /* its channels have too different sizes for one tolerance */
        if (!check_start_without(c, &k)) return;
        k.problem.dtype = c->arg;
        k.family = family;
        if (!attn_role_has_cache(k.problem.role)) {
            kit_case_add(&k, 300, 300);
            kit_case_add(&k, 9, 9);
        } else {
            kit_case_add(&k, 1, 1500);
            kit_case_add(&k, 9, 300);
            kit_case_add(&k, 1, 1);
        }
        check_run(c, c->backend, &k, NULL);
    }
}

/* The same over a cache that rounds: its writer meets rows of one value, of one huge channel, equal keys. */
static void cache_families(check_t *c) {
    kit_case_t k;
    for (uint32_t family = KIT_NORMAL; family < KIT_ENDS; family++) {
        if (!check_start_without(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        k.problem.kv_cache_dtype = c->arg;
        check_fit_size(c, &k);
        k.family = family;
        kit_case_add(&k, 1, 1500);
        kit_case_add(&k, 9, 300);
        kit_case_add(&k, 1, 1);
        check_run(c, c->backend, &k, NULL);
    }
}

/* Sums over many keys: a sum that keeps 14 or 16 bits stops growing, a length in 16 bits wraps. */
static void long_contexts(check_t *c) {
    static const uint32_t kinds[] = {KIT_USUAL, KIT_UNIFORM, KIT_NEEDLE};
    /* the needle of the second request is its last key */
    static const int32_t lens[][3] = {{4097, 32769, 65537}, {4097, 8191, 65535}, {17, 131072, 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        k.problem.dtype = c->arg;
        check_few_heads(c, &k);
        k.problem.max_model_len = 131072;
        k.family = kinds[i];
        for (int r = 0; r < 3; r++)
            if (lens[i][r] > 0) kit_case_add(&k, r == 0 ? 2 : 1, lens[i][r]);
        check_run(c, c->backend, &k, NULL);
    }
}

/* Rounding to nearest has no direction; cutting off is half a unit in the last place towards zero. Values of
 * a large mean: outputs near 0 have last places so small that the rounding of P, which has none to answer
 * for, would be many of them. */
static void rounding_bias(check_t *c) {
    static const uint32_t kinds[] = {KIT_LARGE_MEAN};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        kit_case_t k, plain;
        kit_result_t got, want;
        if (!check_start_without(c, &k)) return;
        k.problem.dtype = c->arg;
        k.family = kinds[i];
        kit_case_add(&k, 40, 60);
        kit_case_add(&k, 40, 90);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL || !check_run_alone(c, c->backend, &k, in, c->memory, &got)) return;
        plain = k;
        plain.problem.features &= ~ATTN_F_BATCH_INVARIANT;
        if (kit_run_oracle(&kit_oracle, &plain, in, &want) == ATTN_OK) {
            const double bias = kit_compare(&k, &got, &want).bias;
            if (fabs(bias) > 0.3)
                check_fail(c,
                           "outputs are off by %.2f units of the last place of %s on average, %s zero; round "
                           "to nearest",
                           fabs(bias), attn_dtype_name(c->arg), bias < 0 ? "towards" : "away from");
        }
        c->report->num_cases++;
        kit_result_free(&got);
        kit_result_free(&want);
        kit_inputs_free(in);
    }
}

/* Outputs half way between two numbers of the type: the mean of neighbours under two equal weights. Half of
 * them is rounded up, the even ones; who rounds each up, or down, has a direction. */
static void rounding_ties(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    if (!check_start_without(c, &k)) return;
    k.problem.dtype = c->arg;
    k.problem.num_kv_heads = k.problem.num_heads;
    for (int r = 0; r < 16; r++)
        kit_case_add(&k, attn_role_has_cache(k.problem.role) ? 1 : 2, 2);
    if (!check_is_served(c, &k)) {
        check_skip(c, "the plain case in this type is not served");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    const int64_t row = z.kv_heads * z.key, width = z.kv_heads * z.value;
    const double steps = c->arg == ATTN_DTYPE_BFLOAT16 ? 128 : 1024;
    uint64_t state = c->seed * 7 + c->arg;
    for (int64_t t = 0; t < in->num_keys; t += 2) {
        memcpy(in->key + (t + 1) * row, in->key + t * row, (size_t)row * sizeof *in->key);
        for (int64_t i = 0; i < width; i++) {
            const double at = (double)kit_random_in(&state, 0, (int64_t)steps - 2),
                         sign = i % 3 == 0 ? -1 : 1;
            in->value[t * width + i] = (float)(sign * (1 + at / steps));
            in->value[(t + 1) * width + i] = (float)(sign * (1 + (at + 1) / steps));
        }
    }
    if (check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
        int64_t num[2] = {0, 0}; /* away from zero, towards it */
        for (int64_t i = 0; i < got.num_out; i++) {
            const int64_t token = i / (z.heads * z.output),
                          first = attn_role_has_cache(k.problem.role) ? 2 * token : token / 2 * 2;
            const double low = fabs((double)in->value[first * width + i % width]),
                         high = fabs((double)in->value[(first + 1) * width + i % width]);
            if (fabs(got.out[i]) == high) num[0]++;
            if (fabs(got.out[i]) == low && (attn_role_has_cache(k.problem.role) || token % 2 == 1)) num[1]++;
        }
        for (int i = 0; i < 2; i++)
            if (num[i] > 100 && num[1 - i] * 20 < num[i])
                check_fail(
                    c,
                    "%lld of %lld outputs half way between two numbers of %s are rounded %s zero; to the "
                    "even one (semantics 3.1)",
                    (long long)num[i], (long long)(num[0] + num[1]), attn_dtype_name(c->arg),
                    i == 0 ? "away from" : "towards");
        c->report->num_cases++;
        kit_result_free(&got);
    }
    kit_inputs_free(in);
}

/* Scores in the hundreds and thousands under a cap: tanh is 1 there, not infinity over infinity. */
static void large_capped_scores(check_t *c) {
    static const double scales[] = {50, -50, 1e-6};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.problem.logits_soft_cap = 5;
        k.problem.scale = scales[i];
        kit_case_add(&k, 1, 70);
        kit_case_add(&k, 9, 40);
        check_run(c, c->backend, &k, NULL);
    }
}

/* Sinks of -infinity beside scores that lie far below any number that may stand for it, and such numbers. */
static void far_sinks(check_t *c) {
    for (int i = 0; i < 4 && !c->report->is_failed; i++) {
        static const double levels[] = {-2e4, -1e6};
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.family = KIT_EQUAL_KEYS;
        k.problem.features |= ATTN_F_SINK;
        k.problem.scale = i < 2 ? 1 : 64;
        kit_case_add(&k, 1, 70);
        kit_case_add(&k, 9, 40);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        for (int64_t t = 0; t < in->num_tokens * z.heads; t++) /* one channel carries the level */
            in->query[t * z.query] = 64;
        for (int64_t t = 0; t < in->num_keys * z.kv_heads; t++)
            in->key[t * z.key] = kit_round(k.problem.dtype, levels[i % 2] / (64 * k.problem.scale));
        for (uint32_t h = 0; h < k.problem.num_heads; h++)
            in->sinks[h] = h % 2 == 0 ? -INFINITY : -1e30f;
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* A sink of -infinity is none; one far above all scores leaves nothing of the values. */
static void sink_values(check_t *c) {
    static const float values[] = {-INFINITY, 1e4f, -1e4f, 0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.problem.features |= ATTN_F_SINK;
        kit_case_add(&k, 1, 70);
        kit_case_add(&k, 9, 40);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        for (uint32_t h = 0; h < k.problem.num_heads; h++)
            in->sinks[h] = h % 2 == 0 ? values[i] : 1;
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

void check_families_list(check_list_t *list, const check_t *c) {
    static const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const uint32_t d = dtypes[i];
        if (!(c->can.dtypes & ATTN_BIT(d))) continue;
        check_add(list, "numerics", 1, families, d, "inputs that are not normal, %s", attn_dtype_name(d));
        check_add(list, "numerics", 1, long_contexts, d, "contexts to 131072, %s", attn_dtype_name(d));
        if (d != ATTN_DTYPE_FLOAT32)
            check_add(list, "numerics", 1, rounding_bias, d, "%s is rounded to nearest", attn_dtype_name(d));
        if (d != ATTN_DTYPE_FLOAT32)
            check_add(list, "numerics", 1, rounding_ties, d, "ties of %s go to the even number",
                      attn_dtype_name(d));
    }
    const uint64_t kept = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER));
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++)
        if ((kept & ATTN_BIT(kv)) && attn_kv_is_lossy(kv))
            check_add(list, "numerics", 1, cache_families, kv, "inputs that are not normal, cache %s",
                      attn_kv_name(kv));
    if (c->can.features & ATTN_F_SOFT_CAP)
        check_add(list, "numerics", 1, large_capped_scores, 0, "large scores under a soft cap");
    if (c->can.features & ATTN_F_SINK) {
        check_add(list, "numerics", 1, sink_values, 0, "values of sinks");
        check_add(list, "numerics", CHECK_RUNS_ON_CPU, far_sinks, 0, "no sinks beside scores far below");
    }
}
