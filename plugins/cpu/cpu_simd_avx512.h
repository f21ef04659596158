/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives on 16 floats: AVX-512 F, BW, DQ, VL; with CPU_LEVEL 3 also BF16. See cpu_simd.h. */
#include <immintrin.h>

#define VW   16
#define NREG 32
typedef __m512 vf;
typedef __m512i vi;

SI vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
SI void v_store(float *p, vf a) {
    _mm512_storeu_ps(p, a);
}
SI vf v_set1(float x) {
    return _mm512_set1_ps(x);
}
SI vf v_zero(void) {
    return _mm512_setzero_ps();
}
SI vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
SI vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
SI vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
SI vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
SI vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
} /* b if either is NaN */
SI vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
SI vf v_sqrt(vf a) {
    return _mm512_sqrt_ps(a);
}
SI vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* c + *a * b, the broadcast inside the instruction (the compiler would share it between two). */
SI vf v_fma_word(const float *a, vf b, vf c) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
SI vf v_fms(vf a, vf b, vf c) {
    return _mm512_fmsub_ps(a, b, c);
}
SI int v_any_gt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
SI float v_hmax(vf a) {
    return _mm512_reduce_max_ps(a);
}
SI float v_hsum(vf a) {
    return _mm512_reduce_add_ps(a);
}

SI vi vi_load(const int32_t *p) {
    return _mm512_loadu_si512(p);
}
SI vi vi_set1(int32_t x) {
    return _mm512_set1_epi32(x);
}
SI vi vi_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
SI vi vi_sub(vi a, vi b) {
    return _mm512_sub_epi32(a, b);
}
SI vi vi_mul(vi a, vi b) {
    return _mm512_mullo_epi32(a, b);
}
SI vf vi_to_f(vi a) {
    return _mm512_cvtepi32_ps(a);
}

/* s where key k lies in [lo0, hi0) or [lo1, hi1), else -inf. */
SI vf v_mask2(vf s, vi k, vi lo0, vi hi0, vi lo1, vi hi1) {
    __mmask16 a = _mm512_mask_cmpge_epi32_mask(_mm512_cmplt_epi32_mask(k, hi0), k, lo0);
    __mmask16 b = _mm512_mask_cmpge_epi32_mask(_mm512_cmplt_epi32_mask(k, hi1), k, lo1);
    return _mm512_mask_blend_ps(a | b, _mm512_set1_ps(-INFINITY), s);
}

/* 2^x: vreduceps gives the fraction in [0, 1), vscalefps puts the exponent on; -inf -> 0, NaN -> NaN. Minimax
 * polynomials for [0, 1), degree 5 (relative error 7.5e-8) and 3 (7.5e-5, for results that become bf16). */
SI vf v_exp2(vf x) {
    vf f = _mm512_reduce_ps(x, 9), p = v_set1(1.8775767e-3f);
    p = v_fma(p, f, v_set1(8.9893397e-3f));
    p = v_fma(p, f, v_set1(5.5826318e-2f));
    p = v_fma(p, f, v_set1(2.4015361e-1f));
    p = v_fma(p, f, v_set1(6.9315308e-1f));
    p = v_fma(p, f, v_set1(9.9999994e-1f));
    return _mm512_scalef_ps(p, x);
}
SI vf v_exp2_short(vf x) {
    vf f = _mm512_reduce_ps(x, 9), p = v_set1(0.07802452269f);
    p = v_fma(p, f, v_set1(0.2260671554f));
    p = v_fma(p, f, v_set1(0.6958335405f));
    p = v_fma(p, f, v_set1(0.9999252186f));
    return _mm512_scalef_ps(p, x);
}

/* 16 vectors to their 16 sums: lane i is the sum of v[i]. A step joins two vectors: one blend takes the lanes
 * that stay, one shuffle brings those beside them, so that port 5, which alone shuffles, has a third of the
 * work. */
