/* SPDX-License-Identifier: Apache-2.0 */
/* 64 e4m3 values to bf16 for AMX tiles, by byte look-ups (AVX512_VBMI): included by cpu_level.c, level
 * avx512bf16.
 *
 * Values come out divided by 2^117, which puts the smallest subnormal at bf16's smallest exponent. Zero then
 * needs no exception, and the two bytes of a value are looked up in 64 entries each; true exponents need
 * tables of 128, a look-up that costs this kind of CPU three times as much. NaN is outside the tables: it is
 * looked for meanwhile. */
#ifndef CPU_SIMD_E4M3_H
#define CPU_SIMD_E4M3_H

enum { E4M3_SCALE = 117 };

/* By bits 6 to 1 of a value: the high byte of its bf16, without sign. */
static const uint8_t e4m3_high64[64] = {
#define EIGHT(x) x, x, x, x, x, x, x, x
    0, 1, 1, 1, EIGHT(2), EIGHT(3), EIGHT(4), EIGHT(5), EIGHT(6), EIGHT(7), EIGHT(8), 9, 9, 9, 9,
#undef EIGHT
};
/* By bits 5 to 0, with bit 6 joined to bit 5 to tell subnormals: the low byte. */
static const uint8_t e4m3_low64[64] = {
#define EVEN 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70
#define ODD  0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0
    0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0, EVEN, ODD, EVEN, ODD, EVEN, ODD, EVEN,
#undef EVEN
#undef ODD
};
SI vi v_lookup64(vi at, const uint8_t table[64]) {
    vi out;
    __asm__("vpermb %1, %2, %0"
            : "=v"(out)
            : "v"(_mm512_loadu_si512(table)), "v"(at)); /* this object is compiled without its flag */
    return out;
}
/* out[0] has the first 8 of each 16 values and out[1] the others. */
SI void v_e4m3_halves(vi x, vi out[2]) {
    const vi half = _mm512_srli_epi16(x, 1), sign = _mm512_set1_epi8((char)0x80);
    const vi at = _mm512_ternarylogic_epi32(x, half, _mm512_set1_epi8(0x20), 0xf8); /* x | (half & 0x20) */
    const vi low = v_lookup64(at, e4m3_low64);
    const vi high = _mm512_ternarylogic_epi32(v_lookup64(half, e4m3_high64), x, sign, 0xf8);
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}

/* The largest values so far, as signed and as unsigned bytes: NaN is 0x7f, the largest of the former, and
 * 0xff. */
struct e4m3_top {
    vi positive, negative;
};
SI void e4m3_track(struct e4m3_top *top, vi x) {
    top->positive = _mm512_max_epi8(top->positive, x);
    top->negative = _mm512_max_epu8(top->negative, x);
}
SI int e4m3_has_nan(const struct e4m3_top *top) {
    return (_mm512_cmpeq_epi8_mask(top->positive, _mm512_set1_epi8(0x7f)) |
            _mm512_cmpeq_epi8_mask(top->negative, _mm512_set1_epi8(-1))) != 0;
}

#endif
