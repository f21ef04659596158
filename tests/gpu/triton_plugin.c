/* SPDX-License-Identifier: Apache-2.0 */
/* triton_like.so through the plugin ABI on a device: a grid and random cases within its capability table against the
 * reference plugin in double; capture and replay, bitwise repeatability, batch invariance, errors, the folder of compiled
 * kernels. Cases run in several processes, because most of a case's time is compilation and the oracle.
 * TRITON_TEST_GRID=N: N cases of the grid only (for compute-sanitizer); TRITON_TEST_CASES=N: random cases;
 * TRITON_TEST_JOBS=N: processes; TRITON_TEST_CACHE=DIR: keep the kernels there. */
#include "gpu_memory.h"
#include "tap.h"

#include <attn/attn_plugin_util.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const attn_backend_t *triton, *reference;
static attn_backend_t wrapped;
static attn_backend_ops_t wrapped_ops;
static char cache_dir[512];
static attn_option_value_t options[3];

static void set_options(const char *dir, int segments) {
    static const char *const names[3] = {"cache_dir", "nvrtc", "segments"};
    for (int i = 0; i < 3; i++)
        options[i] = (attn_option_value_t){.struct_size = sizeof options[i],
                                           .type = i < 2 ? ATTN_OPTION_STRING : ATTN_OPTION_INT,
                                           .name = names[i],
                                           .s = ""};
    options[0].s = dir;
    options[2].i = segments;
}

/* The kit opens without options; this gives it ours. */
static int open_with_options(const attn_problem_t *problem, const attn_device_t *device,
                             const attn_option_value_t *none, uint32_t zero, const attn_host_t *host,
                             attn_instance_t **instance, attn_error_t *error) {
    (void)none, (void)zero;
    return triton->ops->open(problem, device, options, 3, host, instance, error);
}

/* One case on both; 1: passed, 0: failed, -1: not served. */
static int run_one(const kit_case_t *c, char *why, size_t size) {
    kit_difference_t d;
    if (!kit_is_served(triton, c, &gpu, why, size)) return -1;
    return kit_agrees(&wrapped, reference, c, NULL, &gpu, &d, why, size);
}

/* Random cases take any head size; most here are moved to the sizes of real models, and some to the ends of the range. */
static void make_random(kit_case_t *c, uint64_t seed, int i) {
    static const uint32_t sizes[] = {128, 64, 128, 80, 96, 256, 72, 192, 32, 320, 128, 100};
    uint64_t state = seed + 77;
    kit_case_random(c, triton->capabilities, seed, i % 5 == 0 ? 1500 : 300);
    c->problem.max_num_batched_tokens = 16384; /* encoders may have six long requests */
    if (kit_random_in(&state, 0, 3) == 0) return;
    c->problem.head_size = sizes[kit_random_in(&state, 0, 11)];
    if (c->problem.head_size_v != 0) c->problem.head_size_v = sizes[kit_random_in(&state, 0, 11)];
    c->problem.scale = 1.0 / sqrt((double)c->problem.head_size);
    if (kit_random_in(&state, 0, 7) == 0) {
        c->problem.features |= kit_random_in(&state, 0, 1) && c->problem.num_heads % 2 == 0
                                   ? ATTN_F_OUT_FP8_GROUP
                                   : ATTN_F_OUT_FP8_STATIC;
        c->problem.out_dtype = ATTN_DTYPE_FP8_E4M3;
    }
}

