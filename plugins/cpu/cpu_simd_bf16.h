/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 BF16: products of bf16 pairs, and rows brought into that form. The only place with __m512bh
 * casts. */
#ifndef CPU_SIMD_BF16_H
#define CPU_SIMD_BF16_H

/* c + a0 * b0 + a1 * b1 in each word. */
SI vf v_dot_bf16(vf a, vf b, vf c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
SI vf vi_as_f(vi a) {
    return _mm512_castsi512_ps(a);
}
SI vf v_word(int32_t w) {
    return _mm512_castsi512_ps(vi_set1(w));
}

/* Words (bf16(p0), bf16(p1)) of each lane. */
SI vf v_pair_bf16(vf p0, vf p1) {
    const vi order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                      6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, (vi)_mm512_cvtne2ps_pbh(p1, p0)));
}

/* Both vectors, one behind the other, as bf16. */
SI vi v_words_bf16(vf first, vf last) {
    return (vi)_mm512_cvtne2ps_pbh(last, first);
}

/* Words (a, b) of all columns, in their order. */
SI void v_zip_words(vi a, vi b, vi *lo, vi *hi) {
    const vi order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                      6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    *lo = _mm512_permutex2var_epi16(a, order, b);
    *hi = _mm512_permutex2var_epi16(a, _mm512_add_epi16(order, _mm512_set1_epi16(16)), b);
}

#include "cpu_simd_bf16_rows.h"

#endif
