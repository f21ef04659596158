/* SPDX-License-Identifier: Apache-2.0 */
/* Rows brought into the form of bf16 pairs: the part of cpu_simd_bf16.h, cpu_simd_neon_bf16.h and
 * cpu_simd_sve_bf16.h that is the same for all of them, by which it is included. */

/* CHUNK elements in natural order as bf16; exact for bf16, fp8 and int8. e4m3 comes out of v_pair() divided
 * by 256, an exponent that bf16 has room for, and is put right here. */
SI vi v_pair_as_bf16(enum cpu_dtype t, vf a, vf b) {
    if (t == CPU_E4M3) {
        a = v_mul(a, v_set1(256.0f));
        b = v_mul(b, v_set1(256.0f));
    }
    return v_words_bf16(a, b);
}
SI vi v_load_bf16(enum cpu_dtype t, const char *p) {
    if (t == CPU_BF16) return vi_load((const int32_t *)(const void *)p);
    vf a, b;
    v_pair(t, p, &a, &b);
    return v_pair_as_bf16(t, a, b);
}

/* The first n < CHUNK elements, zeros behind them. */
SI vi v_load_bf16_tail(enum cpu_dtype t, const char *p, int n) {
    if (t == CPU_BF16) return v_raw_tail(p, 2 * n);
    vf a, b;
    v_pair_tail(t, p, n, &a, &b);
    return v_pair_as_bf16(t, a, b);
}

/* n elements to bf16; dst has room for the next multiple of CHUNK. */
SI void row_to_bf16(enum cpu_dtype t, const char *src, int n, char *dst) {
    for (int i = 0; i < n; i += CHUNK) {
        const char *from = src + i * cpu_dtype_size(t);
        v_store((float *)(void *)(dst + 2 * i),
                vi_as_f(i + CHUNK <= n ? v_load_bf16(t, from) : v_load_bf16_tail(t, from, n - i)));
    }
}

/* Two rows interleaved: word d = (v0[d], v1[d]); dst has room for the next multiple of CHUNK words. */
SI void rows_to_pairs(enum cpu_dtype t, const char *v0, const char *v1, int n, float *dst) {
    const int es = cpu_dtype_size(t);
    for (int i = 0; i < n; i += CHUNK) {
        const int whole = i + CHUNK <= n;
        const vi a = whole ? v_load_bf16(t, v0 + i * es) : v_load_bf16_tail(t, v0 + i * es, n - i);
        const vi b = whole ? v_load_bf16(t, v1 + i * es) : v_load_bf16_tail(t, v1 + i * es, n - i);
        vi lo, hi;
        v_zip_words(a, b, &lo, &hi);
        v_store(dst + i, vi_as_f(lo));
        v_store(dst + i + VW, vi_as_f(hi));
    }
}
