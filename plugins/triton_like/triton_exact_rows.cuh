/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a few query rows by FFMA, float32 throughout, for every format, mask and bias: the kernels of
 * triton_exact.cuh, and the rows that the 2D kernels compute again (triton_redo.cuh).
 *
 * Eight threads a row: of the scores each has every 8th key of the tile, of the output every 8th column. */
#ifndef TRITON_EXACT_ROWS_CUH
#define TRITON_EXACT_ROWS_CUH

#include "triton_rows.cuh"

namespace attn_cuda {
namespace exact {

constexpr int EB = element_bytes(TL_KV), VB = element_bytes(TL_V), DS = (TL_D + 3) / 4 * 4 + 4,
              DVS = TL_DV + 1, COLS = (TL_DV + 7) / 8;

/* The threads FIRST to FIRST + THREADS of a CTA, and tiles of BN keys. REDO: each knows whether its row is
 * wanted; the code is short, not fast, and ends where all that is wanted is NaN. */
template <int THREADS_, int FIRST, int KEYS, bool REDO_>
struct team {
    static constexpr int THREADS = THREADS_, BM = THREADS / 8, BN = KEYS, PS = BN + 1;
    static constexpr int SMEM = (BM * DS + BN * DS + BN * DVS + BM * PS + BN + 16) * 4;
    static constexpr bool REDO = REDO_;
    static ATTN_DEV int thread() { return threadIdx.x - FIRST; }
    static ATTN_DEV void sync() {
        if constexpr (FIRST == 0)
            __syncthreads();
        else
            asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    }
    static ATTN_DEV bool any(bool x) { /* the same, and whether it is so for one of them */
        if constexpr (FIRST == 0) {
            return __syncthreads_or(x);
        } else {
            uint32_t y;
            asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 1, %2, p; "
                         "selp.u32 %0, 1, 0, q; }"
                         : "=r"(y)
                         : "r"((uint32_t)x), "n"(THREADS)
                         : "memory");
            return y != 0;
        }
    }
};

#if TL_PACKED
/* H x * factor for a team's rows of SIZE values, STRIDE apart. */
template <class T, int SIZE, int STRIDE>
ATTN_DEV void hadamard_rows(float *x, float factor) {
#pragma unroll 1
    for (int half = 1; half < SIZE; half *= 2) {
        T::sync();
        for (int i = T::thread(); i < T::BM * SIZE / 2; i += T::THREADS) {
            const int r = i / (SIZE / 2), j = i % (SIZE / 2),
                      at = r * STRIDE + j / half * 2 * half + j % half;
            const float a = x[at], b = x[at + half], f = half == 1 ? factor : 1.f; /* before sums grow */
            x[at] = (a + b) * f, x[at + half] = (a - b) * f;
        }
    }
    T::sync();
}
#endif

/* One block of rows: `row0` of request `seq`, segment `piece` of `pieces`, into slot or (-1) the output. REDO
 * into a slot: keys from `piece` to `pieces`. */
template <class T>
ATTN_DEV void attend(const triton_params_t &p, float *shared, int seq, int row0, int head, int piece,
                     int pieces, int slot, bool is_wanted) {
    constexpr int BM = T::BM, BN = T::BN, PS = T::PS, MANY = T::REDO ? 1 : 4;
    static_assert(BM * DVS <= BN * (DS + DVS), "the memory of K and V takes the rows of int4's output");
    float *const sq = shared, *const sk = sq + BM * DS, *const svm = sk + BN * DS, *const sp = svm + BN * DVS,
                 *const k_scales = sp + BM * PS, *const centroids = k_scales + BN;
    const int tid = T::thread(), r = tid >> 3, part = tid & 7;
    const seq_view sv = view_seq(p, seq);
    const int rows = sv.q_len * TL_GROUP, context = sv.kv_len - sv.q_len;
    if (row0 >= rows) return;
    for (int i = tid; i < BM * DS; i += T::THREADS) {
        int row = row0 + i / DS, d = i % DS;
        float x = row < rows && d < TL_D
                      ? load_float<TL_Q>(p.q, (int64_t)(sv.q0 + row / TL_GROUP) * p.q_token +
                                                  (int64_t)(head * TL_GROUP + row % TL_GROUP) * p.q_head + d)
                      : 0.f;
#if TL_PACKED
        if (packed::IS_INT4 && d < TL_D && rotation_is_negative(d)) x = -x;
#endif
        sq[i] = x;
    }
    float q_scale = 1.f;
    if constexpr (TL_K_APART) { /* eight threads a row */
        T::sync();
        float top = 0.f;
        for (int d = part; d < TL_D; d += 8)
            top = min_nan(top, -fabsf(sq[r * DS + d]));
#pragma unroll
        for (int d = 1; d < 8; d <<= 1)
            top = min_nan(top, __shfl_xor_sync(~0u, top, d));
        q_scale = int8_scale(-top);
        for (int d = part; d < TL_D; d += 8)
            sq[r * DS + d] = int8_code(sq[r * DS + d] / q_scale);
    }
#if TL_PACKED
    packed::fill_centroids(centroids, tid, T::THREADS);
    if constexpr (packed::ROTATED) hadamard_rows<T, TL_D, DS>(sq, packed::Q_UNIT);
#endif
    const int row = row0 + r, mine = min(row, rows - 1), tok_q = mine / TL_GROUP,
              h = head * TL_GROUP + mine % TL_GROUP;
    const int2 see = row_keys(sv, tok_q);
    key_walk walk;
    walk.lo = see.x, walk.hi = see.y;
    for (int t = row0 / TL_GROUP; t <= min(rows - 1, row0 + BM - 1) / TL_GROUP; t++) {
        int2 s = row_keys(sv, t);
        walk.lo = min(walk.lo, s.x), walk.hi = max(walk.hi, s.y);
    }
    walk.prefix = min(sv.prefix, walk.hi);
    walk.start<BN>();
    int t0 = walk.begin, t1 = walk.hi;
    if (T::REDO && slot >= 0) {
        t0 = piece, t1 = min(walk.hi, pieces);
    } else if (pieces > 1) {
        int per = ((walk.hi - walk.begin + pieces - 1) / pieces + 63) & ~63;
        t0 = walk.begin + piece * per, t1 = min(walk.hi, t0 + per);
    }
    if (TL_RSWA > 0 && t0 >= walk.prefix && t0 < walk.lo) t0 = max(t0, walk.lo / BN * BN);

    const int32_t *table = p.counts->block_table + (int64_t)seq * p.counts->table_stride;
    const int64_t first = sv.k0;
    const uint8_t *kbase = (const uint8_t *)p.k + (first * p.k_token + (int64_t)head * p.k_head) * EB;
    const uint8_t *vbase = (const uint8_t *)p.v + (first * p.v_token + (int64_t)head * p.v_head) * VB;
    const score_rule rule(p, head, 1.f);
    const float slope = TL_ALIBI ? __ldg(p.alibi + h) * LOG2E : 0.f;
    const float *const rel_row = rel_bias_row(p, h);
    float m = NO_MAX, l = 0.f, acc[COLS];
#pragma unroll
    for (int c = 0; c < COLS; c++)
        acc[c] = 0.f;
#pragma unroll 1
    for (int k0 = t0; k0 < t1; k0 = walk.next<BN>(k0)) {
        if constexpr (T::REDO) {
            const uint32_t is_nan = __ballot_sync(~0u, l != l); /* by all of the warp, wanted or not */
            if (!T::any(is_wanted && (is_nan >> (threadIdx.x & 24) & 255) == 0)) break;
        } else
            T::sync();
#pragma unroll MANY
        for (int i = tid; i < BN * DS; i += T::THREADS) {
            int tok = k0 + i / DS, d = i % DS;
            float x = 0.f;
            if (d < TL_D && tok < t1 && walk.wanted(tok)) {
                int64_t off = (TL_PAGE > 0 ? page_id(table + page_of(tok), p.last_page) * p.k_page : 0) +
                              in_page(tok) * p.k_token;
#if TL_PACKED
                x = packed::element<false>(kbase + off, d, centroids);
#else
                if constexpr (TL_FP4)
                    x = fp4::element(kbase + off,
                                     (const uint8_t *)p.k_rows_scales + head * p.ks_head +
                                         page_id(table + page_of(tok), p.last_page) * p.ks_page +
                                         in_page(tok) * p.ks_token,
                                     d) *
                        fp4::UNIT;
                else
                    x = load_float<TL_KV>(kbase, off + d);
                if (TL_TOKEN_HEAD) x *= load_scale(kbase + off + TL_D);
#endif
            }
            sk[i] = x;
        }
#pragma unroll MANY
        for (int i = tid; i < BN * TL_DV; i += T::THREADS) {
            int tok = k0 + i / TL_DV, d = i % TL_DV;
            float x = 0.f;
            if (tok < t1 && walk.wanted(tok)) {
                int64_t off = (TL_PAGE > 0 ? page_id(table + page_of(tok), p.last_page) * p.v_page : 0) +
                              in_page(tok) * p.v_token;
#if TL_PACKED
                const float2 terms = packed::value_terms(vbase + off);
                x = fmaf(packed::element<true>(vbase + off, d, centroids), terms.x, terms.y);
#else
                if constexpr (TL_FP4)
                    x = fp4::element(vbase + off,
                                     (const uint8_t *)p.v_rows_scales + head * p.vs_head +
                                         page_id(table + page_of(tok), p.last_page) * p.vs_page +
                                         in_page(tok) * p.vs_token,
                                     d);
                else
                    x = load_float<TL_V>(vbase, off + d);
                if (TL_TOKEN_HEAD) x *= load_scale(vbase + off + TL_DV);
#endif
            }
            svm[i / TL_DV * DVS + d] = x;
        }
#if TL_PACKED
        if (tid < BN) {
            const int tok = k0 + tid;
            k_scales[tid] =
                tok < t1 && walk.wanted(tok)
                    ? packed::key_scale(
                          kbase + (TL_PAGE > 0 ? page_id(table + page_of(tok), p.last_page) * p.k_page : 0) +
                              in_page(tok) * p.k_token,
                          centroids)
                    : 0.f;
        }
#elif TL_K_APART
        if (tid < BN) {
            const int tok = k0 + tid;
            k_scales[tid] =
                tok < t1 && walk.wanted(tok)
                    ? load_float<DT_F32>((const uint8_t *)p.k_rows_scales +
                                             page_id(table + page_of(tok), p.last_page) * p.ks_page +
                                             in_page(tok) * p.ks_token + head * p.ks_head,
                                         0)
                    : 0.f;
        }
#endif
        T::sync();
        float s[BN / 8], top = NO_MAX;
#pragma unroll
        for (int i = 0; i < BN / 8; i++)
            s[i] = 0.f;
#pragma unroll(T::REDO ? 1 : 2)
        for (int d = 0; d < TL_D; d += 4) {
            float4 a = *(const float4 *)(sq + r * DS + d);
#pragma unroll
            for (int i = 0; i < BN / 8; i++) {
                float4 b = *(const float4 *)(sk + (part + 8 * i) * DS + d);
                s[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, s[i]))));
            }
        }
