/* SPDX-License-Identifier: Apache-2.0 */
/* How plugins answer alike: the way out of a struct, the counterpart of attn_intake, and the shape of a dense cache. */
#ifndef ATTN_ANSWER_H
#define ATTN_ANSWER_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* Copies a filled struct of `bytes` bytes to a caller, whose struct may be an older and shorter one: not more than its
 * struct_size, which is kept. */
void answer_give(void *to, const void *full, size_t bytes);

/* kv_cache_shape of a role with a dense cache, or without one; the layout where the problem leaves it open, and the page. */
int answer_dense_shape(const attn_problem_t *problem, uint32_t layout, uint32_t page, int64_t num_blocks,
                       attn_kv_cache_shape_t *shape, attn_error_t *error);

#endif
