/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k of few rows on Hopper: a cluster of CTAs for each row, so that 8 or 16 multiprocessors read it. Each CTA keeps its
 * slice of the row in shared memory, finds the same gate from the same sample of the row, and sends what reaches the gate
 * to the first CTA, which selects and writes. Where the gate let too few or too many pass, all of them search together:
 * histograms, the members of the last bin and the counts of the output go through distributed shared memory. */
#include "indexer_select.cuh"

#include <cooperative_groups.h>

namespace attn_cuda {

enum { CLUSTER_THREADS = 1024, CLUSTER_MAX = 16, CLUSTER_KEYS = INDEXER_CLUSTER_KEYS };

struct cluster_memory {
    select_memory search;
    __align__(16) uint32_t keys[CLUSTER_KEYS];          /* the slice */
    __align__(16) uint32_t collected_keys[SELECT_KEYS]; /* in the first CTA: of all */
    int32_t collected_positions[SELECT_KEYS];
    int collected;
    /* of the common search */
    uint32_t totals[SELECT_BINS];   /* written by the CTAs that add up a part of the bins each */
    uint64_t own_band[SELECT_BAND]; /* of this CTA, read by the others */
    uint32_t written[CLUSTER_MAX];  /* how much each CTA has to write */
};

struct select_cluster {
    static constexpr int THREADS = CLUSTER_THREADS;
    cooperative_groups::cluster_group cluster;
    cluster_memory &m;
    int rank, size;
    template <class T>
    ATTN_DEV T *in(T *mine, int other) const {
        return cluster.map_shared_rank(mine, other);
    }
    ATTN_DEV uint64_t *own_band(select_memory &) const { return m.own_band; }
    ATTN_DEV void sum_bins(select_memory &s) const {
        cluster.sync();
        const int share = SELECT_BINS / size;
        for (int i = threadIdx.x; i < share; i += THREADS) {
            const int bin = rank * share + i;
            uint32_t sum = 0;
#pragma unroll 8
            for (int c = 0; c < size; c++)
                sum += *in(&s.u.bins[bin], c);
#pragma unroll 8
            for (int c = 0; c < size; c++)
                *in(&m.totals[bin], c) = sum;
        }
        cluster.sync();
        for (int i = threadIdx.x; i < SELECT_BINS; i += THREADS)
            s.u.bins[i] = m.totals[i];
        __syncthreads();
    }
    ATTN_DEV void sum_ends(select_memory &s) const {
        cluster.sync();
        unsigned long long lo = ~0ull, hi = 0;
        for (int c = 0; c < size; c++)
            lo = min(lo, *in(&s.lowest, c)), hi = max(hi, *in(&s.highest, c));
        cluster.sync();
        if (threadIdx.x == 0) s.lowest = lo, s.highest = hi;
        __syncthreads();
    }
    ATTN_DEV void join_bands(select_memory &s) const {
        cluster.sync();
        const int c = threadIdx.x >> 5, lane = threadIdx.x & 31; /* a warp for each CTA */
        const int count = lane < size ? *in(&s.count, lane) : 0;
        int at = 0;
        for (int i = 0; i < c && i < size; i++)
            at += __shfl_sync(~0u, count, i);
        if (c < size)
            for (int i = lane, n = __shfl_sync(~0u, count, c); i < n; i += 32)
                s.band[at + i] = in(m.own_band, c)[i];
        __syncthreads();
    }
    ATTN_DEV uint32_t before(select_memory &, uint32_t total) const {
        if ((int)threadIdx.x < size) in(m.written, (int)threadIdx.x)[rank] = total;
        cluster.sync();
        uint32_t sum = 0;
        for (int c = 0; c < rank; c++)
            sum += m.written[c];
        return sum;
    }
};

/* All CTAs search together; each has its slice in m.keys. Out of line: usual rows do not come here. */
__device__ __noinline__ void select_together(cluster_memory &m, int topk, int first, int count,
                                             int32_t *out) {
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    const select_cluster team = {cluster, m, (int)cluster.block_rank(), (int)cluster.num_blocks()};
    const select_keys<CLUSTER_THREADS> source = {m.keys, nullptr, first, count};
    const uint64_t threshold = select_kth(team, m.search, source, select_octaves(), topk);
    select_write(team, m.search, source, threshold, first, count > 0 ? count : 1, out);
}

/* Sends what of the slice reaches the gate to the first CTA: a warp reserves room at once. */
ATTN_DEV void send_passed(const select_cluster &team, cluster_memory &m, uint32_t gate, int first,
                          int count) {
    const int lane = threadIdx.x & 31;
    uint32_t *keys = team.in(m.collected_keys, 0);
    int32_t *positions = team.in(m.collected_positions, 0);
    constexpr int BATCH = 8;
#pragma unroll 1
    for (int i0 = (int)threadIdx.x; i0 - lane < count; i0 += CLUSTER_THREADS * BATCH) {
        uint32_t mask = 0;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = i0 + j * CLUSTER_THREADS;
            mask |= (uint32_t)(i < count && m.keys[i] >= gate) << j;
        }
        const int hits = __popc(mask);
        int upto = hits;
        for (int i = 1; i < 32; i *= 2) {
            const int x = __shfl_up_sync(~0u, upto, i);
            if (lane >= i) upto += x;
        }
        int place = lane == 31 && upto != 0 ? atomicAdd(team.in(&m.collected, 0), upto) : 0;
        place = __shfl_sync(~0u, place, 31) + upto - hits;
#pragma unroll 1
        for (; mask != 0; mask &= mask - 1, place++) {
            const int i = i0 + (__ffs((int)mask) - 1) * CLUSTER_THREADS;
            if (place < SELECT_KEYS) keys[place] = m.keys[i], positions[place] = first + i;
        }
    }
}

