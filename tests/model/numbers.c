/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of fewer bits than float32, and conversions between them: to nearest, ties to even,
 * unless the name says else. */
#include "model.h"

/* A number of one sign, `exponent` and `mantissa` bits, where the bias is 2^(exponent - 1) - 1. */
static double small_value(uint32_t x, int exponent, int mantissa) {
    const int bias = (1 << (exponent - 1)) - 1, e = (int)(x >> mantissa) & ((1 << exponent) - 1);
    const double m = (double)(x & ((1u << mantissa) - 1)) / (double)(1u << mantissa);
    const double size = e == 0 ? ldexp(m, 1 - bias) : ldexp(1 + m, e - bias);
    return x >> (exponent + mantissa) & 1 ? -size : size;
}
/* The code of |x| as a count of steps of the smallest number of its binade; may exceed what there is. */
static uint32_t small_of(double size, int exponent, int mantissa) {
    const int bias = (1 << (exponent - 1)) - 1;
    int e = 0;
    frexp(size, &e); /* size in [2^(e-1), 2^e) */
    e = e - 1 < 1 - bias || size == 0 ? 1 - bias : e - 1;
    const double steps = nearbyint(ldexp(size, mantissa - e)); /* 2^mantissa to 2^(mantissa + 1), or less */
    return (uint32_t)steps + ((uint32_t)(e - (1 - bias)) << mantissa);
}

