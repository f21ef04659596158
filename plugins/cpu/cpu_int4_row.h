/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of int4_per_token_head (semantics 3.4): the rotation, the encoder, and rows as signed bytes without
 * their zero point, which is how every product reads them: as int8 rows with a scale each. Included by
 * cpu_level.c. */
#include "../common/rotation_signs.h"

/* x = H x for n values, n a power of two: stages of distance 1, 2, 4 and so on, so that every level gives the
 * same bits. */
SI void hadamard(float *x, int n) {
    int half = 1;
#if CPU_BUTTERFLY
    for (int i = 0; n >= VW && i < n; i += VW) {
        vf v = v_load(x + i);
        UNROLL for (int h = 1; h < VW; h *= 2) v = v_butterfly(v, h);
        v_store(x + i, v);
    }
    if (n >= VW) half = VW;
#endif
    for (; half < n && half < VW; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            for (int j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (; half < n; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            for (int j = i; j < i + half; j += VW) {
                const vf a = v_load(x + j), b = v_load(x + j + half);
                v_store(x + j, v_add(a, b));
                v_store(x + j + half, v_sub(a, b));
            }
}

SI void apply_signs(float *x, int n, float factor) {
    int i = 0;
#if CPU_BUTTERFLY
    for (; i + VW <= n; i += VW)
        v_store(x + i, v_flip(v_mul(v_load(x + i), v_set1(factor)), rotation_negative[i / 32] >> i % 32));
#endif
    for (; i < n; i++)
        x[i] *= rotation_is_negative(i) ? -factor : factor;
}

/* The rotation of K, V and q, times factor; and the way back for O, which divides by n. */
static __attribute__((noinline)) void rotate_row(float *x, int n, float factor) {
    apply_signs(x, n, factor);
    hadamard(x, n);
}
static __attribute__((noinline)) void rotate_back(float *x, int n) {
    hadamard(x, n);
    apply_signs(x, n, 1.0f / (float)n);
}

/* Codes minus the zero point, in natural order: n bytes from n / 2 and the scale's lowest bits behind
 * them. */
SI void int4_to_bytes(const char *row, int n, char *out) {
    const int zero = row[n / 2] & 15;
    int i = 0;
#if CPU_WORDS
    i = v_nibbles(row, n, zero, out);
#endif
    for (; i < n; i++)
        out[i] = (char)(((unsigned char)row[i / 2] >> i % 2 * 4 & 15) - zero);
}

/* To the nearest code, halves away from zero. */
SI int int4_code(float x) {
    const float away = x + (x < 0.0f ? -0.5f : 0.5f);
    return (int)(away < 0.0f ? 0.0f : away > 15.0f ? 15.0f : away);
}

/* x: n floats of a row of type `from`; overwritten. A row with a value that is not finite gets a NaN for a
 * scale. */
static void int4_write(enum cpu_dtype from, float *x, int n, char *dst, char *row_scale) {
    uint16_t rounded[ROTATION_MAX_SIZE + 2 * CHUNK];
    const float largest = from == CPU_F16 ? 65504.0f : 0x1.fep127f; /* of f16, of bf16 */
    float low = INFINITY, high = -INFINITY, scale = NAN, nan = 0;
    int zero = 0;
    uint32_t bits;
    rotate_row(x, n, 1.0f);
    for (int i = 0; i < n; i++)
        nan += x[i] - x[i]; /* NaN unless x is finite */
    if (from != CPU_F32) {
        for (int i = 0; i < n; i++)
            x[i] = x[i] > largest ? largest : x[i] < -largest ? -largest : x[i];
        row_from_f32(from, x, n, (char *)rounded);
        memset(rounded + n, 0, 2 * CHUNK * sizeof *rounded);
        row_to_f32(from, (const char *)rounded, n, x);
    }
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    memset(dst, 0, (size_t)n / 2);
    if (nan == 0.0f && high - low < INFINITY) {
        scale = (high - low) / 15.0f;
        scale = scale > 1e-6f ? scale : 1e-6f;
        zero = int4_code(-low / scale);
        for (int i = 0; i < n; i += 2)
            dst[i / 2] = (char)(int4_code(x[i] / scale + (float)zero) |
                                int4_code(x[i + 1] / scale + (float)zero) << 4);
    }
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits & ~UINT32_C(15)) | (unsigned)zero;
    memcpy(row_scale, &bits, sizeof bits);
}