#pragma unroll
        for (int i = 0; i < BN / 8; i++) {
            int k = k0 + part + 8 * i, rel = k - context;
#if TL_PACKED || TL_K_APART
            s[i] *= k_scales[part + 8 * i] * q_scale;
#endif
            s[i] = rule.apply<true>(s[i]);
            if (TL_ALIBI) s[i] += alibi_term<true>(slope, (float)(rel - tok_q));
            if (TL_REL) s[i] += rel_bias_term<true>(p, rel_row, rel - tok_q);
            if (TL_QQ && rel >= 0 && rel < p.qq_width)
                s[i] += base2(__ldg(p.qq_bias + (int64_t)(sv.q0 + tok_q) * p.qq_row + rel));
            if (k >= t1 || !is_visible(k, see, walk.prefix)) s[i] = -INFINITY;
            top = fmaxf(top, s[i]);
        }
#pragma unroll
        for (int d = 1; d < 8; d <<= 1)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        top = fmaxf(top, m);
        float f = exp2f(m - top);
        m = top;
        l *= f;
#pragma unroll
        for (int i = 0; i < BN / 8; i++) {
            float e = exp2f(__fsub_rn(s[i], m));
            l += e;
            sp[r * PS + part + 8 * i] = e;
        }
        __syncwarp(); /* a row's threads are in one warp */
