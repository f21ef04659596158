/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7): a layer's 16-bit result lies in the workspace, and its rows leave as
 * e4m3 with one static scale, or with a scale for each 64 or 128 values, or as e2m1 in pairs with one for
 * each 16. */
#ifndef QUANTISE_ROWS_H
#define QUANTISE_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    QUANTISE_STATIC = 0,
    QUANTISE_FLOATS = 1,    /* float32 scales of groups */
    QUANTISE_POWERS = 2,    /* the same, rounded up to powers of two */
    QUANTISE_EXPONENTS = 3, /* the same, as bytes of their biased exponents */
    QUANTISE_NVFP4 = 4
};

typedef struct quantise_params {
    /* On the device, so that a replay may have fewer tokens than `tokens`: what a step has of them is
     * starts[num_reqs], or num_tokens where *starts is NULL. num_tokens NULL: all. */
    const int32_t *num_tokens, *num_reqs;
    const int32_t *const *starts;
    const void *in; /* [tokens, num_heads * size] of 16-bit elements; NULL: zeros, of the profiling run */
    /* strides in bytes, which hold one e4m3 or two e2m1; multiples of 8, and of 4, as the address */
    void *out;
    int64_t out_token, out_head;
    const float *scale; /* static, nvfp4: [1]; NULL: 1 */
    void *scales;       /* of groups. Written; NULL: nowhere */
    /* bytes between scales, of t / 128, g / 4, t % 32, t / 32 % 4 and g % 4 for token t and group g */
    int64_t tile, four, row, part, one;
    int64_t tokens;
    int32_t num_heads, size; /* a multiple of 8 */
    int32_t group;           /* 16, 64, 128; 0: static */
    int32_t dtype;           /* of in: DT_F16 or DT_BF16 of ptx_sm80.cuh, as the families number them */
    int32_t kind;            /* QUANTISE_* */
    int32_t pads;            /* places behind a row's last group that become 0: 0 to 3 */
} quantise_params;
/* A cudaError_t as int. params NULL: prepare only. */
int quantise_rows(const quantise_params *params, void *stream);

#ifdef __cplusplus
}
#endif
#endif
