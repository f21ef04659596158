/* SPDX-License-Identifier: Apache-2.0 */
/* mla.so and mla_sparse.so through the plugin ABI on a device: fixed and random cases against the
 * reference plugin in double, capture and replay with other lengths and tables, errors that name the
 * parameter. MLA_TEST_CASES=N sets the number of random cases, MLA_TEST_PLUGINS the folder of the plugins;
 * ATTN_TEST_PART: part.h. */
#include "gpu_memory.h"
#include "mla_testing.h"
#include "part.h"
#include "plan_host.h"

#include <math.h>
#include <time.h>

static const attn_backend_t *dense, *sparse, *reference;
static double worst, worst_lse;

static int agrees(const kit_case_t *c, char *why, size_t size) {
    kit_inputs_t *in = kit_inputs_make(c);
    kit_difference_t d;
    gpu.options = mla_test_options, gpu.num_options = mla_test_num_options(c->problem.role);
    int good = mla_test_agrees(c->problem.role == ATTN_ROLE_MLA ? dense : sparse, reference, c, in, &gpu, &d,
                               why, size);
    if (good && c->problem.dtype == ATTN_DTYPE_BFLOAT16 && !attn_kv_is_quantized(c->problem.kv_cache_dtype)) {
        worst = d.max_abs > worst ? d.max_abs : worst;
        worst_lse = d.max_lse > worst_lse ? d.max_lse : worst_lse;
    }
    kit_inputs_free(in);
    return good;
}

static void start_case(kit_case_t *c, uint32_t role, uint32_t heads, uint32_t latent, uint32_t nope,
                       uint32_t value, uint64_t seed) {
    kit_case_start(c, role, seed);
    kit_case_set_mla(c, heads, latent, 64, nope, value, role == ATTN_ROLE_MLA_SPARSE ? 128 : 0);
    c->problem.dtype = ATTN_DTYPE_BFLOAT16;
    c->problem.block_size = 64;
    c->problem.features = ATTN_F_LSE;
}

static void fixed_cases(const char *projections) {
    static const struct {
        const char *name;
        uint32_t role, heads, latent, nope, value, kv, dtype;
        int32_t lens[8][2];
    } cases[] = {
        {"one token", ATTN_ROLE_MLA, 16, 512, 128, 128, 0, 0, {{1, 1}}},
        {"lengths around tiles",
         ATTN_ROLE_MLA,
         16,
         512,
         128,
         128,
         0,
         0,
         {{1, 63}, {1, 64}, {1, 65}, {1, 127}, {1, 128}, {1, 129}}},
        {"128 heads, two tiles a token", ATTN_ROLE_MLA, 128, 512, 128, 128, 0, 0, {{1, 200}, {2, 77}}},
        {"cut keys", ATTN_ROLE_MLA, 16, 512, 128, 128, 0, 0, {{1, 4000}, {1, 20}}},
        {"cut keys, 128 heads", ATTN_ROLE_MLA, 128, 512, 128, 128, 0, 0, {{1, 1500}}},
        {"prefill, context and decode",
         ATTN_ROLE_MLA,
         8,
         512,
         128,
         128,
         0,
         0,
         {{70, 70}, {40, 200}, {1, 90}, {0, 30}, {3, 3}}},
        {"more than 4096 rows", ATTN_ROLE_MLA, 128, 512, 128, 128, 0, 0, {{35, 60}, {1, 70}}},
        {"latent 256", ATTN_ROLE_MLA, 20, 256, 64, 64, 0, 0, {{5, 133}, {1, 300}}},
        {"odd sizes", ATTN_ROLE_MLA, 3, 512, 88, 40, 0, 0, {{9, 70}, {1, 65}}},
        {"wide heads, float16", ATTN_ROLE_MLA, 5, 512, 192, 256, 0, ATTN_DTYPE_FLOAT16, {{9, 70}, {1, 65}}},
        {"fp8 cache", ATTN_ROLE_MLA, 16, 512, 128, 128, ATTN_KV_FP8_E4M3, 0, {{1, 130}, {7, 70}}},
        {"fp8 cache, float16",
         ATTN_ROLE_MLA,
         16,
         256,
         128,
         128,
         ATTN_KV_FP8_E4M3,
         ATTN_DTYPE_FLOAT16,
         {{1, 130}, {7, 70}}},
        {"sparse", ATTN_ROLE_MLA_SPARSE, 16, 512, 128, 128, 0, 0, {{1, 400}, {5, 90}, {1, 7}}},
        {"sparse, 128 heads", ATTN_ROLE_MLA_SPARSE, 128, 512, 128, 128, 0, 0, {{2, 300}}},
        {"sparse, 656 bytes",
         ATTN_ROLE_MLA_SPARSE,
         64,
         512,
         128,
         128,
         ATTN_KV_FP8_DS_MLA,
         0,
         {{1, 300}, {4, 60}}},
        {"sparse, 656 bytes, float16",
         ATTN_ROLE_MLA_SPARSE,
         8,
         512,
         128,
         128,
         ATTN_KV_FP8_DS_MLA,
         ATTN_DTYPE_FLOAT16,
         {{3, 150}}},
    };
    mla_test_set(MLA_TEST_PROJECTIONS, projections);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kit_case_t c;
        char why[2048] = "";
        if (!part_takes()) continue;
        start_case(&c, cases[i].role, cases[i].heads, cases[i].latent, cases[i].nope, cases[i].value,
                   100 + i);
        c.problem.kv_cache_dtype = cases[i].kv;
        if (cases[i].dtype) c.problem.dtype = cases[i].dtype;
        for (int r = 0; r < 8 && cases[i].lens[r][1] > 0; r++)
            kit_case_add(&c, cases[i].lens[r][0], cases[i].lens[r][1]);
        int good = agrees(&c, why, sizeof why);
        ok(good, "projections %s: %s", projections, cases[i].name);
        if (!good) diag("%s", why);
    }
    mla_test_set(MLA_TEST_PROJECTIONS, "auto");
}

