/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_limits.c: the part of group numerics about the ends of types: NaN of every bit pattern and numbers
 * beyond the type on their way into a cache of 16 bits, keys that a score of -inf hides, outputs of more bits
 * than the model's, and windows and lengths of 32 bits.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"

#include <math.h>
#include <string.h>

static const uint32_t halves[2] = {ATTN_KV_FLOAT16, ATTN_KV_BFLOAT16};

/* A decoder of float32 over a cache of 16 bits; 0: not served. */
static int half_case(check_t *c, kit_case_t *k, uint32_t kv) {
    if (!check_start_decoder(c, k)) return 0;
    if (!(c->can.dtypes & ATTN_BIT(ATTN_DTYPE_FLOAT32)) || !(c->can.kv_cache_dtypes & ATTN_BIT(kv))) return 0;
    k->problem.dtype = ATTN_DTYPE_FLOAT32;
    k->problem.kv_cache_dtype = kv;
    kit_case_add(k, 1, 40);
    kit_case_add(k, 3, 33);
    return check_is_served(c, k);
}
/* Value 1 of request 1, KV head 0, channel 2. */
static float *one_value(const kit_case_t *k, kit_inputs_t *in) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    return &in->value[(in->key_start[1] + 1) * z.kv_heads * z.value + 2];
}

/* NaN whose payload is all ones, which a sum in rounding carries out of, or has ones in its low half alone,
 * which cutting makes an infinity. */
static void nan_patterns(check_t *c) {
    static const uint32_t patterns[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001};
    for (int i = 0; i < 8 && !c->report->is_failed; i++) {
        kit_case_t k;
        kit_result_t got;
        if (!half_case(c, &k, halves[i / 4])) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        memcpy(one_value(&k, in), &patterns[i % 4], sizeof patterns[0]);
        check_running(c, &k);
        if (check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
            const kit_sizes_t z = kit_sizes(&k.problem);
            for (int64_t t = k.query_lens[0]; t < in->num_tokens && !c->report->is_failed; t++)
                if (!isnan(got.out[t * z.heads * z.output + 2]))
                    check_fail(c,
                               "NaN 0x%x in a value, kept as %s: output[%lld][0][2] is %g (semantics 10.5)",
                               (unsigned)patterns[i % 4], attn_kv_name(halves[i / 4]), (long long)t,
                               got.out[t * z.heads * z.output + 2]);
            c->report->num_cases++;
            kit_result_free(&got);
        }
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "no cache of 16 bits beside float32");
}

/* The largest number of the type, the first that becomes infinity, and one far beyond (semantics 3.1). */
static void overflow(check_t *c) {
    static const float values[2][3] = {{65519, 65520, -1e6f}, {3.38e38f, 3.4e38f, -3.4e38f}};
    for (int i = 0; i < 6 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!half_case(c, &k, halves[i / 3])) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        *one_value(&k, in) = values[i / 3][i % 3];
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "no cache of 16 bits beside float32");
}

/* A score of -inf hides its key (semantics 10.5): the first keys, the last ones, all of a tile or of a part,
 * all of a request; with a sink, too. */
