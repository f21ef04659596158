/* SPDX-License-Identifier: Apache-2.0 */
/* The vector type and about forty primitives of the level that CPU_LEVEL names (0 generic, 1 avx2, 2 avx512,
 * 3 avx512bf16, 4 neon, 5 neonbf16, 6 sve256). Only static functions: one object per level, nothing that a
 * linker could share between them. */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cpu_types.h"

#define SI static inline __attribute__((always_inline, unused))
#ifdef CPU_NO_UNROLL /* where compile time matters more: under sanitizers */
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define CPU_X86      (CPU_LEVEL < 4 ? CPU_LEVEL : 0) /* how much of x86-64 the level may use */
#define CPU_BF16_DOT (CPU_LEVEL == 3 || CPU_LEVEL == 5 || CPU_LEVEL == 6)

#if CPU_LEVEL == 6
#include "cpu_simd_sve.h"
#elif CPU_LEVEL >= 4
#include "cpu_simd_neon.h"
#elif CPU_X86 >= 2
#include "cpu_simd_avx512.h"
#elif CPU_X86 == 1
#include "cpu_simd_avx2.h"
#else
#include "cpu_simd_generic.h"
#endif

/* Elements that one v_pair() turns into two vectors. */
#define CHUNK (2 * VW)

/* e4m3 is read as f16 with an exponent that is 8 too small; the factor goes into the scales. */
SI float dtype_gain(enum cpu_dtype t) {
    return t == CPU_E4M3 ? 256.0f : 1.0f;
}

/* n < CHUNK elements at p as a pair, zero behind them, reading nothing behind them. */
SI void v_pair_tail(enum cpu_dtype t, const char *p, int n, vf *a, vf *b) {
#if CPU_TAILS
    if (v_pair_first(t, p, n, a, b)) return;
#endif
    char raw[CHUNK * 4] __attribute__((aligned(64)));
    memset(raw, 0, sizeof raw);
    memcpy(raw, p, (size_t)(n * cpu_dtype_size(t)));
    v_pair(t, raw, a, b);
}

SI float load_f32(const char *p) {
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

/* tanh(x) = 1 - 2 / (1 + 2^(2 x log2 e)), right at both ends; for the soft cap (semantics 2.9). */
SI vf v_tanh(vf x) {
    vf y = v_min(v_set1(30.0f), v_max(v_set1(-30.0f), x)); /* in this order NaN stays */
    vf e = v_exp2(v_mul(y, v_set1(2.885390082f)));
    return v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(v_set1(1.0f), e)));
}

/* n elements of any type to floats in natural order; dst has room for the next multiple of CHUNK and is
 * zeroed there. */
SI void row_to_f32(enum cpu_dtype t, const char *src, int n, float *dst) {
    const int es = cpu_dtype_size(t);
    int i = 0;
    vf a, b;
    for (; i + CHUNK <= n; i += CHUNK) {
        v_pair(t, src + i * es, &a, &b);
        v_store_pair(t, dst + i, a, b);
    }
    if (i < n) {
        v_pair_tail(t, src + i * es, n - i, &a, &b);
        v_store_pair(t, dst + i, a, b);
    }
}

/* Natural-order floats to an output row. */
SI void row_from_f32(enum cpu_dtype t, const float *src, int n, char *dst) {
    int i = 0;
    if (t == CPU_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    for (; i + VW <= n; i += VW)
        v_store16(t, (uint16_t *)(void *)dst + i, v_load(src + i));
#if CPU_TAILS
    if (i < n && v_store16_first(t, (uint16_t *)(void *)dst + i, src + i, n - i)) return;
#endif
    if (i < n) {
        float in[VW] = {0};
        uint16_t out[VW];
        memcpy(in, src + i, (size_t)(n - i) * 4);
        v_store16(t, out, v_load(in));
        memcpy((uint16_t *)(void *)dst + i, out, (size_t)(n - i) * 2);
    }
}

#endif
