/* SPDX-License-Identifier: Apache-2.0 */
/* Exact selection of the largest elements of a row, by one team of threads: a CTA, or a cluster of CTAs that
 * holds a slice of the row each.
 *
 * Elements are compared as 64-bit ranks: an order-preserving image of the float above, the complement of the
 * position below. Ranks are distinct, so "the k largest" has one answer, and ties go to the lower position.
 * The search is for the rank of the k-th element. A histogram of 2048 bins gives the bin that holds it; the
 * members of that bin are compared each with each, or, where they are too many, further histograms of 2048
 * equal parts of the remaining band of ranks follow, at most six. Every binning is monotone in the rank, so
 * no input makes the result inexact, only slower. */
#ifndef INDEXER_SELECT_CUH
#define INDEXER_SELECT_CUH

#include "../ptx/ptx_sm80.cuh"
#include "indexer_params.h"

namespace attn_cuda {

enum {
    SELECT_BINS = 2048,
    SELECT_BAND = 512,
    SELECT_WINDOW = 131072, /* positions of a bitmap */
    SELECT_KEYS = 8192,     /* elements that a CTA collects at most */
    SELECT_SAMPLES = 4096,
    SELECT_OUT = 2048 /* largest topk */
};

/* Order-preserving image: -0 as 0, NaN below everything. */
ATTN_DEV uint32_t select_key(float x) {
    if (x != x) return 0;
    const uint32_t u = __float_as_uint(x + 0.f);
    return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
ATTN_DEV float select_float(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}
ATTN_DEV uint64_t select_rank(uint32_t key, int position) {
    return (uint64_t)key << 32 | (uint32_t)~position;
}
/* 32 bins an octave from 2^-15 to 2^17 on either side of 0, what lies beyond in the outermost ones: neither
 * the spread nor the offset of usual logits fills one bin. */
struct select_octaves {
    ATTN_DEV int operator()(uint32_t key) const {
        const int s = (int)(key >> 18); /* sign, exponent, 5 bits */
        return key & 0x80000000u ? min(max(s - 10752, 1024), 2047) : min(max(s - 3584, 0), 1023);
    }
    ATTN_DEV uint32_t lowest_key(int bin) const {
        return bin == 0 ? 0 : bin == 1024 ? 0x80000000u : (uint32_t)(bin + (bin > 1024 ? 10752 : 3584)) << 18;
    }
};
/* Those, or where all keys reach a gate above 0, 512 bins an octave above it. */
struct select_bins {
    uint32_t gate;
    ATTN_DEV int operator()(uint32_t key) const {
        return gate != 0 ? (int)min((key - gate) >> 14, (uint32_t)SELECT_BINS - 1) : select_octaves()(key);
    }
};

/* Sets the bit of a position of the window that begins at origin, if its rank reaches the threshold. */
ATTN_DEV void select_mark(uint32_t *bitmap, uint32_t key, int position, uint64_t threshold, int origin) {
    const int at = position - origin;
    if (select_rank(key, position) >= threshold && (uint32_t)at < (uint32_t)SELECT_WINDOW)
        atomicOr(&bitmap[at >> 5], 1u << (at & 31));
}

/* Shared memory of the search in each CTA. The bitmap of the output takes the place of the bins
 * afterwards. */
struct select_memory {
    union {
        uint32_t bins[SELECT_BINS];
        uint32_t bitmap[SELECT_WINDOW / 32];
    } u;
    uint64_t band[SELECT_BAND];         /* ranks of the members of the bin */
    unsigned long long lowest, highest; /* ranks in the bin */
    uint64_t threshold;
    int32_t staged[SELECT_OUT]; /* positions to write */
    uint32_t warp_sums[32];
    int bin, above, in_bin, count;
};

/* Sum over the CTA of what lies before this thread; *total is the sum of all. THREADS is a multiple of 32. */
template <int THREADS>
ATTN_DEV uint32_t select_scan(select_memory &m, uint32_t mine, uint32_t *total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t sum = mine;
    for (int i = 1; i < 32; i *= 2) {
        const uint32_t x = __shfl_up_sync(~0u, sum, i);
        if (lane >= i) sum += x;
    }
    if (lane == 31) m.warp_sums[warp] = sum;
    __syncthreads();
    uint32_t w = lane < THREADS / 32 ? m.warp_sums[lane] : 0;
    for (int i = 1; i < 32; i *= 2) {
        const uint32_t x = __shfl_up_sync(~0u, w, i);
        if (lane >= i) w += x;
    }
    const uint32_t before = __shfl_sync(~0u, w, warp > 0 ? warp - 1 : 0);
    *total = __shfl_sync(~0u, w, 31);
    __syncthreads();
    return sum - mine + (warp > 0 ? before : 0);
}

/* In the histogram, from the top: the bin in which the need-th element lies, what lies above it and in it. */
template <int THREADS>
ATTN_DEV void select_find_bin(select_memory &m, int need) {
    constexpr int PER = SELECT_BINS / THREADS;
    static_assert(PER * THREADS == SELECT_BINS, "bins per thread");
    const int first = SELECT_BINS - 1 - (int)threadIdx.x * PER;
    uint32_t n[PER], sum = 0, total;
#pragma unroll
    for (int i = 0; i < PER; i++)
        sum += n[i] = m.u.bins[first - i];
    uint32_t before = select_scan<THREADS>(m, sum, &total);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (before < (uint32_t)need && before + n[i] >= (uint32_t)need)
            m.bin = first - i, m.above = (int)before, m.in_bin = (int)n[i];
        before += n[i];
    }
    __syncthreads();
}

/* A CTA alone. */
template <int THREADS_>
struct select_cta {
    static constexpr int THREADS = THREADS_;
    ATTN_DEV uint64_t *own_band(select_memory &m) const { return m.band; }
    /* Each makes the sums of the team from what its CTAs have, for all threads. */
    ATTN_DEV void sum_bins(select_memory &) const { __syncthreads(); }
    ATTN_DEV void sum_ends(select_memory &) const { __syncthreads(); }
    ATTN_DEV void join_bands(select_memory &) const { __syncthreads(); }
    ATTN_DEV uint32_t before(select_memory &, uint32_t) const { return 0; } /* totals of the CTAs in front */
};

/* The rank of the k-th largest of at least k elements, in every CTA of the team. source.each(f) calls f(key,
 * position) for the elements of this CTA, by all its threads. bin_of gives the first histogram. */
template <class TEAM, class SOURCE, class BIN>
ATTN_DEV uint64_t select_kth(const TEAM &team, select_memory &m, const SOURCE &source, const BIN &bin_of,
                             int k) {
    constexpr int THREADS = TEAM::THREADS;
#pragma unroll 1
    for (int i = threadIdx.x; i < SELECT_BINS; i += THREADS)
        m.u.bins[i] = 0;
    __syncthreads();
    source.each([&](uint32_t key, int) { atomicAdd(&m.u.bins[bin_of(key)], 1u); });
    team.sum_bins(m);
    select_find_bin<THREADS>(m, k);
    const int bin = m.bin;
    int need = k - m.above, members = m.in_bin;
    uint64_t lowest = 0, highest = ~(uint64_t)0;
    auto inside = [&](uint32_t key, uint64_t rank) {
        return bin_of(key) == bin && rank >= lowest && rank <= highest;
    };
    if (members > SELECT_BAND) {
        if (threadIdx.x == 0) m.lowest = ~0ull, m.highest = 0;
        __syncthreads();
        unsigned long long lo = ~0ull, hi = 0;
        source.each([&](uint32_t key, int position) {
            const uint64_t rank = select_rank(key, position);
            if (bin_of(key) == bin)
                lo = min(lo, (unsigned long long)rank), hi = max(hi, (unsigned long long)rank);
        });
        if (lo <= hi) atomicMin(&m.lowest, lo), atomicMax(&m.highest, hi);
        team.sum_ends(m);
        lowest = m.lowest, highest = m.highest;
#pragma unroll 1
        while (members > SELECT_BAND) {
            __syncthreads();
            const int width = 64 - __clzll((long long)(highest - lowest)),
                      shift = width > 11 ? width - 11 : 0;
#pragma unroll 1
            for (int i = threadIdx.x; i < SELECT_BINS; i += THREADS)
                m.u.bins[i] = 0;
            __syncthreads();
            source.each([&](uint32_t key, int position) {
                const uint64_t rank = select_rank(key, position);
                if (inside(key, rank)) atomicAdd(&m.u.bins[(rank - lowest) >> shift], 1u);
            });
            team.sum_bins(m);
            select_find_bin<THREADS>(m, need);
            need -= m.above, members = m.in_bin;
            lowest += (uint64_t)m.bin << shift;
            highest = min(highest, lowest + ((uint64_t)1 << shift) - 1);
        }
    }
    /* few enough to compare each with each */
    uint64_t *band = team.own_band(m);
    if (threadIdx.x == 0) m.count = 0;
    __syncthreads();
    source.each([&](uint32_t key, int position) {
        const uint64_t rank = select_rank(key, position);
        if (inside(key, rank)) band[atomicAdd(&m.count, 1)] = rank;
    });
    team.join_bands(m);
#pragma unroll 1
    for (int i = threadIdx.x; i < members; i += THREADS) {
        const uint64_t mine = m.band[i];
        int greater = 0;
#pragma unroll 4
        for (int j = 0; j < members; j++)
            greater += m.band[j] > mine;
        if (greater == need - 1) m.threshold = mine;
    }
    __syncthreads();
    return m.threshold;
}

/* Writes the positions in [first, first + length), this CTA's part, whose rank is at least the threshold in
 * ascending order to out, behind those of the CTAs in front. A team of several CTAs has parts of one
 * window. */
template <class TEAM, class SOURCE>
ATTN_DEV void select_write(const TEAM &team, select_memory &m, const SOURCE &source, uint64_t threshold,
                           int first, int length, int32_t *out) {
    constexpr int THREADS = TEAM::THREADS;
    int written = 0;
#pragma unroll 1
    for (int window = 0; window < length; window += SELECT_WINDOW) {
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < SELECT_WINDOW / 32; i += THREADS)
            m.u.bitmap[i] = 0;
        __syncthreads();
        source.mark(m.u.bitmap, threshold, first + window);
        __syncthreads();
        /* a thread takes `per` neighbouring words; the positions go out through shared memory in whole
         * lines */
        const int words = (min(length - window, (int)SELECT_WINDOW) + 31) / 32,
                  per = (words + THREADS - 1) / THREADS;
        uint32_t sum = 0, total;
#pragma unroll 1
        for (int i = 0; i < per; i++)
            sum += (uint32_t)__popc(m.u.bitmap[threadIdx.x * per + i]);
        uint32_t at = select_scan<THREADS>(m, sum, &total);
        if (sum != 0)
#pragma unroll 1
            for (int i = 0; i < per; i++)
#pragma unroll 1
                for (uint32_t w = m.u.bitmap[threadIdx.x * per + i]; w != 0; w &= w - 1)
                    m.staged[at++] = first + window + ((int)threadIdx.x * per + i) * 32 + __ffs((int)w) - 1;
        int32_t *to = out + written + team.before(m, total);
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < (int)total; i += THREADS)
            to[i] = m.staged[i];
        written += (int)total;
    }
}