static void hidden_keys(check_t *c) {
    for (int i = 0; i < 6 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if (i % 2 == 1 && !(c->can.features & ATTN_F_SINK)) continue;
        if (i % 2 == 1) k.problem.features |= ATTN_F_SINK;
        const int32_t length = i / 2 == 2 ? 2600 : 300;
        kit_case_add(&k, 1, length);
        kit_case_add(&k, 7, length);
        kit_case_add(&k, 3, 50);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        for (int64_t t = 0; t < in->num_tokens * z.heads; t++)
            in->query[t * z.query] = 1; /* times -inf */
        for (int r = 0; r < k.num_reqs; r++)
            for (int64_t n = in->key_start[r]; n < in->key_start[r + 1]; n++) {
                const int64_t at = n - in->key_start[r];
                const int is_hidden = r == 2       ? i / 2 == 1
                                      : i / 2 == 1 ? at >= 40 && at < 290
                                                   : at < length - 20;
                for (int64_t h = 0; is_hidden && h < z.kv_heads; h++)
                    in->key[(n * z.kv_heads + h) * z.key] = k.problem.scale > 0 ? -INFINITY : INFINITY;
            }
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses the plain case");
}

/* An output of float32 has what float32 sums give, not what the model's 16 bits hold: the mean of 64 values
 * under equal keys, whose weights are exact in every type. */
static void wide_outputs(check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT16; d <= ATTN_DTYPE_BFLOAT16 && !c->report->is_failed; d++) {
        kit_case_t k;
        kit_result_t got;
        if (!check_start_decoder(c, &k)) return;
        if (!(c->can.dtypes & ATTN_BIT(d)) || !(c->can.out_dtypes & ATTN_BIT(ATTN_DTYPE_FLOAT32))) continue;
        k.problem.dtype = d;
        k.problem.out_dtype = ATTN_DTYPE_FLOAT32;
        k.family = KIT_EQUAL_KEYS;
        for (int r = 0; r < 4; r++)
            kit_case_add(&k, 1, 64);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        check_running(c, &k);
        if (check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
            const kit_sizes_t z = kit_sizes(&k.problem);
            double off = 0;
            for (int64_t n = 0; n < in->num_tokens * z.heads * z.output; n++) {
                const int64_t t = n / (z.heads * z.output), h = n / z.output % z.heads, e = n % z.output;
                double want = 0;
                for (int64_t i = in->key_start[t]; i < in->key_start[t + 1]; i++)
                    want += in->value[(i * z.kv_heads + h / (z.heads / z.kv_heads)) * z.value + e] / 64.0;
                off = fmax(off, fabs(got.out[n] - want));
            }
            /* values are about 1, their mean 1/8: rounding that to float16 is off by 2^-14 at most, and
             * nearly so for one of many; sums in float32 are off by 2^-20 */
            if (off > 0x1p-16)
                check_fail(c,
                           "the mean of 64 values in a float32 output of a %s model is off by %g: rounded to "
                           "fewer bits",
                           attn_dtype_name(d), off);
            c->report->num_cases++;
            kit_result_free(&got);
        }
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the plain case is not served with a float32 output");
}

/* A window beyond every context is none, and so is a chunk; also where it has the highest bit of its type,
 * and where 16 or 24 bits of it are a small one. */
static void huge_windows(check_t *c) {
    static const uint32_t windows[] = {0x7fffffff, 0x80000000, 0xffffffff, 0x8003, 0x10003, 0x1000003};
    enum {
        NUM_WINDOWS = sizeof windows / sizeof windows[0],
        NUM_WAYS = 3
    }; /* causal, without a mask, a chunk */
    for (int i = 0; i < NUM_WAYS * NUM_WINDOWS && !c->report->is_failed; i++) {
        const uint64_t needs[NUM_WAYS] = {ATTN_F_SLIDING_WINDOW, ATTN_F_SLIDING_WINDOW | ATTN_F_NON_CAUSAL,
                                          ATTN_F_CHUNKED_LOCAL};
        const int way = i / NUM_WINDOWS;
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if ((c->can.features & needs[way]) != needs[way]) continue;
        if (way == 1) k.problem.mask = ATTN_MASK_FULL;
        *(way == 2 ? &k.problem.chunk_size : &k.problem.sliding_window) = windows[i % NUM_WINDOWS];
        kit_case_add(&k, 1, 90);
        kit_case_add(&k, 9, 40);
        check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses the plain case with it");
}

/* The largest max_model_len that lengths of 32 bits reach, as engines give where they know no bound, is
 * served where its room is that of a host; beyond it a backend refuses or asks for no less: 32 bits of a
 * larger one are a small number. */
static void largest_length(check_t *c) {
    static const int64_t lengths[] = {4096, INT32_MAX, INT64_C(0x80000000) + 100, INT64_C(0x100000000) + 40};
    kit_case_t k;
    uint64_t least = 0;
    if (!check_start_decoder(c, &k)) return;
    check_few_heads(c, &k);
    k.problem.max_num_seqs = 2;
    k.problem.max_num_batched_tokens = 16;
    kit_case_add(&k, 1, 2600);
    kit_case_add(&k, 9, 700);
    for (int i = 0; i < 4 && !c->report->is_failed; i++) {
        attn_instance_t *instance = NULL;
        attn_error_t e = {.struct_size = sizeof e};
        attn_space_needed_t n = {.struct_size = sizeof n};
        k.problem.max_model_len = lengths[i];
        check_running(c, &k);
        if (!check_is_served(c, &k) || check_open(c, &k.problem, &instance, &e) != ATTN_OK) continue;
        const int status = c->backend->ops->space_needed(instance, &n, &e);
        c->backend->ops->close(instance);
        if (status != ATTN_OK) continue;
        const uint64_t bytes = n.metadata_bytes + n.workspace_bytes + n.host_bytes;
        if (bytes < least)
            check_fail(c, "max_model_len %lld needs %llu bytes, a smaller one %llu", (long long)lengths[i],
                       (unsigned long long)bytes, (unsigned long long)least);
        least = bytes;
        c->report->num_cases++;
        if (lengths[i] <= INT32_MAX && bytes <= UINT64_C(256) << 20) check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "the plain case does not open");
}

void check_limits_list(check_list_t *list, const check_t *c) {
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, nan_patterns, 0,
              "NaN of every pattern in a cache of 16 bits");
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, overflow, 0, "numbers beyond a cache of 16 bits");
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, hidden_keys, 0, "keys that a score of -inf hides");
    if (c->can.out_dtypes & ATTN_BIT(ATTN_DTYPE_FLOAT32))
        check_add(list, "numerics", CHECK_RUNS_ON_CPU, wide_outputs, 0, "float32 outputs of 16-bit models");
    if (c->can.features & (ATTN_F_SLIDING_WINDOW | ATTN_F_CHUNKED_LOCAL))
        check_add(list, "numerics", CHECK_RUNS_ON_CPU, huge_windows, 0, "windows beyond every context");
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, largest_length, 0, "the largest max_model_len");
}
