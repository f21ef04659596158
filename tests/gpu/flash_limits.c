/* SPDX-License-Identifier: Apache-2.0 */
/* FLASH_ATTN at its limits, through the plugin ABI on a device: contexts of a million tokens in caches of
 * more than 2^31 elements, workspaces and unused memory full of NaN, several threads and several streams.
 * FLASH_TEST_PLUGINS names the folder of the plugins; ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "kit/case/attn_case.h"
#include "part.h"
#include "../tap.h"

#include <attn/attn_plugin_util.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <unistd.h>

enum { MAX_REQS = 64, MAX_SETS = 2 };

/* One set of buffers of a step, with the lists of a batch. */
typedef struct buffers {
    attn_space_t space;
    int32_t q_start[MAX_REQS + 1], lens[MAX_REQS];
    int32_t *table;
    void *output;
    float *lse;
} buffers_t;

/* One attention layer with a cache of `num_blocks` pages; request r has the pages page_of(r, i), of which the
 * first `shared` are those of request 0. prefix: common_prefix_len of its batches. */
typedef struct layer {
    attn_problem_t problem;
    attn_instance_t *instance;
    int64_t num_blocks, width, step, shared;
    int32_t prefix;
    void *cache, *query;
    attn_kv_cache_shape_t shape;
    buffers_t sets[MAX_SETS];
    attn_error_t error;
} layer_t;

static const attn_backend_t *flash;
static const attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA};

static DLTensor tensor_of(void *data, uint32_t dtype, int ndim, int64_t *shape, int64_t *strides) {
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i];
    }
    return (DLTensor){.data = data,
                      .device = {kDLCUDA, 0},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = shape,
                      .strides = strides};
}

static int64_t elements(const layer_t *l) {
    int64_t n = 1;
    for (int i = 0; i < 4; i++)
        n *= l->shape.shape[i];
    return n;
}

/* Pages in an order that visits all of them, the highest ones too. */
static int32_t page_of(const layer_t *l, int request, int64_t i) {
    return (int32_t)((((int64_t)(i < l->shared ? 0 : request) * l->width + i) * l->step + 11) %
                     l->num_blocks);
}

static int64_t gcd(int64_t a, int64_t b) {
    return b != 0 ? gcd(b, a % b) : a;
}

static int layer_open(layer_t *l, const attn_problem_t *problem, const attn_option_value_t *options,
                      uint32_t num_options, int64_t num_blocks, int64_t width, int64_t shared) {
    memset(l, 0, sizeof *l);
    l->error.struct_size = sizeof l->error;
    l->problem = *problem, l->num_blocks = num_blocks, l->width = width, l->shared = shared;
    for (l->step = num_blocks / 3 * 2 + 1; gcd(l->step, num_blocks) != 1;)
        l->step++;
    if (flash->ops->open(problem, &device, options, num_options, NULL, &l->instance, &l->error) != ATTN_OK)
        return -1;
    attn_space_needed_t need = {.struct_size = sizeof need};
    l->shape.struct_size = sizeof l->shape;
    flash->ops->space_needed(l->instance, &need, &l->error);
    flash->ops->kv_cache_shape(l->instance, num_blocks, &l->shape, &l->error);
    size_t rows = problem->max_num_batched_tokens, row = (size_t)problem->num_heads * problem->head_size;
    int failed = cudaMalloc(&l->cache, (size_t)l->shape.total_bytes) != cudaSuccess ||
                 cudaMalloc(&l->query, rows * row * 2) != cudaSuccess;
    for (int i = 0; i < MAX_SETS && !failed; i++) {
        buffers_t *b = &l->sets[i];
        b->space = (attn_space_t){.struct_size = sizeof b->space,
                                  .metadata_bytes = need.metadata_bytes,
                                  .workspace_bytes = need.workspace_bytes,
                                  .host_bytes = need.host_bytes};
        failed = cudaMalloc(&b->space.metadata, need.metadata_bytes) != cudaSuccess ||
                 cudaMalloc(&b->space.workspace, need.workspace_bytes + 1) != cudaSuccess ||
                 cudaMallocHost(&b->space.host, need.host_bytes) != cudaSuccess ||
                 cudaMalloc((void **)&b->table, (size_t)(MAX_REQS * width) * 4) != cudaSuccess ||
                 cudaMalloc(&b->output, rows * row * 2) != cudaSuccess ||
                 cudaMalloc((void **)&b->lse, rows * problem->num_heads * 4) != cudaSuccess;
        int32_t *table = malloc((size_t)(MAX_REQS * width) * 4);
        for (int64_t k = 0; table != NULL && k < MAX_REQS * width; k++)
            table[k] = page_of(l, (int)(k / width), k % width);
        if (!failed && table != NULL)
            cudaMemcpy(b->table, table, (size_t)(MAX_REQS * width) * 4, cudaMemcpyHostToDevice);
        free(table);
    }
    if (failed)
        snprintf(l->error.text, sizeof l->error.text, "no device memory: %s",
                 cudaGetErrorString(cudaGetLastError()));
    return failed ? -1 : 0;
}