#define V_REDUCE(V, BLEND, ADD, SHUF, PERM)                                                                  \
    const vi by4 = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);            \
    const vi by1 = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);             \
    V a[8], b[4], c[2];                                                                                      \
    UNROLL for (int i = 0; i < 8; i++) a[i] =                                                                \
        ADD(BLEND(0xff00, v[i], v[i + 8]), SHUF##32x4(v[i], v[i + 8], 0x4e));                                \
    UNROLL for (int i = 0; i < 4; i++) b[i] = ADD(BLEND(0xf0f0, a[i], a[i + 4]), PERM(a[i], by4, a[i + 4])); \
    UNROLL for (int i = 0; i < 2; i++) c[i] =                                                                \
        ADD(BLEND(0xcccc, b[i], b[i + 2]), V_PAIRS_##V(b[i], b[i + 2]));                                     \
    const V sum = ADD(BLEND(0xaaaa, c[0], c[1]), PERM(c[0], by1, c[1]))
#define V_PAIRS_vf(a, b) _mm512_shuffle_ps(a, b, 0x4e)
#define V_PAIRS_vi(a, b) _mm512_castps_si512(V_PAIRS_vf(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)))
SI vf v_reduce_all(const vf v[VW]) {
    V_REDUCE(vf, _mm512_mask_blend_ps, _mm512_add_ps, _mm512_shuffle_f, _mm512_permutex2var_ps);
    return sum;
}
SI vi v_reduce_all_int(const vi v[VW]) {
    V_REDUCE(vi, _mm512_mask_blend_epi32, _mm512_add_epi32, _mm512_shuffle_i, _mm512_permutex2var_epi32);
    return sum;
}

/* Transposes 16 x 16 words in registers. */
SI void v_transpose(vf v[VW]) {
    __m512i r[16], t[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] = _mm512_castps_si512(v[i]);
    UNROLL for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        v[i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        v[i + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        v[i + 4] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        v[i + 12] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

/* A stage of the Hadamard transform inside a vector: a + b and a - b of lanes i and i + half. */
#define CPU_BUTTERFLY 1
SI vf v_butterfly(vf x, const int half) {
    const vf y = half == 1   ? _mm512_permute_ps(x, 0xb1)
                 : half == 2 ? _mm512_permute_ps(x, 0x4e)
                 : half == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                             : _mm512_shuffle_f32x4(x, x, 0x4e);
    const __mmask16 high = half == 1 ? 0xaaaa : half == 2 ? 0xcccc : half == 4 ? 0xf0f0 : 0xff00;
    return _mm512_mask_sub_ps(v_add(x, y), high, y, x);
}
/* -x in the lanes whose bit is set. */
SI vf v_flip(vf x, uint32_t bits) {
    return _mm512_mask_xor_ps(x, (__mmask16)bits, x, v_set1(-0.0f));
}

/* Natural order from (even, odd) elements, and back. */
SI void v_zip(vf *a, vf *b) {
    const vi lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    vf x = _mm512_permutex2var_ps(*a, lo, *b);
    *b = _mm512_permutex2var_ps(*a, vi_add(lo, vi_set1(8)), *b);
    *a = x;
}
SI void v_unzip(vf *a, vf *b) {
    const vi ev = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vf x = _mm512_permutex2var_ps(*a, ev, *b);
    *b = _mm512_permutex2var_ps(*a, vi_add(ev, vi_set1(1)), *b);
    *a = x;
}

/* 32 elements as two vectors: bf16 as (even, odd), every other type as (first 16, last 16). e4m3 comes out
 * divided by 256: sign and the 7 bits moved under f16's exponent; 0x7f, the only NaN, is set by hand.
 * part: only the elements that `mask` has are read, zeros are in place of the others. */
SI vf v_pair_floats(const char *p, const int part, __mmask32 mask) {
    return part ? _mm512_maskz_loadu_ps((__mmask16)mask, p) : _mm512_loadu_ps(p);
}
SI __m256i v_pair_halves(const char *p, const int part, __mmask32 mask) {
    return part ? _mm256_maskz_loadu_epi16((__mmask16)mask, p) : _mm256_loadu_si256((const void *)p);
}
SI __m128i v_pair_bytes(const char *p, const int part, __mmask32 mask) {
    return part ? _mm_maskz_loadu_epi8((__mmask16)mask, p) : _mm_loadu_si128((const void *)p);
}
SI void v_pair_part(enum cpu_dtype t, const char *p, const int part, __mmask32 mask, vf *a, vf *b) {
    if (t == CPU_F32) {
        *a = v_pair_floats(p, part, mask);
        *b = v_pair_floats(p + 64, part, mask >> 16);
    } else if (t == CPU_BF16) {
        vi w = part ? _mm512_maskz_loadu_epi16(mask, p) : _mm512_loadu_si512(p);
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
        *b = _mm512_castsi512_ps(_mm512_and_si512(w, vi_set1((int32_t)0xffff0000u)));
    } else if (t == CPU_F16) {
        *a = _mm512_cvtph_ps(v_pair_halves(p, part, mask));
        *b = _mm512_cvtph_ps(v_pair_halves(p + 32, part, mask >> 16));
    } else if (t == CPU_I8) {
        *a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v_pair_bytes(p, part, mask)));
        *b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v_pair_bytes(p + 16, part, mask >> 16)));
    } else {
        __m256i raw = part ? _mm256_maskz_loadu_epi8(mask, p) : _mm256_loadu_si256((const void *)p);
        vi h;
        if (t == CPU_E5M2) {
            h = _mm512_slli_epi16(_mm512_cvtepu8_epi16(raw), 8);
        } else {
            __mmask32 nan =
                _mm256_cmpeq_epi8_mask(_mm256_and_si256(raw, _mm256_set1_epi8(0x7f)), _mm256_set1_epi8(0x7f));
            h = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(raw), 7),
                                 _mm512_set1_epi16((short)0xbfff));
            h = _mm512_mask_mov_epi16(h, nan, _mm512_set1_epi16(0x7e00));
        }
        *a = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
        *b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
    }
}
SI void v_pair(enum cpu_dtype t, const char *p, vf *a, vf *b) {
    v_pair_part(t, p, 0, 0, a, b);
}
/* The first n < 32 of them, zeros behind. */
#define CPU_TAILS 1
SI int v_pair_first(enum cpu_dtype t, const char *p, int n, vf *a, vf *b) {
    v_pair_part(t, p, 1, (1u << n) - 1, a, b);
    return 1;
}