/* The multi-head form, with the Hopper kernels and the portable ones: one pass and several, requests without
 * context or without queries among others, both sizes, an fp8 cache, odd pages and heads. */
static void projected_cases(uint64_t seed) {
    static const struct {
        const char *name;
        uint32_t heads, nope, value, kv, dtype, page;
        int32_t lens[8][2];
    } cases[] = {
        {"fresh prompts", 4, 128, 128, 0, 0, 64, {{70, 70}, {3, 3}, {129, 129}}},
        {"with context", 8, 128, 128, 0, 0, 64, {{1, 90}, {40, 200}, {70, 70}, {0, 30}, {130, 300}, {1, 65}}},
        {"more tiles than multiprocessors", 70, 128, 128, 0, 0, 64, {{140, 140}}},
        {"pages of 16", 3, 128, 128, 0, 0, 16, {{65, 266}, {5, 300}}},
        {"pages of 48", 16, 128, 128, 0, ATTN_DTYPE_FLOAT16, 48, {{20, 50}, {64, 111}}},
        {"fp8 cache", 4, 128, 128, ATTN_KV_FP8_E4M3, 0, 64, {{33, 130}, {70, 70}}},
        {"fp8 cache, float16", 4, 128, 128, ATTN_KV_FP8_E4M3, ATTN_DTYPE_FLOAT16, 64, {{33, 130}}},
        {"values of 72", 4, 128, 72, 0, 0, 64, {{33, 130}}},
        {"192 and 256", 4, 192, 256, 0, 0, 64, {{33, 130}, {100, 100}}},
        {"192 and 256, float16", 2, 192, 256, 0, ATTN_DTYPE_FLOAT16, 32, {{33, 130}}},
    };
    static const struct {
        const char *name, *arch, *projections;
        int batches; /* random ones */
    } ways[] = {{"projected", "auto", "auto", 6},
                {"projected, by our kernel", "auto", "own", 1},
                {"projected, portable", "sm80", "auto", 6}};
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        mla_test_set(MLA_TEST_ARCH, ways[way].arch);
        mla_test_set(MLA_TEST_PROJECTIONS, ways[way].projections);
        mla_test_set(MLA_TEST_PREFILL, "projected");
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            kit_case_t c;
            char why[2048] = "";
            if (!part_takes()) continue;
            start_case(&c, ATTN_ROLE_MLA, cases[i].heads, 512, cases[i].nope, cases[i].value, 300 + i);
            c.problem.kv_cache_dtype = cases[i].kv, c.problem.block_size = cases[i].page;
            if (cases[i].dtype) c.problem.dtype = cases[i].dtype;
            for (int r = 0; r < 8 && cases[i].lens[r][1] > 0; r++)
                kit_case_add(&c, cases[i].lens[r][0], cases[i].lens[r][1]);
            int good = agrees(&c, why, sizeof why);
            ok(good, "%s: %s", ways[way].name, cases[i].name);
            if (!good) diag("%s", why);
        }
        int failed = 0, n = ways[way].batches;
        for (int i = 0; i < n; i++) { /* many requests share a small workspace: several passes */
            kit_case_t c;
            char why[2048] = "";
            start_case(&c, ATTN_ROLE_MLA, (uint32_t)kit_random_in(&seed, 1, 5),
                       kit_random_in(&seed, 0, 1) ? 512 : 256, 128, 128, seed);
            c.problem.block_size = 16;
            c.flags = (uint32_t)kit_random_in(&seed, 0, 31) &
                      (KIT_STRIDED | KIT_CROSS_LAYER | KIT_NO_SCALES | KIT_NO_LSE);
            int reqs = (int)kit_random_in(&seed, 14, 24);
            for (int r = 0; r < reqs; r++) {
                int32_t q = (int32_t)kit_random_in(&seed, r ? 0 : 2, 9);
                kit_case_add(&c, q,
                             q + (int32_t)kit_random_in(&seed, 0, 3) * (int32_t)kit_random_in(&seed, 0, 90));
            }
            c.problem.max_num_seqs = (uint32_t)reqs, c.problem.max_model_len = 300;
            if (part_takes() && !agrees(&c, why, sizeof why) && failed++ < 4) diag("case %d: %s", i, why);
        }
        ok(failed == 0, "%s: %d batches in several passes (%d failed)", ways[way].name, n, failed);
    }
    mla_test_set(MLA_TEST_ARCH, "auto"), mla_test_set(MLA_TEST_PREFILL, "auto");
    mla_test_set(MLA_TEST_PROJECTIONS, "auto");
}