static void layer_close(layer_t *l) {
    flash->ops->close(l->instance);
    cudaFree(l->cache), cudaFree(l->query);
    for (int i = 0; i < MAX_SETS; i++) {
        buffers_t *b = &l->sets[i];
        cudaFree(b->space.metadata), cudaFree(b->space.workspace), cudaFreeHost(b->space.host);
        cudaFree(b->table), cudaFree(b->output), cudaFree(b->lse);
    }
    cudaGetLastError();
}

/* build_metadata and forward on the stream, into the buffers of `set`. Returns ATTN_OK or a code with
 * l->error. */
static int layer_step(layer_t *l, int set, const int32_t *q_lens, const int32_t *lens, int n,
                      cudaStream_t stream, attn_error_t *error) {
    buffers_t *b = &l->sets[set];
    const attn_problem_t *p = &l->problem;
    for (int r = 0; r < n; r++) {
        b->q_start[r + 1] = b->q_start[r] + q_lens[r];
        b->lens[r] = lens[r];
    }
    int64_t rows = p->max_num_batched_tokens, d = p->head_size;
    int64_t t_shape[2] = {MAX_REQS, l->width}, t_strides[2], q_shape[3] = {rows, p->num_heads, d},
            q_strides[3], o_strides[3], lse_shape[2] = {p->num_heads, rows}, lse_strides[2], c_strides[4];
    DLTensor table = tensor_of(b->table, ATTN_DTYPE_INT32, 2, t_shape, t_strides),
             query = tensor_of(l->query, p->query_dtype ? p->query_dtype : p->dtype, 3, q_shape, q_strides),
             output = tensor_of(b->output, p->dtype, 3, q_shape, o_strides),
             lse = tensor_of(b->lse, ATTN_DTYPE_FLOAT32, 2, lse_shape, lse_strides),
             cache = {.data = l->cache,
                      .device = {kDLCUDA, 0},
                      .ndim = 4,
                      .dtype = l->shape.dtype,
                      .shape = l->shape.shape,
                      .strides = c_strides};
    for (int i = 0; i < 4; i++)
        c_strides[i] = l->shape.byte_strides[i] / (l->shape.dtype.bits / 8);
    attn_batch_t batch = {.struct_size = sizeof batch,
                          .num_reqs = n,
                          .num_actual_tokens = b->q_start[n],
                          .query_start_loc_host = b->q_start,
                          .seq_lens_host = b->lens,
                          .common_prefix_len = l->prefix,
                          .block_table = &table};
    attn_forward_t f = {
        .struct_size = sizeof f, .query = &query, .kv_cache = &cache, .output = &output, .lse = &lse};
    int status = flash->ops->build_metadata(l->instance, &batch, &b->space, stream, error);
    return status != ATTN_OK ? status : flash->ops->forward(l->instance, &f, &b->space, stream, error);
}

