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

void shim_each_of_update(attn_kv_update_t *a, shim_view_t *view) {
    const DLTensor **const all[] = {&a->key,          &a->value,    &a->kv_cache, &a->v_cache,
                                    &a->slot_mapping, &a->scales.k, &a->scales.v};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        *all[i] = view(*all[i]);
}

void shim_each_of_forward(attn_forward_t *a, shim_view_t *view) {
    const DLTensor **const all[] = {&a->query,        &a->key,         &a->value,    &a->kv_cache,
                                    &a->v_cache,      &a->output,      &a->lse,      &a->sinks,
                                    &a->alibi_slopes, &a->rel_bias,    &a->scales.k, &a->scales.v,
                                    &a->topk_indices, &a->slot_mapping};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        *all[i] = view(*all[i]);
}
