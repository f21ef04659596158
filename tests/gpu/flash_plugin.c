/* SPDX-License-Identifier: Apache-2.0 */
/* flash.so through the plugin ABI on a device: random cases within its capability table against the reference
 * plugin in double, forced and chosen kernels, capture and replay with another batch, new block tables,
 * errors that name the parameter. FLASH_TEST_CASES=N sets the number of random cases;
 * FLASH_TEST_GRAPHS=1: captures and replays alone; FLASH_TEST_CUTS=1: prompts in pieces alone;
 * ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "dense_step.h"
#include "kit/case/case_families.h"
#include "part.h"

#include <attn/attn_plugin_util.h>
#include <time.h>
#include <unistd.h>

static const attn_backend_t *flash, *diffkv, *reference;

/* One case on both; returns 1 if it passed or is not served. */
static int run_one(const attn_backend_t *backend, const kit_case_t *c, char *why, size_t size, int *served) {
    kit_difference_t d;
    *served = kit_is_served(backend, c, &gpu, why, size);
    return !*served || kit_agrees(backend, reference, c, NULL, &gpu, &d, why, size);
}

static void random_cases(uint64_t seed) {
    const char *text = getenv("FLASH_TEST_CASES");
    int n = text ? atoi(text) : 300, taken = 0, served = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        kit_case_t c;
        char why[2048] = "";
        int is_served = 0;
        if (!part_takes()) continue;
        taken++;
        const attn_backend_t *backend = i % 5 == 4 ? diffkv : flash;
        kit_case_random(&c, backend->capabilities, seed + (uint64_t)i, i % 10 == 0 ? 400 : 120);
        if (!run_one(backend, &c, why, sizeof why, &is_served) && failed++ < 12) diag("case %d: %s", i, why);
        served += is_served;
    }
    ok(failed == 0 && served > taken / 3,
       "%d random cases agree with the reference (%d failed, %d of %d are served)", served, failed, served,
       taken);
}

static void set_sizes(attn_problem_t *p, int is_half, uint32_t heads, uint32_t kv_heads, uint32_t head_size) {
    p->dtype = is_half ? ATTN_DTYPE_FLOAT16 : ATTN_DTYPE_BFLOAT16;
    p->num_heads = heads, p->num_kv_heads = kv_heads, p->head_size = head_size;
    p->scale = 1 / sqrt(head_size);
}

/* Steps of a few tokens a request, of so many requests that they are tiles of several heads: flash_plan_test
 * has 48 requests of 232 keys too. Lengths differ here, a request has no tokens, and inputs are in turn of
 * the families that the tolerances of the kit hold for. */
static void packed_steps(uint64_t seed) {
    static const struct {
        uint32_t heads, kv_heads, head_size, cache, window;
        int tokens;
        uint64_t features;
    } shapes[] = {{32, 8, 128, ATTN_KV_AUTO, 0, 16, 0},
                  {64, 8, 128, ATTN_KV_AUTO, 0, 8, ATTN_F_SINK},
                  {40, 8, 128, ATTN_KV_AUTO, 0, 8, ATTN_F_DEVICE_LENGTHS},
                  {32, 4, 128, ATTN_KV_AUTO, 0, 24, 0},
                  {32, 8, 128, ATTN_KV_FP8_E4M3, 0, 16, 0},
                  {64, 8, 64, ATTN_KV_AUTO, 128, 8, ATTN_F_SINK},
                  {16, 8, 256, ATTN_KV_AUTO, 0, 16, ATTN_F_ALIBI}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], REQS = 48 };
    for (int i = 0; i < 2 * SHAPES; i++) {
        const int at = i % SHAPES;
        char why[2048] = "", text[256];
        int served = 0;
        kit_case_t c;
        kit_case_start(&c, ATTN_ROLE_DECODER, seed + (uint64_t)i);
        attn_problem_t *p = &c.problem;
        set_sizes(p, i % 4 == 3, shapes[at].heads, shapes[at].kv_heads, shapes[at].head_size);
        p->kv_cache_dtype = shapes[at].cache, p->sliding_window = shapes[at].window;
        p->features |= shapes[at].features;
        c.family = (uint32_t)(i * 3 % KIT_CHANNEL);
        for (int r = 0; r < REQS; r++)
            kit_case_add(&c, r == 7 ? 0 : shapes[at].tokens - r % 5, 232 - r * 13 % 90);
        if (!part_takes()) continue;
        const int passed = run_one(flash, &c, why, sizeof why, &served);
        ok(passed && served, "%d requests of at most %d tokens: %s", REQS, shapes[at].tokens,
           passed && served ? kit_case_text(&c, text, sizeof text) : why);
    }
}