/* ------------------------------------------------------ a million tokens */

enum { CONTEXT = 1048576 + 613, NEEDLES = 5, KV_HEADS = 8, HEADS = 16, D = 128 };
static const int32_t needle_at[NEEDLES] = {3, 70001, 524288, 1048575, CONTEXT - 221};
static const double needle_value[NEEDLES] = {1, -2, 0.5, 4, -1};

static uint8_t e4m3_of(double x) { /* exact for the few values that are used here */
    int sign = x < 0, e = 0;
    double a = fabs(x);
    if (a == 0) return 0;
    while (a >= 2)
        a /= 2, e++;
    while (a < 1)
        a *= 2, e--;
    return (uint8_t)(sign << 7 | (e + 7) << 3 | (int)((a - 1) * 8));
}

static uint16_t bf16_of(double x) {
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

static double from_bf16(uint16_t x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void put(void *base, size_t i, double x, int bytes) {
    if (bytes == 1)
        ((uint8_t *)base)[i] = e4m3_of(x);
    else
        ((uint16_t *)base)[i] = bf16_of(x);
}

/* Keys and values of 0, but five needles with a score of 39.6: the output is their mean. Pages of nobody, and
 * the rows behind the last token, are NaN. */
static void fill_needles(layer_t *l) {
    const int eb = l->shape.dtype.bits / 8, page = (int)l->problem.block_size;
    const int64_t pages = (CONTEXT + page - 1) / page;
    char *base = l->cache, *used = calloc((size_t)l->num_blocks, 1), row[2 * D * 2];
    cudaMemset(base, 0, (size_t)l->shape.total_bytes);
    for (int64_t i = 0; i < pages; i++)
        used[page_of(l, 0, i)] = 1;
    for (int r = 1; r < 8; r++)
        used[page_of(l, r, 0)] = used[page_of(l, r, 1)] = 1;
    for (int64_t b = 0; b < l->num_blocks; b++)
        if (!used[b]) cudaMemset(base + b * l->shape.byte_strides[0], 0xff, (size_t)l->shape.page_bytes);
    for (int64_t t = CONTEXT; t < pages * page; t++)
        for (int h = 0; h < KV_HEADS; h++)
            cudaMemset(base + page_of(l, 0, t / page) * l->shape.byte_strides[0] +
                           h * l->shape.byte_strides[1] + t % page * l->shape.byte_strides[2],
                       0xff, (size_t)(2 * D * eb));
    for (int i = 0; i < NEEDLES; i++)
        for (int h = 0; h < KV_HEADS; h++) {
            for (size_t d = 0; d < 2 * D; d++)
                put(row, d, d < D ? 7 : needle_value[i] * (h & 1 ? -1 : 1), eb);
            int64_t t = needle_at[i];
            cudaMemcpy(base + page_of(l, 0, t / page) * l->shape.byte_strides[0] +
                           h * l->shape.byte_strides[1] + t % page * l->shape.byte_strides[2],
                       row, (size_t)(2 * D * eb), cudaMemcpyHostToDevice);
        }
    free(used);
}

static void million(const char *name, uint32_t kv, uint32_t query_dtype, int sm80, uint32_t page) {
    layer_t l;
    attn_option_value_t options[2] = {
        {.struct_size = sizeof options[0],
         .type = ATTN_OPTION_ENUM,
         .name = "arch",
         .i = sm80,
         .s = sm80 ? "sm80" : "auto"},
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_INT, .name = "num_splits", .i = 0, .s = "0"}};
    attn_problem_t p = {.struct_size = sizeof p,
                        .role = ATTN_ROLE_DECODER,
                        .mask = ATTN_MASK_CAUSAL,
                        .dtype = ATTN_DTYPE_BFLOAT16,
                        .query_dtype = query_dtype,
                        .kv_cache_dtype = kv,
                        .num_heads = HEADS,
                        .num_kv_heads = KV_HEADS,
                        .head_size = D,
                        .block_size = page,
                        .scale = 0.08838834764831845,
                        .max_num_seqs = 8,
                        .max_num_batched_tokens = 256,
                        .max_model_len = 1200000,
                        .features = ATTN_F_LSE};
    const int64_t pages = (CONTEXT + page - 1) / page;
    if (layer_open(&l, &p, options, 2, pages + 333, pages + 8, 0) != 0) {
        ok(0, "%s: opens (%s)", name, l.error.text);
        layer_close(&l);
        return;
    }
    fill_needles(&l);
    const size_t row = HEADS * D, bytes = 256 * row * 2;
    uint16_t *q = malloc(bytes), *out = calloc(1, bytes), *again = calloc(1, bytes);
    for (size_t i = 0; i < 256 * row; i++)
        put(q, i, 0.5, query_dtype == ATTN_DTYPE_FP8_E4M3 ? 1 : 2);
    cudaMemcpy(l.query, q, bytes, cudaMemcpyHostToDevice);
    double mean = 0;
    for (int i = 0; i < NEEDLES; i++)
        mean += needle_value[i] / NEEDLES;
    static const int32_t q_lens[3][2] = {{1, 1}, {4, 1}, {200, 2}};
    for (int k = 0; k < 3; k++) {
        const int32_t lens[2] = {CONTEXT, 17};
        static float lse[256 * HEADS];
        double worst = 0, worst_lse = 0;
        int status = 0, same = 0;
        for (int poison = 0; poison < 2; poison++) {
            cudaMemset(l.sets[0].space.workspace, poison ? 0xff : 0, l.sets[0].space.workspace_bytes);
            cudaMemset(l.sets[0].space.metadata, poison ? 0xff : 0, l.sets[0].space.metadata_bytes);
            cudaMemset(l.sets[0].output, 0xff, bytes);
            if (status == 0) status = layer_step(&l, 0, q_lens[k], lens, 2, NULL, &l.error);
            cudaError_t e = cudaDeviceSynchronize();
            if (e != cudaSuccess) status = -1;
            cudaMemcpy(poison ? again : out, l.sets[0].output, bytes, cudaMemcpyDeviceToHost);
        }
        cudaMemcpy(lse, l.sets[0].lse, sizeof lse, cudaMemcpyDeviceToHost);
        same = memcmp(out, again, bytes) == 0;
        for (int t = 0; t < q_lens[k][0] + q_lens[k][1]; t++)
            for (int h = 0; h < HEADS; h++) {
                int first = t < q_lens[k][0];
                double want = first ? mean * (h / (HEADS / KV_HEADS) & 1 ? -1 : 1) : 0, err = 0;
                for (int d = 0; d < D; d++) {
                    double x = from_bf16(out[((size_t)t * HEADS + (size_t)h) * D + (size_t)d]);
                    err = x == x ? fmax(err, fabs(x - want)) : 1e30;
                }
                worst = fmax(worst, err);
                if (first)
                    worst_lse = fmax(worst_lse,
                                     fabs((double)lse[h * 256 + t] - (7 * 0.5 * D * p.scale + log(NEEDLES))));
            }
        ok(status == 0 && worst < 0.02 && worst_lse < 1e-3 && same,
           "%s: %d query tokens see every needle in %d keys of a cache of %.2f * 2^31 elements (status %d, "
           "worst %.1e, "
           "lse %.1e, same bits over a poisoned workspace: %d)",
           name, q_lens[k][0], CONTEXT, (double)elements(&l) / 2147483648.0, status, worst, worst_lse, same);
    }
    free(q), free(out), free(again);
    layer_close(&l);
}

/* ------------------------------------------------- threads and streams */

enum { REQS = 8 };

static const attn_problem_t small = {.struct_size = sizeof small,
                                     .role = ATTN_ROLE_DECODER,
                                     .mask = ATTN_MASK_CAUSAL,
                                     .dtype = ATTN_DTYPE_BFLOAT16,
                                     .num_heads = 8,
                                     .num_kv_heads = 2,
                                     .head_size = D,
                                     .block_size = 16,
                                     .scale = 0.088388,
                                     .max_num_seqs = REQS,
                                     .max_num_batched_tokens = 512,
                                     .max_model_len = 4096,
                                     .features = ATTN_F_LSE};
enum { SMALL_BLOCKS = 2053, SMALL_WIDTH = 256, SMALL_BYTES = 512 * 8 * D * 2, VARIANTS = 4 };

static void variant(int v, int32_t *q_lens, int32_t *lens) {
    static const int32_t queries[VARIANTS][REQS] = {{1, 1, 1, 1, 1, 1, 1, 1},
                                                    {1, 90, 1, 2, 40, 1, 1, 64},
                                                    {130, 1, 1, 1, 8, 1, 2, 120},
                                                    {4, 4, 4, 4, 4, 4, 4, 4}};
    for (int r = 0; r < REQS; r++)
        q_lens[r] = queries[v][r], lens[r] = queries[v][r] + 19 + 431 * ((r + v) % 8);
}

/* Random keys, values and queries of magnitude 1 to 2. */
static void fill_random(layer_t *l, uint64_t seed, size_t query_bytes) {
    size_t bytes = (size_t)l->shape.total_bytes;
    uint16_t *h = calloc(1, bytes > query_bytes ? bytes : query_bytes);
    for (size_t i = 0; i < bytes / 2; i++)
        h[i] = (uint16_t)(0x3f00 + kit_random_in(&seed, 0, 0x7f) + (kit_random_in(&seed, 0, 1) << 15));
    cudaMemcpy(l->query, h, query_bytes, cudaMemcpyHostToDevice);
    for (size_t i = 0; i < bytes / 2 && l->shape.dtype.bits == 8; i++)
        h[i] =
            (uint16_t)((kit_random_in(&seed, 0, 0xffff) & 0x9f9f) | 0x2020); /* e4m3 from 2^-3 to 2, no NaN */
    cudaMemcpy(l->cache, h, bytes, cudaMemcpyHostToDevice);
    free(h);
}

static int open_small(layer_t *l, uint64_t seed) {
    if (layer_open(l, &small, NULL, 0, SMALL_BLOCKS, SMALL_WIDTH, 0) != 0) return -1;
    fill_random(l, seed, SMALL_BYTES);
    return 0;
}

typedef struct worker {
    layer_t l;
    cudaStream_t stream;
    char *want[VARIANTS], *got;
    int wrong, status;
    attn_error_t error;
} worker_t;

static int run_variant(worker_t *w, int set, int v, char *to) {
    int32_t q_lens[REQS], lens[REQS];
    variant(v, q_lens, lens);
    cudaMemsetAsync(w->l.sets[set].output, 0xee, SMALL_BYTES, w->stream);
    int status = layer_step(&w->l, set, q_lens, lens, REQS, w->stream, &w->error);
    if (to != NULL) {
        cudaMemcpyAsync(to, w->l.sets[set].output, SMALL_BYTES, cudaMemcpyDeviceToHost, w->stream);
        cudaStreamSynchronize(w->stream);
    }
    return status;
}

static void *work(void *argument) {
    worker_t *w = argument;
    for (int i = 0; i < 40; i++) {
        int status = run_variant(w, i & 1, i % VARIANTS, w->got);
        if (status != ATTN_OK) w->status = status;
        w->wrong += memcmp(w->got, w->want[i % VARIANTS], SMALL_BYTES) != 0;
    }
    return NULL;
}

static void threads_and_streams(uint64_t seed) {
    enum { THREADS = 4 };
    static worker_t w[THREADS];
    pthread_t id[THREADS];
    int failed = 0, wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        w[i].error.struct_size = sizeof w[i].error;
        failed |= open_small(&w[i].l, seed + (uint64_t)i) != 0;
        cudaStreamCreateWithFlags(&w[i].stream, cudaStreamNonBlocking);
        w[i].got = malloc(SMALL_BYTES);
        for (int v = 0; v < VARIANTS && !failed; v++) {
            w[i].want[v] = malloc(SMALL_BYTES);
            failed |= run_variant(&w[i], 0, v, w[i].want[v]) != ATTN_OK;
        }
    }
    for (int i = 0; i < THREADS && !failed; i++)
        pthread_create(&id[i], NULL, work, &w[i]);
    for (int i = 0; i < THREADS && !failed; i++) {
        pthread_join(id[i], NULL);
        failed |= w[i].status != ATTN_OK;
        wrong += w[i].wrong;
    }
    ok(!failed && wrong == 0,
       "%d threads with an instance and a stream each get the bits of a single one (%d differ)", (int)THREADS,
       wrong);

    /* one instance, two metadata buffers on two streams: both are on their way before either is waited for */
    worker_t *a = &w[0], second = w[0];
    cudaStreamCreateWithFlags(&second.stream, cudaStreamNonBlocking);
    char *other = malloc(SMALL_BYTES);
    wrong = 0;
    for (int i = 0; i < 24 && !failed; i++) {
        int va = i % VARIANTS, vb = (i + 1 + i / VARIANTS) % VARIANTS;
        failed |= run_variant(a, 0, va, NULL) != ATTN_OK;
        second.l.sets[1] = a->l.sets[1];
        failed |= run_variant(&second, 1, vb, NULL) != ATTN_OK;
        cudaStreamSynchronize(a->stream);
        cudaStreamSynchronize(second.stream);
        cudaMemcpy(a->got, a->l.sets[0].output, SMALL_BYTES, cudaMemcpyDeviceToHost);
        cudaMemcpy(other, a->l.sets[1].output, SMALL_BYTES, cudaMemcpyDeviceToHost);
        wrong += memcmp(a->got, a->want[va], SMALL_BYTES) != 0;
        wrong += memcmp(other, a->want[vb], SMALL_BYTES) != 0;
    }
    ok(!failed && wrong == 0, "two batches of one instance on two streams do not meet (%d of 48 differ)",
       wrong);
    free(other);
    cudaStreamDestroy(second.stream);
    for (int i = 0; i < THREADS; i++) {
        layer_close(&w[i].l);
        cudaStreamDestroy(w[i].stream);
        for (int v = 0; v < VARIANTS; v++)
            free(w[i].want[v]);
        free(w[i].got);
    }
}

