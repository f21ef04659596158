/* SPDX-License-Identifier: Apache-2.0 */
/* What the Hopper prefill kernels share: which tile a CTA works on and what the producer says about it,
 * masks, and the softmax of one 64-row block of scores in the registers of a warpgroup. */
#ifndef PREFILL_SM90_PARTS_CUH
#define PREFILL_SM90_PARTS_CUH

#include "flash_rows.cuh"
#include "prefill_sm90.h"

namespace attn_cuda {

/* What the producer tells the other warps about a tile, beside each Q buffer. */
struct tile_info {
    int q0, q_len, kv_len, causal; /* seq_view */
    int block, head;               /* block < 0: no more work */
    int row0;                      /* the tile's first row; those before 0 are nobody's */
    int last, count;               /* last key block and number of blocks, at least 1 */
    int shift;                     /* block j begins with key j * BN + shift */
    int skipped;                   /* keys below were not loaded */
    int first_key, piece;          /* seq_view's first; where the result goes */
    int seq, k0;                   /* for far_rows.cuh: row of the block table; first of contiguous keys */
    /* of short tiles: */
    int half;    /* no row sees the upper half of the last block */
    int ahead;   /* row i sees keys below i + ahead and kv_len, ... */
    int lows[2]; /* ... and all rows of a warpgroup see them from here on */
};

ATTN_DEV seq_view view_of(const tile_info &t) {
    return seq_view{t.q0, t.q_len, t.kv_len, t.causal, t.first_key};
}

struct tile_job {
    int4 tile, view; /* the two halves of a flash_tile */
    int head;
};

/* Tile number t: heads, or as many as a tile has, in sections whose keys fit the L2, within them tiles by
 * falling length, so that neighbours share keys. */
ATTN_DEV tile_job job_of(const flash_sm90_params &P, int num_tiles, int t) {
    tile_job x;
    const flash_params &p = P.p;
    const int section = P.head_section / P.tile_heads, per = num_tiles * section, s = t / per,
              r = t - s * per, entry = r / section;
    x.head = (s * section + (r - entry * section)) * P.tile_heads;
    x.tile = __ldg((const int4 *)p.tiles + 2 * entry);
    x.view = __ldg((const int4 *)p.tiles + 2 * entry + 1);
    return x;
}

/* The first row of a tile. Where later rows see more keys, the rows of a tile of 192 that the request has
 * not, which cost as much as others, are those before its first; smaller tiles gain nothing
 * (dense-notes.md). */
ATTN_DEV int first_row_of(const flash_params &p, const seq_view &sv, int block, int tokens) {
    const int missing = tokens == 192 && (sv.causal || p.chunk > 0) ? (192 - sv.q_len % 192) % 192 : 0;
    return block * tokens - missing;
}

/* Keys lo <= k < hi that the rows of a tile see together. */
ATTN_DEV void tile_keys(const flash_params &p, const seq_view &sv, int row0, int tokens, int &lo, int &hi) {
    int unused;
    visible_keys(p, sv, max(0, row0), lo, unused);
    visible_keys(p, sv, min(sv.q_len - 1, row0 + tokens - 1), unused, hi);
}

/* tokens: of a tile; box: keys that are loaded together, 0 where all rows of a block are. */
template <class T>
ATTN_DEV void describe_tile(const flash_params &p, int tokens, const tile_job &x, const seq_view &sv,
                            int row0, int lo, int hi, int box, tile_info &ti) {
    constexpr int BN = T::BN;
    /* Windows begin anywhere: blocks from the first visible key on, as copies allow, are fewer than those of
     * a fixed grid. */
    const int unit = T::SHIFTS ? (box > 0 ? box : 16) : BN, base = lo / unit * unit, first = base / BN;
    const int shift = base - first * BN;
    ti.q0 = sv.q0, ti.q_len = sv.q_len, ti.kv_len = sv.kv_len, ti.causal = sv.causal;
    ti.block = x.tile.y, ti.head = x.head, ti.row0 = row0;
    ti.count = max(1, (hi - shift + BN - 1) / BN - first), ti.last = first + ti.count - 1, ti.shift = shift;
    ti.skipped = box > 0 ? lo / box * box : 0;
    ti.first_key = sv.first, ti.piece = p.piece_keys ? sv.first / p.piece_keys : 0;
    ti.seq = x.tile.x + p.seq_offset, ti.k0 = x.tile.z;
    if constexpr (!T::SHORT) return;
    ti.half = hi - shift - ti.last * BN <= BN / 2;
    /* the bounds of visible_keys() */
    const int64_t right = (int64_t)sv.kv_len - sv.q_len + 1 + p.window_right;
    ti.ahead = sv.causal || p.chunk > 0                   ? sv.kv_len - sv.q_len + 1
               : p.window_right >= 0 && right < sv.kv_len ? (int)right
                                                          : sv.kv_len;
    for (int w = 0; w < T::NWG; w++) {
        int unused;
        ti.lows[w] = sv.first;
        if (p.window_left >= 0 || p.chunk > 0)
            visible_keys(p, sv, row0 + min(w * 64, tokens - 64) + 63, ti.lows[w], unused);
    }
}

/* A thread has two rows of a tile. The second is `second` tokens behind the first one: 8, or none where tiles
 * have 8 tokens of each head, when it is the next head's. Of their scores element i is column
 * (i / 4) * 8 + (i & 1) from k0 on, of the second row if i & 2. */
template <int N>
ATTN_DEV void add_alibi(float (&sc)[N], float slope, int rel) {
#pragma unroll
    for (int i = 0; i < N; i++)
        sc[i] = fmaf(slope, (float)(rel + (i >> 2) * 8 + (i & 1) - (i & 2) * 4), sc[i]);
}

/* Elements FROM to TO - 1, by the columns that the two rows see. */
template <int FROM, int TO, int N>
ATTN_DEV void mask_from(float (&sc)[N], int h0, int h1) {
#pragma unroll
    for (int i = FROM; i < TO; i++)
        if ((i >> 2) * 8 + (i & 1) >= ((i & 2) ? h1 : h0)) sc[i] = -INFINITY;
}

template <int N>
ATTN_DEV void mask_above(float (&sc)[N], const flash_params &p, const seq_view &sv, int row, int second,
                         int k0) {
    int h0, h1, unused;
    visible_keys(p, sv, row, unused, h0);
    visible_keys(p, sv, row + second, unused, h1);
    mask_from<0, N>(sc, h0 - k0, h1 - k0);
}

/* The same for half of a short tile's block. */
template <int FROM, int TO, int N>
ATTN_DEV void mask_above(float (&sc)[N], const tile_info &t, int row, int second, int k0) {
    mask_from<FROM, TO>(sc, min(row + t.ahead, t.kv_len) - k0, min(row + second + t.ahead, t.kv_len) - k0);
}

template <int N>
ATTN_DEV void mask_below(float (&sc)[N], const flash_params &p, const seq_view &sv, int row, int second,
                         int k0) {
    int h0, h1, unused;
    visible_keys(p, sv, row, h0, unused);
    visible_keys(p, sv, row + second, h1, unused);
    h0 -= k0, h1 -= k0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((i >> 2) * 8 + (i & 1) < ((i & 2) ? h1 : h0)) sc[i] = -INFINITY;
}

/* Scores become 2^(score * c - maximum). m, l: maximum in raw units and sum of the thread's two rows; f:
 * by what O has to be multiplied. far: the row takes the largest score so far as its maximum, otherwise it
 * keeps the one that it has. Each row decides for itself and adds up as softmax_trusted does: a row has
 * the same bits whichever rows share its warp, and those behind its request in a tile are the next
 * request's. */
template <int N>
ATTN_DEV void softmax_block(float (&sc)[N], float c, bool far0, bool far1, float &m0, float &m1, float &l0,
                            float &l1, float &f0, float &f1) {
    /* several chains a row: one alone waits for itself */
    float t[8] = {m0, m0, m1, m1, m0, m0, m1, m1};
#pragma unroll
    for (int i = 0; i < N; i++)
        t[i % 8] = fmaxf(t[i % 8], sc[i]);
    float a0 = fmaxf(fmaxf(t[0], t[1]), fmaxf(t[4], t[5])), a1 = fmaxf(fmaxf(t[2], t[3]), fmaxf(t[6], t[7]));
    a0 = fmaxf(a0, __shfl_xor_sync(~0u, a0, 1));
    a1 = fmaxf(a1, __shfl_xor_sync(~0u, a1, 1));
    a0 = fmaxf(a0, __shfl_xor_sync(~0u, a0, 2));
    a1 = fmaxf(a1, __shfl_xor_sync(~0u, a1, 2));
    a0 = far0 ? a0 : m0;
    a1 = far1 ? a1 : m1;
    /* a row that stays at -inf keeps factor 1: ex2(NaN) must not reach O */
    f0 = a0 == m0 ? 1.f : ex2((m0 - a0) * c);
    f1 = a1 == m1 ? 1.f : ex2((m1 - a1) * c);
    m0 = a0;
    m1 = a1;
    const float b0 = a0 == -INFINITY ? 0.f : a0 * c, b1 = a1 == -INFINITY ? 0.f : a1 * c;
    float t0 = 0.f, t1 = 0.f, u0 = 0.f, u1 = 0.f;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        sc[4 * i] = ex2(fmaf(sc[4 * i], c, -b0));
        sc[4 * i + 1] = ex2(fmaf(sc[4 * i + 1], c, -b0));
        sc[4 * i + 2] = ex2(fmaf(sc[4 * i + 2], c, -b1));
        sc[4 * i + 3] = ex2(fmaf(sc[4 * i + 3], c, -b1));
        t0 += sc[4 * i], u0 += sc[4 * i + 1], t1 += sc[4 * i + 2], u1 += sc[4 * i + 3];
    }
    t0 += u0, t1 += u1;
    l0 = fmaf(l0, f0, t0);
    l1 = fmaf(l1, f1, t1);
}

