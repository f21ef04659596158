/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_kv_rows.h: one K or V row of one token and head, wherever it lives: a paged cache of any format and any
 * strides, K and V packed or apart, or the tensors of the call.
 */
#ifndef ATTN_REFERENCE_KV_ROWS_H
#define ATTN_REFERENCE_KV_ROWS_H

#include "ref_instance.h"
#include "ref_rows.h"

/* One side (K or V) of a cache: where a row is and what its bytes mean. */
typedef struct ref_cache_side {
    char *base;                                      /* row of block 0, head 0, token 0 */
    int64_t block_stride, head_stride, token_stride; /* bytes */
    int64_t size;                                    /* elements of a row */
    uint32_t kv;                                     /* ATTN_KV_* */
    uint32_t dtype;                                  /* ATTN_DTYPE_* of an element */
    int is_value;
    int turbo_bits;        /* of a value of this side in TurboQuant, else 0 */
    int has_inline_scale;  /* fp32 behind the elements (semantics 3.4) */
    const DLTensor *scale; /* static scale of fp8 caches, else NULL */
} ref_cache_side_t;

/* Side K (is_value 0) or V of the caches of a call, which call_check_caches accepted. */
ref_cache_side_t ref_cache_side(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                                const attn_scales_t *scales, int is_value);

static inline char *ref_cache_row(const ref_cache_side_t *s, int64_t block, int64_t token, int64_t head) {
    return s->base + block * s->block_stride + token * s->token_stride + head * s->head_stride;
}

/* x = stored * scale. */
void ref_cache_load(const ref_cache_side_t *s, const char *row, int64_t head, double *out);

/* stored = convert(x / scale), the division in float32 as every writer has it; per-token-head scales are
 * computed here. x is the row in its own element type; is_raw: it is already in the cache's units and is
 * stored unchanged. */
void ref_cache_store(const ref_cache_side_t *s, char *row, int64_t head, const void *x, uint32_t dtype,
                     int is_raw);

#endif
