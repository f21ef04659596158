/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 queries of mla.so on a device (semantics 7.4): against the reference plugin in double, which rounds the
 * absorbed query to e4m3 too, so closely that a query that is not rounded, or rounded otherwise, is told
 * apart; both kernels, both forms of prefill, capture; scales that are none. MLA_TEST_PLUGINS: the folder of
 * the plugins. */
#include "gpu_memory.h"
#include "mla_testing.h"
#include "part.h"
#include "plan_host.h"

#include <math.h>

static const attn_backend_t *dense, *sparse, *reference;

static double root_mean_square(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]); /* NaN stays */
    return n > 0 ? sqrt(sum / (double)n) : 0;
}

/* The absorbed form within what 16-bit queries are allowed, and its LSE, in which only scores matter, ten
 * times nearer to the oracle that rounds the absorbed query than to the one that does not; the projected form
 * the other way round: its queries stay as they are (semantics 6.9). */
static int rounds_queries(const kit_case_t *c, int is_projected, char *why, size_t size) {
    kit_case_t plain = *c, strict = *c;
    plain.problem.query_dtype = strict.problem.query_dtype = 0, strict.problem.kv_cache_dtype = 0;
    kit_inputs_t *in = kit_inputs_make(c);
    kit_result_t got, rounded, exact;
    kit_run(dense, c, in, &gpu, &got);
    kit_run_oracle(reference, c, in, &rounded);
    kit_run_oracle(reference, &plain, in, &exact);
    const kit_result_t *want = is_projected ? &exact : &rounded, *other = is_projected ? &rounded : &exact;
    kit_difference_t d = kit_compare(&strict, &got, want);
    double near = 0, far = 1;
    if (d.is_close) {
        near = root_mean_square(got.lse, want->lse, got.num_lse);
        far = root_mean_square(got.lse, other->lse, got.num_lse);
    }
    int good = d.is_close && near * (is_projected ? 3 : 10) < far;
    char text[1024];
    snprintf(why, size, "%s: %s %s; LSE %.1e from what was wanted, %.1e from the other", got.error.text,
             kit_case_text(c, text, sizeof text), d.text, near, far);
    kit_result_free(&got), kit_result_free(&rounded), kit_result_free(&exact);
    kit_inputs_free(in);
    return good;
}

typedef struct fp8_case {
    const char *name;
    uint32_t heads, latent, nope, value, dtype, page; /* 0: 16, 512, 128, 128, bfloat16, 64 */
    uint32_t flags, is_invariant;
    double amplitude, scale; /* 0: the usual ones */
    int32_t lens[6][2];
} fp8_case;
static const fp8_case absorbed_cases[] = {
    {.name = "one token", .lens = {{1, 40}}},
    {.name = "decodes of any length", .lens = {{1, 63}, {1, 2}, {1, 700}, {1, 129}}},
    {.name = "multi-token decodes", .heads = 8, .lens = {{3, 90}, {3, 201}, {3, 64}}},
    {.name = "a ragged batch, strided, page 32, values of 256",
     .heads = 5,
     .nope = 192,
     .value = 256,
     .page = 32,
     .flags = KIT_STRIDED,
     .lens = {{1, 90}, {37, 150}, {0, 9}, {4, 4}}},
    {.name = "128 heads", .heads = 128, .lens = {{2, 150}, {1, 33}}},
    {.name = "33 heads, page 16, float16",
     .heads = 33,
     .nope = 64,
     .value = 64,
     .dtype = ATTN_DTYPE_FLOAT16,
     .page = 16,
     .lens = {{2, 150}, {1, 33}}},
    {.name = "cut keys", .flags = KIT_CROSS_LAYER, .lens = {{1, 4000}, {2, 100}}},
    {.name = "latent 256", .heads = 20, .latent = 256, .lens = {{5, 133}, {1, 300}}},
    {.name = "batch invariance, odd sizes",
     .nope = 88,
     .value = 40,
     .is_invariant = 1,
     .lens = {{5, 133}, {1, 300}}},
    {.name = "queries that saturate", .amplitude = 12, .scale = 0x1p-14, .lens = {{5, 133}, {1, 300}}},
};

static kit_case_t case_of(const fp8_case *f, uint64_t seed) {
    kit_case_t c;
    kit_case_start(&c, ATTN_ROLE_MLA, seed);
    kit_case_set_mla(&c, f->heads ? f->heads : 16, f->latent ? f->latent : 512, 64, f->nope ? f->nope : 128,
                     f->value ? f->value : 128, 0);
    attn_problem_t *p = &c.problem;
    p->dtype = f->dtype ? f->dtype : (uint32_t)ATTN_DTYPE_BFLOAT16;
    p->kv_cache_dtype = ATTN_KV_FP8_E4M3, p->query_dtype = ATTN_DTYPE_FP8_E4M3;
    p->block_size = f->page ? f->page : 64;
    p->features = f->is_invariant ? ATTN_F_LSE | ATTN_F_BATCH_INVARIANT : ATTN_F_LSE;
    if (f->scale > 0) p->scale = f->scale;
    c.amplitude = f->amplitude, c.flags = f->flags;
    for (int r = 0; r < 6 && f->lens[r][1] > 0; r++)
        kit_case_add(&c, f->lens[r][0], f->lens[r][1]);
    return c;
}