/* Outputs with one scale and with group scales, of both forms and both dtypes. */
static void quantised_outputs(void) {
    static const struct {
        const char *name;
        uint64_t feature;
        uint32_t heads, value, dtype;
        int form; /* -1: sparse */
    } cases[] = {{"static scale", ATTN_F_OUT_FP8_STATIC, 16, 128, 0, 0},
                 {"groups, selected tokens", ATTN_F_OUT_FP8_GROUP, 16, 128, 0, -1},
                 {"static scale, projected", ATTN_F_OUT_FP8_STATIC, 3, 72, 0, 2},
                 {"groups", ATTN_F_OUT_FP8_GROUP, 16, 128, 0, 0},
                 {"groups, projected, float16", ATTN_F_OUT_FP8_GROUP, 4, 128, ATTN_DTYPE_FLOAT16, 2},
                 {"groups across heads", ATTN_F_OUT_FP8_GROUP, 8, 72, 0, 0},
                 {"powers of two", ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0, 16, 128, 0, 0},
                 {"powers of two, projected", ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0, 3, 128, 0, 2},
                 {"4 bits, strided", ATTN_F_OUT_NVFP4, 16, 128, 0, 0},
                 {"4 bits, selected tokens", ATTN_F_OUT_NVFP4, 16, 128, ATTN_DTYPE_FLOAT16, -1},
                 {"4 bits, projected", ATTN_F_OUT_NVFP4, 4, 72, 0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kit_case_t c;
        char why[2048] = "";
        if (!part_takes()) continue;
        start_case(&c, cases[i].form < 0 ? ATTN_ROLE_MLA_SPARSE : ATTN_ROLE_MLA, cases[i].heads, 512, 128,
                   cases[i].value, 500 + i);
        if (cases[i].dtype) c.problem.dtype = cases[i].dtype;
        c.problem.features |= cases[i].feature;
        c.problem.out_dtype = cases[i].feature == ATTN_F_OUT_NVFP4 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3;
        c.flags = i == 0 || i == 8 ? KIT_STRIDED : i == 6 ? KIT_HEADS_FIRST : 0;
        kit_case_add(&c, 1, 90), kit_case_add(&c, 37, 150), kit_case_add(&c, 1, 1);
        mla_test_set(MLA_TEST_PREFILL, cases[i].form == 2 ? "projected" : "auto");
        int good = agrees(&c, why, sizeof why);
        ok(good, "quantised output: %s", cases[i].name);
        if (!good) diag("%s", why);
    }
    mla_test_set(MLA_TEST_PREFILL, "auto");
}

static void random_cases(uint64_t seed) {
    const char *text = getenv("MLA_TEST_CASES");
    int n = text ? atoi(text) : 24, failed = 0;
    for (int i = 0; i < n; i++) {
        static const uint32_t heads[] = {1, 2, 3, 8, 16, 31, 64, 65, 128}, sizes[] = {64, 128, 192, 8, 72};
        uint32_t role = kit_random_in(&seed, 0, 2) ? ATTN_ROLE_MLA : ATTN_ROLE_MLA_SPARSE;
        uint32_t h = heads[kit_random_in(&seed, 0, 8)], latent = kit_random_in(&seed, 0, 2) ? 512 : 256;
        uint32_t nope = sizes[kit_random_in(&seed, 0, 4)], value = sizes[kit_random_in(&seed, 0, 4)];
        kit_case_t c;
        char why[2048] = "";
        start_case(&c, role, h, latent, nope, value, seed);
        c.problem.dtype = kit_random_in(&seed, 0, 2) ? ATTN_DTYPE_BFLOAT16 : ATTN_DTYPE_FLOAT16;
        c.problem.block_size = (uint32_t)(16 * kit_random_in(&seed, 1, 5));
        if (kit_random_in(&seed, 0, 2) == 0 && (role == ATTN_ROLE_MLA || latent == 512))
            c.problem.kv_cache_dtype = role == ATTN_ROLE_MLA ? ATTN_KV_FP8_E4M3 : ATTN_KV_FP8_DS_MLA;
        if (c.problem.kv_cache_dtype == ATTN_KV_FP8_E4M3 && kit_random_in(&seed, 0, 1))
            c.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
        if (kit_random_in(&seed, 0, 3) == 0) c.problem.features |= ATTN_F_BATCH_INVARIANT;
        if (role == ATTN_ROLE_MLA && kit_random_in(&seed, 0, 2) == 0)
            c.problem.features |= ATTN_F_DEVICE_LENGTHS; /* semantics 1.6 */
        c.flags = (uint32_t)kit_random_in(&seed, 0, 31) &
                  (KIT_STRIDED | KIT_CROSS_LAYER | KIT_NO_SCALES | KIT_NO_LSE);
        int reqs = (int)kit_random_in(&seed, 1, 5), most = 3000 / (int)h;
        for (int r = 0; r < reqs; r++) {
            int32_t q =
                kit_random_in(&seed, 0, 1) ? 1 : (int32_t)kit_random_in(&seed, 0, most > 40 ? 40 : most / 4);
            kit_case_add(&c, q, q + (int32_t)kit_random_in(&seed, 0, most > 260 ? 260 : most));
        }
        if (part_takes() && !agrees(&c, why, sizeof why) && failed++ < 8) diag("case %d: %s", i, why);
    }
    ok(failed == 0, "%d random cases agree with the reference (%d failed)", n, failed);
    diag("largest difference of bfloat16: output %.2e, LSE %.2e", worst, worst_lse);
}

static void graphs_and_errors(const attn_backend_t *backend, uint32_t role) {
    const attn_problem_t p = mla_test_problem(role, 16, 0);
    const char *name = attn_role_name(role);
    mla_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    int status = mla_test_replays(&s, backend, &p, name, stream);
    if (status != ATTN_OK) return;
    int32_t lens[1] = {3000}, one[1] = {1};
    ok(mla_step_build(&s, one, lens, 1, 0, 0, 0, stream) == ATTN_E_INVALID &&
           !strcmp(s.error.param, "seq_lens"),
       "%s: a length beyond max_model_len is refused by name", name);
    ok(mla_step_forward(&s, stream) == ATTN_OK, "%s: a refused batch leaves the metadata as it was", name);
    uint64_t bytes = s.weight_bytes;
    s.weight_bytes--;
    ok(mla_step_forward(&s, stream) == ATTN_E_INVALID && !strcmp(s.error.param, "weight_space"),
       "%s: missing weights are refused by name", name);
    s.weight_bytes = bytes;
    s.t_query.byte_offset = 2;
    ok(mla_step_forward(&s, stream) == ATTN_E_INVALID && !strcmp(s.error.param, "query"),
       "%s: so is a misaligned query", name);
    s.t_query.byte_offset = 0;
    attn_forward_t f = {.struct_size = sizeof f, .output = &s.t_output};
    const size_t bytes_out = mla_test_bytes(&s);
    char *got = malloc(bytes_out), *zeros = calloc(1, bytes_out);
    status = backend->ops->forward(s.instance, &f, NULL, stream, &s.error);
    cudaStreamSynchronize(stream);
    cudaMemcpy(got, s.output, bytes_out, cudaMemcpyDeviceToHost);
    ok(status == ATTN_OK && memcmp(got, zeros, bytes_out) == 0,
       "%s: the profiling run fills the output with zero", name);
    mla_step_close(&s);
    cudaStreamDestroy(stream);
    free(zeros), free(got);
}

/* Long lists of keys, whole and cut, odd and even numbers of blocks: the device's own kernel against the
 * portable one. A large scale lets nearly every block of keys move the largest score of some row. */
static void own_and_portable(uint32_t heads, uint32_t kv, uint32_t query_dtype, double scale) {
    enum { REQS = 6, TOKENS = 12 };
    static const int32_t q[REQS] = {1, 2, 1, 1, 4, 3},
                         lens[2][REQS] = {{8000, 4097, 64, 1, 3000, 129}, {130, 63, 40, 65, 200, 127}};
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, heads, kv);
    p.query_dtype = query_dtype;
    p.max_num_seqs = REQS, p.max_num_batched_tokens = TOKENS, p.max_model_len = 8192;
    p.features = ATTN_F_LSE, p.scale = scale;
    const size_t count = (size_t)TOKENS * heads * 128;
    uint16_t *out[2] = {malloc(count * 2), malloc(count * 2)};
    for (int batch = 0; batch < 2; batch++) {
        int good = 1;
        for (int portable = 0; portable < 2 && good; portable++) {
            mla_step s;
            mla_test_set(MLA_TEST_ARCH, portable ? "sm80" : "auto");
            good = mla_step_open(&s, dense, &p, 128) == ATTN_OK;
            mla_test_set(MLA_TEST_ARCH, "auto");
            if (!good) break;
            cudaMemset(s.output, 0xff, count * 2);
            good = mla_step_build(&s, q, lens[batch], REQS, 0, 0, 0, NULL) == ATTN_OK &&
                   mla_step_forward(&s, NULL) == ATTN_OK &&
                   cudaMemcpy(out[portable], s.output, count * 2, cudaMemcpyDeviceToHost) == cudaSuccess;
            mla_step_close(&s);
        }
        double most = 0, largest = 0;
        for (size_t i = 0; i < count && good; i++) {
            const uint32_t a = (uint32_t)out[0][i] << 16, b = (uint32_t)out[1][i] << 16;
            float x, y;
            memcpy(&x, &a, 4), memcpy(&y, &b, 4);
            if (!(fabs((double)x - y) <= most)) most = fabs((double)x - y);
            if (!(fabs((double)y) <= largest)) largest = fabs((double)y);
        }
        ok(good && most <= 0.02 * largest,
           "%u heads, cache %s%s, scale %g, batch %d: as the portable kernel (%.1e of %.1e)", heads,
           attn_kv_name(kv), query_dtype ? ", queries too" : "", scale, batch, most, largest);
    }
    free(out[0]), free(out[1]);
}

