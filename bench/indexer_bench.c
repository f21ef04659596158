/* SPDX-License-Identifier: Apache-2.0 */
/* indexer_bench PLUGIN.so [CASE]: times of the indexer of a sparse MLA backend through attn.draft.indexer/0,
 * as replays of a captured graph of about 2 ms of calls: median of those after 150 ms of the same load,
 * beside the read ceiling of the same run. CASE is a part of the name of the cases to run. */
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_indexer.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const attn_indexer_extension_t *x;
static attn_indexer_t *indexer;
static attn_error_t error = {.struct_size = sizeof error};
static cudaStream_t stream;

typedef struct tensor {
    DLTensor t;
    int64_t shape[3], strides[3];
} tensor_t;

static uint64_t random_state = 1;
static uint32_t random32(void) {
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(z >> 32);
}

/* Device memory, filled by repeating 4 MiB of what `value` makes of random words (NULL: left as it is). */
static void make(tensor_t *x_, uint32_t dtype, int ndim, int64_t a, int64_t b, int64_t c,
                 uint32_t (*value)(uint32_t)) {
    const int64_t shape[3] = {a, b, c};
    int64_t count = 1;
    *x_ = (tensor_t){.t = {.device = {kDLCUDA, 0}, .ndim = ndim, .dtype = attn_dl_dtype(dtype)}};
    for (int i = ndim - 1; i >= 0; i--) {
        x_->shape[i] = shape[i], x_->strides[i] = count;
        count *= shape[i];
    }
    x_->t.shape = x_->shape, x_->t.strides = x_->strides;
    size_t bytes = (size_t)count * attn_dtype_size(dtype), part = 4u << 20;
    if (cudaMalloc(&x_->t.data, bytes + 64) != cudaSuccess) {
        fprintf(stderr, "out of memory for %zu bytes on the device\n", bytes);
        exit(1);
    }
    if (value == NULL) return;
    uint32_t *host = malloc(part);
    for (size_t i = 0; i < part / 4; i++)
        host[i] = value(random32());
    for (size_t at = 0; at < bytes; at += part)
        cudaMemcpy((char *)x_->t.data + at, host, bytes - at < part ? bytes - at : part,
                   cudaMemcpyHostToDevice);
    free(host);
}
static void drop(tensor_t *t) {
    cudaFree(t->t.data);
}
static void fill_ints(tensor_t *t, int32_t (*value)(int64_t i)) {
    int64_t n = t->shape[0] * (t->t.ndim > 1 ? t->shape[1] : 1);
    int32_t *host = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        host[i] = value(i);
    cudaMemcpy(t->t.data, host, (size_t)n * 4, cudaMemcpyHostToDevice);
    free(host);
}

