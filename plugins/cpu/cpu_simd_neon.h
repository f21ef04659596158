/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives on 8 floats in two registers: Advanced SIMD of AArch64, which has conversions of float16 and
 * fused products in its baseline. Two registers a vector keep as many sums in flight as AVX2. See
 * cpu_simd.h. */
#include <arm_neon.h>

#define VW 8
typedef struct {
    float32x4_t lo, hi;
} vf;
typedef struct {
    int32x4_t lo, hi;
} vi;

/* A mask of each register, all bits or none. */
typedef struct {
    uint32x4_t lo, hi;
} vm;

SI vf v_load(const float *p) {
    return (vf){vld1q_f32(p), vld1q_f32(p + 4)};
}
SI void v_store(float *p, vf a) {
    vst1q_f32(p, a.lo);
    vst1q_f32(p + 4, a.hi);
}
SI vf v_set1(float x) {
    return (vf){vdupq_n_f32(x), vdupq_n_f32(x)};
}
SI vf v_zero(void) {
    return v_set1(0.0f);
}
SI vf v_add(vf a, vf b) {
    return (vf){vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)};
}
SI vf v_sub(vf a, vf b) {
    return (vf){vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)};
}
SI vf v_mul(vf a, vf b) {
    return (vf){vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}
SI vf v_div(vf a, vf b) {
    return (vf){vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)};
}
SI vm v_gt(vf a, vf b) {
    return (vm){vcgtq_f32(a.lo, b.lo), vcgtq_f32(a.hi, b.hi)};
}
SI vf v_pick(vm m, vf a, vf b) {
    return (vf){vbslq_f32(m.lo, a.lo, b.lo), vbslq_f32(m.hi, a.hi, b.hi)};
}
/* b if either is NaN, unlike the instructions for maximum and minimum. */
SI vf v_max(vf a, vf b) {
    return v_pick(v_gt(a, b), a, b);
}
SI vf v_min(vf a, vf b) {
    return v_pick(v_gt(b, a), a, b);
}
SI vf v_sqrt(vf a) {
    return (vf){vsqrtq_f32(a.lo), vsqrtq_f32(a.hi)};
}
SI vf v_fma(vf a, vf b, vf c) {
    return (vf){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
SI vf v_fma_word(const float *a, vf b, vf c) {
    return v_fma(v_set1(*a), b, c);
}
SI vf v_fms(vf a, vf b, vf c) {
    return v_fma(a, b, (vf){vnegq_f32(c.lo), vnegq_f32(c.hi)});
}
SI int v_any_gt(vf a, vf b) {
    const vm m = v_gt(a, b);
    return vmaxvq_u32(vorrq_u32(m.lo, m.hi)) != 0;
}
SI float v_hmax(vf a) {
    return vmaxvq_f32(vmaxq_f32(a.lo, a.hi));
}
SI float v_hsum(vf a) {
    return vaddvq_f32(vaddq_f32(a.lo, a.hi));
}

SI vi vi_load(const int32_t *p) {
    vi a;
    memcpy(&a, p, sizeof a);
    return a;
}
SI vi vi_set1(int32_t x) {
    return (vi){vdupq_n_s32(x), vdupq_n_s32(x)};
}
SI vi vi_add(vi a, vi b) {
    return (vi){vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)};
}
SI vi vi_sub(vi a, vi b) {
    return (vi){vsubq_s32(a.lo, b.lo), vsubq_s32(a.hi, b.hi)};
}
SI vi vi_mul(vi a, vi b) {
    return (vi){vmulq_s32(a.lo, b.lo), vmulq_s32(a.hi, b.hi)};
}
SI vf vi_to_f(vi a) {
    return (vf){vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)};
}

