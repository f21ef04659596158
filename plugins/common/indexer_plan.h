/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of attn.draft.indexer/0 that need no device, the same for every backend: opening up to the
 * kernels, the shape of the cache, the sizes of the buffers, and how a batch of prefills is cut into chunks
 * (semantics 9.4, 9.5). */
#ifndef INDEXER_PLAN_H
#define INDEXER_PLAN_H

#include "indexer_check.h"

/* The checks of open: the problem with its defaults, the device, and that there is a place for the result. */
int indexer_check_open(const attn_indexer_problem_t *problem, const attn_device_t *device,
                       attn_indexer_t *const *indexer, attn_indexer_problem_t *p, attn_device_t *taken,
                       attn_error_t *error);

/* As in the extension's table. An indexer begins with its rules. */
int indexer_cache_shape(attn_indexer_t *indexer, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                        attn_error_t *error);
int indexer_space_needed(attn_indexer_t *indexer, attn_indexer_space_t *space, attn_error_t *error);
int indexer_plan_prefill(attn_indexer_t *indexer, int32_t num_reqs, const int32_t *query_start_loc,
                         const int32_t *seq_lens, attn_indexer_chunk_t *chunks, int32_t capacity,
                         int32_t *num_chunks, attn_error_t *error);

#endif
