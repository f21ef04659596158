/* SPDX-License-Identifier: Apache-2.0 */
/* Writes rows of int4_per_token_head (semantics 3.4) and TurboQuant (3.7), with the bits of their formulas:
 * float32 in the order given there, divisions rounded as IEEE's.
 *
 * Eight lanes a row, so that half of the stages of the rotation need no shuffle, and four rows a warp; a lane
 * has the values 8 c to 8 c + 7 for c = lane, lane + 8 and so on: x[8 i + j]. */
#ifndef TRITON_PACKED_WRITE_CUH
#define TRITON_PACKED_WRITE_CUH

#include "triton_packed_rows.cuh"

#if TL_PACKED
namespace attn_cuda {
namespace packed {

/* The signs of values 8 c to 8 c + 7 for c = l + 8 i: one a bit. */
ATTN_DEV uint32_t rotation_signs(int i, int l) {
    const uint32_t words = (l & 4) && 2 * i + 1 < ROTATION_MAX_SIZE / 32 ? rotation_negative[2 * i + 1]
                                                                         : rotation_negative[2 * i];
    return words >> (l & 3) * 8 & 255;
}
/* D x of a row; of pairs of 16 bits as the words that memory has. */
template <class row_t>
ATTN_DEV void signed_values(const row_t &row, float (&x)[row_t::N], int l) {
    if constexpr (row_t::AHEAD) {
        row_t turned = row;
#pragma unroll
        for (int i = 0; i < row_t::N / 8; i++) {
            const uint32_t signs = rotation_signs(i, l), both = signs | signs << 15;
#pragma unroll
            for (int j = 0; j < 4; j++)
                turned.y[4 * i + j] ^= both << (15 - 2 * j) & 0x80008000u;
        }
        turned.values(x, l);
    } else {
        row.values(x, l);
#pragma unroll
        for (int i = 0; i < row_t::N / 8; i++) {
            const uint32_t signs = rotation_signs(i, l);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[8 * i + j] =
                    __uint_as_float(__float_as_uint(x[8 * i + j]) ^ (signs << (31 - j) & 0x80000000u));
        }
    }
}

/* Codes in sixteenths, which changes no bit, so that a sum ends at 0 by itself. CUT: some may be above 15. */
template <int SIZE, bool CUT, int N>
ATTN_DEV void put_sixteenths(uint8_t *dst, const float (&y)[N], plain_quotient part, float from, bool ok,
                             int l) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        float c[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            c[j] = __saturatef(part.of(y[8 * i + j]) + from + 0.03125f);
        if (ok && (l + 8 * i) * 8 < SIZE) put_codes<4>(dst, l + 8 * i, pack_sixteenths<CUT>(c));
    }
}

/* x: after D. */
template <int SIZE, int N>
ATTN_DEV void write_int4(uint8_t *dst, float (&x)[N], bool ok, int lane) {
    const int l = lane & 7;
    float y[N], low, high;
    hadamard<SIZE, 1>(x, l);
    bool is_finite = round_row<SIZE>(x, y, lane, low, high);
    if (__any_sync(~0u, !is_finite)) { /* what is finite before rounding does not leave the type's range */
        const float largest = TL_Q2 == DT_F16 ? 65504.f : __uint_as_float(0x7f7f0000u);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (TL_Q2 != DT_F32 && fabsf(x[k]) < INFINITY) x[k] = fminf(fmaxf(x[k], -largest), largest);
        is_finite = round_row<SIZE>(x, y, lane, low, high);
    }
    const float range = (high - low) / 15.f, scale = range > 1e-6f ? range : 1e-6f;
    const divisor by(scale);
    const uint32_t code = floor_bits<15>(-low / scale + 0.5f) & 15;
    const float zero = (float)code;
    if (__all_sync(~0u, is_finite && plain_quotient::fits(scale * 16.f))) {
        const plain_quotient part(scale * 16.f);
        const float from = zero * 0.0625f;
        /* a code grows with its value: where the greatest is below 16 all are */
        if (__all_sync(~0u, part.of(high) + from + 0.03125f < 1.f))
            put_sixteenths<SIZE, false>(dst, y, part, from, ok, l);
        else
            put_sixteenths<SIZE, true>(dst, y, part, from, ok, l);
    } else
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            float c[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                c[j] = by.divide(y[8 * i + j]) + zero + 0.5f;
            if (ok && (l + 8 * i) * 8 < SIZE) put_codes<4>(dst, l + 8 * i, is_finite ? pack_codes<4>(c) : 0);
        }
    if (ok && l == 0)
        *(uint32_t *)(dst + SIZE / 2) = is_finite ? (__float_as_uint(scale) & ~15u) | code : 0x7fc00000u;
}

/* Adds to `codes` under a condition: as an instruction under a predicate, which spares the choice of what to
 * add. */
ATTN_DEV void add_where(bool p, uint32_t &codes, uint32_t more) {
#ifdef __CUDA_ARCH__
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p add.u32 %0, %0, %2;\n}"
        : "+r"(codes)
        : "r"((uint32_t)p), "r"(more));