static void check(const char *name, int is_portable, int is_projected, const kit_case_t *c) {
    char why[2048] = "";
    if (!part_in_time()) return;
    mla_test_set(MLA_TEST_ARCH, is_portable ? "sm80" : "auto");
    mla_test_set(MLA_TEST_PREFILL, is_projected ? "projected" : "absorbed");
    gpu.options = mla_test_options, gpu.num_options = MLA_TEST_OPTIONS;
    int good = rounds_queries(c, is_projected, why, sizeof why);
    gpu.options = NULL, gpu.num_options = 0;
    mla_test_set(MLA_TEST_ARCH, "auto"), mla_test_set(MLA_TEST_PREFILL, "auto");
    ok(good, "%s%s%s", name, is_portable ? ", portable" : "", good ? strrchr(why, ';') : "");
    if (!good) diag("%s", why);
}

static void fp8_queries(void) {
    static const fp8_case prompts = {.heads = 4, .lens = {{70, 150}, {20, 20}}};
    static const fp8_case many_heads = {.heads = 1024, .nope = 8, .value = 8};
    for (int is_portable = 0; is_portable < 2; is_portable++) {
        for (size_t i = 0; i < sizeof absorbed_cases / sizeof absorbed_cases[0]; i++) {
            kit_case_t c = case_of(&absorbed_cases[i], 700 + i);
            check(absorbed_cases[i].name, is_portable, 0, &c);
        }
        kit_case_t c = case_of(&many_heads, 720);
        for (int r = 0; r < 50; r++) /* a slice has 128 tokens of 1024 heads */
            kit_case_add(&c, 3, 3 + r % 5);
        check("two slices", is_portable, 0, &c);
        c = case_of(&prompts, 721);
        check("projected prompts keep their queries", is_portable, 1, &c);
    }
}

static void refused_queries(void) {
    static const struct {
        const char *name;
        uint32_t role, kv;
    } cases[] = {{"a 16-bit cache", ATTN_ROLE_MLA, 0},
                 {"selected tokens", ATTN_ROLE_MLA_SPARSE, ATTN_KV_FP8_E4M3},
                 {"656 bytes", ATTN_ROLE_MLA_SPARSE, ATTN_KV_FP8_DS_MLA}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_problem_t p = mla_test_problem(cases[i].role, 16, cases[i].kv);
        attn_device_t device = {
            .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
        attn_reason_t first = {0};
        attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
        p.query_dtype = ATTN_DTYPE_FP8_E4M3;
        (cases[i].role == ATTN_ROLE_MLA ? dense : sparse)->ops->supports_combination(&p, &device, &reasons);
        ok(reasons.count == 1 && !strcmp(first.param, "query_dtype"), "fp8 queries over %s: %s",
           cases[i].name, first.text);
    }
}

enum { VALUES = 3 * 16 * 128 }; /* of three tokens */

static int forward_with(mla_step *s, float scale, cudaStream_t stream, uint16_t *out) {
    cudaMemset(s->output, 0, mla_test_bytes(s));
    cudaMemcpy(s->q_scale, &scale, sizeof scale, cudaMemcpyHostToDevice);
    int status = mla_step_forward(s, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, s->output, VALUES * sizeof *out, cudaMemcpyDeviceToHost);
    return status;
}

/* Scales of which a host can judge are refused by name; numbers on the device that are no scale make NaN of
 * the output. */
static void bad_scales(mla_step *s, cudaStream_t stream) {
    static const int32_t query_lens[2] = {1, 2}, lens[2] = {70, 9};
    static const float bad[4] = {0, -1, NAN, INFINITY};
    static uint16_t out[VALUES], other[VALUES];
    mla_step_build(s, query_lens, lens, 2, 0, 0, 0, stream);
    for (int i = 0; i < 4; i++) {
        int count = 0, status = forward_with(s, bad[i], stream, out);
        for (int j = 0; j < VALUES; j++)
            count += (out[j] & 0x7fff) > 0x7f80; /* bfloat16 NaN */
        ok(status == ATTN_OK && count == VALUES, "q_scale %g on the device makes NaN of every value", bad[i]);
    }
    forward_with(s, 1, stream, out);
    float *given = s->q_scale;
    s->q_scale = NULL; /* mla_step_forward gives none */
    mla_step_forward(s, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(other, s->output, sizeof other, cudaMemcpyDeviceToHost);
    s->q_scale = given;
    ok(memcmp(out, other, sizeof out) == 0, "no q_scale means 1");
    forward_with(s, 0.03f, stream, out);
    ok(memcmp(out, other, sizeof out) != 0, "0.03 is another one");
    s->shape[7][0] = 2;
    ok(mla_step_forward(s, stream) == ATTN_E_INVALID && !strcmp(s->error.param, "q_scale"),
       "two of them are refused by name");
    s->shape[7][0] = 1, s->t_q_scale.device.device_type = kDLCPU;
    ok(mla_step_forward(s, stream) == ATTN_E_INVALID && !strcmp(s->error.param, "q_scale"),
       "so is one on the host");
}

static void replays_and_scales(void) {
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, 16, ATTN_KV_FP8_E4M3);
    p.query_dtype = ATTN_DTYPE_FP8_E4M3;
    mla_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (mla_test_replays(&s, dense, &p, "fp8 query", stream) == ATTN_OK) {
        bad_scales(&s, stream);
        mla_step_close(&s);
    }
    cudaStreamDestroy(stream);
}

int main(void) {
    if (gpu_start() != 0) skip_all("no CUDA device");
    gpu.host = mla_step_host = &plan_host;
    dense = mla_test_load("mla.so");
    sparse = mla_test_load("mla_sparse.so");
    reference = mla_test_load("reference.so");
    fp8_queries();
    refused_queries();
    replays_and_scales();
    return tap_done();
}
