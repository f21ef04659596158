/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_mask.h: which keys a query sees, said point by point, exactly as semantics 2.2 to 2.8 say it. Fast
 * backends turn masks into key intervals; this one does not, so that it can judge them.
 */
#ifndef ATTN_REFERENCE_MASK_H
#define ATTN_REFERENCE_MASK_H

#include <stdint.h>

/* The mask of one request. Lengths and positions in tokens, absolute; 0 switches a part off. */
typedef struct ref_mask {
    int64_t seq_len;
    int64_t context_len; /* position of the request's first query; negative in cross attention is fine */
    int is_causal;
    int64_t window;         /* W, own token included; both sides where the request is not causal */
    int64_t chunk;          /* chunked local attention: tokens per chunk */
    int64_t lookback_chunk; /* chunk lookback: tokens per chunk; replaces the window */
    int64_t lookback;       /* chunks visible to the left */
    int64_t rswa_window;    /* reference sliding window; replaces the window */
    int64_t rswa_prefix;
    const int32_t *spans; /* [num_spans][2], both ends inclusive */
    int32_t num_spans;
    int is_span_clamped; /* spans respect the window on the left */
} ref_mask_t;

/* 1 iff the query at absolute position q sees key k. */
int ref_mask_visible(const ref_mask_t *mask, int64_t q, int64_t k);

#endif