/* 1: cuBLAS is here. */
static int opens_blas(void) {
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA};
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, 128, 0);
    attn_error_t error = {.struct_size = sizeof error};
    int status = ATTN_OK;
    mla_test_set(MLA_TEST_PROJECTIONS, "cublas");
    for (int i = 0; i < 3; i++) {
        struct timespec from, to;
        attn_instance_t *instance = NULL;
        if (i == 2) p.features |= ATTN_F_BATCH_INVARIANT;
        clock_gettime(CLOCK_MONOTONIC, &from);
        const int opened =
            dense->ops->open(&p, &device, mla_test_options, MLA_TEST_OPTIONS, &plan_host, &instance, &error);
        clock_gettime(CLOCK_MONOTONIC, &to);
        if (opened == ATTN_OK)
            diag("layer %d opens in %.1f ms", i,
                 (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6);
        if (opened != ATTN_OK || i == 2)
            ok(opened == ATTN_E_UNSUPPORTED && !strcmp(error.param, "projections"),
               "cuBLAS that is not to be had is refused by name: %s", error.text);
        if (i < 2) status = opened;
        dense->ops->close(instance);
    }
    mla_test_set(MLA_TEST_PROJECTIONS, "auto");
    return status == ATTN_OK;
}

/* Every number of tokens, each for the first time: device memory is taken, and code loaded, when a layer
 * opens. What is free is known of the whole device alone: MLA_TEST_SHARED=1 says that other programs use it
 * now. */
