/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two exchanges of a layer over ranks (semantics 8.6) in peers' memory.
 *
 *   query  stores this rank's queries into the memory of all, in the order in which attention wants the
 *          heads, says so, and ends when those of all ranks are here
 *   join   says that this rank's results are there, waits until those of all ranks are, loads the rows of its
 *          own heads from each and merges them
 *
 * Exchanges are counted on the device, so that a replayed graph goes on counting. One set of buffers is
 * enough: who is in join e + 1 has queries e + 1 of all ranks, so all are through join e; who stores queries
 * e + 1 is through join e, so all have attended with queries e.
 *
 * A wait is bounded. After one that was not met this rank says nothing more, so that nobody takes what it
 * leaves for results, its own results are not numbers, and the host finds `failed`.
 */
#include "../ptx/launch.cuh"
#include "../ptx/lse_merge.cuh"
#include "merge_element_sm80.cuh"
#include "peers_params.h"

#include <cuda_runtime.h>

using namespace attn_cuda;

/* Ranks that are streams of one device wait for each other's attention there: all together they must leave
 * it room, so MOST_BLOCKS are those of world - 1 ranks. */
enum { THREADS = 256, MOST_BLOCKS = 64, EIGHT = 8 };

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
__device__ __forceinline__ void store_release(uint32_t *at, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ peers_control *control_of(const peers_params &p, int rank) {
    return (peers_control *)p.base[rank];
}
__device__ __forceinline__ uint64_t failed_of(const peers_control *c) {
    return *(const volatile uint64_t *)&c->failed;
}

/* All threads of a block; the first ones each wait for a rank. */
__device__ void wait_for_all(const peers_params &p, peers_control *own, const uint32_t *words,
                             uint32_t epoch) {
    const int r = threadIdx.x;
    if (r < p.world && failed_of(own) == 0) {
        const uint64_t begin = nanoseconds();
        while ((int32_t)(load_acquire(words + r) - epoch) < 0)
            if (nanoseconds() - begin > p.limit_ns) {
                atomicOr((unsigned long long *)&own->failed, 1ull << r);
                break;
            }
    }
    __syncthreads();
}

/* ------------------------------------------------------------------- queries */

template <class UNIT>
__global__ void __launch_bounds__(THREADS) query_kernel(const __grid_constant__ peers_params p) {
    __shared__ int is_last;
    peers_control *own = control_of(p, p.rank);
    const uint64_t failed = failed_of(own);
    const uint32_t epoch = *(volatile uint32_t *)&own->epoch + 1;
    const int row = p.heads * p.size, count = p.from && !failed ? p.tokens * row : 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        const int t = i / row, h = i % row / p.size, c = i % p.size, kv = h / p.group;
        const UNIT x = ((const UNIT *)p.from)[t * p.from_token + h * p.from_head + c];
        const int64_t head = ((int64_t)kv * p.world + p.rank) * p.group + h % p.group,
                      to = ((int64_t)t * p.heads * p.world + head) * p.size + c;
        for (int k = 0; k < p.world; k++) { /* not all ranks to the same one at once */
            const int r = (p.rank + 1 + k) % p.world;
            ((UNIT *)(p.base[r] + p.at))[to] = x;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        is_last = atomicAdd(&own->arrived, 1u) == gridDim.x - 1;
        __threadfence_system();
    }
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x < p.world && !failed) store_release(&control_of(p, threadIdx.x)->query[p.rank], epoch);
    wait_for_all(p, own, own->query, epoch);
    if (threadIdx.x == 0) own->arrived = 0, own->epoch = epoch;
}

