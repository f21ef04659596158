/* SPDX-License-Identifier: Apache-2.0 */
/* layer_name.c: what a layer's dotted name says: its index, whose cache it may share, whether its cache is
 * skipped. */
#include "layer/layer.h"
#include "base/need.h"

#include <stdlib.h>

/* A component of digits only, at most 9 of them: a layer number. */
static int is_number(const char *text, size_t length) {
    return length > 0 && length < 10 && strspn(text, "0123456789") >= length;
}

int attn_layer_index(const char *name, int32_t *index, attn_error_t *error) {
    ATTNI_NEED(name, "name", error);
    ATTNI_NEED(index, "index", error);
    int found = 0;
    int32_t value = 0;
    for (const char *part = name; part != NULL;) {
        size_t length = strcspn(part, ".");
        if (is_number(part, length)) {
            value = (int32_t)strtol(part, NULL, 10);
            found++;
        }
        part = part[length] == '.' ? part + length + 1 : NULL;
    }
    if (found != 1)
        return attn_fail(
            error, ATTN_E_INVALID, "name",
            "'%.120s' has %d components that are numbers; a layer name has exactly one, its index", name,
            found);
    *index = value;
    return ATTN_OK;
}

int attn_layer_resolve_kv_cache_dtype(const char *name, uint32_t kv_cache_dtype, int has_sliding_window,
                                      const char *const *skip, uint32_t num_skip, uint32_t *resolved,
                                      attn_error_t *error) {
    ATTNI_NEED(resolved, "resolved", error);
    if (num_skip > 0) ATTNI_NEED(skip, "skip", error);
    int is_skipped = 0;
    for (uint32_t i = 0; i < num_skip; i++) {
        int32_t index;
        ATTNI_NEED(skip[i], "skip", error);
        if (strcmp(skip[i], "sliding_window") == 0) {
            is_skipped |= has_sliding_window != 0;
            continue;
        }
        if (!is_number(skip[i], strlen(skip[i])))
            return attn_fail(error, ATTN_E_INVALID, "skip",
                             "'%.60s' is neither 'sliding_window' nor a layer's index", skip[i]);
        int code = attn_layer_index(name, &index, error);
        if (code != ATTN_OK) return code;
        is_skipped |= strtol(skip[i], NULL, 10) == index;
    }
    *resolved = is_skipped || kv_cache_dtype == 0 ? (uint32_t)ATTN_KV_AUTO : kv_cache_dtype;
    return ATTN_OK;
}

/* The order of the checks and their wording follow semantics 7.9: what the engine did wrong, as exactly as
 * can be said. */
int attni_layer_check_sharing(const attn_layer_t *layer, const char *target, attn_error_t *error) {
    const char *param = "kv_sharing_target";
    const attn_group_t *group = layer->group;
    int32_t own_index, target_index;
    if (attn_role_is_mla(group->problem.role) || !attn_role_has_cache(group->problem.role))
        return attn_fail(error, ATTN_E_UNSUPPORTED, param, "role %s cannot share a cache",
                         attn_role_name(group->problem.role));
    if (strcmp(layer->name, target) == 0)
        return attn_fail(error, ATTN_E_INVALID, param, "layer '%.120s' cannot share its own cache", target);
    int code = attn_layer_index(layer->name, &own_index, error);
    if (code == ATTN_OK) code = attn_layer_index(target, &target_index, error);
    if (code != ATTN_OK) return code;
    struct attni_layer_facts found;
    const int is_there = attni_layers_facts(group->context, target, &found);
    if (target_index >= own_index)
        return attn_fail(error, ATTN_E_INVALID, param,
                         "layer '%.120s' must come before the layer that shares its cache", target);
    if (!is_there)
        return attn_fail(error, ATTN_E_NOT_FOUND, param,
                         "'%.120s' is not a valid layer: no layer of that name was created", target);
    if (found.role != group->problem.role)
        return attn_fail(error, ATTN_E_INVALID, param,
                         "layer '%.120s' has role %s, this one %s; both must be the same", target,
                         attn_role_name(found.role), attn_role_name(group->problem.role));
    if (found.is_sharer)
        return attn_fail(error, ATTN_E_INVALID, param,
                         "layer '%.120s' has no cache of its own: it shares that of '%.120s'", target,
                         found.target);
    if (found.fingerprint != group->shape.fingerprint)
        return attn_fail(
            error, ATTN_E_INVALID, param,
            "the cache of layer '%.120s' has another format (heads, sizes, block size, dtype or layout)",
            target);
    return ATTN_OK;
}
