/* SPDX-License-Identifier: Apache-2.0 */
/* The projections by cuBLASLt where its library is found: strided batches over the heads, weights as
 * kv_b_proj has them. It gets no workspace, and how each product is computed is settled when an instance
 * opens, so a call neither allocates nor searches, may be captured, and gives the same bits for the same
 * number of tokens. */
#ifndef MLA_BLAS_H
#define MLA_BLAS_H

#include "mla_params.h"

typedef enum mla_product {
    MLA_ABSORB, /* queries x W_UK */
    MLA_VALUES, /* latents x W_UV */
    MLA_UP,     /* latents to keys and values of some heads side by side: one head of many columns */
    MLA_NUM_PRODUCTS
} mla_product;

typedef struct mla_blas_input {
    int32_t heads, latent, nope, value, dtype; /* enum mla_dtype */
    int32_t is_sm90;
    int32_t max_tokens; /* of an absorption */
    /* At most: latents of one MLA_UP, elements of its result; 0: there is none. */
    int64_t up_rows, up_elements;
} mla_blas_input;

typedef struct mla_blas mla_blas;

/* For the current device. NULL: not to be had, and *why says so (a static text). */
mla_blas *mla_blas_open(const mla_blas_input *input, const char **why);
void mla_blas_close(mla_blas *blas);
/* 0: launched. Else nothing was: cuBLASLt has nothing for these sizes or strides. p->counts, rope: not looked
 * at. */
int mla_blas_multiply(const mla_blas *blas, mla_product product, const mla_project_params *p, void *stream);

#endif
