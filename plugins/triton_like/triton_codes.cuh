/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the cache writers: quotients as IEEE's and codes, without the instructions that a
 * multiprocessor has few of. No macros, so that tests compute the same on the host. */
#ifndef TRITON_CODES_CUH
#define TRITON_CODES_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

/* x / by, from the reciprocal and one step, as packed::divisor has it; where the step has no number, because
 * of infinities and zeros, the product with the reciprocal is the result. by > 0: -0 stays -0. */
ATTN_DEV float quotient_of(float x, float by, float inverse) {
    const float q = x * inverse, y = fmaf(-fmaf(by, q, -x), inverse, q);
    return y == y ? y : q;
}

/* x / by for many x, rounded to nearest, without a branch. Both are multiplied by the power of two that makes
 * `by` a number from 1 to 2, so that neither reciprocal nor remainder leaves the normal numbers; what x loses
 * by that is far below a code, or beyond the largest. */
struct quotient {
    float by, inverse, move;
    ATTN_DEV quotient(float of) {
        const uint32_t bits = __float_as_uint(of);
        const int32_t power = 0x7f000000 - (int32_t)(bits & 0x7f800000u);
        move = __uint_as_float((uint32_t)(power > 0x00800000 ? power : 0x00800000) | (bits & 0x80000000u));
        by = of * move;
        const float r = rcp_approx(by), rest = fmaf(-by, r, 1.f);
        inverse = rest == rest ? fmaf(r, rest, r) : r;
    }
    ATTN_DEV float of(float x) const { return quotient_of(x * move, by, inverse); }
};
template <int BY>
ATTN_DEV float divided(float x) {
    return quotient_of(x, BY, 1.f / BY);
}

/* The same by a number of usual size, of what is finite and leads to a finite quotient. */
struct plain_quotient {
    float by, inverse;
    static ATTN_DEV bool fits(float of) { return of > 0x1p-60f && of < 0x1p60f; }
    ATTN_DEV plain_quotient(float of) : by(of) {
        const float r = rcp_approx(by);
        inverse = fmaf(r, fmaf(-by, r, 1.f), r);
    }
    ATTN_DEV float of(float x) const {
        const float q = x * inverse;
        return fmaf(-fmaf(by, q, -x), inverse, q);
    }
};

/* int8_code of -128 <= x <= 127 in the last eight bits, anything above: floor(x + 1/2), of a negative x that
 * of the number below 1/2, so that ties go away from zero; in the last bits of a sum with 1.5 * 2^23. */
ATTN_DEV uint32_t int8_low(float x) {
    const float half = __uint_as_float(0x3f000000u + (uint32_t)((int32_t)__float_as_uint(x) >> 31));
    return __float_as_uint(__fadd_rd(__fadd_rd(x, half), 12582912.f));
}
ATTN_DEV float int8_clamp(float x) {
    return fmaxf(fminf(x, 127.f), -128.f);
}
/* The same of any x, 0 of NaN. */
ATTN_DEV uint32_t int8_bits(float x) {
    return x == x ? int8_low(int8_clamp(x)) : 0;
}

/* The nearest e2m1 code, ties to the even one, 6 beyond; no NaN. A magnitude is rounded to halves of the
 * power of two below it, of 1 at least: they are the last bits of its sum with 2^22 such powers, and two more
 * codes lie below each power. */
ATTN_DEV uint32_t e2m1_code(float x) {
    const float a = fminf(fabsf(x), 6.f);
    const uint32_t power = __float_as_uint(fmaxf(a, 1.f)) & 0x7f800000u,
                   sum = __float_as_uint(fmaf(__uint_as_float(power), 4194304.f, a));
    return (sum - power + (power >> 22) - (0x0b000000u + 254u)) | __float_as_uint(x) >> 31 << 3;
}

} /* namespace attn_cuda */
#endif