/* Positions [lo, hi) of a row in device memory, 16 bytes at a time where the address allows it; loads of
 * BATCH groups are under way together. */
template <int THREADS, int BATCH = 4>
struct select_row {
    const float *row;
    int lo, hi;
    template <class F>
    ATTN_DEV void each(const F &f) const {
        const int head = min(hi - lo, (int)((0 - (uintptr_t)(row + lo) / 4) & 3)),
                  groups = (hi - lo - head) / 4;
        const float4 *body = (const float4 *)(row + lo + head);
#pragma unroll 1
        for (int g0 = 0; g0 < groups; g0 += THREADS * BATCH) {
            float4 v[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const int g = g0 + j * THREADS + (int)threadIdx.x;
                if (g < groups) v[j] = __ldg(body + g);
            }
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const int g = g0 + j * THREADS + (int)threadIdx.x, at = lo + head + g * 4;
                if (g < groups)
                    f(select_key(v[j].x), at), f(select_key(v[j].y), at + 1), f(select_key(v[j].z), at + 2),
                        f(select_key(v[j].w), at + 3);
            }
        }
        /* at most three at either end, by six threads */
        const int t = threadIdx.x, at = t < head ? lo + t : lo + groups * 4 + t;
        if (t < head || (at < hi && t < 6)) f(select_key(__ldg(row + at)), at);
    }
    ATTN_DEV void mark(uint32_t *bitmap, uint64_t threshold, int origin) const {
        each([&](uint32_t key, int position) { select_mark(bitmap, key, position, threshold, origin); });
    }
};

