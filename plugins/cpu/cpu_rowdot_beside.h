/* SPDX-License-Identifier: Apache-2.0 */
/* Of packed rows (cpu_rowdot_codes.h, which includes this): codes of 3 bits as nibbles, and what lies beside
 * codes, as the products take it. */

/* 128 codes (n of them there are) of 3 bits as nibbles. With VBMI of the six bytes of 16 codes any 8 bits are
 * at hand: once with an even code in the lower half, once with an odd one in the upper. Without it bits are
 * moved apart by halves. */
SI vi rd_codes_three(const char *p, int n, int vbmi) {
    const __mmask64 there = n >= 128 ? 0xffffffffffffull : (1ull << n / 8 * 3) - 1;
    if (vbmi) {
        static const uint8_t sixes[64] = {
#define SIX(i) i, i + 1, i + 2, i + 3, i + 4, i + 5, 63, 63
            SIX(0), SIX(6), SIX(12), SIX(18), SIX(24), SIX(30), SIX(36), SIX(42)};
#undef SIX
        const vi evens = _mm512_set1_epi64(0x2a241e18120c0600), odds = _mm512_set1_epi64(0x29231d17110b053f);
        vi codes, low, high;
        const vi raw = _mm512_maskz_loadu_epi8(there, p);
        /* compiled without their flag */
        __asm__("vpermb %1, %2, %0" : "=v"(codes) : "v"(raw), "v"(_mm512_loadu_si512(sixes)));
        __asm__("vpmultishiftqb %1, %2, %0" : "=v"(low) : "v"(codes), "v"(evens));
        __asm__("vpmultishiftqb %1, %2, %0" : "=v"(high) : "v"(codes), "v"(odds));
        low = _mm512_ternarylogic_epi32(vi_set1(0x0f0f0f0f), low, high, 0xca);
        return _mm512_and_si512(low, vi_set1(0x77777777));
    }
    const vi lanes = _mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
    const vi threes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    vi x = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, _mm512_maskz_loadu_epi8(there, p)), threes);
    x = _mm512_ternarylogic_epi32(vi_set1((int32_t)0xffff0000u), _mm512_slli_epi32(x, 4), x, 0xca);
    x = _mm512_ternarylogic_epi32(vi_set1((int32_t)0xff00ff00u), _mm512_slli_epi32(x, 2), x, 0xca);
    x = _mm512_ternarylogic_epi32(vi_set1((int32_t)0xf0f0f0f0u), _mm512_slli_epi32(x, 1), x, 0xca);
    return _mm512_and_si512(x, vi_set1(0x77777777));
}
/* n rows of `size` such codes to rows of nibbles, [RD_TB][size, up to RD_CODES]. */
SI void rd_codes_spread_(const char *const *rows, int64_t off, int n, int size, char *out, int ld,
                         const int vbmi) {
    for (int t = 0; t < n; t++)
        for (int d = 0; d < size; d += RD_CODES)
            _mm512_storeu_si512(out + t * ld + d / 2,
                                rd_codes_three(rows[t] + off + d / 8 * 3, size - d, vbmi));
}
static __attribute__((noinline)) void rd_codes_spread(const struct rd_state *st, const char *const *rows,
                                                      int64_t off, int n, int size, char *out, int ld) {
    if (st->vbmi)
        rd_codes_spread_(rows, off, n, size, out, ld, 1);
    else
        rd_codes_spread_(rows, off, n, size, out, ld, 0);
}

/* Group scales of n keys, 8 bytes from `at` (4 where `bytes` is 4); 1 if one of them is NaN. */
SI int rd_codes_groups(const char *const *p, int64_t at, int n, int bytes, uint64_t out[RD_TB]) {
    const vi low = _mm512_set1_epi8(0x7f);
    __mmask64 nan = 0;
    const vi eights = _mm512_setr_epi64(0, 8, 16, 24, 32, 40, 48, 56);
    for (int t = 0; t < n; t += 8) {
        const vi together = _mm512_add_epi64(_mm512_set1_epi64((int64_t)(intptr_t)p[t]), eights);
        if (bytes >= 8 && _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(p + t), together) == 0xff)
            _mm512_storeu_si512(out + t, _mm512_loadu_si512(p[t] + at));
        else
            for (int i = t; i < t + 8; i++) {
                out[i] = 0;
                memcpy(out + i, p[i] + at, bytes >= 8 ? 8 : 4);
            }
        nan |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(_mm512_loadu_si512(out + t), low), low);
    }
    return nan != 0;
}