/* s where key k lies in [lo0, hi0) or [lo1, hi1), else -inf. */
SI uint32x4_t key_inside(int32x4_t k, int32x4_t lo0, int32x4_t hi0, int32x4_t lo1, int32x4_t hi1) {
    return vorrq_u32(vandq_u32(vcgeq_s32(k, lo0), vcltq_s32(k, hi0)),
                     vandq_u32(vcgeq_s32(k, lo1), vcltq_s32(k, hi1)));
}
SI vf v_mask2(vf s, vi k, vi lo0, vi hi0, vi lo1, vi hi1) {
    const vm m = {key_inside(k.lo, lo0.lo, hi0.lo, lo1.lo, hi1.lo),
                  key_inside(k.hi, lo0.hi, hi0.hi, lo1.hi, hi1.hi)};
    return v_pick(m, s, v_set1(-INFINITY));
}

/* 2^x as in cpu_simd_avx2.h; degree 5. */
SI float32x4_t exp2_finish(float32x4_t x, float32x4_t p, float32x4_t t) {
    const int32x4_t r = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(t), 23));
    const uint32x4_t low = vcltq_f32(x, vdupq_n_f32(-126.0f)), known = vceqq_f32(x, x);
    return vreinterpretq_f32_u32(vornq_u32(vbicq_u32(vreinterpretq_u32_s32(r), low), known));
}
SI vf v_exp2(vf x) {
    vf y = v_max(v_set1(-126.0f), x), t = v_add(y, v_set1(12582912.0f));
    vf f = v_sub(y, v_sub(t, v_set1(12582912.0f))), p = v_set1(0.001327647217f);
    p = v_fma(p, f, v_set1(0.009675541331f));
    p = v_fma(p, f, v_set1(0.05550713273f));
    p = v_fma(p, f, v_set1(0.2402211972f));
    p = v_fma(p, f, v_set1(0.6931469671f));
    p = v_fma(p, f, v_set1(1.000000072f));
    return (vf){exp2_finish(x.lo, p.lo, t.lo), exp2_finish(x.hi, p.hi, t.hi)};
}
SI vf v_exp2_short(vf x) {
    return v_exp2(x);
}

/* 8 vectors to their 8 sums: lane i is the sum of v[i]. */
SI vf v_reduce_all(const vf v[VW]) {
    float32x4_t s[VW];
    UNROLL for (int i = 0; i < VW; i++) s[i] = vaddq_f32(v[i].lo, v[i].hi);
    return (vf){vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])),
                vpaddq_f32(vpaddq_f32(s[4], s[5]), vpaddq_f32(s[6], s[7]))};
}
SI vi v_reduce_all_int(const vi v[VW]) {
    int32x4_t s[VW];
    UNROLL for (int i = 0; i < VW; i++) s[i] = vaddq_s32(v[i].lo, v[i].hi);
    return (vi){vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])),
                vpaddq_s32(vpaddq_s32(s[4], s[5]), vpaddq_s32(s[6], s[7]))};
}

/* Transposes 4 x 4 words, and 8 x 8 as four of them. */
SI void transpose4(float32x4_t *a, float32x4_t *b, float32x4_t *c, float32x4_t *d) {
    const float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(*a, *b)),
                      ab1 = vreinterpretq_f64_f32(vtrn2q_f32(*a, *b)),
                      cd0 = vreinterpretq_f64_f32(vtrn1q_f32(*c, *d)),
                      cd1 = vreinterpretq_f64_f32(vtrn2q_f32(*c, *d));
    *a = vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0));
    *b = vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1));
    *c = vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0));
    *d = vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1));
}
SI void v_transpose(vf v[VW]) {
    transpose4(&v[0].lo, &v[1].lo, &v[2].lo, &v[3].lo);
    transpose4(&v[0].hi, &v[1].hi, &v[2].hi, &v[3].hi);
    transpose4(&v[4].lo, &v[5].lo, &v[6].lo, &v[7].lo);
    transpose4(&v[4].hi, &v[5].hi, &v[6].hi, &v[7].hi);
    UNROLL for (int i = 0; i < 4; i++) {
        const float32x4_t x = v[i].hi;
        v[i].hi = v[i + 4].lo;
        v[i + 4].lo = x;
    }
}