/* The same for a block after a row's first, on trust that no score is far above the maximum so far, so
 * without looking for a new one; P is packed at once. False, and nothing changed but P and far, where the
 * sums tell otherwise of a row of the warp: too large, infinite, or no number, as for a row without keys
 * so far (m = -inf). The limit keeps every P within its type, O and l within f32. */
template <int DT, int N>
ATTN_DEV bool softmax_trusted(const float (&sc)[N], float c, float m0, float m1, float &l0, float &l1,
                              uint32_t (&pr)[N / 2], bool &far0, bool &far1) {
    constexpr float LIMIT = DT == DT_F16 ? 16384.f : 1e9f;
    const float b0 = m0 * c, b1 = m1 * c;
    float t0 = 0.f, t1 = 0.f, u0 = 0.f, u1 = 0.f;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float x = ex2(fmaf(sc[4 * i], c, -b0)), y = ex2(fmaf(sc[4 * i + 1], c, -b0)),
                    z = ex2(fmaf(sc[4 * i + 2], c, -b1)), w = ex2(fmaf(sc[4 * i + 3], c, -b1));
        t0 += x, u0 += y, t1 += z, u1 += w;
        pr[2 * i] = pack2<DT>(x, y);
        pr[2 * i + 1] = pack2<DT>(z, w);
    }
    t0 += u0, t1 += u1;
    if (__any_sync(~0u, !(t0 <= LIMIT && t1 <= LIMIT))) {
        const int quad = threadIdx.x & 28; /* the four threads of a row decide together */
        far0 = __ballot_sync(~0u, !(t0 <= LIMIT)) >> quad & 15u;
        far1 = __ballot_sync(~0u, !(t1 <= LIMIT)) >> quad & 15u;
        return false;
    }
    l0 += t0, l1 += t1;
    return true;
}

