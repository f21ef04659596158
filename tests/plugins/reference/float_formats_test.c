/* SPDX-License-Identifier: Apache-2.0 */
/* float_formats_test.c: the conversions of attn_plugin_util.h: every pattern of the small float formats,
 * there and back, and rounding at and beside each tie. */
#include <attn/attn_plugin_util.h>

#include "tests/tap.h"

typedef struct format {
    const char *name;
    int exp_bits, man_bits, bias;
    uint32_t largest; /* largest finite code */
    int has_infinity, has_nan;
    double (*from)(uint32_t);
    uint32_t (*to)(double);
} format_t;

static double f16_from(uint32_t c) {
    return attn_from_f16((uint16_t)c);
}
static double bf16_from(uint32_t c) {
    return attn_from_bf16((uint16_t)c);
}
static double e4m3_from(uint32_t c) {
    return attn_from_e4m3((uint8_t)c);
}
static double e5m2_from(uint32_t c) {
    return attn_from_e5m2((uint8_t)c);
}
static double e2m1_from(uint32_t c) {
    return attn_from_e2m1((uint8_t)c);
}
static uint32_t e2m1_to(double x) {
    return attn_to_e2m1(x);
}
static uint32_t f16_to(double x) {
    return attn_to_f16(x);
}
static uint32_t bf16_to(double x) {
    return attn_to_bf16(x);
}
static uint32_t e4m3_to(double x) {
    return attn_to_e4m3(x);
}
static uint32_t e5m2_to(double x) {
    return attn_to_e5m2(x);
}

static const format_t formats[] = {
    {"float16", 5, 10, 15, 0x7bff, 1, 1, f16_from, f16_to},
    {"bfloat16", 8, 7, 127, 0x7f7f, 1, 1, bf16_from, bf16_to},
    {"e4m3", 4, 3, 7, 0x7e, 0, 1, e4m3_from, e4m3_to},
    {"e5m2", 5, 2, 15, 0x7b, 1, 1, e5m2_from, e5m2_to},
    {"e2m1", 2, 1, 1, 0x7, 0, 0, e2m1_from, e2m1_to},
};

/* The definition, with the C library's ldexp instead of bit patterns. */
static double by_definition(const format_t *f, uint32_t code) {
    uint32_t sign = code >> (f->exp_bits + f->man_bits) & 1, man = code & ((1u << f->man_bits) - 1);
    int e = (int)(code >> f->man_bits & ((1u << f->exp_bits) - 1));
    uint32_t magnitude = code & ((1u << (f->exp_bits + f->man_bits)) - 1);
    double x;
    if (magnitude > f->largest)
        x = f->has_infinity && man == 0 ? INFINITY : NAN;
    else if (e == 0)
        x = ldexp(man, 1 - f->bias - f->man_bits);
    else
        x = ldexp(man + (1u << f->man_bits), e - f->bias - f->man_bits);
    return sign ? -x : x;
}

static int same(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static void check_format(const format_t *f) {
    int bits = 1 + f->exp_bits + f->man_bits, wrong_value = 0, wrong_back = 0, wrong_tie = 0, wrong_near = 0;
    uint32_t sign = 1u << (bits - 1);
    for (uint32_t code = 0; code < 1u << bits; code++) {
        double x = by_definition(f, code);
        wrong_value += !same(f->from(code), x);
        if (!isnan(x) && !isinf(x)) wrong_back += f->to(x) != code;
        if ((code & (sign - 1)) >= f->largest) continue;
        /* between this code and the next: below, at and above the middle */
        double next = by_definition(f, code + 1), middle = (x + next) / 2;
        uint32_t even = code & 1 ? code + 1 : code;
        wrong_tie += f->to(middle) != even;
        wrong_near += f->to(nextafter(middle, x)) != code || f->to(nextafter(middle, next)) != code + 1;
    }
    is_int(wrong_value, 0, "%s: every pattern has its defined value", f->name);
    is_int(wrong_back, 0, "%s: every finite value comes back as its own pattern", f->name);
    is_int(wrong_tie, 0, "%s: ties go to the even pattern", f->name);
    is_int(wrong_near, 0, "%s: one step beside a tie goes to the nearer pattern", f->name);
    ok(f->has_nan ? isnan(f->from(f->to((double)NAN))) : f->from(f->to((double)NAN)) == 6,
       "%s: NaN stays NaN, or the largest", f->name);
    is_int(f->to(0x1p-400), 0, "%s: far below the smallest is zero", f->name);
    is_int(f->to(-5e-324), sign, "%s: a negative subnormal double is minus zero", f->name);
    double smallest = by_definition(f, 1);
    is_int(f->to(smallest / 2), 0, "%s: half of the smallest is a tie with zero", f->name);
    is_int(f->to(nextafter(smallest / 2, 1)), 1, "%s: just above half of the smallest", f->name);
}

int main(void) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        check_format(&formats[i]);
    is_int(attn_to_f16(65519.999), 0x7bff, "float16: below the middle to the next step stays finite");
    is_int(attn_to_f16(65520.0), 0x7c00, "float16: from the middle on it is infinity");
    is_int(attn_to_bf16(-INFINITY), 0xff80, "bfloat16: minus infinity");
    is_int(attn_to_bf16(3.5e38), 0x7f80, "bfloat16: overflow is infinity");
    is_int(attn_to_e4m3(1e30), 0x7e, "e4m3 saturates at 448");
    is_int(attn_to_e4m3(-INFINITY), 0xfe, "e4m3: infinity saturates too");
    is_int(attn_to_e4m3(465.0), 0x7e, "e4m3: what would round to 480 saturates");
    is_int(attn_to_e4m3(-(double)NAN), 0x7f, "e4m3: NaN is 0x7f");
    is_int(attn_to_e5m2(1e30), 0x7b, "e5m2 saturates at 57344");
    is_int(attn_to_e5m2(61440.0), 0x7b, "e5m2: the middle to the next step saturates");
    is_near(attn_from_e4m3(0x7e), ATTN_E4M3_MAX, 0, "largest e4m3");
    is_near(attn_from_e5m2(0x7b), ATTN_E5M2_MAX, 0, "largest e5m2");
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (uint8_t b = 0; b < 8; b++)
        is_near(attn_from_e2m1(b), e2m1[b], 0, "e2m1 pattern %d", b);
    is_int(attn_to_e2m1(-INFINITY), 15, "e2m1: minus infinity saturates at -6");
    is_int(attn_to_e2m1(5.0), 6, "e2m1: 5 is a tie between 4 and 6, and 4 is even");
    return tap_done();
}