/* Short prompts behind long contexts, whose tiles are cut into pieces, beside requests that decode and a
 * prompt without a context: flash_tiles_test has these lengths too. FLASH_TEST_CUTS=1: these alone. */
static void cut_prompts(uint64_t seed) {
    static const struct {
        uint32_t heads, kv_heads, head_size, cache, query;
        uint64_t features;
    } shapes[] = {{8, 2, 128, ATTN_KV_AUTO, 0, ATTN_F_LSE},
                  {8, 2, 128, ATTN_KV_FP8_E4M3, 0, ATTN_F_SINK | ATTN_F_LSE},
                  {8, 2, 128, ATTN_KV_FP8_E4M3, ATTN_DTYPE_FP8_E4M3, ATTN_F_LSE},
                  {8, 1, 64, ATTN_KV_AUTO, 0, ATTN_F_SINK},
                  {4, 2, 256, ATTN_KV_AUTO, 0, ATTN_F_SOFT_CAP | ATTN_F_LSE},
                  {3, 3, 96, ATTN_KV_AUTO, 0, ATTN_F_LSE},
                  {5, 1, 104, ATTN_KV_AUTO, 0, ATTN_F_SINK | ATTN_F_LSE},
                  {8, 2, 128, ATTN_KV_AUTO, 0, ATTN_F_OUT_FP8_STATIC}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], KINDS = 4 };
    static const int32_t lens[KINDS][4][2] = {{{1, 700}, {100, 3000}, {5, 90}, {40, 40}},
                                              {{24, 2100}, {1, 4000}, {17, 900}, {0, 0}},
                                              {{16, 5000}, {0, 0}, {0, 0}, {0, 0}},
                                              {{130, 1900}, {65, 2600}, {0, 0}, {1, 1}}};
    for (int i = 0; i < KINDS * SHAPES; i++) {
        const int at = i % SHAPES, kind = i / SHAPES;
        char why[2048] = "", text[256];
        int served = 0;
        kit_case_t c;
        if (!part_takes()) continue;
        kit_case_start(&c, ATTN_ROLE_DECODER, seed + (uint64_t)i);
        attn_problem_t *p = &c.problem;
        set_sizes(p, i % 3 == 2, shapes[at].heads, shapes[at].kv_heads, shapes[at].head_size);
        p->kv_cache_dtype = shapes[at].cache, p->query_dtype = shapes[at].query;
        p->features |= shapes[at].features;
        if (shapes[at].features & ATTN_F_SOFT_CAP) p->logits_soft_cap = 30;
        if (shapes[at].features & ATTN_F_OUT_FP8_STATIC) p->out_dtype = ATTN_DTYPE_FP8_E4M3;
        if (kind == 1 && at % 2) p->mask = ATTN_MASK_FULL;
        c.family = (uint32_t)(i * 3 % KIT_CHANNEL);
        for (int r = 0; r < 4; r++)
            if (lens[kind][r][0] > 0) kit_case_add(&c, lens[kind][r][0], lens[kind][r][1]);
        const int passed = run_one(flash, &c, why, sizeof why, &served);
        ok(passed && served, "prompts in pieces: %s",
           passed && served ? kit_case_text(&c, text, sizeof text) : why);
    }
}