/* 64 bytes; the first n < 64 with zeros behind them, reading nothing behind them. */
SI vi v_bytes(const char *p) {
    return _mm512_loadu_si512(p);
}
SI vi v_bytes_tail(const char *p, int n) {
    return _mm512_maskz_loadu_epi8((1ull << n) - 1, p);
}

/* 64 e4m3 as bf16 in natural order. A bf16 of 7 bits without sign is 0x3c00 + (bits << 4) but for subnormals
 * and NaN; tables hold its high and its low bytes. */
static const uint8_t e4m3_low[128] = {
#define LOWS 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0,
    0xd0, 0xe0, 0xf0, LOWS, LOWS, LOWS, LOWS, LOWS, LOWS, 0x00, 0x10, 0x20, 0x30,
    0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xc0,
#undef LOWS
};
static const uint8_t e4m3_high[128] = {
#define SAME(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
    0x00,       0x3b,       0x3b, 0x3b, 0x3c, 0x3c, 0x3c,       0x3c,       0x3c,       0x3c,
    0x3c,       0x3c,       0x3c, 0x3c, 0x3c, 0x3c, SAME(0x3d), SAME(0x3e), SAME(0x3f), SAME(0x40),
    SAME(0x41), SAME(0x42), 0x43, 0x43, 0x43, 0x43, 0x43,       0x43,       0x43,       0x43,
    0x43,       0x43,       0x43, 0x43, 0x43, 0x43, 0x43,       0x7f,
#undef SAME
};
SI vi v_lookup128(vi at, const uint8_t table[128]) {
    const vi first = _mm512_loadu_si512(table), second = _mm512_loadu_si512(table + 64);
    __asm__("vpermi2b %2, %1, %0"
            : "+v"(at)
            : "v"(first), "v"(second)); /* this object is compiled without its flag */
    return at;
}
SI void v_e4m3_table(vi raw, vi out[2]) {
    const vi order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); /* unpacking works inside 128 bits */
    const vi x = _mm512_permutexvar_epi64(order, raw);
    const vi low = v_lookup128(x, e4m3_low), high = v_lookup128(x, e4m3_high);
    const vi top =
        _mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (x & 0x80) */
    out[0] = _mm512_unpacklo_epi8(low, top);
    out[1] = _mm512_unpackhi_epi8(low, top);
}

/* 2 * VW bytes as signed 16-bit words; two such vectors as pairs (a, b) in some order of columns that
 * v_unpair_words() undoes on the CHUNK floats at p; acc + a0 * b0 + a1 * b1 in each word pair. */