/* Keys in shared memory, with their positions or at consecutive ones from `first` on. */
template <int THREADS>
struct select_keys {
    const uint32_t *keys;
    const int32_t *positions; /* NULL: consecutive */
    int first, count;
    template <class F>
    ATTN_DEV void each(const F &f) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += THREADS)
            f(keys[i], positions ? positions[i] : first + i);
    }
    ATTN_DEV void mark(uint32_t *bitmap, uint64_t threshold, int origin) const {
        if (positions) {
            each([&](uint32_t key, int position) { select_mark(bitmap, key, position, threshold, origin); });
            return;
        }
        const int lane =
            threadIdx.x & 31; /* 32 neighbours at once; `first` is the origin or a window behind it */
#pragma unroll 1
        for (int i0 = (int)threadIdx.x - lane; i0 < count; i0 += THREADS) {
            const int i = i0 + lane;
            const uint32_t word =
                __ballot_sync(~0u, i < count && select_rank(keys[i], first + i) >= threshold);
            const int at = first + i0 - origin;
            if (lane == 0 && (uint32_t)at < (uint32_t)SELECT_WINDOW) bitmap[at >> 5] = word;
        }
    }
};

/* What usual rows never need stays out of the way of the instruction cache: the selection on the row itself,
 * and the gate of exactly that rank in the sample. */
