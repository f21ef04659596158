/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of the flash kernels on the workloads of doc/ (D1..D6 decode, P1, P2 prefill, S1 a serving step,
 * E1 vision, C1 cache write, L1 one token, M2 latent attention's prefill, F1 scores far from zero), below
 * the plugin ABI: graph replays, burst (12 ms after a rest) and sustained (after 200 ms of the same load),
 * beside this run's own read ceiling. One line a row: name, us, rate. Usage: flash_bench [texts; a row runs
 * if its name contains one of them]. For experiments with decode, FLASH_PLANS="warps,cluster,pieces ..."
 * times each row that is asked for once more for each of these plans, in a burst alone; FLASH_BESIDE: SMs
 * of prefill in a mixed step, 0: decode before it; FLASH_ROW_TILES: 8 query rows each of a decode CTA. */
#include "kernels/cuda/dense/flash_launch.h"
#include "kernels/cuda/dense/flash_plan.h"

#include <algorithm>
#include <functional>
#include <math.h>
#include <random>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
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

static flash_device device;
static flash_runtime runtime;
static char **filters; /* ends with NULL, as argv does */
static cudaStream_t stream;
static cudaEvent_t ev0, ev1;
static uint8_t *pool; /* K and V, shared by all rows */
static const size_t POOL = (size_t)64 * 8192 * 32 * 256 * 2 + (1 << 20);
static const size_t Q_BYTES = (size_t)8192 * 128 * 192 * 2; /* M2's, the largest */
static uint16_t *qbuf, *obuf;

__global__ void fill_normal(uint16_t *p, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed, y;
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
        y = x * 0x9E3779B1u + 0x85ebca6bu, y ^= y >> 15, y *= 0x2c1b3c6du, y ^= y >> 13;
        float f = sqrtf(-2.f * logf(((x >> 8) + 1) * (1.f / 16777217.f))) *
                  cospif(2.f * (y >> 8) * (1.f / 16777216.f));
        p[i] = (uint16_t)(__float_as_uint(f) >> 16);
    }
}
/* normal values as e4m3: truncate an f32 into 1-4-3 bits, good enough for timing */
__global__ void fill_e4m3(uint8_t *p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + 7;
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15;
        p[i] = (uint8_t)((x & 0x80) | (0x22 + (x & 0x1f)));
    }
}
__global__ void read_sum(const uint4 *p, size_t n, uint32_t *out) {
    uint32_t s = 0;
    size_t i = (blockIdx.x * (size_t)blockDim.x) * 4 + threadIdx.x;
    for (; i + 3 * blockDim.x < n; i += (size_t)gridDim.x * blockDim.x * 4) {
        uint4 a = __ldcs(p + i), b = __ldcs(p + i + blockDim.x), c = __ldcs(p + i + 2 * blockDim.x),
              d = __ldcs(p + i + 3 * blockDim.x);
        s += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (s == 0x12345678) *out = s;
}

static bool wanted(const std::string &name) {
    for (char **f = filters; *f; f++)
        if (name.find(*f) != std::string::npos) return true;
    return !*filters;
}

static bool only_burst;

/* us per launch, burst and sustained */
static void time_it(const std::function<void(int)> &launch, double &burst, double &sustained) {
    launch(0);
    CK(cudaStreamSynchronize(stream));
    auto graph_of = [&](int n) {
        cudaGraph_t g;
        cudaGraphExec_t e;
        CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < n; i++)
            launch(i);
        CK(cudaStreamEndCapture(stream, &g));
        CK(cudaGraphInstantiate(&e, g, 0));
        CK(cudaGraphDestroy(g));
        return e;
    };
    auto replay = [&](cudaGraphExec_t e, int n) {
        float ms;
        CK(cudaEventRecord(ev0, stream));
        for (int i = 0; i < n; i++)
            CK(cudaGraphLaunch(e, stream));
        CK(cudaEventRecord(ev1, stream));
        CK(cudaEventSynchronize(ev1));
        CK(cudaEventElapsedTime(&ms, ev0, ev1));
        return (double)ms * 1e3;
    };
    cudaGraphExec_t one = graph_of(16);
    replay(one, 1);
    double us = replay(one, 1) / 16;
    CK(cudaGraphExecDestroy(one));
    int per = std::max(1, std::min(512, (int)(2000 / us)));
    cudaGraphExec_t g = graph_of(per);
    replay(g, 1);
    usleep(120000);
    std::vector<double> t;
    for (double sum = 0; sum < 12000 && t.size() < 12;) {
        double x = replay(g, 1);
        sum += x;
        t.push_back(x / per);
    }
    std::sort(t.begin(), t.end());
    burst = sustained = t[t.size() / 2];
    if (only_burst) {
        CK(cudaGraphExecDestroy(g));
        return;
    }
    replay(g, (int)(200000 / (us * per)) + 1);
    t.clear();
    int chunk = std::max(1, (int)(20000 / (us * per)));
    for (int i = 0; i < 13; i++)
        t.push_back(replay(g, chunk) / (chunk * per));
    std::sort(t.begin(), t.end());
    sustained = t[t.size() / 2];
    CK(cudaGraphExecDestroy(g));
}

