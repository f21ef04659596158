/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the cache writers: quotients as IEEE's and codes, without the instructions that a
 * multiprocessor has few of. No macros, so that tests compute the same on the host. */
#ifndef TRITON_CODES_CUH
#define TRITON_CODES_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

/* x / by for many x, rounded to nearest as packed::divisor does; of scales so far from 1 that the reciprocal
 * or the remainder might not be exact, by division. */
struct quotient {
    float by, inverse;
    bool near_one;
    ATTN_DEV quotient(float of) : by(of), inverse(1.f / of), near_one(of > 0x1p-80f && of < 0x1p80f) {}
    ATTN_DEV float of(float x) const {
        if (!near_one) return x / by;
        const float q = x * inverse, y = fmaf(fmaf(-by, q, x), inverse, q);
        return q != 0.f && fabsf(q) <= 0x1.fffffep127f ? y : q; /* -0 stays -0 */
    }
};

/* int8_code in the last eight bits: |x| + 1/2 rounded to zero, its integer in the last bits of a sum with
 * 2^23. */
ATTN_DEV uint32_t int8_bits(float x) {
    const float y = fmaxf(fminf(x, 127.f), -128.f);
    const uint32_t sign = (uint32_t)((int32_t)__float_as_uint(y) >> 31),
                   size = __float_as_uint(__fadd_rz(__fadd_rz(fabsf(y), 0.5f), 8388608.f)) & 0xff;
    return x == x ? (size ^ sign) - sign : 0;
}

/* The nearest e2m1 code, ties to the even one, 6 beyond; no NaN. Below 1 the codes are multiples of 1/2,
 * which the sum rounds to; from there on a float's exponent and first bit. */
ATTN_DEV uint32_t e2m1_code(float x) {
    const float a = fabsf(x);
    const uint32_t bits = __float_as_uint(a), low = __float_as_uint(a + 4194304.f) & 3,
                   high = ((bits + 0x1fffff + (bits >> 22 & 1)) >> 22) - 252, code = a < 1.f ? low : high;
    return (code < 7 ? code : 7) | __float_as_uint(x) >> 31 << 3;
}

} /* namespace attn_cuda */
#endif
