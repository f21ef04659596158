/* SPDX-License-Identifier: Apache-2.0 */
/* mm_encoder.so through the plugin ABI on a device: random cases with and without fp8 against the reference
 * plugin in double, views of fused QKV buffers, dynamic scales beside the reference's, capture and replay,
 * errors that name the parameter. MM_TEST_CASES=N sets the number of random cases;
 * ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "gpu_memory.h"
#include "part.h"
#include "../tap.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <unistd.h>

static const attn_backend_t *encoder, *reference;

/* Head sizes of real towers, and any other; every second case in fp8. */
static void random_cases(uint64_t seed) {
    static const uint32_t towers[] = {64, 72, 80, 88, 96, 128, 160, 256, 33, 257 - 8};
    const char *text = getenv("MM_TEST_CASES");
    int n = text ? atoi(text) : 200, failed = 0, taken = 0, fp8 = 0;
    for (int i = 0; i < n; i++) {
        kit_case_t c;
        char why[2048] = "";
        kit_case_random(&c, encoder->capabilities, seed + (uint64_t)i, i % 10 == 0 ? 700 : 200);
        if (i % 3) c.problem.head_size = towers[(unsigned)i % 10];
        c.problem.scale = 1 / sqrt((double)c.problem.head_size);
        if (i & 1) c.problem.features |= ATTN_F_FP8_ATTENTION;
        if (i % 8 == 1) c.flags |= KIT_NO_SCALES;
        if (!part_takes()) continue;
        taken++, fp8 += i & 1;
        kit_difference_t d;
        if (!kit_agrees(encoder, reference, &c, NULL, &gpu, &d, why, sizeof why) && failed++ < 12)
            diag("case %d: %s", i, why);
    }
    ok(failed == 0, "%d random cases, %d of them fp8, agree with the reference (%d failed)", taken, fp8,
       failed);
}

/* One layer over a fused buffer [rows, 3 * heads * d], on the device and, with the same bytes, on the CPU. */
enum { ROWS = 640, HEADS = 4 };
typedef struct step {
    const attn_backend_t *on;
    attn_problem_t problem;
    attn_instance_t *instance;
    attn_space_needed_t need;
    attn_space_t space;
    attn_fp8_state_t *state;
    uint16_t *qkv, *out;
    int64_t shape[3], qkv_strides[3], out_strides[3];
    DLTensor q, k, v, o;
    int d;
} step_t;

static void *get(const step_t *s, size_t bytes) {
    void *p = NULL;
    if (s->on == reference)
        p = aligned_alloc(256, (bytes + 512) / 256 * 256);
    else if (cudaMalloc(&p, bytes + 256) != cudaSuccess)
        bail_out("out of memory for %zu bytes", bytes);
    return p;
}
static void put_back(const step_t *s, void *p) {
    if (s->on == reference)
        free(p);
    else
        cudaFree(p);
}

static attn_problem_t problem_of(int d, uint64_t features) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = ATTN_ROLE_MM_ENCODER,
                            .mask = ATTN_MASK_FULL,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .num_heads = HEADS,
                            .head_size = (uint32_t)d,
                            .scale = 1 / sqrt((double)d),
                            .max_num_seqs = 8,
                            .max_num_batched_tokens = ROWS,
                            .max_model_len = ROWS,
                            .features = features};
}

static DLTensor view(step_t *s, void *data, int64_t *strides) {
    DLTensor t = {.data = data, .ndim = 3, .shape = s->shape, .strides = strides};
    t.device.device_type = s->on == reference ? kDLCPU : kDLCUDA;
    t.dtype = attn_dl_dtype(ATTN_DTYPE_BFLOAT16);
    return t;
}

/* [3, heads, d] of a token, or [heads, 3, d] as interleaved checkpoints have it. */
static void fuse(step_t *s, int is_interleaved) {
    int64_t part = is_interleaved ? s->d : HEADS * s->d;
    s->qkv_strides[0] = 3 * HEADS * s->d, s->qkv_strides[1] = is_interleaved ? 3 * s->d : s->d,
    s->qkv_strides[2] = 1;
    s->q = view(s, s->qkv, s->qkv_strides);
    s->k = view(s, s->qkv + part, s->qkv_strides);
    s->v = view(s, s->qkv + 2 * part, s->qkv_strides);
}

