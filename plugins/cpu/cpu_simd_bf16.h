/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 BF16: products of bf16 pairs, and rows brought into that form. The only place with __m512bh
 * casts. */
#ifndef CPU_SIMD_BF16_H
#define CPU_SIMD_BF16_H

/* c + a0 * b0 + a1 * b1 in each word. */
SI vf v_dot_bf16(vf a, vf b, vf c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
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

/* 32 elements in natural order as bf16; exact for bf16, fp8 and int8. e4m3 comes out of v_pair() divided by
 * 256, an exponent that bf16 has room for, and is put right here. */
SI vi v_load_bf16(enum cpu_dtype t, const char *p) {
    if (t == CPU_BF16) return _mm512_loadu_si512(p);
    vf a, b;
    v_pair(t, p, &a, &b);
    if (t == CPU_E4M3) {
        a = v_mul(a, v_set1(256.0f));
        b = v_mul(b, v_set1(256.0f));
    }
    return v_words_bf16(a, b);
}

SI vi v_load_bf16_tail(enum cpu_dtype t, const char *p, int n) {
    char raw[CHUNK * 4] __attribute__((aligned(64)));
    memset(raw, 0, sizeof raw);
    memcpy(raw, p, (size_t)(n * cpu_dtype_size(t)));
    return v_load_bf16(t, raw);
}

/* n elements to bf16; dst has room for the next multiple of CHUNK. */
SI void row_to_bf16(enum cpu_dtype t, const char *src, int n, char *dst) {
    int i = 0;
    for (; i + CHUNK <= n; i += CHUNK)
        _mm512_storeu_si512(dst + 2 * i, v_load_bf16(t, src + i * cpu_dtype_size(t)));
    if (i < n) _mm512_storeu_si512(dst + 2 * i, v_load_bf16_tail(t, src + i * cpu_dtype_size(t), n - i));
}

/* Two rows interleaved: word d = (v0[d], v1[d]); dst has room for the next multiple of CHUNK words. */
SI void rows_to_pairs(enum cpu_dtype t, const char *v0, const char *v1, int n, float *dst) {
    const vi lo = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                   37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const vi hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    const int es = cpu_dtype_size(t);
    for (int i = 0; i < n; i += CHUNK) {
        const int whole = i + CHUNK <= n;
        vi a = whole ? v_load_bf16(t, v0 + i * es) : v_load_bf16_tail(t, v0 + i * es, n - i);
        vi b = whole ? v_load_bf16(t, v1 + i * es) : v_load_bf16_tail(t, v1 + i * es, n - i);
        _mm512_storeu_si512(dst + i, _mm512_permutex2var_epi16(a, lo, b));
        _mm512_storeu_si512(dst + i + 16, _mm512_permutex2var_epi16(a, hi, b));
    }
}

#endif
