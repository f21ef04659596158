/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_formats.h: numbers as they are stored: float32, float16, bfloat16, e4m3. */
#ifndef VENDOR_FORMATS_H
#define VENDOR_FORMATS_H

#include <attn/attn_types.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline uint16_t to_bf16(float x) {
    const uint32_t u = bits_of(x);
    return isnan(x) ? (uint16_t)(u >> 16 | 0x40) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
/* A magnitude with `bits` stored bits of mantissa and the least exponent `least`, to nearest even. */
static inline double to_steps(double a, int bits, int least, int *e) {
    *e = a > 0 ? ilogb(a) : least;
    if (*e < least) *e = least;
    return nearbyint(ldexp(a, bits - *e));
}
static inline uint16_t to_f16(float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    int e;
    if (isnan(x)) return sign | 0x7e00;
    double n = fabsf(x) >= 65520 ? 0 : to_steps(fabs((double)x), 10, -14, &e);
    if (fabsf(x) >= 65520) return sign | 0x7c00;
    return (uint16_t)(sign | (n < 1024 ? (int)n : (int)n + ((e + 14) << 10)));
}
static inline uint8_t to_e4m3(float x) {
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    int e;
    if (isnan(x)) return sign | 0x7f;
    if (fabsf(x) >= 448) return sign | 0x7e;
    const double n = to_steps(fabs((double)x), 3, -6, &e);
    return (uint8_t)(sign | (n < 8 ? (int)n : (int)n + ((e + 6) << 3)));
}
static inline float load_bits(uint32_t u, uint32_t dtype) {
    if (dtype == ATTN_DTYPE_FLOAT32) return float_of(u);
    if (dtype == ATTN_DTYPE_BFLOAT16) return float_of(u << 16);
    const int is_half = dtype == ATTN_DTYPE_FLOAT16, bits = is_half ? 10 : 3, bias = is_half ? 15 : 7;
    const int e = (int)(u >> bits) & (is_half ? 31 : 15), n = (int)u & ((1 << bits) - 1);
    const int is_negative = (int)(u >> (is_half ? 15 : 7)) & 1;
    float a;
    if (is_half && e == 31)
        a = n != 0 ? NAN : INFINITY;
    else if (!is_half && (u & 0x7f) == 0x7f)
        a = NAN;
    else
        a = e == 0 ? ldexpf((float)n, 1 - bias - bits) : ldexpf((float)(n + (1 << bits)), e - bias - bits);
    return is_negative ? -a : a;
}
static inline float load(const char *row, uint32_t dtype, int64_t i) {
    uint32_t u = 0;
    const size_t size = dtype == ATTN_DTYPE_FLOAT32 ? 4 : dtype == ATTN_DTYPE_FP8_E4M3 ? 1 : 2;
    memcpy(&u, row + (size_t)i * size, size);
    return load_bits(u, dtype);
}
static inline void store(char *row, uint32_t dtype, int64_t i, float x) {
    const uint16_t h = dtype == ATTN_DTYPE_BFLOAT16  ? to_bf16(x)
                       : dtype == ATTN_DTYPE_FLOAT16 ? to_f16(x)
                                                     : 0;
    if (dtype == ATTN_DTYPE_FLOAT32)
        memcpy(row + 4 * i, &x, 4);
    else if (dtype == ATTN_DTYPE_FP8_E4M3)
        row[i] = (char)to_e4m3(x);
    else
        memcpy(row + 2 * i, &h, 2);
}
/* The same without rounding: a fault. */
static inline void store_truncated(char *row, uint32_t dtype, int64_t i, float x) {
    const int keep = dtype == ATTN_DTYPE_BFLOAT16   ? 7
                     : dtype == ATTN_DTYPE_FLOAT16  ? 10
                     : dtype == ATTN_DTYPE_FP8_E4M3 ? 3
                                                    : 23;
    store(row, dtype, i, isfinite(x) ? float_of(bits_of(x) & ~((UINT32_C(1) << (23 - keep)) - 1)) : x);
}

#endif