#else
    codes += p ? more : 0;
#endif
}

/* Codes of eight values: how many middles of 2^BITS centroids are at most y, by their symmetry. Of the
 * positive middles a negative y passes those that are below |y|, so those at most the number before |y|, and
 * gives back the rest: all bits of its code are turned. Signs are gathered with what follows them in a
 * float. */
template <int BITS>
ATTN_DEV uint32_t centroid_codes(const float *x, float root, const float *middle) {
    constexpr uint32_t TOPS = BITS == 4 ? 0x88888888u : 0x924924u;
    uint32_t codes = TOPS, signs = 0;
#pragma unroll
    for (int j = 7; j >= 0; j--) {
        const uint32_t y = __float_as_uint(fmaf(x[j], root, 0.f)); /* -0 lies on the middle, too */
        const float a = fabsf(__uint_as_float(y + (uint32_t)((int32_t)y >> 31)));
        signs = signs << BITS | y >> (32 - BITS);
        if constexpr (BITS == 4) {
            const bool up = a >= middle[3], over = a >= (up ? middle[5] : middle[1]);
            const float high = over ? middle[6] : middle[4], low = over ? middle[2] : middle[0];
            add_where(up, codes, 4u << 4 * j);
            add_where(over, codes, 2u << 4 * j);
            add_where(a >= (up ? high : low), codes, 1u << 4 * j);
        } else {
            const bool up = a >= middle[1];
            add_where(up, codes, 2u << 3 * j);
            add_where(a >= (up ? middle[2] : middle[0]), codes, 1u << 3 * j);
        }
    }
    signs &= TOPS;
    return codes ^ (signs | (signs - (signs >> (BITS - 1))));
}

template <int SIZE, int N>
ATTN_DEV void write_centroids(uint8_t *dst, float (&x)[N], bool ok, int lane) {
    const int l = lane & 7;
    double squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++)
        squares = fma((double)x[k], (double)x[k], squares); /* products of float32 are exact */
#pragma unroll
    for (int d = 1; d < 8; d *= 2)
        squares += __shfl_xor_sync(~0u, squares, d);
    const float norm = (float)sqrt(squares);
    const bool is_finite = norm < INFINITY;
    if (__all_sync(~0u, plain_quotient::fits(norm + 1e-8f))) {
        const plain_quotient by(norm + 1e-8f);
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = by.of(x[k]);
    } else {
        const divisor by(norm + 1e-8f);
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = by.divide(x[k]);
    }
    hadamard<SIZE, 1>(x, l);
    constexpr float ROOT = ONE_ROOT == 1.f ? Q_UNIT : 0.70710678118654752f * 2.f * Q_UNIT;
    float c[16], middle[7];
    turboquant_centroids(SIZE, K_BITS, c);
#pragma unroll
    for (int j = 0; j < (1 << (K_BITS - 1)) - 1; j++)
        middle[j] = (c[(1 << (K_BITS - 1)) + j] + c[(1 << (K_BITS - 1)) + j + 1]) * 0.5f;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const uint32_t codes = centroid_codes<K_BITS>(x + 8 * i, ROOT, middle);
        if (ok && (l + 8 * i) * 8 < SIZE) put_codes<K_BITS>(dst, l + 8 * i, is_finite ? codes : 0);
    }
    if (ok && l == 0) put_half(dst + K_DATA, norm, is_finite);
}

