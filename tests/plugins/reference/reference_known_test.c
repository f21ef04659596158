/* SPDX-License-Identifier: Apache-2.0 */
/* reference_known.c: cases whose answer is a line of arithmetic: uniform values, one-hot keys, windows of
 * one, closed forms of sink, ALiBi and soft cap, the chunk example of semantics 6.7, empty rows, NaN that
 * stays where it is. */
#include "kit/case/attn_case.h"
#include "reference_brute.h"

#include <attn/attn_plugin_util.h>

#include "tests/tap.h"

static const attn_backend_t *reference;
static kit_inputs_t *in;
static kit_result_t got;

/* A case with exact output; query zeroed, so that every visible key has the same score before bias and sink.
 * */
static void prepare(kit_case_t *c) {
    c->problem.out_dtype = ATTN_DTYPE_FLOAT64;
    c->problem.features |= ATTN_F_LSE;
    in = kit_inputs_make(c);
    if (in == NULL) bail_out("out of memory for inputs");
    memset(in->query, 0,
           (size_t)(in->num_tokens * c->problem.num_heads * c->problem.head_size) * sizeof(float));
}

static void run(const kit_case_t *c) {
    kit_run(reference, c, in, &kit_cpu_memory, &got);
    if (got.status != ATTN_OK || got.fault[0] != '\0')
        diag("%s: %s %s", got.operation, got.error.text, got.fault);
    if (got.status != ATTN_OK) bail_out("the case did not run");
}

static void finish(void) {
    kit_result_free(&got);
    kit_inputs_free(in);
}

static double lse_at(int64_t head, int64_t token) {
    return got.lse[head * in->num_tokens + token];
}

static void decoder(kit_case_t *c, uint64_t seed) {
    kit_case_start(c, ATTN_ROLE_DECODER, seed);
    kit_case_add(c, 4, 6);
    kit_case_add(c, 10, 17);
    kit_case_add(c, 5, 9);
}

/* Number of keys that each query sees, read off the LSE: ln(count) with zero queries. */
static void counts(const kit_case_t *c, const char *name, int (*count)(int r, int q)) {
    int wrong = 0;
    int64_t token = 0;
    for (int r = 0; r < c->num_reqs; r++)
        for (int i = 0; i < c->query_lens[r]; i++, token++) {
            int q = c->seq_lens[r] - c->query_lens[r] + i, want = count(r, q);
            double have = exp(lse_at(1, token));
            if (fabs(have - want) > 1e-5) {
                wrong++;
                diag("request %d, position %d sees %g keys; %d were wanted", r, q, have, want);
            }
        }
    is_int(wrong, 0, "%s", name);
}

static int all_before(int r, int q) {
    return (void)r, q + 1;
}
static int chunk_of_4(int r, int q) {
    return (void)r, q % 4 + 1;
}
static int window_of_3(int r, int q) {
    return (void)r, q < 2 ? q + 1 : 3;
}
/* chunks of 2, one back: from the start of the chunk before */
static int lookback(int r, int q) {
    return (void)r, q - (q / 2 < 1 ? 0 : q / 2 - 1) * 2 + 1;
}
/* prefix of 2 tokens, window of 3 */
static int rswa(int r, int q) {
    return (void)r, q < 5 ? q + 1 : 5;
}
/* causal, and positions 1 to 5 see each other */
static int span(int r, int q) {
    return (void)r, q >= 1 && q <= 5 ? 6 : q + 1;
}

static void visible_counts(uint64_t seed) {
    kit_case_t c;
    decoder(&c, seed);
    prepare(&c), run(&c), counts(&c, "causal: ln(q + 1)", all_before), finish();
    c.problem.block_size = 4;
    c.problem.chunk_size = 4;
    c.problem.features = ATTN_F_CHUNKED_LOCAL;
    prepare(&c), run(&c), counts(&c, "the chunk example: 4 tokens a chunk", chunk_of_4), finish();
    decoder(&c, seed);
    c.problem.sliding_window = 3;
    prepare(&c), run(&c), counts(&c, "window 3 counts the query's own token", window_of_3), finish();
    c.problem.sliding_window = 4;
    c.problem.chunk_lookback = 1;
    c.problem.features = ATTN_F_CHUNK_LOOKBACK;
    prepare(&c), run(&c), counts(&c, "lookback of one chunk of 2", lookback), finish();
    decoder(&c, seed);
    c.problem.rswa_window = 3;
    c.rswa_prefix_lens[0] = c.rswa_prefix_lens[1] = c.rswa_prefix_lens[2] = 2;
    prepare(&c), run(&c), counts(&c, "R-SWA: the prefix stays visible", rswa), finish();
    decoder(&c, seed);
    c.problem.features = ATTN_F_MM_PREFIX;
    c.num_spans = 1;
    for (int r = 0; r < 3; r++)
        c.spans[r][0][0] = 1, c.spans[r][0][1] = 5;
    prepare(&c), run(&c), counts(&c, "a span is visible from inside, in both directions", span), finish();
}

