/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the Hopper kernels of the index logits: the common ones, and the tensor maps that TMA reads
 * through. */
#ifndef INDEXER_LOGITS_SM90_H
#define INDEXER_LOGITS_SM90_H

#include "indexer_params.h"

#include <cuda.h>

typedef struct indexer_sm90_params {
    CUtensorMap q_map; /* {128 bytes, heads, rows}, a box of all heads of a tile's rows */
    CUtensorMap
        k_map; /* in one piece: {128, keys}, a box of 128 keys; paged: {128, tokens of a page, pages} */
    CUtensorMap s_map; /* in one piece: {keys} float32 */
    indexer_logits_params p;
    int32_t box_rows; /* paged: tokens of one box, 16, 32 or 64; divides the page */
    int32_t reserved;
} indexer_sm90_params;

#ifdef __cplusplus
extern "C" {
#endif

/* The instances; the first that serves a call is taken. X(NAME, heads, queries of a tile, whether keys are in
 * the cache). p NULL prepares the kernel on the current device. */
#define INDEXER_SM90_INSTANCES(X)                                                                            \
    X(indexer_logits_sm90_h64_q4, 64, 4, 0)                                                                  \
    X(indexer_paged_sm90_h64_q2, 64, 2, 1)                                                                   \
    X(indexer_paged_sm90_h64_q1, 64, 1, 1)
#define INDEXER_SM90_DECLARE(NAME, HEADS, QUERIES, PAGED)                                                    \
    int NAME(const indexer_sm90_params *p, int ctas, void *stream);
INDEXER_SM90_INSTANCES(INDEXER_SM90_DECLARE)

#ifdef __cplusplus
}
#endif
#endif