/* Every feature alone on plain shapes, with lengths around tile, page and segment borders. */
enum { GRID_KINDS = 20, GRID_SHAPES = 8 };
static void make_grid(kit_case_t *c, int i) {
    static const struct {
        uint32_t dtype, kv, d, dv, heads, kv_heads, page;
    } shapes[GRID_SHAPES] = {{ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 128, 0, 8, 2, 16},
                             {ATTN_DTYPE_FLOAT16, ATTN_KV_AUTO, 64, 0, 4, 4, 32},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_FP8_E4M3, 128, 0, 16, 1, 16},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_INT8_PER_TOKEN_HEAD, 128, 0, 8, 2, 16},
                             {ATTN_DTYPE_FLOAT16, ATTN_KV_FP8_PER_TOKEN_HEAD, 80, 0, 6, 2, 48},
                             {ATTN_DTYPE_FLOAT32, ATTN_KV_AUTO, 64, 0, 8, 2, 16},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 256, 0, 4, 1, 64},
                             {ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 192, 128, 4, 2, 16}};
    int kind = i % GRID_KINDS, s = i / GRID_KINDS;
    int is_direct = kind >= 17;
    kit_case_start(c,
                   kind == 17   ? ATTN_ROLE_ENCODER_ONLY
                   : kind == 18 ? ATTN_ROLE_MM_ENCODER
                   : kind == 19 ? ATTN_ROLE_ENCODER
                   : kind == 16 ? ATTN_ROLE_ENCODER_DECODER
                                : ATTN_ROLE_DECODER,
                   4000 + (uint64_t)i);
    attn_problem_t *p = &c->problem;
    p->dtype = shapes[s].dtype, p->head_size = shapes[s].d, p->head_size_v = shapes[s].dv,
    p->num_heads = shapes[s].heads;
    p->num_kv_heads = shapes[s].kv_heads, p->scale = 1.0 / sqrt((double)p->head_size),
    p->features = ATTN_F_LSE;
    if (!is_direct) p->kv_cache_dtype = shapes[s].kv, p->block_size = shapes[s].page;
    switch (kind) {
    case 1:
        p->sliding_window = 70;
        break;
    case 2:
        p->chunk_size = 2 * p->block_size, p->features |= ATTN_F_CHUNKED_LOCAL;
        break;
    case 3:
        p->sliding_window = 120, p->chunk_lookback = 2, p->features |= ATTN_F_CHUNK_LOOKBACK;
        break;
    case 4:
        p->rswa_window = 50;
        break;
    case 5:
        p->features |= ATTN_F_MM_PREFIX, c->num_spans = 2;
        break;
    case 6:
        p->features |= ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP, p->sliding_window = 40, c->num_spans = 2;
        break;
    case 7:
        p->features |= ATTN_F_ALIBI;
        break;
    case 8:
        p->features |= ATTN_F_ALIBI_SQRT;
        break;
    case 9:
        p->logits_soft_cap = 30.0;
        break;
    case 10:
        p->features |= ATTN_F_SINK;
        break;
    case 11:
        p->features |= ATTN_F_QQ_BIAS;
        break;
    case 12:
        p->mask = ATTN_MASK_FULL;
        break;
    case 13:
        p->mask = ATTN_MASK_PER_REQUEST, p->sliding_window = 90;
        break;
    case 14:
        p->features |= s % 2 ? ATTN_F_OUT_FP8_GROUP : ATTN_F_OUT_FP8_STATIC,
            p->out_dtype = ATTN_DTYPE_FP8_E4M3;
        break;
    case 15:
        p->features |= ATTN_F_SEPARATE_KV | ATTN_F_SINK, p->kv_layout = ATTN_LAYOUT_HND;
        break;
    case 17:
        p->sliding_window = 33;
        break;
    default:
        break;
    }
    static const int32_t decoder[][2] = {{1, 1},  {1, 1300},  {1, 17},  {2, 129},
                                         {5, 64}, {130, 700}, {33, 33}, {1, 640}};
    static const int32_t direct[][2] = {{1, 1}, {64, 64}, {129, 129}, {300, 300}};
    int n = is_direct ? 4 : 8;
    for (int j = 0; j < n; j++) {
        int r = is_direct ? kit_case_add(c, direct[j][0], direct[j][1])
                          : kit_case_add(c, decoder[j][0], decoder[j][1]);
        c->causal[r] = (uint8_t)(j & 1);
        c->rswa_prefix_lens[r] = c->seq_lens[r] / 4;
        c->spans[r][0][0] = c->seq_lens[r] / 3, c->spans[r][0][1] = c->seq_lens[r] - 1;
        c->spans[r][1][0] = 2, c->spans[r][1][1] = 9;
    }
}