/* -------------------------------------------------------------- cascade */

/* One pass over all keys, and prefix and suffix apart: the same but for the rounding of the parts. */
static void cascade(const char *name, int n, int32_t query, int32_t prefix, uint32_t kv, uint64_t seed) {
    layer_t l;
    attn_problem_t p = small;
    p.num_heads = 32, p.num_kv_heads = 8, p.kv_cache_dtype = kv;
    p.max_num_seqs = MAX_REQS, p.max_model_len = 16384, p.features = ATTN_F_LSE | ATTN_F_CASCADE;
    if (layer_open(&l, &p, NULL, 0, prefix / 16 + MAX_REQS * 24 + 7, prefix / 16 + 24, prefix / 16) != 0) {
        ok(0, "cascade, %s: opens (%s)", name, l.error.text);
        layer_close(&l);
        return;
    }
    const size_t rows = 512, bytes = rows * 32 * D * 2, lses = rows * 32;
    uint16_t *out[2] = {malloc(bytes), malloc(bytes)};
    float *lse[2] = {malloc(lses * 4), malloc(lses * 4)};
    int32_t q_lens[MAX_REQS], lens[MAX_REQS], status = 0;
    float us[2] = {0, 0};
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    fill_random(&l, seed, bytes);
    for (int r = 0; r < n; r++)
        q_lens[r] = query, lens[r] = prefix + query + 5 * r;
    for (int k = 0; k < 2 && status == 0; k++) {
        l.prefix = k ? prefix : 0;
        for (int i = 0; i < 12 && status == 0; i++) { /* an engine builds a step once for many layers */
            float step_ms = 0;
            cudaEventRecord(begin, NULL);
            status = layer_step(&l, 0, q_lens, lens, n, NULL, &l.error);
            cudaEventRecord(end, NULL);
            cudaEventSynchronize(end); /* the next build writes over what this one copies from */
            cudaEventElapsedTime(&step_ms, begin, end);
            if (i >= 2) us[k] += step_ms * 100; /* of ten, in microseconds */
        }
        cudaMemcpy(out[k], l.sets[0].output, bytes, cudaMemcpyDeviceToHost);
        cudaMemcpy(lse[k], l.sets[0].lse, lses * 4, cudaMemcpyDeviceToHost);
    }
    double num = 0, den = 0, worst = 0;
    for (size_t t = 0; t < (size_t)(n * query); t++) {
        for (size_t i = 0; i < 32 * D; i++) {
            double a = from_bf16(out[0][t * 32 * D + i]), b = from_bf16(out[1][t * 32 * D + i]);
            num += (a - b) * (a - b), den += a * a;
        }
        for (size_t h = 0; h < 32; h++)
            worst = fmax(worst, fabs((double)lse[0][h * rows + t] - (double)lse[1][h * rows + t]));
    }
    ok(status == 0 && sqrt(num / den) < 6e-3 && worst < 1e-3,
       "cascade, %s: %d requests of %d tokens, a prefix of %d: as one pass (status %d, relative difference "
       "%.1e, lse %.1e)",
       name, n, query, prefix, status, sqrt(num / den), worst);
    diag("one pass %.0f us, cascade %.0f us, with build_metadata", (double)us[0], (double)us[1]);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    for (int k = 0; k < 2; k++)
        free(out[k]), free(lse[k]);
    layer_close(&l);
}

