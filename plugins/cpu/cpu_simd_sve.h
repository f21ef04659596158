/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives on 8 floats in one register: SVE with vectors of 256 bits and its products of bf16 pairs, a
 * length that is known when this is compiled (-msve-vector-bits=256) and asked for when the level is chosen.
 * Other lengths have the NEON levels. See cpu_simd.h. */
#include <arm_sve.h>

#define VW 8
#if __ARM_FEATURE_SVE_BITS != 256
#error "compile this level with -msve-vector-bits=256"
#endif
typedef svfloat32_t vf __attribute__((arm_sve_vector_bits(256)));
typedef svint32_t vi __attribute__((arm_sve_vector_bits(256)));
typedef svuint32_t vu __attribute__((arm_sve_vector_bits(256)));
typedef svint16_t vh __attribute__((arm_sve_vector_bits(256)));
typedef svbool_t vm __attribute__((arm_sve_vector_bits(256)));

#define ALL svptrue_b32()

SI vf v_load(const float *p) {
    return svld1_f32(ALL, p);
}
SI void v_store(float *p, vf a) {
    svst1_f32(ALL, p, a);
}
SI vf v_set1(float x) {
    return svdup_n_f32(x);
}
SI vf v_zero(void) {
    return svdup_n_f32(0.0f);
}
SI vf v_add(vf a, vf b) {
    return svadd_f32_x(ALL, a, b);
}
SI vf v_sub(vf a, vf b) {
    return svsub_f32_x(ALL, a, b);
}
SI vf v_mul(vf a, vf b) {
    return svmul_f32_x(ALL, a, b);
}
SI vf v_div(vf a, vf b) {
    return svdiv_f32_x(ALL, a, b);
}
/* b if either is NaN, unlike the instructions for maximum and minimum. */
SI vf v_max(vf a, vf b) {
    return svsel_f32(svcmpgt_f32(ALL, a, b), a, b);
}
SI vf v_min(vf a, vf b) {
    return svsel_f32(svcmplt_f32(ALL, a, b), a, b);
}
SI vf v_sqrt(vf a) {
    return svsqrt_f32_x(ALL, a);
}
SI vf v_fma(vf a, vf b, vf c) {
    return svmla_f32_x(ALL, c, a, b);
}
SI vf v_fma_word(const float *a, vf b, vf c) {
    return v_fma(v_set1(*a), b, c);
}
SI vf v_fms(vf a, vf b, vf c) {
    return svnmsb_f32_x(ALL, a, b, c);
}
SI int v_any_gt(vf a, vf b) {
    return svptest_any(ALL, svcmpgt_f32(ALL, a, b));
}
SI float v_hmax(vf a) {
    return svmaxv_f32(ALL, a);
}
SI float v_hsum(vf a) {
    return svaddv_f32(ALL, a);
}

SI vi vi_load(const int32_t *p) {
    return svreinterpret_s32_u8(svld1_u8(svptrue_b8(), (const uint8_t *)p));
}
SI vi vi_set1(int32_t x) {
    return svdup_n_s32(x);
}
SI vi vi_add(vi a, vi b) {
    return svadd_s32_x(ALL, a, b);
}
SI vi vi_sub(vi a, vi b) {
    return svsub_s32_x(ALL, a, b);
}
SI vi vi_mul(vi a, vi b) {
    return svmul_s32_x(ALL, a, b);
}
SI vf vi_to_f(vi a) {
    return svcvt_f32_s32_x(ALL, a);
}

/* s where key k lies in [lo0, hi0) or [lo1, hi1), else -inf. */
SI vf v_mask2(vf s, vi k, vi lo0, vi hi0, vi lo1, vi hi1) {
    const svbool_t a = svcmplt_s32(svcmpge_s32(ALL, k, lo0), k, hi0),
                   b = svcmplt_s32(svcmpge_s32(ALL, k, lo1), k, hi1);
    return svsel_f32(svorr_b_z(ALL, a, b), s, svdup_n_f32(-INFINITY));
}

/* 2^x as in cpu_simd_avx2.h, degree 5; the exponent by FSCALE. -inf gives 0, NaN stays. */
SI vf v_exp2(vf x) {
    const vf y = v_max(v_set1(-126.0f), x), t = svrintn_f32_x(ALL, y);
    const vf f = v_sub(y, t);
    vf p = v_set1(0.001327647217f);
    p = v_fma(p, f, v_set1(0.009675541331f));
    p = v_fma(p, f, v_set1(0.05550713273f));
    p = v_fma(p, f, v_set1(0.2402211972f));
    p = v_fma(p, f, v_set1(0.6931469671f));
    p = v_fma(p, f, v_set1(1.000000072f));
    p = svscale_f32_x(ALL, p, svcvt_s32_f32_x(ALL, t));
    return svsel_f32(svcmplt_f32(ALL, x, svdup_n_f32(-126.0f)), v_zero(), p);
}
SI vf v_exp2_short(vf x) {
    return v_exp2(x);
}

