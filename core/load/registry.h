/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of all loaded plugins; the loader saw to it that their names are unique. */
#ifndef ATTNI_REGISTRY_H
#define ATTNI_REGISTRY_H

#include "load/loader.h"

struct attni_registry {
    struct attni_backend **items; /* in load order; owned by the plugins */
    size_t count;
};

int attni_registry_fill(struct attni_registry *registry, const struct attni_plugins *plugins,
                        attn_error_t *error);
void attni_registry_free(struct attni_registry *registry);

/* By name, letter case ignored; NULL: not there. */
struct attni_backend *attni_registry_find(const struct attni_registry *registry, const char *name);

#endif
