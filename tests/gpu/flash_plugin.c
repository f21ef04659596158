/* SPDX-License-Identifier: Apache-2.0 */
/* flash.so through the plugin ABI on a device: random cases within its capability table against the reference plugin in
 * double, forced and chosen kernels, capture and replay with another batch, new block tables, errors that name the
 * parameter. FLASH_TEST_CASES=N sets the number of random cases. */
#include "gpu_memory.h"
#include "tap.h"

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
    int n = text ? atoi(text) : 300, served = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        kit_case_t c;
        char why[2048] = "";
        int is_served = 0;
        const attn_backend_t *backend = i % 5 == 4 ? diffkv : flash;
        kit_case_random(&c, backend->capabilities, seed + (uint64_t)i, i % 10 == 0 ? 400 : 120);
        if (!run_one(backend, &c, why, sizeof why, &is_served) && failed++ < 12) diag("case %d: %s", i, why);
        served += is_served;
    }
    ok(failed == 0 && served > n / 3,
       "%d random cases agree with the reference (%d failed, %d of %d are served)", served, failed, served,
       n);
}

/* A small step of an engine, for what the kit does not do: graphs and tables. */
typedef struct step {
    attn_instance_t *instance;
    attn_space_t space;
    int32_t q_start[9], lens[8], table[8 * 64];
    int32_t *d_table[2];
    DLTensor t_table, t_cache, t_q, t_o;
    int64_t table_shape[2], table_strides[2], cache_shape[4], cache_strides[4], row_shape[3], row_strides[3];
    uint16_t *q, *o, *cache;
    attn_problem_t problem;
} step_t;

static DLTensor tensor_of(void *data, DLDataType type, int ndim, int64_t *shape, int64_t *strides) {
    DLTensor t;
    memset(&t, 0, sizeof t);
    t.data = data, t.device.device_type = kDLCUDA, t.ndim = ndim, t.dtype = type, t.shape = shape,
    t.strides = strides;
    return t;
}

static int open_step(step_t *s, const attn_option_value_t *options, uint32_t n) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
    memset(s, 0, sizeof *s);
    s->problem = (attn_problem_t){.struct_size = sizeof s->problem,
                                  .role = ATTN_ROLE_DECODER,
                                  .mask = ATTN_MASK_CAUSAL,
                                  .dtype = ATTN_DTYPE_BFLOAT16,
                                  .num_heads = 8,
                                  .num_kv_heads = 2,
                                  .head_size = 128,
                                  .block_size = 16,
                                  .scale = 0.088388,
                                  .max_num_seqs = 8,
                                  .max_num_batched_tokens = 512,
                                  .max_model_len = 1024,
                                  .num_blocks = 512,
                                  .features = ATTN_F_CAPTURE};
    if (flash->ops->open(&s->problem, &device, options, n, NULL, &s->instance, &e) != ATTN_OK) {
        diag("open: %s", e.text);
        return 0;
    }
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    flash->ops->space_needed(s->instance, &need, &e);
    flash->ops->kv_cache_shape(s->instance, 512, &shape, &e);
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata_bytes = need.metadata_bytes,
                              .workspace_bytes = need.workspace_bytes,
                              .host_bytes = need.host_bytes};
    cudaMalloc(&s->space.metadata, need.metadata_bytes);
    cudaMalloc(&s->space.workspace, need.workspace_bytes);
    cudaMallocHost(&s->space.host, need.host_bytes);
    for (int i = 0; i < 2; i++)
        cudaMalloc((void **)&s->d_table[i], sizeof s->table);
    cudaMalloc((void **)&s->cache, (size_t)shape.total_bytes);
    cudaMalloc((void **)&s->q, 512 * 8 * 128 * 2);
    cudaMalloc((void **)&s->o, 512 * 8 * 128 * 2);
    size_t values = (size_t)shape.total_bytes / 2, rows = 512 * 8 * 128;
    uint16_t *h = malloc(shape.total_bytes);
    uint64_t state = 5;
    for (size_t i = 0; i < values; i++)
        h[i] = (uint16_t)(0x3f00 + kit_random_in(&state, 0, 0x7f) + (kit_random_in(&state, 0, 1) << 15));
    cudaMemcpy(s->cache, h, (size_t)shape.total_bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(s->q, h, rows * 2, cudaMemcpyHostToDevice);
    free(h);
    for (int i = 0; i < 4; i++)
        s->cache_shape[i] = shape.shape[i], s->cache_strides[i] = shape.byte_strides[i] / 2;
    s->t_cache = tensor_of(s->cache, shape.dtype, 4, s->cache_shape, s->cache_strides);
    s->row_shape[0] = 512, s->row_shape[1] = 8, s->row_shape[2] = 128;
    s->row_strides[0] = 1024, s->row_strides[1] = 128, s->row_strides[2] = 1;
    s->t_q = tensor_of(s->q, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, s->row_shape, s->row_strides);
    s->t_o = tensor_of(s->o, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, s->row_shape, s->row_strides);
    s->table_shape[0] = 8, s->table_shape[1] = 64, s->table_strides[0] = 64, s->table_strides[1] = 1;
    return 1;
}

