/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives on 8 floats: AVX2, FMA, F16C. See cpu_simd.h. */
#include <immintrin.h>

#define VW   8
#define NREG 16
typedef __m256 vf;
typedef __m256i vi;

SI vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
SI void v_store(float *p, vf a) {
    _mm256_storeu_ps(p, a);
}
SI vf v_set1(float x) {
    return _mm256_set1_ps(x);
}
SI vf v_zero(void) {
    return _mm256_setzero_ps();
}
SI vf v_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
SI vf v_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
SI vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
SI vf v_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
SI vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
} /* b if either is NaN */
SI vf v_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
SI vf v_sqrt(vf a) {
    return _mm256_sqrt_ps(a);
}
SI vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
SI vf v_fma_word(const float *a, vf b, vf c) {
    return _mm256_fmadd_ps(v_set1(*a), b, c);
}
SI vf v_fms(vf a, vf b, vf c) {
    return _mm256_fmsub_ps(a, b, c);
}
SI int v_any_gt(vf a, vf b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
SI float v_hmax(vf a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
SI float v_hsum(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

SI vi vi_load(const int32_t *p) {
    return _mm256_loadu_si256((const void *)p);
}
SI vi vi_set1(int32_t x) {
    return _mm256_set1_epi32(x);
}
SI vi vi_add(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
SI vi vi_sub(vi a, vi b) {
    return _mm256_sub_epi32(a, b);
}
SI vi vi_mul(vi a, vi b) {
    return _mm256_mullo_epi32(a, b);
}
SI vf vi_to_f(vi a) {
    return _mm256_cvtepi32_ps(a);
}

/* s where key k lies in [lo0, hi0) or [lo1, hi1), else -inf. */
SI vf v_mask2(vf s, vi k, vi lo0, vi hi0, vi lo1, vi hi1) {
    vi a = _mm256_andnot_si256(_mm256_cmpgt_epi32(lo0, k), _mm256_cmpgt_epi32(hi0, k));
    vi b = _mm256_andnot_si256(_mm256_cmpgt_epi32(lo1, k), _mm256_cmpgt_epi32(hi1, k));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), s, _mm256_castsi256_ps(_mm256_or_si256(a, b)));
}

/* 2^x: the magic number 1.5 * 2^23 rounds x to an integer and leaves it in the low bits, which go onto the
 * exponent. The clamp would turn -inf into 2^-126 and lose NaN, so both are put right at the end. Minimax
 * polynomials for [-0.5, 0.5], degree 5 (7.5e-8) and 3 (7.5e-5). */
SI vf v_exp2_finish(vf x, vf p, vf t) {
    vf r = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    r = _mm256_and_ps(r, _mm256_cmp_ps(x, v_set1(-126.0f), _CMP_NLT_UQ));
    return _mm256_or_ps(r, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
SI vf v_exp2(vf x) {
    vf y = v_max(v_set1(-126.0f), x), t = v_add(y, v_set1(12582912.0f));
    vf f = v_sub(y, v_sub(t, v_set1(12582912.0f))), p = v_set1(0.001327647217f);
    p = v_fma(p, f, v_set1(0.009675541331f));
    p = v_fma(p, f, v_set1(0.05550713273f));
    p = v_fma(p, f, v_set1(0.2402211972f));
    p = v_fma(p, f, v_set1(0.6931469671f));
    p = v_fma(p, f, v_set1(1.000000072f));
    return v_exp2_finish(x, p, t);
}
SI vf v_exp2_short(vf x) {
    return v_exp2(x);
}

/* 8 vectors to their 8 sums: lane i is the sum of v[i]. A step joins two vectors: a blend takes the lanes
 * that stay, a shuffle brings those beside them; port 5, which alone shuffles, has half the work of
 * horizontal additions. */
SI vf v_reduce_all(const vf v[VW]) {
    vf a[4], b[2];
    UNROLL for (int i = 0; i < 4; i++) a[i] =
        v_add(_mm256_blend_ps(v[i], v[i + 4], 0xf0), _mm256_permute2f128_ps(v[i], v[i + 4], 0x21));
    UNROLL for (int i = 0; i < 2; i++) b[i] =
        v_add(_mm256_blend_ps(a[i], a[i + 2], 0xcc), _mm256_shuffle_ps(a[i], a[i + 2], 0x4e));
    return v_add(_mm256_blend_ps(b[0], b[1], 0xaa),
                 _mm256_permute_ps(_mm256_blend_ps(b[0], b[1], 0x55), 0xb1));
}

SI vi v_reduce_all_int(const vi v[VW]) {
    vi a[4], b[2];
    UNROLL for (int i = 0; i < 4; i++) a[i] =
        vi_add(_mm256_blend_epi32(v[i], v[i + 4], 0xf0), _mm256_permute2x128_si256(v[i], v[i + 4], 0x21));
    UNROLL for (int i = 0; i < 2; i++) b[i] =
        vi_add(_mm256_blend_epi32(a[i], a[i + 2], 0xcc), _mm256_alignr_epi8(a[i + 2], a[i], 8));
    return vi_add(_mm256_blend_epi32(b[0], b[1], 0xaa),
                  _mm256_shuffle_epi32(_mm256_blend_epi32(b[0], b[1], 0x55), 0xb1));
}

/* Transposes 8 x 8 words in registers. */
SI void v_transpose(vf v[VW]) {
    vf t[8], u[8];
    UNROLL for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* A stage of the Hadamard transform inside a vector: a + b and a - b of lanes i and i + half. */
#define CPU_BUTTERFLY 1
SI vf v_butterfly(vf x, const int half) {
    const vf y = half == 1   ? _mm256_permute_ps(x, 0xb1)
                 : half == 2 ? _mm256_permute_ps(x, 0x4e)
                             : _mm256_permute2f128_ps(x, x, 1);
    const vf sum = v_add(x, y), difference = v_sub(y, x);
    return half == 1   ? _mm256_blend_ps(sum, difference, 0xaa)
           : half == 2 ? _mm256_blend_ps(sum, difference, 0xcc)
                       : _mm256_blend_ps(sum, difference, 0xf0);
}
/* -x in the lanes whose bit is set. */
SI vf v_flip(vf x, uint32_t bits) {
    const vi up =
        _mm256_sllv_epi32(vi_set1((int32_t)bits), _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    return _mm256_xor_ps(x, _mm256_and_ps(_mm256_castsi256_ps(up), v_set1(-0.0f)));
}

/* Natural order from (even, odd) elements, and back. */
SI void v_zip(vf *a, vf *b) {
    vf lo = _mm256_unpacklo_ps(*a, *b), hi = _mm256_unpackhi_ps(*a, *b);
    *a = _mm256_permute2f128_ps(lo, hi, 0x20);
    *b = _mm256_permute2f128_ps(lo, hi, 0x31);
}
SI void v_unzip(vf *a, vf *b) {
    vf lo = _mm256_permute2f128_ps(*a, *b, 0x20), hi = _mm256_permute2f128_ps(*a, *b, 0x31);
    *a = _mm256_shuffle_ps(lo, hi, 0x88);
    *b = _mm256_shuffle_ps(lo, hi, 0xdd);
}

/* 16 elements as two vectors: bf16 as (even, odd), every other type as (first 8, last 8). e4m3 comes out
 * divided by 256: sign and the 7 bits moved under f16's exponent; 0x7f, the only NaN, gets all exponent
 * bits. */
SI void v_pair(enum cpu_dtype t, const char *p, vf *a, vf *b) {
    if (t == CPU_F32) {
        *a = _mm256_loadu_ps((const float *)(const void *)p);
        *b = _mm256_loadu_ps((const float *)(const void *)(p + 32));
    } else if (t == CPU_BF16) {
        vi w = _mm256_loadu_si256((const void *)p);
        *a = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
        *b = _mm256_castsi256_ps(_mm256_and_si256(w, vi_set1((int32_t)0xffff0000u)));
    } else if (t == CPU_F16) {
        *a = _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
        *b = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16)));
    } else if (t == CPU_I8) {
        *a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
        *b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8))));
    } else {
        __m128i raw = _mm_loadu_si128((const void *)p);
        vi h;
        if (t == CPU_E5M2) {
            h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(raw), 8);
        } else {
            __m128i nan = _mm_cmpeq_epi8(_mm_and_si128(raw, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
            h = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(raw), 7),
                                 _mm256_set1_epi16((short)0xbfff));
            h = _mm256_or_si256(h, _mm256_and_si256(_mm256_cvtepi8_epi16(nan), _mm256_set1_epi16(0x7e00)));
        }
        *a = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
        *b = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    }
}

