/* SPDX-License-Identifier: Apache-2.0 */
/* Integers and bits. */
#include "model.h"

#define BINARY(name, T, expression)                                                                          \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        T *d = REG(T, 0);                                                                                    \
        const T *pa = REG(T, 1), *pb = REG(T, 2);                                                            \
        EACH(const T a = pa[l]; const T b = pb[l]; d[l] = (T)(expression));                                  \
    }
#define SHIFT(name, T, expression)                                                                           \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        T *d = REG(T, 0);                                                                                    \
        const T *pa = REG(T, 1);                                                                             \
        const uint32_t *pb = REG(uint32_t, 2);                                                               \
        EACH(const T a = pa[l]; const uint32_t b = pb[l]; d[l] = (T)(expression));                           \
    }
#define UNARY(name, T, expression)                                                                           \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        T *d = REG(T, 0);                                                                                    \
        const T *pa = REG(T, 1);                                                                             \
        EACH(const T a = pa[l]; d[l] = (T)(expression));                                                     \
    }
#define WIDE(name, FROM, TO)                                                                                 \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        TO *d = REG(TO, 0);                                                                                  \
        const FROM *a = REG(FROM, 1), *b = REG(FROM, 2);                                                     \
        EACH(d[l] = (TO)((TO)a[l] * (TO)b[l]));                                                              \
    }
#define TERNARY(name, T, expression)                                                                         \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        T *d = REG(T, 0);                                                                                    \
        const T *pa = REG(T, 1), *pb = REG(T, 2), *pc = REG(T, 3);                                           \
        EACH(const T a = pa[l]; const T b = pb[l]; const T c = pc[l]; d[l] = (T)(expression));               \
    }

BINARY(add16, uint16_t, a + b)
BINARY(add32, uint32_t, a + b)
BINARY(add64, uint64_t, a + b)
BINARY(sub16, uint16_t, a - b)
BINARY(sub32, uint32_t, a - b)
BINARY(sub64, uint64_t, a - b)
BINARY(mul16, uint16_t, (uint32_t)a *b)
BINARY(mul32, uint32_t, a *b)
BINARY(mul64, uint64_t, a *b)
BINARY(hi_s32, int32_t, (int64_t)a *(int64_t)b >> 32)
BINARY(hi_u32, uint32_t, (uint64_t)a *b >> 32)
BINARY(hi_u64, uint64_t, (unsigned __int128)a *b >> 64)
BINARY(hi_s64, int64_t, (__int128)a *b >> 64)
WIDE(wide_s32, int32_t, int64_t)
WIDE(wide_u32, uint32_t, uint64_t)
WIDE(wide_s16, int16_t, int32_t)
WIDE(wide_u16, uint16_t, uint32_t)
TERNARY(mad32, uint32_t, a *b + c)
TERNARY(mad64, uint64_t, a *b + c)
/* a divisor of 0 and the least number by -1 give all bits, as GPUs do in practice */
BINARY(div_s32, int32_t, b == 0 ? -1 : b == -1 ? (int32_t)(0u - (uint32_t)a) : a / b)
BINARY(div_u32, uint32_t, b == 0 ? ~0u : a / b)
BINARY(div_s64, int64_t, b == 0 ? -1 : b == -1 ? (int64_t)(0ull - (uint64_t)a) : a / b)
BINARY(div_u64, uint64_t, b == 0 ? ~0ull : a / b)
BINARY(rem_s32, int32_t, b == 0 || b == -1 ? 0 : a % b)
BINARY(rem_u32, uint32_t, b == 0 ? a : a % b)
BINARY(rem_s64, int64_t, b == 0 || b == -1 ? 0 : a % b)
BINARY(rem_u64, uint64_t, b == 0 ? a : a % b)
BINARY(min_s32, int32_t, a < b ? a : b)
BINARY(max_s32, int32_t, a > b ? a : b)
BINARY(min_u32, uint32_t, a < b ? a : b)
BINARY(max_u32, uint32_t, a > b ? a : b)
BINARY(min_s64, int64_t, a < b ? a : b)
BINARY(max_s64, int64_t, a > b ? a : b)
BINARY(min_u64, uint64_t, a < b ? a : b)
BINARY(max_u64, uint64_t, a > b ? a : b)
BINARY(min_s16, int16_t, a < b ? a : b)
BINARY(max_s16, int16_t, a > b ? a : b)
BINARY(min_u16, uint16_t, a < b ? a : b)
BINARY(max_u16, uint16_t, a > b ? a : b)
UNARY(abs_s32, int32_t, a < 0 ? (int32_t)(0u - (uint32_t)a) : a)
UNARY(neg32, uint32_t, 0u - a)
UNARY(neg64, uint64_t, 0ull - a)
BINARY(and16, uint16_t, a &b)
BINARY(and32, uint32_t, a &b)
BINARY(and64, uint64_t, a &b)
BINARY(or16, uint16_t, a | b)
BINARY(or32, uint32_t, a | b)
BINARY(or64, uint64_t, a | b)
BINARY(xor16, uint16_t, a ^ b)
BINARY(xor32, uint32_t, a ^ b)
BINARY(xor64, uint64_t, a ^ b)
UNARY(not16, uint16_t, ~a)
UNARY(not32, uint32_t, ~a)
UNARY(not64, uint64_t, ~a)
SHIFT(shl16, uint16_t, b > 15 ? 0 : a << b)
SHIFT(shl32, uint32_t, b > 31 ? 0 : a << b)
SHIFT(shl64, uint64_t, b > 63 ? 0 : a << b)
SHIFT(shr_u16, uint16_t, b > 15 ? 0 : a >> b)
SHIFT(shr_u32, uint32_t, b > 31 ? 0 : a >> b)
SHIFT(shr_u64, uint64_t, b > 63 ? 0 : a >> b)
SHIFT(shr_s16, int16_t, a >> (b > 15 ? 15 : b))
SHIFT(shr_s32, int32_t, a >> (b > 31 ? 31 : b))
SHIFT(shr_s64, int64_t, a >> (b > 63 ? 63 : b))
TERNARY(shf_l, uint32_t, (c & 31) == 0 ? b : b << (c & 31) | a >> (32 - (c & 31)))
TERNARY(shf_r, uint32_t, (c & 31) == 0 ? a : a >> (c & 31) | b << (32 - (c & 31)))

