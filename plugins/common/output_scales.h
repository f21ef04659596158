/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7), as plugins check and write them: which scales a call has, what they are
 * of, and where each of them lies. */
#ifndef ATTN_OUTPUT_SCALES_H
#define ATTN_OUTPUT_SCALES_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* What a row of the output becomes. Numbers equal those of kernels/cuda/output/quantise_rows.h. */
enum {
    OUTPUT_STATIC = 0,    /* e4m3, one scale for all */
    OUTPUT_FLOATS = 1,    /* e4m3, a float32 scale for each group */
    OUTPUT_POWERS = 2,    /* the same, scales rounded up to powers of two */
    OUTPUT_EXPONENTS = 3, /* the same, their biased exponents stored as bytes */
    OUTPUT_NVFP4 = 4      /* e2m1 in pairs, an e4m3 scale for each 16 values and one for all */
};
enum { OUTPUT_NVFP4_GROUP = 16 };

/* The groups of a call's output. Tensors of scales by rows, by columns, of four in a word and in tiles differ
 * in five distances alone, all in bytes. */
typedef struct output_groups {
    char *scales;
    int64_t tile, four, row, part, one; /* of t / 128, g / 4, t % 32, t / 32 % 4, g % 4 */
    int64_t count;                      /* groups of a token's row */
    int32_t size;                       /* values of one; 0: OUTPUT_STATIC */
    int32_t kind;                       /* OUTPUT_* */
    int32_t pads; /* places behind the last group of a row, which become 0 with it: 0 to 3 */
} output_groups;

/* 1 if the features ask for an output that is quantised. [pure] */
static inline int output_is_quantised(uint64_t features) {
    return (features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0;
}
/* 1 if its scales depend on the row. [pure] */
static inline int output_has_groups(uint64_t features) {
    return (features & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0;
}
/* Element type of the tensor. [pure] */
static inline uint32_t output_storage(uint64_t features) {
    return (features & ATTN_F_OUT_NVFP4) != 0 ? (uint32_t)ATTN_DTYPE_UINT8 : (uint32_t)ATTN_DTYPE_FP8_E4M3;
}

/* Of a call whose scales have passed the checks below. [pure] */
output_groups output_groups_of(const attn_forward_t *a, uint64_t features, int64_t width);

static inline char *output_scale_at(const output_groups *o, int64_t token, int64_t group) {
    return o->scales + token / 128 * o->tile + token % 32 * o->row + token / 32 % 4 * o->part +
           group / 4 * o->four + group % 4 * o->one;
}

/* From the largest magnitude of a group to what its values are divided by, which is stored at the group's
 * place; 0: all codes are 0. tensor: of OUTPUT_NVFP4 the call's output_scale; most: then NaN where a value is
 * not finite. */
float output_put_scale(const output_groups *o, int64_t token, int64_t group, double most, float tensor);

/* output_block_scale of rows of width = heads * size values; on any device. */
int output_block_scale_check(const DLTensor *t, uint64_t features, int64_t width, int64_t tokens,
                             attn_error_t *error);

/* Of the two scales those are given that the features want, and no others; on any device. */
int output_scales_given(const attn_forward_t *a, uint64_t features, attn_error_t *error);

/* The same of tensors in host memory, and what they are: output_scale, float32 of one element, finite and
 * above 0; and output_block_scale. */
int output_scales_check(const attn_forward_t *a, uint64_t features, int64_t width, int64_t tokens,
                        attn_error_t *error);

#endif
