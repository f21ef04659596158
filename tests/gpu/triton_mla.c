/* SPDX-License-Identifier: Apache-2.0 */
/* TRITON_MLA of triton_like.so on a device against the reference plugin in double: whole layers and latent
 * in, latent out, both caches, other ranks and ropes, hard inputs, long contexts, as the device would and
 * with the tiles and the code of sm_75, 80, 86 and 89; capture and replay. MLA_TEST_PLUGINS: the folder of
 * the plugins; MLA_TEST_CASES: random cases; MLA_TEST_ARCHS: fixed ones for so many architectures;
 * MLA_TEST_SPEED=1: times too, beside plugin mla; ATTN_TEST_PART: part.h. */
#include "gpu_memory.h"
#include "mla_testing.h"
#include "part.h"
#include "plan_host.h"

static const attn_backend_t *backend, *reference;
enum { OPTION_CACHE_DIR, OPTION_NVRTC, OPTION_SEGMENTS, OPTION_ARCH, NUM_OPTIONS };
static attn_option_value_t options[NUM_OPTIONS] = {
    {.struct_size = sizeof(attn_option_value_t), .type = ATTN_OPTION_STRING, .name = "cache_dir", .s = ""},
    {.struct_size = sizeof(attn_option_value_t), .type = ATTN_OPTION_STRING, .name = "nvrtc", .s = ""},
    {.struct_size = sizeof(attn_option_value_t), .type = ATTN_OPTION_INT, .name = "segments", .s = "0"},
    {.struct_size = sizeof(attn_option_value_t), .type = ATTN_OPTION_ENUM, .name = "arch", .s = "auto"}};
static const char *const archs[] = {"auto", "sm_75", "sm_80", "sm_86", "sm_89"};
enum { NUM_ARCHS = 5, SM_75 = 1 };

typedef struct mla_case {
    const char *name;
    uint32_t heads, latent, rope, nope, value, kv, dtype, page, mask; /* 0: 16, 512, 64, 128, 128, .. */
    uint64_t features;
    int is_absorbed;
    double amplitude, scale;
    int32_t lens[8][2];
} mla_case;

#define E4M3     .kv = ATTN_KV_FP8_E4M3
#define ABSORBED .is_absorbed = 1
static const mla_case cases[] = {
    {.name = "one token", .lens = {{1, 1}}},
    {.name = "lengths around tiles", .lens = {{1, 15}, {1, 16}, {1, 17}, {1, 31}, {1, 32}, {1, 33}, {1, 65}}},
    {.name = "128 heads", .heads = 128, .lens = {{1, 200}, {2, 77}}},
    {.name = "cut keys", .lens = {{1, 4000}, {1, 20}}},
    {.name = "cut keys, absorbed", ABSORBED, .heads = 33, .lens = {{1, 5000}, {3, 20}}},
    {.name = "prompts, contexts, decodes",
     .heads = 8,
     .lens = {{70, 70}, {40, 200}, {1, 90}, {0, 30}, {3, 3}}},
    {.name = "one head, page 48", .heads = 1, .page = 48, .lens = {{5, 133}, {1, 300}}},
    {.name = "latent 256, nope 72, value 8",
     .latent = 256,
     .nope = 72,
     .value = 8,
     .lens = {{5, 133}, {1, 300}}},
    {.name = "latent 16, rope 16", .latent = 16, .rope = 16, .lens = {{5, 133}, {1, 300}}},
    {.name = "latent 144, rope 48", .latent = 144, .rope = 48, ABSORBED, .lens = {{5, 133}, {1, 3000}}},
    {.name = "latent 400, rope 32, fp8", E4M3, .latent = 400, .rope = 32, .lens = {{5, 133}, {1, 3000}}},
    {.name = "batch invariance", .features = ATTN_F_BATCH_INVARIANT, .lens = {{1, 2000}, {9, 70}}},
    {.name = "fp8 cache", E4M3, .lens = {{1, 130}, {7, 70}, {1, 4000}}},
    {.name = "fp8 cache, 128 heads, absorbed", E4M3, ABSORBED, .heads = 128, .lens = {{1, 1500}, {2, 70}}},
    {.name = "scores of hundreds", ABSORBED, .amplitude = 8, .lens = {{3, 150}, {1, 700}}},
    {.name = "negative scale", .scale = -0.07, .lens = {{3, 150}, {1, 700}}},
    {.name = "full", ABSORBED, .mask = ATTN_MASK_FULL, .lens = {{1, 1}, {70, 70}, {40, 200}, {9, 2000}}},
    {.name = "full, fp8", E4M3, ABSORBED, .mask = ATTN_MASK_FULL, .heads = 40, .lens = {{9, 130}, {64, 64}}},
};
static const mla_case large = {.name = "latent 768", .latent = 768, .lens = {{5, 133}, {1, 300}}};
static const mla_case long_contexts[] = {
    {.name = "131072 keys", ABSORBED, .heads = 4, .lens = {{1, 131072}}},
    {.name = "131072 keys, uniform weights", ABSORBED, .heads = 4, .scale = 1e-6, .lens = {{1, 131072}}},
    {.name = "131072 keys, fp8", E4M3, ABSORBED, .heads = 4, .lens = {{2, 131071}}},
};