static void popc32(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1);
    EACH(d[l] = (uint32_t)__builtin_popcount(a[l]));
}
static void clz32(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1);
    EACH(d[l] = a[l] != 0 ? (uint32_t)__builtin_clz(a[l]) : 32);
}
static void clz64(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(const uint64_t a = lane_value(w, &op->o[1], l);
         lane_set(w, &op->o[0], l, a != 0 ? (uint32_t)__builtin_clzll(a) : 64));
}
static void brev32(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1);
    EACH(uint32_t r = 0; for (int i = 0; i < 32; i++) r |= (a[l] >> i & 1) << (31 - i); d[l] = r);
}
/* What the value is to be shifted by, so that its top bit is the highest; ~0 of 0. */
static void top_shift(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1);
    EACH(d[l] = a[l] != 0 ? (uint32_t)__builtin_clz(a[l]) : ~0u);
}
/* Addresses of shared and local memory as generic ones; variant: 0 shared, 1 local */
static void generic(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(const uint8_t *base =
             op->variant == 0 ? w->cta->shared : w->local + (size_t)l * w->kernel->local_bytes;
         lane_set(w, &op->o[0], l, (uint64_t)(uintptr_t)base + lane_value(w, &op->o[1], l)));
}
/* And a generic address of shared memory as one within it. */
static void to_shared(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(lane_set(w, &op->o[0], l, lane_value(w, &op->o[1], l) - (uint64_t)(uintptr_t)w->cta->shared));
}
/* op->variant: the width, negative for signed fields. */
static void bfe(warp_t *w, const op_t *op, uint32_t mask) {
    const int is_signed = op->variant < 0, width = abs(op->variant);
    EACH(
        const uint64_t a = lane_value(w, &op->o[1], l);
        const uint32_t at = lane_value(w, &op->o[2], l) & 255, n = lane_value(w, &op->o[3], l) & 255;
        uint64_t x = at > 63 ? 0 : (width == 32 ? (uint32_t)a : a) >> at; if (n < 64) x &= (1ull << n) - 1;
        if (is_signed && n > 0) {
            const int top = (int)(at + n - 1 < (uint32_t)width - 1 ? at + n - 1 : (uint32_t)width - 1);
            if (a >> top & 1 && n < 64) x |= ~0ull << (n < (uint32_t)width - at ? n : width - at);
        } lane_set(w, &op->o[0], l, x));
}
static void bfi(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(const uint64_t a = lane_value(w, &op->o[1], l), b = lane_value(w, &op->o[2], l);
         const uint32_t at = lane_value(w, &op->o[3], l) & 255, n = lane_value(w, &op->o[4], l) & 255;
         const uint64_t field = at > 63 ? 0 : (n > 63 ? ~0ull : (1ull << n) - 1) << at;
         lane_set(w, &op->o[0], l, (b & ~field) | (at > 63 ? 0 : a << at & field)));
}
static void lop3(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *pa = REG(uint32_t, 1), *pb = REG(uint32_t, 2), *pc = REG(uint32_t, 3);
    const uint32_t table = (uint32_t)op->o[4].value;
    EACH(const uint32_t a = pa[l]; const uint32_t b = pb[l]; const uint32_t c = pc[l]; uint32_t x = 0;
         x |= table & 1 ? ~a & ~b & ~c : 0; x |= table & 2 ? ~a & ~b & c : 0;
         x |= table & 4 ? ~a & b & ~c : 0; x |= table & 8 ? ~a & b & c : 0; x |= table & 16 ? a & ~b & ~c : 0;
         x |= table & 32 ? a & ~b & c : 0; x |= table & 64 ? a & b & ~c : 0; x |= table & 128 ? a & b & c : 0;
         d[l] = x);
}
static void prmt(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1), *b = REG(uint32_t, 2), *c = REG(uint32_t, 3);
    EACH(const uint64_t both = (uint64_t)b[l] << 32 | a[l]; uint32_t x = 0; for (int i = 0; i < 4; i++) {
        const uint32_t pick = c[l] >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (pick & 7)) & 255;
        x |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    } d[l] = x);
}
static void dp4a_u(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1), *b = REG(uint32_t, 2), *c = REG(uint32_t, 3);
    EACH(uint32_t x = c[l]; for (int i = 0; i < 32; i += 8) x += (a[l] >> i & 255) * (b[l] >> i & 255);
         d[l] = x);
}

