/* SPDX-License-Identifier: Apache-2.0 */
/* The scales of a quantised output (semantics 7.7), as plugins check them. */
#ifndef ATTN_OUTPUT_SCALES_H
#define ATTN_OUTPUT_SCALES_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* 1 if the features ask for an output that is quantised. [pure] */
static inline int output_is_quantised(uint64_t features) {
    return (features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP)) != 0;
}

/* Values of one scale: 64 or 128 with out_fp8_group, whose tensor output_scales_check has passed. [pure] */
static inline int64_t output_group(const attn_forward_t *a, int64_t width) {
    return width / a->output_block_scale->shape[1];
}

/* output_block_scale: float32 [tokens or more, width / 64 or / 128], any strides, for rows of width = heads *
 * size values; on any device. */
int output_block_scale_check(const DLTensor *t, int64_t width, int64_t tokens, attn_error_t *error);

/* One of the two scales is given, and that only where the features say so; on any device. */
int output_scales_given(const attn_forward_t *a, uint64_t features, attn_error_t *error);

/* The same of tensors in host memory, and what they are: output_scale, float32 of one element, finite and
 * above 0; or output_block_scale. */
int output_scales_check(const attn_forward_t *a, uint64_t features, int64_t width, int64_t tokens,
                        attn_error_t *error);

#endif
