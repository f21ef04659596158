/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons, predicates and choices by them. */
#include "model.h"

#define COMPARE(name, T, expression)                                                                         \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        const T *pa = REG(T, 1), *pb = REG(T, 2);                                                            \
        uint32_t r = 0;                                                                                      \
        for (int l = 0; l < LANES; l++) {                                                                    \
            const T a = pa[l], b = pb[l];                                                                    \
            r |= (uint32_t)(expression) << l;                                                                \
        }                                                                                                    \
        uint32_t *d = REG(uint32_t, 0);                                                                      \
        *d = (*d & ~mask) | (r & mask);                                                                      \
    }
#define COMPARES(T, suffix)                                                                                  \
    COMPARE(eq_##suffix, T, a == b)                                                                          \
    COMPARE(ne_##suffix, T, a != b)                                                                          \
    COMPARE(lt_##suffix, T, a < b)                                                                           \
    COMPARE(le_##suffix, T, a <= b)                                                                          \
    COMPARE(gt_##suffix, T, a > b)                                                                           \
    COMPARE(ge_##suffix, T, a >= b)
COMPARES(int16_t, s16)
COMPARES(uint16_t, u16)
COMPARES(int32_t, s32)
COMPARES(uint32_t, u32)
COMPARES(int64_t, s64)
COMPARES(uint64_t, u64)
COMPARES(float, f32)
COMPARES(double, f64)
COMPARE(equ_f32, float, !(a < b) && !(a > b))
COMPARE(neu_f32, float, !(a == b))
COMPARE(ltu_f32, float, !(a >= b))
COMPARE(leu_f32, float, !(a > b))
COMPARE(gtu_f32, float, !(a <= b))
COMPARE(geu_f32, float, !(a < b))
COMPARE(geu_f64, double, !(a < b))
COMPARE(neu_f64, double, !(a == b))
COMPARE(num_f32, float, a == a && b == b)
COMPARE(nan_f32, float, a != a || b != b)

static uint32_t predicate(const warp_t *w, const operand_t *o) {
    if (o->is_constant) return o->value != 0 ? ~0u : 0u;
    return w->regs[o->at] ^ (o->negate ? ~0u : 0u);
}
/* op->variant: 0 and, 1 or, 2 xor, 3 not, 4 mov */
static void logic(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t a = predicate(w, &op->o[1]), b = op->num > 2 ? predicate(w, &op->o[2]) : 0;
    const uint32_t r = op->variant == 0   ? a & b
                       : op->variant == 1 ? a | b
                       : op->variant == 2 ? a ^ b
                       : op->variant == 3 ? ~a
                                          : a;
    uint32_t *d = REG(uint32_t, 0);
    *d = (*d & ~mask) | (r & mask);
}
#define SELECT(name, T)                                                                                      \
    static void name(warp_t *w, const op_t *op, uint32_t mask) {                                             \
        const uint32_t p = predicate(w, &op->o[3]);                                                          \
        T *d = REG(T, 0);                                                                                    \
        const T *a = REG(T, 1), *b = REG(T, 2);                                                              \
        EACH(d[l] = IS_SET(p, l) ? a[l] : b[l]);                                                             \
    }
SELECT(selp16, uint16_t)
SELECT(selp32, uint32_t)
SELECT(selp64, uint64_t)

#define SIX(T, suffix)                                                                                       \
    {"setp.eq." T, eq_##suffix, 0, 0}, {"setp.ne." T, ne_##suffix, 0, 0}, {"setp.lt." T, lt_##suffix, 0, 0}, \
        {"setp.le." T, le_##suffix, 0, 0}, {"setp.gt." T, gt_##suffix, 0, 0}, {                              \
        "setp.ge." T, ge_##suffix, 0, 0                                                                      \
    }
const op_name_t model_predicate_ops[] = {SIX("s16", s16),
                                         SIX("u16", u16),
                                         SIX("b16", u16),
                                         SIX("s32", s32),
                                         SIX("u32", u32),
                                         SIX("b32", u32),
                                         SIX("s64", s64),
                                         SIX("u64", u64),
                                         SIX("b64", u64),
                                         SIX("f32", f32),
                                         SIX("f64", f64),
                                         {"setp.equ.f32", equ_f32, 0, 0},
                                         {"setp.neu.f32", neu_f32, 0, 0},
                                         {"setp.ltu.f32", ltu_f32, 0, 0},
                                         {"setp.leu.f32", leu_f32, 0, 0},
                                         {"setp.gtu.f32", gtu_f32, 0, 0},
                                         {"setp.geu.f32", geu_f32, 0, 0},
                                         {"setp.geu.f64", geu_f64, 0, 0},
                                         {"setp.neu.f64", neu_f64, 0, 0},
                                         {"setp.num.f32", num_f32, 0, 0},
                                         {"setp.nan.f32", nan_f32, 0, 0},
                                         {"and.pred", logic, 0, 0},
                                         {"or.pred", logic, 0, 1},
                                         {"xor.pred", logic, 0, 2},
                                         {"not.pred", logic, 0, 3},
                                         {"mov.pred", logic, 0, 4},
                                         FOUR("selp", selp16, selp32, selp64),
                                         {"selp.u16", selp16, 0, 0},
                                         {"selp.s16", selp16, 0, 0},
                                         {"selp.u32", selp32, 0, 0},
                                         {"selp.s32", selp32, 0, 0},
                                         {"selp.f32", selp32, 0, 0},
                                         {"selp.u64", selp64, 0, 0},
                                         {"selp.s64", selp64, 0, 0},
                                         {"selp.f64", selp64, 0, 0},
                                         {NULL, NULL, 0, 0}};