#define CPU_WORDS 1
SI vi v_words(const char *p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p));
}
SI vi v_words_tail(const char *p, int n) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8((__mmask32)((1ull << n) - 1), p));
}
/* n nibbles, low ones first, minus `zero` as bytes, as far as whole vectors go; returns how many. */
SI int v_nibbles(const char *p, int n, int zero, char *out) {
    const vi minus = _mm512_set1_epi8((char)zero), mask = _mm512_set1_epi8(15);
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        const vi x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(p + i / 2)));
        /* (x | x << 4) & mask */
        const vi y = _mm512_ternarylogic_epi32(x, _mm512_slli_epi16(x, 4), mask, 0xa8);
        _mm512_storeu_si512(out + i, _mm512_sub_epi8(y, minus));
    }
    return i;
}
SI void v_pair_words(vi a, vi b, vi *lo, vi *hi) {
    *lo = _mm512_unpacklo_epi16(a, b);
    *hi = _mm512_unpackhi_epi16(a, b);
}
/* The first n < 4 * VW bytes, zeros behind them; nibble j of each 16-bit word. */
SI vi v_raw_tail(const char *p, int n) {
    return v_bytes_tail(p, n);
}
SI vi v_nibble_words(vi w, int j) {
    if (j == 3) return _mm512_srli_epi16(w, 12);
    return _mm512_and_si512(j == 0 ? w : _mm512_srli_epi16(w, 4u * (unsigned)j), _mm512_set1_epi16(15));
}
SI void v_unpair_words(float *p) {
    const vi lo = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const vf a = v_load(p), b = v_load(p + 16);
    v_store(p, _mm512_permutex2var_ps(a, lo, b));
    v_store(p + 16, _mm512_permutex2var_ps(a, vi_add(lo, vi_set1(8)), b));
}
SI vi v_dot_words(vi acc, vi a, vi b, int vnni) {
    if (!vnni) return vi_add(acc, _mm512_madd_epi16(a, b));
    __asm__("vpdpwssd %2, %1, %0"
            : "+v"(acc)
            : "v"(a), "v"(b)); /* this object is compiled without its flag */
    return acc;
}
SI void v_store_words(int16_t *p, vf x) {
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

/* VW codes of 4 or 3 bits at p, with rubbish above them (3 bits: reads a byte behind them); what they stand
 * for in a table of 16, which for 3 bits holds its 8 entries twice. */
#define CPU_CODES 1
SI vi v_codes(const char *p, int bits) {
    const vi by = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    int32_t first, last;
    memcpy(&first, p, sizeof first);
    memcpy(&last, p + bits, sizeof last);
    return _mm512_srlv_epi32(_mm512_mask_set1_epi32(vi_set1(first), 0xff00, last),
                             bits == 4 ? _mm512_slli_epi32(by, 2) : _mm512_mullo_epi32(by, vi_set1(3)));
}
SI void v_table(const float table[16], vf out[16 / VW]) {
    out[0] = v_load(table);
}
SI vf v_lookup(const vf table[16 / VW], vi codes) {
    return _mm512_permutexvar_ps(codes, table[0]);
}

/* A float16 as float. */
SI float v_half(const char *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* What v_pair() gave, in natural order. */
SI void v_store_pair(enum cpu_dtype t, float *p, vf a, vf b) {
    if (t == CPU_BF16) v_zip(&a, &b);
    v_store(p, a);
    v_store(p + 16, b);
}

/* 16 floats to f16 or bf16, nearest even, NaN kept. */
SI __m256i v_to_bf16(vf a) {
#if CPU_X86 >= 3
    return (__m256i)_mm512_cvtneps_pbh(a);
#else
    vi u = _mm512_castps_si512(a);
    vi r = vi_add(u, vi_add(vi_set1(0x7fff), _mm512_and_si512(_mm512_srli_epi32(u, 16), vi_set1(1))));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), u, vi_set1(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
#endif
}
SI void v_store16(enum cpu_dtype t, uint16_t *p, vf a) {
    _mm256_storeu_si256((void *)p, t == CPU_BF16 ? v_to_bf16(a) : _mm512_cvtps_ph(a, 0));
}

/* The first n < VW floats at x. */
SI int v_store16_first(enum cpu_dtype t, uint16_t *p, const float *x, int n) {
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    const vf a = _mm512_maskz_loadu_ps(mask, x);
    _mm256_mask_storeu_epi16(p, mask, t == CPU_BF16 ? v_to_bf16(a) : _mm512_cvtps_ph(a, 0));
    return 1;
}

SI void v_prefetch(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}
SI void v_prefetch_l2(const char *p) {
    _mm_prefetch(p, _MM_HINT_T1);
}
