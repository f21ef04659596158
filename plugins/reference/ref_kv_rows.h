/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_kv_rows.h: one K or V row of one token and head, wherever it lives: a paged cache of any format and any
 * strides, K and V packed or apart, or the tensors of the call.
 */
#ifndef ATTN_REFERENCE_KV_ROWS_H
#define ATTN_REFERENCE_KV_ROWS_H

#include "ref_instance.h"
#include "ref_rows.h"

/* Rows of the heads and tokens of a cache: byte strides from one to the next. */
typedef struct ref_cache_part {
    char *base; /* row of block 0, head 0, token 0 */
    int64_t block, head, token;
} ref_cache_part_t;

/* One side (K or V) of a cache: where a row is and what its bytes mean. */
typedef struct ref_cache_side {
    ref_cache_part_t values, scales; /* scales: base NULL: the cache has none */
    int64_t size;                    /* elements of a row */
    uint32_t kv;                     /* ATTN_KV_* */
    uint32_t dtype;                  /* ATTN_DTYPE_* of an element */
    int is_value;
    int turbo_bits;           /* of a value of this side in TurboQuant, else 0 */
    const DLTensor *scale;    /* static scale, else NULL */
    const DLTensor *channels; /* static scales of channels (semantics 3.8), else NULL */
} ref_cache_side_t;

/* A row and its own scales; NULL: it has none. */
typedef struct ref_cache_row {
    char *values, *scales;
} ref_cache_row_t;

/* Side K (is_value 0) or V of the caches of a call, which call_check_caches accepted. */
ref_cache_side_t ref_cache_side(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                                const attn_scales_t *scales, int is_value);

ref_cache_row_t ref_cache_row(const ref_cache_side_t *s, int64_t block, int64_t token, int64_t head);

/* A query as its int8 codes say it (semantics 3.8). */
void ref_round_query(double *row, int64_t n);

/* x = stored * scale. */
void ref_cache_load(const ref_cache_side_t *s, ref_cache_row_t row, int64_t head, double *out);

/* stored = convert(x / scale), the division in float32 as every writer has it; a row's own scales are
 * computed here. x is the row in its own element type; is_raw: it is already in the cache's units and is
 * stored unchanged. */
void ref_cache_store(const ref_cache_side_t *s, ref_cache_row_t row, int64_t head, const void *x,
                     uint32_t dtype, int is_raw);

#endif
