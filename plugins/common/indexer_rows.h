/* SPDX-License-Identifier: Apache-2.0 */
/* How backends on the host find the rows of an indexer's tensors and of its cache, and the scales that its
 * format asks for (semantics 9.4). */
#ifndef INDEXER_ROWS_H
#define INDEXER_ROWS_H

#include "indexer_check.h"

static inline char *indexer_row(const DLTensor *t, int64_t i) {
    return (char *)attn_data(t) + (t->shape[0] > 1 ? i * attn_byte_stride(t, 0) : 0);
}
static inline char *indexer_head(const DLTensor *t, int64_t i, int64_t h) {
    return indexer_row(t, i) + h * attn_byte_stride(t, 1);
}
static inline int32_t indexer_int(const DLTensor *t, int64_t i) {
    int32_t x;
    memcpy(&x, indexer_row(t, i), sizeof x);
    return x;
}
static inline float indexer_float(const char *at, int64_t i) {
    float x;
    memcpy(&x, at + i * 4, sizeof x);
    return x;
}

/* The scale of a row whose largest magnitude, or the least that counts, is given: over 448, and of powers of
 * two the smallest that is not less (2^ceil(log2 x), without the rounding of log2). */
static inline float indexer_scale(float largest, int power_of_two) {
    const float x = largest / 448.0f;
    int exponent;
    const float fraction = frexpf(x, &exponent); /* in [0.5, 1) */
    return power_of_two && isfinite(x) ? ldexpf(1.0f, fraction == 0.5f ? exponent - 1 : exponent) : x;
}

/* Where a token of the cache lies; scale: its four bytes. */
static inline uint8_t *indexer_token(const attn_indexer_problem_t *p, const DLTensor *cache, int64_t page,
                                     int64_t token, uint8_t **scale) {
    uint8_t *at = (uint8_t *)indexer_row(cache, page);
    *scale = at + (int64_t)p->block_size * p->head_size + token * 4;
    return at + token * p->head_size;
}

/* The token at a position of a request, NULL where there is none. */
static inline const uint8_t *indexer_lookup(const attn_indexer_problem_t *p, const DLTensor *cache,
                                            const DLTensor *table, int64_t request, int64_t position,
                                            uint8_t **scale) {
    const int64_t bs = p->block_size, entry = position / bs;
    int32_t page = -1;
    if (position >= 0 && entry < table->shape[1])
        memcpy(&page, indexer_row(table, request) + entry * 4, sizeof page);
    return page >= 0 && page < cache->shape[0] ? indexer_token(p, cache, page, position % bs, scale) : NULL;
}

#endif
