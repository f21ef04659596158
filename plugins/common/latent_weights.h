/* SPDX-License-Identifier: Apache-2.0 */
/* kv_b_proj of one layer in weight_space (semantics 7.4), for backends on the host: a header that says for
 * which sizes it was made, and the checks of what comes before and after. */
#ifndef ATTN_LATENT_WEIGHTS_H
#define ATTN_LATENT_WEIGHTS_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* At the start of weight_space; the rows follow it. */
typedef struct latent_weights {
    uint64_t magic; /* the backend's own: its rows have a layout of its own */
    uint32_t heads, nope, value, latent;
    uint32_t dtype; /* ATTN_DTYPE_* of the values as given */
    float scale;    /* kv_b_proj_scale, or 1: of the tensor, or where blocks have their own */
    uint64_t reserved[4];
} latent_weights_t;

/* Rows of kv_b_proj: num_heads * (P + V). [pure] */
int64_t latent_weights_rows(const attn_problem_t *p);

/* The scales of blocks of 128 x 128 if the weights have them, else NULL; and that of one value. [pure] */
static inline const DLTensor *latent_weights_blocks(const attn_weights_t *w) {
    return w->kv_b_proj_scale != NULL && w->kv_b_proj_scale->ndim == 2 ? w->kv_b_proj_scale : NULL;
}
static inline float latent_weights_block(const DLTensor *blocks, int64_t row, int64_t column) {
    return (
        (const float *)attn_data(blocks))[row / 128 * blocks->strides[0] + column / 128 * blocks->strides[1]];
}

/* prepare_weights: the tensor [rows, L], of the model's dtype or e4m3, its scale or scales, and `bytes`
 * of space. The header is for the end of weight_space's making: written first, it would make half of it
 * look whole. */
int latent_weights_intake(const attn_problem_t *p, const attn_weights_t *w, uint64_t magic, uint64_t bytes,
                          latent_weights_t *header, attn_error_t *error);

/* forward: weight_space is what prepare_weights of this backend made for these sizes. */
int latent_weights_check(const attn_problem_t *p, const attn_forward_t *a, uint64_t magic, uint64_t bytes,
                         attn_error_t *error);

#endif
