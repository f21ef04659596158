/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the decode kernel, in up to three steps: the warps of a CTA merge through shared memory; where a
 * request's keys were cut, neighbouring pieces are the CTAs of a cluster (on Hopper, in small batches) and
 * push each other equal shares of the columns; what is left of the pieces then meets in global memory, and
 * the CTA that comes last merges it. The order of every sum is that of the keys, whoever is last. */
#ifndef DECODE_SM80_MERGE_CUH
#define DECODE_SM80_MERGE_CUH

#include "flash_rows.cuh"

namespace attn_cuda {

enum { DECODE_WARPS = 8, DECODE_CLUSTER = 8, MERGE_AT_ONCE = 16 };

/* What the warps tell each other beside their sums: maximum and sum of weights of every row. */
template <int ROWS>
struct row_exchange {
    float top[DECODE_WARPS][ROWS], sum[DECODE_WARPS][ROWS];
    int is_last;
};

/* Where the CTAs of a cluster push: maximum and sum of every row, and each one's values of this CTA's share
 * of columns. */
template <int ROWS, int DV>
struct cluster_inbox {
    float2 rows[DECODE_CLUSTER][ROWS];
    float2 share[ROWS * DV / 2 + DECODE_CLUSTER];
};

/* One CTA's share of the work: rows [row0, row0 + nrows) of a KV head, one piece of the keys. */
struct decode_place {
    int head, row0, nrows, piece, pieces, slot;
};

/* Query token of a packed row, which is token * group + head of the group. */
ATTN_DEV int token_of(const flash_params &p, const seq_view &sv, int row) {
    return sv.q_len == 1 ? 0 : p.group == 1 ? row : (int)__umulhi((unsigned)row, p.group_inverse);
}

ATTN_DEV int cluster_width() {
    int n = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(n));
#endif
    return n;
}

/* Counts a piece that is in memory; the last one sees all others'. */
ATTN_DEV int take_ticket(int32_t *ticket) {
#if __CUDA_ARCH__ >= 900
    int x;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(x) : "l"(ticket) : "memory");
    return x;
#else
    __threadfence();
    int x = atomicAdd(ticket, 1);
    __threadfence();
    return x;
#endif
}

template <int ROWS, int DV>
ATTN_DEV row_part merge_warps(const float *so, const row_exchange<ROWS> &x, int r, int d) {
    const int nwarp = blockDim.x >> 5;
    float top[DECODE_WARPS];
    row_part a = no_keys();
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) {
        top[w] = w < nwarp ? x.top[w][r] : NO_MAX;
        a.top = fmaxf(a.top, top[w]);
    }
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++)
        if (w < nwarp) {
            const float2 v = *(const float2 *)(so + (w * ROWS + r) * (DV + 4) + d);
            add_piece(a, top[w], x.sum[w][r], v);
        }
    return a;
}

/* The parts of a row in every `step`th slot from `slot` on. A trip to memory for each MERGE_AT_ONCE of
 * them. */
ATTN_DEV row_part merge_pieces(const flash_params &p, int slot, int step, int pieces, int row, int d) {
    const float *lse = p.part_lse + (int64_t)slot * p.max_rows + row,
                *part = p.part_out + ((int64_t)slot * p.max_rows + row) * p.head_size_v + d;
    const int64_t lse_step = (int64_t)step * p.max_rows, part_step = lse_step * p.head_size_v;
    row_part a = no_keys();
#pragma unroll 1
    for (int i = 0; i < pieces; i += MERGE_AT_ONCE) {
        float top[MERGE_AT_ONCE], most = a.top;
        float2 v[MERGE_AT_ONCE];
#pragma unroll
        for (int k = 0; k < MERGE_AT_ONCE; k++) {
            bool is_there = i + k < pieces;
            top[k] = is_there ? __ldcg(lse + (i + k) * lse_step) : -INFINITY;
            v[k] = is_there ? __ldcg((const float2 *)(part + (i + k) * part_step)) : make_float2(0.f, 0.f);
        }
#pragma unroll
        for (int k = 0; k < MERGE_AT_ONCE; k++)
            most = fmaxf(most, top[k]);
        a = under_top(a, most);
#pragma unroll
        for (int k = 0; k < MERGE_AT_ONCE; k++)
            add_piece(a, top[k], 1.f, v[k]);
    }
    return a;
}

/* The result: the sink only enters the denominator (semantics 2.10). */
ATTN_DEV void store_row(const flash_params &p, const seq_view &sv, int t, int h, int d, float vscale,
                        const row_part &a) {
    const float sink = p.sinks ? __ldg(p.sinks + h) * LOG2E : -INFINITY, top = fmaxf(a.top, sink),
                mine = ex2(a.top - top), sum = fmaf(mine, a.sum, ex2(sink - top)),
                f = sum > 0.f ? mine * vscale / sum : 0.f;
    *(uint32_t *)((uint16_t *)p.out + (int64_t)(sv.q0 + t) * p.out_token + (int64_t)h * p.out_head + d) =
        pack2_as(p.out_dtype, a.x * f, a.y * f);
    if (d == 0 && p.lse)
        p.lse[(int64_t)(sv.q0 + t) * p.lse_token + (int64_t)h * p.lse_head] = natural_lse(top, sum);
}

