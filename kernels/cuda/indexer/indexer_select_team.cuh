/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster of CTAs as a team of indexer_select.cuh, and what its CTAs keep in shared memory: histograms, the
 * members of the last bin and the counts of the output go through distributed shared memory. */
#ifndef INDEXER_SELECT_TEAM_CUH
#define INDEXER_SELECT_TEAM_CUH

#include "indexer_select.cuh"

#include <cooperative_groups.h>

namespace attn_cuda {

enum { CLUSTER_THREADS = 1024, CLUSTER_MAX = 16, CLUSTER_KEYS = INDEXER_CLUSTER_KEYS };
enum { CLUSTER_BINS = 1024, CLUSTER_MEMBERS = 32, CLUSTER_GROUPS = CLUSTER_KEYS / CLUSTER_THREADS / 4 };

struct cluster_memory {
    select_memory search;
    __align__(16) uint32_t keys[CLUSTER_KEYS];       /* the sample; of a search of its own the slice */
    uint32_t bins[CLUSTER_BINS], sums[CLUSTER_BINS]; /* of this CTA, of all */
    uint32_t share[CLUSTER_BINS];                    /* the bins of which this CTA makes the sums */
    uint64_t members[CLUSTER_MEMBERS]; /* this CTA's part of the bin that holds the last place */
    uint64_t all_members[CLUSTER_MAX * CLUSTER_MEMBERS]; /* 0 where there is none */
    uint32_t num_members[CLUSTER_MAX], num_above[CLUSTER_MAX];
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

} /* namespace attn_cuda */
#endif
