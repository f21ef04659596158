/* SPDX-License-Identifier: Apache-2.0 */
/* plan_kernel_block.c: the block size that all kernels of a layer group can work with (semantics 5.5, item
 * 5). */
#include "base/need.h"

#include <attn/attn_plan.h>

/* Exactly: a fixed size must be equal, a "multiple of" must divide. No sizes: any will do. */
static int backend_takes(const uint32_t (*sizes)[2], uint32_t count, uint32_t size) {
    for (uint32_t i = 0; i < count; i++) {
        if (sizes[i][0] == 0) continue;
        if (sizes[i][1] ? size % sizes[i][0] == 0 : size == sizes[i][0]) return 1;
    }
    return count == 0;
}

static int all_accept(const uint32_t (*const *sizes)[2], const uint32_t *num_sizes, int32_t num_backends,
                      uint32_t size) {
    for (int32_t b = 0; b < num_backends; b++)
        if (!backend_takes(sizes[b], num_sizes[b], size)) return 0;
    return 1;
}

int attn_plan_kernel_block_size(int32_t manager_block, const uint32_t (*const *sizes)[2],
                                const uint32_t *num_sizes, int32_t num_backends, int32_t *block_size,
                                attn_error_t *error) {
    ATTNI_AT_LEAST(manager_block, 1, "manager_block", error);
    ATTNI_AT_LEAST(num_backends, 0, "num_backends", error);
    ATTNI_NEED(block_size, "block_size", error);
    if (num_backends > 0) {
        ATTNI_NEED(sizes, "sizes", error);
        ATTNI_NEED(num_sizes, "num_sizes", error);
    }
    int whole = all_accept(sizes, num_sizes, num_backends, (uint32_t)manager_block);
    uint32_t best = whole ? (uint32_t)manager_block : 0;
    for (int32_t b = 0; b < num_backends && !whole; b++) {
        for (uint32_t i = 0; i < num_sizes[b]; i++) {
            uint32_t size = sizes[b][i][0];
            if (sizes[b][i][1] || size <= best || (uint32_t)manager_block % size != 0) continue;
            if (all_accept(sizes, num_sizes, num_backends, size)) best = size;
        }
    }
    if (best == 0)
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "manager_block",
            "no kernel block size divides manager blocks of %d tokens and suits all %d backends; "
            "choose another manager block",
            (int)manager_block, (int)num_backends);
    *block_size = (int32_t)best;
    return ATTN_OK;
}
