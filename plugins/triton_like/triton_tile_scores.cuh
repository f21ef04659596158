/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and masks of a tile, the running softmax, and P for the products with V. */
#ifndef TRITON_TILE_SCORES_CUH
#define TRITON_TILE_SCORES_CUH

#include "triton_tile_keys.cuh"
#include "triton_tile_units.cuh"

namespace attn_cuda {
namespace prefill {

/* A thread's two rows for ALiBi and relative bias: position, slope in base-2 units, the head's biases. */
struct row_terms {
    float slope[2];
    const float *rel[2];
    int pos[2];
    ATTN_DEV row_terms(const triton_params_t &p, const block_view &b, int row) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = min(b.rows - 1, row + 8 * e);
            pos[e] = b.context + r / TL_GROUP;
            slope[e] = TL_ALIBI ? __ldg(p.alibi + b.head * TL_GROUP + r % TL_GROUP) * LOG2E : 0.f;
            rel[e] = rel_bias_row(p, b.head * TL_GROUP + r % TL_GROUP);
        }
    }
};

/* The soft cap of small scores, scale and base-2 units included: cap * tanh(x) for |x| <= 1/2 as an odd
 * polynomial within
 * 1.1e-5 * cap, which leaves the special-function unit to the exponentials. */
struct cap_polynomial {
    float c0, c1, c2, limit; /* limit: of squares */
    ATTN_DEV cap_polynomial(const tile_rule &rule) {
        const float u = rule.cap_factor, u2 = u * u, out = TL_CAP * LOG2E * u;
        c0 = 0.999977239f * out, c1 = -0.331685329f * out * u2, c2 = 0.115185198f * out * u2 * u2,
        limit = .25f / u2;
    }
    ATTN_DEV float slope(float s) const { /* capped score over score */
        const float y = s * s;
        return fmaf(y, fmaf(y, c2, c1), c0);
    }
    ATTN_DEV bool fits(const float (&s)[BN / 2]) const { /* sums of four squares cost less than maxima */
        float top = 0.f;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float *x = s + 4 * j;
            top = fmaxf(top, fmaf(x[0], x[0], fmaf(x[1], x[1], fmaf(x[2], x[2], x[3] * x[3]))));
        }
        return __all_sync(~0u, top <= limit);
    }
};

/* s * factor + ALiBi on the distance (semantics 2.9). The root of a far distance is three steps of its Taylor
 * series around the middle of the tile, without the special-function unit, which has the exponentials: with
 * |x| <= dc / 6 the rest is below 3e-5 of the root. */
ATTN_DEV void add_alibi(const row_terms &t, const float (&factor)[2], float (&s)[BN / 2], int k0) {
    const int q = threadIdx.x & 3;
    const bool is_far = TL_ALIBI == 2 && __all_sync(~0u, min(t.pos[0], t.pos[1]) - (k0 + BN) >= 5 * BN / 2);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float rel = (float)(k0 + 2 * q - t.pos[e]);
        if (is_far) {
            const float dc = -rel - BN / 2, inv = __fdividef(1.f, dc);
            const float a0 = -t.slope[e] * dc * rsqrtf(dc), a1 = a0 * inv * -.5f, a2 = a1 * inv * .25f,
                        a3 = a2 * inv * .5f;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float x = (float)(8 * j + i - BN / 2);
                    float &y = s[4 * j + 2 * e + i];
                    y = fmaf(y, factor[e], fmaf(fmaf(fmaf(a3, x, a2), x, a1), x, a0));
                }
        } else {
            const float base = t.slope[e] * rel;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float x = (float)(8 * j + i);
                    float &y = s[4 * j + 2 * e + i];
                    y = fmaf(y, factor[e],
                             TL_ALIBI == 2 ? alibi_term<false>(t.slope[e], rel + x)
                                           : fmaf(t.slope[e], x, base));
                }
        }
    }
}

/* s * by + bias. Most tiles of a long context lie beyond the table for all of a warp's rows: one number a row
 * then. */
