/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mistakes.h: the bad arguments of group errors, and what makes each from good ones. Each function changes
 * copies of the arguments of one call; it returns 0 if the mistake cannot be made in this call. A tensor that
 * is changed lies in *b. *code is the only right answer where there is one, else 0.
 */
#ifndef ATTN_KIT_MISTAKES_H
#define ATTN_KIT_MISTAKES_H

#include "../run/check_engine.h"

typedef enum mistake {
    FORWARD_NO_ARGS,
    FORWARD_NO_QUERY,
    FORWARD_NO_OUTPUT,
    FORWARD_NO_CACHE,
    FORWARD_QUERY_DTYPE,
    FORWARD_QUERY_RANK,
    FORWARD_QUERY_HEADS,
    FORWARD_QUERY_SIZE,
    FORWARD_OUTPUT_DTYPE,
    FORWARD_OUTPUT_SIZE,
    FORWARD_OUTPUT_ROWS,
    FORWARD_QUERY_ROWS,
    FORWARD_LSE_ROWS,
    FORWARD_CACHE_HEADS,
    FORWARD_NO_STRIDES,
    FORWARD_SPARSE_ROWS,
    FORWARD_SMALL_METADATA,
    FORWARD_SMALL_WORKSPACE,
    FORWARD_NO_METADATA,
    FORWARD_UNBUILT,
    FORWARD_ZEROED,
    FORWARD_CACHE_DTYPE,
    FORWARD_LSE_DTYPE,
    FORWARD_SINK_DTYPE,
    FORWARD_SINK_ROWS,
    FORWARD_SLOPE_ROWS,
    FORWARD_SLOPE_DTYPE,
    FORWARD_SCALE_DTYPE,
    FORWARD_V_SCALE_DTYPE,
    UPDATE_NO_KEY,
    UPDATE_NO_SLOTS,
    UPDATE_SLOT_DTYPE,
    UPDATE_CACHE_RANK,
    UPDATE_KEY_ROWS,
    UPDATE_NO_VALUE,
    UPDATE_VALUE_ROWS,
    UPDATE_VALUE_SIZE,
    UPDATE_VALUE_DTYPE,
    UPDATE_NO_CACHE,
    BUILD_NO_BATCH,
    BUILD_NEGATIVE,
    BUILD_TOO_MANY,
    BUILD_TOO_MANY_TOKENS,
    BUILD_NO_STARTS,
    BUILD_NO_LENS,
    BUILD_NO_TABLE,
    BUILD_SMALL_METADATA,
    BUILD_TABLE_DTYPE,
    BUILD_TABLE_ROWS,
    /* of latent attention: a cache of its own, weights, and from FORWARD_NO_TOPK on selected tokens */
    FORWARD_CACHE_ROW,
    FORWARD_NO_WEIGHTS,
    FORWARD_SMALL_WEIGHTS,
    PREPARE_NO_WEIGHTS,
    PREPARE_DTYPE,
    PREPARE_ROWS,
    PREPARE_LATENT,
    PREPARE_NO_SPACE,
    PREPARE_SMALL_SPACE,
    FORWARD_NO_TOPK,
    FORWARD_TOPK_DTYPE,
    FORWARD_TOPK_WIDTH,
    NUM_MISTAKES,
    FIRST_LATENT = FORWARD_CACHE_ROW,
    FIRST_SPARSE = FORWARD_NO_TOPK
} mistake_t;

typedef struct mistake_text {
    const char *name, *parameter; /* the error must name it; NULL: any */
} mistake_text_t;
extern const mistake_text_t mistake_texts[NUM_MISTAKES];

/* A changed copy of a tensor: as it is, of another element type, with one row less. */
typedef struct bent_tensor {
    DLTensor t;
    int64_t shape[8], strides[8];
} bent_tensor_t;
const DLTensor *bend(bent_tensor_t *b, const DLTensor *t);
const DLTensor *bend_type(bent_tensor_t *b, const DLTensor *t, uint32_t dtype);
const DLTensor *bend_rows(bent_tensor_t *b, const DLTensor *t);
/* Buffers of a space that no build_metadata wrote, each byte this one; 0 where there is no metadata. */
int mistake_not_built(const check_t *c, attn_space_t *s, int byte);

int mistake_in_forward(const check_t *c, mistake_t mistake, attn_forward_t *a, attn_space_t *s,
                       bent_tensor_t *b, int *code);
int mistake_in_update(mistake_t mistake, attn_kv_update_t *a, bent_tensor_t *b);
int mistake_in_build(mistake_t mistake, attn_batch_t *batch, attn_space_t *s, bent_tensor_t *b, int *code);
int mistake_in_prepare(mistake_t mistake, attn_weights_t *w, bent_tensor_t *b, int *code);

#endif
