/* SPDX-License-Identifier: Apache-2.0 */
/* ref_output.c: output conversion and quantisation (semantics 7.7). */
#include "ref_output.h"

#include "../common/output_scales.h"

#include <math.h>

int ref_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, int64_t size,
                     attn_error_t *error) {
    int status = call_check_rows(a->output, "output", in->out_dtype, in->heads, size, tokens, error);
    if (status == ATTN_OK) status = call_check_lse(a->lse, in->heads, tokens, error);
    return status == ATTN_OK ? output_scales_check(a, in->features, in->heads * size, tokens, error) : status;
}

/* Scale of one group: absmax / 448 with eps 1e-10 under the maximum, NaN left out (semantics 7.7), as the
 * float32 that is stored. */
static float group_scale(const double *x, int64_t n) {
    double absmax = 1e-10;
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i]) > absmax) absmax = fabs(x[i]);
    return (float)(absmax / ATTN_E4M3_MAX);
}

void ref_write_token(const attn_instance_t *in, const attn_forward_t *a, int64_t row, int64_t size,
                     const double *values, const double *lse) {
    int64_t width = (int64_t)in->heads * size, group = 0, between = 0;
    float static_scale = 1.0f, *scales = NULL;
    if ((in->features & ATTN_F_OUT_FP8_STATIC) != 0) static_scale = (float)ref_scale_of(a->output_scale, 0);
    if ((in->features & ATTN_F_OUT_FP8_GROUP) != 0) {
        group = output_group(a, width);
        scales = (float *)(void *)ref_at2(a->output_block_scale, row, 0);
        between = a->output_block_scale->strides[1];
        for (int64_t g = 0; g < a->output_block_scale->shape[1]; g++)
            scales[g * between] = group_scale(values + g * group, group);
    }
    int64_t element = (int64_t)attn_dtype_size(in->out_dtype);
    for (int64_t h = 0; h < in->heads; h++) {
        char *out = ref_at2(a->output, row, h);
        const double *x = values + h * size;
        if (in->out_dtype != ATTN_DTYPE_FP8_E4M3) {
            ref_store_row(out, in->out_dtype, size, x);
        } else {
            for (int64_t i = 0; i < size; i++) {
                double scale = group != 0 ? scales[(h * size + i) / group * between] : static_scale;
                double q = x[i] / scale;
                ref_store_row(out + i * element, in->out_dtype, 1, &q);
            }
        }
        if (a->lse != NULL && lse != NULL) *(float *)(void *)ref_at2(a->lse, h, row) = (float)lse[h];
    }
}