static int agrees(const mla_case *f, int arch, uint64_t seed, uint32_t flags, char *why, size_t size) {
    kit_case_t c;
    kit_case_start(&c, ATTN_ROLE_MLA, seed);
    kit_case_set_mla(&c, f->heads ? f->heads : 16, f->latent ? f->latent : 512, f->rope ? f->rope : 64,
                     f->nope ? f->nope : 128, f->value ? f->value : 128, 0);
    if (f->is_absorbed) kit_case_set_latent(&c);
    attn_problem_t *p = &c.problem;
    p->dtype = f->dtype ? f->dtype : arch == SM_75 || seed & 1 ? ATTN_DTYPE_FLOAT16 : ATTN_DTYPE_BFLOAT16;
    p->kv_cache_dtype = f->kv;
    p->block_size = f->page ? f->page : 64;
    p->features |= ATTN_F_LSE | f->features;
    if (f->mask) p->mask = f->mask;
    if (f->scale < 0 || f->scale > 0) p->scale = f->scale;
    p->max_model_len = 131072;
    c.amplitude = f->amplitude, c.flags = flags;
    for (int r = 0; r < 8 && f->lens[r][1] > 0; r++)
        kit_case_add(&c, f->lens[r][0], f->lens[r][1]);
    kit_inputs_t *in = kit_inputs_make(&c);
    kit_difference_t d;
    options[OPTION_ARCH].i = arch, options[OPTION_ARCH].s = archs[arch];
    gpu.options = options, gpu.num_options = NUM_OPTIONS;
    const int good = mla_test_agrees(backend, reference, &c, in, &gpu, &d, why, size);
    kit_inputs_free(in);
    return good;
}

static void check(const mla_case *f, int arch, uint64_t seed, uint32_t flags) {
    char why[2048] = "";
    if (!part_takes()) return;
    const int good = agrees(f, arch, seed, flags, why, sizeof why);
    ok(good, "%s, %s%s", f->name, archs[arch], flags ? ", strided" : "");
    if (!good) diag("%s", why);
}

static void random_cases(uint64_t seed) {
    const char *text = getenv("MLA_TEST_CASES");
    const int n = text ? atoi(text) : 40;
    int failed = 0;
    for (int i = 0; i < n; i++) {
        static const uint32_t heads[] = {1, 2, 3, 8, 16, 31, 64, 65, 128};
        mla_case f = {.heads = heads[kit_random_in(&seed, 0, 8)],
                      .latent = (uint32_t)(16 * kit_random_in(&seed, 1, 32)),
                      .rope = (uint32_t)(16 * kit_random_in(&seed, 1, 6)),
                      .nope = (uint32_t)(8 * kit_random_in(&seed, 1, 24)),
                      .value = (uint32_t)(8 * kit_random_in(&seed, 1, 24)),
                      .page = (uint32_t)(16 * kit_random_in(&seed, 1, 5)),
                      .kv = kit_random_in(&seed, 0, 1) ? ATTN_KV_FP8_E4M3 : 0,
                      .is_absorbed = (int)kit_random_in(&seed, 0, 1)};
        if (kit_random_in(&seed, 0, 3) == 0) f.features = ATTN_F_BATCH_INVARIANT;
        const int reqs = (int)kit_random_in(&seed, 1, 5), most = 3000 / (int)f.heads;
        const int arch = f.latent + f.rope > 560 ? 0 : (int)kit_random_in(&seed, 0, NUM_ARCHS - 1);
        const uint32_t flags = (uint32_t)kit_random_in(&seed, 0, 31) &
                               (KIT_STRIDED | KIT_CROSS_LAYER | KIT_NO_SCALES | KIT_NO_LSE);
        for (int r = 0; r < reqs; r++) {
            f.lens[r][0] =
                kit_random_in(&seed, 0, 1) ? 1 : (int32_t)kit_random_in(&seed, 0, most > 40 ? 40 : most / 4);
            f.lens[r][1] = 1 + f.lens[r][0] + (int32_t)kit_random_in(&seed, 0, most > 260 ? 260 : most);
        }
        char why[2048] = "";
        if (!agrees(&f, arch, seed, flags, why, sizeof why) && failed++ < 8)
            diag("case %d (%s, latent %u, rope %u): %s", i, archs[arch], f.latent, f.rope, why);
    }
    ok(failed == 0, "%d random cases agree with the reference (%d failed)", n, failed);
}