static void close_step(step_t *s) {
    flash->ops->close(s->instance);
    cudaFree(s->space.metadata), cudaFree(s->space.workspace), cudaFreeHost(s->space.host);
    cudaFree(s->d_table[0]), cudaFree(s->d_table[1]), cudaFree(s->cache), cudaFree(s->q), cudaFree(s->o);
}

/* Lengths and pages from `variant`; table number `which`. */
static int build(step_t *s, const int *q_lens, int variant, int which, uint32_t flags, cudaStream_t stream,
                 int update_only) {
    attn_error_t e = {.struct_size = sizeof e};
    for (int r = 0; r < 8; r++) {
        s->q_start[r + 1] = s->q_start[r] + q_lens[r];
        s->lens[r] = q_lens[r] + 17 + 113 * ((r + variant) % 8);
        for (int i = 0; i < 64; i++)
            s->table[r * 64 + i] = (r * 64 + i * 5 + variant * 31 + which * 7) % 512;
    }
    cudaMemcpy(s->d_table[which], s->table, sizeof s->table, cudaMemcpyHostToDevice);
    s->t_table =
        tensor_of(s->d_table[which], attn_dl_dtype(ATTN_DTYPE_INT32), 2, s->table_shape, s->table_strides);
    attn_batch_t b = {.struct_size = sizeof b,
                      .flags = flags,
                      .num_reqs = 8,
                      .num_actual_tokens = s->q_start[8],
                      .query_start_loc_host = s->q_start,
                      .seq_lens_host = s->lens,
                      .block_table = &s->t_table};
    int rc = update_only ? flash->ops->update_block_table(s->instance, &b, &s->space, stream, &e)
                         : flash->ops->build_metadata(s->instance, &b, &s->space, stream, &e);
    if (rc) diag("build: %s", e.text);
    return rc;
}

static int forward(step_t *s, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_forward_t f = {
        .struct_size = sizeof f, .query = &s->t_q, .kv_cache = &s->t_cache, .output = &s->t_o};
    int rc = flash->ops->forward(s->instance, &f, &s->space, stream, &e);
    if (rc) diag("forward: %s", e.text);
    return rc;
}

static const size_t out_bytes = 512 * 8 * 128 * 2;
static void eager(step_t *s, const int *q, int variant, int which, uint32_t flags, cudaStream_t stream,
                  void *out) {
    cudaMemset(s->o, 0xee, out_bytes);
    build(s, q, variant, which, flags, stream, 0);
    forward(s, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, s->o, out_bytes, cudaMemcpyDeviceToHost);
}

