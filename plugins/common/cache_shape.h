/* SPDX-License-Identifier: Apache-2.0 */
/* How plugins answer kv_cache_shape alike. */
#ifndef ATTN_CACHE_SHAPE_H
#define ATTN_CACHE_SHAPE_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* The operation, for every role: a dense or a latent cache, or none. num_blocks 0: the problem's; layout:
 * where the problem leaves it open; page: tokens of a block. [pure] */
int cache_shape_give(const attn_problem_t *problem, uint32_t layout, uint32_t page, int64_t num_blocks,
                     attn_kv_cache_shape_t *shape, attn_error_t *error);

/* num_blocks is not negative. */
int cache_shape_check_blocks(int64_t num_blocks, attn_error_t *error);

#endif
