/* SPDX-License-Identifier: Apache-2.0 */
/* ref_int4_row.c: encoder and decoder of int4_per_token_head rows (semantics 3.4). What decides bits is
 * float32, in the order that the law has; what reads them is double. */
#include "ref_int4_row.h"

#include "../common/rotation_signs.h"
#include "ref_rows.h"

#include <math.h>

void ref_int4_load(const char *row, int64_t size, double *out) {
    uint32_t bits;
    memcpy(&bits, row + size / 2, sizeof bits);
    const int zero = (int)(bits & 15);
    float scale;
    bits &= ~UINT32_C(15);
    memcpy(&scale, &bits, sizeof scale);
    for (int64_t i = 0; i < size; i++)
        out[i] = ((((uint8_t)row[i / 2] >> i % 2 * 4) & 15) - zero) * (double)scale;
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < size; i++)
            if ((i & half) == 0) {
                const double a = out[i], b = out[i + half];
                out[i] = a + b;
                out[i + half] = a - b;
            }
    for (int64_t i = 0; i < size; i++)
        out[i] *= (rotation_is_negative(i) ? -1.0 : 1.0) / (double)size;
}

/* y = H (s .* x), rounded to dtype; finite values beyond its range become its largest. */
static void rotate(const void *x, uint32_t dtype, int64_t size, float *y) {
    double values[ROTATION_MAX_SIZE];
    uint8_t rounded[ROTATION_MAX_SIZE * sizeof(double)];
    ref_load_row(x, dtype, size, values);
    for (int64_t i = 0; i < size; i++)
        y[i] = (float)(rotation_is_negative(i) ? -values[i] : values[i]);
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < size; i++)
            if ((i & half) == 0) {
                const float a = y[i], b = y[i + half];
                y[i] = a + b;
                y[i + half] = a - b;
            }
    const double largest = dtype == ATTN_DTYPE_FLOAT16    ? 65504.0
                           : dtype == ATTN_DTYPE_BFLOAT16 ? 0x1.fep127
                                                          : INFINITY;
    for (int64_t i = 0; i < size; i++)
        values[i] = !isfinite(y[i]) ? y[i] : fmin(largest, fmax(-largest, y[i]));
    ref_store_row(rounded, dtype, size, values);
    ref_load_row(rounded, dtype, size, values);
    for (int64_t i = 0; i < size; i++)
        y[i] = (float)values[i];
}

/* To the nearest code, halves away from zero. */
static int code_of(float x) {
    const float away = x >= 0.0f ? x + 0.5f : x - 0.5f;
    return (int)(away < 0.0f ? 0.0f : away > 15.0f ? 15.0f : away);
}

void ref_int4_store(char *row, int64_t size, const void *x, uint32_t dtype) {
    float y[ROTATION_MAX_SIZE], low = INFINITY, high = -INFINITY, scale = NAN;
    int zero = 0, is_finite = 1;
    rotate(x, dtype, size, y);
    for (int64_t i = 0; i < size; i++) {
        if (!isfinite(y[i])) is_finite = 0;
        low = y[i] < low ? y[i] : low;
        high = y[i] > high ? y[i] : high;
    }
    memset(row, 0, (size_t)size / 2);
    if (is_finite && isfinite(high - low)) {
        scale = (high - low) / 15.0f;
        scale = scale > 1e-6f ? scale : 1e-6f;
        zero = code_of(-low / scale);
        for (int64_t i = 0; i < size; i++)
            row[i / 2] =
                (char)((uint8_t)row[i / 2] | (unsigned)code_of(y[i] / scale + (float)zero) << i % 2 * 4);
    }
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits & ~UINT32_C(15)) | (unsigned)zero;
    memcpy(row + size / 2, &bits, sizeof bits);
}
