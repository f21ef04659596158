/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_nan.c: the part of group numerics about what is not a number (semantics 10.5). It stays in its
 * request, and shows where it is.
 */
#include "../run/check_engine.h"

#include <math.h>
#include <stdlib.h>

/* What is not a number in one request stays there. */
static void nan_stays(check_t *c) {
    kit_case_t k;
    kit_result_t got, want;
    if (!check_start_without(c, &k)) return;
    kit_case_add(&k, 3, 40);
    kit_case_add(&k, 3, 33);
    kit_case_add(&k, 3, 40);
    kit_inputs_t *clean = kit_inputs_make(&k), *in = kit_inputs_make(&k);
    if (clean == NULL || in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    const int64_t q = z.heads * z.query, kk = z.kv_heads * z.key, v = z.kv_heads * z.value;
    const int64_t tokens[2] = {k.query_lens[0], k.query_lens[0] + k.query_lens[1]};
    for (int64_t i = tokens[0] * q; i < tokens[1] * q; i++)
        in->query[i] = NAN;
    for (int64_t i = in->key_start[1]; i < in->key_start[2]; i++) {
        for (int64_t j = 0; j < kk; j++)
            in->key[i * kk + j] = NAN;
        for (int64_t j = 0; j < v; j++)
            in->value[i * v + j] = NAN;
    }
    if (!check_run_alone(c, c->backend, &k, in, c->memory, &got)) return;
    if (kit_run_oracle(&kit_oracle, &k, clean, &want) == ATTN_OK) {
        const int64_t row = z.heads * z.output;
        for (int64_t i = tokens[0] * row; i < tokens[1] * row; i++)
            got.out[i] = want.out[i]; /* what it gives for them is its own affair */
        for (int64_t h = 0; got.lse != NULL && h < z.heads; h++)
            for (int64_t t = tokens[0]; t < tokens[1]; t++)
                got.lse[h * in->num_tokens + t] = want.lse[h * in->num_tokens + t];
        kit_difference_t d = kit_compare(&k, &got, &want);
        if (!d.is_close) check_fail(c, "NaN in request 1 reaches another request: %s", d.text);
        kit_result_free(&want);
    }
    c->report->num_cases++;
    kit_result_free(&got);
    kit_inputs_free(clean);
    kit_inputs_free(in);
}

/* NaN in one value is the row's number of that channel, and NaN in one key leaves no number in a row that
 * sees it which could be taken for a result: it is neither lost in a maximum nor saturated on its way into
 * a cache. */
static void nan_shows(check_t *c) {
    static const uint32_t formats[] = {ATTN_KV_AUTO, ATTN_KV_FP8_E4M3, ATTN_KV_FP8_E5M2,
                                       ATTN_KV_INT8_PER_TOKEN_HEAD};
    for (int i = 0; i < 7 && !c->report->is_failed; i++) {
        const int is_value = i % 2; /* over int8 of a key alone: all of a row's values share the scale */
        const uint32_t kv = formats[i / 2];
        kit_case_t k;
        kit_result_t got;
        if (!check_start_without(c, &k)) return;
        if (i >= 2) {
            if (k.problem.role != ATTN_ROLE_DECODER || !(c->can.kv_cache_dtypes & ATTN_BIT(kv))) continue;
            k.problem.kv_cache_dtype = kv;
            check_fit_size(c, &k);
        }
        kit_case_add(&k, 1, 40);
        kit_case_add(&k, 3, 33);
        check_running(c, &k);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        const int64_t group = z.heads / z.kv_heads;
        float *spoilt = is_value ? in->value : in->key;
        spoilt[(in->key_start[1] + 1) * z.kv_heads * (is_value ? z.value : z.key) + 2] =
            NAN; /* of KV head 0 */
        const int64_t first = k.query_lens[0];
        if (check_is_served(c, &k) && check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
            for (int64_t t = 0; t < in->num_tokens; t++)
                for (int64_t h = 0; h < z.heads; h++)
                    for (int64_t e = 0; e < z.output && !c->report->is_failed; e++) {
                        const int sees =
                            t >= first && h < group &&
                            (k.problem.mask == ATTN_MASK_FULL || kit_has_context(&k) || t - first >= 1);
                        const int want = sees && (!is_value || e == 2);
                        const double y = got.out[(t * z.heads + h) * z.output + e];
                        if (!isnan(y) == !want || (sees && !is_value && y == 0)) continue;
                        check_fail(c,
                                   "NaN in %s 1 of request 1, channel 2%s%s: output[%lld][%lld][%lld] is %g "
                                   "(semantics 10.5)",
                                   is_value ? "value" : "key", i >= 2 ? ", written to a cache of " : "",
                                   i >= 2 ? attn_kv_name(kv) : "", (long long)t, (long long)h, (long long)e,
                                   y);
                    }
            for (int64_t t = first; got.lse != NULL && !is_value && t < in->num_tokens; t++)
                for (int64_t h = 0; h < group && !c->report->is_failed; h++)
                    if ((k.problem.mask == ATTN_MASK_FULL || kit_has_context(&k) || t - first >= 1) &&
                        isfinite(got.lse[h * in->num_tokens + t]))
                        check_fail(c, "NaN in key 1 of request 1: lse[%lld][%lld] is %g (semantics 10.5)",
                                   (long long)h, (long long)t, got.lse[h * in->num_tokens + t]);
            c->report->num_cases++;
            kit_result_free(&got);
        }
        kit_inputs_free(in);
    }
}

/* NaN in one channel of a query leaves no number in its row which could be taken for a result, whichever
 * format the keys have and, on the host, whatever is done to its scores: a limit on the way to another type,
 * or before a tanh, must not take it for a number. Rows without a maximum may be 0. */
static void nan_query(check_t *c) {
    static const uint64_t terms[] = {0, 0, ATTN_F_SOFT_CAP, ATTN_F_ALIBI, ATTN_F_SINK, ATTN_F_SLIDING_WINDOW};
    for (int i = 0; i < 6 && !c->report->is_failed; i++) {
        kit_case_t k;
        kit_result_t got;
        const int is_fp8 = i == 1;
        const char *over = is_fp8                        ? ", over a cache of fp8_e4m3"
                           : terms[i] == ATTN_F_SOFT_CAP ? ", with a soft cap"
                                                         : "";
        if (!check_start_without(c, &k)) return;
        k.problem.dtype = c->arg;
        if (terms[i] != 0) {
            if (c->memory->kind != NULL || k.problem.role != ATTN_ROLE_DECODER ||
                !(c->can.features & terms[i]))
                continue;
            k.problem.features |= terms[i] & (ATTN_F_ALIBI | ATTN_F_SINK);
            if (terms[i] == ATTN_F_SOFT_CAP) k.problem.logits_soft_cap = 20;
            if (terms[i] == ATTN_F_SLIDING_WINDOW) k.problem.sliding_window = 25;
        }
        if (is_fp8) {
            if (k.problem.role != ATTN_ROLE_DECODER || !(c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)))
                continue;
            k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
        }
        check_fit_size(c, &k);
        kit_case_add(&k, 1, 40);
        kit_case_add(&k, 33, 90);
        check_running(c, &k);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        const int64_t decode = 0, prompt = k.query_lens[0] + 7; /* tokens */
        in->query[decode * z.heads * z.query + 3] = NAN;
        in->query[prompt * z.heads * z.query + 3] = NAN; /* of head 0 */
        if (check_is_served(c, &k) && check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
            for (int64_t t = 0; t < in->num_tokens; t++)
                for (int64_t h = 0; h < z.heads && !c->report->is_failed; h++) {
                    const int want = h == 0 && (t == decode || t == prompt);
                    const double *y = got.out + (t * z.heads + h) * z.output;
                    int64_t e = 0;
                    while (e < z.output && (!isnan(y[e]) == !want || (want && y[e] == 0)))
                        e++;
                    if (e < z.output)
                        check_fail(c,
                                   "NaN in channel 3 of the query of tokens %lld and %lld, head 0%s: "
                                   "output[%lld][%lld][%lld] is %g (semantics 10.5)",
                                   (long long)decode, (long long)prompt, over, (long long)t, (long long)h,
                                   (long long)e, y[e]);
                    else if (want && got.lse != NULL && isfinite(got.lse[h * in->num_tokens + t]) &&
                             !(terms[i] == ATTN_F_SINK && y[0] == 0)) /* of the sink alone */
                        check_fail(c,
                                   "NaN in the query of token %lld, head 0%s: its lse is %g (semantics 10.5)",
                                   (long long)t, over, got.lse[h * in->num_tokens + t]);
                }
            c->report->num_cases++;
            kit_result_free(&got);
        }
        kit_inputs_free(in);
    }
}

void check_nan_list(check_list_t *list, const check_t *c) {
    static const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    check_add(list, "numerics", 1, nan_stays, 0, "NaN stays in its request");
    check_add(list, "numerics", 1, nan_shows, 0, "NaN shows where it is");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (c->can.dtypes & ATTN_BIT(dtypes[i]))
            check_add(list, "numerics", 1, nan_query, dtypes[i], "NaN in a query shows, %s",
                      attn_dtype_name(dtypes[i]));
}
