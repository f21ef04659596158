/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a prompt whose scores lie beyond what the loops of the Hopper kernels can tell apart, computed anew
 * and written over what the loop made of them.
 *
 * The loops make weights of 2^fma(s, c, -b), b = m c rounded: its rounding is a factor of the row, 2^512 at
 * scores of 1e10, and products beyond float32 are infinite. Both show in the state that a row ends with
 * (is_far), so that the loops pay nothing. A warp then takes such rows one by one, in two passes over the
 * keys that the row sees: scores and their maximum in double, then weights and values. Lanes are keys in the
 * first and for the scores of the second, columns for its values. That is slow (dense-notes.md); a row that
 * will be NaN ends with the first score that says so. */
#ifndef FAR_ROWS_CUH
#define FAR_ROWS_CUH

#include "page_id.cuh"
#include "prefill_sm90_parts.cuh"

namespace attn_cuda {

/* b, l: a row's maximum in base-2 units and its sum, o: one of its results. True for a row that was far from
 * zero in any block: then b is, or what followed has multiplied an infinite l or o by 0. (l alone does not
 * tell of P in float16, which ends at 65504.) True too for NaN, and for a row without keys. */
ATTN_DEV bool is_far(float b, float l, float o) {
    return !(fabsf(fmaf(o, 0.f, fmaf(l, 0.f, b))) <= DEEP);
}

/* Whose rows they are. */
struct far_tile {
    seq_view view;
    int seq;   /* row of the block table, */
    int k0;    /* or the first of contiguous keys */
    int piece; /* where the result goes */
    int head;
    second_row second;
    int out_dtype;
    const float *old_lse; /* an earlier result lies there, to be merged; NULL: none */
    int64_t old_lse_head;
};

template <int TYPE>
ATTN_DEV void load_columns(const void *from, int64_t at, float2 (&x)[4]) {
    if constexpr (TYPE == DT_E4M3) {
        const uint2 v = __ldg((const uint2 *)((const uint8_t *)from + at));
        x[0] = unpack2<DT_F16>(e4m3x2_to_f16x2<0>(v.x)), x[1] = unpack2<DT_F16>(e4m3x2_to_f16x2<1>(v.x));
        x[2] = unpack2<DT_F16>(e4m3x2_to_f16x2<0>(v.y)), x[3] = unpack2<DT_F16>(e4m3x2_to_f16x2<1>(v.y));
    } else {
        const uint4 v = __ldg((const uint4 *)((const uint16_t *)from + at));
        x[0] = unpack2<TYPE>(v.x), x[1] = unpack2<TYPE>(v.y);
        x[2] = unpack2<TYPE>(v.z), x[3] = unpack2<TYPE>(v.w);
    }
}

/* Types of queries and of keys as the kernel multiplies them. Over e4m3 keys queries of 16 bits are float16:
 * bf16 ones are rounded to it and end at 65504, as everywhere. */
template <int QT, int KV, bool FEATURE>
struct far_scores {
    const flash_params &p;
    const far_tile &t;
    int kv_head, pos; /* pos: the query's */
    int64_t q_at;
    double c, slope;
    ATTN_DEV far_scores(const flash_params &params, const far_tile &tile, int token)
        : p(params), t(tile), kv_head(tile.head / params.group),
          pos(tile.view.kv_len - tile.view.q_len + token),
          q_at((int64_t)(tile.view.q0 + token) * params.q_token + (int64_t)tile.head * params.q_head) {
        c = (double)p.scale * (KV == DT_E4M3 ? qk_scale(p, kv_head) : 1.f);
        slope = FEATURE && p.alibi ? __ldg(p.alibi + t.head) : 0.f;
    }
    /* Page (0 where there are none) and row in it of a key. */
    ATTN_DEV int2 place(int key) const {
        if (p.page_size == 0) return make_int2(0, t.k0 + key);
        const int32_t *table = p.counts->block_table + (int64_t)t.seq * p.counts->block_table_stride;
        return make_int2(page_id(p, __ldg(table + key / p.page_size)), key % p.page_size);
    }
    ATTN_DEV double operator()(int key, int2 at) const {
        const int64_t k_at = at.x * p.k_page + at.y * p.k_token + kv_head * p.k_head;
        const int tail_at = p.k_tail ? p.k_tail_at : p.head_size;
        double s = 0;
#pragma unroll 1
        for (int d = 0; d < p.head_size; d += 8) {
            float2 x[4], y[4];
            if (KV == DT_E4M3 && QT != DT_E4M3 && p.q_dtype == DT_BF16) {
                load_columns<DT_BF16>(p.q, q_at + d, x);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = unpack2<DT_F16>(pack2_limited(x[i]));
            } else
                load_columns<QT>(p.q, q_at + d, x);
            if (d < tail_at)
                load_columns<KV>(p.k, k_at + d, y);
            else
                load_columns<KV>(p.k_tail, at.y * p.k_tail_token + d - tail_at, y);
#pragma unroll
            for (int i = 0; i < 4; i++)
                s = fma((double)x[i].x, (double)y[i].x, s), s = fma((double)x[i].y, (double)y[i].y, s);
        }
        s *= c;
        if constexpr (FEATURE) {
            if (p.soft_cap > 0.f) s = (double)p.soft_cap * tanh_f32((float)(s * rcp_approx(p.soft_cap)));
            s += slope * (key - pos);
        }
        return s;
    }
};

/* 2^(x log2 e) of a difference of scores. */
ATTN_DEV float far_weight(double x) {
    return ex2((float)(x * 1.4426950408889634));
}

/* One row, by a whole warp. DV: its columns at most. */
template <int QT, int KV, int DV, bool FEATURE>
ATTN_DEV void far_row(const flash_params &p, const far_tile &t, int token, int lane) {
    constexpr int VT = KV == DT_E4M3 ? DT_F16 : KV, PAIRS = (DV + 63) / 64;
    int lo, hi;
    visible_keys(p, t.view, token, lo, hi);
    lo = __shfl_sync(~0u, lo, 0), hi = __shfl_sync(~0u, hi, 0);
    const far_scores<QT, KV, FEATURE> score(p, t, token);
    double top = -INFINITY;
    bool is_number = true;
#pragma unroll 1
    for (int k = lo; k < hi && is_number; k += 32) {
        const int key = min(k + lane, hi - 1);
        const double s = score(key, score.place(key));
        top = fmax(top, s);
        is_number = !__any_sync(~0u, !(s < INFINITY));
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        top = fmax(top, __shfl_xor_sync(~0u, top, i));
    if (__any_sync(~0u, is_number && top == -INFINITY)) return; /* sees nothing: so it was written */

    float o[2 * PAIRS], l = 0.f;
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++)
        o[i] = 0.f;
#pragma unroll 1
    for (int k = lo; k < hi && is_number; k += 32) {
        const int key = min(k + lane, hi - 1), count = min(32, hi - k);
        const int2 at = score.place(key);
        const float weight = lane < count ? far_weight(score(key, at) - top) : 0.f;
        l += weight;
        const long long v_at = at.x * p.v_page + at.y * p.v_token + score.kv_head * p.v_head;
        float part[2 * PAIRS]; /* sums of sums: a long one of equal terms would drift */
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++)
            part[i] = 0.f;
#pragma unroll 1
        for (int j = 0; j < count; j++) {
            const float w = __shfl_sync(~0u, weight, j);
            const int64_t from = __shfl_sync(~0u, v_at, j);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                const int64_t c = from + min(64 * i + 2 * lane, p.head_size_v - 2);
                uint32_t v;
                if constexpr (KV == DT_E4M3)
                    v = e4m3x2_to_f16x2<0>(__ldg((const uint16_t *)((const uint8_t *)p.v + c)));
                else
                    v = __ldg((const uint32_t *)((const uint16_t *)p.v + c));
                const float2 x = unpack2<VT>(v);
                part[2 * i] = fmaf(w, x.x, part[2 * i]), part[2 * i + 1] = fmaf(w, x.y, part[2 * i + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++)
            o[i] += part[i];
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        l += __shfl_xor_sync(~0u, l, i);
    float f = 1.f;
    if (p.sinks) { /* denominator only (semantics 2.10) */
        const double sink = __ldg(p.sinks + t.head), m = fmax(top, sink);
        f = far_weight(top - m);
        l = l * f + far_weight(sink - m), top = m;
    }
    f *= rcp_approx(l);
    if (KV == DT_E4M3 && p.v_scale) f *= __ldg(p.v_scale + score.kv_head * p.scale_stride);
    float lse = (float)(top + (double)(lg2(l) * LN2)), old = 0.f;
    if (!is_number) f = lse = NAN;
    if (t.old_lse) {
        const float before = t.old_lse[t.head * t.old_lse_head + t.view.q0 + token];
        __syncwarp(); /* all have read, and p.lse may be old_lse */
        const merged m = merge_weights(before, lse);
        f *= m.part, old = m.old, lse = m.lse;
    }
    if (p.lse && lane == 0)
        p.lse[t.piece * p.lse_piece + (t.view.q0 + token) * p.lse_token + t.head * p.lse_head] = lse;
    uint16_t *to =
        (uint16_t *)p.out + t.piece * p.out_piece + (t.view.q0 + token) * p.out_token + t.head * p.out_head;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int column = 64 * i + 2 * lane;
        uint32_t *at = (uint32_t *)(to + min(column, p.head_size_v - 2));
        float2 x = make_float2(o[2 * i] * f, o[2 * i + 1] * f);
        if (p.parts_are_f32) { /* never beside an earlier result */
            if (column < p.head_size_v)
                *(float2 *)(part_row(p, t.piece, t.view.q0 + token, t.head) + column) = x;
            continue;
        }
        if (__any_sync(~0u, old != 0.f)) {
            const uint32_t was = *at;
            const float2 y = t.out_dtype == DT_BF16 ? unpack2<DT_BF16>(was) : unpack2<DT_F16>(was);
            x.x = fmaf(y.x, old, x.x), x.y = fmaf(y.y, old, x.y);
        }
        if (column < p.head_size_v) *at = pack2_as(t.out_dtype, x.x, x.y);
    }
}

/* Of a warp's 16 rows from the token `first` on, those of which `low` (the first 8) and `high` (each the
 * second row of a thread) have one of four bits, the ballots of is_far in the layout of accumulators. */
template <int QT, int KV, int DV, bool FEATURE>
ATTN_DEV void far_rows(const flash_params &p, const far_tile &t, int first, uint32_t low, uint32_t high,
                       int lane) {
    __syncwarp(); /* what the warp wrote is there before it is written over */
    first = __shfl_sync(~0u, first, 0);
    far_tile of = t;
#pragma unroll 1
    for (int i = 0; i < 16; i++, low = low >> 4 | high << 28, high >>= 4) {
        if (i == 8) of.head += t.second.head, first += t.second.token - 8;
        if (low & 15u) far_row<QT, KV, DV, FEATURE>(p, of, first + i, lane);
    }
}

} /* namespace attn_cuda */
#endif