static void values(uint64_t seed) {
    kit_case_t c;
    double worst = 0;
    decoder(&c, seed);
    prepare(&c);
    for (int64_t i = 0; i < in->num_keys * 2 * 32; i++)
        in->value[i] = 2.5f;
    run(&c);
    for (int64_t i = 0; i < got.num_out; i++)
        worst = brute_worse(worst, fabs(got.out[i] - 2.5));
    is_near(worst, 0, 1e-14, "uniform values come out as they are");
    finish();

    decoder(&c, seed);
    c.problem.sliding_window = 1;
    prepare(&c);
    run(&c);
    worst = 0;
    for (int h = 0; h < 4; h++)
        for (int e = 0; e < 32; e++) /* token 0 of request 1: its position is 7, KV head h / 2 */
            worst = brute_worse(worst, fabs(got.out[(4 * 4 + h) * 32 + e] -
                                            in->value[((in->key_start[1] + 7) * 2 + h / 2) * 32 + e]));
    is_near(worst, 0, 0, "a window of 1 is the own value, and heads 0,1 | 2,3 use KV heads 0 | 1");
    finish();

    kit_case_start(&c, ATTN_ROLE_DECODER, seed);
    kit_case_add(&c, 1, 20);
    c.problem.scale = 1.0;
    prepare(&c);
    memset(in->key, 0, 20 * 2 * 32 * sizeof(float));
    for (int k = 0; k < 20; k++)
        in->key[(k * 2 + 0) * 32 + k] = in->key[(k * 2 + 1) * 32 + k] = 30;
    in->query[13] = 30; /* head 0 asks for key 13 */
    run(&c);
    worst = 0;
    for (int e = 0; e < 32; e++)
        worst = brute_worse(worst, fabs(got.out[e] - in->value[13 * 2 * 32 + e]));
    is_near(worst, 0, 1e-14, "one-hot keys pick one value");
    is_near(lse_at(0, 0), 900, 1e-4, "and the LSE is its score");
    finish();
}

static void closed_forms(uint64_t seed) {
    kit_case_t c;
    kit_case_start(&c, ATTN_ROLE_DECODER, seed);
    kit_case_add(&c, 1, 3);
    c.problem.features = ATTN_F_SINK;
    prepare(&c);
    run(&c);
    double sink = exp(in->sinks[2]), sum = 0;
    for (int k = 0; k < 3; k++)
        sum += in->value[(k * 2 + 1) * 32];
    is_near(got.out[2 * 32], sum / (3 + sink), 1e-12, "sink: sum of values over (3 + exp(sink))");
    is_near(lse_at(2, 0), log(3 + sink), 1e-6, "sink: it is part of the LSE");
    finish();

    c.problem.features = ATTN_F_ALIBI;
    prepare(&c);
    run(&c);
    double m = in->alibi_slopes[1], weight = 1 + exp(-m) + exp(-2 * m);
    is_near(lse_at(1, 0), log(weight), 1e-6, "ALiBi: weights 1, exp(-m), exp(-2m)");
    is_near(got.out[32 + 5],
            (in->value[2 * 64 + 5] + exp(-m) * in->value[64 + 5] + exp(-2 * m) * in->value[5]) / weight,
            1e-12, "ALiBi: the nearest key weighs most");
    finish();

    c.problem.features = ATTN_F_ALIBI_SQRT;
    prepare(&c);
    run(&c);
    m = in->alibi_slopes[3];
    is_near(lse_at(3, 0), log(1 + exp(-m) + exp(-sqrt(2) * m)), 1e-6, "ALiBi sqrt: distances 0, 1, sqrt(2)");
    finish();

    /* keys at distances -2, -1 and 0 of a table that ends at 1: the first two share its end */
    c.problem.features = ATTN_F_REL_BIAS;
    c.seed = 2;
    prepare(&c);
    run(&c);
    const float *table = in->rel_bias + 3 * 3;
    is_int(in->rel_max, 1, "relative bias: a table of distances -1 to 1");
    is_near(lse_at(3, 0), log(2 * exp(table[0]) + exp(table[1])), 1e-6,
            "relative bias: distances beyond it take its end");
    finish();

    c.problem.features = 0;
    c.problem.logits_soft_cap = 2.0;
    c.problem.scale = 1.0;
    prepare(&c);
    for (int e = 0; e < 32; e++) {
        in->query[e] = 100;
        in->key[e] = 10;
        in->key[64 + e] = -10;
        in->key[128 + e] = 0;
    }
    run(&c);
    is_near(lse_at(0, 0), log(exp(2.0) + exp(-2.0) + 1), 1e-6,
            "soft cap: scores of plus and minus the cap, and 0");
    finish();
}