#pragma unroll
        for (int c = 0; c < COLS; c++)
            acc[c] *= f;
#pragma unroll MANY
        for (int j = 0; j < BN; j++) {
            float e = sp[r * PS + j];
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (TL_DV % 8 == 0 || part + 8 * c < TL_DV)
                    acc[c] = fmaf(e, svm[j * DVS + part + 8 * c], acc[c]);
        }
    }
#pragma unroll
    for (int d = 1; d < 8; d <<= 1)
        l += __shfl_xor_sync(~0u, l, d);
    float factor = !K_SCALED && p.v_scale ? __ldg(p.v_scale + head * p.kv_scale_stride) : 1.f;
    factor *= VALUE_UNIT;
    if (TL_SINKS && slot < 0) { /* denominator only (semantics 2.10) */
        float sink = __ldg(p.sinks + h) * LOG2E, top = fmaxf(m, sink), f = exp2f(m - top);
        l = l * f + exp2f(sink - top);
        factor *= f;
        m = top;
    }
#if TL_PACKED
    if constexpr (packed::IS_INT4) {
        T::sync();
#pragma unroll
        for (int c = 0; c < COLS; c++)
            sk[r * DVS + part + 8 * c] = acc[c];
        hadamard_rows<T, TL_DV, DVS>(sk, 1.f / TL_DV);
#pragma unroll
        for (int c = 0; c < COLS; c++)
            acc[c] =
                rotation_is_negative(part + 8 * c) ? -sk[r * DVS + part + 8 * c] : sk[r * DVS + part + 8 * c];
    }