/* Natural order from (even, odd) elements, and back. */
SI void v_zip(vf *a, vf *b) {
    const vf x = *a, y = *b;
    *a = (vf){vzip1q_f32(x.lo, y.lo), vzip2q_f32(x.lo, y.lo)};
    *b = (vf){vzip1q_f32(x.hi, y.hi), vzip2q_f32(x.hi, y.hi)};
}
SI void v_unzip(vf *a, vf *b) {
    const vf x = *a, y = *b;
    *a = (vf){vuzp1q_f32(x.lo, x.hi), vuzp1q_f32(y.lo, y.hi)};
    *b = (vf){vuzp2q_f32(x.lo, x.hi), vuzp2q_f32(y.lo, y.hi)};
}

SI vf half_to_f(uint16x8_t h) {
    const float16x8_t x = vreinterpretq_f16_u16(h);
    return (vf){vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}
SI uint16x8_t load_halves(const char *p) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p));
}
SI vf bytes_to_f(int16x8_t x) {
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_high_s16(x))};
}
/* Bits of an f16 that is 256 times too small: sign, and 7 bits under f16's exponent; 0x7f, the only NaN, gets
 * all exponent bits. */
SI uint16x8_t e4m3_to_half(int8x8_t raw) {
    const int16x8_t x = vmovl_s8(raw), low = vandq_s16(x, vdupq_n_s16(0x7f));
    const uint16x8_t h = vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(x, 7)), vdupq_n_u16(0xbfff));
    return vorrq_u16(h, vandq_u16(vceqq_s16(low, vdupq_n_s16(0x7f)), vdupq_n_u16(0x7e00)));
}

/* 16 elements as two vectors: bf16 as (even, odd), every other type as (first 8, last 8). */
SI void v_pair(enum cpu_dtype t, const char *p, vf *a, vf *b) {
    if (t == CPU_F32) {
        memcpy(a, p, sizeof *a);
        memcpy(b, p + sizeof *a, sizeof *b);
    } else if (t == CPU_BF16) {
        const uint32x4_t lo = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p)),
                         hi = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16)),
                         odd = vdupq_n_u32(0xffff0000u);
        *a = (vf){vreinterpretq_f32_u32(vshlq_n_u32(lo, 16)), vreinterpretq_f32_u32(vshlq_n_u32(hi, 16))};
        *b = (vf){vreinterpretq_f32_u32(vandq_u32(lo, odd)), vreinterpretq_f32_u32(vandq_u32(hi, odd))};
    } else if (t == CPU_F16) {
        *a = half_to_f(load_halves(p));
        *b = half_to_f(load_halves(p + 16));
    } else if (t == CPU_I8) {
        const int8x16_t raw = vld1q_s8((const int8_t *)p);
        *a = bytes_to_f(vmovl_s8(vget_low_s8(raw)));
        *b = bytes_to_f(vmovl_high_s8(raw));
    } else if (t == CPU_E5M2) {
        const uint8x16_t raw = vld1q_u8((const uint8_t *)p);
        *a = half_to_f(vshll_n_u8(vget_low_u8(raw), 8));
        *b = half_to_f(vshll_high_n_u8(raw, 8));
    } else {
        const int8x16_t raw = vld1q_s8((const int8_t *)p);
        *a = half_to_f(e4m3_to_half(vget_low_s8(raw)));
        *b = half_to_f(e4m3_to_half(vget_high_s8(raw)));
    }
}

/* Integer products, as cpu_simd_avx2.h has them; here the pairs of two vectors are columns in natural
 * order. */