static double read_ceiling = 4663;

static void report(const std::string &name, double flops, double bytes, double burst, double sustained) {
    if (flops > 0)
        printf("%-44s %9.2f us %7.1f TFLOP/s sustained, %9.2f us %7.1f burst\n", name.c_str(), sustained,
               flops / sustained * 1e-6, burst, flops / burst * 1e-6);
    else
        printf("%-44s %9.2f us %7.0f GB/s %5.1f%% sustained, %9.2f us %5.1f%% burst\n", name.c_str(),
               sustained, bytes / sustained * 1e-3, bytes / sustained * 1e-1 / read_ceiling, burst,
               bytes / burst * 1e-1 / read_ceiling);
    fflush(stdout);
}

struct workload {
    std::string name;
    std::vector<int> q, kv;
    int hq = 32, hkv = 8, d = 128, dv = 0 /* as d; only contiguous keys have another */, page = 16,
        window = -1, q_dtype = FLASH_BF16, kv_dtype = FLASH_BF16, causal = 1, decode = 1, force_sm80 = 0,
        rotate = 0,   /* cold: copies one after the other */
        captured = 0, /* launched as a captured step is, for any batch of as many requests */
        mixed = 0,    /* requests of one token go to the decode kernel, others are prefill */
        is_far = 0;   /* scores of 1e10 and more, rows of which are computed twice */
};

