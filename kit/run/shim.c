/* SPDX-License-Identifier: Apache-2.0 */
/* shim.c: a backend in front of the backend under test, so that a check can bend single calls of an ordinary
 * run. */
#include "check_engine.h"

static const attn_backend_t *target_backend;
static attn_backend_ops_t shim_ops;
static attn_backend_t shim_backend;

const attn_backend_t *shim_target(void) {
    return target_backend;
}

const attn_backend_t *shim_make(const attn_backend_t *target, const attn_backend_ops_t *replaced) {
    target_backend = target;
    shim_backend = *target;
    shim_backend.struct_size = sizeof shim_backend;
    memset(&shim_ops, 0, sizeof shim_ops);
    uint32_t size = target->ops->struct_size;
    memcpy(&shim_ops, target->ops, size < sizeof shim_ops ? size : sizeof shim_ops);
    shim_ops.struct_size = sizeof shim_ops;
    /* An operation that the target lacks stays missing. */
#define SHIM_PUT(OP)                                                                                         \
    if (replaced->OP != NULL && shim_ops.OP != NULL) shim_ops.OP = replaced->OP
    SHIM_PUT(supports_combination);
    SHIM_PUT(open);
    SHIM_PUT(close);
    SHIM_PUT(kv_cache_shape);
    SHIM_PUT(space_needed);
    SHIM_PUT(build_metadata);
    SHIM_PUT(update_block_table);
    SHIM_PUT(update_kv_cache);
    SHIM_PUT(forward);
    SHIM_PUT(prepare_weights);
#undef SHIM_PUT
    shim_backend.ops = &shim_ops;
    return &shim_backend;
}