/* Children run every jobs-th case and report in a file; returns through *failed and *served. */
static void run_cases(uint64_t seed, int grid, int num_random, int jobs, int *failed, int *served) {
    char names[64][64];
    pid_t children[64];
    int total = grid + num_random, step = grid < GRID_KINDS * GRID_SHAPES ? 7 : 1;
    fflush(stdout);
    for (int j = 0; j < jobs; j++) {
        snprintf(names[j], sizeof names[j], "/tmp/attn-triton-%ld-%d", (long)getpid(), j);
        children[j] = fork();
        if (children[j] != 0) continue;
        FILE *f = fopen(names[j], "w");
        if (f == NULL || gpu_start() != 0) _exit(2);
        int bad = 0, good = 0;
        for (int i = j; i < total; i += jobs) {
            kit_case_t c;
            char why[2048] = "";
            if (i < grid)
                make_grid(&c, i * step % (GRID_KINDS * GRID_SHAPES));
            else
                make_random(&c, seed + (uint64_t)i, i);
            int r = run_one(&c, why, sizeof why);
            good += r >= 0, bad += r == 0;
            if (r == 0) fprintf(f, "case %d: %s\n", i, why);
        }
        fprintf(f, "= %d %d\n", good, bad);
        fclose(f);
        _exit(0);
    }
    int shown = 0;
    for (int j = 0; j < jobs; j++) {
        int status = 0, good = 0, bad = 1;
        char line[4096];
        waitpid(children[j], &status, 0);
        FILE *f = fopen(names[j], "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL)
            if (sscanf(line, "= %d %d", &good, &bad) != 2 && shown++ < 25) diag("%s", line);
        if (f != NULL) fclose(f);
        unlink(names[j]);
        if (status != 0) diag("process %d ended with %d", j, status);
        *failed += bad + (status != 0), *served += good;
    }
}

/* A small step of an engine, for what the kit does not do. */
typedef struct step {
    attn_instance_t *instance;
    attn_space_t space;
    int32_t q_start[9], lens[8], table[8 * 64], *d_table;
    DLTensor t_table, t_cache, t_q, t_o;
    int64_t table_shape[2], table_strides[2], cache_shape[4], cache_strides[4], row_shape[3], row_strides[3];
    uint16_t *q, *o, *cache;
} step_t;
static const size_t out_bytes = 512 * 8 * 128 * 2;
static const attn_problem_t step_problem = {.struct_size = sizeof step_problem,
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

static DLTensor tensor_of(void *data, DLDataType type, int ndim, int64_t *shape, int64_t *strides) {
    DLTensor t;
    memset(&t, 0, sizeof t);
    t.data = data, t.device.device_type = kDLCUDA, t.ndim = ndim, t.dtype = type, t.shape = shape,
    t.strides = strides;
    return t;
}

static int open_step(step_t *s, uint64_t features) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
    attn_problem_t p = step_problem;
    p.features |= features;
    memset(s, 0, sizeof *s);
    if (triton->ops->open(&p, &device, options, 3, NULL, &s->instance, &e) != ATTN_OK) {
        diag("open: %s", e.text);
        return 0;
    }
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    triton->ops->space_needed(s->instance, &need, &e);
    triton->ops->kv_cache_shape(s->instance, 512, &shape, &e);
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata_bytes = need.metadata_bytes,
                              .workspace_bytes = need.workspace_bytes,
                              .host_bytes = need.host_bytes};
    cudaMalloc(&s->space.metadata, need.metadata_bytes);
    cudaMalloc(&s->space.workspace, need.workspace_bytes);
    cudaMallocHost(&s->space.host, need.host_bytes);
    cudaMalloc((void **)&s->d_table, sizeof s->table);
    cudaMalloc((void **)&s->cache, (size_t)shape.total_bytes);
    cudaMalloc((void **)&s->q, out_bytes);
    cudaMalloc((void **)&s->o, out_bytes);
    uint16_t *h = malloc((size_t)shape.total_bytes);
    uint64_t state = 5;
    for (size_t i = 0; i < (size_t)shape.total_bytes / 2; i++)
        h[i] = (uint16_t)(0x3f00 + kit_random_in(&state, 0, 0x7f) + (kit_random_in(&state, 0, 1) << 15));
    cudaMemcpy(s->cache, h, (size_t)shape.total_bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(s->q, h, out_bytes, cudaMemcpyHostToDevice);
    free(h);
    for (int i = 0; i < 4; i++)
        s->cache_shape[i] = shape.shape[i], s->cache_strides[i] = shape.byte_strides[i] / 2;
    s->t_cache = tensor_of(s->cache, shape.dtype, 4, s->cache_shape, s->cache_strides);
    s->row_shape[0] = 512, s->row_shape[1] = 8, s->row_shape[2] = 128;
    s->row_strides[0] = 1024, s->row_strides[1] = 128, s->row_strides[2] = 1;
    s->t_q = tensor_of(s->q, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, s->row_shape, s->row_strides);
    s->t_o = tensor_of(s->o, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, s->row_shape, s->row_strides);
    s->table_shape[0] = 8, s->table_shape[1] = 64, s->table_strides[0] = 64, s->table_strides[1] = 1;
    s->t_table = tensor_of(s->d_table, attn_dl_dtype(ATTN_DTYPE_INT32), 2, s->table_shape, s->table_strides);
    return 1;
}

static void close_step(step_t *s) {
    triton->ops->close(s->instance);
    cudaFree(s->space.metadata), cudaFree(s->space.workspace), cudaFreeHost(s->space.host);
    cudaFree(s->d_table), cudaFree(s->cache), cudaFree(s->q), cudaFree(s->o);
}

static int build(step_t *s, const int *q_lens, int n, int variant, uint32_t flags, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    for (int r = 0; r < n; r++) {
        s->q_start[r + 1] = s->q_start[r] + q_lens[r];
        s->lens[r] = q_lens[r] + 17 + 113 * ((r + variant) % 8);
        for (int i = 0; i < 64; i++)
            s->table[r * 64 + i] = (r * 64 + i * 5 + variant * 31) % 512;
    }
    cudaMemcpy(s->d_table, s->table, sizeof s->table, cudaMemcpyHostToDevice);
    attn_batch_t b = {.struct_size = sizeof b,
                      .flags = flags,
                      .num_reqs = n,
                      .num_actual_tokens = s->q_start[n],
                      .query_start_loc_host = s->q_start,
                      .seq_lens_host = s->lens,
                      .block_table = &s->t_table};
    int rc = triton->ops->build_metadata(s->instance, &b, &s->space, stream, &e);
    if (rc) diag("build: %s", e.text);
    return rc;
}

static int forward(step_t *s, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_forward_t f = {
        .struct_size = sizeof f, .query = &s->t_q, .kv_cache = &s->t_cache, .output = &s->t_o};
    int rc = triton->ops->forward(s->instance, &f, &s->space, stream, &e);
    if (rc) diag("forward: %s", e.text);
    return rc;
}

static void eager(step_t *s, const int *q, int n, int variant, cudaStream_t stream, void *out) {
    cudaMemset(s->o, 0xee, out_bytes);
    build(s, q, n, variant, 0, stream);
    forward(s, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, s->o, out_bytes, cudaMemcpyDeviceToHost);
}

static void capture_and_replay(void) {
    step_t s;
    cudaStream_t stream;
    static const int decode[8] = {1, 1, 1, 1, 1, 1, 1, 1}, mixed[8] = {1, 90, 1, 2, 40, 0, 1, 64};
    static const int other[8] = {2, 64, 1, 1, 1, 8, 0, 120};
    char *want = malloc(out_bytes), *got = malloc(out_bytes);
    cudaStreamCreate(&stream);
    if (!open_step(&s, 0)) {
        ok(0, "an instance opens");
        return;
    }
    for (int kind = 0; kind < 2; kind++) {
        const int *first = kind ? mixed : decode, *second = kind ? other : decode;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        build(&s, first, 8, 0, ATTN_BATCH_CAPTURE, stream);
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
            eager(&s, second, 8, variant, stream, want);
            cudaMemset(s.o, 0xee, out_bytes);
            build(&s, second, 8, variant, ATTN_BATCH_CAPTURE, stream);
            cudaGraphLaunch(exec, stream);
            cudaStreamSynchronize(stream);
            cudaMemcpy(got, s.o, out_bytes, cudaMemcpyDeviceToHost);
            same += memcmp(got, want, out_bytes) == 0;
        }
        ok(same == 4, "%s: replays with new lengths and pages equal eager runs (%d of 4)",
           kind ? "mixed" : "decode", same);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
    eager(&s, mixed, 8, 3, stream, want);
    eager(&s, mixed, 8, 3, stream, got);
    ok(memcmp(got, want, out_bytes) == 0, "the same call gives the same bits");
    attn_error_t e = {.struct_size = sizeof e};
    int32_t start[2] = {0, 1}, lens[1] = {2000};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = start,
                      .seq_lens_host = lens,
                      .block_table = &s.t_table};
    ok(triton->ops->build_metadata(s.instance, &b, &s.space, stream, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "seq_lens"),
       "a length beyond max_model_len is refused by name");
    ok(forward(&s, stream) == ATTN_E_STATE, "forward after a failed build is refused");
    build(&s, decode, 8, 0, 0, stream);
    s.t_q.byte_offset = 2;
    ok(forward(&s, stream) == ATTN_E_INVALID, "a misaligned query is refused");
    s.t_q.byte_offset = 0;
    attn_forward_t f = {.struct_size = sizeof f, .query = &s.t_q, .output = &s.t_o};
    int rc = triton->ops->forward(s.instance, &f, NULL, stream, &e);
    cudaStreamSynchronize(stream);
    cudaMemcpy(got, s.o, out_bytes, cudaMemcpyDeviceToHost);
    memset(want, 0, out_bytes);
    ok(rc == ATTN_OK && memcmp(got, want, out_bytes) == 0, "the profiling run fills the output with zero");
    close_step(&s);

    /* batch invariance: the first request alone and among neighbours, bit for bit */
    if (open_step(&s, ATTN_F_BATCH_INVARIANT)) {
        eager(&s, mixed, 8, 3, stream, want);
        eager(&s, mixed, 2, 3, stream, got);
        ok(memcmp(got, want, 91 * 2048) == 0,
           "batch invariant: two requests have the same bits with and without neighbours");
        close_step(&s);
    } else
        ok(0, "an instance opens");
    cudaStreamDestroy(stream);
    free(want), free(got);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void open_times(void) {
    char dir[] = "/tmp/attn-triton-cold-XXXXXX";
    step_t s;
    double cold = 0, warm = 1e9;
    if (mkdtemp(dir) == NULL) bail_out("no temporary folder");
    set_options(dir, 0);
    for (int i = 0; i < 4; i++) {
        attn_error_t e = {.struct_size = sizeof e};
        attn_device_t device = {
            .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
        attn_problem_t p = step_problem;
        p.scale = 0.0625; /* another than before: what this process compiled it would not compile again */
        double start = seconds();
        int rc = triton->ops->open(&p, &device, options, 3, NULL, &s.instance, &e);
        double took = seconds() - start;
        if (rc != ATTN_OK) {
            ok(0, "an instance opens (%s)", e.text);
            return;
        }
        triton->ops->close(s.instance);
        if (i == 0)
            cold = took;
        else
            warm = took < warm ? took : warm;
    }
    diag("cold open %.3f s, warm open %.2f ms", cold, 1e3 * warm);
    ok(warm < cold / 4, "a warm open takes what is in the folder");
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) diag("%s is left", dir);
    set_options(cache_dir, 0);
}

int main(void) {
    char why[256] = "", path[1024], cwd[900] = ".", file[1200];
    const char *dir = getenv("TRITON_TEST_PLUGINS"), *text = getenv("TRITON_TEST_CASES"),
               *kept = getenv("TRITON_TEST_CACHE");
    const char *part = getenv("TRITON_TEST_GRID");
    int num_random = text ? atoi(text) : 120, grid = part ? atoi(part) : GRID_KINDS * GRID_SHAPES;
    int failed = 0, served = 0, status = 0;
    grid = grid < 0 || grid > GRID_KINDS * GRID_SHAPES ? GRID_KINDS * GRID_SHAPES : grid;
    long jobs = getenv("TRITON_TEST_JOBS") ? atol(getenv("TRITON_TEST_JOBS")) : sysconf(_SC_NPROCESSORS_ONLN);
    jobs = jobs < 1 ? 1 : jobs > 14 ? 14 : jobs;
    if (dir == NULL && getcwd(cwd, sizeof cwd) != NULL) {
        snprintf(path, sizeof path, "%s/plugins-built", cwd);
        dir = path;
    }
    fflush(stdout);
    pid_t probe = fork(); /* this process must not start CUDA before it forks */
    if (probe == 0) _exit(gpu_start() == 0 ? 0 : 1);
    if (probe < 0 || waitpid(probe, &status, 0) != probe || status != 0) skip_all("no CUDA device");
    snprintf(file, sizeof file, "%s/triton_like.so", dir);
    triton = kit_load(file, "TRITON_ATTN", why, sizeof why);
    if (triton != NULL) snprintf(file, sizeof file, "%s/reference.so", dir);
    reference = triton ? kit_load(file, NULL, why, sizeof why) : NULL;
    if (reference == NULL) bail_out("%s: %s", file, why);
    wrapped = *triton, wrapped_ops = *triton->ops;
    wrapped_ops.open = open_with_options;
    wrapped.ops = &wrapped_ops;
    snprintf(cache_dir, sizeof cache_dir, "%s", kept ? kept : "/tmp/attn-triton-test-XXXXXX");
    if (kept == NULL && mkdtemp(cache_dir) == NULL) bail_out("no temporary folder");
    set_options(cache_dir, 0);
    uint64_t seed = tap_seed();
    double start = seconds();
    run_cases(seed, grid, num_random, (int)jobs, &failed, &served);
    ok(failed == 0 && served >= grid / 2 + num_random / 3,
       "%d cases agree with the reference (%d failed, %.0f s)", served, failed, seconds() - start);
    if (gpu_start() != 0) bail_out("the device is gone");
    capture_and_replay();
    open_times();
    if (kept == NULL) {
        char command[640];
        snprintf(command, sizeof command, "rm -rf %s", cache_dir);
        if (system(command) != 0) diag("%s is left", cache_dir);
    }
    return tap_done();
}
