/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a plugin. */
#include "answer.h"

void answer_give(void *to, const void *full, size_t bytes) {
    uint32_t size;
    memcpy(&size, to, sizeof size);
    memcpy(to, full, size < bytes ? size : bytes);
    memcpy(to, &size, sizeof size);
}

int answer_dense_shape(const attn_problem_t *p, uint32_t layout, uint32_t page, int64_t num_blocks,
                       attn_kv_cache_shape_t *shape, attn_error_t *error) {
    attn_kv_cache_shape_t full = {.struct_size = sizeof full};
    int status = ATTN_OK;
    if (num_blocks < 0)
        return attn_fail(error, ATTN_E_INVALID, "num_blocks", "num_blocks is %lld; it must not be negative",
                         (long long)num_blocks);
    if (attn_role_has_cache(p->role))
        status = attn_dense_cache_shape(p, p->kv_layout != 0 ? p->kv_layout : layout, page,
                                        num_blocks != 0 ? num_blocks : p->num_blocks, &full, error);
    if (status == ATTN_OK) answer_give(shape, &full, sizeof full);
    return status;
}