float f16_value(uint16_t x) {
    static float table[65536];
    static int filled;
    if (!filled) {
        for (uint32_t i = 0; i < 65536; i++)
            table[i] = (i & 0x7c00) != 0x7c00 ? (float)small_value(i, 5, 10)
                       : (i & 1023) != 0      ? as_float((i >> 15) << 31 | 0x7fc00000)
                                              : as_float((i >> 15) << 31 | 0x7f800000);
        filled = 1;
    }
    return table[x];
}
uint16_t f16_of(double x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7fff;
    const double size = fabs(x);
    if (size >= 65520) return sign | 0x7c00;
    return (uint16_t)(sign | small_of(size, 5, 10));
}
uint16_t bf16_of(float x) {
    const uint32_t u = as_bits(x);
    if (x != x) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float e4m3_value(uint8_t x) {
    return (x & 127) == 127 ? NAN : (float)small_value(x, 4, 3);
}
uint8_t e4m3_of(float x) { /* saturates */
    const uint8_t sign = signbit(x) ? 128 : 0;
    if (x != x) return 0x7f;
    const double size = fabs((double)x);
    const uint32_t code = size >= 448 ? 0x7e : small_of(size, 4, 3);
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}
float e5m2_value(uint8_t x) {
    return f16_value((uint16_t)(x << 8));
}
static uint8_t e5m2_of(float x) { /* saturates */
    const uint8_t sign = signbit(x) ? 128 : 0;
    if (x != x) return 0x7f;
    const double size = fabs((double)x);
    const uint32_t code = size >= 57344 ? 0x7b : small_of(size, 5, 2);
    return (uint8_t)(sign | (code > 0x7b ? 0x7b : code));
}

uint64_t lane_value(const warp_t *w, const operand_t *o, int lane) {
    const uint32_t *at = w->regs + o->at;
    return o->width == 4   ? at[lane]
           : o->width == 8 ? ((const uint64_t *)at)[lane]
           : o->width == 2 ? ((const uint16_t *)at)[lane]
                           : (uint64_t)IS_SET(*at, lane);
}
void lane_set(warp_t *w, const operand_t *o, int lane, uint64_t x) {
    uint32_t *at = w->regs + o->at;
    if (o->width == 4)
        at[lane] = (uint32_t)x;
    else if (o->width == 8)
        ((uint64_t *)at)[lane] = x;
    else
        ((uint16_t *)at)[lane] = (uint16_t)x;
}

/* cvt between integers: variant is the result's bytes times 32, plus 16, plus the source's, negative
 * where that is signed. */
static void integers(warp_t *w, const op_t *op, uint32_t mask) {
    const int from = op->variant % 32 - 16, bits = 8 * abs(from), to = 8 * (op->variant / 32);
    EACH(uint64_t x = lane_value(w, &op->o[1], l);
         if (bits < 64) x =
             from < 0 ? (uint64_t)((int64_t)(x << (64 - bits)) >> (64 - bits)) : x & ((1ull << bits) - 1);
         if (to < 64) x =
             from < 0 ? (uint64_t)((int64_t)(x << (64 - to)) >> (64 - to)) : x & ((1ull << to) - 1);
         lane_set(w, &op->o[0], l, x));
}
/* Out of range: the nearest there is; NaN: 0. variant: 0 to nearest, 1 towards zero, 2 down, 3 up; 8:
 * unsigned */
static void to_integer(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(const float f = as_float((uint32_t)lane_value(w, &op->o[1], l)); const int how = op->variant & 7;
         double x = how == 0   ? nearbyint(f)
                    : how == 1 ? trunc(f)
                    : how == 2 ? floor(f)
                               : ceil(f);
         if (f != f) x = 0; lane_set(w, &op->o[0], l,
                                     op->variant & 8 ? (uint32_t)(x < 0             ? 0
                                                                  : x > 4294967295. ? 4294967295.
                                                                                    : x)
                                                     : (uint64_t)(int64_t)(x < -2147483648.  ? -2147483648.
                                                                           : x > 2147483647. ? 2147483647.
                                                                                             : x)));
}
static void whole(warp_t *w, const op_t *op, uint32_t mask) {
    float *d = REG(float, 0);
    const float *a = REG(float, 1);
    EACH(d[l] = op->variant == 0   ? nearbyintf(a[l])
                : op->variant == 1 ? truncf(a[l])
                : op->variant == 2 ? floorf(a[l])
                                   : ceilf(a[l]));
}
/* variant: the source's bytes, negative where it is signed */
static void from_integer(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(const uint64_t x = lane_value(w, &op->o[1], l); float f = 0; switch (op->variant) {
        case -1:
            f = (float)(int8_t)x;
            break;
        case 1:
            f = (float)(uint8_t)x;
            break;
        case -2:
            f = (float)(int16_t)x;
            break;
        case 2:
            f = (float)(uint16_t)x;
            break;
        case -4:
            f = (float)(int32_t)x;
            break;
        case 4:
            f = (float)(uint32_t)x;
            break;
        case -8:
            f = (float)(int64_t)x;
            break;
        default:
            f = (float)x;
    } lane_set(w, &op->o[0], l, as_bits(f)));
}
static void double_of_integer(warp_t *w, const op_t *op, uint32_t mask) {
    double *d = REG(double, 0);
    const int32_t *a = REG(int32_t, 1);
    EACH(d[l] = a[l]);
}
static void saturate(warp_t *w, const op_t *op, uint32_t mask) {
    float *d = REG(float, 0);
    const float *a = REG(float, 1);
    EACH(d[l] = a[l] > 0 ? a[l] < 1 ? a[l] : 1 : 0);
}
static void double_of(warp_t *w, const op_t *op, uint32_t mask) {
    double *d = REG(double, 0);
    const float *a = REG(float, 1);
    EACH(d[l] = a[l]);
}
static void float_of(warp_t *w, const op_t *op, uint32_t mask) {
    float *d = REG(float, 0);
    const double *a = REG(double, 1);
    EACH(d[l] = (float)a[l]);
}
static void float_of_f16(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(lane_set(w, &op->o[0], l, as_bits(f16_value((uint16_t)lane_value(w, &op->o[1], l)))));
}
static void float_of_bf16(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(lane_set(w, &op->o[0], l, (uint32_t)lane_value(w, &op->o[1], l) << 16));
}
enum { F16, BF16, E4M3, E5M2 };
static uint32_t code_of(int type, float x) {
    return type == F16 ? f16_of(x) : type == BF16 ? bf16_of(x) : type == E4M3 ? e4m3_of(x) : e5m2_of(x);
}
static void narrow(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(lane_set(w, &op->o[0], l, code_of(op->variant, as_float((uint32_t)lane_value(w, &op->o[1], l)))));
}
static void narrow_double(warp_t *w, const op_t *op, uint32_t mask) {
    const double *a = REG(double, 1);
    EACH(uint32_t x = f16_of(a[l]); if (op->variant == BF16) {
        const uint32_t size = isfinite(a[l]) ? small_of(fabs(a[l]), 8, 7) : 0x7f80;
        x = a[l] != a[l] ? 0x7fff : (signbit(a[l]) ? 0x8000u : 0) | (size < 0x7f80 ? size : 0x7f80);
    } lane_set(w, &op->o[0], l, x));
}
/* the first operand becomes the upper half */
static void narrow_two(warp_t *w, const op_t *op, uint32_t mask) {
    const int bits = op->variant < E4M3 ? 16 : 8;
    EACH(const uint32_t high = code_of(op->variant, as_float((uint32_t)lane_value(w, &op->o[1], l)));
         const uint32_t low = code_of(op->variant, as_float((uint32_t)lane_value(w, &op->o[2], l)));
         lane_set(w, &op->o[0], l, high << bits | low));
}
static void halves_of_bytes(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(const uint32_t x = (uint32_t)lane_value(w, &op->o[1], l); uint32_t r = 0;
         for (int i = 0; i < 2; i++) {
             const uint8_t byte = (uint8_t)(x >> 8 * i);
             r |= (uint32_t)f16_of(op->variant == E4M3 ? e4m3_value(byte) : e5m2_value(byte)) << 16 * i;
         } lane_set(w, &op->o[0], l, r));
}

const op_name_t model_convert_ops[] = {{"cvt.rn.f32.s8", from_integer, 0, -1},
                                       {"cvt.rn.f32.u8", from_integer, 0, 1},
                                       {"cvt.rn.f32.s16", from_integer, 0, -2},
                                       {"cvt.rn.f32.u16", from_integer, 0, 2},
                                       {"cvt.rn.f32.s32", from_integer, 0, -4},
                                       {"cvt.rn.f32.u32", from_integer, 0, 4},
                                       {"cvt.rn.f32.s64", from_integer, 0, -8},
                                       {"cvt.rn.f32.u64", from_integer, 0, 8},
                                       {"cvt.rni.s32.f32", to_integer, 0, 0},
                                       {"cvt.rzi.s32.f32", to_integer, 0, 1},
                                       {"cvt.rmi.s32.f32", to_integer, 0, 2},
                                       {"cvt.rpi.s32.f32", to_integer, 0, 3},
                                       {"cvt.rni.u32.f32", to_integer, 0, 8},
                                       {"cvt.rzi.u32.f32", to_integer, 0, 9},
                                       {"cvt.rni.f32.f32", whole, 0, 0},
                                       {"cvt.rzi.f32.f32", whole, 0, 1},
                                       {"cvt.rmi.f32.f32", whole, 0, 2},
                                       {"cvt.rpi.f32.f32", whole, 0, 3},
                                       {"cvt.sat.f32.f32", saturate, 0, 0},
                                       {"cvt.f64.f32", double_of, 0, 0},
                                       {"cvt.rn.f32.f64", float_of, 0, 0},
                                       {"cvt.rn.f64.s32", double_of_integer, 0, 0},
                                       {"cvt.rn.f16.f64", narrow_double, 0, F16},
                                       {"cvt.rn.bf16.f64", narrow_double, 0, BF16},
                                       {"cvt.f32.f16", float_of_f16, 0, 0},
                                       {"cvt.f32.bf16", float_of_bf16, 0, 0},
                                       {"cvt.rn.f16.f32", narrow, 0, F16},
                                       {"cvt.rn.bf16.f32", narrow, 0, BF16},
                                       {"cvt.rn.f16x2.f32", narrow_two, 0, F16},
                                       {"cvt.rn.bf16x2.f32", narrow_two, 0, BF16},
                                       {"cvt.rn.satfinite.e4m3x2.f32", narrow_two, 0, E4M3},
                                       {"cvt.rn.satfinite.e5m2x2.f32", narrow_two, 0, E5M2},
                                       {"cvt.rn.f16x2.e4m3x2", halves_of_bytes, 0, E4M3},
                                       {"cvt.rn.f16x2.e5m2x2", halves_of_bytes, 0, E5M2},
                                       {NULL, NULL, 0, 0}};

/* cvt of integers by the name's two types. */
int model_find_cvt(const char *name, op_t *op) {
    char to, from;
    int to_bits, from_bits, end = 0;
    if (sscanf(name, "cvt.%c%d.%c%d%n", &to, &to_bits, &from, &from_bits, &end) != 4 || name[end] != '\0')
        return 0;
    if ((to != 's' && to != 'u') || (from != 's' && from != 'u')) return 0;
    op->run = integers;
    op->variant = 32 * (to_bits / 8) + 16 + (from == 's' ? -1 : 1) * (from_bits / 8);
    return 1;
}
