/* SPDX-License-Identifier: Apache-2.0 */
/* mla_sparse_bench [TEXT]: times of the Hopper kernels of sparse attention with their merge (S1: 16-bit
 * cache, S2: 656 bytes a token, D: 40 tokens whose lists name nothing at some of their positions) and of the
 * cache writers, below the plugin ABI: graph replays, burst (12 ms after a rest) and sustained (after 200 ms
 * of the same load). Random normal data, random lists without order. Some rows of each result are compared
 * with attention in double. Rows whose name contains TEXT. */
#include "kernels/cuda/latent/mla_config.h"
#include "kernels/cuda/latent/mla_launch.h"
#include "kernels/cuda/latent/mla_plan.h"
#include "kernels/cuda/sparse/sparse_attend_sm90.h"

#include <algorithm>
#include <cuda_runtime.h>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vector>

#define CK(x)                                                                                                \
    do {                                                                                                     \
        cudaError_t e_ = (cudaError_t)(x);                                                                   \
        if (e_ != cudaSuccess) {                                                                             \
            fprintf(stderr, "%s, line %d: %s\n", #x, __LINE__, cudaGetErrorString(e_));                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const char *filter;
static cudaStream_t stream;
static cudaEvent_t ev0, ev1;
static std::vector<void *> owned;

template <class T>
static T *room(size_t n) {
    void *p = NULL;
    CK(cudaMalloc(&p, n * sizeof(T)));
    owned.push_back(p);
    return (T *)p;
}
template <class T>
static T *send(const std::vector<T> &v) {
    T *p = room<T>(v.size());
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
static void free_all() {
    for (void *p : owned)
        CK(cudaFree(p));
    owned.clear();
}

__device__ float normal_of(uint32_t i) {
    uint32_t x = i * 2654435761u + 17, y;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    y = x * 0x9e3779b1u + 0x85ebca6bu, y ^= y >> 15, y *= 0x2c1b3c6du, y ^= y >> 13;
    return sqrtf(-2.f * logf(((x >> 8) + 1) * (1.f / 16777217.f))) *
           cospif(2.f * (y >> 8) * (1.f / 16777216.f));
}
__global__ void fill_normal(uint16_t *p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (uint16_t)(__float_as_uint(normal_of((uint32_t)i)) >> 16);
}

/* Microseconds of one call: burst and sustained. */
static void measure(const std::function<int()> &call, double *burst, double *sustained) {
    auto graph_of = [&](int n) {
        cudaGraph_t g;
        cudaGraphExec_t x;
        CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < n; i++)
            CK(call());
        CK(cudaStreamEndCapture(stream, &g));
        CK(cudaGraphInstantiate(&x, g, 0));
        CK(cudaGraphDestroy(g));
        return x;
    };
    auto replay = [&](cudaGraphExec_t x, int n) {
        float ms = 0;
        CK(cudaEventRecord(ev0, stream));
        for (int i = 0; i < n; i++)
            CK(cudaGraphLaunch(x, stream));
        CK(cudaEventRecord(ev1, stream));
        CK(cudaEventSynchronize(ev1));
        CK(cudaEventElapsedTime(&ms, ev0, ev1));
        return ms * 1e3;
    };
    auto median = [](std::vector<double> v) {
        std::sort(v.begin(), v.end());
        return v[v.size() / 2];
    };
    CK(call());
    CK(cudaStreamSynchronize(stream));
    cudaGraphExec_t x = graph_of(4);
    replay(x, 1);
    const int per = std::max(1, std::min(256, (int)(2000 / (replay(x, 1) / 4))));
    CK(cudaGraphExecDestroy(x));
    x = graph_of(per);
    replay(x, 1);
    usleep(120000);
    std::vector<double> times;
    for (double sum = 0; sum < 12000 && times.size() < 12; sum += times.back() * per)
        times.push_back(replay(x, 1) / per);
    *burst = median(times);
    const int chunk = std::max(1, (int)(20000 / (*burst * per)));
    replay(x, 10 * chunk);
    times.clear();
    for (int i = 0; i < 9; i++)
        times.push_back(replay(x, chunk) / (chunk * per));
    *sustained = median(times);
    CK(cudaGraphExecDestroy(x));
}

/* Attention of row blockIdx.x * step to all[row][512], in double, over the keys that its list names. */
__global__ void attend_in_double(mla_attend_params p, const uint16_t *queries, int queries_a_request,
                                 int step, double *all) {
    extern __shared__ double score[];
    __shared__ double reduced;
    auto bf16 = [](uint16_t x) { return (double)__uint_as_float((uint32_t)x << 16); };
    const int64_t row = (int64_t)blockIdx.x * step;
    const int token = (int)(row / p.num_heads);
    const int32_t *list = p.topk + token * p.topk_row;
    const int32_t *table = p.counts->block_table + token / queries_a_request * p.counts->block_table_stride;
    auto key = [&](int k) {
        return (const char *)p.cache + table[list[k] / p.page_size] * p.cache_page +
               list[k] % p.page_size * p.cache_row;
    };
    auto value = [&](const char *at, int i) {
        if (p.cache_kind != MLA_CACHE_DS) return bf16(((const uint16_t *)at)[i]);
        if (i >= 512) return bf16(((const uint16_t *)(at + MLA_DS_ROPE_AT))[i - 512]);
        const uint8_t b = (uint8_t)at[i];
        const int e = b >> 3 & 15, m = b & 7;
        const double x = e ? ldexp(1.0 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
        return (b & 128 ? -x : x) * (double)((const float *)(at + MLA_DS_SCALES_AT))[i / 128];
    };
    for (int k = threadIdx.x; k < p.topk_count; k += blockDim.x) {
        double s = 0;
        if (list[k] >= 0)
            for (int i = 0; i < 576; i++)
                s += value(key(k), i) *
                     bf16(i < 512
                              ? queries[row * 512 + i]
                              : ((const uint16_t *)p.query)[token * p.q_token + row % p.num_heads * p.q_head +
                                                            p.nope + i - 512]);
        score[k] = list[k] >= 0 ? s * (double)p.scale : -INFINITY;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double top = -INFINITY;
        for (int k = 0; k < p.topk_count; k++)
            top = fmax(top, score[k]);
        reduced = top;
    }
    __syncthreads();
    double sum = 0, out[2] = {0, 0};
    for (int k = 0; k < p.topk_count; k++) {
        if (list[k] < 0) continue;
        const double e = exp(score[k] - reduced);
        sum += e;
        for (int j = 0; j < 2; j++)
            out[j] += e * value(key(k), (int)threadIdx.x + 256 * j);
    }
    for (int j = 0; j < 2; j++)
        all[(int64_t)blockIdx.x * 512 + threadIdx.x + 256 * j] = sum == 0 ? 0 : out[j] / sum;
}

/* Which positions of a list name nothing. */
enum holes { NO_HOLES, HALF_AT_RANDOM, HALF_AT_END };

/* |result - double| / |double| over about 200 rows. `run` attends queries that are lost thereby. */
static double error_of(const mla_attend_params &p, int queries_a_request, int64_t rows,
                       const std::function<int()> &run) {
    const int step = (int)std::max<int64_t>(1, rows / 200) | 1, n = (int)((rows + step - 1) / step);
    std::vector<uint16_t> got((size_t)rows * 512);
    std::vector<double> want((size_t)n * 512);
    uint16_t *queries = room<uint16_t>(got.size());
    double *out = room<double>(want.size()), diff = 0, norm = 0;
    CK(cudaMemcpy(queries, p.latent, got.size() * 2, cudaMemcpyDeviceToDevice));
    attend_in_double<<<n, 256, (size_t)p.topk_count * 8>>>(p, queries, queries_a_request, step, out);
    CK(cudaGetLastError());
    CK(cudaDeviceSynchronize());
    CK(run());
    CK(cudaDeviceSynchronize());
    CK(cudaMemcpy(got.data(), p.latent, got.size() * 2, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(want.data(), out, want.size() * 8, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(p.latent, queries, got.size() * 2, cudaMemcpyDeviceToDevice));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 512; j++) {
            const uint32_t bits = (uint32_t)got[((size_t)i * step) * 512 + j] << 16;
            float x;
            memcpy(&x, &bits, 4);
            const double w = want[(size_t)i * 512 + j];
            diff += (x - w) * (x - w), norm += w * w;
        }
    return sqrt(diff / norm);
}

/* requests of `keys` positions each, `queries` tokens of each, lists of 2048. */
static void attention(const char *name, int is_ds, int heads, int requests, int queries, int keys,
                      enum holes holes = NO_HOLES) {
    if (filter && !strstr(name, filter)) return;
    const int topk = 2048, page = 64, tokens = requests * queries, width = keys / page;
    const size_t row = is_ds ? MLA_DS_ROW : 1152, pages = (size_t)requests * width,
                 rows = (size_t)tokens * heads;
    uint64_t seed = 5;
    auto random = [&]() {
        return (uint32_t)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33);
    };
    std::vector<int32_t> table(pages), lists((size_t)tokens * topk);
    for (size_t i = 0; i < pages; i++)
        table[i] = (int32_t)i;
    for (size_t i = pages - 1; i > 0; i--)
        std::swap(table[i], table[random() % (i + 1)]);
    for (int32_t &k : lists)
        k = (int32_t)(random() % (uint32_t)keys);
    for (size_t i = 0; i < lists.size(); i++)
        if (holes == HALF_AT_RANDOM ? random() & 1 : holes == HALF_AT_END && i % topk >= topk / 2)
            lists[i] = -1;
    int sms = 0;
    CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    mla_config_input choice = {90, sms,      0, heads, 512, 128, is_ds ? MLA_CACHE_DS : MLA_CACHE_16,
                               1,  1.0 / 24, 0};
    const mla_config config = mla_config_choose(&choice);
    std::vector<int32_t> q_start((size_t)requests + 1), lens((size_t)requests, keys);
    for (int i = 0; i <= requests; i++)
        q_start[(size_t)i] = i * queries;
    mla_plan_input in = {q_start.data(), lens.data(),      requests,     heads, topk, 0,
                         config.slots,   config.tile_rows, config.parts, tokens};
    mla_plan_limits limits = {requests, tokens, 0, 0, 0, 0, 0};
    mla_slice slice = {};
    CK(mla_plan_capacity(&limits, &in));
    std::vector<mla_item> items((size_t)limits.max_items);
    std::vector<mla_split> splits((size_t)limits.max_splits + 1);
    std::vector<int32_t> parts((size_t)config.parts + 1);
    if (mla_plan_build(&in, &limits, &slice, items.data(), splits.data(), parts.data()) != 1) exit(1);
    mla_counts counts = {};
    counts.block_table = send(table), counts.block_table_stride = counts.block_table_width = width;
    mla_attend_params p = {};
    p.counts = send(std::vector<mla_counts>{counts});
    p.slice = send(std::vector<mla_slice>{slice});
    p.items = send(items), p.splits = send(splits), p.parts = send(parts);
    p.part_out = room<float>((size_t)limits.max_slots * config.tile_rows * 512);
    p.part_lse = room<float>((size_t)limits.max_slots * config.tile_rows);
    p.tile_rows = config.tile_rows, p.dtype = MLA_BF16, p.cache_kind = is_ds ? MLA_CACHE_DS : MLA_CACHE_16;
    p.topk_count = topk, p.lists = room<int32_t>((size_t)config.parts * config.ctas * topk);
    p.latent = room<uint16_t>(rows * 512), p.query = room<uint16_t>(rows * 192);
    p.absorbed = p.latent, p.absorbed_row = 512, p.absorbed_rows = (int32_t)rows;
    p.q_token = (int64_t)heads * 192, p.q_head = 192;
    p.num_pages = (int64_t)pages, p.cache_page = (int64_t)(page * row), p.cache_row = (int64_t)row;
    uint16_t *cache = room<uint16_t>(pages * page * row / 2);
    p.topk = send(lists), p.topk_row = topk;
    p.in_order = 1, p.scale = 1.f / 24, p.num_heads = heads, p.latent_rank = 512, p.nope = 128,
    p.page_size = page;
    fill_normal<<<2048, 256>>>((uint16_t *)p.latent, rows * 512);
    fill_normal<<<2048, 256>>>((uint16_t *)p.query, rows * 192);
    if (is_ds) { /* written by the library's own writer, 65536 rows again and again */
        const int64_t part = 65536, all = (int64_t)pages * page;
        uint16_t *kv = room<uint16_t>(part * 512), *pe = room<uint16_t>(part * 64);
        fill_normal<<<2048, 256>>>(kv, part * 512);
        fill_normal<<<2048, 256>>>(pe, part * 64);
        std::vector<int64_t> slots((size_t)part);
        int64_t *device_slots = room<int64_t>(slots.size());
        for (int64_t at = 0; at < all; at += part) {
            for (int64_t i = 0; i < part; i++)
                slots[(size_t)i] = at + i;
            CK(cudaMemcpy(device_slots, slots.data(), slots.size() * 8, cudaMemcpyHostToDevice));
            mla_write_params w = {kv,
                                  pe,
                                  device_slots,
                                  NULL,
                                  cache,
                                  all,
                                  p.cache_page,
                                  p.cache_row,
                                  512,
                                  64,
                                  std::min(part, all - at),
                                  512,
                                  page,
                                  MLA_BF16,
                                  MLA_CACHE_DS};
            CK(mla_write_cache(&w, NULL));
            CK(cudaDeviceSynchronize());
        }
    } else
        fill_normal<<<2048, 256>>>(cache, pages * page * row / 2);
    p.cache = cache;
    CK(cudaDeviceSynchronize());
    auto kernel = is_ds ? sparse_attend_sm90_ds_bf16 : sparse_attend_sm90_bf16;
    double burst, sustained;
    const int ctas = config.parts * config.ctas;
    auto run = [&]() {
        const int e = kernel(&p, slice.num_items, ctas, stream);
        return e || !slice.num_splits ? e : mla_combine(&p, slice.num_splits, 1, stream);
    };
    CK(kernel(&p, 0, ctas, stream));
    const double error = error_of(p, queries, (int64_t)rows, run);
    measure(run, &burst, &sustained);
    const double named = holes == NO_HOLES ? topk : topk / 2, flops = 2.0 * rows * named * (576 + 512),
                 bytes = (double)tokens * named * row;
    printf("%-34s burst %8.1f us %4.0f TFLOP/s   sustained %8.1f us %4.0f TFLOP/s %5.0f GB/s of rows   %d "
           "items, "
           "error %.1e%s\n",
           name, burst, flops / burst * 1e-6, sustained, flops / sustained * 1e-6, bytes / sustained * 1e-3,
           slice.num_items, error, error < 1e-2 ? "" : " WRONG");
    fflush(stdout);
    free_all();
}

static void writer(const char *name, int kind, int tokens) {
    if (filter && !strstr(name, filter)) return;
    const int64_t row = kind == MLA_CACHE_DS     ? MLA_DS_ROW
                        : kind == MLA_CACHE_E4M3 ? 576
                                                 : 1152,
                  slots = 1 << 20;
    uint64_t seed = 5;
    std::vector<int64_t> to((size_t)tokens);
    for (int i = 0; i < tokens; i++) {
        if (i % 64 == 0) seed = seed * 6364136223846793005u + 1442695040888963407u;
        to[(size_t)i] = (int64_t)(seed >> 33) % (slots / 64) * 64 + i % 64;
    }
    uint16_t *kv = room<uint16_t>((size_t)tokens * 512), *pe = room<uint16_t>((size_t)tokens * 64);
    fill_normal<<<2048, 256>>>(kv, (size_t)tokens * 512);
    fill_normal<<<2048, 256>>>(pe, (size_t)tokens * 64);
    mla_write_params w = {kv,     pe,       send(to), NULL,     room<uint8_t>((size_t)(slots * row)),
                          slots,  64 * row, row,      512,      64,
                          tokens, 512,      64,       MLA_BF16, kind};
    double burst, sustained;
    CK(cudaDeviceSynchronize());
    measure([&]() { return mla_write_cache(&w, stream); }, &burst, &sustained);
    printf("%-34s burst %8.2f us   sustained %8.2f us %5.0f GB/s read and written\n", name, burst, sustained,
           (double)tokens * (double)(1152 + row) / sustained * 1e-3);
    fflush(stdout);
    free_all();
}

int main(int argc, char **argv) {
    filter = argc > 1 ? argv[1] : NULL;
    CK(cudaStreamCreate(&stream));
    CK(cudaEventCreate(&ev0));
    CK(cudaEventCreate(&ev1));
    attention("S1 H=128 4096 tokens of 32768", 0, 128, 1, 4096, 32768);
    attention("S1 H=64 4096 tokens of 32768", 0, 64, 1, 4096, 32768);
    attention("S2 H=128 128x32768", 1, 128, 128, 1, 32768);
    attention("S2 H=64 128x32768", 1, 64, 128, 1, 32768);
    attention("S2 H=128 128x32768 q=2", 1, 128, 128, 2, 32768);
    attention("S2 H=64 128x32768 q=2", 1, 64, 128, 2, 32768);
    attention("S2 H=16 128x32768", 1, 16, 128, 1, 32768);
    attention("16-bit decode H=128 128x32768", 0, 128, 128, 1, 32768);
    attention("16-bit decode H=64 128x32768", 0, 64, 128, 1, 32768);
    attention("D H=128 656", 1, 128, 40, 1, 16384);
    attention("D H=128 656 half -1", 1, 128, 40, 1, 16384, HALF_AT_RANDOM);
    attention("D H=128 656 -1 at the end", 1, 128, 40, 1, 16384, HALF_AT_END);
    attention("D H=64 656", 1, 64, 40, 1, 16384);
    attention("D H=64 656 half -1", 1, 64, 40, 1, 16384, HALF_AT_RANDOM);
    attention("D H=64 656 -1 at the end", 1, 64, 40, 1, 16384, HALF_AT_END);
    attention("D H=128 16-bit", 0, 128, 40, 1, 16384);
    attention("D H=128 16-bit half -1", 0, 128, 40, 1, 16384, HALF_AT_RANDOM);
    attention("D H=64 16-bit", 0, 64, 40, 1, 16384);
    attention("D H=64 16-bit half -1", 0, 64, 40, 1, 16384, HALF_AT_RANDOM);
    static const int counts[] = {1, 128, 8192, 262144};
    for (int n : counts) {
        char name[64];
        snprintf(name, sizeof name, "write 656 bytes, %d tokens", n);
        writer(name, MLA_CACHE_DS, n);
        snprintf(name, sizeof name, "write 16-bit, %d tokens", n);
        writer(name, MLA_CACHE_16, n);
        snprintf(name, sizeof name, "write e4m3, %d tokens", n);
        writer(name, MLA_CACHE_E4M3, n);
    }
    return 0;
}
