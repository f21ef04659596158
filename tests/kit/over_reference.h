/* SPDX-License-Identifier: Apache-2.0 */
/* What kit_*_bad.c share: the reference plugin, -DREFERENCE="path", under a name of its own. A file that
 * includes this defines BAD_NAME, and put_mistakes(), which puts functions of its own into `ops` and may
 * change `can`; `target` does the work. */
#ifndef TESTS_KIT_OVER_REFERENCE_H
#define TESTS_KIT_OVER_REFERENCE_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

#include <dlfcn.h>

static attn_backend_ops_t ops;
static attn_capabilities_t can;
static attn_backend_t backend;
static const attn_backend_t *target;

/* Structs of other ages, and none, are the reference's affair. */
#define PASS_ON(OP, ...)                                                                                     \
    if (args == NULL || args->struct_size != sizeof *args) return target->ops->OP(__VA_ARGS__)

static void put_mistakes(void);

static const attn_backend_t *const list[] = {&backend};
__attribute__((visibility("default"))) attn_plugin_t attn_plugin_v1;

/* For put_mistakes(): one option, pieces, of 1 to 64. */
static inline void put_pieces_option(void) {
    static const attn_option_spec_t spec[] = {{.struct_size = sizeof(attn_option_spec_t),
                                               .type = ATTN_OPTION_INT,
                                               .name = "pieces",
                                               .doc = "Pieces that the keys of a row have at most.",
                                               .default_value = "1",
                                               .min_int = 1,
                                               .max_int = 64}};
    attn_plugin_v1.options = spec;
    attn_plugin_v1.num_options = 1;
}

__attribute__((constructor)) static void load(void) {
    void *file = dlopen(REFERENCE, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = file != NULL ? dlsym(file, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL) return;
    target = plugin->backends[0];
    attn_plugin_v1 = *plugin;
    attn_plugin_v1.backends = list;
    attn_plugin_v1.num_backends = 1;
    ops = *target->ops;
    can = *target->capabilities;
    backend = *target;
    backend.name = BAD_NAME;
    backend.ops = &ops;
    backend.capabilities = &can;
    put_mistakes();
}

#endif
