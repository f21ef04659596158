/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a plugin's exported tables in, reading only within the sizes that they give and that the symbol
 * has. What is kept are copies of known size: after this a member that the plugin does not have is zero.
 */
#include "load/loader.h"

#include "base/plain_text.h"
#include "load/option_value.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BACKENDS = 64, MAX_OPTIONS = 256, MAX_RANGES = 256 };
#define MAGIC_BEFORE_FREEZE UINT64_C(0x3067756c506e7441) /* "AtnPlug0": members moved until 1.0 was frozen */

static int is_name(const char *text) {
    if (!text) return 0;
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return length > 0 && length < 64 && !text[length];
}

/* A text that is shown: there, and without characters that act on a terminal. */
static int is_shown(const char *text) {
    return text && attni_text_is_plain(text);
}

static int check_head(const struct attni_plugin *plugin, const attn_plugin_t *raw, size_t size,
                      attn_error_t *error) {
    const size_t first_four = offsetof(attn_plugin_t, abi_minor) + sizeof raw->abi_minor;
    if ((!size || size >= first_four) && raw->magic == MAGIC_BEFORE_FREEZE)
        return attn_fail(error, ATTN_E_ABI, "magic",
                         "%s was built with a header of plugin ABI %u.%u from before its freeze (magic "
                         "AtnPlug0), whose members lie elsewhere; build it with this libattn's header",
                         plugin->path, raw->abi_major, raw->abi_minor);
    if ((size && size < first_four) || raw->magic != ATTN_PLUGIN_MAGIC)
        return attn_fail(error, ATTN_E_ABI, "magic",
                         "%s: %s does not start with the plugin magic; it is not a libattn plugin",
                         plugin->path, ATTN_PLUGIN_SYMBOL_NAME);
    if (raw->abi_major != ATTN_ABI_MAJOR)
        return attn_fail(
            error, ATTN_E_ABI, "abi_major",
            "%s was built for plugin ABI %u.%u, this libattn has %d.%d; build it with this libattn's header",
            plugin->path, raw->abi_major, raw->abi_minor, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
    if (raw->struct_size < offsetof(attn_plugin_t, reserved) || (size && raw->struct_size > size))
        return attn_fail(error, ATTN_E_ABI, "struct_size",
                         "%s: struct_size is %u, expected %zu to %zu; set it to sizeof(attn_plugin_t)",
                         plugin->path, raw->struct_size, offsetof(attn_plugin_t, reserved),
                         size ? size : sizeof *raw);
    return 0;
}

static int check_body(const struct attni_plugin *plugin, attn_error_t *error) {
    const attn_plugin_t *info = &plugin->info;
    if (info->flags)
        return attn_fail(error, ATTN_E_TOO_NEW, "flags", "%s uses plugin flags 0x%x; this libattn knows none",
                         plugin->path, info->flags);
    if (!is_name(info->name))
        return attn_fail(error, ATTN_E_ABI, "name",
                         "%s: the plugin's name is missing or not made of letters, digits and '_'",
                         plugin->path);
    if (!is_shown(info->version) || !is_shown(info->vendor) || !is_shown(info->license) ||
        !is_shown(info->build_id))
        return attn_fail(
            error, ATTN_E_ABI, "version",
            "%s: version, vendor, license or build_id is NULL or has control characters; \"\" is allowed",
            plugin->path);
    if (!info->num_backends || info->num_backends > MAX_BACKENDS || !info->backends)
        return attn_fail(error, ATTN_E_ABI, "num_backends",
                         "%s has %u backends, expected 1 to %d and a table", plugin->path, info->num_backends,
                         MAX_BACKENDS);
    if (info->num_options > MAX_OPTIONS || (info->num_options && !info->options))
        return attn_fail(error, ATTN_E_ABI, "num_options",
                         "%s has %u options, expected at most %d and a table", plugin->path,
                         info->num_options, MAX_OPTIONS);
    return 0;
}

/* The default is what serves where nothing is configured, so it has to pass as a configured value would. */
static int check_option(const struct attni_plugin *plugin, uint32_t i, attn_error_t *error) {
    const attn_option_spec_t *spec = &plugin->options[i];
    attn_option_value_t value;
    ATTN_INIT(attn_error_t, why);
    if (!is_name(spec->name) || spec->type < ATTN_OPTION_INT || spec->type > ATTN_OPTION_ENUM ||
        !spec->default_value || (spec->type == ATTN_OPTION_ENUM && !spec->choices))
        return attn_fail(error, ATTN_E_ABI, "options",
                         "%s: option %u has no name, type, default_value or choices", plugin->path, i);
    if ((spec->doc && !is_shown(spec->doc)) || !is_shown(spec->default_value) ||
        (spec->choices && !is_shown(spec->choices)))
        return attn_fail(error, ATTN_E_ABI, "options", "%s: a text of option %s has control characters",
                         plugin->path, spec->name);
    if (attni_option_parse(spec, spec->default_value, "its default", &value, &why) != ATTN_OK)
        return attn_fail(error, ATTN_E_ABI, "options", "%s: %.300s as default_value", plugin->path, why.text);
    return ATTN_OK;
}

static int copy_options(struct attni_plugin *plugin, attn_error_t *error) {
    uint32_t count = plugin->info.num_options;
    if (!count) return 0;
    plugin->options = calloc(count, sizeof *plugin->options);
    if (!plugin->options) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for options");
    size_t stride = plugin->info.options[0].struct_size;
    if (stride < offsetof(attn_option_spec_t, min_int) || stride % sizeof(void *))
        return attn_fail(error, ATTN_E_ABI, "options", "%s: options[0].struct_size is %zu, expected %zu",
                         plugin->path, stride, sizeof *plugin->options);
    for (uint32_t i = 0; i < count; i++) {
        attn_option_spec_t *spec = &plugin->options[i];
        int code = attn_intake(spec, sizeof *spec, (const char *)plugin->info.options + i * stride, "options",
                               error);
        if (code == ATTN_OK) code = check_option(plugin, i, error);
        if (code != ATTN_OK) return code;
    }
    plugin->info.options = plugin->options;
    return 0;
}

static int check_lists(const struct attni_backend *backend, const char *path, attn_error_t *error) {
    const attn_capabilities_t *caps = &backend->capabilities;
    int bad = (caps->num_head_sizes && !caps->head_sizes) ||
              (caps->num_head_sizes_v && !caps->head_sizes_v) ||
              (caps->num_block_sizes && !caps->block_sizes) ||
              (caps->num_compute_capabilities && !caps->compute_capabilities) ||
              caps->num_head_sizes > MAX_RANGES || caps->num_head_sizes_v > MAX_RANGES ||
              caps->num_block_sizes > MAX_RANGES || caps->num_compute_capabilities > MAX_RANGES;
    for (uint32_t i = 0; !bad && i < caps->num_block_sizes; i++)
        bad = caps->block_sizes[i].size == 0;
    if (bad)
        return attn_fail(error, ATTN_E_ABI, "capabilities",
                         "%s: backend %s has a list without entries, of more than %d, or a block size 0",
                         path, backend->shown.name, MAX_RANGES);
    if (!caps->roles || !caps->dtypes || !caps->device_types)
        return attn_fail(error, ATTN_E_ABI, "capabilities",
                         "%s: backend %s serves no role, no dtype or no device type; fill its capabilities",
                         path, backend->shown.name);
    return 0;
}

static int check_operations(const struct attni_backend *backend, const char *path, attn_error_t *error) {
    const attn_backend_ops_t *ops = &backend->ops;
    const char *missing = !ops->open             ? "open"
                          : !ops->close          ? "close"
                          : !ops->kv_cache_shape ? "kv_cache_shape"
                          : !ops->space_needed   ? "space_needed"
                          : !ops->build_metadata ? "build_metadata"
                          : !ops->forward        ? "forward"
                                                 : NULL;
    if (missing)
        return attn_fail(error, ATTN_E_ABI, missing, "%s: backend %s has no operation %s; it is required",
                         path, backend->shown.name, missing);
    return 0;
}

static int copy_backend(struct attni_plugin *plugin, uint32_t index, attn_error_t *error) {
    const char *path = plugin->path;
    const attn_backend_t *raw = plugin->info.backends[index];
    struct attni_backend *backend = &plugin->backends[index];
    attn_backend_t *info = &backend->shown;
    int code = attn_intake(info, sizeof *info, raw, "backend", error);
    if (code != ATTN_OK) return code;
    if (info->flags)
        return attn_fail(error, ATTN_E_TOO_NEW, "flags",
                         "%s: backend %u uses flags 0x%x; this libattn knows none", path, index, info->flags);
    if (!is_name(info->name) || !info->capabilities || !info->ops)
        return attn_fail(error, ATTN_E_ABI, "backends", "%s: backend %u has no name, capabilities or ops",
                         path, index);
    if (!info->doc) info->doc = "";
    if (!is_shown(info->doc))
        return attn_fail(error, ATTN_E_ABI, "backends", "%s: the doc of backend %s has control characters",
                         path, info->name);
    backend->plugin = plugin;
    code = attn_intake(&backend->capabilities, sizeof backend->capabilities, info->capabilities,
                       "capabilities", error);
    if (code == ATTN_OK) code = attn_intake(&backend->ops, sizeof backend->ops, info->ops, "ops", error);
    info->capabilities = &backend->capabilities;
    info->ops = &backend->ops;
    plugin->shown[index] = info;
    if (code == ATTN_OK) code = check_lists(backend, path, error);
    if (code == ATTN_OK) code = check_operations(backend, path, error);
    return code;
}

static int copy_backends(struct attni_plugin *plugin, attn_error_t *error) {
    plugin->backends = calloc(plugin->info.num_backends, sizeof *plugin->backends);
    plugin->shown = calloc(plugin->info.num_backends, sizeof *plugin->shown);
    if (!plugin->backends || !plugin->shown)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for backends");
    for (uint32_t i = 0; i < plugin->info.num_backends; i++) {
        int code = copy_backend(plugin, i, error);
        if (code != ATTN_OK) return code;
    }
    plugin->backend_count = plugin->info.num_backends;
    plugin->info.backends = plugin->shown;
    return 0;
}

/*
 * attn_plugin_t starts with its magic, so attn_intake does not fit: the same rule with the size in second
 * place.
 */
static int copy_plugin(struct attni_plugin *plugin, const attn_plugin_t *raw, attn_error_t *error) {
    size_t size = raw->struct_size, known = sizeof plugin->info;
    memset(&plugin->info, 0, known);
    memcpy(&plugin->info, raw, size < known ? size : known);
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)raw)[i])
            return attn_fail(error, ATTN_E_TOO_NEW, "struct_size",
                             "%s uses a member at byte %zu of its descriptor; this libattn knows %zu "
                             "bytes: update libattn",
                             plugin->path, i, known);
    plugin->info.struct_size = (uint32_t)known;
    return 0;
}

int attni_descriptor_intake(struct attni_plugin *plugin, const void *exported, size_t size,
                            attn_error_t *error) {
    int code = check_head(plugin, exported, size, error);
    if (code == ATTN_OK) code = copy_plugin(plugin, exported, error);
    if (code == ATTN_OK) code = check_body(plugin, error);
    if (code == ATTN_OK) code = copy_options(plugin, error);
    if (code == ATTN_OK) code = copy_backends(plugin, error);
    if (code != ATTN_OK) attni_descriptor_drop(plugin);
    return code;
}

void attni_descriptor_drop(struct attni_plugin *plugin) {
    free(plugin->options);
    free(plugin->backends);
    free(plugin->shown);
    plugin->options = NULL;
    plugin->backends = NULL;
    plugin->shown = NULL;
    plugin->backend_count = 0;
    memset(&plugin->info, 0, sizeof plugin->info);
}
