/* SPDX-License-Identifier: Apache-2.0 */
/* hook_pass.c: operations that do nothing but call the next stage, for the hooks that do not care about
 * them. */
#include "hook/hook.h"

static int pass_shape(attn_instance_t *i, int64_t n, attn_kv_cache_shape_t *shape, attn_error_t *error) {
    const struct attni_stage *next = &attni_hook_of(i)->next;
    return next->ops.kv_cache_shape(next->instance, n, shape, error);
}

static int pass_space(attn_instance_t *i, attn_space_needed_t *needed, attn_error_t *error) {
    const struct attni_stage *next = &attni_hook_of(i)->next;
    return next->ops.space_needed(next->instance, needed, error);
}

static int pass_update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    const struct attni_stage *next = &attni_hook_of(i)->next;
    return next->ops.update_kv_cache(next->instance, args, stream, error);
}

static int pass_weights(attn_instance_t *i, const attn_weights_t *weights, void *stream,
                        attn_error_t *error) {
    const struct attni_stage *next = &attni_hook_of(i)->next;
    return next->ops.prepare_weights(next->instance, weights, stream, error);
}

static const void *pass_extension(attn_instance_t *i, const char *id) {
    const struct attni_stage *next = &attni_hook_of(i)->next;
    return next->ops.get_extension(next->instance, id);
}

attn_backend_ops_t attni_hook_pass(const struct attni_stage *next) {
    attn_backend_ops_t ops = {
        .struct_size = sizeof ops, .kv_cache_shape = pass_shape, .space_needed = pass_space};
    if (next->ops.update_kv_cache != NULL) ops.update_kv_cache = pass_update;
    if (next->ops.prepare_weights != NULL) ops.prepare_weights = pass_weights;
    if (next->ops.get_extension != NULL) ops.get_extension = pass_extension;
    return ops;
}
