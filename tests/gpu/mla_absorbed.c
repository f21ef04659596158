/* SPDX-License-Identifier: Apache-2.0 */
/* Latent in, latent out (semantics 7.11) of mla.so and mla_sparse.so on a device: fixed and random cases
 * against the reference plugin in double, causal and full, dense tensors and strided ones, both kernels;
 * steps that follow the cache's write at once; capture and replay; errors that name the parameter.
 * MLA_TEST_PLUGINS: the folder of the plugins; ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "gpu_memory.h"
#include "mla_testing.h"
#include "part.h"
#include "plan_host.h"

static const attn_backend_t *dense, *sparse, *reference;

typedef struct latent_case {
    const char *name;
    uint32_t role, heads, latent, kv, query, dtype, page,
        mask; /* 0: mla, 16, 512, auto, as dtype, bfloat16, .. */
    uint64_t features;
    double amplitude, scale;
    int32_t lens[8][2];
} latent_case;

#define SPARSE .role = ATTN_ROLE_MLA_SPARSE
#define FULL   .mask = ATTN_MASK_FULL
#define E4M3   .kv = ATTN_KV_FP8_E4M3
static const latent_case cases[] = {
    {.name = "one token", .lens = {{1, 1}}},
    {.name = "lengths around tiles", .lens = {{1, 63}, {1, 64}, {1, 65}, {1, 127}, {1, 128}, {1, 129}}},
    {.name = "128 heads", .heads = 128, .lens = {{1, 200}, {2, 77}}},
    {.name = "cut keys", .lens = {{1, 4000}, {1, 20}}},
    {.name = "cut keys, 128 heads", .heads = 128, .lens = {{1, 1500}}},
    {.name = "prompts, contexts, decodes",
     .heads = 8,
     .lens = {{70, 70}, {40, 200}, {1, 90}, {0, 30}, {3, 3}}},
    {.name = "one head", .heads = 1, .lens = {{5, 133}, {1, 300}}},
    {.name = "33 heads, page 48", .heads = 33, .page = 48, .lens = {{5, 133}, {1, 300}}},
    {.name = "latent 256", .heads = 20, .latent = 256, .lens = {{5, 133}, {1, 300}}},
    {.name = "float16", .heads = 5, .dtype = ATTN_DTYPE_FLOAT16, .lens = {{9, 70}, {1, 65}}},
    {.name = "batch invariance", .features = ATTN_F_BATCH_INVARIANT, .lens = {{1, 2000}, {9, 70}}},
    {.name = "fp8 cache", E4M3, .lens = {{1, 130}, {7, 70}}},
    {.name = "fp8 cache, 128 heads", E4M3, .heads = 128, .lens = {{1, 1500}, {2, 70}}},
    {.name = "fp8 cache, latent 256, float16",
     E4M3,
     .latent = 256,
     .dtype = ATTN_DTYPE_FLOAT16,
     .lens = {{1, 130}, {7, 70}}},
    {.name = "fp8 queries", E4M3, .query = ATTN_DTYPE_FP8_E4M3, .lens = {{1, 130}, {7, 70}, {1, 4000}}},
    {.name = "fp8 queries, 65 heads", E4M3, .query = ATTN_DTYPE_FP8_E4M3, .heads = 65, .lens = {{3, 130}}},
    {.name = "fp8 queries, latent 256, float16",
     E4M3,
     .query = ATTN_DTYPE_FP8_E4M3,
     .latent = 256,
     .dtype = ATTN_DTYPE_FLOAT16,
     .lens = {{3, 130}, {1, 5}}},
    {.name = "scores of hundreds", .amplitude = 8, .lens = {{3, 150}, {1, 700}}},
    {.name = "negative scale", .scale = -0.07, .lens = {{3, 150}, {1, 700}}},
    {.name = "full", FULL, .lens = {{1, 1}, {70, 70}, {40, 200}, {1, 90}, {3, 3}}},
    {.name = "full, 128 heads", FULL, .heads = 128, .lens = {{5, 200}, {7, 7}}},
    {.name = "full, cut keys", FULL, .lens = {{9, 4000}, {1, 20}}},
    {.name = "full, fp8 cache", FULL, E4M3, .heads = 40, .lens = {{9, 130}, {64, 64}}},
    {.name = "full, fp8 queries, 128 heads",
     FULL,
     E4M3,
     .query = ATTN_DTYPE_FP8_E4M3,
     .heads = 128,
     .lens = {{9, 130}, {3, 3}}},
    {.name = "static output scale", .features = ATTN_F_OUT_FP8_STATIC, .lens = {{1, 90}, {37, 150}}},
    {.name = "group output scales",
     .features = ATTN_F_OUT_FP8_GROUP,
     .heads = 3,
     .lens = {{1, 90}, {37, 150}}},
    {.name = "4-bit output", .features = ATTN_F_OUT_NVFP4, .heads = 3, .lens = {{1, 90}, {37, 150}}},
    {.name = "selected tokens", SPARSE, .lens = {{1, 400}, {5, 90}, {1, 7}}},
    {.name = "selected tokens, 128 heads", SPARSE, .heads = 128, .lens = {{2, 300}}},
    {.name = "selected tokens, 656 bytes",
     SPARSE,
     .kv = ATTN_KV_FP8_DS_MLA,
     .heads = 64,
     .lens = {{1, 300}, {4, 60}}},
    {.name = "selected tokens, 656 bytes, float16",
     SPARSE,
     .kv = ATTN_KV_FP8_DS_MLA,
     .heads = 8,
     .dtype = ATTN_DTYPE_FLOAT16,
     .lens = {{3, 150}}},
    {.name = "selected tokens, latent 256", SPARSE, .latent = 256, .lens = {{1, 400}, {5, 90}}},
    {.name = "selected tokens, group output scales",
     SPARSE,
     .features = ATTN_F_OUT_FP8_GROUP,
     .lens = {{1, 90}, {7, 150}}},
};