template <class T>
static T *copy_of(const std::vector<T> &v) {
    T *p;
    CK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

struct forced_plan {
    int warps, cluster, pieces; /* pieces: of every request, a multiple of cluster */
};

static void bench_plan(const workload &w, const forced_plan *forced) {
    const int n = (int)w.q.size(), dv = w.dv ? w.dv : w.d, eb = w.kv_dtype == FLASH_E4M3 ? 1 : 2;
    std::vector<int> q_start(n + 1, 0), k_start(n + 1, 0);
    int max_q = 0, max_pages = 1, pages = 0;
    double flops = 0, bytes = 0;
    for (int i = 0; i < n; i++) {
        q_start[i + 1] = q_start[i] + w.q[i];
        k_start[i + 1] = k_start[i] + w.kv[i];
        max_q = std::max(max_q, w.q[i]);
        if (w.page) {
            int k = (w.kv[i] + w.page - 1) / w.page;
            pages += k;
            max_pages = std::max(max_pages, k);
        }
        double pairs = w.window >= 0 ? w.q[i] * (w.window + 1.) -
                                           (w.window + 1.) * w.window / 2 /* q = kv, not shorter */
                       : w.causal ? w.q[i] * (double)w.kv[i] - w.q[i] * (double)w.q[i] / 2
                                  : w.q[i] * (double)w.kv[i];
        flops += 2. * w.hq * (w.d + dv) * pairs;
        bytes += 1. * w.kv[i] * w.hkv * (w.d + dv) * eb;
    }
    flash_params p = {};
    p.q = qbuf, p.out = obuf, p.q_start = copy_of(q_start), p.num_seqs = n;
    p.q_dtype = w.q_dtype, p.out_dtype = FLASH_BF16, p.kv_dtype = w.kv_dtype;
    p.num_q_heads = w.hq, p.num_kv_heads = w.hkv, p.group = w.hq / w.hkv, p.head_size = w.d;
    p.head_size_v = dv;
    p.page_size = w.page, p.window_left = w.window, p.window_right = -1;
    p.q_token = (int64_t)w.hq * w.d, p.q_head = w.d, p.out_token = (int64_t)w.hq * dv, p.out_head = dv;
    p.scale = w.is_far ? 1e10f : 1.f / sqrtf((float)w.d);
    p.q_rows = q_start[n], p.kv_rows = k_start[n];
    int copies = 1;
    int *d_table = nullptr;
    size_t set_bytes = 0;
    if (w.page) {
        set_bytes = (size_t)pages * w.page * w.hkv * 2 * w.d * eb;
        copies = w.rotate ? (int)std::min<size_t>(16, POOL / set_bytes) : 1;
        std::vector<int> perm(pages), table((size_t)n * max_pages, 0);
        for (int i = 0; i < pages; i++)
            perm[i] = i;
        std::mt19937 rng(5);
        std::shuffle(perm.begin(), perm.end(), rng);
        for (int i = 0, at = 0; i < n; i++)
            for (int k = 0; k < (w.kv[i] + w.page - 1) / w.page; k++)
                table[(size_t)i * max_pages + k] = perm[at++];
        d_table = copy_of(table), p.num_pages = pages;
        p.k = pool, p.v = pool + w.d * eb;
        p.k_head = p.v_head = 2 * w.d, p.k_token = p.v_token = (int64_t)w.hkv * 2 * w.d;
        p.k_page = p.v_page = w.page * p.k_token;
        if (getenv("FLASH_SEPARATE")) { /* experiments: K and V as two caches */
            p.v = pool + set_bytes / 2;
            p.k_head = p.v_head = w.d, p.k_token = p.v_token = (int64_t)w.hkv * w.d,
            p.k_page = p.v_page = w.page * p.k_token;
        }
    } else {
        p.k = pool, p.v = pool + (size_t)k_start[n] * w.hkv * w.d * 2, p.k_start = copy_of(k_start);
        p.k_head = w.d, p.k_token = (int64_t)w.hkv * w.d, p.v_head = dv, p.v_token = (int64_t)w.hkv * dv;
    }
    const int decode_tokens = w.mixed ? 1 : w.decode ? max_q : 0;
    flash_shape shape = {w.q_dtype, w.kv_dtype, w.hq,          w.hkv,        w.d, dv,
                         w.page,    0,          decode_tokens, w.force_sm80, 0};
    flash_decode_config dc[FLASH_MODES];
    flash_prefill_config pc;
    if (flash_choose_decode(&shape, &device, &dc[0]) || flash_choose_prefill(&shape, &device, &pc)) exit(2);
    flash_plan_input in = {};
    in.q_start = q_start.data(), in.seq_lens = w.kv.data(), in.k_start = w.page ? nullptr : k_start.data();
    in.num_seqs = n, in.num_kv_heads = w.hkv, in.group = p.group;
    in.num_sms = device.num_sms, in.head_size = w.d, in.key_bytes = eb;
    in.decode_tokens = decode_tokens, in.causal = w.causal;
    in.window_left = w.window, in.window_right = -1;
    dc[0].row_tiles = getenv("FLASH_ROW_TILES") ? std::min(dc[0].row_tiles, atoi(getenv("FLASH_ROW_TILES")))
                                                : flash_choose_row_tiles(&in, dc[0].row_tiles, w.captured);
    in.decode_rows = dc[0].row_tiles * 8;
    for (int i = 0; i < FLASH_MODES; i++) {
        dc[i] = dc[0];
        flash_resize_decode(&shape, &device, i, &dc[i]);
    }
    for (int i = 0; i < FLASH_MODES; i++)
        in.modes[i] = {device.num_sms * dc[i].ctas_per_sm, dc[i].ctas_per_sm, dc[i].warps * 16};
    in.block_rows = pc.block_rows, in.tile_heads = pc.tile_heads, in.packed = pc.packed;
    in.max_cluster = device.major == 9 ? 8 : 0;
    if (w.captured) in.captured = n * w.hkv * ((max_q * p.group + in.decode_rows - 1) / in.decode_rows);
    if (forced) in.num_splits = forced->pieces;
    flash_plan_limits lim = {};
    lim.max_seqs = n, lim.max_tokens = q_start[n];
    flash_plan_capacity(&lim, &in);
    std::vector<flash_plan_request> requests(n);
    std::vector<flash_plan_tile> keys(lim.max_tiles + 1);
    std::vector<flash_item> items(lim.max_items + 1);
    std::vector<flash_tile> tiles(lim.max_tiles + 1);
    flash_plan plan = {requests.data(), keys.data(), items.data(), tiles.data()};
    if (flash_plan_build(&in, &lim, &plan)) exit(3);
    plan.counts.block_table = d_table, plan.counts.block_table_stride = max_pages;
    p.counts = copy_of(std::vector<flash_counts>{plan.counts});
    p.items = copy_of(items), p.tiles = copy_of(tiles);
    p.max_rows = std::max(1, plan.decode_tokens) * w.hq, p.keys_per_tile = plan.keys_per_tile;
    p.ticket_stride = p.max_rows; /* more than CTAs */
    const size_t part = (size_t)std::max(1, plan.counts.num_slots) * p.max_rows;
    p.tickets = copy_of(std::vector<int32_t>(part, 0));
    CK(cudaMalloc(&p.part_out, part * dv * 4));
    CK(cudaMalloc(&p.part_lse, part * 4));
    auto decode = flash_all_kernels.decode[w.kv_dtype - FLASH_F16][dc[0].class_index];
    if (decode_tokens > 0) CK(decode(nullptr, &dc[FLASH_LARGE_CTAS], 0, 0)); /* allows the others */
    if (forced) {
        plan.mode = 0, plan.cluster = forced->cluster, dc[0].warps = forced->warps;
    }
    dc[plan.mode].cluster = plan.cluster;
    /* a captured step is launched for the most pieces that a later batch may have */
    const int grid = !w.captured ? plan.counts.num_items
                     : plan.most_items > 0
                         ? plan.most_items
                         : (n + lim.max_slots + plan.cluster - 1) / plan.cluster * plan.cluster;
    if (plan.counts.num_tiles > 0) CK(flash_run_prefill(nullptr, &shape, &pc, 0, &runtime, 0));
    flash_prefill_more more = {};
    if (w.mixed && !w.force_sm80)
        more.ctas = getenv("FLASH_BESIDE") ? atoi(getenv("FLASH_BESIDE")) : flash_plan_beside(&in, &plan);
    if (!getenv("FLASH_DEALT")) more.ticket = copy_of(std::vector<int32_t>{0}); /* experiments: dealt out */
    double burst, sustained;
    time_it(
        [&](int i) {
            flash_params r = p;
            r.k = (const uint8_t *)p.k + set_bytes * (size_t)(i % copies);
            r.v = (const uint8_t *)p.v + set_bytes * (size_t)(i % copies);
            flash_params d = r;
            d.beside = more.ctas > 0;
            d.listed_items = w.captured ? 0 : grid;
            if (grid && !d.beside) CK(decode(&d, &dc[plan.mode], grid, stream));
            CK(flash_run_prefill_more(&r, &more, &shape, &pc, plan.counts.num_tiles, &runtime, stream));
            if (grid && d.beside) CK(decode(&d, &dc[plan.mode], grid, stream));
        },
        burst, sustained);
    char extra[96];
    snprintf(extra, sizeof extra, " [%d items, %d pieces, %d warps, cluster %d]", plan.counts.num_items,
             plan.counts.max_pieces, dc[plan.mode].warps, plan.cluster);
    if (more.ctas > 0) printf("prefill on %d SMs, decode on the others: ", more.ctas);
    report(w.decode ? w.name + extra : w.name, w.decode ? 0 : flops, bytes, burst, sustained);
    for (const void *x :
         {(const void *)p.q_start, (const void *)d_table, (const void *)p.counts, (const void *)p.items,
          (const void *)p.tickets, (const void *)p.tiles, (const void *)p.part_out, (const void *)p.part_lse,
          (const void *)p.k_start, (const void *)more.ticket})
        if (x) CK(cudaFree((void *)x));
}

static void bench(const workload &w) {
    if (!wanted(w.name)) return;
    bench_plan(w, nullptr);
    const char *at = w.decode && !w.captured ? getenv("FLASH_PLANS") : nullptr;
    only_burst = true;
    for (forced_plan f; at && sscanf(at, "%d,%d,%d", &f.warps, &f.cluster, &f.pieces) == 3;) {
        bench_plan(w, &f);
        at = strchr(at, ' ');
        if (at) at++;
    }
    only_burst = false;
}

static workload uniform(const char *name, int n, int q, int kv) {
    workload w;
    w.name = name;
    w.q.assign(n, q);
    w.kv.assign(n, kv);
    return w;
}

static void cache_write(const char *name, int kv_dtype, int caches) {
    if (!wanted(name)) return;
    const int tokens = 8192, heads = 8, d = 128, page = 16, sets = 4;
    std::vector<int64_t> slots(tokens);
    for (int i = 0; i < tokens; i++)
        slots[i] = i;
    std::mt19937 rng(3);
    std::shuffle(slots.begin(), slots.end(), rng);
    int eb = kv_dtype == FLASH_E4M3 ? 1 : 2;
    flash_write_params w = {};
    w.slots = copy_of(slots), w.num_slots_total = tokens;
    w.key_token = w.value_token = heads * d, w.key_head = w.value_head = d;
    w.k_token = w.v_token = heads * 2 * d, w.k_head = w.v_head = 2 * d,
    w.k_page = w.v_page = page * w.k_token;
    w.num_tokens = tokens, w.num_kv_heads = heads, w.head_size = w.head_size_v = d, w.page_size = page;
    w.dtype = FLASH_BF16, w.kv_dtype = kv_dtype;
    double burst, sustained;
    size_t one = (size_t)tokens * heads * d * 2;
    time_it(
        [&](int i) {
            flash_write_params r = w;
            uint8_t *in = pool + (size_t)(i % sets) * 2 * one;
            r.key = in, r.value = in + one;
            r.k_cache = pool + (size_t)sets * 2 * one + (size_t)(i % caches) * 2 * one;
            r.v_cache = (uint8_t *)r.k_cache + d * eb;
            CK(flash_write_cache(&r, stream));
        },
        burst, sustained);
    report(name, 0, 2. * one + 2. * one * eb / 2, burst, sustained);
    CK(cudaFree((void *)w.slots));
}

int main(int argc, char **argv) {
    (void)argc, filters = argv + 1;
    cudaDeviceProp prop;
    CK(cudaGetDeviceProperties(&prop, 0));
    device = {prop.major, prop.minor, prop.multiProcessorCount, (int)prop.sharedMemPerBlockOptin,
              (int)prop.sharedMemPerMultiprocessor};
    CK(flash_runtime_init(&runtime, &flash_all_kernels, device.num_sms, device.major == 9));
    CK(cudaStreamCreate(&stream));
    CK(cudaEventCreate(&ev0));
    CK(cudaEventCreate(&ev1));
    CK(cudaMalloc(&pool, POOL));
    CK(cudaMalloc(&qbuf, Q_BYTES));
    CK(cudaMalloc(&obuf, Q_BYTES));
    fill_normal<<<1024, 256>>>((uint16_t *)pool, POOL / 2, 1);
    fill_normal<<<1024, 256>>>(qbuf, Q_BYTES / 2, 3);
    CK(cudaDeviceSynchronize());
    double burst, sustained;
    const size_t four = (size_t)4 << 30;
    time_it(
        [&](int) { read_sum<<<132 * 8, 512, 0, stream>>>((const uint4 *)pool, four / 16, (uint32_t *)obuf); },
        burst, sustained);
    read_ceiling = (double)four / sustained * 1e-3;
    printf("%-44s %9.2f us %7.0f GB/s sustained, %9.2f us burst\n", "read 4 GiB", sustained, read_ceiling,
           burst);
    /* What short rows could reach: the bytes of D4's, once around the pool. */
    for (size_t mib : {4, 8, 16, 32, 64, 128}) {
        const size_t bytes = mib << 20, places = POOL / bytes;
        const std::string name = "read " + std::to_string(mib) + " MiB";
        if (!wanted(name)) continue;
        const unsigned ctas = (unsigned)std::min<size_t>(132 * 4, bytes / (512 * 64));
        time_it(
            [&](int i) {
                read_sum<<<ctas, 512, 0, stream>>>((const uint4 *)(pool + i % places * bytes), bytes / 16,
                                                   (uint32_t *)obuf);
            },
            burst, sustained);
        report(name, 0, (double)bytes, burst, sustained);
    }

    const std::vector<int> mixed = {771,   295,  4730,  191,   2499, 972,   177,   2134, 158,  1418,  189,
                                    212,   1348, 12545, 254,   441,  4152,  24520, 3141, 1155, 28725, 166,
                                    14949, 638,  285,   246,   708,  11821, 349,   3220, 4425, 1009,  2669,
                                    181,   178,  401,   5569,  1371, 731,   3291,  1580, 675,  10478, 6174,
                                    496,   3094, 2355,  16396, 7310, 632,   29357, 246,  1301, 8523,  297,
                                    1926,  159,  5205,  8881,  3070, 16427, 729,   6049, 3456};
    for (int page : {16, 64}) {
        std::string s = " page=" + std::to_string(page);
        auto go = [&](workload w) {
            w.name += s;
            w.page = page;
            bench(w);
        };
        go(uniform("D1 64x8192", 64, 1, 8192));
        go(uniform("D1 1x131072", 1, 1, 131072));
        workload c = uniform("D1 1x131072 captured", 1, 1, 131072);
        c.captured = 1;
        go(c);
        go(uniform("D1 256x1024", 256, 1, 1024));
        go(uniform("D1 8x32768", 8, 1, 32768));
        workload m = uniform("D1 mixed64", 64, 1, 1);
        m.kv = mixed;
        go(m);
        go(uniform("D3 64x8192 sq=4", 64, 4, 8192));
    }
    for (int n : {1, 8, 64, 256}) /* short contexts, out of the caches */
        for (int kv : {512, 1024, 2048, 4096, 8192, 16384, 32768}) {
            if (n * kv > 131072 || n * kv < 1024) continue;
            workload w = uniform(("D4 " + std::to_string(n) + "x" + std::to_string(kv)).c_str(), n, 1, kv);
            w.rotate = 1;
            bench(w);
            if (n > 1) continue;
            w.name += " captured", w.captured = 1;
            bench(w);
        }
    auto step = [&](const char *row, int hq, int hkv, int d, int kv_dtype, int n, int tokens, int kv) {
        char name[80];
        snprintf(name, sizeof name, "%s %d/%d x%d%s %dx%d of %d", row, hq, hkv, d,
                 kv_dtype == FLASH_E4M3 ? " e4m3" : "", n, tokens, kv);
        workload w = uniform(name, n, tokens, kv);
        w.hq = hq, w.hkv = hkv, w.d = d, w.kv_dtype = kv_dtype, w.rotate = 1;
        bench(w);
        w.name += " captured", w.captured = 1;
        bench(w);
    };
    /* few KV heads, as the ranks of a model have them */
    auto few_heads = [&](int hq, int hkv, int d, int kv_dtype) {
        for (int kv : {8192, 32768, 131072})
            for (int n : {1, 4})
                step("D5", hq, hkv, d, kv_dtype, n, 1, kv);
    };
    few_heads(8, 1, 64, FLASH_BF16);
    few_heads(8, 1, 128, FLASH_BF16);
    few_heads(32, 2, 128, FLASH_BF16);
    few_heads(64, 4, 128, FLASH_BF16);
    few_heads(8, 1, 256, FLASH_BF16);
    few_heads(16, 2, 256, FLASH_BF16);
    /* few query tokens, as speculative decoding checks them */
    step("D6", 64, 8, 128, FLASH_BF16, 64, 4, 8192);
    step("D6", 64, 8, 128, FLASH_BF16, 4, 4, 32768);
    step("D6", 32, 8, 128, FLASH_BF16, 32, 8, 4096);
    step("D6", 8, 1, 128, FLASH_BF16, 4, 4, 8192);
    step("D6", 8, 1, 128, FLASH_BF16, 4, 5, 8192);
    step("D6", 8, 1, 128, FLASH_BF16, 32, 3, 8192);
    step("D6", 64, 8, 64, FLASH_BF16, 64, 4, 8192);
    step("D6", 64, 8, 64, FLASH_BF16, 64, 8, 8192);
    step("D6", 64, 8, 64, FLASH_BF16, 4, 4, 8192);
    step("D6", 32, 2, 128, FLASH_BF16, 16, 2, 8192);
    step("D6", 64, 8, 128, FLASH_E4M3, 64, 4, 8192);
    step("D6", 32, 8, 128, FLASH_E4M3, 64, 8, 8192);
    step("D6", 48, 8, 128, FLASH_BF16, 32, 4, 4096);
    step("D6", 71, 1, 64, FLASH_BF16, 32, 1, 8192);
    step("D6", 64, 8, 96, FLASH_BF16, 32, 4, 4096);
    auto heads = [&](const char *name, int hq, int hkv) {
        workload w = uniform(name, 64, 1, 8192);
        w.hq = hq, w.hkv = hkv;
        bench(w);
    };
    heads("D2 32/32", 32, 32);
    heads("D2 64/8", 64, 8);
    heads("D2 8/1", 8, 1);
    for (int captured : {0, 1})
        for (int rotate : {0, 1}) {
            workload w = uniform("L1 1x1024", 1, 1, 1024);
            w.name += rotate ? " cold" : " warm";
            if (captured) w.name += " captured";
            w.rotate = rotate, w.captured = captured;
            bench(w);
        }
    for (int part = 1; part <= 3; part++) { /* a serving step: decodes, short prompts, both */
        workload w = uniform(part == 1 ? "S1 64 decodes" : part == 2 ? "S1 32 prompts" : "S1 both", 0, 0, 0);
        if (part & 1)
            for (int kv : mixed)
                w.q.push_back(1), w.kv.push_back(std::min(kv, 8192));
        std::mt19937 r3(17);
        for (int i = 0; i < 32 && part & 2; i++) {
            const int q =
                (int)(17 * pow(1024. / 17, (r3() % 1000) * 1e-3)); /* one in four continues a context */
            w.q.push_back(q), w.kv.push_back(i % 4 == 0 ? q + (int)(r3() % 2048) : q);
        }
        w.mixed = 1;
        bench(w);
    }
    cache_write("C1 bf16", FLASH_BF16, 4);
    cache_write("C1 bf16, one cache", FLASH_BF16, 1);
    cache_write("C1 e4m3", FLASH_E4M3, 4);
    cache_write("C1 e4m3, one cache", FLASH_E4M3, 1);
    for (int sm80 : {0, 1}) {
        auto go = [&](workload w, int page, int causal) {
            w.name += sm80 ? " (sm80)" : "";
            w.force_sm80 = sm80, w.page = page, w.causal = causal, w.decode = 0;
            bench(w);
        };
        go(uniform("P1 1x16384 causal", 1, 16384, 16384), 0, 1);
        go(uniform("P1 4x4096 causal", 4, 4096, 4096), 0, 1);
        go(uniform("P1 32x512 causal", 32, 512, 512), 0, 1);
        go(uniform("P1 4x4096 full", 4, 4096, 4096), 0, 0);
        if (!sm80) {
            workload w = uniform("F1 1x2048 causal, far scores", 1, 2048, 2048), near = w;
            near.name = "F1 1x2048 causal", w.is_far = 1;
            go(near, 0, 1), go(w, 0, 1);
        }
        for (int h : {128, 16}) {
            workload w = uniform(("M2 H=" + std::to_string(h) + " 1x8192 causal").c_str(), 1, 8192, 8192);
            w.hq = w.hkv = h, w.d = 192, w.dv = 128;
            go(w, 0, 1);
        }
        for (int d : {256, 96, 64}) {
            workload w = uniform(d == 256  ? "P4 D=256 4x8192 window"
                                 : d == 96 ? "P4 D=96 4x4096 causal"
                                           : "P4 D=64 8x2048 causal",
                                 d == 64 ? 8 : 4,
                                 d == 256  ? 8192
                                 : d == 96 ? 4096
                                           : 2048,
                                 d == 256  ? 8192
                                 : d == 96 ? 4096
                                           : 2048);
            w.d = d, w.hq = d == 256 ? 16 : d == 96 ? 32 : 64, w.hkv = d == 96 ? 32 : 8;
            if (d == 256) w.window = 1023;
            go(w, 0, 1);
        }
        go(uniform("P2 page=16", 4, 2048, 16384), 16, 1);
        if (!sm80) {
            go(uniform("P2 page=64", 4, 2048, 16384), 64, 1);
            go(uniform("P2 page=128", 4, 2048, 16384), 128, 1);
            go(uniform("P2 contiguous", 4, 2048, 16384), 0, 1);
        }
        for (int d : {80, 72, 64, 128}) {
            workload w = uniform(("E1 D=" + std::to_string(d) + " 8x4096").c_str(), 8, 4096, 4096), v = w;
            w.d = d, w.hq = w.hkv = 16;
            go(w, 0, 0);
            v = w;
            v.name = "E1 D=" + std::to_string(d) + " windows";
            v.q.clear();
            std::mt19937 r2(11);
            for (int i = 0; i < 64; i++)
                v.q.push_back(64 + (int)(r2() % 961));
            v.kv = v.q;
            go(v, 0, 0);
        }
    }
    fill_e4m3<<<1024, 256>>>(pool, POOL);
    CK(cudaDeviceSynchronize());
    for (int page : {16, 64}) {
        workload w = uniform(("D2 fp8 64x8192 page=" + std::to_string(page)).c_str(), 64, 1, 8192);
        w.kv_dtype = FLASH_E4M3, w.page = page;
        bench(w);
        workload m = uniform(("D2 fp8 mixed64 page=" + std::to_string(page)).c_str(), 64, 1, 1);
        m.kv = mixed, m.kv_dtype = FLASH_E4M3, m.page = page;
        bench(m);
    }
    few_heads(8, 1, 128, FLASH_E4M3);
    few_heads(32, 8, 128, FLASH_E4M3);
    for (int query8 : {0, 1}) {
        if (query8) fill_e4m3<<<1024, 256>>>((uint8_t *)qbuf, Q_BYTES);
        auto go = [&](workload w, int page, int causal) {
            w.name = std::string(query8 ? "P3 e4m3 " : "P3 bf16 query, e4m3 cache ") + w.name;
            w.q_dtype = query8 ? FLASH_E4M3 : FLASH_BF16, w.kv_dtype = FLASH_E4M3;
            w.page = page, w.causal = causal, w.decode = 0;
            bench(w);
        };
        go(uniform("1x16384 causal page=128", 1, 16384, 16384), 128, 1);
        go(uniform("1x16384 causal page=16", 1, 16384, 16384), 16, 1);
        go(uniform("4x4096 causal page=16", 4, 4096, 4096), 16, 1);
        go(uniform("4x4096 full page=16", 4, 4096, 4096), 16, 0);
        go(uniform("32x512 causal page=16", 32, 512, 512), 16, 1);
    }
    return 0;
}