__global__ void __launch_bounds__(CLUSTER_THREADS, 1) select_cluster_kernel(const indexer_select_params p) {
    extern __shared__ __align__(16) uint8_t smem_raw[];
    cluster_memory &m = *(cluster_memory *)smem_raw;
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    const select_cluster team = {cluster, m, (int)cluster.block_rank(), (int)cluster.num_blocks()};
    const int row = blockIdx.y;
    int lo, hi;
    if (select_trivial(p, row, team.rank == 0, &lo, &hi)) return; /* all CTAs of the cluster alike */
    const int n = hi - lo;
    const bool is_short = n <= SELECT_KEYS; /* no work for many: the slice of the first CTA is the row */
    const int share = is_short ? n : ((n + team.size - 1) / team.size + 31) & ~31;
    const int first = min(n, team.rank * share), count = min(share, n - first);
    if (is_short && team.rank != 0) return;
    const float *at = p.logits + (int64_t)row * p.logits_row + lo;
    int32_t *out = p.indices + (int64_t)row * p.indices_row;
    if (threadIdx.x == 0) m.collected = 0;
    select_sample<CLUSTER_THREADS> sample;
    if (!is_short) sample.load(at, n);
    const select_row<CLUSTER_THREADS> slice = {at, first, first + count};
    slice.each([&](uint32_t key, int position) { m.keys[position - first] = key; });
    uint32_t gate = 0;
    int collected = n;
    if (!is_short) {
        gate = sample.gate(m.search, n, p.topk, m.collected_keys);
        cluster.sync(); /* the others may write to the first CTA */
        send_passed(team, m, gate, first, count);
        cluster.sync();
        collected = team.rank == 0 ? m.collected : *team.in(&m.collected, 0);
        if (collected < p.topk || collected > SELECT_KEYS) {
            select_together(m, p.topk, first, count, out);
            return;
        }
        cluster.barrier_arrive(); /* the first CTA stays until all have read the count */
    }
    if (team.rank == 0) {
        const select_cta<CLUSTER_THREADS> alone;
        const select_keys<CLUSTER_THREADS> source = {
            is_short ? m.keys : m.collected_keys, is_short ? nullptr : m.collected_positions, 0, collected};
        __syncthreads();
        const uint64_t threshold = select_kth(alone, m.search, source, select_bins{gate}, p.topk);
        select_write(alone, m.search, source, threshold, 0, n, out);
    }
    if (!is_short) cluster.barrier_wait();
}

struct cluster_launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    cluster_launch(int cluster, int rows, void *stream) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = (unsigned)cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = dim3((unsigned)cluster, (unsigned)rows);
        config.blockDim = dim3(CLUSTER_THREADS);
        config.dynamicSmemBytes = sizeof(cluster_memory);
        config.stream = (cudaStream_t)stream;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }
};

} /* namespace attn_cuda */

extern "C" int indexer_select_cluster(const indexer_select_params *p, int cluster, void *stream) {
    using namespace attn_cuda;
    if (!p) {
        cudaError_t e = cudaFuncSetAttribute(
            select_cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(cluster_memory));
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute(select_cluster_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                     1);
        return (int)e;
    }
    cluster_launch l(cluster, p->num_rows, stream);
    return (int)cudaLaunchKernelEx(&l.config, select_cluster_kernel, *p);
}

extern "C" int indexer_max_clusters(int cluster) {
    using namespace attn_cuda;
    int n = 0;
    cluster_launch l(cluster, 1, nullptr);
    if (cudaOccupancyMaxActiveClusters(&n, select_cluster_kernel, &l.config) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}
