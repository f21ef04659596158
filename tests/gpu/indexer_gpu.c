/* SPDX-License-Identifier: Apache-2.0 */
/* indexer_gpu: every call of attn.draft.indexer/0 in mla_sparse against the one of reference: bytes equal
 * where the format or the result is exact, logits within a tolerance; what is not to be written stays as it
 * was. INDEXER_TEST_PLUGINS is the folder of the plugins, plugins-built otherwise. */
#include "part.h"
#include "../tap.h"

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_indexer.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

static const attn_indexer_extension_t *gpu, *cpu;
static attn_indexer_t *on_gpu, *on_cpu;
static attn_error_t error = {.struct_size = sizeof error};
static cudaStream_t stream;
static uint64_t seed;

/* The same tensor on both sides. */
typedef struct pair {
    DLTensor h, d;
    int64_t shape[3], strides[3];
    size_t bytes;
    unsigned char *back; /* room for what comes back */
} pair_t;

/* gap: elements between rows beyond the dense ones. Filled with a pattern that is a NaN in float32. */
static void make(pair_t *p, uint32_t dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t gap) {
    const int64_t shape[3] = {a, b, c};
    int64_t count = 1;
    memset(p, 0, sizeof *p);
    for (int i = ndim - 1; i >= 0; i--) {
        p->shape[i] = shape[i], p->strides[i] = count;
        count *= shape[i];
        if (i == 1) count += gap;
    }
    p->bytes = (size_t)count * attn_dtype_size(dtype);
    p->h = (DLTensor){.device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = p->shape,
                      .strides = p->strides,
                      .data = malloc(p->bytes + 256)};
    p->back = malloc(p->bytes + 256);
    p->d = p->h;
    p->d.device.device_type = kDLCUDA;
    memset(p->h.data, 0xff, p->bytes + 256);
    if (cudaMalloc(&p->d.data, p->bytes + 256) != cudaSuccess) bail_out("no memory on the device");
    cudaMemset(p->d.data, 0xff, p->bytes + 256);
}
static void up(pair_t *p) {
    cudaMemcpy(p->d.data, p->h.data, p->bytes, cudaMemcpyHostToDevice);
}
static void drop(pair_t *p) {
    cudaFree(p->d.data);
    free(p->h.data), free(p->back);
}
/* Equal in every byte, the 256 behind the end included. */
static int same(pair_t *p) {
    cudaStreamSynchronize(stream);
    cudaMemcpy(p->back, p->d.data, p->bytes + 256, cudaMemcpyDeviceToHost);
    return memcmp(p->back, p->h.data, p->bytes + 256) == 0;
}
static void fill_bytes(pair_t *p, unsigned char mask) {
    for (size_t i = 0; i < p->bytes; i++)
        ((unsigned char *)p->h.data)[i] = (unsigned char)tap_rand(&seed) & mask;
    up(p);
}
static void fill_ints(pair_t *p, int64_t low, int64_t high) {
    for (size_t i = 0; i < p->bytes / 4; i++)
        ((int32_t *)p->h.data)[i] = (int32_t)tap_rand_in(&seed, low, high);
    up(p);
}
static void fill_floats(pair_t *p) {
    for (size_t i = 0; i < p->bytes / 4; i++)
        ((float *)p->h.data)[i] = (float)tap_rand_normal(&seed);
    up(p);
}
/* Values of a 16-bit or 32-bit type: normal, with zeros, huge and tiny ones among them. */
static void fill_values(pair_t *p, uint32_t dtype) {
    for (size_t i = 0; i < p->bytes / attn_dtype_size(dtype); i++) {
        float f = (float)tap_rand_normal(&seed);
        uint32_t u, kind = (uint32_t)(tap_rand(&seed) % 64);
        if (kind == 0) f = 0;
        if (kind == 1) f *= 100;
        if (kind == 2) f *= 0x1p-12f;
        memcpy(&u, &f, 4);
        if (dtype == ATTN_DTYPE_FLOAT32)
            ((float *)p->h.data)[i] = f;
        else if (dtype == ATTN_DTYPE_BFLOAT16)
            ((uint16_t *)p->h.data)[i] = (uint16_t)(u >> 16);
        else { /* float16 by its bits: sign, exponent 0 .. 22, mantissa */
            ((uint16_t *)p->h.data)[i] = (uint16_t)(tap_rand(&seed) % 23 << 10 | (tap_rand(&seed) & 0x83ff));
        }
    }
    up(p);
}