static kit_case_t case_of(const latent_case *f, uint64_t seed) {
    kit_case_t c;
    const uint32_t role = f->role ? f->role : (uint32_t)ATTN_ROLE_MLA;
    kit_case_start(&c, role, seed);
    kit_case_set_mla(&c, f->heads ? f->heads : 16, f->latent ? f->latent : 512, 64, 128, 128,
                     role == ATTN_ROLE_MLA_SPARSE ? 128 : 0);
    kit_case_set_latent(&c);
    attn_problem_t *p = &c.problem;
    p->dtype = f->dtype ? f->dtype : (uint32_t)ATTN_DTYPE_BFLOAT16;
    p->kv_cache_dtype = f->kv, p->query_dtype = f->query;
    p->block_size = f->page ? f->page : 64;
    p->features |= ATTN_F_LSE | f->features;
    if (f->mask) p->mask = f->mask;
    if (f->features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP)) p->out_dtype = ATTN_DTYPE_FP8_E4M3;
    if (f->features & ATTN_F_OUT_NVFP4) p->out_dtype = ATTN_DTYPE_UINT8;
    if (f->scale < 0 || f->scale > 0) p->scale = f->scale;
    c.amplitude = f->amplitude;
    for (int r = 0; r < 8 && f->lens[r][1] > 0; r++)
        kit_case_add(&c, f->lens[r][0], f->lens[r][1]);
    return c;
}

static int agrees(const kit_case_t *c, char *why, size_t size) {
    kit_inputs_t *in = kit_inputs_make(c);
    kit_difference_t d;
    gpu.options = mla_test_options, gpu.num_options = mla_test_num_options(c->problem.role);
    int good = mla_test_agrees(c->problem.role == ATTN_ROLE_MLA ? dense : sparse, reference, c, in, &gpu, &d,
                               why, size);
    kit_inputs_free(in);
    return good;
}