static void empty_rows(uint64_t seed) {
    kit_case_t c;
    kit_case_start(&c, ATTN_ROLE_ENCODER_DECODER, seed);
    kit_case_add(&c, 2, 0);
    kit_case_add(&c, 1, 4);
    prepare(&c);
    run(&c);
    int zero = 1;
    for (int i = 0; i < 2 * 4 * 32; i++)
        zero = zero && got.out[i] == 0;
    ok(zero, "no key at all: the output is 0");
    ok(lse_at(0, 0) == -INFINITY && lse_at(3, 1) == -INFINITY, "and the LSE is -inf");
    is_near(lse_at(0, 2), log(4), 1e-6, "its neighbour is not concerned");
    finish();

    c.problem.features = ATTN_F_SINK;
    prepare(&c);
    run(&c);
    is_near(lse_at(1, 0), in->sinks[1], 1e-6, "no key but a sink: the LSE is the sink");
    ok(got.out[32] == 0, "and the output is 0");
    finish();

    kit_case_start(&c, ATTN_ROLE_DECODER, seed);
    prepare(&c);
    run(&c);
    is_int(got.num_out, 0, "a batch without requests");
    finish();
}

static void not_a_number(uint64_t seed) {
    static const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        kit_case_t c;
        decoder(&c, seed);
        prepare(&c);
        in->value[(in->key_start[1] + 3) * 64] = bad[i];
        run(&c);
        int finite = 1, reached = 0;
        for (int64_t t = 0; t < in->num_tokens; t++)
            for (int e = 0; e < 4 * 32; e++) {
                int is_finite = isfinite(got.out[t * 128 + e]) != 0,
                    is_his = t >= 4 && t < 14 && e % 32 == 0 && e < 64;
                finite = finite && (is_finite || is_his);
                reached |= !is_finite;
            }
        ok(finite && reached, "%s in one value reaches one column of one request",
           i == 0 ? "NaN" : "infinity");
        finish();
    }
    kit_case_t c;
    decoder(&c, seed);
    prepare(&c);
    in->query[0] = NAN;
    run(&c);
    ok(isnan(got.out[0]) && isnan(got.out[31]) && isnan(lse_at(0, 0)), "NaN in a query makes its row NaN");
    ok(isfinite(got.out[32]) && isfinite(got.out[128]), "and no other row");
    finish();
}

/* Static scales and group scales: the codes are those of the exact output (semantics 7.7). */
static void quantised_output(uint64_t seed) {
    static const char *const names[] = {"static", "group", "group, of values below 1e-10,"};
    for (int i = 0; i < 3; i++) {
        const int is_group = i > 0;
        kit_case_t c, plain;
        decoder(&plain, seed);
        plain.problem.num_heads = 4;
        c = plain;
        c.problem.features = is_group ? ATTN_F_OUT_FP8_GROUP : ATTN_F_OUT_FP8_STATIC;
        c.problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
        prepare(&plain);
        for (int64_t n = 0; i == 2 && n < in->num_keys * plain.problem.num_kv_heads * plain.problem.head_size;
             n++)
            in->value[n] *= 1e-12f;
        run(&plain);
        kit_result_t exact = got, fp8;
        kit_run(reference, &c, in, &kit_cpu_memory, &fp8);
        if (fp8.status != ATTN_OK) bail_out("%s: %s", fp8.operation, fp8.error.text);
        int wrong = 0;
        for (int64_t g = 0; g < fp8.num_out; g += 128) {
            double most = 1e-10;
            for (int n = 0; n < 128; n++)
                most = fmax(most, fabs(exact.out[g + n]));
            float scale = is_group ? (float)(most / 448) : in->output_scale;
            for (int n = 0; n < 128; n++)
                wrong += fp8.out[g + n] != brute_nearest_fp8(exact.out[g + n] / scale, 0) * scale;
        }
        is_int(wrong, 0, "%s fp8 output has the nearest codes", names[i]);
        kit_result_free(&fp8);
        finish();
    }
}