/* mov between registers of one width, or between one and its parts in braces */
static void move(warp_t *w, const op_t *op, uint32_t mask) {
    if (op->num == 2 && op->o[0].width == 4 && op->o[1].width == 4) {
        uint32_t *d = REG(uint32_t, 0);
        const uint32_t *a = REG(uint32_t, 1);
        EACH(d[l] = a[l]);
    } else if (op->num == 2) {
        EACH(lane_set(w, &op->o[0], l, lane_value(w, &op->o[1], l)));
    } else if (op->variant) { /* apart */
        const uint32_t parts = op->num - 1, bits = 8u * op->o[op->num - 1].width / parts;
        EACH(const uint64_t x = lane_value(w, &op->o[parts], l);
             for (uint32_t i = 0; i < parts; i++) lane_set(w, &op->o[i], l, x >> bits * i));
    } else {
        const uint32_t parts = op->num - 1, bits = 8u * op->o[0].width / parts;
        EACH(uint64_t x = 0; for (uint32_t i = 0; i < parts; i++) {
            x |= (lane_value(w, &op->o[1 + i], l) & (bits == 32 ? ~0u : (1u << bits) - 1)) << bits * i;
        } lane_set(w, &op->o[0], l, x));
    }
}

#define SIGNED(name, at16, at32, at64)                                                                       \
    {name ".s16", at16, 0, 0}, {name ".u16", at16, 0, 0}, {name ".s32", at32, 0, 0},                         \
        {name ".u32", at32, 0, 0}, {name ".s64", at64, 0, 0}, {                                              \
        name ".u64", at64, 0, 0                                                                              \
    }