static void fixed_cases(void) {
    for (int way = 0; way < 8; way++) {
        if ((way & 3) == 1) continue; /* strides are harder */
        const uint64_t lengths = way & 4 ? ATTN_F_DEVICE_LENGTHS : 0;
        mla_test_set(MLA_TEST_ARCH, way & 1 ? "sm80" : "auto");
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            kit_case_t c = case_of(&cases[i], 900 + i);
            char why[2048] = "";
            if (lengths && (c.problem.role != ATTN_ROLE_MLA ||
                            c.problem.features & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)))
                continue;
            if (!part_takes()) continue;
            c.problem.features |= lengths; /* semantics 1.6: the host's are bounds of the case's */
            c.flags = way & 2 ? KIT_STRIDED | KIT_CROSS_LAYER : 0;
            int good = agrees(&c, why, sizeof why);
            ok(good, "%s%s%s%s", cases[i].name, way & 1 ? ", portable" : "", way & 2 ? ", strided" : "",
               lengths ? ", lengths on the device" : "");
            if (!good) diag("%s", why);
        }
    }
    mla_test_set(MLA_TEST_ARCH, "auto");
    if (!part_takes()) return;
    kit_case_t c = case_of(&(latent_case){.heads = 1024}, 950);
    char why[2048] = "";
    for (int r = 0; r < 44; r++) /* a slice has 128 tokens of 1024 heads */
        kit_case_add(&c, 3, 3 + r % 2);
    int good = agrees(&c, why, sizeof why);
    ok(good, "two slices");
    if (!good) diag("%s", why);
    c.flags = KIT_STRIDED;
    good = agrees(&c, why, sizeof why);
    ok(good, "two slices, strided");
    if (!good) diag("%s", why);
}

static void random_cases(uint64_t seed) {
    const char *text = getenv("MLA_TEST_CASES");
    int n = text ? atoi(text) : 40, failed = 0;
    for (int i = 0; i < n; i++) {
        static const uint32_t heads[] = {1, 2, 3, 8, 16, 31, 64, 65, 128};
        latent_case f = {.role = kit_random_in(&seed, 0, 2) ? ATTN_ROLE_MLA : ATTN_ROLE_MLA_SPARSE,
                         .heads = heads[kit_random_in(&seed, 0, 8)],
                         .latent = kit_random_in(&seed, 0, 3) ? 512 : 256,
                         .page = (uint32_t)(16 * kit_random_in(&seed, 1, 5)),
                         .dtype = kit_random_in(&seed, 0, 2) ? ATTN_DTYPE_BFLOAT16 : ATTN_DTYPE_FLOAT16};
        const int is_dense = f.role == ATTN_ROLE_MLA;
        if (kit_random_in(&seed, 0, 1) == 0 && (is_dense || f.latent == 512))
            f.kv = is_dense ? ATTN_KV_FP8_E4M3 : ATTN_KV_FP8_DS_MLA;
        if (f.kv == ATTN_KV_FP8_E4M3 && kit_random_in(&seed, 0, 1)) f.query = ATTN_DTYPE_FP8_E4M3;
        if (is_dense && kit_random_in(&seed, 0, 1)) f.mask = ATTN_MASK_FULL;
        if (kit_random_in(&seed, 0, 3) == 0) f.features = ATTN_F_BATCH_INVARIANT;
        if (is_dense && kit_random_in(&seed, 0, 2) == 0) f.features |= ATTN_F_DEVICE_LENGTHS;
        kit_case_t c = case_of(&f, seed);
        char why[2048] = "";
        c.flags = (uint32_t)kit_random_in(&seed, 0, 31) &
                  (KIT_STRIDED | KIT_CROSS_LAYER | KIT_NO_SCALES | KIT_NO_LSE);
        int reqs = (int)kit_random_in(&seed, 1, 5), most = 3000 / (int)f.heads;
        for (int r = 0; r < reqs; r++) {
            int32_t q =
                kit_random_in(&seed, 0, 1) ? 1 : (int32_t)kit_random_in(&seed, 0, most > 40 ? 40 : most / 4);
            kit_case_add(&c, q, q + (int32_t)kit_random_in(&seed, 0, most > 260 ? 260 : most));
        }
        if (part_takes() && !agrees(&c, why, sizeof why) && failed++ < 8) diag("case %d: %s", i, why);
    }
    ok(failed == 0, "%d random cases agree with the reference (%d failed)", n, failed);
}

/* The kernel that attends is the first of the call, and may not start before the write of the cache that is
 * ahead of it in the stream is through: each step writes other rows and reads them at once. */
