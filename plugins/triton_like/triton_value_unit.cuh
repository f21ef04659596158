/* SPDX-License-Identifier: Apache-2.0 */
/* P times the scale of a value must fit f16 whatever that scale is: powers of two that follow the largest
 * scale met, of each query row for itself, because a key that a row does not see has no part in its result.
 * Sums stay in these units until they have been divided by those of the weights: a sum of values near the end
 * of float32 would leave it. */
#ifndef TRITON_VALUE_UNIT_CUH
#define TRITON_VALUE_UNIT_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

constexpr float MOST_UNIT = 0x1p63f;

/* What makes a number from 2^6 to 2^7 of a scale; of one below 2^-56, or none: MOST_UNIT. */
ATTN_DEV float unit_of(float scale) {
    const uint32_t e = min(max(__float_as_uint(scale) >> 23 & 255, 70u), 254u);
    return __uint_as_float((260 - e) << 23);
}
/* The scale up to which a unit will do; 1 / unit; a / b, at most 2^100, 0 below the normal numbers. */
ATTN_DEV float unit_limit(float unit) {
    return __uint_as_float((261u << 23) - __float_as_uint(unit));
}
ATTN_DEV float unit_inverse(float unit) {
    return __uint_as_float((254u << 23) - __float_as_uint(unit));
}
ATTN_DEV float unit_ratio(float a, float b) {
    const int32_t bits = (int32_t)(__float_as_uint(a) - __float_as_uint(b));
    return __uint_as_float(max(min(bits, 100 << 23) + (127 << 23), 0));
}

/* Of a thread's 2 NT rows in decode. */
template <int NT>
struct row_units {
    float unit[NT][2], limit;
    ATTN_DEV row_units() : limit(0.f) {}
    /* Rows that a CTA lacks ask for nothing. */
    ATTN_DEV void start(int n, int e, bool is_row) { unit[n][e] = is_row ? MOST_UNIT : 0x1p-121f; }
    /* Before the weights of keys g and g + 8, whose values have these scales; s: -INFINITY where not seen. */
    template <int TILES>
    ATTN_DEV void raise(const float (&s)[NT][4], const float (&scale)[2], float (&o)[NT][TILES][4]) {
        if (!__any_sync(~0u, fmaxf(scale[0], scale[1]) > limit)) return;
        limit = INFINITY;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float top =
                    fmaxf(s[n][e] > -INFINITY ? scale[0] : 0.f, s[n][2 + e] > -INFINITY ? scale[1] : 0.f);
#pragma unroll
                for (int d = 4; d < 32; d <<= 1)
                    top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
                const float next = fminf(unit[n][e], unit_of(top)), ratio = unit_ratio(next, unit[n][e]);
                unit[n][e] = next, limit = fminf(limit, unit_limit(next));
#pragma unroll
                for (int j = 0; j < TILES; j++)
                    o[n][j][e] *= ratio, o[n][j][2 + e] *= ratio;
            }
    }
};

} /* namespace attn_cuda */
#endif