static void open_step(step_t *s, const attn_backend_t *on, int d, uint64_t features) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t device = {.struct_size = sizeof device, .type = on == reference ? kDLCPU : kDLCUDA};
    memset(s, 0, sizeof *s);
    s->on = on, s->d = d;
    s->problem = problem_of(d, features);
    if (on->ops->open(&s->problem, &device, NULL, 0, NULL, &s->instance, &e) != ATTN_OK)
        bail_out("open: %s", e.text);
    s->need.struct_size = sizeof s->need;
    on->ops->space_needed(s->instance, &s->need, &e);
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata_bytes = s->need.metadata_bytes,
                              .workspace_bytes = s->need.workspace_bytes,
                              .host_bytes = s->need.host_bytes};
    s->space.metadata = get(s, s->need.metadata_bytes);
    s->space.workspace = get(s, s->need.workspace_bytes);
    cudaMallocHost(&s->space.host, s->need.host_bytes + 64);
    s->qkv = get(s, (size_t)ROWS * 3 * HEADS * (size_t)d * 2);
    s->out = get(s, (size_t)ROWS * HEADS * (size_t)d * 2);
    s->state = get(s, sizeof *s->state);
    if (on != reference) { /* initcheck does not see what bulk copies write; NaN, which must not be read */
        cudaMemset(s->out, 0xee, (size_t)ROWS * HEADS * (size_t)d * 2);
        cudaMemset(s->space.workspace, 0xff, s->need.workspace_bytes);
    }
    s->shape[0] = ROWS, s->shape[1] = HEADS, s->shape[2] = d;
    s->out_strides[0] = HEADS * d, s->out_strides[1] = d, s->out_strides[2] = 1;
    s->o = view(s, s->out, s->out_strides);
    fuse(s, 0);
}

static void close_step(step_t *s) {
    s->on->ops->close(s->instance);
    put_back(s, s->space.metadata), put_back(s, s->space.workspace), put_back(s, s->qkv), put_back(s, s->out);
    put_back(s, s->state), cudaFreeHost(s->space.host);
}

static void send(step_t *s, const uint16_t *qkv) {
    size_t bytes = (size_t)ROWS * 3 * HEADS * (size_t)s->d * 2;
    if (s->on == reference)
        memcpy(s->qkv, qkv, bytes);
    else
        cudaMemcpy(s->qkv, qkv, bytes, cudaMemcpyHostToDevice);
}

static int build(step_t *s, const int32_t *cu_seqlens, int n, uint32_t flags, cudaStream_t stream,
                 attn_error_t *e) {
    int32_t lens[8];
    for (int i = 0; i < n; i++)
        lens[i] = cu_seqlens[i + 1] - cu_seqlens[i];
    attn_batch_t b = {.struct_size = sizeof b,
                      .flags = flags,
                      .num_reqs = n,
                      .num_actual_tokens = cu_seqlens[n],
                      .query_start_loc_host = cu_seqlens,
                      .seq_lens_host = lens};
    return s->on->ops->build_metadata(s->instance, &b, &s->space, stream, e);
}

static int forward(step_t *s, const attn_scales_t *scales, int is_dynamic, cudaStream_t stream,
                   attn_error_t *e) {
    attn_forward_t f = {
        .struct_size = sizeof f, .query = &s->q, .key = &s->k, .value = &s->v, .output = &s->o};
    if (scales != NULL) f.scales = *scales;
    if (is_dynamic) f.weight_space = s->state, f.weight_space_bytes = sizeof *s->state;
    return s->on->ops->forward(s->instance, &f, &s->space, stream, e);
}