static void graphs(uint32_t kv) {
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, 16, kv);
    mla_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (mla_test_replays(&s, backend, &p, attn_kv_name(kv), stream) == ATTN_OK) mla_step_close(&s);
    cudaStreamDestroy(stream);
}

/* us of a layer: how the tiles of an architecture compare on this device. */
static void speed(const attn_backend_t *who, const char *name, uint32_t heads, uint32_t kv, int32_t requests,
                  int32_t keys) {
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, heads, kv);
    p.max_num_seqs = p.max_num_batched_tokens = (uint32_t)requests, p.max_model_len = (uint32_t)keys;
    static int32_t q[256], lens[256];
    for (int i = 0; i < requests; i++)
        q[i] = 1, lens[i] = keys;
    mla_step s;
    if (mla_step_open(&s, who, &p, keys / 64) != ATTN_OK) {
        diag("%s: %s", name, s.error.text);
        return;
    }
    cudaEvent_t from, to;
    cudaEventCreate(&from), cudaEventCreate(&to);
    mla_step_build(&s, q, lens, requests, 0, 0, 0, NULL);
    float ms = 0, best = 1e9f;
    for (int i = 0; i < 8; i++) {
        cudaEventRecord(from, NULL);
        for (int j = 0; j < 10; j++)
            mla_step_forward(&s, NULL);
        cudaEventRecord(to, NULL);
        cudaEventSynchronize(to);
        cudaEventElapsedTime(&ms, from, to);
        best = ms < best ? ms : best;
    }
    const double us = best * 100.0, bytes = (double)requests * keys * 576 * (kv == ATTN_KV_FP8_E4M3 ? 1 : 2);
    diag("%s, %d heads, %d x %d, %s: %.1f us a layer, %.0f GB/s of keys", name, (int)heads, requests, keys,
         attn_kv_name(kv), us, bytes / us * 1e-3);
    mla_step_close(&s);
}

/* Beside plugin mla: its kernels of sm_80 and of this device. */
static void speeds(void) {
    static const uint32_t kvs[] = {0, ATTN_KV_FP8_E4M3};
    const attn_backend_t *dense = mla_test_load("mla.so");
    const attn_option_value_t mla_options[MLA_TEST_OPTIONS] = {mla_test_options[0], mla_test_options[1],
                                                               mla_test_options[2]};
    for (int i = 0; i < 6; i++) {
        static const char *const names[] = {"TRITON_MLA", "FLASHMLA, sm80", "FLASHMLA"};
        const int n = i % 3;
        for (int o = 0; o < MLA_TEST_OPTIONS; o++)
            mla_test_options[o] = n == 0 ? options[o] : mla_options[o];
        if (n == 1) mla_test_set(MLA_TEST_ARCH, "sm80");
        speed(n == 0 ? backend : dense, names[n], 128, kvs[i / 3], 64, 8192);
        speed(n == 0 ? backend : dense, names[n], 16, kvs[i / 3], 64, 8192);
        speed(n == 0 ? backend : dense, names[n], 128, kvs[i / 3], 1, 65536);
        speed(n == 0 ? backend : dense, names[n], 16, kvs[i / 3], 1, 65536);
    }
}

int main(void) {
    if (gpu_start() != 0) skip_all("no CUDA device");
    char path[1200], why[256] = "";
    const char *dir = getenv("MLA_TEST_PLUGINS");
    snprintf(path, sizeof path, "%s/triton_like.so", dir ? dir : "plugins-built");
    backend = kit_load(path, "TRITON_MLA", why, sizeof why);
    if (backend == NULL) bail_out("%s: %s", path, why);
    reference = mla_test_load("reference.so");
    gpu.host = mla_step_host = &plan_host;
    const int num_archs = getenv("MLA_TEST_ARCHS") != NULL ? atoi(getenv("MLA_TEST_ARCHS")) : NUM_ARCHS;
    if (getenv("MLA_TEST_SPEED") != NULL) speeds();
    for (int i = 0; i < MLA_TEST_OPTIONS; i++) /* what mla_step.h opens with: the first options here */
        mla_test_options[i] = options[i];
    graphs(0);
    graphs(ATTN_KV_FP8_E4M3);
    for (size_t i = 0; i < sizeof long_contexts / sizeof long_contexts[0]; i++)
        check(&long_contexts[i], (int)i % 2, 960 + i, 0);
    for (int arch = 0; arch < num_archs && arch < NUM_ARCHS; arch++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            check(&cases[i], arch, 900 + i, i & 2 ? KIT_STRIDED | KIT_CROSS_LAYER : 0);
    for (int arch = 0; arch < num_archs && arch < NUM_ARCHS; arch++)
        check(&large, arch, 950, 0);
    random_cases(tap_seed());
    return tap_done();
}