template <int THREADS>
__device__ __noinline__ void select_from_row(select_memory &m, const float *row, int n, int topk,
                                             int32_t *out) {
    const select_cta<THREADS> team;
    const select_row<THREADS, 1> source = {row, 0, n};
    __syncthreads();
    const uint64_t threshold = select_kth(team, m, source, select_octaves(), topk);
    select_write(team, m, source, threshold, 0, n, out);
}
template <int THREADS>
__device__ __noinline__ uint32_t select_exact_gate(select_memory &m, const uint32_t *keys, int rank) {
    const select_keys<THREADS> source = {keys, nullptr, 0, SELECT_SAMPLES};
    return (uint32_t)(select_kth(select_cta<THREADS>(), m, source, select_octaves(), rank) >> 32);
}

/* A gate that somewhat more than topk elements of a long row reach, from a sample of 1024 aligned groups of
 * four that are spread evenly. Loading and evaluating are apart, so that other loads can follow the first. */
template <int THREADS>
struct select_sample {
    static constexpr int GROUPS = SELECT_SAMPLES / 4, PER = GROUPS / THREADS;
    float4 v[PER];
    ATTN_DEV void load(const float *row, int n) {
        const int head = (int)((0 - (uintptr_t)row / 4) & 3), groups = (n - head) / 4;
        const float4 *body = (const float4 *)(row + head);
#pragma unroll
        for (int j = 0; j < PER; j++)
            v[j] = __ldg(body + (int64_t)(j * THREADS + (int)threadIdx.x) * groups / GROUPS);
    }
    /* keys: room for the sample. */
    ATTN_DEV uint32_t gate(select_memory &m, int n, int topk, uint32_t *keys) const {
        const select_octaves octaves;
#pragma unroll 1
        for (int i = threadIdx.x; i < SELECT_BINS; i += THREADS)
            m.u.bins[i] = 0;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const uint4 x =
                make_uint4(select_key(v[j].x), select_key(v[j].y), select_key(v[j].z), select_key(v[j].w));
            ((uint4 *)keys)[j * THREADS + threadIdx.x] = x;
            atomicAdd(&m.u.bins[octaves(x.x)], 1u), atomicAdd(&m.u.bins[octaves(x.y)], 1u);
            atomicAdd(&m.u.bins[octaves(x.z)], 1u), atomicAdd(&m.u.bins[octaves(x.w)], 1u);
        }
        __syncthreads();
        /* of the sample this many are in the result; four deviations more */
        const float expected = (float)topk * SELECT_SAMPLES / (float)n;
        const int rank = min((int)SELECT_SAMPLES, (int)(expected + 4.f * sqrtf(expected) + 4.f));
        select_find_bin<THREADS>(m, rank);
        if ((int64_t)(m.above + m.in_bin) * n <= (int64_t)SELECT_SAMPLES * SELECT_KEYS * 3 / 4)
            return octaves.lowest_key(m.bin);
        return select_exact_gate<THREADS>(m, keys, rank);
    }
};

/* The range of a row, cut to the columns; a row with no more keys than topk is written here, by the CTA that
 * is told so: returns true. */
ATTN_DEV bool select_trivial(const indexer_select_params &p, int row, bool writes, int *lo, int *hi) {
    const int end = min(__ldg(p.ends + row), p.num_columns),
              start = p.starts ? max(__ldg(p.starts + row), 0) : 0;
    *lo = start, *hi = max(end, start);
    const int n = *hi - *lo;
    if (n > p.topk) return false;
    int32_t *out = p.indices + (int64_t)row * p.indices_row;
#pragma unroll 1
    for (int i = threadIdx.x; writes && i < p.topk; i += blockDim.x)
        out[i] = i < n ? i : -1;
    return true;
}

} /* namespace attn_cuda */
#endif