/* NaN in one channel of the values: the scales of its groups are those of the other channels (semantics
 * 7.7). */
static void quantised_nan(uint64_t seed) {
    kit_case_t c, plain;
    decoder(&plain, seed);
    plain.problem.num_heads = 4;
    c = plain;
    c.problem.features = ATTN_F_OUT_FP8_GROUP;
    c.problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
    prepare(&plain);
    const int64_t row = plain.problem.num_kv_heads * plain.problem.head_size;
    in->value[row - 1] = NAN; /* the last channel of the last head, of the first key */
    run(&plain);
    kit_result_t exact = got, fp8;
    kit_run(reference, &c, in, &kit_cpu_memory, &fp8);
    if (fp8.status != ATTN_OK) bail_out("%s: %s", fp8.operation, fp8.error.text);
    int wrong = 0, nans = 0;
    for (int64_t g = 0; g < fp8.num_out; g += 128) {
        double most = 1e-10;
        for (int n = 0; n < 128; n++)
            most = fmax(most, fabs(exact.out[g + n])); /* which leaves NaN out */
        float scale = (float)(most / 448);
        for (int n = 0; n < 128; n++) {
            const double x = exact.out[g + n];
            nans += isnan(x) != 0;
            wrong += isnan(x) ? !isnan(fp8.out[g + n])
                              : !(fp8.out[g + n] == brute_nearest_fp8(x / scale, 0) * scale);
        }
    }
    ok(nans > 0 && wrong == 0,
       "NaN does not count for the scale of its group: %d values, %d others are wrong", nans, wrong);
    kit_result_free(&fp8);
    finish();
}

/* Prefix pass, suffix pass and merge give what one pass gives (semantics 6.4, 6.5). */
static void cascade(uint64_t seed) {
    for (int i = 0; i < 3; i++) {
        kit_case_t c;
        kit_case_start(&c, ATTN_ROLE_DECODER, seed);
        kit_case_add(&c, 1, 40);
        kit_case_add(&c, 20, 52);
        kit_case_add(&c, 3, 35);
        c.common_prefix_len = i == 2 ? 16 : 32;
        c.problem.features = i != 0 ? ATTN_F_SINK | ATTN_F_LSE : ATTN_F_LSE;
        c.problem.logits_soft_cap = i == 1 ? 4.0 : 0.0;
        c.problem.out_dtype = ATTN_DTYPE_FLOAT64;
        in = kit_inputs_make(&c);
        run(&c);
        double *out = calloc((size_t)got.num_out, sizeof *out),
               *lse = calloc((size_t)got.num_lse, sizeof *lse);
        double worst = 0, worst_lse = 0;
        brute_attention(&c, in, out, lse);
        for (int64_t n = 0; n < got.num_out; n++)
            worst = brute_worse(worst, fabs(got.out[n] - out[n]));
        for (int64_t n = 0; n < got.num_lse; n++)
            worst_lse = brute_worse(worst_lse, fabs(got.lse[n] - lse[n]));
        ok(worst < 1e-12 && worst_lse < 1e-6, "cascade equals one pass (%g, lse %g)", worst, worst_lse);
        free(out);
        free(lse);
        finish();
    }
}

int main(void) {
    uint64_t seed = tap_seed();
    char path[4096], why[256];
    const char *folder = getenv("ATTN_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/reference.so", folder != NULL ? folder : "plugins-built");
    reference = kit_load(path, "REFERENCE", why, sizeof why);
    if (reference == NULL) bail_out("%s", why);
    visible_counts(seed);
    values(seed);
    closed_forms(seed);
    empty_rows(seed);
    not_a_number(seed);
    quantised_output(seed);
    quantised_nan(seed);
    cascade(seed);
    return tap_done();
}
