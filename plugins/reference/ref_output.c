/* SPDX-License-Identifier: Apache-2.0 */
/* ref_output.c: output conversion and quantisation (semantics 7.7). */
#include "ref_output.h"

#include "../common/output_scales.h"

#include <math.h>

int ref_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, int64_t size,
                     attn_error_t *error) {
    int status = call_check_rows(a->output, "output", in->out_dtype, in->heads, attn_output_columns(&in->p),
                                 tokens, error);
    if (status == ATTN_OK) status = call_check_lse(a->lse, in->heads, tokens, error);
    return status == ATTN_OK ? output_scales_check(a, in->features, in->heads * size, tokens, error) : status;
}

/* The largest magnitude of a group: NaN is left out of it, but of 4-bit values, which have none, it is NaN
 * where one of them is not finite (semantics 7.7). */
static double greatest(const double *x, int64_t n, int is_fp4) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (is_fp4 && !isfinite(x[i]))
            return NAN;
        else if (fabs(x[i]) > most)
            most = fabs(x[i]);
    return most;
}

/* Values of one scale, which may be of several heads; scale 0: zeros. */
static void write_group(const attn_instance_t *in, const attn_forward_t *a, int64_t row, int64_t size,
                        const double *values, int64_t first, int64_t n, float scale) {
    const int is_fp4 = (in->features & ATTN_F_OUT_NVFP4) != 0;
    for (int64_t i = first; i < first + n; i++) {
        uint8_t *out = (uint8_t *)ref_at2(a->output, row, i / size) + i % size / (is_fp4 ? 2 : 1);
        if (!is_fp4) {
            *out = attn_to_e4m3(values[i] / (double)scale);
            continue;
        }
        const unsigned code = scale > 0 ? attn_to_e2m1((double)((float)values[i] / scale)) : 0;
        *out = i % 2 == 0 ? (uint8_t)code : (uint8_t)(*out | code << 4);
    }
}

static void quantise_token(const attn_instance_t *in, const attn_forward_t *a, int64_t row, int64_t size,
                           const double *values) {
    const int64_t width = (int64_t)in->heads * size;
    const int is_fp4 = (in->features & ATTN_F_OUT_NVFP4) != 0;
    const float scale = a->output_scale != NULL ? (float)ref_scale_of(a->output_scale, 0) : 1.0f;
    const output_groups o = output_groups_of(a, in->features, width);
    if (o.kind == OUTPUT_STATIC) {
        write_group(in, a, row, size, values, 0, width, scale);
        return;
    }
    for (int64_t g = 0; g < o.count; g++) {
        const double most = greatest(values + g * o.size, o.size, is_fp4);
        write_group(in, a, row, size, values, g * o.size, o.size, output_put_scale(&o, row, g, most, scale));
    }
}

void ref_write_token(const attn_instance_t *in, const attn_forward_t *a, int64_t row, int64_t size,
                     const double *values, const double *lse) {
    const int is_quantised = output_is_quantised(in->features);
    if (is_quantised) quantise_token(in, a, row, size, values);
    for (int64_t h = 0; h < in->heads; h++) {
        if (!is_quantised) ref_store_row(ref_at2(a->output, row, h), in->out_dtype, size, values + h * size);
        if (a->lse != NULL && lse != NULL) *(float *)(void *)ref_at2(a->lse, h, row) = (float)lse[h];
    }
}
