/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_ends.c: the part of group numerics about values and keys of any size over caches whose rows have
 * scales of their own (semantics 3.4, 3.7, 3.8): all near the end of the model's type, all tiny, each token
 * of another size, rows of zeros between. A kernel that multiplies weights by such a scale in 16 bits has
 * infinity or nothing there; one that fits all of a tile to its largest row loses what the others see.
 */
#include "../run/check_engine.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdlib.h>

enum { HIGH, LOW, RISING, MIXED, NUM_SIZES, DTYPE_SHIFT = 8 };

/* Powers of two that a token's values, or keys, are multiplied by: what the format holds of the model's type,
 * and what a float32 sum of some hundred of them does. Scales of float16 (TurboQuant) hold norms and steps,
 * and int4 sums of a row. */
static int high_of(const kit_case_t *k) {
    const uint32_t kv = k->problem.kv_cache_dtype;
    if (attn_kv_is_turboquant(kv) || kv == ATTN_KV_FLOAT16) return 9;
    if (k->problem.dtype == ATTN_DTYPE_FLOAT16) return kv == ATTN_KV_INT4_PER_TOKEN_HEAD ? 8 : 12;
    return 100;
}
static int exponent_of(int sizes, int high, int64_t key, int64_t count, uint64_t *state) {
    const int low = high == 100 ? -100 : -20, least = -12;
    switch (sizes) {
    case HIGH:
        return high;
    case LOW:
        return low;
    case RISING:
        return least + (int)((high - least) * key / (count > 1 ? count - 1 : 1));
    default:
        return key % 7 == 3 ? INT32_MIN : (int)kit_random_in(state, low, high);
    }
}

/* Rows of `row` elements, one a token, of all its heads; exponents: of each token, or NULL. */
static void resize(const kit_case_t *k, float *x, const kit_inputs_t *in, int64_t row, int sizes, int high,
                   int *exponents) {
    uint64_t state = k->seed * 3 + (uint64_t)sizes;
    for (int r = 0; r < k->num_reqs; r++)
        for (int64_t j = 0; j < k->seq_lens[r]; j++) {
            const int64_t token = in->key_start[r] + j;
            const int e = exponent_of(sizes, high, j, k->seq_lens[r], &state);
            for (int64_t i = 0; i < row; i++)
                x[token * row + i] =
                    e == INT32_MIN ? 0 : kit_round(k->problem.dtype, ldexp((double)x[token * row + i], e));
            if (exponents != NULL) exponents[token] = e;
        }
}

/* Each output against the oracle's, in units of the largest value that its row sees: quantising is off by a
 * part of that, and nothing else may add to it. */
static void compare(check_t *c, const kit_case_t *k, const kit_inputs_t *in, const int *exponents,
                    const kit_result_t *got, const kit_result_t *want) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    int64_t token = 0;
    for (int r = 0; r < k->num_reqs; r++)
        for (int32_t i = 0; i < k->query_lens[r]; i++, token++) {
            double top = 0;
            for (int64_t j = 0; j <= k->seq_lens[r] - k->query_lens[r] + i; j++) {
                const int e = exponents[in->key_start[r] + j];
                if (e != INT32_MIN) top = fmax(top, ldexp(1, e));
            }
            for (int64_t n = 0; n < z.heads * z.output; n++) {
                const int64_t at = token * z.heads * z.output + n;
                const double off = fabs(got->out[at] - want->out[at]);
                if (off <= 0.06 * top + 0.1 * fabs(want->out[at])) continue;
                check_fail(c,
                           "output[%lld][%lld][%lld] is %.9g, expected %.9g, where the largest values that "
                           "its row sees are about %.3g",
                           (long long)token, (long long)(n / z.output), (long long)(n % z.output),
                           got->out[at], want->out[at], top);
                return;
            }
        }
}

static int start(check_t *c, kit_case_t *k) {
    if (!check_start_without(c, k)) return 0;
    if (k->problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "not a decoder backend");
        return 0;
    }
    k->problem.kv_cache_dtype = c->arg & ((1u << DTYPE_SHIFT) - 1);
    k->problem.dtype = c->arg >> DTYPE_SHIFT;
    check_fit_size(c, k);
    kit_case_add(k, 1, 150);
    kit_case_add(k, 70, 70);
    kit_case_add(k, 2, 90);
    if (check_is_served(c, k)) return 1;
    check_skip(c, "the plain case in this type over this cache is not served");
    return 0;
}

static void value_ends_of(check_t *c, kit_case_t k) {
    for (int sizes = HIGH; sizes < NUM_SIZES && !c->report->is_failed; sizes++) {
        kit_inputs_t *in = kit_inputs_make(&k);
        kit_result_t got, want;
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        int *exponents = malloc((size_t)in->num_keys * sizeof *exponents);
        if (exponents != NULL) {
            resize(&k, in->value, in, z.kv_heads * z.value, sizes, high_of(&k), exponents);
            if (check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
                kit_case_t plain = k;
                plain.problem.features &= ~ATTN_F_BATCH_INVARIANT;
                if (kit_run_oracle(&kit_oracle, &plain, in, &want) == ATTN_OK)
                    compare(c, &k, in, exponents, &got, &want);
                else
                    check_fail(c, "the oracle refused this: %s", want.error.text);
                kit_result_free(&got), kit_result_free(&want);
            }
            c->report->num_cases++;
        }
        free(exponents);
        kit_inputs_free(in);
    }
}

