/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives on 4 floats with the compiler's own vectors: SSE2, NEON or whatever the baseline has. See
 * cpu_simd.h. */
#define VW   4
#define NREG 16
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

SI vf v_load(const float *p) {
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
SI void v_store(float *p, vf a) {
    memcpy(p, &a, sizeof a);
}
SI vf v_set1(float x) {
    return (vf){x, x, x, x};
}
SI vf v_zero(void) {
    return v_set1(0.0f);
}
SI vf v_add(vf a, vf b) {
    return a + b;
}
SI vf v_sub(vf a, vf b) {
    return a - b;
}
SI vf v_mul(vf a, vf b) {
    return a * b;
}
SI vf v_div(vf a, vf b) {
    return a / b;
}
SI vf v_pick(vi m, vf a, vf b) {
    return (vf)((m & (vi)a) | (~m & (vi)b));
}
SI vf v_max(vf a, vf b) {
    return v_pick((vi)(a > b), a, b);
} /* b if either is NaN */
SI vf v_min(vf a, vf b) {
    return v_pick((vi)(a < b), a, b);
}
SI vf v_sqrt(vf a) {
    return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
}
SI vf v_fma(vf a, vf b, vf c) {
    return a * b + c;
}
SI vf v_fma_word(const float *a, vf b, vf c) {
    return v_set1(*a) * b + c;
}
SI vf v_fms(vf a, vf b, vf c) {
    return a * b - c;
}
SI int v_any_gt(vf a, vf b) {
    vi m = (vi)(a > b);
    return (m[0] | m[1] | m[2] | m[3]) != 0;
}
SI float v_hmax(vf a) {
    float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}
SI float v_hsum(vf a) {
    return (a[0] + a[1]) + (a[2] + a[3]);
}

SI vi vi_load(const int32_t *p) {
    vi a;
    memcpy(&a, p, sizeof a);
    return a;
}
SI vi vi_set1(int32_t x) {
    return (vi){x, x, x, x};
}
SI vi vi_add(vi a, vi b) {
    return a + b;
}
SI vi vi_sub(vi a, vi b) {
    return a - b;
}
SI vf vi_to_f(vi a) {
    return (vf){(float)a[0], (float)a[1], (float)a[2], (float)a[3]};
}

/* s where key k lies in [lo0, hi0) or [lo1, hi1), else -inf. */
SI vf v_mask2(vf s, vi k, vi lo0, vi hi0, vi lo1, vi hi1) {
    vi m = ((vi)(k >= lo0) & (vi)(k < hi0)) | ((vi)(k >= lo1) & (vi)(k < hi1));
    return v_pick(m, s, v_set1(-INFINITY));
}

/* 2^x as in cpu_simd_avx2.h; degree 5. */
SI vf v_exp2(vf x) {
    vf y = v_pick((vi)(x < v_set1(-126.0f)), v_set1(-126.0f), x), t = y + v_set1(12582912.0f);
    vf f = y - (t - v_set1(12582912.0f)), p = v_set1(0.001327647217f);
    p = p * f + v_set1(0.009675541331f);
    p = p * f + v_set1(0.05550713273f);
    p = p * f + v_set1(0.2402211972f);
    p = p * f + v_set1(0.6931469671f);
    p = p * f + v_set1(1.000000072f);
    vi r = (vi)p + ((vi)t << 23);
    r &= ~(vi)(x < v_set1(-126.0f));
    return (vf)(r | (vi)(x != x));
}
SI vf v_exp2_short(vf x) {
    return v_exp2(x);
}

/* 4 vectors to their 4 sums: lane i is the sum of v[i]. */
SI void v_transpose(vf v[VW]) {
    vf a = (vf){v[0][0], v[1][0], v[2][0], v[3][0]}, b = (vf){v[0][1], v[1][1], v[2][1], v[3][1]};
    vf c = (vf){v[0][2], v[1][2], v[2][2], v[3][2]}, d = (vf){v[0][3], v[1][3], v[2][3], v[3][3]};
    v[0] = a;
    v[1] = b;
    v[2] = c;
    v[3] = d;
}
SI vf v_reduce_all(const vf v[VW]) {
    vf t[VW] = {v[0], v[1], v[2], v[3]};
    v_transpose(t);
    return (t[0] + t[1]) + (t[2] + t[3]);
}

/* Natural order from (even, odd) elements, and back. */
SI void v_zip(vf *a, vf *b) {
    vf x = *a, y = *b;
    *a = (vf){x[0], y[0], x[1], y[1]};
    *b = (vf){x[2], y[2], x[3], y[3]};
}
SI void v_unzip(vf *a, vf *b) {
    vf x = *a, y = *b;
    *a = (vf){x[0], x[2], y[0], y[2]};
    *b = (vf){x[1], x[3], y[1], y[3]};
}

/* f16 bits to float without the instruction: normals by rebias, subnormals through one float subtraction. */
SI float f16_to_f32(uint16_t h) {
    uint32_t m = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16, r;
    float f;
    if (m >= 0x0f800000u) {
        r = m + 0x70000000u; /* inf and NaN */
    } else if (m >= 0x00800000u) {
        r = m + 0x38000000u;
    } else {
        r = m + 0x38800000u;
        memcpy(&f, &r, 4);
        f -= 6.103515625e-05f;
        memcpy(&r, &f, 4);
    }
    r |= sign;
    memcpy(&f, &r, 4);
    return f;
}

/* Float to f16, nearest even (rounding by adding half of the last kept bit, subnormals by a magic
 * addition). */
SI uint16_t f32_to_f16(float f) {
    uint32_t u, sign;
    memcpy(&u, &f, 4);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (u >= 0x47800000u) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000u) {
        float g;
        memcpy(&g, &u, 4);
        g += 0.5f; /* ulp of [0.5, 1) is 2^-24, the unit of f16's subnormals */
        memcpy(&u, &g, 4);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xc8000000u + 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | u >> 13);
}

