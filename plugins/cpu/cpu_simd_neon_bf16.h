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

/* 16 elements in natural order as bf16; exact for bf16, fp8 and int8. e4m3 comes out of v_pair() divided by
 * 256, an exponent that bf16 has room for, and is put right here. */
SI vi v_load_bf16(enum cpu_dtype t, const char *p) {
    vi w;
    if (t == CPU_BF16) {
        memcpy(&w, p, sizeof w);
        return w;
    }
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
    for (int i = 0; i < n; i += CHUNK) {
        const char *from = src + i * cpu_dtype_size(t);
        const vi w = i + CHUNK <= n ? v_load_bf16(t, from) : v_load_bf16_tail(t, from, n - i);
        memcpy(dst + 2 * i, &w, sizeof w);
    }
}

/* Two rows interleaved: word d = (v0[d], v1[d]); dst has room for the next multiple of CHUNK words. */
SI void rows_to_pairs(enum cpu_dtype t, const char *v0, const char *v1, int n, float *dst) {
    const int es = cpu_dtype_size(t);
    for (int i = 0; i < n; i += CHUNK) {
        const int whole = i + CHUNK <= n;
        const vi a = whole ? v_load_bf16(t, v0 + i * es) : v_load_bf16_tail(t, v0 + i * es, n - i);
        const vi b = whole ? v_load_bf16(t, v1 + i * es) : v_load_bf16_tail(t, v1 + i * es, n - i);
        const vi lo = zip_words(a.lo, b.lo), hi = zip_words(a.hi, b.hi);
        memcpy(dst + i, &lo, sizeof lo);
        memcpy(dst + i + VW, &hi, sizeof hi);
    }
}

#endif