#endif
    if (row >= rows || !is_wanted) return;
    factor = l != 0.f ? factor / l : 0.f;
    const int64_t at = (int64_t)slot * p.max_rows + (int64_t)tok_q * p.num_kv_heads * TL_GROUP + h;
    if (part == 0 && slot >= 0) p.part_lse[at] = l != 0.f ? m + log2f(l) : -INFINITY;
    if (part == 0 && slot < 0 && p.lse)
        p.lse[(int64_t)(sv.q0 + tok_q) * p.lse_token + (int64_t)h * p.lse_head] =
            l != 0.f ? (m + log2f(l)) * LN2 : -INFINITY;
    if (TL_OUT == DT_E4M3 && p.out_scale && slot < 0) factor /= __ldg(p.out_scale);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        int d = part + 8 * c;
        if (d < TL_DV) {
            if (TL_V_CHANNELS) acc[c] *= channel_scale(p, head, d);
            if (slot >= 0)
                p.part_out[at * TL_DV + d] = acc[c] * factor;
            else
                store_float<TL_OUT>(p.out,
                                    (int64_t)(sv.q0 + tok_q) * p.out_token + (int64_t)h * p.out_head + d,
                                    acc[c] * factor);
        }
    }
}

} /* namespace exact */
} /* namespace attn_cuda */
#endif
