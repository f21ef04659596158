/* SPDX-License-Identifier: Apache-2.0 */
/* ref_output.c: output conversion and quantisation (semantics 7.7). */
#include "ref_output.h"

#include <math.h>

int ref_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, int64_t size,
                     attn_error_t *error) {
    int status = call_check_rows(a->output, "output", in->out_dtype, in->heads, size, tokens, error);
    if (status == ATTN_OK) status = call_check_lse(a->lse, in->heads, tokens, error);
    if (status != ATTN_OK) return status;
    if ((in->features & ATTN_F_OUT_FP8_STATIC) != 0) {
        if (a->output_scale == NULL)
            return attn_fail(error, ATTN_E_INVALID, "output_scale",
                             "output_scale is not given; static fp8 output needs float32 [1]");
        status = call_check_scale(a->output_scale, "output_scale", 1, error);
        return status == ATTN_OK ? ref_fp8_check_scale(a->output_scale, "output_scale", error) : status;
    }
    if ((in->features & ATTN_F_OUT_FP8_GROUP) != 0) {
        status = attn_check_tensor(a->output_block_scale, "output_block_scale", ATTN_DTYPE_FLOAT32, 2, NULL,
                                   error);
        if (status != ATTN_OK) return status;
        int64_t groups = a->output_block_scale->shape[1], width = in->heads * size;
        if (a->output_block_scale->shape[0] < tokens || groups <= 0 || width % groups != 0 ||
            (width / groups != 64 && width / groups != 128))
            return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                             "output_block_scale is [%lld, %lld]; expected [%lld, %lld / 64 or / 128]",
                             (long long)a->output_block_scale->shape[0], (long long)groups, (long long)tokens,
                             (long long)width);
    }
    return ATTN_OK;
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
    int64_t width = (int64_t)in->heads * size, group = 0;
    float static_scale = 1.0f, *scales = NULL;
    if ((in->features & ATTN_F_OUT_FP8_STATIC) != 0) static_scale = (float)ref_scale_of(a->output_scale, 0);
    if ((in->features & ATTN_F_OUT_FP8_GROUP) != 0) {
        group = width / a->output_block_scale->shape[1];
        scales = (float *)(void *)ref_at2(a->output_block_scale, row, 0);
        for (int64_t g = 0; g < a->output_block_scale->shape[1]; g++)
            scales[g] = group_scale(values + g * group, group);
    }
    int64_t element = (int64_t)attn_dtype_size(in->out_dtype);
    for (int64_t h = 0; h < in->heads; h++) {
        char *out = ref_at2(a->output, row, h);
        const double *x = values + h * size;
        if (in->out_dtype != ATTN_DTYPE_FP8_E4M3) {
            ref_store_row(out, in->out_dtype, size, x);
        } else {
            for (int64_t i = 0; i < size; i++) {
                double scale = group != 0 ? scales[(h * size + i) / group] : static_scale;
                double q = x[i] / scale;
                ref_store_row(out + i * element, in->out_dtype, 1, &q);
            }
        }
        if (a->lse != NULL && lse != NULL) *(float *)(void *)ref_at2(a->lse, h, row) = (float)lse[h];
    }
}
