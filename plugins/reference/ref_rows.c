/* SPDX-License-Identifier: Apache-2.0 */
/* ref_rows.c: rows of every element type to and from double. */
#include "ref_rows.h"

#include <math.h>

void ref_load_row(const void *row, uint32_t dtype, int64_t n, double *out) {
    const uint8_t *b = row;
    const uint16_t *h = row;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT64:
        memcpy(out, row, (size_t)n * sizeof *out);
        break;
    case ATTN_DTYPE_FLOAT32:
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const float *)row)[i];
        break;
    case ATTN_DTYPE_FLOAT16:
        for (int64_t i = 0; i < n; i++)
            out[i] = attn_from_f16(h[i]);
        break;
    case ATTN_DTYPE_BFLOAT16:
        for (int64_t i = 0; i < n; i++)
            out[i] = attn_from_bf16(h[i]);
        break;
    case ATTN_DTYPE_FP8_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] = attn_from_e4m3(b[i]);
        break;
    case ATTN_DTYPE_FP8_E5M2:
        for (int64_t i = 0; i < n; i++)
            out[i] = attn_from_e5m2(b[i]);
        break;
    case ATTN_DTYPE_INT8:
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const int8_t *)row)[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = b[i];
        break;
    }
}

/* NaN has no int8 code; 0 is written, and the row's scale carries the NaN (kv_cache_row.c). */
static int8_t to_int8(double x) {
    if (isnan(x)) return 0;
    double r = round(x);
    return (int8_t)(r < -128 ? -128 : r > 127 ? 127 : r);
}

void ref_store_row(void *row, uint32_t dtype, int64_t n, const double *in) {
    uint8_t *b = row;
    uint16_t *h = row;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT64:
        memcpy(row, in, (size_t)n * sizeof *in);
        break;
    case ATTN_DTYPE_FLOAT32:
        for (int64_t i = 0; i < n; i++)
            ((float *)row)[i] = (float)in[i];
        break;
    case ATTN_DTYPE_FLOAT16:
        for (int64_t i = 0; i < n; i++)
            h[i] = attn_to_f16(in[i]);
        break;
    case ATTN_DTYPE_BFLOAT16:
        for (int64_t i = 0; i < n; i++)
            h[i] = attn_to_bf16(in[i]);
        break;
    case ATTN_DTYPE_FP8_E4M3:
        for (int64_t i = 0; i < n; i++)
            b[i] = attn_to_e4m3(in[i]);
        break;
    case ATTN_DTYPE_FP8_E5M2:
        for (int64_t i = 0; i < n; i++)
            b[i] = attn_to_e5m2(in[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((int8_t *)row)[i] = to_int8(in[i]);
        break;
    }
}
