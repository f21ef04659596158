/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a plugin's exported tables in, reading only within the sizes that they give and that the symbol
 * has. What is kept are copies of known size: after this a member that the plugin does not have is zero.
 */
#include "fail.h"
#include "loader.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BACKENDS = 64, MOST_OPTIONS = 256, MOST_RANGES = 256 };

static int is_name(const char *text) {
    if (!text) return 0;
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return length > 0 && length < 64 && !text[length];
}

static int check_head(const struct attni_plugin *plugin, const attn_plugin_t *raw, size_t size,
                      attn_error_t *err) {
    const size_t first_four = offsetof(attn_plugin_t, abi_minor) + sizeof raw->abi_minor;
    if ((size && size < first_four) || raw->magic != ATTN_PLUGIN_MAGIC)
        return attni_fail_param(err, ATTN_E_ABI, "magic",
                                "%s: %s does not start with the plugin magic; it is no libattn plugin",
                                plugin->path, ATTN_PLUGIN_SYMBOL_NAME);
    if (raw->abi_major != ATTN_ABI_MAJOR)
        return attni_fail_param(
            err, ATTN_E_ABI, "abi_major",
            "%s was built for plugin ABI %u.%u, this libattn has %d.%d; build it with this libattn's header",
            plugin->path, raw->abi_major, raw->abi_minor, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
    if (raw->struct_size < offsetof(attn_plugin_t, reserved) || (size && raw->struct_size > size))
        return attni_fail_param(err, ATTN_E_ABI, "struct_size",
                                "%s: struct_size is %u, wanted %zu to %zu; set it to sizeof(attn_plugin_t)",
                                plugin->path, raw->struct_size, offsetof(attn_plugin_t, reserved),
                                size ? size : sizeof *raw);
    return 0;
}

static int check_body(const struct attni_plugin *plugin, attn_error_t *err) {
    const attn_plugin_t *info = &plugin->info;
    if (info->flags)
        return attni_fail_param(err, ATTN_E_TOO_NEW, "flags",
                                "%s uses plugin flags 0x%x; this libattn knows none", plugin->path,
                                info->flags);
    if (!is_name(info->name))
        return attni_fail_param(err, ATTN_E_ABI, "name",
                                "%s: the plugin's name is missing or not made of letters, digits and '_'",
                                plugin->path);
    if (!info->version || !info->vendor || !info->license || !info->build_id)
        return attni_fail_param(err, ATTN_E_ABI, "version",
                                "%s: version, vendor, license or build_id is NULL; \"\" is allowed",
                                plugin->path);
    if (!info->num_backends || info->num_backends > MOST_BACKENDS || !info->backends)
        return attni_fail_param(err, ATTN_E_ABI, "num_backends",
                                "%s has %u backends, wanted 1 to %d and a table", plugin->path,
                                info->num_backends, MOST_BACKENDS);
    if (info->num_options > MOST_OPTIONS || (info->num_options && !info->options))
        return attni_fail_param(err, ATTN_E_ABI, "num_options",
                                "%s has %u options, wanted at most %d and a table", plugin->path,
                                info->num_options, MOST_OPTIONS);
    return 0;
}

static int take_options(struct attni_plugin *plugin, attn_error_t *err) {
    uint32_t count = plugin->info.num_options;
    if (!count) return 0;
    plugin->options = calloc(count, sizeof *plugin->options);
    if (!plugin->options) return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for options");
    size_t stride = plugin->info.options[0].struct_size;
    if (stride < offsetof(attn_option_spec_t, min_int) || stride % sizeof(void *))
        return attni_fail_param(err, ATTN_E_ABI, "options", "%s: options[0].struct_size is %zu, wanted %zu",
                                plugin->path, stride, sizeof *plugin->options);
    for (uint32_t i = 0; i < count; i++) {
        attn_option_spec_t *spec = &plugin->options[i];
        int code =
            attn_intake(spec, sizeof *spec, (const char *)plugin->info.options + i * stride, "options", err);
        if (code) return code;
        if (!is_name(spec->name) || spec->type < ATTN_OPTION_INT || spec->type > ATTN_OPTION_ENUM ||
            !spec->default_value || (spec->type == ATTN_OPTION_ENUM && !spec->choices))
            return attni_fail_param(err, ATTN_E_ABI, "options",
                                    "%s: option %u has no name, type, default_value or choices", plugin->path,
                                    i);
    }
    plugin->info.options = plugin->options;
    return 0;
}

static int check_lists(const struct attni_backend *backend, const char *path, attn_error_t *err) {
    const attn_capabilities_t *caps = &backend->capabilities;
    int bad = (caps->num_head_sizes && !caps->head_sizes) ||
              (caps->num_head_sizes_v && !caps->head_sizes_v) ||
              (caps->num_block_sizes && !caps->block_sizes) ||
              (caps->num_compute_capabilities && !caps->compute_capabilities) ||
              caps->num_head_sizes > MOST_RANGES || caps->num_head_sizes_v > MOST_RANGES ||
              caps->num_block_sizes > MOST_RANGES || caps->num_compute_capabilities > MOST_RANGES;
    for (uint32_t i = 0; !bad && i < caps->num_block_sizes; i++)
        bad = caps->block_sizes[i].size == 0;
    if (bad)
        return attni_fail_param(
            err, ATTN_E_ABI, "capabilities",
            "%s: backend %s has a list without entries, of more than %d, or a block size 0", path,
            backend->shown.name, MOST_RANGES);
    if (!caps->roles || !caps->dtypes || !caps->device_types)
        return attni_fail_param(
            err, ATTN_E_ABI, "capabilities",
            "%s: backend %s serves no role, no dtype or no device type; fill its capabilities", path,
            backend->shown.name);
    return 0;
}

static int check_operations(const struct attni_backend *backend, const char *path, attn_error_t *err) {
    const attn_backend_ops_t *ops = &backend->ops;
    const char *missing = !ops->open             ? "open"
                          : !ops->close          ? "close"
                          : !ops->kv_cache_shape ? "kv_cache_shape"
                          : !ops->space_needed   ? "space_needed"
                          : !ops->build_metadata ? "build_metadata"
                          : !ops->forward        ? "forward"
                                                 : NULL;
    if (missing)
        return attni_fail_param(err, ATTN_E_ABI, missing,
                                "%s: backend %s has no operation %s; it is required", path,
                                backend->shown.name, missing);
    return 0;
}

static int take_backend(struct attni_plugin *plugin, uint32_t index, attn_error_t *err) {
    const char *path = plugin->path;
    const attn_backend_t *raw = plugin->info.backends[index];
    struct attni_backend *backend = &plugin->backends[index];
    attn_backend_t *info = &backend->shown;
    int code = attn_intake(info, sizeof *info, raw, "backend", err);
    if (code) return code;
    if (info->flags)
        return attni_fail_param(err, ATTN_E_TOO_NEW, "flags",
                                "%s: backend %u uses flags 0x%x; this libattn knows none", path, index,
                                info->flags);
    if (!is_name(info->name) || !info->capabilities || !info->ops)
        return attni_fail_param(err, ATTN_E_ABI, "backends",
                                "%s: backend %u has no name, capabilities or ops", path, index);
    if (!info->doc) info->doc = "";
    backend->plugin = plugin;
    code = attn_intake(&backend->capabilities, sizeof backend->capabilities, info->capabilities,
                       "capabilities", err);
    if (!code) code = attn_intake(&backend->ops, sizeof backend->ops, info->ops, "ops", err);
    info->capabilities = &backend->capabilities;
    info->ops = &backend->ops;
    plugin->shown[index] = info;
    if (!code) code = check_lists(backend, path, err);
    if (!code) code = check_operations(backend, path, err);
    return code;
}

static int take_backends(struct attni_plugin *plugin, attn_error_t *err) {
    plugin->backends = calloc(plugin->info.num_backends, sizeof *plugin->backends);
    plugin->shown = calloc(plugin->info.num_backends, sizeof *plugin->shown);
    if (!plugin->backends || !plugin->shown)
        return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for backends");
    for (uint32_t i = 0; i < plugin->info.num_backends; i++) {
        int code = take_backend(plugin, i, err);
        if (code) return code;
    }
    plugin->backend_count = plugin->info.num_backends;
    plugin->info.backends = plugin->shown;
    return 0;
}

/*
 * attn_plugin_t starts with its magic, so attn_intake does not fit: the same rule with the size in second
 * place.
 */
static int take_plugin(struct attni_plugin *plugin, const attn_plugin_t *raw, attn_error_t *err) {
    size_t size = raw->struct_size, known = sizeof plugin->info;
    memset(&plugin->info, 0, known);
    memcpy(&plugin->info, raw, size < known ? size : known);
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)raw)[i])
            return attni_fail_param(err, ATTN_E_TOO_NEW, "struct_size",
                                    "%s uses a member at byte %zu of its descriptor; this libattn knows %zu "
                                    "bytes: update libattn",
                                    plugin->path, i, known);
    plugin->info.struct_size = (uint32_t)known;
    return 0;
}

int attni_descriptor_take(struct attni_plugin *plugin, const void *exported, size_t size, attn_error_t *err) {
    int code = check_head(plugin, exported, size, err);
    if (!code) code = take_plugin(plugin, exported, err);
    if (!code) code = check_body(plugin, err);
    if (!code) code = take_options(plugin, err);
    if (!code) code = take_backends(plugin, err);
    if (code) attni_descriptor_drop(plugin);
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
