/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked about a context: configuration values, plugins, backends. */
#include "load/context.h"
#include <attn/attn_plugin_util.h>
#include "base/nearest.h"

#include <string.h>

/* Copies as much of an info struct as the caller's header knows. */
static int give(void *out, const void *from, size_t size) {
    uint32_t wanted;
    memcpy(&wanted, out, sizeof wanted);
    if (wanted < sizeof wanted) return ATTN_E_INVALID;
    size_t shared = wanted < size ? wanted : size;
    memset(out, 0, wanted);
    memcpy(out, from, shared);
    memcpy(out, &wanted, sizeof wanted);
    return ATTN_OK;
}

int attn_context_config(const attn_context_t *context, uint32_t index, attn_config_value_t *value) {
    if (!context || !value) return ATTN_E_INVALID;
    if (index >= context->value_count) return ATTN_E_NOT_FOUND;
    return give(value, &context->values[index], sizeof *value);
}

int attn_context_plugin(const attn_context_t *context, uint32_t index, attn_plugin_info_t *info) {
    if (!context || !info) return ATTN_E_INVALID;
    if (index >= context->plugins.count) return ATTN_E_NOT_FOUND;
    const struct attni_plugin *plugin = context->plugins.items[index];
    int is_loaded = plugin->refusal.code == ATTN_OK;
    attn_plugin_info_t filled = {.struct_size = sizeof filled,
                                 .status = plugin->refusal.code,
                                 .name = plugin->name,
                                 .path = plugin->path ? plugin->path : "",
                                 .version = is_loaded ? plugin->info.version : "",
                                 .vendor = is_loaded ? plugin->info.vendor : "",
                                 .license = is_loaded ? plugin->info.license : "",
                                 .build_id = is_loaded ? plugin->info.build_id : "",
                                 .reason = plugin->refusal.text,
                                 .plugin = is_loaded ? &plugin->info : NULL};
    return give(info, &filled, sizeof filled);
}

const attn_backend_t *attn_context_backend(const attn_context_t *context, uint32_t index) {
    return context && index < context->registry.count ? &context->registry.items[index]->shown : NULL;
}

const attn_backend_t *attn_context_find_backend(const attn_context_t *context, const char *name,
                                                attn_error_t *error) {
    enum { MAX_NAMES = 256 };
    if (!context || !name) {
        attn_fail(error, ATTN_E_INVALID, context ? "name" : "context", "%s is NULL",
                  context ? "name" : "context");
        return NULL;
    }
    const struct attni_backend *backend = attni_registry_find(&context->registry, name);
    if (backend) return &backend->shown;
    const char *names[MAX_NAMES];
    size_t count = 0;
    for (; count < context->registry.count && count < MAX_NAMES; count++)
        names[count] = context->registry.items[count]->shown.name;
    char near[96];
    attn_fail(error, ATTN_E_NOT_FOUND, "backend", "no loaded plugin has a backend '%.60s'%s; see: attn info",
              name, attni_did_you_mean(near, sizeof near, name, names, count));
    return NULL;
}