const op_name_t model_integer_ops[] = {SIGNED("add", add16, add32, add64),
                                       SIGNED("sub", sub16, sub32, sub64),
                                       SIGNED("mul.lo", mul16, mul32, mul64),
                                       {"mul.hi.s32", hi_s32, 0, 0},
                                       {"mul.hi.u32", hi_u32, 0, 0},
                                       {"mul.hi.u64", hi_u64, 0, 0},
                                       {"mul.hi.s64", hi_s64, 0, 0},
                                       {"mul.wide.s32", wide_s32, 0, 0},
                                       {"mul.wide.u32", wide_u32, 0, 0},
                                       {"mul.wide.s16", wide_s16, 0, 0},
                                       {"mul.wide.u16", wide_u16, 0, 0},
                                       {"mad.lo.s32", mad32, 0, 0},
                                       {"mad.lo.u32", mad32, 0, 0},
                                       {"mad.lo.s64", mad64, 0, 0},
                                       {"div.s32", div_s32, 0, 0},
                                       {"div.u32", div_u32, 0, 0},
                                       {"div.s64", div_s64, 0, 0},
                                       {"div.u64", div_u64, 0, 0},
                                       {"rem.s32", rem_s32, 0, 0},
                                       {"rem.u32", rem_u32, 0, 0},
                                       {"rem.s64", rem_s64, 0, 0},
                                       {"rem.u64", rem_u64, 0, 0},
                                       {"min.s32", min_s32, 0, 0},
                                       {"max.s32", max_s32, 0, 0},
                                       {"min.u32", min_u32, 0, 0},
                                       {"max.u32", max_u32, 0, 0},
                                       {"min.s64", min_s64, 0, 0},
                                       {"max.s64", max_s64, 0, 0},
                                       {"min.u64", min_u64, 0, 0},
                                       {"max.u64", max_u64, 0, 0},
                                       {"min.s16", min_s16, 0, 0},
                                       {"max.s16", max_s16, 0, 0},
                                       {"min.u16", min_u16, 0, 0},
                                       {"max.u16", max_u16, 0, 0},
                                       {"abs.s32", abs_s32, 0, 0},
                                       {"neg.s32", neg32, 0, 0},
                                       {"neg.s64", neg64, 0, 0},
                                       FOUR("and", and16, and32, and64),
                                       FOUR("or", or16, or32, or64),
                                       FOUR("xor", xor16, xor32, xor64),
                                       FOUR("not", not16, not32, not64),
                                       FOUR("shl", shl16, shl32, shl64),
                                       {"shr.u16", shr_u16, 0, 0},
                                       {"shr.u32", shr_u32, 0, 0},
                                       {"shr.u64", shr_u64, 0, 0},
                                       {"shr.s16", shr_s16, 0, 0},
                                       {"shr.s32", shr_s32, 0, 0},
                                       {"shr.s64", shr_s64, 0, 0},
                                       {"shr.b32", shr_u32, 0, 0},
                                       {"shr.b64", shr_u64, 0, 0},
                                       {"shf.l.wrap.b32", shf_l, 0, 0},
                                       {"shf.r.wrap.b32", shf_r, 0, 0},
                                       {"popc.b32", popc32, 0, 0},
                                       {"clz.b32", clz32, 0, 0},
                                       {"clz.b64", clz64, 0, 0},
                                       {"brev.b32", brev32, 0, 0},
                                       {"bfind.shiftamt.u32", top_shift, 0, 0},
                                       {"bfe.u32", bfe, 0, 32},
                                       {"bfe.s32", bfe, 0, -32},
                                       {"bfe.u64", bfe, 0, 64},
                                       {"bfi.b32", bfi, 0, 0},
                                       {"bfi.b64", bfi, 0, 0},
                                       {"lop3.b32", lop3, 0, 0},
                                       {"prmt.b32", prmt, 0, 0},
                                       {"dp4a.u32.u32", dp4a_u, 0, 0},
                                       FOUR("mov", move, move, move),
                                       {"mov.u16", move, 0, 0},
                                       {"mov.u32", move, 0, 0},
                                       {"mov.s32", move, 0, 0},
                                       {"mov.f32", move, 0, 0},
                                       {"mov.u64", move, 0, 0},
                                       {"mov.s64", move, 0, 0},
                                       {"mov.f64", move, 0, 0},
                                       {"cvta.to.global.u64", move, 0, 0},
                                       {"cvta.global.u64", move, 0, 0},
                                       {"cvta.param.u64", move, 0, 0},
                                       {"cvta.shared.u64", generic, 0, 0},
                                       {"cvta.to.shared.u64", to_shared, 0, 0},
                                       {"cvta.local.u64", generic, 0, 1},
                                       {NULL, NULL, 0, 0}};