static void start(uint32_t heads, uint32_t block, uint32_t topk, uint32_t dtype, uint32_t format) {
    const attn_indexer_problem_t p = {.struct_size = sizeof p,
                                      .num_heads = heads,
                                      .block_size = block,
                                      .topk = topk,
                                      .dtype = dtype,
                                      .scale_format = format};
    const attn_device_t host = {.struct_size = sizeof host, .type = kDLCPU},
                        device = {.struct_size = sizeof device, .type = kDLCUDA};
    if (cpu->open(&p, &host, NULL, &on_cpu, &error) != ATTN_OK ||
        gpu->open(&p, &device, NULL, &on_gpu, &error) != ATTN_OK)
        bail_out("%s", error.text);
}
static void stop(void) {
    gpu->close(on_gpu), cpu->close(on_cpu);
}

static void keys_and_queries(uint32_t block, uint32_t dtype, uint32_t format) {
    pair_t key, cache, slots, table, prefix, keys, scales, query, weights, quantized, out;
    enum { N = 301, PAGES = 40 };
    start(24, block, 128, dtype, format);
    make(&key, dtype, 2, N, 128, 0, 8), make(&cache, ATTN_DTYPE_UINT8, 3, PAGES, block, 132, 0);
    make(&slots, ATTN_DTYPE_INT64, 1, N, 0, 0, 0), make(&table, ATTN_DTYPE_INT32, 2, 3, 10, 0, 0);
    make(&prefix, ATTN_DTYPE_INT32, 1, 4, 0, 0, 0), make(&keys, ATTN_DTYPE_FP8_E4M3, 2, 200, 128, 0, 16);
    make(&scales, ATTN_DTYPE_FLOAT32, 1, 200, 0, 0, 0);
    fill_values(&key, dtype);
    int64_t *s = slots.h.data;
    for (int i = 0; i < N; i++) /* distinct, with holes, some refused */
        s[i] = i % 7 == 3    ? -1
               : i % 50 == 9 ? PAGES * (int64_t)block + i
                             : (i * INT64_C(2)) % (PAGES * (int64_t)block);
    if (PAGES * (int64_t)block < 2 * N)
        for (int i = 0; i < N; i++)
            s[i] = i;
    up(&slots);
    attn_indexer_write_t w = {
        .struct_size = sizeof w, .key = &key.h, .cache = &cache.h, .slot_mapping = &slots.h};
    int status = cpu->write_keys(on_cpu, &w, NULL, &error);
    w.key = &key.d, w.cache = &cache.d, w.slot_mapping = &slots.d;
    status |= gpu->write_keys(on_gpu, &w, stream, &error);
    ok(status == ATTN_OK && same(&cache),
       "keys in %s, pages of %u, scales of format %u: the cache has the same bytes", attn_dtype_name(dtype),
       block, format);

    fill_bytes(&cache, 0xff), fill_ints(&table, 0, PAGES - 1);
    const int32_t ends[4] = {0, 77, 77, 190};
    memcpy(prefix.h.data, ends, sizeof ends);
    up(&prefix);
    attn_indexer_gather_t g = {.struct_size = sizeof g,
                               .num_reqs = 3,
                               .cache = &cache.h,
                               .block_table = &table.h,
                               .prefix = &prefix.h,
                               .keys = &keys.h,
                               .key_scales = &scales.h};
    status = cpu->gather_keys(on_cpu, &g, NULL, &error);
    g.cache = &cache.d, g.block_table = &table.d, g.prefix = &prefix.d, g.keys = &keys.d,
    g.key_scales = &scales.d;
    status |= gpu->gather_keys(on_gpu, &g, stream, &error);
    ok(status == ATTN_OK && same(&keys) && same(&scales),
       "pages of %u: gathered keys and scales are the same bytes", block);

    make(&query, dtype, 3, 9, 24, 128, 16), make(&weights, dtype, 2, 9, 24, 0, 1);
    make(&quantized, ATTN_DTYPE_FP8_E4M3, 3, 9, 24, 128, 32), make(&out, ATTN_DTYPE_FLOAT32, 2, 9, 24, 0, 3);
    fill_values(&query, dtype), fill_values(&weights, dtype);
    attn_indexer_quantize_t q = {.struct_size = sizeof q,
                                 .num_rows = 8,
                                 .query = &query.h,
                                 .weights = &weights.h,
                                 .quantized = &quantized.h,
                                 .out_weights = &out.h};
    status = cpu->quantize_queries(on_cpu, &q, NULL, &error);
    q.query = &query.d, q.weights = &weights.d, q.quantized = &quantized.d, q.out_weights = &out.d;
    status |= gpu->quantize_queries(on_gpu, &q, stream, &error);
    ok(status == ATTN_OK && same(&quantized) && same(&out),
       "queries in %s: e4m3 and weights are the same bytes", attn_dtype_name(dtype));
    pair_t *all[] = {&key,    &cache, &slots,   &table,     &prefix, &keys,
                     &scales, &query, &weights, &quantized, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

/* Largest difference of the rows over the largest logit; -1 where something is written on one side only. */
static double difference(pair_t *logits, int64_t rows) {
    double worst = 0, largest = 1e-30;
    cudaStreamSynchronize(stream);
    cudaMemcpy(logits->back, logits->d.data, logits->bytes + 256, cudaMemcpyDeviceToHost);
    const float *want = logits->h.data, *got = (const float *)(const void *)logits->back;
    for (int64_t i = 0; i < rows * logits->strides[0]; i++)
        if (isfinite(want[i])) largest = fabs((double)want[i]) > largest ? fabs((double)want[i]) : largest;
    for (size_t i = 0; i < (logits->bytes + 256) / 4; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i])) {
            if (memcmp(&want[i], &got[i], 4) != 0) return -1;
        } else if (fabs((double)want[i] - got[i]) > worst)
            worst = fabs((double)want[i] - got[i]);
    }
    return worst / largest;
}