#if __CUDA_ARCH__ >= 900
/* This CTA's columns of what all CTAs of the cluster hold. Begins with the barrier that everybody has
 * started. */
template <int ROWS, int DV>
ATTN_DEV void push_shares(const decode_place &c, const float *so, const row_exchange<ROWS> &x,
                          cluster_inbox<ROWS, DV> &inbox, int width, int share) {
    const int rank = c.piece % width, total = c.nrows * (DV / 2);
    cluster_wait();
    for (int e = threadIdx.x; e < total; e += blockDim.x) {
        int r = e / (DV / 2), d = e % (DV / 2) * 2, to = e / share;
        const row_part a = merge_warps<ROWS, DV>(so, x, r, d);
        st_cluster2(cluster_addr(smem_addr(&inbox.share[rank * share + e - to * share]), to),
                    make_float2(a.x, a.y));
        if (d < 2 * width) /* one thread of the row for each CTA */
            st_cluster2(cluster_addr(smem_addr(&inbox.rows[rank][r]), d / 2), make_float2(a.top, a.sum));
    }
    __syncwarp(); /* head sizes up to 96 may leave half a warp out of the last round */
    cluster_sync();
}

template <int ROWS, int DV>
ATTN_DEV row_part merge_shares(const cluster_inbox<ROWS, DV> &inbox, int width, int share, int r, int i) {
    row_part a = no_keys();
    float2 row[DECODE_CLUSTER];
#pragma unroll
    for (int k = 0; k < DECODE_CLUSTER; k++) {
        row[k] = k < width ? inbox.rows[k][r] : make_float2(NO_MAX, 0.f);
        a.top = fmaxf(a.top, row[k].x);
    }
#pragma unroll
    for (int k = 0; k < DECODE_CLUSTER; k++)
        if (k < width) {
            const float2 v = inbox.share[k * share + i];
            add_piece(a, row[k].x, row[k].y, v);
        }
    return a;
}
#endif

/* so: [warps][ROWS][DV + 4] sums of the warps; they and x are written, and all threads have met. width: CTAs
 * of a cluster, 1 without; they hold pieces that follow each other, and their number divides the
 * request's. */
template <int ROWS, int DV>
ATTN_DEV void merge_and_store(const flash_params &p, const seq_view &sv, const decode_place &c, int width,
                              const float *so, row_exchange<ROWS> &x, cluster_inbox<ROWS, DV> &inbox) {
    const float vscale = p.v_scale ? __ldg(p.v_scale + c.head * p.scale_stride) : 1.f;
    const int total = c.nrows * (DV / 2), share = width > 1 ? (total + width - 1) / width : total;
    const int rank = width > 1 ? c.piece % width : 0, begin = rank * share, end = min(total, begin + share);
#if __CUDA_ARCH__ >= 900
    if (width > 1) push_shares<ROWS, DV>(c, so, x, inbox, width, share);
#endif
    auto for_all = [&](auto &&act) {
        for (int e = begin + (int)threadIdx.x; e < end; e += blockDim.x) {
            int r = e / (DV / 2), d = e % (DV / 2) * 2, row = c.row0 + r;
            int t = token_of(p, sv, row), h = c.head * p.group + row - t * p.group;
            if (d < p.head_size_v) act(e, r, d, t, h);
        }
    };
    for_all([&](int e, int r, int d, int t, int h) {
        row_part a;
#if __CUDA_ARCH__ >= 900
        if (width > 1)
            a = merge_shares<ROWS, DV>(inbox, width, share, r, e - begin);
        else
#endif
            a = merge_warps<ROWS, DV>(so, x, r, d);
        if (c.pieces == width) {
            store_row(p, sv, t, h, d, vscale, a);
            return;
        }
        const int64_t at = (int64_t)c.slot * p.max_rows + (int64_t)t * p.num_q_heads + h;
        const float f = a.sum > 0.f ? 1.f / a.sum : 0.f;
        *(float2 *)(p.part_out + at * p.head_size_v + d) = make_float2(a.x * f, a.y * f);
        if (d == 0 || e == begin) p.part_lse[at] = a.sum > 0.f ? a.top + lg2(a.sum) : -INFINITY;
    });
    if (c.pieces == width) return;
    const int first = c.slot - c.piece + rank, parts = c.pieces / width;
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t *ticket = p.tickets + (int64_t)first * p.ticket_stride + blockIdx.x;
        x.is_last = take_ticket(ticket) == parts - 1;
        if (x.is_last) *ticket = 0; /* for the next forward */
    }
    __syncthreads();
    if (x.is_last)
        for_all([&](int, int, int d, int t, int h) {
            store_row(p, sv, t, h, d, vscale, merge_pieces(p, first, width, parts, t * p.num_q_heads + h, d));
        });
}

} /* namespace attn_cuda */
#endif