static void capture_and_replay(void) {
    step_t s;
    cudaStream_t stream;
    static const int decode[8] = {1, 1, 1, 1, 1, 1, 1, 1}, mixed[8] = {1, 90, 1, 2, 40, 0, 1, 64},
                     other[8] = {2, 64, 1, 1, 1, 8, 0, 120};
    char *want = malloc(out_bytes), *got = malloc(out_bytes);
    cudaStreamCreate(&stream);
    if (!open_step(&s, NULL, 0)) {
        ok(0, "an instance opens");
        return;
    }
    for (int kind = 0; kind < 2; kind++) {
        const int *first = kind ? mixed : decode, *second = kind ? other : decode;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        build(&s, first, 0, 0, ATTN_BATCH_CAPTURE, stream, 0);
        cudaStreamSynchronize(stream);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        int rc = forward(&s, stream);
        cudaError_t e = cudaStreamEndCapture(stream, &graph);
        if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
        ok(rc == ATTN_OK && e == cudaSuccess, "%s batch: forward is captured (%s)", kind ? "mixed" : "decode",
           cudaGetErrorString(e));
        if (e != cudaSuccess) continue;
        int same = 0;
        for (int variant = 1; variant <= 4; variant++) {
            eager(&s, second, variant, variant & 1, ATTN_BATCH_CAPTURE, stream, want);
            cudaMemset(s.o, 0xee, out_bytes);
            build(&s, second, variant, variant & 1, ATTN_BATCH_CAPTURE, stream, 0);
            cudaGraphLaunch(exec, stream);
            cudaStreamSynchronize(stream);
            cudaMemcpy(got, s.o, out_bytes, cudaMemcpyDeviceToHost);
            same += memcmp(got, want, out_bytes) == 0;
        }
        ok(same == 4, "%s: replays with new lengths, pages and another table equal eager runs (%d of 4)",
           kind ? "mixed" : "decode", same);
        build(&s, second, 6, 0, ATTN_BATCH_CAPTURE, stream, 0);
        build(&s, second, 6, 1, 0, stream, 1);
        cudaMemset(s.o, 0xee, out_bytes);
        cudaGraphLaunch(exec, stream);
        cudaStreamSynchronize(stream);
        cudaMemcpy(got, s.o, out_bytes, cudaMemcpyDeviceToHost);
        eager(&s, second, 6, 1, ATTN_BATCH_CAPTURE, stream, want);
        ok(memcmp(got, want, out_bytes) == 0, "%s: update_block_table reaches the captured graph",
           kind ? "mixed" : "decode");
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
    eager(&s, mixed, 3, 0, 0, stream, want);
    eager(&s, mixed, 3, 0, 0, stream, got);
    ok(memcmp(got, want, out_bytes) == 0, "the same call gives the same bits");

    build(&s, decode, 0, 0, 0, stream, 0);
    cudaStreamSynchronize(stream);
    struct timespec t0, t1;
    for (int round = 0; round < 2; round++) {
        clock_gettime(CLOCK_MONOTONIC, &t0);
        for (int i = 0; i < 500; i++)
            forward(&s, stream);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        cudaStreamSynchronize(stream);
    }
    diag("host time of one forward (decode, enqueue only): %.2f us",
         ((double)(t1.tv_sec - t0.tv_sec) * 1e9 + (double)(t1.tv_nsec - t0.tv_nsec)) / 500e3);

    attn_option_value_t options[2] = {
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_ENUM, .name = "arch", .i = 1, .s = "sm80"},
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_INT, .name = "num_splits", .i = 3, .s = "3"}};
    step_t t;
    if (open_step(&t, options, 2)) {
        eager(&t, mixed, 3, 0, 0, stream, got);
        double num = 0, den = 0;
        for (size_t i = 0; i < 199 * 1024; i++) {
            uint32_t x = (uint32_t)((uint16_t *)(void *)got)[i] << 16,
                     y = (uint32_t)((uint16_t *)(void *)want)[i] << 16;
            float a, b;
            memcpy(&a, &x, 4), memcpy(&b, &y, 4);
            num += (double)(a - b) * (a - b), den += (double)b * b;
        }
        ok(num < 3e-5 * den, "arch = sm80 with 3 splits computes the same (relative difference %.1e)",
           sqrt(num / den));
        close_step(&t);
    } else
        ok(0, "an instance opens with options");

    /* a batch that breaks its limits, and calls in the wrong order */
    attn_error_t e = {.struct_size = sizeof e};
    int32_t start[2] = {0, 1}, lens[1] = {2000};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = start,
                      .seq_lens_host = lens,
                      .block_table = &s.t_table};
    ok(flash->ops->build_metadata(s.instance, &b, &s.space, stream, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "seq_lens"),
       "a length beyond max_model_len is refused by name");
    lens[0] = 100;
    b.block_table = NULL;
    ok(flash->ops->build_metadata(s.instance, &b, &s.space, stream, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "block_table"),
       "a missing block table is refused by name");
    ok(forward(&s, stream) == ATTN_E_STATE, "forward after a failed build is refused");
    s.t_q.byte_offset = 2;
    build(&s, decode, 0, 0, 0, stream, 0);
    ok(forward(&s, stream) == ATTN_E_INVALID, "a misaligned query is refused");
    s.t_q.byte_offset = 0;
    attn_forward_t f = {.struct_size = sizeof f, .query = &s.t_q, .output = &s.t_o};
    int rc = flash->ops->forward(s.instance, &f, NULL, stream, &e);
    cudaStreamSynchronize(stream);
    cudaMemcpy(got, s.o, out_bytes, cudaMemcpyDeviceToHost);
    memset(want, 0, out_bytes);
    ok(rc == ATTN_OK && memcmp(got, want, out_bytes) == 0, "the profiling run fills the output with zero");
    close_step(&s);
    cudaStreamDestroy(stream);
    free(want), free(got);
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
    capture_and_replay();
    random_cases(seed);
    return tap_done();
}
