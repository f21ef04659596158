/* SPDX-License-Identifier: Apache-2.0 */
/* SVE's products of bf16 pairs (BFDOT, BFCVT): what cpu_simd_bf16.h is to AVX-512. */
#ifndef CPU_SIMD_SVE_BF16_H
#define CPU_SIMD_SVE_BF16_H

/* c + a0 * b0 + a1 * b1 in each word. */
SI vf v_dot_bf16(vf a, vf b, vf c) {
    return svbfdot_f32(c, svreinterpret_bf16_f32(a), svreinterpret_bf16_f32(b));
}
SI vf vi_as_f(vi a) {
    return svreinterpret_f32_s32(a);
}
SI vf v_word(int32_t w) {
    return svreinterpret_f32_s32(svdup_n_s32(w));
}

/* Words (bf16(p0), bf16(p1)) of each lane. */
SI vf v_pair_bf16(vf p0, vf p1) {
    return svreinterpret_f32_u16(
        svtrn1_u16(svreinterpret_u16_u32(to_bf16(p0)), svreinterpret_u16_u32(to_bf16(p1))));
}

/* Both vectors, one behind the other, as bf16. */
SI vi v_words_bf16(vf first, vf last) {
    return svreinterpret_s32_u16(
        svuzp1_u16(svreinterpret_u16_u32(to_bf16(first)), svreinterpret_u16_u32(to_bf16(last))));
}

/* Words (a, b) of all columns, in their order. */
SI void v_zip_words(vi a, vi b, vi *lo, vi *hi) {
    v_pair_words(a, b, lo, hi);
}

#include "cpu_simd_bf16_rows.h"

#endif