/* On CPUs, whose kernels differ by the size of a head more than those that a device compiles, also with that
 * of the kernels that count. */
static void value_ends(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    value_ends_of(c, k);
    const uint32_t size = check_head_size(c, 128);
    if (c->memory->kind != NULL || size == k.problem.head_size) return;
    k.problem.head_size = size;
    k.problem.scale = 1 / sqrt((double)size);
    if (check_is_served(c, &k)) value_ends_of(c, k);
}

/* Large and tiny keys under a softmax scale that makes up for them. */
static void key_ends(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    const double scale = k.problem.scale;
    for (int i = 0; i < 2 && !c->report->is_failed; i++) {
        const int e = i == 0 ? high_of(&k) : -10;
        k.problem.scale = ldexp(scale, -e);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        resize(&k, in->key, in, z.kv_heads * z.key, HIGH, e, NULL);
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* Large queries under a softmax scale that makes up for them; tiny ones, for which the scale and the keys do,
 * with a soft cap and without. Some rows are smaller still, some are zeros. A kernel that multiplies queries
 * in 16 bits of less range has infinity, a limit or nothing there. */
static void query_ends(check_t *c) {
    enum { FAR = 90, SCALE = 19 };
    kit_case_t k;
    if (!start(c, &k)) return;
    k.problem.head_size = check_head_size(c, 128); /* of the kernels that count */
    k.problem.features |= c->can.features & ATTN_F_LSE;
    const double scale = 1 / sqrt((double)k.problem.head_size);
    const int is_half = k.problem.dtype == ATTN_DTYPE_FLOAT16;
    for (int i = 0; i < 3 && !c->report->is_failed; i++) {
        const int far = is_half ? 12 : FAR, tiny = is_half ? 0 : SCALE,
                  keys = i == 0                      ? 0
                         : high_of(&k) < FAR - SCALE ? high_of(&k)
                                                     : FAR - SCALE,
                  e = i == 0 ? far : -tiny - keys;
        k.problem.scale = ldexp(scale, i == 0 ? -far : tiny);
        k.problem.logits_soft_cap = i == 1 && (c->can.features & ATTN_F_SOFT_CAP) != 0 ? 2 : 0;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        for (int64_t j = 0; j < in->num_tokens * z.heads * z.key; j++) {
            const int64_t row = j / z.key % 11;
            const double x = row == 4 ? 0 : ldexp((double)in->query[j], row == 7 ? e - 8 : e);
            in->query[j] = kit_round(k.problem.dtype, x);
        }
        resize(&k, in->key, in, z.kv_heads * z.key, HIGH, keys, NULL);
        for (int64_t j = 0; in->k_scale != NULL && j < in->num_scales; j++)
            in->k_scale[j] = ldexpf(in->k_scale[j], keys);
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* On a device, where each problem is compiled, not what the others have shown. */
void check_ends_list(check_list_t *list, const check_t *c) {
    static const uint32_t dtypes[] = {ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_FLOAT32};
    const uint64_t kept = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER));
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++)
        for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
            const int has_rows = attn_kv_is_per_token_head(kv);
            const uint32_t arg = kv | dtypes[i] << DTYPE_SHIFT;
            if (!(kept & ATTN_BIT(kv)) || !(c->can.dtypes & ATTN_BIT(dtypes[i]))) continue;
            if (has_rows)
                check_add(list, "numerics",
                          i == 0 || (i == 1 && !attn_kv_is_turboquant(kv)) ? CHECK_RUNS : CHECK_RUNS_ON_CPU,
                          value_ends, arg, "values of every size, %s, cache %s", attn_dtype_name(dtypes[i]),
                          attn_kv_name(kv));
            /* e5m2 stands for e4m3, over which some kernels keep bfloat16 queries as float16 */
            if (has_rows || (kv == ATTN_KV_FLOAT16 && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)) != 0) ||
                (attn_kv_has_static_scales(kv) && kv != ATTN_KV_FP8_E4M3))
                check_add(list, "numerics", i == 0 ? CHECK_RUNS : CHECK_RUNS_ON_CPU, query_ends, arg,
                          "queries of every size, %s, cache %s", attn_dtype_name(dtypes[i]),
                          attn_kv_name(kv));
            if (has_rows || attn_kv_rounds_query(kv))
                check_add(list, "numerics", i == 0 ? CHECK_RUNS : CHECK_RUNS_ON_CPU, key_ends, arg,
                          "keys of every size, %s, cache %s", attn_dtype_name(dtypes[i]), attn_kv_name(kv));
        }
}