static void no_memory_later(const attn_backend_t *backend, uint32_t role, const char *prefill) {
    enum { TOKENS = 256 };
    attn_problem_t p = mla_test_problem(role, 128, 0);
    p.max_num_seqs = 1, p.max_num_batched_tokens = TOKENS;
    mla_step s;
    size_t before = 0, after = 0, all;
    mla_test_set(MLA_TEST_PREFILL, prefill);
    int status = mla_step_open(&s, backend, &p, 32);
    mla_test_set(MLA_TEST_PREFILL, "auto");
    if (!ok(status == ATTN_OK, "%s: opens (%s)", attn_role_name(role), status ? s.error.text : "")) return;
    cudaDeviceSynchronize();
    cudaMemGetInfo(&before, &all);
    for (int32_t n = 1; n <= TOKENS && status == ATTN_OK; n++) {
        const int32_t len = n + (n & 1) * 300;
        status = mla_step_build(&s, &n, &len, 1, 0, 0, 0, NULL);
        if (status == ATTN_OK) status = mla_step_forward(&s, NULL);
        cudaStreamSynchronize(NULL);
    }
    cudaMemGetInfo(&after, &all);
    if (status == ATTN_OK && getenv("MLA_TEST_SHARED") != NULL)
        skip(1, "the device is shared");
    else
        ok(status == ATTN_OK && before == after,
           "%s, prefill %s: forward takes no device memory (%lld bytes)", attn_role_name(role), prefill,
           (long long)before - (long long)after);
    mla_step_close(&s);
}