static float normal(uint32_t r) { /* sum of four bytes: near enough to a normal distribution of deviation 1 */
    return ((float)(r & 255) + (float)(r >> 8 & 255) + (float)(r >> 16 & 255) + (float)(r >> 24) - 510) / 148;
}
static uint32_t as_e4m3(uint32_t r) { /* four normal values of deviation 112, as quantisation leaves them */
    uint32_t word = 0;
    for (int i = 0; i < 4; i++, r = random32()) {
        int e;
        float f = fabsf(normal(r)) * 112, m = frexpf(f, &e);
        uint32_t code = f < 0x1p-6f ? (uint32_t)(f * 512) : (uint32_t)((e + 6) << 3 | ((int)(m * 16) & 7));
        word = word << 8 | (r & 128) | (code > 0x7e ? 0x7e : code);
    }
    return word;
}
static uint32_t as_bf16(uint32_t r) {
    return (r & 0x807f807f) | 0x3f003f00; /* 0.5 .. 1 */
}
static uint32_t as_float(uint32_t r) {
    float f = (float)r * 0x1p-32f - 0.5f;
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static uint32_t as_scale(uint32_t r) {
    float f = ldexpf(1, (int)(r % 3) - 4);
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static uint32_t as_normal(uint32_t r) {
    float f = normal(r) + (float)random32() * 0x1p-40f;
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static int32_t length, permuted_blocks;
static int32_t same_length(int64_t i) {
    (void)i;
    return length;
}
static int32_t no_length(int64_t i) {
    (void)i;
    return 0;
}
static int32_t causal(int64_t i) {
    return length + (int32_t)i + 1;
}
static int32_t permuted(int64_t i) {
    return (int32_t)((uint64_t)i * 40503u % (uint64_t)permuted_blocks);
}

static int by_value(const void *a, const void *b) {
    double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

/* A graph of n calls; NULL where they cannot be captured. */
static cudaGraphExec_t graph_of(int (*call)(const void *), const void *args, int n) {
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    int status = ATTN_OK;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < n; i++)
        status |= call(args);
    cudaStreamEndCapture(stream, &graph);
    if (status != ATTN_OK || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        printf("%s\n", error.text);
        return NULL;
    }
    cudaGraphDestroy(graph);
    return exec;
}

/* Microseconds of one replay. */
static double replay(cudaGraphExec_t exec, cudaEvent_t e0, cudaEvent_t e1) {
    float ms = 0;
    cudaEventRecord(e0, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(e1, stream);
    cudaEventSynchronize(e1);
    cudaEventElapsedTime(&ms, e0, e1);
    return ms * 1e3;
}

/* Median time of one call in microseconds, negative where it cannot be captured. A graph holds about 2 ms of
 * calls, as the peers were measured: a graph's own launch is not the call's. */
static double measure(int (*call)(const void *), const void *args) {
    cudaGraphExec_t exec = graph_of(call, args, 1);
    cudaEvent_t e0, e1;
    double us[300], spent = 0;
    int n = 0;
    if (exec == NULL) return -1;
    cudaEventCreate(&e0), cudaEventCreate(&e1);
    replay(exec, e0, e1);
    double once = replay(exec, e0, e1);
    int calls = once > 1000 ? 1 : once < 10 ? 200 : (int)(2000 / once);
    cudaGraphExecDestroy(exec);
    exec = graph_of(call, args, calls);
    if (exec == NULL) return -1;
    while (n < 300 && (spent < 250e3 || n < 5)) {
        double t = replay(exec, e0, e1);
        spent += t;
        if (spent > 150e3) us[n++] = t / calls;
    }
    qsort(us, (size_t)n, sizeof us[0], by_value);
    cudaGraphExecDestroy(exec);
    cudaEventDestroy(e0), cudaEventDestroy(e1);
    cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess) printf("%s ", cudaGetErrorString(e));
    return us[n / 2];
}

static int call_logits(const void *a) {
    return x->logits(indexer, a, stream, &error);
}
static int call_paged(const void *a) {
    return x->logits_paged(indexer, a, stream, &error);
}
static int call_select(const void *a) {
    return x->select(indexer, a, stream, &error);
}
static int call_write(const void *a) {
    return x->write_keys(indexer, a, stream, &error);
}
static int call_quantize(const void *a) {
    return x->quantize_queries(indexer, a, stream, &error);
}
int indexer_read_all(void *buffer, size_t bytes, void *stream);
enum { CEILING_BYTES = 1 << 30 };
static int call_read(const void *buffer) {
    return indexer_read_all((void *)(uintptr_t)buffer, CEILING_BYTES, stream);
}

static const char *wanted;
static int is_wanted(const char *name) {
    return wanted == NULL || strstr(name, wanted) != NULL;
}

/* heads 64, keys in one piece; is_causal: the rows are the last of the keys. */
static void bench_prefill(int64_t rows, int64_t keys, int is_causal) {
    char name[64];
    snprintf(name, sizeof name, "logits %lldx%lld%s", (long long)rows, (long long)keys,
             is_causal ? " causal" : "");
    if (!is_wanted(name)) return;
    tensor_t q, w, k, s, lo, hi, out;
    make(&q, ATTN_DTYPE_FP8_E4M3, 3, rows, 64, 128, as_e4m3),
        make(&w, ATTN_DTYPE_FLOAT32, 2, rows, 64, 0, as_float);
    make(&k, ATTN_DTYPE_FP8_E4M3, 2, keys, 128, 0, as_e4m3),
        make(&s, ATTN_DTYPE_FLOAT32, 1, keys, 0, 0, as_scale);
    make(&lo, ATTN_DTYPE_INT32, 1, rows, 0, 0, NULL), make(&hi, ATTN_DTYPE_INT32, 1, rows, 0, 0, NULL);
    make(&out, ATTN_DTYPE_FLOAT32, 2, rows, keys, 0, NULL);
    fill_ints(&lo, no_length);
    length = (int32_t)(is_causal ? keys - rows : keys);
    fill_ints(&hi, is_causal ? causal : same_length);
    const attn_indexer_logits_t a = {.struct_size = sizeof a,
                                     .num_rows = (int32_t)rows,
                                     .query = &q.t,
                                     .weights = &w.t,
                                     .keys = &k.t,
                                     .key_scales = &s.t,
                                     .row_starts = &lo.t,
                                     .row_ends = &hi.t,
                                     .logits = &out.t};
    double us = measure(call_logits, &a),
           pairs = is_causal ? (double)rows * ((double)keys - (double)rows / 2) : (double)rows * (double)keys;
    printf("%-34s %9.1f us %7.0f TFLOP/s\n", name, us, pairs * 64 * 256 / us * 1e-6);
    drop(&q), drop(&w), drop(&k), drop(&s), drop(&lo), drop(&hi), drop(&out);
}

static void bench_paged(int64_t reqs, int64_t per, int64_t keys) {
    char name[64];
    snprintf(name, sizeof name, "paged %lldx%lld q=%lld", (long long)reqs, (long long)keys, (long long)per);
    if (!is_wanted(name)) return;
    tensor_t q, w, c, table, lens, out;
    int64_t rows = reqs * per, pages = (keys + 63) / 64;
    make(&q, ATTN_DTYPE_FP8_E4M3, 3, rows, 64, 128, as_e4m3),
        make(&w, ATTN_DTYPE_FLOAT32, 2, rows, 64, 0, as_float);
    make(&c, ATTN_DTYPE_UINT8, 3, reqs * pages, 64, 132, as_e4m3);
    make(&table, ATTN_DTYPE_INT32, 2, reqs, pages, 0, NULL),
        make(&lens, ATTN_DTYPE_INT32, 1, rows, 0, 0, NULL);
    make(&out, ATTN_DTYPE_FLOAT32, 2, rows, keys, 0, NULL);
    permuted_blocks = (int32_t)(reqs * pages);
    fill_ints(&table, permuted);
    length = (int32_t)keys;
    fill_ints(&lens, same_length);
    const attn_indexer_paged_t a = {.struct_size = sizeof a,
                                    .num_rows = (int32_t)rows,
                                    .rows_per_request = (int32_t)per,
                                    .query = &q.t,
                                    .weights = &w.t,
                                    .cache = &c.t,
                                    .block_table = &table.t,
                                    .row_lens = &lens.t,
                                    .logits = &out.t};
    double us = measure(call_paged, &a);
    printf("%-34s %9.1f us %7.0f GB/s\n", name, us, (double)reqs * (double)keys * 132 / us * 1e-3);
    drop(&q), drop(&w), drop(&c), drop(&table), drop(&lens), drop(&out);
}

static void bench_select(int64_t rows, int64_t keys) {
    char name[64];
    snprintf(name, sizeof name, "topk %lldx%lld", (long long)rows, (long long)keys);
    if (!is_wanted(name)) return;
    tensor_t in, hi, out;
    make(&in, ATTN_DTYPE_FLOAT32, 2, rows, keys, 0, as_normal);
    make(&hi, ATTN_DTYPE_INT32, 1, rows, 0, 0, NULL), make(&out, ATTN_DTYPE_INT32, 2, rows, 2048, 0, NULL);
    length = (int32_t)keys;
    fill_ints(&hi, same_length);
    const attn_indexer_select_t a = {.struct_size = sizeof a,
                                     .num_rows = (int32_t)rows,
                                     .logits = &in.t,
                                     .row_ends = &hi.t,
                                     .indices = &out.t};
    double us = measure(call_select, &a);
    printf("%-34s %9.1f us %7.0f GB/s\n", name, us, (double)rows * (double)keys * 4 / us * 1e-3);
    drop(&in), drop(&hi), drop(&out);
}

static void bench_small(int64_t tokens) {
    tensor_t k, slots, c, q, w, q8, w8;
    make(&k, ATTN_DTYPE_BFLOAT16, 2, tokens, 128, 0, as_bf16),
        make(&slots, ATTN_DTYPE_INT64, 1, tokens, 0, 0, NULL);
    make(&c, ATTN_DTYPE_UINT8, 3, (tokens + 63) / 64, 64, 132, as_e4m3);
    make(&q, ATTN_DTYPE_BFLOAT16, 3, tokens, 64, 128, as_bf16),
        make(&w, ATTN_DTYPE_BFLOAT16, 2, tokens, 64, 0, as_bf16);
    make(&q8, ATTN_DTYPE_FP8_E4M3, 3, tokens, 64, 128, NULL),
        make(&w8, ATTN_DTYPE_FLOAT32, 2, tokens, 64, 0, NULL);
    int64_t *host = malloc((size_t)tokens * 8);
    for (int64_t i = 0; i < tokens; i++)
        host[i] = i;
    cudaMemcpy(slots.t.data, host, (size_t)tokens * 8, cudaMemcpyHostToDevice);
    free(host);
    const attn_indexer_write_t a = {
        .struct_size = sizeof a, .key = &k.t, .cache = &c.t, .slot_mapping = &slots.t};
    const attn_indexer_quantize_t b = {.struct_size = sizeof b,
                                       .num_rows = (int32_t)tokens,
                                       .query = &q.t,
                                       .weights = &w.t,
                                       .quantized = &q8.t,
                                       .out_weights = &w8.t};
    double us = is_wanted("write") ? measure(call_write, &a) : 0;
    if (us > 0)
        printf("write %-28lld %9.1f us %7.0f GB/s\n", (long long)tokens, us,
               (double)tokens * (256 + 132) / us * 1e-3);
    us = is_wanted("quantize") ? measure(call_quantize, &b) : 0;
    if (us > 0)
        printf("quantize %-25lld %9.1f us %7.0f GB/s\n", (long long)tokens, us,
               (double)tokens * 64 * (256 + 134) / us * 1e-3);
    drop(&k), drop(&slots), drop(&c), drop(&q), drop(&w), drop(&q8), drop(&w8);
}

int main(int argc, char **argv) {
    void *file = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const attn_plugin_t *plugin = file ? dlsym(file, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL || !ATTN_HAS_OP(plugin->backends[0]->ops, get_extension)) {
        fprintf(stderr, "usage: indexer_bench PLUGIN.so [CASE] (%s)\n",
                argc > 1 && !file ? dlerror() : "no plugin with an extension");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    wanted = argc > 2 ? argv[2] : NULL;
    x = plugin->backends[0]->ops->get_extension(NULL, ATTN_INDEXER_EXTENSION);
    const attn_indexer_problem_t problem = {.struct_size = sizeof problem, .num_heads = 64};
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA};
    if (x == NULL || x->open(&problem, &device, NULL, &indexer, &error) != ATTN_OK) {
        fprintf(stderr, "%s\n", x ? error.text : "no indexer in this plugin");
        return 1;
    }
    cudaStreamCreate(&stream);
    void *buffer = NULL;
    if (cudaMalloc(&buffer, CEILING_BYTES) == cudaSuccess)
        printf("%-34s %9s    %7.0f GB/s\n", "read ceiling", "",
               (double)CEILING_BYTES / measure(call_read, buffer) * 1e-3);
    cudaFree(buffer);
    bench_prefill(4096, 8192, 0), bench_prefill(4096, 32768, 0), bench_prefill(4096, 131072, 0);
    bench_prefill(4096, 8192, 1), bench_prefill(4096, 32768, 1);
    bench_paged(128, 1, 32768), bench_paged(64, 1, 8192), bench_paged(64, 1, 131072),
        bench_paged(4, 1, 131072);
    bench_paged(1, 1, 131072), bench_paged(64, 2, 32768);
    static const struct {
        int rows, keys;
    } topk[] = {{1, 32768},  {1, 131072},  {8, 131072},  {16, 131072},  {32, 131072},  {64, 131072},
                {128, 8192}, {128, 32768}, {4096, 8192}, {4096, 32768}, {1024, 131072}};
    for (size_t i = 0; i < sizeof topk / sizeof topk[0]; i++)
        bench_select(topk[i].rows, topk[i].keys);
    bench_small(128), bench_small(8192);
    x->close(indexer);
    return 0;
}
