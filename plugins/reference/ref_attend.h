/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_attend.h: softmax attention of a few query rows over a range of keys, in double, one key after the
 * other.
 */
#ifndef ATTN_REFERENCE_ATTEND_H
#define ATTN_REFERENCE_ATTEND_H

#include "ref_kv_rows.h"
#include "ref_mask.h"

typedef struct ref_mla_cache ref_mla_cache_t;

/* Where the keys of a request are: cache rows through a block table, or rows of the call's tensors. */
typedef struct ref_keys {
    const int32_t *table;        /* NULL: not paged */
    ref_cache_side_t k, v;       /* paged */
    const ref_mla_cache_t *mla;  /* paged latent rows, else NULL */
    const DLTensor *key, *value; /* not paged: row first + k */
    const attn_scales_t *fp8;    /* not paged: rows become e4m3 with these; NULL: as they are */
    int64_t first;
    uint32_t dtype;
    int64_t block_size;
} ref_keys_t;

/* The state of rows (token t, head h) at index t * heads + h: running maximum, sum, and weighted values
 * (Milakov and Gimelshein 2018, online normalizer calculation for softmax). */
typedef struct ref_state {
    double *max; /* [tokens * heads] */
    double *sum;
    double *acc; /* [tokens * heads * Dv] */
} ref_state_t;

/* Scratch of one call. */
typedef struct ref_scratch {
    double *query; /* [REF_TILE_TOKENS * group * D]; latent attention fills it before */
    double *key, *value;
} ref_scratch_t;

/* One tile: query tokens row0 .. row0 + tokens - 1 of the batch, which are at position q0 of their request.
 * */
typedef struct ref_tile {
    int64_t row0, q0;
    int tokens;
} ref_tile_t;

/* Starts the rows of a tile; the sink counts as a key with value 0 (semantics 2.10). sinks NULL: none. */
void ref_state_start(const attn_instance_t *in, const ref_state_t *state, int tokens, const float *sinks,
                     int64_t sink_stride);

/* Adds keys [begin, end) for every head. */
void ref_attend(const attn_instance_t *in, const attn_forward_t *a, const ref_tile_t *tile,
                const ref_mask_t *mask, const ref_keys_t *keys, int64_t begin, int64_t end,
                const ref_scratch_t *scratch, const ref_state_t *state);

/* Adds key k for the tile's tokens that see it. key_rel counts from the request's first new token. */
void ref_attend_key(const attn_instance_t *in, const attn_forward_t *a, const ref_tile_t *tile,
                    const ref_keys_t *keys, int64_t head, int64_t k, int64_t key_rel, const uint8_t *visible,
                    const ref_scratch_t *scratch, const ref_state_t *state);

/* acc becomes the output, max becomes the natural log-sum-exp; a row without keys: 0 and -inf (semantics
 * 2.14). */
void ref_state_finish(const attn_instance_t *in, const ref_state_t *state, int tokens);

/* Merges finished rows of b into a (semantics 6.5). */
void ref_state_merge(const attn_instance_t *in, const ref_state_t *a, const ref_state_t *b, int tokens);

#endif