/* WITHIN: x lies between the row's ends, whose quotients are 0 and about 2^V_BITS - 1. */
template <int SIZE, bool WITHIN, int N, class F>
ATTN_DEV void put_steps(uint8_t *dst, const float (&x)[N], float low, bool ok, int l, F by) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        float c[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            c[j] = by(x[8 * i + j] - low) + 0.5f;
        const uint32_t codes = pack_codes<V_BITS, true, WITHIN>(c);
        if (ok && (l + 8 * i) * 8 < SIZE) put_codes<V_BITS>(dst, l + 8 * i, codes);
    }
}

/* low, high: of the row; is_finite: so is their distance. */
template <int SIZE, int N>
ATTN_DEV void write_steps(uint8_t *dst, const float (&x)[N], float low, float high, bool is_finite, bool ok,
                          int lane) {
    constexpr int TOP = (1 << V_BITS) - 1;
    const int l = lane & 7;
    const float step = fmaxf((high - low) / TOP, 1e-8f);
    if (__all_sync(~0u, is_finite && plain_quotient::fits(step))) {
        const plain_quotient by(step);
        put_steps<SIZE, true>(dst, x, low, ok, l, [&](float d) { return by.of(d); });
    } else {
        const divisor by(step);
        put_steps<SIZE, false>(dst, x, low, ok, l, [&](float d) { return is_finite ? by.divide(d) : 0.f; });
    }
    if (ok && l == 0) put_half(dst + V_DATA, step, is_finite), put_half(dst + V_DATA + 2, low, is_finite);
}

/* One row of K or V for each eight lanes; nothing is written where `ok` is false. */
template <bool IS_V, class row_t>
ATTN_DEV void write_row(uint8_t *dst, const row_t &row, bool ok, int lane) {
    constexpr int SIZE = IS_V ? TL_DV : TL_D;
    float x[row_t::N];
    if constexpr (IS_INT4)
        signed_values(row, x, lane & 7);
    else
        row.values(x, lane & 7);
    if constexpr (IS_INT4)
        write_int4<SIZE>(dst, x, ok, lane);
    else if constexpr (IS_V) {
        float low, high;
        bool is_finite = false;
#if __CUDA_ARCH__ >= 800
        constexpr bool PAIRS = IS_PAIR && row_t::AHEAD && SIZE % 64 == 0;
        if constexpr (PAIRS) is_finite = range_of_pairs(row.y, low, high);
#else
        constexpr bool PAIRS = false;
#endif
        if (!PAIRS) is_finite = row_range<SIZE>(x, lane, low, high);
        write_steps<SIZE>(dst, x, low, high, is_finite, ok, lane);
    } else if constexpr (CENTROIDS)
        write_centroids<SIZE>(dst, x, ok, lane);
    else {
        const int l = lane & 7;
#pragma unroll
        for (int i = 0; i < (SIZE + 63) / 64; i++) {
            uint32_t w[2];
#pragma unroll
            for (int j = 0; j < 2; j++)
                w[j] = (f32x2_to_e4m3x2(x[8 * i + 4 * j], x[8 * i + 4 * j + 1]) & 0xffff) |
                       f32x2_to_e4m3x2(x[8 * i + 4 * j + 2], x[8 * i + 4 * j + 3]) << 16;
#pragma unroll
            for (int t = 0; t < 2; t++) { /* eight lanes store eight words side by side */
                const int from = (lane & 24) + 4 * t + (l >> 1);
                const uint32_t low = __shfl_sync(~0u, w[0], from), high = __shfl_sync(~0u, w[1], from);
                if (ok && 64 * i + 32 * t + 4 * l < SIZE)
                    put_codes<4>(dst, 16 * i + 8 * t + l, l & 1 ? high : low);
            }
        }
    }
}

} /* namespace packed */
} /* namespace attn_cuda */
#endif
#endif
