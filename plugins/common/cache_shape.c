/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a cache, as an answer to the host. */
#include "cache_shape.h"

int cache_shape_check_blocks(int64_t num_blocks, attn_error_t *error) {
    if (num_blocks >= 0) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "num_blocks", "num_blocks is %lld; it must not be negative",
                     (long long)num_blocks);
}

int cache_shape_give(const attn_problem_t *p, uint32_t layout, uint32_t page, int64_t num_blocks,
                     attn_kv_cache_shape_t *shape, attn_error_t *error) {
    attn_kv_cache_shape_t full = {.struct_size = sizeof full};
    int status = cache_shape_check_blocks(num_blocks, error);
    if (num_blocks == 0) num_blocks = p->num_blocks;
    if (status == ATTN_OK && (p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE))
        status = attn_latent_cache_shape(p, page, num_blocks, &full, error);
    else if (status == ATTN_OK && attn_role_has_cache(p->role))
        status = attn_dense_cache_shape(p, p->kv_layout != 0 ? p->kv_layout : layout, page, num_blocks, &full,
                                        error);
    return status == ATTN_OK ? attn_give(shape, &full, sizeof full, "shape", error) : status;
}
