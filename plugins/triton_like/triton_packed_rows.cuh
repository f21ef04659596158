/* SPDX-License-Identifier: Apache-2.0 */
/* What the writers of packed rows share (triton_packed_write.cuh): rotation, ranges, quotients and codes. */
#ifndef TRITON_PACKED_ROWS_CUH
#define TRITON_PACKED_ROWS_CUH

#include "triton_codes.cuh"
#include "triton_rows.cuh"

#if TL_PACKED
namespace attn_cuda {
namespace packed {

/* H x, in stages of distance FIRST, 2 * FIRST and so on: a + b and a - b. */
template <int SIZE, int FIRST, int N>
ATTN_DEV void hadamard(float (&x)[N], int l) {
    auto stage = [&](int h) {
#pragma unroll
        for (int k = 0; k < N; k++)
            if ((k & h) == 0) {
                const float a = x[k], b = x[k + h];
                x[k] = a + b, x[k + h] = a - b;
            }
    };
    if (FIRST == 1) stage(1);
    stage(2), stage(4);
#pragma unroll
    for (int h = 1; h < 8 && 8 * h < SIZE; h *= 2) {
        const float sign = l & h ? -1.f : 1.f;
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = fmaf(x[k], sign, __shfl_xor_sync(~0u, x[k], h));
    }
#pragma unroll
    for (int h = 8; h < N; h *= 2)
        stage(h);
}

ATTN_DEV float min8(float x) {
#pragma unroll
    for (int d = 1; d < 8; d *= 2)
        x = min_nan(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

/* Least and greatest of a row; whether all of it is finite and so is their distance. */
template <int SIZE, int N>
ATTN_DEV bool row_range(const float (&x)[N], int lane, float &low, float &high) {
    float a = INFINITY, b = INFINITY;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (SIZE % 64 == 0 || ((lane & 7) + k / 8 * 8) * 8 < SIZE)
            a = min_nan(a, x[k]), b = min_nan(b, -x[k]);
    low = min8(a), high = -min8(b);
    return high - low < INFINITY;
}

/* x / by for many x, rounded to nearest: one step from the product with the reciprocal, which is rounded
 * itself (Markstein, IBM J. Res. Dev. 34, 1990). Both are made smaller where the reciprocal would leave the
 * normal numbers; what x loses by that is far below a code. */
struct divisor {
    float by, inverse, down;
    ATTN_DEV divisor(float of) {
        down = of > 0x1p100f ? 0x1p-64f : 1.f;
        by = of * down, inverse = 1.f / by;
    }
    ATTN_DEV float divide(float x) const {
        x *= down;
        const float q = x * inverse;
        return fmaf(fmaf(-by, q, x), inverse, q);
    }
};

/* floor(clamp(x, 0, TOP)) in the last bits of x + 2^23 (0x4b000000), rounded to zero. POSITIVE: x >= 0. */
template <int TOP, bool POSITIVE = false>
ATTN_DEV uint32_t floor_bits(float x) {
    return __float_as_uint(__fadd_rz(fminf(POSITIVE ? x : fmaxf(x, 0.f), (float)TOP), 8388608.f));
}

template <int BITS>
ATTN_DEV void put_codes(uint8_t *row, int c, uint32_t codes) {
    uint8_t *const p = row + c * BITS;
    if constexpr (BITS == 3)
        p[0] = (uint8_t)codes, p[1] = (uint8_t)(codes >> 8), p[2] = (uint8_t)(codes >> 16);
    else if (ALIGN >= 4 || (uintptr_t)p % 4 == 0)
        *(uint32_t *)p = codes;
    else
        ((uint16_t *)p)[0] = (uint16_t)codes, ((uint16_t *)p)[1] = (uint16_t)(codes >> 16);
}
/* To nearest even, its largest beyond; or NaN. */
ATTN_DEV void put_half(uint8_t *p, float x, bool is_finite) {
    *(uint16_t *)p = is_finite ? (uint16_t)pack2<DT_F16>(in_f16(x), 0.f) : 0x7e00;
}

/* Codes of BITS bits; x: what floor_bits takes. WITHIN: 0 <= x < 2^BITS already. */
template <int BITS, bool POSITIVE = false, bool WITHIN = false>
ATTN_DEV uint32_t pack_codes(const float (&x)[8]) {
    constexpr int TOP = (1 << BITS) - 1;
    uint32_t codes = 0, more = 0; /* more: what the exponents of the sums below add */
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t bits =
            WITHIN ? __float_as_uint(__fadd_rz(x[j], 8388608.f)) : floor_bits<TOP, POSITIVE>(x[j]);
        codes += bits << BITS * j;
        more += 0x4b000000u << BITS * j;
    }
    return codes - more;
}

/* Codes of four bits, of sixteenths from 0 to 1 (CUT), or below 1: in the last bits of x + 2^19
 * (0x49000000). */
template <bool CUT>
ATTN_DEV uint32_t pack_sixteenths(const float (&x)[8]) {
    uint32_t codes = 0, more = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        codes += __float_as_uint(__fadd_rz(CUT ? fminf(x[j], 0.9375f) : x[j], 524288.f)) << 4 * j;
        more += 0x49000000u << 4 * j;
    }
    return codes - more;
}

#if __CUDA_ARCH__ >= 800
/* Least and greatest of pairs of the model's type; NaN if one is. */
template <bool GREATEST>
ATTN_DEV uint32_t end_of_pairs(uint32_t a, uint32_t b) {
    uint32_t r;
    if constexpr (TL_Q2 == DT_BF16 && GREATEST)
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    else if constexpr (TL_Q2 == DT_BF16)
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    else if constexpr (GREATEST)
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    else
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
/* row_range of whole rows of pairs. */
template <int N>
ATTN_DEV bool range_of_pairs(const uint32_t (&pairs)[N], float &low, float &high) {
    uint32_t least = pairs[0], greatest = pairs[0];
#pragma unroll
    for (int k = 1; k < N; k++)
        least = end_of_pairs<false>(least, pairs[k]), greatest = end_of_pairs<true>(greatest, pairs[k]);
    const float2 a = unpack2<TL_Q2>(least), b = unpack2<TL_Q2>(greatest);
    low = min8(min_nan(a.x, a.y)), high = -min8(min_nan(-b.x, -b.y));
    return high - low < INFINITY;
}
#endif
constexpr bool IS_PAIR = TL_Q2 == DT_F16 || TL_Q2 == DT_BF16;

/* Rounds y to the type of the model: values of N, and their range. */
template <int SIZE, int N>
ATTN_DEV bool round_row(const float (&x)[N], float (&y)[N], int lane, float &low, float &high) {
#if __CUDA_ARCH__ >= 800
    if constexpr (SIZE % 64 == 0 && IS_PAIR) {
        uint32_t pairs[N / 2];
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            pairs[k / 2] = pack2<TL_Q2>(x[k], x[k + 1]);
            const float2 f = unpack2<TL_Q2>(pairs[k / 2]);
            y[k] = f.x, y[k + 1] = f.y;
        }
        return range_of_pairs(pairs, low, high);
    }
#endif
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        float2 f = make_float2(x[k], x[k + 1]);
        if constexpr (IS_PAIR) f = unpack2<TL_Q2>(pack2<TL_Q2>(f.x, f.y));
        y[k] = f.x, y[k + 1] = f.y;
    }
    return row_range<SIZE>(y, lane, low, high);
}

} /* namespace packed */
} /* namespace attn_cuda */
#endif
#endif
