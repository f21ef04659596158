/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k of many rows: a CTA for each. A row that fits shared memory is read into it. A longer one is sampled
 * first: the sample gives a gate that somewhat more than topk elements reach, one pass over the row collects
 * those, and the selection runs on them. If they turn out to be fewer than topk or more than there is room
 * for, it runs on the row itself instead, which takes a few passes more and is as exact. */
#include "../ptx/launch.cuh"
#include "indexer_select.cuh"

namespace attn_cuda {

struct row_memory {
    select_memory search;
    __align__(16) uint32_t keys[SELECT_KEYS];
    int32_t positions[SELECT_KEYS];
    int collected;
};

/* The elements of a long row that reach the gate, in m.keys and m.positions as far as there is room; returns
 * how many. */
template <int THREADS>
ATTN_DEV int collect_row(row_memory &m, const float *row, int n, int topk, uint32_t *gate_key) {
    const int lane = threadIdx.x & 31;
    select_sample<THREADS> sample;
    sample.load(row, n);
    if (threadIdx.x == 0) m.collected = 0;
    *gate_key = sample.gate(m.search, n, topk, m.keys);
    const float gate = select_float(*gate_key);
    __syncthreads();

    auto collect = [&](uint32_t mask, auto value,
                       auto position) { /* up to 32 hits of a thread */
                                        if (!__any_sync(~0u, mask != 0)) return;
                                        const int hits = __popc(mask);
                                        int upto = hits;
                                        for (int i = 1; i < 32; i *= 2) {
                                            const int x = __shfl_up_sync(~0u, upto, i);
                                            if (lane >= i) upto += x;
                                        }
                                        int at = lane == 31 ? atomicAdd(&m.collected, upto) : 0;
                                        at = __shfl_sync(~0u, at, 31) + upto - hits;
#pragma unroll 1
                                        for (; mask != 0; mask &= mask - 1, at++) {
                                            const int i = __ffs((int)mask) - 1;
                                            if (at < SELECT_KEYS)
                                                m.keys[at] = select_key(value(i)),
                                                m.positions[at] = position(i);
                                        }
    };
    if (*gate_key != 0) { /* NaN compares with nothing */
        constexpr int BATCH = 8;
        const int head = (int)((0 - (uintptr_t)row / 4) & 3), groups = (n - head) / 4;
        const float4 *body = (const float4 *)(row + head);
#pragma unroll 1
        for (int g0 = 0; g0 < groups; g0 += THREADS * BATCH) {
            float4 v[BATCH];
            uint32_t mask = 0;
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const int g = g0 + j * THREADS + (int)threadIdx.x;
                v[j] = g < groups ? __ldg(body + g) : make_float4(NAN, NAN, NAN, NAN);
            }
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                mask |= (uint32_t)((v[j].x >= gate) | (v[j].y >= gate) << 1 | (v[j].z >= gate) << 2 |
                                   (v[j].w >= gate) << 3)
                        << (4 * j);
            collect(
                mask,
                [&](int i) { /* no dynamic index into registers: reread, it is in the cache */
                             return __ldg((const float *)(body + g0 + (i >> 2) * THREADS + (int)threadIdx.x) +
                                          (i & 3));
                },
                [&](int i) { return head + (g0 + (i >> 2) * THREADS + (int)threadIdx.x) * 4 + (i & 3); });
        }
        /* what the groups of four leave at both ends: at most six */
        const int t = threadIdx.x, ends = n - groups * 4, position = t < head ? t : groups * 4 + t;
        const float x = t < ends ? __ldg(row + position) : NAN;
        if (t < 32)
            collect(
                x >= gate ? 1u : 0u, [&](int) { return x; }, [&](int) { return position; });
    }
    __syncthreads();
    return m.collected;
}

/* Positions are relative to the start of the range, as the output is. 512 threads: two CTAs share a
 * multiprocessor. */
template <int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) select_rows_kernel(const indexer_select_params p) {
    extern __shared__ __align__(16) uint8_t smem_raw[];
    row_memory &m = *(row_memory *)smem_raw;
    const select_cta<THREADS> team;
    const int row = blockIdx.x;
    int lo, hi;
    if (select_trivial(p, row, true, &lo, &hi)) return;
    const int n = hi - lo;
    const select_row<THREADS> whole = {p.logits + (int64_t)row * p.logits_row + lo, 0, n};
    int32_t *out = p.indices + (int64_t)row * p.indices_row;
    uint32_t gate_key = 0;
    int count = n;
    if (n <= SELECT_KEYS) {
        whole.each([&](uint32_t key, int position) { m.keys[position] = key; });
        __syncthreads();
    } else {
        count = collect_row<THREADS>(m, whole.row, n, p.topk, &gate_key);
        if (count < p.topk || count > SELECT_KEYS) {
            select_from_row<THREADS>(m.search, whole.row, n, p.topk, out);
            return;
        }
    }
    const select_keys<THREADS> source = {m.keys, n <= SELECT_KEYS ? nullptr : m.positions, 0, count};
    const uint64_t threshold = select_kth(team, m.search, source, select_bins{gate_key}, p.topk);
    select_write(team, m.search, source, threshold, 0, n, out);
}

template <int THREADS>
int launch_select_rows(const indexer_select_params *p, void *stream) {
    if (!p)
        return (int)cudaFuncSetAttribute(select_rows_kernel<THREADS>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)sizeof(row_memory));
    return attn_cuda::launch_kernel(select_rows_kernel<THREADS>, (unsigned)p->num_rows, THREADS,
                                    sizeof(row_memory), stream, *p);
}

} /* namespace attn_cuda */

extern "C" int indexer_select_rows(const indexer_select_params *p, int is_large, void *stream) {
    using namespace attn_cuda;
    if (!p) {
        const int e = launch_select_rows<512>(p, stream);
        return e ? e : launch_select_rows<1024>(p, stream);
    }
    return is_large ? launch_select_rows<1024>(p, stream) : launch_select_rows<512>(p, stream);
}