SI float element_to_f32(enum cpu_dtype t, const char *p, int i) {
    uint16_t h;
    uint32_t u;
    float f;
    switch (t) {
    case CPU_F32:
        memcpy(&f, p + 4 * i, 4);
        return f;
    case CPU_F16:
        memcpy(&h, p + 2 * i, 2);
        return f16_to_f32(h);
    case CPU_BF16:
        memcpy(&h, p + 2 * i, 2);
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return f;
    case CPU_I8:
        return (float)(signed char)p[i];
    case CPU_E5M2:
        return f16_to_f32((uint16_t)((unsigned char)p[i] << 8));
    default:
        if ((p[i] & 0x7f) == 0x7f) return NAN;
        return f16_to_f32((uint16_t)(((unsigned char)p[i] & 0x80) << 8 | ((unsigned char)p[i] & 0x7f) << 7));
    }
}

/* 8 elements as two vectors; bf16 as (even, odd), other types in order; e4m3 comes out divided by 256. */
SI void v_pair(enum cpu_dtype t, const char *p, vf *a, vf *b) {
    if (t == CPU_BF16) {
        vi w;
        memcpy(&w, p, sizeof w);
        *a = (vf)(w << 16); /* little endian, as the cache formats are */
        *b = (vf)(w & vi_set1((int32_t)0xffff0000u));
        return;
    }
    *a = (vf){element_to_f32(t, p, 0), element_to_f32(t, p, 1), element_to_f32(t, p, 2),
              element_to_f32(t, p, 3)};
    *b = (vf){element_to_f32(t, p, 4), element_to_f32(t, p, 5), element_to_f32(t, p, 6),
              element_to_f32(t, p, 7)};
}

/* No integer products here. */
#define CPU_WORDS 0

/* What v_pair() gave, in natural order. */
SI void v_store_pair(enum cpu_dtype t, float *p, vf a, vf b) {
    if (t == CPU_BF16) v_zip(&a, &b);
    v_store(p, a);
    v_store(p + 4, b);
}

SI void v_store16(enum cpu_dtype t, uint16_t *p, vf a) {
    for (int i = 0; i < 4; i++) {
        float f = a[i];
        uint32_t u;
        memcpy(&u, &f, 4);
        if (t == CPU_F16)
            p[i] = f32_to_f16(f);
        else if (f != f)
            p[i] = (uint16_t)(u >> 16 | 0x40);
        else
            p[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}

SI void v_prefetch(const char *p) {
    __builtin_prefetch(p);
}
SI void v_prefetch_l2(const char *p) {
    __builtin_prefetch(p, 0, 2);
}