/* 8 vectors to their 8 sums: lane i is the sum of v[i]. Each step adds what two vectors' even and odd lanes
 * hold, as pairwise additions do. */
SI vf add_pairs(vf a, vf b) {
    return v_add(svuzp1_f32(a, b), svuzp2_f32(a, b));
}
SI vf v_reduce_all(const vf v[VW]) {
    return add_pairs(add_pairs(add_pairs(v[0], v[1]), add_pairs(v[2], v[3])),
                     add_pairs(add_pairs(v[4], v[5]), add_pairs(v[6], v[7])));
}
SI vi add_pairs_int(vi a, vi b) {
    return vi_add(svuzp1_s32(a, b), svuzp2_s32(a, b));
}
SI vi v_reduce_all_int(const vi v[VW]) {
    return add_pairs_int(add_pairs_int(add_pairs_int(v[0], v[1]), add_pairs_int(v[2], v[3])),
                         add_pairs_int(add_pairs_int(v[4], v[5]), add_pairs_int(v[6], v[7])));
}

/* Transposes 8 x 8 words: zipping rows i and i + 4 three times. */
SI void v_transpose(vf v[VW]) {
    UNROLL for (int step = 0; step < 3; step++) {
        vf t[VW];
        UNROLL for (int i = 0; i < 4; i++) {
            t[2 * i] = svzip1_f32(v[i], v[i + 4]);
            t[2 * i + 1] = svzip2_f32(v[i], v[i + 4]);
        }
        UNROLL for (int i = 0; i < VW; i++) v[i] = t[i];
    }
}

/* Natural order from (even, odd) elements, and back. */
SI void v_zip(vf *a, vf *b) {
    const vf x = *a, y = *b;
    *a = svzip1_f32(x, y);
    *b = svzip2_f32(x, y);
}
SI void v_unzip(vf *a, vf *b) {
    const vf x = *a, y = *b;
    *a = svuzp1_f32(x, y);
    *b = svuzp2_f32(x, y);
}

/* The f16 in the low half of each word. */
SI vf half_to_f(svuint32_t h) {
    return svcvt_f32_f16_x(ALL, svreinterpret_f16_u32(h));
}
/* Bits of an f16 that is 256 times too small: sign, and 7 bits under f16's exponent; 0x7f, the only NaN, gets
 * all exponent bits. x: sign-extended bytes. */
SI vf e4m3_to_f(svint32_t x) {
    const svbool_t nan = svcmpeq_n_u32(ALL, svand_n_u32_x(ALL, svreinterpret_u32_s32(x), 0x7f), 0x7f);
    const svuint32_t h = svand_n_u32_x(ALL, svlsl_n_u32_x(ALL, svreinterpret_u32_s32(x), 7), 0xbfff);
    return half_to_f(svorr_n_u32_m(nan, h, 0x7e00));
}

/* 16 elements as two vectors: bf16 as (even, odd), every other type as (first 8, last 8). */
SI void v_pair(enum cpu_dtype t, const char *p, vf *a, vf *b) {
    if (t == CPU_F32) {
        *a = svreinterpret_f32_s32(vi_load((const int32_t *)(const void *)p));
        *b = svreinterpret_f32_s32(vi_load((const int32_t *)(const void *)(p + 32)));
    } else if (t == CPU_BF16) {
        const svuint32_t w = svreinterpret_u32_s32(vi_load((const int32_t *)(const void *)p));
        *a = svreinterpret_f32_u32(svlsl_n_u32_x(ALL, w, 16));
        *b = svreinterpret_f32_u32(svand_n_u32_x(ALL, w, 0xffff0000u));
    } else if (t == CPU_F16) {
        const svuint16_t h = svreinterpret_u16_s32(vi_load((const int32_t *)(const void *)p));
        *a = half_to_f(svunpklo_u32(h));
        *b = half_to_f(svunpkhi_u32(h));
    } else if (t == CPU_I8) {
        *a = svcvt_f32_s32_x(ALL, svld1sb_s32(ALL, (const int8_t *)p));
        *b = svcvt_f32_s32_x(ALL, svld1sb_s32(ALL, (const int8_t *)p + 8));
    } else if (t == CPU_E5M2) {
        *a = half_to_f(svlsl_n_u32_x(ALL, svld1ub_u32(ALL, (const uint8_t *)p), 8));
        *b = half_to_f(svlsl_n_u32_x(ALL, svld1ub_u32(ALL, (const uint8_t *)p + 8), 8));
    } else {
        *a = e4m3_to_f(svld1sb_s32(ALL, (const int8_t *)p));
        *b = e4m3_to_f(svld1sb_s32(ALL, (const int8_t *)p + 8));
    }
}

