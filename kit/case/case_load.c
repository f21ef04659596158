/* SPDX-License-Identifier: Apache-2.0 */
/* case_load.c: a backend of a plugin file, for tests that need no more than that. */
#include "attn_case.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

const attn_backend_t *kit_load(const char *path, const char *name, char *why, size_t why_size) {
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        snprintf(why, why_size, "%s", dlerror());
        return NULL;
    }
    const attn_plugin_t *plugin = dlsym(file, ATTN_PLUGIN_SYMBOL_NAME);
    if (plugin == NULL || plugin->magic != ATTN_PLUGIN_MAGIC || plugin->abi_major != ATTN_ABI_MAJOR) {
        snprintf(why, why_size, "%s exports no %s of ABI %d.%d", path, ATTN_PLUGIN_SYMBOL_NAME,
                 ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
        return NULL;
    }
    for (uint32_t i = 0; i < plugin->num_backends; i++)
        if (name == NULL || strcmp(plugin->backends[i]->name, name) == 0) return plugin->backends[i];
    snprintf(why, why_size, "%s has no backend %s", path, name != NULL ? name : "at all");
    return NULL;
}
