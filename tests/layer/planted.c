/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planted.c: the backends of another plugin, of the file in $PLANTED_TARGET, with their own names and a
 * forward that spoils what it computed, as $PLANTED says at each call: "value" puts a wrong number into the
 * first row of the output, "nan" a NaN, "behind" writes behind the workspace; anything else leaves it alone.
 */
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>
#include <dlfcn.h>
#include <stdlib.h>

enum { MAX_BACKENDS = 4 };

/* Filled before the loader looks it up. */
extern attn_plugin_t attn_plugin_v1;
__attribute__((visibility("default"))) attn_plugin_t attn_plugin_v1;
static attn_backend_ops_t ops[MAX_BACKENDS], target[MAX_BACKENDS];
static attn_backend_t backends[MAX_BACKENDS];
static const attn_backend_t *list[MAX_BACKENDS];

/* The program has libattn. */
static const attn_device_kind_t *kind_of(int32_t type) {
    const attn_device_kind_t *(*find)(int32_t type);
    void *symbol = dlsym(RTLD_DEFAULT, "attn_device_kind");
    if (symbol == NULL) return NULL;
    memcpy(&find, &symbol, sizeof find);
    return find(type);
}

static int spoil(const attn_forward_t *a, const attn_space_t *space, void *stream, attn_error_t *error) {
    const char *what = getenv("PLANTED");
    const DLDevice *d = &a->output->device;
    const attn_device_kind_t *kind = kind_of((int32_t)d->device_type);
    if (what == NULL || kind == NULL || space == NULL) return ATTN_OK;
    if (strcmp(what, "value") == 0)
        return kind->fill(d->device_id, attn_data(a->output), 0x5c, 2, stream, error);
    if (strcmp(what, "nan") == 0)
        return kind->fill(d->device_id, attn_data(a->output), 0xff, 2, stream, error);
    if (strcmp(what, "behind") == 0)
        return kind->fill(d->device_id, (char *)space->workspace + space->workspace_bytes, 1, 3, stream,
                          error);
    return ATTN_OK;
}

static int forward(int which, attn_instance_t *instance, const attn_forward_t *a, const attn_space_t *space,
                   void *stream, attn_error_t *error) {
    const int code = target[which].forward(instance, a, space, stream, error);
    return code != ATTN_OK ? code : spoil(a, space, stream, error);
}

#define FORWARD(N)                                                                                           \
    static int forward_##N(attn_instance_t *i, const attn_forward_t *a, const attn_space_t *space,           \
                           void *stream, attn_error_t *error) {                                              \
        return forward(N, i, a, space, stream, error);                                                       \
    }
FORWARD(0)
FORWARD(1)
FORWARD(2)
FORWARD(3)

__attribute__((constructor)) static void take(void) {
    static int (*const forwards[MAX_BACKENDS])(attn_instance_t *, const attn_forward_t *,
                                               const attn_space_t *, void *,
                                               attn_error_t *) = {forward_0, forward_1, forward_2, forward_3};
    const char *path = getenv("PLANTED_TARGET");
    void *file = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const attn_plugin_t *plugin = file != NULL ? dlsym(file, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL || plugin->num_backends > MAX_BACKENDS) return;
    attn_plugin_v1 = *plugin;
    attn_plugin_v1.name = "planted";
    attn_plugin_v1.backends = list;
    for (uint32_t i = 0; i < plugin->num_backends; i++) {
        backends[i] = *plugin->backends[i];
        memcpy(&target[i], backends[i].ops,
               backends[i].ops->struct_size < sizeof ops[i] ? backends[i].ops->struct_size : sizeof ops[i]);
        ops[i] = target[i];
        ops[i].forward = forwards[i];
        backends[i].ops = &ops[i];
        list[i] = &backends[i];
    }
}
