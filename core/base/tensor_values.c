/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_values.c: element types by hand, for tools of the core that look at a few tensors and are never fast
 * paths. */
#include "base/tensor_values.h"

#include <attn/attn_plugin_util.h>
#include <math.h>

/* A binary float of `exponent` and `mantissa` bits behind a sign. with_inf: the largest exponent is inf and
 * NaN as in IEEE 754; else (e4m3fn) only all ones is NaN. */
static float small_float(uint32_t bits, int exponent, int mantissa, int with_inf) {
    uint32_t e = (bits >> mantissa) & ((1u << exponent) - 1), m = bits & ((1u << mantissa) - 1);
    uint32_t top = (1u << exponent) - 1, all = (1u << mantissa) - 1;
    int bias = (1 << (exponent - 1)) - 1;
    float sign = (bits >> (exponent + mantissa)) & 1 ? -1.0f : 1.0f;
    if (e == top && with_inf) return m != 0 ? NAN : sign * INFINITY;
    if (e == top && m == all) return NAN;
    if (e == 0) return sign * ldexpf((float)m, 1 - bias - mantissa);
    return sign * ldexpf((float)(m | (1u << mantissa)), (int)e - bias - mantissa);
}

float attni_value(DLDataType type, const void *element) {
    union {
        uint32_t u;
        float f;
    } bits;
    double d;
    uint16_t h;
    uint8_t b;
    switch (attn_dtype_of(type)) {
    case ATTN_DTYPE_FLOAT32:
        memcpy(&bits.u, element, 4);
        return bits.f;
    case ATTN_DTYPE_FLOAT64:
        memcpy(&d, element, 8);
        return (float)d;
    case ATTN_DTYPE_FLOAT16:
        memcpy(&h, element, 2);
        return small_float(h, 5, 10, 1);
    case ATTN_DTYPE_BFLOAT16:
        memcpy(&h, element, 2);
        bits.u = (uint32_t)h << 16;
        return bits.f;
    case ATTN_DTYPE_FP8_E4M3:
        memcpy(&b, element, 1);
        return small_float(b, 4, 3, 0);
    case ATTN_DTYPE_FP8_E5M2:
        memcpy(&b, element, 1);
        return small_float(b, 5, 2, 1);
    case ATTN_DTYPE_INT8:
        return (float)*(const int8_t *)element;
    case ATTN_DTYPE_UINT8:
        return (float)*(const uint8_t *)element;
    default:
        return 0;
    }
}

int attni_is_floating(DLDataType type) {
    uint32_t d = attn_dtype_of(type);
    return (d >= ATTN_DTYPE_FLOAT32 && d <= ATTN_DTYPE_FP8_E5M2) || d == ATTN_DTYPE_FLOAT64;
}

int attni_each_row(const DLTensor *t, int64_t rows, attni_row_visit visit, void *user) {
    int64_t index[8] = {0}, size[8], number = 0;
    int outer = t->ndim - 1;
    if (t->ndim < 1 || t->ndim > 8) return 0;
    for (int i = 0; i < t->ndim; i++) {
        size[i] = i == 0 && outer > 0 && rows >= 0 && rows < t->shape[0] ? rows : t->shape[i];
        if (size[i] == 0) return 0;
    }
    for (;;) {
        int64_t offset = 0;
        for (int i = 0; i < outer; i++)
            offset += index[i] * attn_byte_stride(t, i);
        int answer = visit(user, t, (const char *)attn_data(t) + offset, number++);
        if (answer != 0) return answer;
        int i = outer - 1;
        while (i >= 0 && ++index[i] == size[i])
            index[i--] = 0;
        if (i < 0) return 0;
    }
}

static int largest_of_row(void *user, const DLTensor *t, const char *row, int64_t index) {
    float *largest = user;
    int64_t n = t->shape[t->ndim - 1], step = attn_byte_stride(t, t->ndim - 1);
    (void)index;
    for (int64_t i = 0; i < n; i++) {
        float v = fabsf(attni_value(t->dtype, row + i * step));
        if (v > *largest && !isinf(v)) *largest = v;
    }
    return 0;
}

float attni_largest(const DLTensor *t, int64_t rows) {
    float largest = 0;
    attni_each_row(t, rows, largest_of_row, &largest);
    return largest;
}