static float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static uint16_t to_bf16(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t *values(int d, uint64_t seed, double amplitude) {
    size_t n = (size_t)ROWS * 3 * HEADS * (size_t)d;
    uint16_t *x = malloc(n * 2);
    for (size_t i = 0; i < n; i++)
        x[i] = to_bf16(kit_random_normal(&seed) * amplitude);
    return x;
}

/* Largest difference of the first rows to what the reference has, in units of its tolerance. */
static double difference(step_t *gpu_step, step_t *cpu_step, int rows) {
    size_t n = (size_t)rows * HEADS * (size_t)gpu_step->d;
    uint16_t *got = malloc(n * 2);
    double worst = 0;
    cudaDeviceSynchronize();
    cudaMemcpy(got, gpu_step->out, n * 2, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n; i++) {
        double want = (double)from_bf16(cpu_step->out[i]),
               x = fabs((double)from_bf16(got[i]) - want) / (1e-2 + 2e-2 * fabs(want));
        if (!(x <= worst)) worst = isnan(x) ? INFINITY : x;
    }
    free(got);
    return worst;
}

static const int32_t images[5] = {0, 200, 201, 440, 600};

static void fused_views(uint64_t seed) {
    static const int sizes[] = {72, 80, 128, 65};
    for (int i = 0; i < 4; i++)
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            step_t g, c;
            attn_error_t e = {.struct_size = sizeof e};
            open_step(&g, encoder, sizes[i], 0);
            open_step(&c, reference, sizes[i], 0);
            uint16_t *x = values(sizes[i], seed + (uint64_t)i, 1);
            send(&g, x), send(&c, x);
            fuse(&g, interleaved), fuse(&c, interleaved);
            int rc = build(&g, images, 4, 0, NULL, &e);
            if (rc == ATTN_OK) rc = forward(&g, NULL, 0, NULL, &e);
            if (rc != ATTN_OK) diag("%s", e.text);
            build(&c, images, 4, 0, NULL, &e);
            forward(&c, NULL, 0, NULL, &e);
            double worst = difference(&g, &c, images[4]);
            ok(rc == ATTN_OK && worst <= 1, "head size %d, %s QKV, four images: %.2f of the tolerance",
               sizes[i], interleaved ? "interleaved" : "fused", worst);
            free(x), close_step(&g), close_step(&c);
        }
}

/* 20 calls of changing magnitude: the histories of both sides agree, and so do the outputs. */
static void dynamic_scales(void) {
    step_t g, c;
    attn_error_t e = {.struct_size = sizeof e};
    open_step(&g, encoder, 72, ATTN_F_FP8_ATTENTION);
    open_step(&c, reference, 72, ATTN_F_FP8_ATTENTION);
    ok(g.need.weight_bytes == sizeof(attn_fp8_state_t), "space_needed asks for the state of a layer");
    attn_weights_t w = {
        .struct_size = sizeof w, .weight_space = g.state, .weight_space_bytes = sizeof *g.state};
    cudaMemset(g.state, 0xff, sizeof *g.state);
    int rc = encoder->ops->prepare_weights(g.instance, &w, NULL, &e);
    w.weight_space = c.state;
    rc |= reference->ops->prepare_weights(c.instance, &w, NULL, &e);
    int same = 0, close = 0, calls = 20;
    for (int i = 0; i < calls && rc == ATTN_OK; i++) {
        attn_fp8_state_t got;
        uint16_t *x = values(72, (uint64_t)i + 7, i == 1 ? 2.5 : 0.25 + 0.05 * i);
        if (i == 2) x[5] = 0x7f80; /* an infinity of one image must not reach the others' scales */
        send(&g, x), send(&c, x);
        rc = build(&g, images, 4, 0, NULL, &e) | build(&c, images, 4, 0, NULL, &e);
        if (rc == ATTN_OK) rc = forward(&g, NULL, 1, NULL, &e) | forward(&c, NULL, 1, NULL, &e);
        cudaMemcpy(&got, g.state, sizeof got, cudaMemcpyDeviceToHost);
        same += memcmp(&got, c.state, sizeof got) == 0;
        close += i == 2 || difference(&g, &c, images[4]) <= 1;
        free(x);
    }
    ok(rc == ATTN_OK && same == calls && close == calls,
       "%d calls with dynamic scales: %d histories and %d outputs as the reference's (%s)", calls, same,
       close, rc ? e.text : "no error");
    float one = 1;
    int64_t shape = 1, stride = 1;
    DLTensor t = {.data = &one,
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = &shape,
                  .strides = &stride};
    attn_scales_t scales = {.q = &t};
    ok(forward(&g, &scales, 1, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "scales"),
       "scales beside a state are refused");
    build(&g, images, 4, ATTN_BATCH_CAPTURE, NULL, &e);
    ok(forward(&g, NULL, 1, NULL, &e) == ATTN_E_STATE,
       "dynamic scales in a batch built for capture are refused: %.60s", e.text);
    one = -1;
    ok(forward(&g, &scales, 0, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "q_scale"),
       "a negative scale is refused");
    shape = 3;
    ok(forward(&g, &scales, 0, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "q_scale"),
       "three scales are refused");
    close_step(&g), close_step(&c);
}