/* The sink enters the denominator only (semantics 2.10). b: the maximum in base-2 units, l: the sum of the
 * row; r becomes what O is multiplied by before the division. */
ATTN_DEV void finish_rows(const flash_params &p, int head, int second_head, float &b0, float &b1, float &l0,
                          float &l1, float &r0, float &r1) {
    r0 = r1 = 1.f;
    if (p.sinks) {
        const float s0 = __ldg(p.sinks + head) * LOG2E, s1 = __ldg(p.sinks + second_head) * LOG2E,
                    t0 = fmaxf(b0, s0), t1 = fmaxf(b1, s1);
        r0 = ex2(b0 - t0), r1 = ex2(b1 - t1);
        l0 = l0 * r0 + ex2(s0 - t0), l1 = l1 * r1 + ex2(s1 - t1);
        b0 = t0, b1 = t1;
    }
}

/* Weights of two results of the same row and their common LSE (semantics 6.5); +inf counts as -inf. A result
 * of weight 0 must not be read: it may be what another step left there. */
struct merged {
    float old, part, lse;
};

ATTN_DEV merged merge_weights(float old_lse, float part_lse) {
    if (old_lse == INFINITY) old_lse = -INFINITY;
    const float m = old_lse > part_lse ? old_lse : part_lse, base = m == -INFINITY ? 0.f : m;
    const float e1 = ex2((old_lse - base) * LOG2E), e2 = ex2((part_lse - base) * LOG2E), sum = e1 + e2;
    if (sum == 0.f) return merged{0.f, 0.f, -INFINITY};
    return merged{e1 / sum, e2 / sum, base + lg2(sum) * LN2};
}