extern "C" int peers_query_run(const peers_params *p, void *stream) {
    const int64_t units = p->from ? (int64_t)p->tokens * p->heads * p->size : 1,
                  blocks = (units + THREADS - 1) / THREADS;
    const unsigned grid = (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
    return p->unit == 16 ? launch_kernel(query_kernel<uint4>, grid, THREADS, 0, stream, *p)
                         : launch_kernel(query_kernel<uint16_t>, grid, THREADS, 0, stream, *p);
}

/* ------------------------------------------------------------------- results */

template <int TYPE>
struct eight {
    uint4 raw[TYPE == MERGE_F32 ? 2 : 1];
    __device__ void load(const char *at) {
#pragma unroll
        for (unsigned i = 0; i < sizeof raw / sizeof *raw; i++)
            raw[i] = __ldcg((const uint4 *)at + i);
    }
    __device__ float operator[](int e) const {
        if constexpr (TYPE == MERGE_F32) return ((const float *)raw)[e];
        const uint32_t word = ((const uint32_t *)raw)[e >> 1];
        const uint16_t bits = (uint16_t)(word >> (e & 1) * 16);
        if constexpr (TYPE == MERGE_F16) return __half2float(__ushort_as_half(bits));
        return __uint_as_float((uint32_t)bits << 16);
    }
};

template <int N, int TYPE>
__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ peers_params p) {
    constexpr int BYTES = TYPE == MERGE_F32 ? 4 : 2;
    peers_control *own = control_of(p, p.rank);
    const uint32_t epoch = *(volatile uint32_t *)&own->epoch;
    if (blockIdx.x == 0 && threadIdx.x < p.world && failed_of(own) == 0) {
        __threadfence_system();
        store_release(&control_of(p, threadIdx.x)->result[p.rank], epoch);
    }
    wait_for_all(p, own, own->result, epoch);
    if (!p.output) return;
    const bool is_lost = failed_of(own) != 0;
    const int rows = p.tokens * p.heads, lane = threadIdx.x & (p.lanes - 1), per_block = THREADS / p.lanes;
    for (int row = blockIdx.x * per_block + threadIdx.x / p.lanes; row < rows; row += gridDim.x * per_block) {
        const int t = row / p.heads, h = row % p.heads;
        const int64_t head = ((int64_t)(h / p.group) * p.world + p.rank) * p.group + h % p.group,
                      at = ((int64_t)t * p.heads * p.world + head) * p.size;
        float lse[N];
        eight<TYPE> x[N];
#pragma unroll
        for (int i = 0; i < N; i++) { /* everything is on its way before the first is looked at */
            lse[i] = -INFINITY;
            if (i >= p.world) continue;
            const char *base = p.base[i];
            if (lane * EIGHT < p.size) x[i].load(base + p.at + (at + lane * EIGHT) * BYTES);
            lse[i] = __ldcg((const float *)(base + p.lse_at) + head * p.columns + t);
            if (__ldcg((const long long *)(base + p.places_at) + t) != t) lse[i] = -INFINITY; /* no key */
        }
        const float sink = p.sinks ? p.sinks[h * p.sink] : -INFINITY;
        float top = sink, sum = 0.f, weight[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (isinf(lse[i])) lse[i] = -INFINITY; /* of either sign: no key */
            top = fmaxf(top, lse[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) { /* one that is no number makes the sum so */
            weight[i] = lse[i] == -INFINITY ? 0.f : ex2((lse[i] - top) * LOG2E);
            sum += weight[i];
        }
        if (sink != -INFINITY) sum += ex2((sink - top) * LOG2E);
        if (is_lost) sum = NAN;
        const float each = sum == 0.f ? 0.f : 1.f / sum;
        for (int c = lane * EIGHT; c < p.size; c += p.lanes * EIGHT) {
            float y[EIGHT] = {};
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (i >= p.world || weight[i] == 0.f) continue;
                if (c != lane * EIGHT) x[i].load(p.base[i] + p.at + (at + c) * BYTES);
#pragma unroll
                for (int e = 0; e < EIGHT; e++)
                    y[e] = fmaf(weight[i], x[i][e], y[e]);
            }
            const int64_t to = t * p.token + h * p.head + c;
            double z[2][4];
#pragma unroll
            for (int e = 0; e < EIGHT; e++)
                z[e / 4][e % 4] = (double)(y[e] * each);
            if (p.is_aligned) {
                merge_store4(p.type, p.output, to, z[0]);
                merge_store4(p.type, p.output, to + 4, z[1]);
            } else
                for (int e = 0; e < EIGHT; e++)
                    merge_store(p.type, p.output, to + e, z[e / 4][e % 4]);
        }
        if (lane == 0 && p.lse)
            p.lse[h * p.lse_head + t * p.lse_token] = sum == 0.f ? -INFINITY : top + lg2(sum) * LN2;
    }
}

static unsigned blocks_of(const peers_params *p, int64_t threads) {
    const int64_t blocks = (threads + THREADS - 1) / THREADS, most = MOST_BLOCKS / (p->world - 1);
    return (unsigned)(blocks < most ? blocks : most);
}

template <int TYPE>
static int join(const peers_params *p, unsigned grid, void *stream) {
    return p->world <= 2   ? launch_kernel(join_kernel<2, TYPE>, grid, THREADS, 0, stream, *p)
           : p->world <= 4 ? launch_kernel(join_kernel<4, TYPE>, grid, THREADS, 0, stream, *p)
                           : launch_kernel(join_kernel<8, TYPE>, grid, THREADS, 0, stream, *p);
}

extern "C" int peers_join_run(const peers_params *p, void *stream) {
    const unsigned grid = blocks_of(p, p->output ? (int64_t)p->tokens * p->heads * p->lanes : 1);
    return p->partial == MERGE_F32   ? join<MERGE_F32>(p, grid, stream)
           : p->partial == MERGE_F16 ? join<MERGE_F16>(p, grid, stream)
                                     : join<MERGE_BF16>(p, grid, stream);
}
