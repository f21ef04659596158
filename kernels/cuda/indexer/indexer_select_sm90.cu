/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k of few rows on Hopper: a cluster of CTAs for each row, so that 8 or 16 multiprocessors read it. A
 * thread keeps its keys in registers, neighbours of one another, so that the output is in order without
 * sorting. Each CTA finds the same gate from the same sample of the row; three exchanges through distributed
 * shared memory then lead to the result. Where they do not, the CTAs search together as one CTA would, which
 * takes longer and is as exact. */
#include "indexer_select_team.cuh"

namespace attn_cuda {

/* The keys of a thread: up to CLUSTER_GROUPS groups of four that follow each other, aligned where that fits,
 * 0 where the row has none. */
struct cluster_keys {
    uint32_t key[4 * CLUSTER_GROUPS];
    int first, groups; /* position of the first, possibly before the row */

    ATTN_DEV cluster_keys(const float *row, int n, int rank, int size) {
        const int offset = (int)((uintptr_t)row / 4 & 3), threads = size * CLUSTER_THREADS;
        const bool aligned = offset + n <= threads * CLUSTER_GROUPS * 4; /* else one group too many */
        const int head = aligned ? offset : 0;
        groups = ((head + n + 3) / 4 + threads - 1) / threads;
        first = (rank * CLUSTER_THREADS + (int)threadIdx.x) * groups * 4 - head;
        float4 v[CLUSTER_GROUPS];
#pragma unroll
        for (int j = 0; j < CLUSTER_GROUPS; j++) {
            const int at = first + 4 * j;
            v[j] = make_float4(NAN, NAN, NAN, NAN);
            if (j < groups && at + 3 >= 0 && at < n) {
                if (aligned && at >= 0 && at + 3 < n)
                    v[j] = __ldg((const float4 *)(row + at));
                else { /* an end of the row */
                    if (at >= 0) v[j].x = __ldg(row + at);
                    if (at + 1 >= 0 && at + 1 < n) v[j].y = __ldg(row + at + 1);
                    if (at + 2 >= 0 && at + 2 < n) v[j].z = __ldg(row + at + 2);
                    if (at + 3 < n) v[j].w = __ldg(row + at + 3);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < CLUSTER_GROUPS; j++)
            key[4 * j] = select_key(v[j].x), key[4 * j + 1] = select_key(v[j].y),
                    key[4 * j + 2] = select_key(v[j].z), key[4 * j + 3] = select_key(v[j].w);
    }
    template <class F>
    ATTN_DEV void each(const F &f) const {
#pragma unroll
        for (int j = 0; j < CLUSTER_GROUPS; j++) {
            if (j >= groups) break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(key[4 * j + i], first + 4 * j + i);
        }
    }
};

/* Selects in three exchanges: sums of the histograms above the gate, members of the bin that holds the last
 * place, and the counts of the output. false, in all CTAs alike: too few reach the gate or too many share
 * that bin. */
ATTN_DEV bool select_exchange(const select_cluster &team, cluster_memory &m, const cluster_keys &mine,
                              uint32_t gate, int topk, int32_t *out) {
    const int t = (int)threadIdx.x, lane = t & 31, warp = t >> 5, size = team.size, rank = team.rank;
    mine.each([&](uint32_t key, int) {
        if (key >= gate) atomicAdd(&m.bins[min((key - gate) >> 15, (uint32_t)CLUSTER_BINS - 1)], 1u);
    });
    team.cluster.sync();
    /* a warp reads 32 bins of one CTA, and writes 32 sums to one */
    const int per = CLUSTER_BINS / size, parts = per / 32, c = warp / parts,
              at_bin = warp % parts * 32 + lane;
    atomicAdd(&m.share[at_bin], *team.in(&m.bins[rank * per + at_bin], c));
    __syncthreads();
    *team.in(&m.sums[rank * per + at_bin], c) = m.share[at_bin];
    team.cluster.sync();
    uint32_t total;
    const uint32_t in_bin = m.sums[CLUSTER_BINS - 1 - t];
    const uint32_t upto = select_scan<CLUSTER_THREADS>(m.search, in_bin, &total);
    if (total < (uint32_t)topk) return false;
    if (upto < (uint32_t)topk && upto + in_bin >= (uint32_t)topk)
        m.search.bin = CLUSTER_BINS - 1 - t, m.search.above = (int)upto;
    __syncthreads();
    const int bin = m.search.bin, need = topk - m.search.above;
    const uint32_t low = gate + ((uint32_t)bin << 15), high = bin + 1 < CLUSTER_BINS ? low + (1u << 15) : ~0u;
    uint32_t above = 0;
    mine.each([&](uint32_t key, int position) {
        above += key >= high;
        if (key >= low && key < high) {
            const int at = atomicAdd(&m.search.count, 1);
            if (at < CLUSTER_MEMBERS) m.members[at] = select_rank(key, position);
        }
    });
    const uint32_t before = select_scan<CLUSTER_THREADS>(m.search, above, &total);
    const int count = m.search.count;
    if (warp < size) {
        if (lane < min(count, (int)CLUSTER_MEMBERS))
            *team.in(&m.all_members[rank * CLUSTER_MEMBERS + lane], warp) = m.members[lane];
        if (lane == 0) *team.in(&m.num_members[rank], warp) = (uint32_t)count;
        if (lane == 1) *team.in(&m.num_above[rank], warp) = total;
    }
    team.cluster.sync();
    /* every warp for itself: lane c has the counts of CTA c */
    const int members = lane < size ? (int)m.num_members[lane] : 0;
    if (__any_sync(~0u, members > CLUSTER_MEMBERS)) return false;
    const int here = __shfl_sync(~0u, members, c);
    for (int i = warp % parts; i < here; i += parts) { /* the warps of a CTA's bins take its members */
        const uint64_t r = m.all_members[c * CLUSTER_MEMBERS + i];
        uint32_t greater = 0;
#pragma unroll 8
        for (int d = 0; d < size; d++)
            greater += m.all_members[d * CLUSTER_MEMBERS + lane] > r;
        if (__reduce_add_sync(~0u, greater) == (uint32_t)need - 1) m.search.threshold = r;
    }
    __syncthreads();
    const uint64_t threshold = m.search.threshold;
    uint32_t at = lane < rank ? m.num_above[lane] : 0;
    for (int d = 0; d < rank; d++)
        at += m.all_members[d * CLUSTER_MEMBERS + lane] >= threshold;
    at = __reduce_add_sync(~0u, at) + before;
    for (int i = 0; i < count; i++) /* of this CTA, before this thread's keys */
        at += m.members[i] >= threshold && (int)~(uint32_t)m.members[i] < mine.first;
    mine.each([&](uint32_t key, int position) {
        if (key >= low && select_rank(key, position) >= threshold) out[at++] = position;
    });
    return true;
}

__global__ void __launch_bounds__(CLUSTER_THREADS, 1) select_cluster_kernel(const indexer_select_params p) {
    extern __shared__ __align__(16) uint8_t smem_raw[];
    cluster_memory &m = *(cluster_memory *)smem_raw;
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    const select_cluster team = {cluster, m, (int)cluster.block_rank(), (int)cluster.num_blocks()};
    const int row = blockIdx.y;
    int lo, hi;
    m.bins[threadIdx.x] = 0, m.share[threadIdx.x] = 0;
    if (threadIdx.x < CLUSTER_MAX * CLUSTER_MEMBERS) m.all_members[threadIdx.x] = 0;
    pdl_launch(); /* what follows waits for the end of this kernel, but need not be launched only then */
    pdl_wait();
    if (select_trivial(p, row, team.rank == 0, &lo, &hi)) return; /* all CTAs of the cluster alike */
    const int n = hi - lo;
    const float *at = p.logits + (int64_t)row * p.logits_row + lo;
    int32_t *out = p.indices + (int64_t)row * p.indices_row;
    if (n <= SELECT_KEYS) { /* no work for many */
        if (team.rank != 0) return;
        const select_row<CLUSTER_THREADS> whole = {at, 0, n};
        whole.each([&](uint32_t key, int position) { m.keys[position] = key; });
        __syncthreads();
        const select_cta<CLUSTER_THREADS> alone;
        const select_keys<CLUSTER_THREADS> source = {m.keys, nullptr, 0, n};
        const uint64_t threshold = select_kth(alone, m.search, source, select_octaves(), p.topk);
        select_write(alone, m.search, source, threshold, 0, n, out);
        return;
    }
    select_sample<CLUSTER_THREADS> sample;
    sample.load(at, n);
    const cluster_keys mine(at, n, team.rank, team.size);
    const uint32_t gate = sample.gate(m.search, n, p.topk, m.keys);
    __syncthreads();
    if (threadIdx.x == 0) m.search.count = 0;
    if (gate != 0 && select_exchange(team, m, mine, gate, p.topk, out)) return;
    cluster.sync();
    const int first = max(0, mine.first - (int)threadIdx.x * mine.groups * 4),
              end = min(n, mine.first + (CLUSTER_THREADS - (int)threadIdx.x) * mine.groups * 4);
    mine.each([&](uint32_t key, int position) {
        if (position >= first && position < end) m.keys[position - first] = key;
    });
    __syncthreads();
    select_together(m, p.topk, first, max(0, end - first), out);
}

/* A launch that may begin while the kernel before it ends: it waits for that by itself. */
struct cluster_launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    cluster_launch(int cluster, int rows, void *stream) {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = (unsigned)cluster;
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        config.gridDim = dim3((unsigned)cluster, (unsigned)rows);
        config.blockDim = dim3(CLUSTER_THREADS);
        config.dynamicSmemBytes = sizeof(cluster_memory);
        config.stream = (cudaStream_t)stream;
        config.attrs = attributes;
        config.numAttrs = 2;
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
    l.config.numAttrs = 1; /* of the launch, not of the query */
    if (cudaOccupancyMaxActiveClusters(&n, select_cluster_kernel, &l.config) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}