/* Host time of forward, and the portable kernels over the same batch. */
static void options_and_time(dense_step *s, cudaStream_t stream) {
    uint16_t *want = malloc(dense_step_bytes), *got = malloc(dense_step_bytes);
    dense_step_build(s, dense_step_decode, 8, 0, 0, 0, 0, stream);
    cudaStreamSynchronize(stream);
    struct timespec t0, t1;
    const int times = part_is_short() ? 5 : 500;
    for (int round = 0; round < 2; round++) {
        clock_gettime(CLOCK_MONOTONIC, &t0);
        for (int i = 0; i < times; i++)
            dense_step_forward(s, stream);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        cudaStreamSynchronize(stream);
    }
    diag("host time of one forward (decode, enqueue only): %.2f us",
         ((double)(t1.tv_sec - t0.tv_sec) * 1e9 + (double)(t1.tv_nsec - t0.tv_nsec)) / (1e3 * times));

    attn_option_value_t options[2] = {
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_ENUM, .name = "arch", .i = 1, .s = "sm80"},
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_INT, .name = "num_splits", .i = 3, .s = "3"}};
    dense_step t;
    dense_step_output(s, dense_step_mixed, 8, 3, 0, 0, NULL, stream, want);
    if (dense_step_open(&t, flash, 0, options, 2)) {
        dense_step_output(&t, dense_step_mixed, 8, 3, 0, 0, NULL, stream, got);
        double num = 0, den = 0;
        for (size_t i = 0; i < 199 * (size_t)DENSE_STEP_ROW; i++) {
            uint32_t x = (uint32_t)got[i] << 16, y = (uint32_t)want[i] << 16;
            float a, b;
            memcpy(&a, &x, 4), memcpy(&b, &y, 4);
            num += (double)(a - b) * (a - b), den += (double)b * b;
        }
        ok(num < 3e-5 * den, "arch = sm80 with 3 splits computes the same (relative difference %.1e)",
           sqrt(num / den));
        dense_step_wild_pages(&t, "arch = sm80", stream);
        dense_step_close(&t);
    } else
        ok(0, "an instance opens with options");
    free(want), free(got);
}

/* Decodes and prompts of a step that are worth running beside each other (flash_beside.c): 8 of each, of 4096
 * keys and of 512 tokens. The soft cap makes prompts slower than the plan holds, so that they end last. */
enum {
    BESIDE = 8,
    BESIDE_KEYS = 4096,
    BESIDE_TOKENS = 512,
    BESIDE_ROW = 32 * 128,
    BESIDE_BLOCK = 16 * 8 * 256
};
enum {
    BESIDE_ROWS = BESIDE + BESIDE * BESIDE_TOKENS,
    BESIDE_BLOCKS = BESIDE * (BESIDE_KEYS + BESIDE_TOKENS) / 16
};

typedef struct beside_step {
    attn_instance_t *instance;
    attn_space_t space;
    int32_t *d_table;
    uint16_t *q, *cache, *o[2]; /* together; one after the other */
} beside_step;

/* Requests [first, first + n) as a batch of their own, rows of which lie where they lie in the whole step. */
static int beside_forward(beside_step *s, int first, int n, uint16_t *out, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    int32_t q_start[2 * BESIDE + 1] = {0}, lens[2 * BESIDE];
    for (int r = 0; r < n; r++) {
        q_start[r + 1] = q_start[r] + (first + r < BESIDE ? 1 : BESIDE_TOKENS);
        lens[r] = first + r < BESIDE ? BESIDE_KEYS : BESIDE_TOKENS;
    }
    const size_t row = first < BESIDE ? (size_t)first : BESIDE + (size_t)(first - BESIDE) * BESIDE_TOKENS;
    int64_t table_shape[2] = {n, BESIDE_KEYS / 16}, table_strides[2] = {BESIDE_KEYS / 16, 1},
            rows[3] = {q_start[n], 32, 128}, row_strides[3] = {BESIDE_ROW, 128, 1}, cache_shape[4],
            cache_strides[4];
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    flash->ops->kv_cache_shape(s->instance, BESIDE_BLOCKS, &shape, &e);
    for (int i = 0; i < 4; i++)
        cache_shape[i] = shape.shape[i], cache_strides[i] = shape.byte_strides[i] / 2;
    DLTensor table = dense_step_tensor(s->d_table + first * (BESIDE_KEYS / 16),
                                       attn_dl_dtype(ATTN_DTYPE_INT32), 2, table_shape, table_strides),
             q = dense_step_tensor(s->q + row * BESIDE_ROW, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, rows,
                                   row_strides),
             o = dense_step_tensor(out + row * BESIDE_ROW, q.dtype, 3, rows, row_strides),
             cache = dense_step_tensor(s->cache, shape.dtype, 4, cache_shape, cache_strides);
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = n,
                      .num_actual_tokens = q_start[n],
                      .query_start_loc_host = q_start,
                      .seq_lens_host = lens,
                      .block_table = &table};
    attn_forward_t f = {.struct_size = sizeof f, .query = &q, .kv_cache = &cache, .output = &o};
    int rc = flash->ops->build_metadata(s->instance, &b, &s->space, stream, &e);
    if (!rc) rc = flash->ops->forward(s->instance, &f, &s->space, stream, &e);
    if (rc) diag("requests %d to %d: %s", first, first + n - 1, e.text);
    return rc;
}

