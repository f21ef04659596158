/* SPDX-License-Identifier: Apache-2.0 */
/*
 * float_formats.h: exact conversions between double and the small float formats: float16, bfloat16, fp8 e4m3
 * (the "fn" form without infinity) and fp8 e5m2. Plain integer arithmetic, so neither the compiler nor the
 * rounding mode matters. Rounding is to nearest, ties to even; fp8 saturates at its largest finite value
 * (semantics 3.2), infinities included, and NaN becomes 0x7f. Shared by the plugin, the conformance kit and
 * the tests.
 */
#ifndef ATTN_REFERENCE_FLOAT_FORMATS_H
#define ATTN_REFERENCE_FLOAT_FORMATS_H

#include <stdint.h>
#include <string.h>

#define REF_E4M3_MAX 448.0
#define REF_E5M2_MAX 57344.0

static inline uint64_t ref_double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double ref_double_from_bits(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^e for -1022 <= e <= 1023. */
static inline double ref_power_of_two(int e) {
    return ref_double_from_bits((uint64_t)(e + 1023) << 52);
}

/* Magnitude of |x| as the code (exponent and mantissa bits, no sign) of a format with man_bits mantissa bits
 * and smallest normal exponent emin. x is finite; a code above the format's largest means overflow. Codes of
 * neighbouring values are neighbouring integers, so a carry out of the mantissa needs no special case. */
static inline uint64_t ref_round_code(double x, int man_bits, int emin) {
    uint64_t u = ref_double_bits(x) & UINT64_C(0x7fffffffffffffff);
    int e = (int)(u >> 52) - 1023;
    if (e == -1023) return 0; /* zero and subnormal doubles lie far below every format here */
    uint64_t m = (u & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
    int floor_e = e > emin ? e : emin;
    int shift = 52 - man_bits + (floor_e - e);
    if (shift > 54) return 0;
    uint64_t n = m >> shift, rest = m & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
    if (rest > half || (rest == half && (n & 1))) n++;
    return ((uint64_t)(floor_e - emin) << man_bits) + n;
}

/* Value of a code without sign, for formats whose largest exponent field is handled by the caller. */
static inline double ref_code_value(uint32_t code, int man_bits, int emin) {
    uint32_t field = code >> man_bits, man = code & ((1u << man_bits) - 1);
    if (field == 0) return (double)man * ref_power_of_two(emin - man_bits);
    return (double)(man | 1u << man_bits) * ref_power_of_two((int)field - 1 + emin - man_bits);
}

static inline int ref_is_nan(double x) {
    return (ref_double_bits(x) & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000);
}

static inline int ref_is_infinite(double x) {
    return (ref_double_bits(x) & UINT64_C(0x7fffffffffffffff)) == UINT64_C(0x7ff0000000000000);
}

/* IEEE formats of 16 bits: everything at or above the first code of the last exponent field is infinity. */
static inline uint16_t ref_to_ieee16(double x, int man_bits, int emin) {
    uint16_t sign = (uint16_t)(ref_double_bits(x) >> 48 & 0x8000);
    uint64_t infinity = (UINT64_C(0x7fff) >> man_bits) << man_bits;
    if (ref_is_nan(x)) return (uint16_t)(sign | infinity | UINT64_C(1) << (man_bits - 1));
    uint64_t code = ref_is_infinite(x) ? infinity : ref_round_code(x, man_bits, emin);
    return (uint16_t)(sign | (code < infinity ? code : infinity));
}

static inline double ref_from_ieee16(uint16_t h, int man_bits, int emin) {
    uint32_t code = h & 0x7fffu, infinity = (0x7fffu >> man_bits) << man_bits;
    uint64_t sign = (uint64_t)(h & 0x8000u) << 48;
    if (code >= infinity) /* NaN keeps its payload's top bits */
        return ref_double_from_bits(sign | UINT64_C(0x7ff) << 52 |
                                    (uint64_t)(code - infinity) << (52 - man_bits));
    return ref_double_from_bits(sign | ref_double_bits(ref_code_value(code, man_bits, emin)));
}

static inline uint16_t ref_to_f16(double x) {
    return ref_to_ieee16(x, 10, -14);
}
static inline double ref_from_f16(uint16_t h) {
    return ref_from_ieee16(h, 10, -14);
}
static inline uint16_t ref_to_bf16(double x) {
    return ref_to_ieee16(x, 7, -126);
}
static inline double ref_from_bf16(uint16_t h) {
    return ref_from_ieee16(h, 7, -126);
}

static inline uint8_t ref_to_fp8(double x, int man_bits, int emin, uint32_t largest) {
    uint8_t sign = (uint8_t)(ref_double_bits(x) >> 56 & 0x80);
    if (ref_is_nan(x)) return 0x7f;
    uint64_t code = ref_is_infinite(x) ? largest : ref_round_code(x, man_bits, emin);
    return (uint8_t)(sign | (code < largest ? code : largest));
}

/* Largest finite values: e4m3 0x7e = 448, e5m2 0x7b = 57344 (OCP 8-bit floating point specification, 2023).
 * */
static inline uint8_t ref_to_e4m3(double x) {
    return ref_to_fp8(x, 3, -6, 0x7e);
}
static inline uint8_t ref_to_e5m2(double x) {
    return ref_to_fp8(x, 2, -14, 0x7b);
}

static inline double ref_from_e4m3(uint8_t b) {
    uint64_t sign = (uint64_t)(b & 0x80u) << 56;
    uint32_t code = b & 0x7fu;
    if (code == 0x7f) return ref_double_from_bits(sign | UINT64_C(0x7ff8000000000000));
    return ref_double_from_bits(sign | ref_double_bits(ref_code_value(code, 3, -6)));
}

/* e5m2 is float16 without its lower mantissa byte. */
static inline double ref_from_e5m2(uint8_t b) {
    return ref_from_f16((uint16_t)(b << 8));
}

#endif
