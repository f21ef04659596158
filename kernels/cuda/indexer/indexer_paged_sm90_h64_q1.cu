/* SPDX-License-Identifier: Apache-2.0 */
/* Index logits on Hopper: 64 heads, 1 queries a tile, keys in the cache. */
#include "indexer_logits_sm90.cuh"

INDEXER_LOGITS_SM90_INSTANCE(indexer_paged_sm90_h64_q1, 64, 1, true)