/* Pairs of e4m3, each below the sign of 16 bits, as floats divided by 256: the first ones and, two groups on,
 * the second ones. */
SI void rd_codes_put(vi pairs, float *out) {
    const vi apart = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26,
                                      24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const vi h = _mm512_permutexvar_epi16(apart, _mm512_and_si512(pairs, _mm512_set1_epi16((short)0xbf80)));
    v_store(out, _mm512_cvtph_ps(_mm512_castsi512_si256(h)));
    v_store(out + 2 * RD_TB, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
}
/* Scales of K's groups, divided by 256, [group][RD_TB]. */
static void rd_codes_k_groups(const struct rd_state *st, const char *const *p, int64_t at, int n, int num) {
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (int g = 0; g < num; g += 8) {
        uint64_t raw[RD_TB];
        const int nan = rd_codes_groups(p, at + g, n, num - g, raw);
        float *out = st->group_k + g * RD_TB;
        for (int t = 0; t < n; t += VW) {
            const vi a = _mm512_loadu_si512(raw + t), b = _mm512_loadu_si512(raw + t + 8);
            const vi four[2] = {_mm512_permutex2var_epi32(a, even, b),
                                _mm512_permutex2var_epi32(a, vi_add(even, vi_set1(1)), b)};
            UNROLL for (int i = 0; i < 2; i++) {
                const vi low = _mm512_slli_epi16(four[i], 8);
                rd_codes_put(_mm512_srai_epi16(low, 1), out + 4 * i * RD_TB + t);
                rd_codes_put(_mm512_srai_epi16(four[i], 1), out + (4 * i + 1) * RD_TB + t);
            }
        }
        for (int i = 0; nan && i < 8 * n; i++)
            if ((raw[i / 8] >> i % 8 * 8 & 0x7f) == 0x7f) out[i % 8 * RD_TB + i / 8] = NAN;
    }
}
/* Those of V's, divided by 256, [8 groups][RD_TB][16]: in quarter i groups 2 i, 2 i + 1 and again. Returns
 * whether one is NaN. */
static int rd_codes_v_groups(const struct rd_state *st, const char *const *p, int64_t at, int n, int num) {
    const __m256i order = _mm256_setr_epi8(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9, 8, 9, 10, 11,
                                           10, 11, 12, 13, 12, 13, 14, 15, 14, 15);
    int any = 0;
    for (int g = 0; g < num; g += 8) {
        uint64_t raw[RD_TB];
        const int nan = rd_codes_groups(p, at + g, n, num - g, raw);
        float *out = st->group_v + g / 8 * RD_TB * VW;
        for (int t = 0; t < n; t += 2) {
            const __m256i two = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(raw + t)));
            const vi h =
                _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_shuffle_epi8(two, order)), 7),
                                 _mm512_set1_epi16((short)0xbfff));
            v_store(out + t * VW, _mm512_cvtph_ps(_mm512_castsi512_si256(h)));
            v_store(out + t * VW + VW, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
        }
        for (int i = 0; nan && i < VW * n; i++)
            if ((raw[i / VW] >> (i % VW / 4 * 2 + i % 2) * 8 & 0x7f) == 0x7f) out[i] = NAN;
        any |= nan;
    }
    return any;
}

/* Two float16 of n keys' rows, `at` bytes from where the pointers show; b NULL: one. */
SI void rd_codes_halves(const char *const *p, int64_t at, int n, float *a, float *b) {
    for (int t = 0; t < n; t += VW) {
        int32_t raw[VW];
        UNROLL for (int i = 0; i < VW; i++) {
            if (b) {
                memcpy(&raw[i], p[t + i] + at, 4);
            } else {
                uint16_t h;
                memcpy(&h, p[t + i] + at, 2);
                raw[i] = h;
            }
        }
        const vi x = vi_load(raw);
        v_store(a + t, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)));
        if (b) v_store(b + t, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16))));
    }
}
