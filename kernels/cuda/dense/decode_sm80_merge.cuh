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
    float2 row[DECODE_WARPS][ROWS];
    int is_last;
};

/* Where the CTAs of a cluster push: maximum and sum of every row, and each one's values of this CTA's share
 * of columns, row after row. */
template <int ROWS, int DV>
struct cluster_inbox {
    float2 rows[DECODE_CLUSTER][ROWS];
    float4 share[ROWS * DV / 4];
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

/* Four columns of a row of PARTS warps or CTAs, whose maxima and sums are rows[.. * row_step] and whose
 * values at[.. * step]. Code that a CTA runs once takes what its longest chain takes: all loads come first,
 * and their number is known. */
template <int PARTS>
ATTN_DEV row_part merge_parts(const float2 *rows, int row_step, const float *at, int step) {
    float2 row[PARTS];
    float4 v[PARTS];
#pragma unroll
    for (int w = 0; w < PARTS; w++)
        row[w] = rows[w * row_step], v[w] = *(const float4 *)(at + w * step);
    row_part a = {row[0].x, 0.f, make_float4(0.f, 0.f, 0.f, 0.f)};
#pragma unroll
    for (int w = 1; w < PARTS; w++)
        a.top = fmaxf(a.top, row[w].x);
#pragma unroll
    for (int w = 0; w < PARTS; w++)
        add_piece(a, row[w].x, row[w].y, v[w]);
    return a;
}

/* The parts of a row in every `step`th slot from `slot` on. A trip to memory for each MERGE_AT_ONCE of
 * them. */
ATTN_DEV row_part merge_pieces(const flash_params &p, int slot, int step, int pieces, int row, int d) {
    const float *lse = p.part_lse + (int64_t)slot * p.max_rows + row,
                *part = p.part_out + ((int64_t)slot * p.max_rows + row) * p.head_size_v + d;
    const int64_t lse_step = (int64_t)step * p.max_rows, part_step = lse_step * p.head_size_v;
    row_part a = {NO_MAX, 0.f, make_float4(0.f, 0.f, 0.f, 0.f)};
#pragma unroll 1
    for (int i = 0; i < pieces; i += MERGE_AT_ONCE) {
        float top[MERGE_AT_ONCE], most = a.top;
        float4 v[MERGE_AT_ONCE];
#pragma unroll
        for (int k = 0; k < MERGE_AT_ONCE; k++) {
            const bool is_there = i + k < pieces;
            top[k] = is_there ? __ldcg(lse + (i + k) * lse_step) : -INFINITY;
            v[k] = is_there ? __ldcg((const float4 *)(part + (i + k) * part_step))
                            : make_float4(0.f, 0.f, 0.f, 0.f);
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
    uint32_t *out =
        (uint32_t *)((uint16_t *)p.out + (int64_t)(sv.q0 + t) * p.out_token + (int64_t)h * p.out_head + d);
    out[0] = pack2_as(p.out_dtype, a.v.x * f, a.v.y * f);
    out[1] = pack2_as(p.out_dtype, a.v.z * f, a.v.w * f);
    if (d == 0 && p.lse)
        p.lse[(int64_t)(sv.q0 + t) * p.lse_token + (int64_t)h * p.lse_head] = natural_lse(top, sum);
}

/* Where the parts of a row lie, those of a CTA's warps or of a cluster's CTAs: maxima and sums at rows[part *
 * row_step + row], values at[part * step + row * row_size + column]. */
struct parts_view {
    const float2 *rows;
    const float *at;
    int row_step, step, row_size;
};

template <int PARTS>
ATTN_DEV row_part merge_parts(const parts_view &v, int r, int column) {
    return merge_parts<PARTS>(v.rows + r, v.row_step, v.at + r * v.row_size + column, v.step);
}

/* The columns of a row that this CTA of a cluster of 1 << log_width merges, all of them without one, by
 * fours. */
struct column_share {
    int log_width, rank, quads;
};

#if __CUDA_ARCH__ >= 900
/* To each CTA of the cluster its columns. Begins with the barrier that everybody has started. */
template <int WARPS, int ROWS, int DV>
ATTN_DEV void push_shares(const decode_place &c, const column_share &s, const parts_view &warps,
                          cluster_inbox<ROWS, DV> &inbox) {
    constexpr int QUADS = DV / 4;
    cluster_wait();
    for (int e = threadIdx.x; e < c.nrows * QUADS; e += WARPS * 32) {
        const int r = e / QUADS, i = e % QUADS, to = (i << s.log_width) / QUADS;
        const row_part a = merge_parts<WARPS>(warps, r, 4 * i);
        st_cluster4(
            cluster_addr(smem_addr(&inbox.share[(s.rank * c.nrows + r) * s.quads + i - to * s.quads]), to),
            a.v);
        if (i >> s.log_width == 0) /* one thread of the row for each CTA */
            st_cluster2(cluster_addr(smem_addr(&inbox.rows[s.rank][r]), i), make_float2(a.top, a.sum));
    }
    __syncwarp(); /* some head sizes leave a part of a warp out of the last round */
    cluster_sync();
}
#endif

/* act(r, i, d, t, h): row r and quad i of the share, which are columns d to d + 3 of token t, head h. */
template <int DV, class ACT>
ATTN_DEV void for_share(const flash_params &p, const seq_view &sv, const decode_place &c,
                        const column_share &s, ACT act) {
    for (int e = threadIdx.x; e < c.nrows * s.quads; e += blockDim.x) {
        const int r = (e << s.log_width) / (DV / 4), i = e - r * s.quads, d = 4 * (s.rank * s.quads + i);
        const int row = c.row0 + r, t = token_of(p, sv, row), h = c.head * p.group + row - t * p.group;
        if (d < p.head_size_v) act(r, i, d, t, h);
    }
}

/* is_whole: there are no pieces beside these parts. */
template <int PARTS, int DV>
ATTN_DEV void merge_share(const flash_params &p, const seq_view &sv, const decode_place &c,
                          const column_share &s, const parts_view &parts, bool is_whole, float vscale) {
    for_share<DV>(p, sv, c, s, [&](int r, int i, int d, int t, int h) {
        const row_part a = merge_parts<PARTS>(parts, r, s.log_width > 0 ? 4 * i : d);
        if (is_whole) {
            store_row(p, sv, t, h, d, vscale, a);
            return;
        }
        const int64_t at = (int64_t)c.slot * p.max_rows + (int64_t)t * p.num_q_heads + h;
        const float f = a.sum > 0.f ? 1.f / a.sum : 0.f;
        *(float4 *)(p.part_out + at * p.head_size_v + d) =
            make_float4(a.v.x * f, a.v.y * f, a.v.z * f, a.v.w * f);
        if (i == 0) p.part_lse[at] = a.sum > 0.f ? a.top + lg2(a.sum) : -INFINITY;
    });
}

/* so: [warps][ROWS][DV + 4] sums of the warps; they and x are written, and all threads have met. width: CTAs
 * of a cluster, 1 without; they hold pieces that follow each other, and their number divides the request's.
 * Both are powers of two up to 8. */
template <int ROWS, int DV>
ATTN_DEV void merge_and_store(const flash_params &p, const seq_view &sv, const decode_place &c, int width,
                              const float *so, row_exchange<ROWS> &x, cluster_inbox<ROWS, DV> &inbox) {
    static_assert(DECODE_WARPS == 8 && DECODE_CLUSTER == 8 && DV % 32 == 0, "a share is whole quads");
    const float vscale = p.v_scale ? __ldg(p.v_scale + c.head * p.scale_stride) : 1.f;
    const int log_width = 31 - __clz(width), warps = blockDim.x >> 5;
    const column_share s = {log_width, c.piece & (width - 1), (DV / 4) >> log_width};
    parts_view parts = {&x.row[0][0], so, ROWS, ROWS * (DV + 4), DV + 4};
    int count = warps;
#if __CUDA_ARCH__ >= 900
    if (width > 1) {
        if (warps == 8)
            push_shares<8>(c, s, parts, inbox);
        else if (warps == 4)
            push_shares<4>(c, s, parts, inbox);
        else if (warps == 2)
            push_shares<2>(c, s, parts, inbox);
        else
            push_shares<1>(c, s, parts, inbox);
        parts = {&inbox.rows[0][0], (const float *)inbox.share, ROWS, 4 * c.nrows * s.quads, 4 * s.quads};
        count = width;
    }
#endif
    const bool is_whole = c.pieces == width;
    if (count == 8)
        merge_share<8, DV>(p, sv, c, s, parts, is_whole, vscale);
    else if (count == 4)
        merge_share<4, DV>(p, sv, c, s, parts, is_whole, vscale);
    else if (count == 2)
        merge_share<2, DV>(p, sv, c, s, parts, is_whole, vscale);
    else
        merge_share<1, DV>(p, sv, c, s, parts, is_whole, vscale);
    if (is_whole) return;
    const int first = c.slot - c.piece + s.rank, pieces = c.pieces >> log_width;
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t *ticket = p.tickets + (int64_t)first * p.ticket_stride + blockIdx.x;
        x.is_last = take_ticket(ticket) == pieces - 1;
        if (x.is_last) *ticket = 0; /* for the next forward */
    }
    __syncthreads();
    if (x.is_last)
        for_share<DV>(p, sv, c, s, [&](int, int, int d, int t, int h) {
            store_row(p, sv, t, h, d, vscale,
                      merge_pieces(p, first, width, pieces, t * p.num_q_heads + h, d));
        });
}

} /* namespace attn_cuda */
#endif
