/* SPDX-License-Identifier: Apache-2.0 */
/* output_scales.c: what is wrong with the scales of a quantised output, in words. */
#include "output_scales.h"

#include <float.h>

static int check_static(const DLTensor *t, attn_error_t *error) {
    int status = attn_check_tensor(t, "output_scale", ATTN_DTYPE_FLOAT32, t->ndim == 0 ? 0 : 1, NULL, error);
    if (status == ATTN_OK && t->ndim == 1 && t->shape[0] != 1)
        status = attn_fail(error, ATTN_E_INVALID, "output_scale",
                           "output_scale has %lld elements; it scales a whole tensor: give 1",
                           (long long)t->shape[0]);
    if (status != ATTN_OK) return status;
    const float scale = *(const float *)attn_data(t);
    if (scale > 0 && scale <= FLT_MAX) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "output_scale", "output_scale is %g; expected a positive number",
                     (double)scale);
}

int output_block_scale_check(const DLTensor *t, int64_t width, int64_t tokens, attn_error_t *error) {
    int64_t dense[2] = {0, 1};
    DLTensor any = t != NULL ? *t : (DLTensor){0}; /* the layout of the scales is the caller's */
    if (any.ndim == 2 && any.strides != NULL) any.strides = dense;
    const int status =
        attn_check_tensor(t != NULL ? &any : NULL, "output_block_scale", ATTN_DTYPE_FLOAT32, 2, NULL, error);
    if (status != ATTN_OK) return status;
    const int64_t groups = t->shape[1];
    if (t->shape[0] >= tokens && groups > 0 && width % groups == 0 &&
        (width / groups == 64 || width / groups == 128))
        return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "output_block_scale",
                     "output_block_scale is [%lld, %lld]; expected [%lld, %lld / 64 or / 128]",
                     (long long)t->shape[0], (long long)groups, (long long)tokens, (long long)width);
}

int output_scales_given(const attn_forward_t *a, uint64_t features, attn_error_t *error) {
    const struct {
        const DLTensor *given;
        const char *name, *feature;
        uint64_t bit;
    } scales[] = {{a->output_scale, "output_scale", "out_fp8_static", ATTN_F_OUT_FP8_STATIC},
                  {a->output_block_scale, "output_block_scale", "out_fp8_group", ATTN_F_OUT_FP8_GROUP}};
    for (int i = 0; i < 2; i++) {
        const int is_wanted = (features & scales[i].bit) != 0;
        if ((scales[i].given != NULL) == is_wanted) continue;
        return attn_fail(error, ATTN_E_INVALID, scales[i].name,
                         is_wanted ? "%s is not given; feature %s needs it"
                                   : "%s was given, but the problem has no feature %s; request it",
                         scales[i].name, scales[i].feature);
    }
    return ATTN_OK;
}

int output_scales_check(const attn_forward_t *a, uint64_t features, int64_t width, int64_t tokens,
                        attn_error_t *error) {
    const int status = output_scales_given(a, features, error);
    if (status != ATTN_OK) return status;
    if (a->output_scale != NULL) return check_static(a->output_scale, error);
    return a->output_block_scale != NULL
               ? output_block_scale_check(a->output_block_scale, width, tokens, error)
               : ATTN_OK;
}
