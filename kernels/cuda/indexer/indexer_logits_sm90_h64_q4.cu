/* SPDX-License-Identifier: Apache-2.0 */
/* Index logits on Hopper: 64 heads, 4 queries a tile, keys in one piece. */
#include "indexer_logits_sm90.cuh"

INDEXER_LOGITS_SM90_INSTANCE(indexer_logits_sm90_h64_q4, 64, 4, false)