static void reads_what_was_written(const attn_backend_t *backend, uint32_t role, uint32_t kv) {
    enum { HEADS = 16, ROUNDS = 40, ROWS = 8 * 64 };
    attn_problem_t p = mla_test_problem(role, HEADS, kv);
    p.features |= ATTN_F_LATENT, p.qk_nope_head_dim = p.v_head_dim = 0;
    mla_step s;
    const int status = mla_step_open(&s, backend, &p, 16);
    if (!ok(status == ATTN_OK, "%s: opens (%s)", attn_role_name(role), status ? s.error.text : "")) return;
    static const int32_t q[8] = {1, 1, 1, 1, 1, 1, 1, 1}, lens[8] = {64, 64, 64, 64, 64, 64, 64, 64};
    static int64_t slots[ROWS];
    static int32_t table[8 * 16];
    cudaMemcpy(table, s.table[0], sizeof table, cudaMemcpyDeviceToHost);
    for (int i = 0; i < ROWS; i++)
        slots[i] = (int64_t)table[i / 64 * 16] * 64 + i % 64;
    int64_t *slots_there;
    cudaMalloc((void **)&slots_there, sizeof slots);
    cudaMemcpy(slots_there, slots, sizeof slots, cudaMemcpyHostToDevice);
    void *rows[2] = {mla_step_fill(ROWS * 576 * 2, 1, 0, 11), mla_step_fill(ROWS * 576 * 2, 0, 0, 12)};
    const size_t bytes = mla_test_bytes(&s);
    char *want[2] = {malloc(bytes), malloc(bytes)}, *got = malloc(bytes);
    const DLDataType bf16 = attn_dl_dtype(ATTN_DTYPE_BFLOAT16);
    DLTensor key, value, map;
    int64_t shape[3][2] = {{ROWS, 512}, {ROWS, 64}, {ROWS}}, strides[3][2] = {{576, 1}, {576, 1}, {1}};
    const DLDevice device = {kDLCUDA, 0};
    key = (DLTensor){.device = device, .ndim = 2, .dtype = bf16, .shape = shape[0], .strides = strides[0]};
    value = key, map = key;
    value.shape = shape[1], value.strides = strides[1];
    map.data = slots_there, map.ndim = 1, map.dtype = attn_dl_dtype(ATTN_DTYPE_INT64);
    map.shape = shape[2], map.strides = strides[2];
    int same = 0;
    mla_step_build(&s, q, lens, 8, 0, 0, 0, NULL);
    cudaMemset(s.output, 0, bytes);
    for (int i = -2; i < ROUNDS; i++) {
        key.data = rows[i & 1], value.data = (char *)rows[i & 1] + 512 * 2;
        const attn_kv_update_t u = {.struct_size = sizeof u,
                                    .key = &key,
                                    .value = &value,
                                    .kv_cache = &s.t_cache,
                                    .slot_mapping = &map};
        int code = backend->ops->update_kv_cache(s.instance, &u, NULL, &s.error);
        if (i < 0) cudaDeviceSynchronize();
        if (code == ATTN_OK) code = mla_step_forward(&s, NULL);
        cudaMemcpy(i < 0 ? want[i & 1] : got, s.output, bytes, cudaMemcpyDeviceToHost);
        if (i >= 0) same += code == ATTN_OK && memcmp(got, want[i & 1], bytes) == 0;
    }
    ok(memcmp(want[0], want[1], bytes) != 0, "%s, %s: the two caches differ", attn_role_name(role),
       attn_kv_name(kv));
    is_int(same, ROUNDS, "%s, %s: forward right behind the write reads what was written",
           attn_role_name(role), attn_kv_name(kv));
    for (int i = 0; i < 2; i++)
        free(want[i]), cudaFree(rows[i]);
    free(got), cudaFree(slots_there);
    mla_step_close(&s);
}

