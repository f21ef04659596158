/* SPDX-License-Identifier: Apache-2.0 */
/* Floating point of a lane: float32, float64, two float16 or bfloat16 in a word. */
#include "model.h"

static float flush(float x) {
    return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x;
}
/* The lesser and the greater; a NaN loses against a number. */
static float least(float a, float b) {
    return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}
static float most(float a, float b) {
    return a != a ? b : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b;
}

#define FLOAT2(name, expression)                                                                             \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        float *d = REG(float, 0);                                                                            \
        const float *pa = REG(float, 1), *pb = REG(float, 2);                                                \
        EACH(const float a = pa[l]; const float b = pb[l]; d[l] = (expression));                             \
    }
#define FLOAT1(name, expression)                                                                             \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        float *d = REG(float, 0);                                                                            \
        const float *pa = REG(float, 1);                                                                     \
        EACH(const float a = pa[l]; d[l] = (expression));                                                    \
    }
FLOAT2(add, a + b)
FLOAT2(sub, a - b)
FLOAT2(mul, a *b)
FLOAT2(divide, a / b)
FLOAT2(minimum, least(a, b))
FLOAT2(maximum, most(a, b))
FLOAT2(minimum_nan, a != a || b != b ? NAN : least(a, b))
FLOAT2(maximum_nan, a != a || b != b ? NAN : most(a, b))
FLOAT2(copysign_of, copysignf(b, a)) /* the sign of the first operand */
FLOAT1(absolute, fabsf(a))
FLOAT1(negative, -a)
FLOAT1(reciprocal, 1 / a)
FLOAT1(root, (float)sqrt((double)a))
FLOAT1(exp2_flushed, flush((float)exp2((double)flush(a))))
FLOAT1(exp2_plain, (float)exp2((double)a))
FLOAT1(log2_flushed, flush((float)log2((double)flush(a))))
FLOAT1(root_inverse, (float)(1 / sqrt((double)a)))

/* variant: 1 towards zero, 2 down, of the exact sum */
static void add_directed(warp_t *w, const op_t *op, uint32_t mask) {
    float *d = REG(float, 0);
    const float *a = REG(float, 1), *b = REG(float, 2);
    EACH(const double exact = (double)a[l] + (double)b[l]; float f = (float)exact;
         if (isfinite(exact) && (double)f != exact) {
             const int above = (double)f > exact;
             if (op->variant == 2 ? above : above == (exact > 0))
                 f = nextafterf(f, op->variant == 2 || exact > 0 ? -INFINITY : INFINITY);
         } d[l] = f);
}
static void fma32(warp_t *w, const op_t *op, uint32_t mask) {
    float *d = REG(float, 0);
    const float *a = REG(float, 1), *b = REG(float, 2), *c = REG(float, 3);
    EACH(d[l] = fmaf(a[l], b[l], c[l]));
}
static void fma64(warp_t *w, const op_t *op, uint32_t mask) {
    double *d = REG(double, 0);
    const double *a = REG(double, 1), *b = REG(double, 2), *c = REG(double, 3);
    EACH(d[l] = fma(a[l], b[l], c[l]));
}
/* variant: '+' '-' '*' '/', '>' the greater */
static void double2(warp_t *w, const op_t *op, uint32_t mask) {
    double *d = REG(double, 0);
    const double *a = REG(double, 1), *b = REG(double, 2);
    EACH(d[l] = op->variant == '+'   ? a[l] + b[l]
                : op->variant == '-' ? a[l] - b[l]
                : op->variant == '*' ? a[l] * b[l]
                : op->variant == '>' ? fmax(a[l], b[l])
                                     : a[l] / b[l]);
}
static void double1(warp_t *w, const op_t *op, uint32_t mask) {
    double *d = REG(double, 0);
    const double *a = REG(double, 1);
    EACH(d[l] = op->variant == 's'   ? sqrt(a[l])
                : op->variant == '-' ? -a[l]
                : op->variant == '/' ? 1 / a[l]
                                     : fabs(a[l]));
}

/* Two float16 in a word; variant: '+' '-' '*' 'f' of three. An f16 product is exact in double, a sum of
 * two too. */
static void halves(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1), *b = REG(uint32_t, 2), *c = op->num > 3 ? REG(uint32_t, 3) : a;
    EACH(uint32_t r = 0; for (int i = 0; i < 32; i += 16) {
        const double x = f16_value((uint16_t)(a[l] >> i)), y = f16_value((uint16_t)(b[l] >> i)),
                     z = f16_value((uint16_t)(c[l] >> i));
        r |= (uint32_t)f16_of(op->variant == '+'   ? x + y
                              : op->variant == '-' ? x - y
                              : op->variant == '*' ? x * y
                                                   : x * y + z)
             << i;
    } d[l] = r);
}
/* Two bfloat16 in a word, or float16 (variant + 8). variant: 0 least, 1 most, NaN where one is; 3: most
 * of sizes, its sign that of the product */
