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

/* H heads, Q queries a tile. p NULL prepares the kernel of the current device. */
int indexer_logits_sm90_h64_q4(const indexer_sm90_params *p, int ctas, void *stream);
int indexer_paged_sm90_h64_q1(const indexer_sm90_params *p, int ctas, void *stream);
int indexer_paged_sm90_h64_q2(const indexer_sm90_params *p, int ctas, void *stream);

#ifdef __cplusplus
}
#endif
#endif