static void graphs_and_errors(const attn_backend_t *backend, uint32_t role, uint32_t kv, uint32_t query) {
    attn_problem_t p = mla_test_problem(role, 16, kv);
    p.features |= ATTN_F_LATENT, p.qk_nope_head_dim = p.v_head_dim = 0, p.query_dtype = query;
    char name[64];
    snprintf(name, sizeof name, "%s, %s%s", attn_role_name(role), attn_kv_name(kv),
             query ? ", fp8 queries" : "");
    mla_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (mla_test_replays(&s, backend, &p, name, stream) != ATTN_OK) return;
    const attn_weights_t w = {.struct_size = sizeof w};
    ok(backend->ops->prepare_weights(s.instance, &w, stream, &s.error) == ATTN_E_UNSUPPORTED &&
           !strcmp(s.error.param, "weights"),
       "%s: weights are refused by name", name);
    s.t_query.byte_offset = query ? 8 : 2;
    ok(mla_step_forward(&s, stream) == ATTN_E_INVALID && !strcmp(s.error.param, "query"),
       "%s: so is a misaligned query", name);
    s.t_query.byte_offset = 0, s.shape[1][2] = 512 + 128;
    ok(mla_step_forward(&s, stream) == ATTN_E_INVALID && !strcmp(s.error.param, "query"),
       "%s: so is one that is not absorbed to L + R", name);
    s.shape[1][2] = 576, s.shape[2][2] = 128;
    ok(mla_step_forward(&s, stream) == ATTN_E_INVALID && !strcmp(s.error.param, "output"),
       "%s: so is an output of another size", name);
    s.shape[2][2] = 512;
    attn_forward_t f = {.struct_size = sizeof f, .output = &s.t_output};
    const size_t bytes = mla_test_bytes(&s);
    char *got = malloc(bytes), *zeros = calloc(1, bytes);
    int status = backend->ops->forward(s.instance, &f, NULL, stream, &s.error);
    cudaStreamSynchronize(stream);
    cudaMemcpy(got, s.output, bytes, cudaMemcpyDeviceToHost);
    ok(status == ATTN_OK && memcmp(got, zeros, bytes) == 0,
       "%s: the profiling run fills the output with zero", name);
    mla_step_close(&s);
    cudaStreamDestroy(stream);
    free(zeros), free(got);
}

/* The first reason by which a problem is refused. */
static void refused(const attn_problem_t *p, const char *param, const char *what) {
    const attn_backend_t *b = p->role == ATTN_ROLE_MLA ? dense : sparse;
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
    attn_reason_t first = {0};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    b->ops->supports_combination(p, &device, &reasons);
    ok(reasons.count >= 1 && !strcmp(first.param, param), "%s is refused: %s", what, first.text);
}

static void refused_problems(void) {
    attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA, 16, 0);
    p.features |= ATTN_F_LATENT;
    refused(&p, "qk_nope_head_dim", "a nope size");
    p.qk_nope_head_dim = 0;
    refused(&p, "v_head_dim", "a value size");
    p.v_head_dim = 0, p.query_dtype = ATTN_DTYPE_FP8_E4M3;
    refused(&p, "query_dtype", "an fp8 query over a 16-bit cache");
    p.query_dtype = 0, p.mask = ATTN_MASK_PER_REQUEST;
    refused(&p, "mask", "a mask per request");
    p = mla_test_problem(ATTN_ROLE_MLA_SPARSE, 16, 0);
    p.features |= ATTN_F_LATENT, p.qk_nope_head_dim = p.v_head_dim = 0, p.mask = ATTN_MASK_FULL;
    refused(&p, "mask", "every key visible beside selected tokens");
}

int main(void) {
    if (gpu_start() != 0) skip_all("no CUDA device");
    gpu.host = mla_step_host = &plan_host;
    dense = mla_test_load("mla.so");
    sparse = mla_test_load("mla_sparse.so");
    reference = mla_test_load("reference.so");
    refused_problems();
    graphs_and_errors(dense, ATTN_ROLE_MLA, 0, 0);
    graphs_and_errors(dense, ATTN_ROLE_MLA, ATTN_KV_FP8_E4M3, 0);
    graphs_and_errors(dense, ATTN_ROLE_MLA, ATTN_KV_FP8_E4M3, ATTN_DTYPE_FP8_E4M3);
    graphs_and_errors(sparse, ATTN_ROLE_MLA_SPARSE, 0, 0);
    reads_what_was_written(dense, ATTN_ROLE_MLA, 0);
    reads_what_was_written(dense, ATTN_ROLE_MLA, ATTN_KV_FP8_E4M3);
    reads_what_was_written(sparse, ATTN_ROLE_MLA_SPARSE, 0);
    random_cases(tap_seed());
    fixed_cases(); /* the longest */
    return tap_done();
}