static void pair(warp_t *w, const op_t *op, uint32_t mask) {
    const int is_f16 = op->variant >= 8, what = op->variant & 7;
    uint32_t *d = REG(uint32_t, 0);
    const uint32_t *a = REG(uint32_t, 1), *b = REG(uint32_t, 2);
    EACH(uint32_t r = 0; for (int i = 0; i < 32; i += 16) {
        const uint16_t p = (uint16_t)(a[l] >> i), q = (uint16_t)(b[l] >> i);
        float x = is_f16 ? f16_value(p) : bf16_value(p), y = is_f16 ? f16_value(q) : bf16_value(q), z;
        if (what == 3) x = fabsf(x), y = fabsf(y);
        z = x != x || y != y ? NAN : what == 0 ? least(x, y) : most(x, y);
        uint32_t bits = is_f16 ? f16_of(z) : bf16_of(z);
        if (what == 3 && z == z) bits |= (uint32_t)((p ^ q) & 0x8000);
        r |= bits << i;
    } d[l] = r);
}

const op_name_t model_float_ops[] = {{"add.f32", add, 0, 0},
                                     {"add.rn.f32", add, 0, 0},
                                     {"add.rz.f32", add_directed, 0, 1},
                                     {"add.rm.f32", add_directed, 0, 2},
                                     {"sub.f32", sub, 0, 0},
                                     {"sub.rn.f32", sub, 0, 0},
                                     {"mul.f32", mul, 0, 0},
                                     {"mul.rn.f32", mul, 0, 0},
                                     {"div.rn.f32", divide, 0, 0},
                                     {"div.approx.f32", divide, 0, 0},
                                     {"div.full.f32", divide, 0, 0},
                                     {"min.f32", minimum, 0, 0},
                                     {"max.f32", maximum, 0, 0},
                                     {"min.NaN.f32", minimum_nan, 0, 0},
                                     {"max.NaN.f32", maximum_nan, 0, 0},
                                     {"copysign.f32", copysign_of, 0, 0},
                                     {"abs.f32", absolute, 0, 0},
                                     {"neg.f32", negative, 0, 0},
                                     {"rcp.approx.f32", reciprocal, 0, 0},
                                     {"rcp.approx.ftz.f32", reciprocal, 0, 0},
                                     {"rcp.rn.f32", reciprocal, 0, 0},
                                     {"sqrt.rn.f32", root, 0, 0},
                                     {"sqrt.approx.f32", root, 0, 0},
                                     {"sqrt.approx.ftz.f32", root, 0, 0},
                                     {"ex2.approx.ftz.f32", exp2_flushed, 0, 0},
                                     {"ex2.approx.f32", exp2_plain, 0, 0},
                                     {"lg2.approx.ftz.f32", log2_flushed, 0, 0},
                                     {"lg2.approx.f32", log2_flushed, 0, 0},
                                     {"rsqrt.approx.f32", root_inverse, 0, 0},
                                     {"rsqrt.approx.ftz.f32", root_inverse, 0, 0},
                                     {"fma.rn.f32", fma32, 0, 0},
                                     {"fma.rn.f64", fma64, 0, 0},
                                     {"add.f64", double2, 0, '+'},
                                     {"add.rn.f64", double2, 0, '+'},
                                     {"sub.f64", double2, 0, '-'},
                                     {"mul.f64", double2, 0, '*'},
                                     {"mul.rn.f64", double2, 0, '*'},
                                     {"max.f64", double2, 0, '>'},
                                     {"div.rn.f64", double2, 0, '/'},
                                     {"rcp.approx.ftz.f64", double1, 0, '/'},
                                     {"sqrt.rn.f64", double1, 0, 's'},
                                     {"neg.f64", double1, 0, '-'},
                                     {"abs.f64", double1, 0, 'a'},
                                     {"add.rn.f16x2", halves, 0, '+'},
                                     {"sub.rn.f16x2", halves, 0, '-'},
                                     {"mul.rn.f16x2", halves, 0, '*'},
                                     {"fma.rn.f16x2", halves, 0, 'f'},
                                     {"min.NaN.bf16x2", pair, 0, 0},
                                     {"max.NaN.bf16x2", pair, 0, 1},
                                     {"max.NaN.xorsign.abs.bf16x2", pair, 0, 3},
                                     {"min.NaN.f16x2", pair, 0, 8},
                                     {"max.NaN.f16x2", pair, 0, 9},
                                     {"max.NaN.xorsign.abs.f16x2", pair, 0, 11},
                                     {NULL, NULL, 0, 0}};