/* semantics 10.2: relative difference below 1e-3, and the same -inf where cleaned */
#define LOGITS_TOLERANCE 1e-3

static void in_one_piece(uint32_t heads, int32_t rows, int32_t keys, int clean, int causal) {
    pair_t q, w, k, s, lo, hi, out;
    start(heads, 64, 128, 0, 0);
    make(&q, ATTN_DTYPE_FP8_E4M3, 3, rows, heads, 128, 0), make(&w, ATTN_DTYPE_FLOAT32, 2, rows, heads, 0, 3);
    make(&k, ATTN_DTYPE_FP8_E4M3, 2, keys, 128, 0, 16), make(&s, ATTN_DTYPE_FLOAT32, 1, keys, 0, 0, 0);
    make(&lo, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0), make(&hi, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0);
    make(&out, ATTN_DTYPE_FLOAT32, 2, rows, keys, 0, 5);
    fill_bytes(&q, 0xbf), fill_bytes(&k, 0xbf), fill_floats(&w);
    for (int i = 0; i < keys; i++)
        ((float *)s.h.data)[i] = (float)ldexp(1 + tap_rand_unit(&seed), (int)tap_rand_in(&seed, -6, 1));
    up(&s);
    for (int t = 0; t < rows; t++) {
        int32_t a = causal ? 0 : (int32_t)tap_rand_in(&seed, -3, keys),
                b = (int32_t)tap_rand_in(&seed, 0, keys + 3);
        if (!causal && t % 5 == 1) b = a;
        ((int32_t *)lo.h.data)[t] = a, ((int32_t *)hi.h.data)[t] = causal ? keys - rows + t + 1 : b;
    }
    up(&lo), up(&hi);
    attn_indexer_logits_t a = {.struct_size = sizeof a,
                               .flags = clean ? ATTN_INDEXER_CLEAN : 0,
                               .num_rows = rows,
                               .query = &q.h,
                               .weights = &w.h,
                               .keys = &k.h,
                               .key_scales = &s.h,
                               .row_starts = &lo.h,
                               .row_ends = &hi.h,
                               .logits = &out.h};
    int status = cpu->logits(on_cpu, &a, NULL, &error);
    a.query = &q.d, a.weights = &w.d, a.keys = &k.d, a.key_scales = &s.d, a.row_starts = &lo.d,
    a.row_ends = &hi.d;
    a.logits = &out.d;
    status |= gpu->logits(on_gpu, &a, stream, &error);
    double d = difference(&out, rows);
    ok(status == ATTN_OK && d >= 0 && d < LOGITS_TOLERANCE, "logits, %u heads, %d rows of %d keys%s%s: %.1e",
       heads, rows, keys, causal ? ", causal" : "", clean ? ", cleaned" : "", d);
    pair_t *all[] = {&q, &w, &k, &s, &lo, &hi, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

static void in_pages(uint32_t heads, uint32_t block, int32_t reqs, int32_t per, int32_t longest, int clean) {
    pair_t q, w, c, table, lens, out;
    const int32_t rows = reqs * per, width = (longest + (int32_t)block - 1) / (int32_t)block,
                  pages = reqs * width + 1;
    start(heads, block, 128, 0, 0);
    make(&q, ATTN_DTYPE_FP8_E4M3, 3, rows, heads, 128, 0), make(&w, ATTN_DTYPE_FLOAT32, 2, rows, heads, 0, 0);
    make(&c, ATTN_DTYPE_UINT8, 3, pages, block, 132, 0), make(&table, ATTN_DTYPE_INT32, 2, reqs, width, 0, 2);
    make(&lens, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0), make(&out, ATTN_DTYPE_FLOAT32, 2, rows, longest, 0, 1);
    fill_bytes(&q, 0xbf), fill_bytes(&c, 0xbf), fill_floats(&w);
    for (int p = 0; p < pages; p++)
        for (uint32_t i = 0; i < block; i++) {
            float x = (float)ldexp(1, (int)tap_rand_in(&seed, -6, 1));
            memcpy((char *)c.h.data + (p * (int64_t)block * 132 + (int64_t)block * 128 + i * 4), &x, 4);
        }
    up(&c);
    int32_t *t = table.h.data;
    for (int r = 0; r < reqs; r++) {
        int32_t n = r == 0 ? longest : (int32_t)tap_rand_in(&seed, 0, longest);
        for (int j = 0; j < per; j++)
            ((int32_t *)lens.h.data)[r * per + j] = n - per + j + 1;
        for (int i = 0; i < width; i++)
            t[r * (width + 2) + i] =
                i < (n + (int)block - 1) / (int)block ? (r * 7 + i * 5) % pages : INT32_MAX - 100;
    }
    up(&table), up(&lens);
    attn_indexer_paged_t a = {.struct_size = sizeof a,
                              .flags = clean ? ATTN_INDEXER_CLEAN : 0,
                              .num_rows = rows,
                              .rows_per_request = per,
                              .query = &q.h,
                              .weights = &w.h,
                              .cache = &c.h,
                              .block_table = &table.h,
                              .row_lens = &lens.h,
                              .logits = &out.h};
    int status = cpu->logits_paged(on_cpu, &a, NULL, &error);
    a.query = &q.d, a.weights = &w.d, a.cache = &c.d, a.block_table = &table.d, a.row_lens = &lens.d,
    a.logits = &out.d;
    status |= gpu->logits_paged(on_gpu, &a, stream, &error);
    double d = difference(&out, rows);
    ok(status == ATTN_OK && d >= 0 && d < LOGITS_TOLERANCE,
       "cached keys, %u heads, pages of %u, %d requests of %d rows, %d keys%s: %.1e", heads, block, reqs, per,
       longest, clean ? ", cleaned" : "", d);
    if (!clean && block == 64 && reqs > 4) { /* a graph, replayed with other lengths */
        cudaGraph_t graph;
        cudaGraphExec_t exec = NULL;
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        status = gpu->logits_paged(on_gpu, &a, stream, &error);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        for (int r = 0; r < rows; r++)
            ((int32_t *)lens.h.data)[r] = ((int32_t *)lens.h.data)[r] / 2;
        up(&lens);
        memset(out.h.data, 0xff, out.bytes);
        cudaMemset(out.d.data, 0xff, out.bytes);
        a.query = &q.h, a.weights = &w.h, a.cache = &c.h, a.block_table = &table.h, a.row_lens = &lens.h,
        a.logits = &out.h;
        status |= cpu->logits_paged(on_cpu, &a, NULL, &error);
        cudaGraphLaunch(exec, stream);
        d = difference(&out, rows);
        ok(status == ATTN_OK && d >= 0 && d < LOGITS_TOLERANCE,
           "a captured graph follows changed lengths: %.1e", d);
        cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    }
    pair_t *all[] = {&q, &w, &c, &table, &lens, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

enum { NORMAL, OFFSET, EQUAL, RISING, FALLING, SPIKES, TWO_VALUES, SPECIAL, TINY_STEPS, NUM_KINDS };
static const char *const kind_names[] = {"normal",
                                         "far from 0",
                                         "all equal",
                                         "rising",
                                         "falling",
                                         "spikes",
                                         "two values",
                                         "NaN, infinities, both zeros",
                                         "neighbouring floats"};

static float sample(int kind, int64_t i) {
    float f = 1000;
    uint32_t u = (uint32_t)tap_rand(&seed);
    switch (kind) {
    case OFFSET:
        return 3000 + (float)tap_rand_normal(&seed);
    case EQUAL:
        return -1.5f;
    case RISING:
        return (float)i * 0.25f - 100;
    case FALLING:
        return 100 - (float)i * 0.25f;
    case SPIKES:
        return u % 1000 == 0 ? 1e6f * (float)(u % 77) : (float)(u % 16) * 1e-20f;
    case TWO_VALUES:
        return u % 50 == 0 ? 1.0f : 0.5f;
    case SPECIAL:
        return u % 8 == 0      ? NAN
               : u % 8 == 1    ? -INFINITY
               : u % 4096 == 2 ? INFINITY
               : u % 2         ? -0.0f
               : u % 3 == 0    ? 0.0f
                               : -1e-42f;
    case TINY_STEPS:
        u = u % 4096;
        memcpy(&f, &(uint32_t){0x447a0000 + u}, 4);
        return f;
    default:
        return (float)tap_rand_normal(&seed);
    }
}

static void top(int kind, uint32_t topk, int32_t rows, int32_t columns, int ranges) {
    if (!part_in_time()) return;
    pair_t in, lo, hi, out;
    start(64, 64, topk, 0, 0);
    make(&in, ATTN_DTYPE_FLOAT32, 2, rows, columns, 0, 1), make(&lo, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0);
    make(&hi, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0), make(&out, ATTN_DTYPE_INT32, 2, rows, topk, 0, 7);
    for (int64_t i = 0; i < rows * (int64_t)(columns + 1); i++)
        ((float *)in.h.data)[i] = sample(kind, i % (columns + 1));
    for (int t = 0; t < rows; t++) {
        ((int32_t *)lo.h.data)[t] = ranges ? (int32_t)tap_rand_in(&seed, 0, columns / 2) : 0;
        ((int32_t *)hi.h.data)[t] = ranges ? (int32_t)tap_rand_in(&seed, columns / 4, columns + 9) : columns;
    }
    up(&in), up(&lo), up(&hi);
    attn_indexer_select_t a = {.struct_size = sizeof a,
                               .num_rows = rows,
                               .logits = &in.h,
                               .row_starts = ranges ? &lo.h : NULL,
                               .row_ends = &hi.h,
                               .indices = &out.h};
    int status = cpu->select(on_cpu, &a, NULL, &error);
    a.logits = &in.d, a.row_starts = ranges ? &lo.d : NULL, a.row_ends = &hi.d, a.indices = &out.d;
    status |= gpu->select(on_gpu, &a, stream, &error);
    ok(status == ATTN_OK && same(&out), "top %u of %d x %d%s, %s: the same indices", topk, rows, columns,
       ranges ? " in ranges" : "", kind_names[kind]);
    pair_t *all[] = {&in, &lo, &hi, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

static void refused(void) {
    pair_t in, hi, out;
    start(64, 64, 2048, 0, 0);
    make(&in, ATTN_DTYPE_FLOAT32, 2, 2, 64, 0, 0), make(&hi, ATTN_DTYPE_INT32, 1, 2, 0, 0, 0);
    make(&out, ATTN_DTYPE_INT32, 2, 2, 2048, 0, 0);
    attn_indexer_select_t a = {
        .struct_size = sizeof a, .num_rows = 2, .logits = &in.h, .row_ends = &hi.d, .indices = &out.d};
    is_int(gpu->select(on_gpu, &a, stream, &error), ATTN_E_INVALID, "logits in host memory are refused");
    is_str(error.param, "logits", "by name");
    a.logits = &in.d, a.num_rows = 3;
    is_int(gpu->select(on_gpu, &a, stream, &error), ATTN_E_INVALID, "fewer rows than counted are refused");
    drop(&in), drop(&hi), drop(&out);
    stop();
}

static const attn_indexer_extension_t *load(const char *dir, const char *file) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (so == NULL) bail_out("%s: %s", path, dlerror());
    const attn_plugin_t *plugin = dlsym(so, ATTN_PLUGIN_SYMBOL_NAME);
    const attn_indexer_extension_t *e =
        plugin != NULL ? plugin->backends[0]->ops->get_extension(NULL, ATTN_INDEXER_EXTENSION) : NULL;
    if (e == NULL) bail_out("%s has no %s", path, ATTN_INDEXER_EXTENSION);
    return e;
}

int main(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    const char *dir = getenv("INDEXER_TEST_PLUGINS");
    char path[1024], cwd[900];
    if (dir == NULL && getcwd(cwd, sizeof cwd) != NULL) {
        snprintf(path, sizeof path, "%s/plugins-built", cwd);
        dir = path;
    }
    seed = tap_seed();
    gpu = load(dir, "mla_sparse.so");
    cpu = load(dir, "reference.so");
    cudaStreamCreate(&stream);
    keys_and_queries(64, ATTN_DTYPE_BFLOAT16, ATTN_INDEXER_SCALE_UE8M0);
    keys_and_queries(16, ATTN_DTYPE_FLOAT16, ATTN_INDEXER_SCALE_FLOAT32);
    keys_and_queries(48, ATTN_DTYPE_FLOAT32, ATTN_INDEXER_SCALE_FLOAT32);
    in_one_piece(64, 37, 1000, 0, 0), in_one_piece(64, 130, 517, 1, 0), in_one_piece(64, 3, 1, 1, 0);
    in_one_piece(64, 64, 700, 0, 1), in_one_piece(32, 21, 300, 1, 0), in_one_piece(128, 5, 129, 0, 0);
    in_one_piece(8, 5, 1100, 1, 0);
    in_one_piece(64, 2000, 100, 0, 0); /* several tiles of one block for each multiprocessor */
    in_pages(64, 64, 9, 1, 1030, 0), in_pages(64, 64, 5, 2, 777, 0), in_pages(64, 64, 3, 4, 200, 1);
    in_pages(64, 64, 3, 3, 200, 1), in_pages(64, 16, 7, 1, 333, 1), in_pages(64, 96, 7, 2, 500, 1);
    in_pages(64, 128, 4, 1, 129, 0), in_pages(32, 64, 4, 1, 300, 1), in_pages(64, 64, 1, 1, 64, 1);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        top(kind, 2048, 3, 20000, 0), top(kind, 2048, 3, 20001, 1); /* a cluster for each row */
        top(kind, 2048, 60, 5000, 1), top(kind, 512, 50, 12001, 1), top(kind, 2048, 140, 20000, 0);
    }
    static const int columns[] = {1, 2047, 2048, 2049, 8191, 8192, 8193, 131072, 131073};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        top(NORMAL, 2048, 2, columns[i], 0), top(NORMAL, 2048, 40, columns[i], 0);
    /* as much as a cluster holds, at every alignment */
    top(NORMAL, 2048, 4, 262144, 0), top(TINY_STEPS, 2048, 4, 262144, 0);
    top(EQUAL, 2048, 1, 300000, 0), top(NORMAL, 2048, 1, 600000, 0), top(TWO_VALUES, 128, 2, 600000, 1);
    refused();
    is_int(cudaDeviceSynchronize(), cudaSuccess, "the device has no error");
    return tap_done();
}
