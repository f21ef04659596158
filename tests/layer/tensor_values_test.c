/* SPDX-License-Identifier: Apache-2.0 */
/* Element types read by hand: every 8-bit float, landmarks of the 16-bit ones, strided tensors. */
#include "../tap.h"
#include "base/tensor_values.h"

#include <attn/attn_plugin_util.h>

static float value16(uint32_t dtype, uint16_t bits) {
    return attni_value(attn_dl_dtype(dtype), &bits);
}

/* The value of an 8-bit float, from its definition in double. */
static double small(int bits, int exponent, int mantissa, int ieee) {
    int e = bits >> mantissa & ((1 << exponent) - 1), m = bits & ((1 << mantissa) - 1),
        bias = (1 << (exponent - 1)) - 1;
    double sign = bits & 0x80 ? -1 : 1, one = 1 << mantissa;
    if (e == (1 << exponent) - 1 && ieee) return m ? NAN : sign * INFINITY;
    if (e == (1 << exponent) - 1 && m == (1 << mantissa) - 1) return NAN;
    return sign * (e == 0 ? m / one * pow(2, 1 - bias) : (1 + m / one) * pow(2, e - bias));
}

static void test_types(void) {
    int wrong = 0;
    for (int i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        double e4m3 = attni_value(attn_dl_dtype(ATTN_DTYPE_FP8_E4M3), &b),
               e5m2 = attni_value(attn_dl_dtype(ATTN_DTYPE_FP8_E5M2), &b);
        double want4 = small(i, 4, 3, 0), want5 = small(i, 5, 2, 1);
        wrong += !(e4m3 == want4 || (isnan(e4m3) && isnan(want4))) +
                 !(e5m2 == want5 || (isnan(e5m2) && isnan(want5)));
        wrong += attni_value(attn_dl_dtype(ATTN_DTYPE_INT8), &b) != (int8_t)b ||
                 attni_value(attn_dl_dtype(ATTN_DTYPE_UINT8), &b) != i;
    }
    is_int(wrong, 0, "all 256 values of the 8-bit types");
    uint8_t most = 0x7E;
    is_near(attni_value(attn_dl_dtype(ATTN_DTYPE_FP8_E4M3), &most), 448, 0, "448 is the largest e4m3");
    is_near(value16(ATTN_DTYPE_FLOAT16, 0x3C00), 1, 0, "float16 1");
    is_near(value16(ATTN_DTYPE_FLOAT16, 0xC500), -5, 0, "float16 -5");
    is_near(value16(ATTN_DTYPE_FLOAT16, 0x7BFF), 65504, 0, "float16 largest");
    is_near(value16(ATTN_DTYPE_FLOAT16, 0x0001), ldexp(1, -24), 0, "float16 smallest");
    ok(isinf(value16(ATTN_DTYPE_FLOAT16, 0x7C00)) && isnan(value16(ATTN_DTYPE_FLOAT16, 0x7E00)),
       "float16 infinity and NaN");
    is_near(value16(ATTN_DTYPE_BFLOAT16, 0x3FC0), 1.5, 0, "bfloat16 1.5");
    ok(isnan(value16(ATTN_DTYPE_BFLOAT16, 0x7FC0)), "bfloat16 NaN");
    double d = -2.25;
    float f = 0.1f;
    int64_t other = 7;
    is_near(attni_value(attn_dl_dtype(ATTN_DTYPE_FLOAT64), &d), -2.25, 0, "float64");
    is_near(attni_value(attn_dl_dtype(ATTN_DTYPE_FLOAT32), &f), (double)0.1f, 0, "float32");
    is_near(attni_value(attn_dl_dtype(ATTN_DTYPE_INT64), &other), 0, 0, "other types are no numbers here");
    ok(attni_is_floating(attn_dl_dtype(ATTN_DTYPE_FP8_E5M2)) &&
           attni_is_floating(attn_dl_dtype(ATTN_DTYPE_FLOAT64)) &&
           !attni_is_floating(attn_dl_dtype(ATTN_DTYPE_INT8)) &&
           !attni_is_floating(attn_dl_dtype(ATTN_DTYPE_INT32)),
       "which types have NaN");
}

static int add_row(void *user, const DLTensor *t, const char *row, int64_t index) {
    double *sum = user;
    for (int64_t i = 0; i < t->shape[t->ndim - 1]; i++)
        *sum += attni_value(t->dtype, row + i * attn_byte_stride(t, t->ndim - 1));
    return index == 99;
}

static void test_rows(void) {
    float data[64];
    for (int i = 0; i < 64; i++)
        data[i] = (float)i;
    int64_t shape[] = {3, 2, 4}, strides[] = {16, 8, 2};
    DLTensor t = {.data = data,
                  .ndim = 3,
                  .dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32),
                  .shape = shape,
                  .strides = strides,
                  .byte_offset = 4};
    double sum = 0, want = 0;
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++)
            for (int c = 0; c < 4; c++)
                want += 1 + a * 16 + b * 8 + c * 2;
    attni_each_row(&t, 2, add_row, &sum);
    is_near(sum, want, 0, "two rows of a strided tensor with an offset");
    is_near(attni_largest(&t, 1), 1 + 8 + 6, 0, "the largest in the first row");
    is_near(attni_largest(&t, -1), 1 + 32 + 8 + 6, 0, "and in all");
    is_near(attni_largest(&t, 0), 0, 0, "none");
    t.ndim = 1, shape[0] = 5, strides[0] = 3;
    data[7] = -1000;
    is_near(attni_largest(&t, 1), 1000, 0, "a vector is one row");
    shape[0] = 0;
    is_near(attni_largest(&t, -1), 0, 0, "an empty one has no values");
    t.ndim = 0;
    is_int(attni_each_row(&t, -1, add_row, &sum), 0, "no dimensions, no rows");
}

int main(void) {
    test_types();
    test_rows();
    return tap_done();
}
