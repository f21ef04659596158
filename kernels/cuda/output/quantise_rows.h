/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7): a layer's 16-bit result lies in the workspace, and its rows leave as
 * e4m3 with one static scale, or with a scale for each 64 or 128 values. */
#ifndef QUANTISE_ROWS_H
#define QUANTISE_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quantise_params {
    /* On the device, so that a replay may have fewer tokens than `tokens`: what a step has of them is
     * starts[num_reqs], or num_tokens where *starts is NULL. num_tokens NULL: all. */
    const int32_t *num_tokens, *num_reqs;
    const int32_t *const *starts;
    const void *in; /* [tokens, num_heads * size] of 16-bit elements; NULL: zeros, of the profiling run */
    void *out;      /* e4m3, strides in elements, multiples of 8 as the address */
    int64_t out_token, out_head;
    const float *scale; /* static: [1]; NULL: 1 */
    float *block_scale; /* groups: [tokens, num_heads * size / group]. Written */
    int64_t block_token, block_group;
    int64_t tokens;
    int32_t num_heads, size; /* a multiple of 8 */
    int32_t group;           /* 64, 128; 0: static */
    int32_t dtype;           /* of in: DT_F16 or DT_BF16 of ptx_sm80.cuh, as the families number them */
} quantise_params;
/* A cudaError_t as int. params NULL: prepare only. */
int quantise_rows(const quantise_params *params, void *stream);

#ifdef __cplusplus
}
#endif
#endif