int main(void) {
    if (gpu_start() != 0) skip_all("no CUDA device");
    gpu.host = &plan_host;
    dense = mla_test_load("mla.so");
    sparse = mla_test_load("mla_sparse.so");
    reference = mla_test_load("reference.so");
    mla_step_host = &plan_host;
    const int has_blas = opens_blas();
    if (has_blas)
        fixed_cases("cublas");
    else
        diag("no cuBLAS here: its projections are not tested");
    fixed_cases("own");
    if (part_takes()) no_memory_later(dense, ATTN_ROLE_MLA, "absorbed");
    if (part_takes()) no_memory_later(dense, ATTN_ROLE_MLA, "projected");
    if (part_takes()) no_memory_later(sparse, ATTN_ROLE_MLA_SPARSE, "auto");
    graphs_and_errors(dense, ATTN_ROLE_MLA);
    graphs_and_errors(sparse, ATTN_ROLE_MLA_SPARSE);
    quantised_outputs();
    static const uint32_t heads[] = {3, 8, 16, 32, 64, 128};
    static const struct {
        uint32_t kv, query;
        double scale;
    } kinds[] = {{ATTN_KV_AUTO, 0, 0.05},
                 {ATTN_KV_FP8_E4M3, 0, 0.05},
                 {ATTN_KV_FP8_E4M3, ATTN_DTYPE_FP8_E4M3, 0.05},
                 {ATTN_KV_AUTO, 0, 1.},
                 {ATTN_KV_FP8_E4M3, 0, 1.}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            if (part_takes()) own_and_portable(heads[i], kinds[k].kv, kinds[k].query, kinds[k].scale);
    random_cases(tap_seed());
    projected_cases(tap_seed()); /* the longest */
    return tap_done();
}
