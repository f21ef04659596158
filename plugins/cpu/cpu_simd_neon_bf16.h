/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64's products of bf16 pairs (FEAT_BF16: BFDOT, BFCVTN), and rows brought into that form; what
 * cpu_simd_bf16.h is to AVX-512. */
#ifndef CPU_SIMD_NEON_BF16_H
#define CPU_SIMD_NEON_BF16_H

/* c + a0 * b0 + a1 * b1 in each word. */
SI vf v_dot_bf16(vf a, vf b, vf c) {
    return (vf){vbfdotq_f32(c.lo, vreinterpretq_bf16_f32(a.lo), vreinterpretq_bf16_f32(b.lo)),
                vbfdotq_f32(c.hi, vreinterpretq_bf16_f32(a.hi), vreinterpretq_bf16_f32(b.hi))};
}
SI vf vi_as_f(vi a) {
    return (vf){vreinterpretq_f32_s32(a.lo), vreinterpretq_f32_s32(a.hi)};
}
SI vf v_word(int32_t w) {
    const float32x4_t x = vreinterpretq_f32_s32(vdupq_n_s32(w));
    return (vf){x, x};
}

/* Words (bf16(p0), bf16(p1)) of each lane. */
SI float32x4_t pair_bf16(float32x4_t p0, float32x4_t p1) {
    const uint16x8_t first = vcombine_u16(to_bf16(p0), vdup_n_u16(0)),
                     second = vcombine_u16(to_bf16(p1), vdup_n_u16(0));
    return vreinterpretq_f32_u16(vzip1q_u16(first, second));
}
SI vf v_pair_bf16(vf p0, vf p1) {
    return (vf){pair_bf16(p0.lo, p1.lo), pair_bf16(p0.hi, p1.hi)};
}

/* Both vectors, one behind the other, as bf16. */
SI int32x4_t words_bf16(vf x) {
    return vreinterpretq_s32_u16(vcombine_u16(to_bf16(x.lo), to_bf16(x.hi)));
}
SI vi v_words_bf16(vf first, vf last) {
    return (vi){words_bf16(first), words_bf16(last)};
}

/* Words (a, b) of all columns, in their order. */
SI void v_zip_words(vi a, vi b, vi *lo, vi *hi) {
    v_pair_words(a, b, lo, hi);
}

#include "cpu_simd_bf16_rows.h"

#endif