static double beside_difference(const uint16_t *a, const uint16_t *b, size_t n) {
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t x = (uint32_t)a[i] << 16, y = (uint32_t)b[i] << 16;
        float u, v;
        memcpy(&u, &x, 4), memcpy(&v, &y, 4);
        num += (double)(u - v) * (u - v), den += (double)v * v;
    }
    return num == num && den > 0 ? sqrt(num / den) : INFINITY;
}

/* What follows such a step in its stream finds all of it, and what each half alone makes. The copy does not
 * show that decode waits for prefill: a plugin whose decode did not passed it too, on an H200. */
static void beside(cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
    attn_problem_t p = dense_step_problem;
    p.num_heads = 32, p.num_kv_heads = 8, p.logits_soft_cap = 30;
    p.max_num_seqs = 2 * BESIDE, p.max_num_batched_tokens = BESIDE_ROWS, p.max_model_len = BESIDE_KEYS;
    p.num_blocks = BESIDE_BLOCKS, p.features = ATTN_F_SOFT_CAP;
    beside_step s = {.instance = NULL};
    if (flash->ops->open(&p, &device, NULL, 0, NULL, &s.instance, &e) != ATTN_OK) {
        ok(0, "an instance opens: %s", e.text);
        return;
    }
    attn_space_needed_t need = {.struct_size = sizeof need};
    flash->ops->space_needed(s.instance, &need, &e);
    s.space = (attn_space_t){.struct_size = sizeof s.space,
                             .metadata_bytes = need.metadata_bytes,
                             .workspace_bytes = need.workspace_bytes,
                             .host_bytes = need.host_bytes};
    const size_t out = (size_t)BESIDE_ROWS * BESIDE_ROW, block = BESIDE_BLOCK;
    static int32_t table[2 * BESIDE][BESIDE_KEYS / 16];
    for (int r = 0, next = 0; r < 2 * BESIDE; r++)
        for (int i = 0; i < (r < BESIDE ? BESIDE_KEYS : BESIDE_TOKENS) / 16; i++)
            table[r][i] = (next++ * 5) % BESIDE_BLOCKS;
    uint16_t *h = malloc(out * 2), *want = malloc(out * 2), *got = malloc(out * 2);
    uint64_t state = 7;
    for (size_t i = 0; i < out; i++)
        h[i] = (uint16_t)(0x3f00 + kit_random_in(&state, 0, 0x7f) + (kit_random_in(&state, 0, 1) << 15));
    cudaMalloc(&s.space.metadata, need.metadata_bytes), cudaMalloc(&s.space.workspace, need.workspace_bytes);
    cudaMallocHost(&s.space.host, need.host_bytes);
    cudaMalloc((void **)&s.d_table, sizeof table);
    cudaMalloc((void **)&s.q, out * 2), cudaMalloc((void **)&s.cache, BESIDE_BLOCKS * block * 2);
    for (int i = 0; i < 2; i++)
        cudaMalloc((void **)&s.o[i], out * 2);
    cudaMemcpy(s.d_table, table, sizeof table, cudaMemcpyHostToDevice);
    cudaMemcpy(s.q, h, out * 2, cudaMemcpyHostToDevice);
    for (size_t i = 0; i < BESIDE_BLOCKS; i++) /* each begins elsewhere in h */
        cudaMemcpy(s.cache + i * block, h + i * 7 * 128 % (out - block), block * 2, cudaMemcpyHostToDevice);
    int early = 0, rc = 0;
    void *copy;
    cudaMalloc(&copy, out * 2);
    for (int i = 0; i < 3 && !rc; i++) {
        cudaMemsetAsync(s.o[0], 0xee, out * 2, stream);
        rc = beside_forward(&s, 0, 2 * BESIDE, s.o[0], stream);
        cudaMemcpyAsync(copy, s.o[0], out * 2, cudaMemcpyDeviceToDevice, stream);
        cudaStreamSynchronize(stream);
        cudaMemcpy(want, copy, out * 2, cudaMemcpyDeviceToHost);
        cudaMemcpy(got, s.o[0], out * 2, cudaMemcpyDeviceToHost);
        early += memcmp(want, got, out * 2) != 0;
    }
    ok(rc == 0 && early == 0,
       "a copy behind a step of prompts and decodes has all of its rows (%d of 3 do not)", early);
    if (!rc) rc = beside_forward(&s, 0, BESIDE, s.o[1], stream);
    cudaStreamSynchronize(stream); /* before the metadata of the others */
    if (!rc) rc = beside_forward(&s, BESIDE, BESIDE, s.o[1], stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(want, s.o[1], out * 2, cudaMemcpyDeviceToHost);
    const double decodes = beside_difference(got, want, BESIDE * (size_t)BESIDE_ROW),
                 prompts =
                     beside_difference(got + BESIDE * (size_t)BESIDE_ROW, want + BESIDE * (size_t)BESIDE_ROW,
                                       out - BESIDE * (size_t)BESIDE_ROW);
    ok(rc == 0 && decodes < 3e-3 && prompts < 3e-3,
       "both halves are what each alone makes (differences %.1e, %.1e)", decodes, prompts);
    flash->ops->close(s.instance);
    cudaFree(s.space.metadata), cudaFree(s.space.workspace), cudaFreeHost(s.space.host), cudaFree(copy);
    cudaFree(s.d_table), cudaFree(s.q), cudaFree(s.cache), cudaFree(s.o[0]), cudaFree(s.o[1]);
    free(h), free(want), free(got);
}

static void steps(void) {
    dense_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (dense_step_open(&s, flash, 0, NULL, 0)) {
        dense_step_replays(&s, ATTN_BATCH_CAPTURE, stream);
        if (getenv("FLASH_TEST_GRAPHS") != NULL) return;
        dense_step_wild_pages(&s, "arch = auto", stream);
        options_and_time(&s, stream);
        dense_step_refusals(&s, stream);
        attn_error_t e = {.struct_size = sizeof e};
        attn_forward_t f = {.struct_size = sizeof f, .output = &s.t_o};
        s.t_o.byte_offset = 2; /* zero is stored 16 bytes at a time */
        ok(flash->ops->forward(s.instance, &f, NULL, stream, &e) == ATTN_E_INVALID &&
               !strcmp(e.param, "output"),
           "a misaligned output of the profiling run is refused");
        dense_step_close(&s);
    } else
        ok(0, "an instance opens");
    beside(stream);
    cudaStreamDestroy(stream);
}

int main(void) {
    char why[256] = "";
    if (gpu_start() != 0) skip_all("no CUDA device");
    const char *dir = getenv("FLASH_TEST_PLUGINS");
    char path[1024], cwd[900];
    if (dir == NULL && getcwd(cwd, sizeof cwd) != NULL) {
        snprintf(path, sizeof path, "%s/plugins-built", cwd);
        dir = path;
    }
    char file[1200];
    snprintf(file, sizeof file, "%s/flash.so", dir);
    flash = kit_load(file, "FLASH_ATTN", why, sizeof why);
    diffkv = kit_load(file, "FLASH_ATTN_DIFFKV", why, sizeof why);
    snprintf(file, sizeof file, "%s/reference.so", dir);
    reference = kit_load(file, NULL, why, sizeof why);
    if (flash == NULL || diffkv == NULL || reference == NULL) bail_out("%s: %s", file, why);
    uint64_t seed = tap_seed();
    if (getenv("FLASH_TEST_CUTS") == NULL) steps();
    if (getenv("FLASH_TEST_GRAPHS") == NULL) cut_prompts(seed);
    if (getenv("FLASH_TEST_CUTS") != NULL) return tap_done();
    if (getenv("FLASH_TEST_GRAPHS") != NULL) return tap_done();
    packed_steps(seed);
    random_cases(seed);
    return tap_done();
}