ATTN_DEV void add_rel_bias(const triton_params_t &p, const row_terms &t, const float (&by)[2],
                           float (&s)[BN / 2], int k0) {
    const int q = threadIdx.x & 3;
    const bool is_before = __all_sync(~0u, k0 + BN - 1 - min(t.pos[0], t.pos[1]) <= -p.rel_max),
               is_after = __all_sync(~0u, k0 - max(t.pos[0], t.pos[1]) >= p.rel_max);
    if (is_before || is_after) {
        const float end[2] = {rel_bias_term<false>(p, t.rel[0], is_before ? -p.rel_max : p.rel_max),
                              rel_bias_term<false>(p, t.rel[1], is_before ? -p.rel_max : p.rel_max)};
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            s[i] = fmaf(s[i], by[i >> 1 & 1], end[i >> 1 & 1]);
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int rel = k0 + 2 * q - t.pos[e];
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &y = s[4 * j + 2 * e + i];
                y = fmaf(y, by[e], rel_bias_term<false>(p, t.rel[e], rel + 8 * j + i));
            }
    }
}

ATTN_DEV void add_bias(const triton_params_t &p, const block_view &b, float (&s)[BN / 2], int k0, int row) {
    const int q = threadIdx.x & 3;
    if (!TL_QQ || k0 + BN <= b.context || k0 >= b.context + p.qq_width) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float *bias =
            p.qq_bias + (int64_t)(b.sv.q0 + min(b.rows - 1, row + 8 * e) / TL_GROUP) * p.qq_row;
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int rel = k0 + j * 8 + 2 * q + i - b.context;
                if (rel >= 0 && rel < p.qq_width) s[4 * j + 2 * e + i] += __ldg(bias + rel) * LOG2E;
            }
    }
}

/* seen: of this thread's first row, the second one eight further on. */
ATTN_DEV void hide_scores(const block_view &b, float (&s)[BN / 2], int k0, const int2 *seen) {
    const int q = threadIdx.x & 3;
    if (k0 >= b.all_lo && k0 + BN <= b.all_hi) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int2 see = seen[8 * e];
        const int first = see.x - k0 - 2 * q, count = max(see.y - see.x, 0);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const bool is_seen = TL_RSWA > 0 ? is_visible(k0 + 8 * j + 2 * q + i, see, b.walk.prefix)
                                                 : (uint32_t)(8 * j + i - first) < (uint32_t)count;
                if (!is_seen) s[4 * j + 2 * e + i] = -INFINITY;
            }
    }
}

/* s becomes P; true: what was summed before must be multiplied by f. CAPPED: s are products still, and
 * small. by: what a row's scores are still to be multiplied by (IN_EXPONENT). */
template <bool CAPPED>
ATTN_DEV bool softmax_step(const tile_rule &rule, const float (&by)[2], float (&s)[BN / 2], float (&m)[2],
                           float (&l)[2], float (&f)[2]) {
    if constexpr (FIXED) {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) {
            s[i] = ex2(s[i]);
            l[i >> 1 & 1] += s[i];
        }
        return false;
    }
    const cap_polynomial cap(rule);
    float mx[2] = {NO_MAX, NO_MAX};
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        mx[0] = fmaxf(mx[0], fmaxf(s[4 * j], s[4 * j + 1]));
        mx[1] = fmaxf(mx[1], fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
    if (IN_EXPONENT || CAPPED) {
        mx[0] *= CAPPED ? cap.slope(mx[0]) : by[0];
        mx[1] *= CAPPED ? cap.slope(mx[1]) : by[1];
    }
    const bool grow = __any_sync(~0u, mx[0] > m[0] + LAZY || mx[1] > m[1] + LAZY);
    if (grow) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            mx[e] = fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 1));
            mx[e] = fmaxf(fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 2)), m[e]);
            f[e] = ex2(m[e] - mx[e]);
            m[e] = mx[e];
            l[e] *= f[e];
        }
    }
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int e = i >> 1 & 1;
        s[i] = ex2(CAPPED        ? fmaf(s[i], cap.slope(s[i]), -m[e])
                   : IN_EXPONENT ? fmaf(s[i], by[e], -m[e])
                                 : s[i] - m[e]);
        l[e] += s[i];
    }
    return grow;
}

/* The same for a tile after a row's first, on trust that no score is far above the maximum so far, so without
 * looking for a new one, and with P packed at once. False, and nothing but P changed, where a row's sum tells
 * otherwise: too large, infinite, or no number, as for a row without keys so far. */