/* The first n < 16 of them, zeros behind, if they are whole words of 32 bits; else 0 and nothing. */
#define CPU_TAILS 1
SI __m256i v_first_words(const char *p, int n) {
    const vi at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_epi32((const int *)(const void *)p, _mm256_cmpgt_epi32(vi_set1(n), at));
}
SI int v_pair_first(enum cpu_dtype t, const char *p, int n, vf *a, vf *b) {
    const int bytes = n * cpu_dtype_size(t);
    if (bytes % 4 != 0) return 0;
    char raw[64] __attribute__((aligned(32)));
    _mm256_store_si256((void *)raw, v_first_words(p, bytes / 4));
    _mm256_store_si256((void *)(raw + 32), v_first_words(p + 32, bytes / 4 - 8));
    v_pair(t, raw, a, b);
    return 1;
}

/* 2 * VW bytes as signed 16-bit words; two such vectors as pairs (a, b) in some order of columns that
 * v_unpair_words() undoes on the CHUNK floats at p; acc + a0 * b0 + a1 * b1 in each word pair. */
#define CPU_WORDS 1
SI vi v_words(const char *p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
}
SI vi v_words_tail(const char *p, int n) {
    __m128i raw = _mm_setzero_si128();
    memcpy(&raw, p, (size_t)n);
    return _mm256_cvtepi8_epi16(raw);
}
/* n nibbles, low ones first, minus `zero` as bytes, as far as whole vectors go; returns how many. */
SI int v_nibbles(const char *p, int n, int zero, char *out) {
    const vi minus = _mm256_set1_epi8((char)zero), mask = _mm256_set1_epi8(15);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const vi x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(p + i / 2)));
        const vi y = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi16(x, 4)), mask);
        _mm256_storeu_si256((void *)(out + i), _mm256_sub_epi8(y, minus));
    }
    return i;
}
SI void v_pair_words(vi a, vi b, vi *lo, vi *hi) {
    *lo = _mm256_unpacklo_epi16(a, b);
    *hi = _mm256_unpackhi_epi16(a, b);
}
/* The first n < 4 * VW bytes, zeros behind them; nibble j of each 16-bit word. */
SI vi v_raw_tail(const char *p, int n) {
    vi raw = _mm256_setzero_si256();
    memcpy(&raw, p, (size_t)n);
    return raw;
}
SI vi v_nibble_words(vi w, int j) {
    if (j == 3) return _mm256_srli_epi16(w, 12);
    return _mm256_and_si256(j == 0 ? w : _mm256_srli_epi16(w, 4 * j), _mm256_set1_epi16(15));
}
SI void v_unpair_words(float *p) {
    const vf a = v_load(p), b = v_load(p + 8);
    v_store(p, _mm256_permute2f128_ps(a, b, 0x20));
    v_store(p + 8, _mm256_permute2f128_ps(a, b, 0x31));
}
SI vi v_dot_words(vi acc, vi a, vi b, int vnni) {
    if (!vnni) return vi_add(acc, _mm256_madd_epi16(a, b));
    __asm__("%{vex%} vpdpwssd %2, %1, %0"
            : "+x"(acc)
            : "x"(a), "x"(b)); /* this object is compiled without its flag */
    return acc;
}
SI void v_store_words(int16_t *p, vf x) {
    const vi w = _mm256_cvtps_epi32(x);
    _mm_storeu_si128((void *)p, _mm_packs_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

/* VW codes of 4 or 3 bits at p, with rubbish above them (3 bits: reads a byte behind them); what they stand
 * for in a table of 16, which for 3 bits holds its 8 entries twice. */
#define CPU_CODES 1
SI vi v_codes(const char *p, int bits) {
    const vi four = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28),
             three = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    int32_t all;
    memcpy(&all, p, sizeof all);
    return _mm256_srlv_epi32(vi_set1(all), bits == 4 ? four : three);
}
SI void v_table(const float table[16], vf out[16 / VW]) {
    out[0] = v_load(table);
    out[1] = v_load(table + 8);
}
SI vf v_lookup(const vf table[16 / VW], vi codes) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table[0], codes),
                            _mm256_permutevar8x32_ps(table[1], codes),
                            _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
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
    v_store(p + 8, b);
}