/* 2 * VW bytes as signed 16-bit words; two such vectors as pairs (a, b), which ZIP leaves in natural order;
 * acc + a0 * b0 + a1 * b1 in each word pair. */
#define CPU_WORDS 1
SI vi v_words(const char *p) {
    return svreinterpret_s32_s16(svld1sb_s16(svptrue_b16(), (const int8_t *)p));
}
SI vi v_words_tail(const char *p, int n) {
    return svreinterpret_s32_s16(svld1sb_s16(svwhilelt_b16_s32(0, n), (const int8_t *)p));
}
/* n nibbles, low ones first, minus `zero` as bytes, as far as whole vectors go; returns how many. */
SI int v_nibbles(const char *p, int n, int zero, char *out) {
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const svuint16_t x = svld1ub_u16(svptrue_b16(), (const uint8_t *)p + i / 2),
                         y = svorr_u16_x(svptrue_b16(), svand_n_u16_x(svptrue_b16(), x, 15),
                                         svlsl_n_u16_x(svptrue_b16(), svlsr_n_u16_x(svptrue_b16(), x, 4), 8));
        svst1_u8(svptrue_b8(), (uint8_t *)out + i,
                 svsub_n_u8_x(svptrue_b8(), svreinterpret_u8_u16(y), (uint8_t)zero));
    }
    return i;
}
SI void v_pair_words(vi a, vi b, vi *lo, vi *hi) {
    const svint16_t x = svreinterpret_s16_s32(a), y = svreinterpret_s16_s32(b);
    *lo = svreinterpret_s32_s16(svzip1_s16(x, y));
    *hi = svreinterpret_s32_s16(svzip2_s16(x, y));
}
/* The first n < 4 * VW bytes, zeros behind them; nibble j of each 16-bit word. */
SI vi v_raw_tail(const char *p, int n) {
    return svreinterpret_s32_u8(svld1_u8(svwhilelt_b8_s32(0, n), (const uint8_t *)p));
}
SI vi v_nibble_words(vi w, int j) {
    const svuint16_t x = svreinterpret_u16_s32(w), y = j == 0 ? x
                                                              : svlsr_n_u16_x(svptrue_b16(), x,
                                                                              j == 1   ? 4
                                                                              : j == 2 ? 8
                                                                                       : 12);
    return svreinterpret_s32_u16(j == 3 ? y : svand_n_u16_x(svptrue_b16(), y, 15));
}
SI void v_unpair_words(float *p) {
    (void)p;
}
SI vi v_dot_words(vi acc, vi a, vi b, int vnni) {
    (void)vnni;
    acc = svmla_s32_x(ALL, acc, svexth_s32_x(ALL, a), svexth_s32_x(ALL, b));
    return svmla_s32_x(ALL, acc, svasr_n_s32_x(ALL, a, 16), svasr_n_s32_x(ALL, b, 16));
}
SI void v_store_words(int16_t *p, vf x) {
    svst1h_s32(ALL, p, svcvt_s32_f32_x(ALL, svrintn_f32_x(ALL, x)));
}

/* What v_pair() gave, in natural order. */
SI void v_store_pair(enum cpu_dtype t, float *p, vf a, vf b) {
    if (t == CPU_BF16) v_zip(&a, &b);
    v_store(p, a);
    v_store(p + 8, b);
}

/* 8 floats to f16 or bf16, nearest even, NaN kept. */
SI svuint32_t to_bf16(vf a) { /* in the low half of each word */
    return svreinterpret_u32_bf16(svcvt_bf16_f32_x(ALL, a));
}
SI void v_store16(enum cpu_dtype t, uint16_t *p, vf a) {
    if (t == CPU_F16)
        svst1h_u32(ALL, p, svreinterpret_u32_f16(svcvt_f16_f32_x(ALL, a)));
    else
        svst1h_u32(ALL, p, to_bf16(a));
}

SI void v_prefetch(const char *p) {
    __builtin_prefetch(p);
}
SI void v_prefetch_l2(const char *p) {
    __builtin_prefetch(p, 0, 2);
}