int main(void) {
    int count = 0;
    char why[256] = "", path[1024], cwd[900];
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    const char *dir = getenv("FLASH_TEST_PLUGINS");
    if (dir == NULL && getcwd(cwd, sizeof cwd) != NULL) {
        snprintf(path, sizeof path, "%s/plugins-built", cwd);
        dir = path;
    }
    char file[1200];
    snprintf(file, sizeof file, "%s/flash.so", dir);
    flash = kit_load(file, "FLASH_ATTN", why, sizeof why);
    if (flash == NULL) bail_out("%s: %s", file, why);
    uint64_t seed = tap_seed();
    part_in_time(), threads_and_streams(seed);
    if (part_in_time()) cascade("decode", 8, 1, 4096, 0, seed);
    if (part_in_time()) cascade("prefill", 5, 100, 1024, 0, seed);
    if (part_in_time()) cascade("e4m3 cache", 16, 3, 2048, ATTN_KV_FP8_E4M3, seed);
    if (part_takes()) cascade("decode of many", 64, 1, 8192, 0, seed);
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    if (available < (size_t)7 << 30) {
        diag("%.1f GiB of device memory are free; contexts of a million tokens want 7",
             (double)available / (1 << 30));
        return tap_done();
    }
    if (part_takes()) million("bfloat16", 0, 0, 0, 16);
    if (part_takes()) million("bfloat16, pages of 64", 0, 0, 0, 64);
    if (part_takes()) million("bfloat16, arch = sm80", 0, 0, 1, 16);
    if (part_takes()) million("e4m3 cache", ATTN_KV_FP8_E4M3, 0, 0, 16);
    if (part_takes()) million("e4m3 cache and query", ATTN_KV_FP8_E4M3, ATTN_DTYPE_FP8_E4M3, 0, 16);
    return tap_done();
}