ATTN_DEV bool softmax_trusted(const float (&by)[2], const float (&s)[BN / 2], const float (&m)[2],
                              float (&l)[2], uint32_t (&pr)[BN / 4]) {
    constexpr float LIMIT = V_MMA == DT_F16 ? 16384.f : 1e9f;
    float t[2] = {0.f, 0.f}, u[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float *x = s + 4 * j + 2 * e;
            const float a = ex2(IN_EXPONENT ? fmaf(x[0], by[e], -m[e]) : x[0] - m[e]),
                        b = ex2(IN_EXPONENT ? fmaf(x[1], by[e], -m[e]) : x[1] - m[e]);
            t[e] += a, u[e] += b;
            pr[2 * j + e] = pack2<V_MMA>(a, b);
        }
    t[0] += u[0], t[1] += u[1];
    if (__any_sync(~0u, !(t[0] <= LIMIT && t[1] <= LIMIT))) return false;
    l[0] += t[0], l[1] += t[1];
    return true;
}

/* What the scores of a thread's two rows are still to be multiplied by. */
ATTN_DEV void row_factors(const tile_rule &rule, const float *q_scales, float (&by)[2]) {
#pragma unroll
    for (int e = 0; e < 2; e++)
        by[e] = FOLD_QUERY                  ? q_scales[8 * e] * (rule.factor / KEY_SCALE)
                : ROW_UNITS && !UNITS_ASIDE ? q_scales[8 * e]
                : FOLD_SIGN                 ? fabsf(rule.factor)
                                            : rule.factor;
}

/* FOLD_QUERY: sums of integers times the scales of their keys. */
ATTN_DEV void scale_keys(float (&s)[BN / 2], const float *k_scales) {
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        float2 ks = *(const float2 *)(k_scales + j * 8 + 2 * (threadIdx.x & 3));
        if (!TL_COPIERS) ks.x *= KEY_SCALE, ks.y *= KEY_SCALE; /* the copiers did it */
        s[4 * j] *= ks.x, s[4 * j + 1] *= ks.y, s[4 * j + 2] *= ks.x, s[4 * j + 3] *= ks.y;
    }
}

template <int N>
ATTN_DEV void rescale(float (&o)[N], const float (&f)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= f[i >> 1 & 1];
}

/* From the products of a tile to P, for a thread's rows `row` and row + 8; seen: of the first of them.
 * rows: of row_factors. last(): the step that makes P of scores. */