#define CPU_WORDS 1
SI vi v_words(const char *p) {
    const int8x16_t raw = vld1q_s8((const int8_t *)p);
    return (vi){vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(raw))), vreinterpretq_s32_s16(vmovl_high_s8(raw))};
}
SI vi v_words_tail(const char *p, int n) {
    char raw[16] = {0};
    memcpy(raw, p, (size_t)n);
    return v_words(raw);
}
/* n nibbles, low ones first, minus `zero` as bytes, as far as whole vectors go; returns how many. */
SI int v_nibbles(const char *p, int n, int zero, char *out) {
    const uint8x16_t minus = vdupq_n_u8((uint8_t)zero), mask = vdupq_n_u8(15);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const uint8x16_t x = vld1q_u8((const uint8_t *)p + i / 2);
        const uint8x16_t even = vsubq_u8(vandq_u8(x, mask), minus), odd = vsubq_u8(vshrq_n_u8(x, 4), minus);
        vst1q_u8((uint8_t *)out + i, vzip1q_u8(even, odd));
        vst1q_u8((uint8_t *)out + i + 16, vzip2q_u8(even, odd));
    }
    return i;
}
SI vi zip_words(int32x4_t a, int32x4_t b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return (vi){vreinterpretq_s32_s16(vzip1q_s16(x, y)), vreinterpretq_s32_s16(vzip2q_s16(x, y))};
}
SI void v_pair_words(vi a, vi b, vi *lo, vi *hi) {
    *lo = zip_words(a.lo, b.lo);
    *hi = zip_words(a.hi, b.hi);
}
/* The first n < 4 * VW bytes, zeros behind them; nibble j of each 16-bit word. */
SI vi v_raw_tail(const char *p, int n) {
    vi raw = vi_set1(0);
    memcpy(&raw, p, (size_t)n);
    return raw;
}
SI int32x4_t nibble_words(int32x4_t w, int j) {
    const uint16x8_t x = vreinterpretq_u16_s32(w), y = vshlq_u16(x, vdupq_n_s16((int16_t)(-4 * j)));
    return vreinterpretq_s32_u16(j == 3 ? y : vandq_u16(y, vdupq_n_u16(15)));
}
SI vi v_nibble_words(vi w, int j) {
    return (vi){nibble_words(w.lo, j), nibble_words(w.hi, j)};
}
SI void v_unpair_words(float *p) {
    (void)p;
}
SI int32x4_t dot_words(int32x4_t acc, int32x4_t a, int32x4_t b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
SI vi v_dot_words(vi acc, vi a, vi b, int vnni) {
    (void)vnni;
    return (vi){dot_words(acc.lo, a.lo, b.lo), dot_words(acc.hi, a.hi, b.hi)};
}
SI void v_store_words(int16_t *p, vf x) {
    vst1q_s16(p, vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(x.lo)), vcvtnq_s32_f32(x.hi)));
}

/* What v_pair() gave, in natural order. */
SI void v_store_pair(enum cpu_dtype t, float *p, vf a, vf b) {
    if (t == CPU_BF16) v_zip(&a, &b);
    v_store(p, a);
    v_store(p + 8, b);
}

/* 4 floats to bf16, nearest even, NaN kept. */
SI uint16x4_t to_bf16(float32x4_t a) {
#if CPU_BF16_DOT
    return vreinterpret_u16_bf16(vcvt_bf16_f32(a));
#else
    const uint32x4_t u = vreinterpretq_u32_f32(a), even = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1)),
                     rounded = vaddq_u32(u, vaddq_u32(vdupq_n_u32(0x7fff), even));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, vorrq_u32(u, vdupq_n_u32(0x400000))), 16);
#endif
}
SI void v_store16(enum cpu_dtype t, uint16_t *p, vf a) {
    if (t == CPU_F16)
        vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.lo), a.hi)));
    else
        vst1q_u16(p, vcombine_u16(to_bf16(a.lo), to_bf16(a.hi)));
}

SI void v_prefetch(const char *p) {
    __builtin_prefetch(p);
}
SI void v_prefetch_l2(const char *p) {
    __builtin_prefetch(p, 0, 2);
}