/* The same bits, or in short images, whose batch says how long blocks of keys are, the same numbers but for
 * roundings of weights by other maxima. */
static int is_alike(int is_short, uint16_t a, uint16_t b) {
    const float x = from_bf16(a), y = from_bf16(b);
    return a == b || (is_short && fabsf(x - y) <= 5e-3f + 1e-2f * fabsf(y));
}

/* A graph of one batch replayed with other images, in fp8 with static scales and without. Of head size 64 the
 * images are short enough for the kernel whose keys are in shared memory whole. */
static void capture_and_replay(int d, uint64_t features) {
    static const int32_t other[4] = {0, 64, 300, 512};
    const size_t bytes = (size_t)ROWS * HEADS * (size_t)d * 2;
    step_t s;
    attn_error_t e = {.struct_size = sizeof e};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    uint16_t *want = malloc(bytes), *got = malloc(bytes), *x = values(d, 3, 1);
    float scale = 0.03f;
    int64_t one = 1;
    DLTensor t = {.data = &scale,
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = &one,
                  .strides = &one};
    attn_scales_t scales = {.q = &t, .k = &t, .v = &t};
    const attn_scales_t *use = features & ATTN_F_FP8_ATTENTION ? &scales : NULL;
    cudaStreamCreate(&stream);
    open_step(&s, encoder, d, features | ATTN_F_CAPTURE);
    send(&s, x);
    int rc = build(&s, images, 4, ATTN_BATCH_CAPTURE, stream, &e);
    cudaStreamSynchronize(stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (rc == ATTN_OK) rc = forward(&s, use, 0, stream, &e);
    cudaError_t code = cudaStreamEndCapture(stream, &graph);
    if (code == cudaSuccess) code = cudaGraphInstantiate(&exec, graph, 0);
    cudaMemset(s.out, 0, bytes);
    build(&s, other, 3, ATTN_BATCH_CAPTURE, stream, &e);
    if (exec) cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(got, s.out, bytes, cudaMemcpyDeviceToHost);
    cudaMemset(s.out, 0, bytes);
    build(&s, other, 3, 0, stream, &e);
    forward(&s, use, 0, stream, &e);
    cudaStreamSynchronize(stream);
    cudaMemcpy(want, s.out, bytes, cudaMemcpyDeviceToHost);
    size_t at = 0;
    while (at < bytes / 2 && is_alike(d == 64, got[at], want[at]))
        at++;
    if (!ok(rc == ATTN_OK && code == cudaSuccess && at == bytes / 2,
            "head size %d, %s: a replay with other images is an eager call", d,
            features ? "fp8, static scales" : "bf16"))
        diag("%s; row %zu, head %zu, channel %zu: %04x of the replay, %04x", cudaGetErrorString(code),
             at / (HEADS * (size_t)d), at / (size_t)d % HEADS, at % (size_t)d, got[at], want[at]);
    if (exec) cudaGraphExecDestroy(exec);
    close_step(&s);
    cudaStreamDestroy(stream);
    free(want), free(got), free(x);
}

/* Images of up to 240 tokens are rows of one kernel, longer ones of another: a graph of either replays
 * batches of both, and a batch of no image. */
static void short_replays(void) {
    static const int32_t first[2][5] = {{0, 240, 480, 600, 600}, {0, 640, 640, 640, 640}};
    static const int32_t later[4][5] = {
        {0, 200, 440, 441, 600}, {0, 64, 128, 160, 200}, {0, 193, 429, 430, 600}, {0, 0, 0, 0, 0}};
    const size_t bytes = (size_t)ROWS * HEADS * 64 * 2;
    uint16_t *x = values(64, 5, 1);
    for (int k = 0; k < 2; k++) {
        step_t s, c;
        attn_error_t e = {.struct_size = sizeof e};
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec = NULL;
        cudaStreamCreate(&stream);
        open_step(&s, encoder, 64, ATTN_F_CAPTURE), open_step(&c, reference, 64, 0);
        send(&s, x), send(&c, x);
        int rc = build(&s, first[k], 4, ATTN_BATCH_CAPTURE, stream, &e);
        cudaStreamSynchronize(stream);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        if (rc == ATTN_OK) rc = forward(&s, NULL, 0, stream, &e);
        cudaError_t code = cudaStreamEndCapture(stream, &graph);
        if (code == cudaSuccess) code = cudaGraphInstantiate(&exec, graph, 0);
        for (int i = 0; i < 4 && exec != NULL; i++) {
            cudaMemset(s.out, 0, bytes);
            rc = build(&s, later[i], 4, ATTN_BATCH_CAPTURE, stream, &e);
            cudaGraphLaunch(exec, stream);
            cudaStreamSynchronize(stream);
            build(&c, later[i], 4, 0, NULL, &e);
            forward(&c, NULL, 0, NULL, &e);
            const double worst = difference(&s, &c, later[i][4]);
            ok(rc == ATTN_OK && worst <= 1, "a graph of images of %d tokens replays those of %d: %.2f",
               first[k][1], later[i][1], worst);
        }
        ok(rc == ATTN_OK && code == cudaSuccess, "captured: %s", cudaGetErrorString(code));
        if (exec) cudaGraphExecDestroy(exec);
        cudaStreamDestroy(stream);
        close_step(&s), close_step(&c);
    }
    free(x);
}

/* A tile of query rows reaches over an image's end: into the next one, and behind the last into rows that are
 * nobody's. Whatever is there, the image has the same bits (semantics 10.5). */
static void rows_behind(int d, uint64_t features, const int32_t *ends) {
    const int end = ends[4];
    const struct {
        const char *what;
        int first, is_random; /* the first row to be changed; in Q alone where that is an image's */
        uint16_t value;
    } kinds[] = {{"NaN behind", end, 0, 0x7fc0},    {"infinity behind", end, 0, 0x7f80},
                 {"huge behind", end, 0, 0x7f7f},   {"large behind", end, 1, 0},
                 {"NaN after", ends[1], 0, 0x7fc0}, {"large after", ends[1], 1, 0}};
    const size_t row = (size_t)HEADS * (size_t)d, bytes = ROWS * row * 2;
    step_t s;
    attn_error_t e = {.struct_size = sizeof e};
    float scale = 0.03f;
    int64_t one = 1;
    DLTensor t = {.data = &scale,
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = &one,
                  .strides = &one};
    attn_scales_t scales = {.q = &t, .k = &t, .v = &t};
    const attn_scales_t *use = features & ATTN_F_FP8_ATTENTION ? &scales : NULL;
    uint16_t *want = malloc(bytes), *got = malloc(bytes), *plain = values(d, 11, 1), *x = values(d, 11, 1);
    open_step(&s, encoder, d, features);
    for (size_t i = (size_t)end * 3 * row; i < ROWS * 3 * row; i++)
        plain[i] = 0;
    send(&s, plain);
    int rc = build(&s, ends, 4, 0, NULL, &e);
    if (rc == ATTN_OK) rc = forward(&s, use, 0, NULL, &e);
    cudaDeviceSynchronize();
    cudaMemcpy(want, s.out, bytes, cudaMemcpyDeviceToHost);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        uint64_t seed = k;
        memcpy(x, plain, ROWS * 3 * row * 2);
        const int is_image = kinds[k].first < end;
        for (size_t i = (size_t)kinds[k].first; i < (size_t)(is_image ? end : ROWS); i++)
            for (size_t j = 0; j < (is_image ? row : 3 * row); j++)
                x[i * 3 * row + j] =
                    kinds[k].is_random ? to_bf16(kit_random_normal(&seed) * 1e4) : kinds[k].value;
        send(&s, x);
        cudaMemset(s.out, 0xee, bytes);
        if (rc == ATTN_OK) rc = forward(&s, use, 0, NULL, &e);
        cudaDeviceSynchronize();
        cudaMemcpy(got, s.out, bytes, cudaMemcpyDeviceToHost);
        const size_t n = (size_t)kinds[k].first * row;
        size_t other = 0;
        for (size_t i = 0; i < n; i++)
            other += got[i] != want[i];
        if (!ok(rc == ATTN_OK && other == 0, "head size %d, %s, %d rows: %s row %d changes no bit", d,
                use != NULL ? "fp8" : "bf16", end, kinds[k].what, kinds[k].first))
            diag("%zu of %zu numbers are others; %s", other, n, rc != ATTN_OK ? e.text : "");
    }
    close_step(&s);
    free(want), free(got), free(plain), free(x);
}