/* 8 floats to f16 or bf16, nearest even, NaN kept. */
SI void v_store16(enum cpu_dtype t, uint16_t *p, vf a) {
    if (t == CPU_F16) {
        _mm_storeu_si128((void *)p, _mm256_cvtps_ph(a, 0));
        return;
    }
    vi u = _mm256_castps_si256(a);
    vi r = vi_add(u, vi_add(vi_set1(0x7fff), _mm256_and_si256(_mm256_srli_epi32(u, 16), vi_set1(1))));
    vi nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, vi_set1(0x400000)), nan);
    r = _mm256_srli_epi32(r, 16);
    _mm_storeu_si128((void *)p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}
/* The first n < VW floats at x, if they are a pair or two or three of them; else 0 and nothing. */
SI int v_store16_first(enum cpu_dtype t, uint16_t *p, const float *x, int n) {
    if (n % 2 != 0) return 0;
    uint32_t out[4];
    v_store16(t, (uint16_t *)(void *)out, _mm256_castsi256_ps(v_first_words((const char *)x, n)));
    for (int i = 0; i < n / 2; i++)
        memcpy(p + 2 * i, out + i, 4);
    return 1;
}

SI void v_prefetch(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}
SI void v_prefetch_l2(const char *p) {
    _mm_prefetch(p, _MM_HINT_T1);
}
