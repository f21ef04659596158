/* SPDX-License-Identifier: Apache-2.0 */
/* A plain array in load order: there are a dozen backends, and order is what people read. */
#include "load/registry.h"

#include <attn/attn_plugin_util.h>

#include <stdlib.h>
#include <strings.h>

struct attni_backend *attni_registry_find(const struct attni_registry *registry, const char *name) {
    for (size_t i = 0; i < registry->count; i++)
        if (!strcasecmp(registry->items[i]->shown.name, name)) return registry->items[i];
    return NULL;
}

int attni_registry_fill(struct attni_registry *registry, const struct attni_plugins *plugins,
                        attn_error_t *error) {
    size_t total = 0;
    *registry = (struct attni_registry){0};
    for (size_t i = 0; i < plugins->count; i++)
        total += plugins->items[i]->backend_count;
    registry->items = calloc(total ? total : 1, sizeof(struct attni_backend *));
    if (!registry->items) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the registry");
    for (size_t i = 0; i < plugins->count; i++)
        for (uint32_t j = 0; j < plugins->items[i]->backend_count; j++)
            registry->items[registry->count++] = &plugins->items[i]->backends[j];
    return ATTN_OK;
}

void attni_registry_free(struct attni_registry *registry) {
    free(registry->items);
    *registry = (struct attni_registry){0};
}