/* Four neighbours hold columns 2q and 2q + 1 of four blocks of 8; the q-th gets all of block q. */
ATTN_DEV uint4 transpose_quad(uint4 v, int q) {
    const bool odd = q & 1, high = q & 2;
    const uint32_t a = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1), b = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
    const uint4 w = odd ? make_uint4(a, v.y, b, v.w) : make_uint4(v.x, a, v.z, b);
    const uint32_t c = __shfl_xor_sync(~0u, high ? w.x : w.z, 2),
                   d = __shfl_xor_sync(~0u, high ? w.y : w.w, 2);
    return high ? make_uint4(c, d, w.z, w.w) : make_uint4(w.x, w.y, c, d);
}

/* y + factor * x, eight 16-bit numbers each. */
template <int DT>
ATTN_DEV uint4 add_scaled(uint4 y, uint4 x, float factor) {
    uint32_t *to = &y.x;
    const uint32_t *from = &x.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 a = unpack2<DT>(to[i]), b = unpack2<DT>(from[i]);
        to[i] = pack2<DT>(fmaf(b.x, factor, a.x), fmaf(b.y, factor, a.y));
    }
    return y;
}

/* The token, from a tile's first on, that `row` of the tile is. */
template <class T>
ATTN_DEV int token_of_row(const flash_sm90_params &P, int row) {
    if constexpr (T::BANDS) return (row >> 6) * P.band_tokens + (row & P.token_mask);
    return T::PACKS ? row & P.token_mask : row;
}

/* The first token and the head of the 16 rows of warp wr of warpgroup w. Rows of heads that a tile has not
 * are behind the request's. */
struct warp_rows {
    int row, head;
};
template <class T>
ATTN_DEV warp_rows rows_of_warp(const flash_sm90_params &P, const tile_info &t, int w, int wr) {
    const int at = w * 64 + wr * 16;
    if constexpr (!T::PACKS) return {t.row0 + at, t.head};
    const int head = (T::BANDS ? at & P.head_mask : at) >> P.token_shift;
    return {head < P.tile_heads ? t.row0 + token_of_row<T>(P, at) : t.q_len,
            t.head + min(head, P.tile_heads - 1)};
}

/* A row of a tile that the request has. */
ATTN_DEV bool is_row(int row, int q_len) {
    return (unsigned)row < (unsigned)q_len;
}

/* Where a thread's second row is from its first one. */
struct second_row {
    int token, head;
    ATTN_DEV int64_t at(int64_t token_stride, int64_t head_stride) const {
        return token * token_stride + head * head_stride;
    }
};
template <class T>
ATTN_DEV second_row second_of(const flash_sm90_params &P) {
    if constexpr (T::PACKS) return {P.second_token, P.second_token == 0};
    return {8, 0};
}

/* LSE of a thread's two rows of a tile; one of a row's four threads calls it. */
ATTN_DEV void write_lse(const flash_params &p, int q0, int q_len, int head, int piece, int row,
                        second_row second, float b0, float b1, float l0, float l1) {
    float *dst = p.lse + piece * p.lse_piece + (int64_t)(q0 + row) * p.lse_token + (int64_t)head * p.lse_head;
    if (is_row(row, q_len)) dst[0] = natural_lse(b0, l0);
    if (is_row(row + second.token, q_len)) dst[second.at(p.lse_token, p.lse_head)] = natural_lse(b1, l1);
}

} /* namespace attn_cuda */
#endif
