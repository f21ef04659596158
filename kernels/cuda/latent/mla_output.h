/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7): the layer's 16-bit result lies in the workspace, and its rows leave as
 * e4m3 with one static scale, or with a scale for each 64 or 128 values. */
#ifndef MLA_OUTPUT_H
#define MLA_OUTPUT_H

#include "mla_params.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mla_output_params {
    const mla_counts *counts; /* their num_tokens bounds tokens, so that a replay may have fewer; NULL: all */
    const void *in;           /* [tokens, num_heads * value] of 16-bit elements */
    void *out;                /* e4m3, strides in elements */
    int64_t out_token, out_head;
    const float *scale; /* static: [1] */
    float *block_scale; /* groups: [tokens, num_heads * value / group]. Written */
    int64_t block_token, block_group;
    int32_t tokens, num_heads, value;
    int32_t group; /* 64, 128; 0: static */
    int32_t dtype; /* enum mla_dtype of in */
} mla_output_params;
/* A cudaError_t as int. */
int mla_quantise(const mla_output_params *params, void *stream);

#ifdef __cplusplus
}
#endif
#endif