static void profiling_run(void) {
    step_t s;
    attn_error_t e = {.struct_size = sizeof e};
    open_step(&s, encoder, 65, 0);
    const size_t n = (size_t)ROWS * HEADS * 65;
    uint16_t *got = malloc(n * 2);
    cudaMemset(s.out, 0xee, n * 2);
    attn_forward_t f = {.struct_size = sizeof f, .output = &s.o};
    int rc = encoder->ops->forward(s.instance, &f, NULL, NULL, &e), zeros = 0;
    cudaDeviceSynchronize();
    cudaMemcpy(got, s.out, n * 2, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n; i++)
        zeros += got[i] == 0;
    ok(rc == ATTN_OK && zeros == (int)n, "the profiling run of head size 65 gives zeros");
    ok(forward(&s, NULL, 0, NULL, &e) == ATTN_E_STATE, "forward before build_metadata is refused");
    free(got);
    close_step(&s);
}

int main(void) {
    char why[256] = "", file[1200], cwd[900];
    if (gpu_start() != 0) skip_all("no CUDA device");
    if (getcwd(cwd, sizeof cwd) == NULL) bail_out("getcwd failed");
    snprintf(file, sizeof file, "%s/plugins-built/mm_encoder.so", cwd);
    encoder = kit_load(file, "MM_ENCODER_ATTN", why, sizeof why);
    if (encoder == NULL) bail_out("%s: %s", file, why);
    snprintf(file, sizeof file, "%s/plugins-built/reference.so", cwd);
    reference = kit_load(file, NULL, why, sizeof why);
    if (reference == NULL) bail_out("%s: %s", file, why);
    uint64_t seed = tap_seed();
    fused_views(seed);
    dynamic_scales();
    capture_and_replay(72, 0);
    capture_and_replay(72, ATTN_F_FP8_ATTENTION);
    capture_and_replay(64, 0);
    capture_and_replay(64, ATTN_F_FP8_ATTENTION);
    short_replays();
    static const int sizes[] = {64, 72, 80, 128};
    static const int32_t long_ends[5] = {0, 200, 201, 440, 590}, short_ends[5] = {0, 100, 101, 220, 270};
    for (int i = 0; i < 4; i++) {
        if (part_in_time()) rows_behind(sizes[i], ATTN_F_BATCH_INVARIANT, long_ends);
        if (part_in_time()) rows_behind(sizes[i], ATTN_F_BATCH_INVARIANT | ATTN_F_FP8_ATTENTION, long_ends);
        if (part_in_time()) rows_behind(sizes[i], 0, short_ends);
        if (part_in_time()) rows_behind(sizes[i], ATTN_F_FP8_ATTENTION, short_ends);
    }
    profiling_run();
    random_cases(seed);
    return tap_done();
}