template <class F>
ATTN_DEV bool softmax_tile(const triton_params_t &p, const block_view &b, const tile_rule &rule,
                           const row_terms &terms, float (&s)[BN / 2], int k0, int row, const int2 *seen,
                           const float (&rows)[2], const float *q_scales, const float *k_scales,
                           float (&m)[2], float (&l)[2], float (&f)[2], F last) {
    constexpr bool IS_SCALED =
        FACTOR_COPIED || (TL_K_APART && TL_CAP == 0.f); /* the factor went with the scales */
    /* that of `rows`, unless it joins the exponent */
    constexpr bool IS_LEFT = TL_CAP == 0.f && (!IS_SCALED || (ROW_UNITS && FACTOR_COPIED));
    if constexpr (FOLD_QUERY) {
        scale_keys(s, k_scales);
    } else if constexpr (TL_K_APART) {
        const float by = IS_SCALED ? rule.factor : 1.f, q[2] = {q_scales[0] * by, q_scales[8] * by};
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float2 ks = *(const float2 *)(k_scales + j * 8 + 2 * (threadIdx.x & 3));
            s[4 * j] *= ks.x * q[0], s[4 * j + 1] *= ks.y * q[0];
            s[4 * j + 2] *= ks.x * q[1], s[4 * j + 3] *= ks.y * q[1];
        }
    } else if constexpr (TL_TOKEN_HEAD) {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float2 ks = *(const float2 *)(k_scales + j * 8 + 2 * (threadIdx.x & 3));
            s[4 * j] *= ks.x, s[4 * j + 1] *= ks.y, s[4 * j + 2] *= ks.x, s[4 * j + 3] *= ks.y;
        }
    }
    if (UNITS_ASIDE && rule.is_aside) {
        const float units[2] = {q_scales[0], q_scales[8]};
        rescale(s, units);
    }
    if constexpr (TL_CAP > 0.f) {
        const cap_polynomial cap(rule);
        const bool is_small = cap.fits(s);
        if (FOLD_CAP && is_small && k0 >= b.all_lo && k0 + BN <= b.all_hi)
            return softmax_step<true>(rule, rows, s, m, l, f);
        if (is_small) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                s[i] *= cap.slope(s[i]);
        } else {
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                s[i] = rule.apply<false>(s[i]);
        }
    } else if constexpr (!IN_EXPONENT && IS_LEFT && TL_ALIBI == 0 && !(FACTOR_COPIED && TL_REL)) {
        rescale(s, rows);
    }
    const float one[2] = {1.f, 1.f};
    if constexpr (TL_ALIBI != 0) add_alibi(terms, IS_LEFT ? rows : one, s, k0);
    if constexpr (TL_REL)
        add_rel_bias(p, terms, IS_LEFT && FACTOR_COPIED && TL_ALIBI == 0 ? rows : one, s, k0);
    add_bias(p, b, s, k0, row);
    hide_scores(b, s, k0, seen);
    return last();
}
ATTN_DEV bool softmax_tile(const triton_params_t &p, const block_view &b, const tile_rule &rule,
                           const row_terms &terms, float (&s)[BN / 2], int k0, int row, const int2 *seen,
                           const float *q_scales, const float *k_scales, float (&m)[2], float (&l)[2],
                           float (&f)[2]) {
    float rows[2];
    row_factors(rule, q_scales, rows);
    return softmax_tile(p, b, rule, terms, s, k0, row, seen, rows, q_scales, k_scales, m, l, f,
                        [&]() { return softmax_step<false>(rule, rows, s, m, l, f); });
}

#if TL_PACKED
/* P times what is added to the values of a row: one number a query row. */
ATTN_DEV void add_common(float (&common)[2], const float (&s)[BN / 2], const float *v_scales) {
    if (packed::IS_INT4) return;
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float2 low = *(const float2 *)(v_scales + BN + j * 8 + 2 * (threadIdx.x & 3));
        common[0] = fmaf(s[4 * j], low.x, fmaf(s[4 * j + 1], low.y, common[0]));
        common[1] = fmaf(s[4 * j + 2], low.x, fmaf(s[4 * j + 3], low.y, common[1]));
    }
}

/* O of the codes to O of the values; down: what takes a row of it out of its unit, 1 when that is done. */
template <int N>
ATTN_DEV void finish_values(float (&o)[N], float (&common)[2], float (&down)[2]) {
    if constexpr (packed::IS_INT4) {
        packed::rotate_back_fragment(o, threadIdx.x & 3);
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        common[e] += __shfl_xor_sync(~0u, common[e], 1);
        common[e] += __shfl_xor_sync(~0u, common[e], 2);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] = fmaf(o[i], down[i >> 1 & 1], common[i >> 1 & 1]);
    down[0] = down[1] = 1.f;
}
#endif

ATTN_DEV void rescale2(float (&x)[2], const float (&f)[2]) {
    x[0] *= f[0], x[1] *= f[1];
}

/* The j-th 16 keys of P as the A operand of a product; unit: of P times the scales of V. */
ATTN_DEV void pack_keys(uint32_t *a, const float (&s)[BN / 2], int j, const float *v_scales, float unit) {
    const int q = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float2 v = make_float2(1.f, 1.f);
        if (TL_TOKEN_HEAD) v = *(const float2 *)(v_scales + j * 16 + h * 8 + 2 * q);
        if (TL_PACKED) v.x *= unit, v.y *= unit;
        const float *x = s + 8 * j + 4 * h;
        a[2 * h] = TL_TOKEN_HEAD ? pack2<V_MMA>(x[0] * v.x, x[1] * v.y) : pack2<V_MMA>(x[0], x[1]);
        a[2 * h + 1] = TL_TOKEN_HEAD ? pack2<V_MMA>(x[2] * v.x, x[3] * v.y) : pack2<V_MMA>(x[2], x[3]);
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */

#endif
