/* SPDX-License-Identifier: Apache-2.0 */
/* Which plugins a configuration requests, where their files are, and the list of what came of it. */
#include "load/loader.h"
#include "device/device_kind.h"
#include "device/merge_kind.h"

#include "config/config.h"
#include <attn/attn_plugin_util.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int attni_plugin_path(const char *plugin_dir, const char *name, const char *path, char *out, size_t size,
                      attn_error_t *error) {
    int written;
    if (path && path[0] == '/')
        written = snprintf(out, size, "%s", path);
    else if (path && (!strcmp(path, "..") || !strncmp(path, "../", 3) || strstr(path, "/../") ||
                      (strlen(path) > 3 && !strcmp(path + strlen(path) - 3, "/.."))))
        return attn_fail(error, ATTN_E_TRUST, "path",
                         "path '%s' of plugin '%s' leaves the plugin directory; write an absolute path", path,
                         name);
    else
        written = snprintf(out, size, "%s/%s%s", plugin_dir, path ? path : name, path ? "" : ".so");
    if (written < 0 || (size_t)written >= size)
        return attn_fail(error, ATTN_E_INVALID, "path", "the path of plugin '%s' is too long", name);
    return 0;
}

struct attni_plugin *attni_plugins_find(const struct attni_plugins *plugins, const char *name) {
    for (size_t i = 0; i < plugins->count; i++)
        if (!strcmp(plugins->items[i]->name, name)) return plugins->items[i];
    return NULL;
}

static struct attni_plugin *append(struct attni_plugins *plugins, const char *name) {
    struct attni_plugin *plugin = calloc(1, sizeof *plugin);
    struct attni_plugin **moved = realloc(plugins->items, (plugins->count + 1) * sizeof *moved);
    if (moved) plugins->items = moved;
    char *kept = strdup(name);
    if (!plugin || !moved || !kept) {
        free(plugin);
        free(kept);
        return NULL;
    }
    plugin->name = kept;
    plugin->refusal.struct_size = sizeof plugin->refusal;
    plugins->items[plugins->count++] = plugin;
    return plugin;
}

/* Why a plugin is not even searched for. */
static int check_switches(const struct attni_config *config, const char *section, const char *name,
                          attn_error_t *error) {
    char origin[512];
    if (!attni_config_bool(config, "attn", "load", 1))
        return attn_fail(error, ATTN_E_STATE, "load", "plugin '%s' is not loaded: [attn] load = no (%s)",
                         name, attni_config_origin(config, "attn", "load", origin, sizeof origin));
    if (!attni_config_bool(config, section, "enabled", 1))
        return attn_fail(error, ATTN_E_STATE, "enabled", "plugin '%s' is switched off: enabled = no (%s)",
                         name, attni_config_origin(config, section, "enabled", origin, sizeof origin));
    return 0;
}

/* What load_one needs to know besides the name. */
struct loading {
    struct attni_plugins *plugins;
    const struct attni_config *config;
    const char *held_back; /* why nothing is opened, or NULL */
};

/* The device kinds, and merging on devices, that its backends bring join the process's lists. */
static int add_kinds(const struct attni_plugin *plugin, attn_error_t *error) {
    int code = ATTN_OK;
    for (uint32_t i = 0; code == ATTN_OK && i < plugin->backend_count; i++) {
        const attn_device_kind_t *kind = attni_backend_device_kind(&plugin->backends[i]);
        const attn_merge_table_t *merge = attni_backend_merge_kind(&plugin->backends[i]);
        if (kind != NULL) code = attni_device_kind_add(kind, plugin->path, error);
        if (code == ATTN_OK && merge != NULL) code = attni_merge_kind_add(merge, plugin->path, error);
    }
    return code;
}

/* Where the file is, whether it may be opened, and opening it; what went wrong goes into plugin->refusal. */
static int locate_and_open(const struct loading *in, struct attni_plugin *plugin, const char *section) {
    char path[4096];
    attn_error_t *why = &plugin->refusal;
    int code = attni_plugin_path(attni_config_get(in->config, "attn", "plugin_dir"), plugin->name,
                                 attni_config_get(in->config, section, "path"), path, sizeof path, why);
    if (code != ATTN_OK) return code;
    if (!(plugin->path = strdup(path)))
        return attn_fail(why, ATTN_E_NO_MEMORY, "", "out of memory for plugin '%s'", plugin->name);
    if (in->held_back)
        return attn_fail(why, ATTN_E_STATE, "", "plugin '%s' is not loaded: %s", plugin->name, in->held_back);
    code = check_switches(in->config, section, plugin->name, why);
    if (code == ATTN_OK) code = attni_plugin_open(plugin, in->plugins, why);
    if (code == ATTN_OK && (code = add_kinds(plugin, why)) != ATTN_OK) attni_descriptor_drop(plugin);
    if (code == ATTN_OK && plugin->is_replaced) /* no refusal: what runs is what ran before */
        snprintf(why->text, sizeof why->text,
                 "%s was replaced after this process loaded it; the old code, version %.40s, stays in use: "
                 "restart the process",
                 plugin->path, plugin->info.version);
    struct stat status;
    plugin->is_absent = code == ATTN_E_NOT_FOUND && lstat(plugin->path, &status) != 0;
    if (plugin->is_absent && plugin->is_default)
        attn_fail(why, code, "", "not installed: there is no file %s", plugin->path);
    return code;
}

static int load_one(const struct loading *in, const char *name, int is_listed_by_default,
                    attn_error_t *error) {
    char section[80];
    struct attni_plugin *plugin = append(in->plugins, name);
    if (!plugin) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for plugin '%s'", name);
    snprintf(section, sizeof section, "plugin %s", name);
    plugin->is_required = attni_config_bool(in->config, section, "required", 0);
    plugin->is_default =
        is_listed_by_default && !plugin->is_required && !attni_ini_find(&in->config->ini, section, "path");
    int code = locate_and_open(in, plugin, section);
    if (code == ATTN_E_NO_MEMORY) return attn_fail(error, code, "", "%s", plugin->refusal.text);
    if (code == ATTN_OK || !plugin->is_required || in->held_back) return ATTN_OK;
    char origin[512];
    attni_config_origin(in->config, section, "required", origin, sizeof origin);
    return attn_fail(error, code, "required", "required plugin '%s' (%s) did not load: %s", name, origin,
                     plugin->refusal.text);
}

static int load_listed(const struct loading *in, attn_error_t *error) {
    char **names, *text;
    size_t count;
    if (attni_list_split(attni_config_get(in->config, "attn", "plugins"), &names, &count, &text))
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the list of plugins");
    int is_default = !attni_ini_find(&in->config->ini, "attn", "plugins"), code = ATTN_OK;
    for (size_t i = 0; code == ATTN_OK && i < count; i++)
        code = load_one(in, names[i], is_default, error);
    free(text);
    free(names);
    return code;
}

/* A package drops a file with [plugin NAME] into conf.d and need not edit [attn] plugins. */
static int load_sections(const struct loading *in, attn_error_t *error) {
    for (size_t i = 0; i < in->config->ini.count; i++) {
        const struct attni_ini_entry *entry = &in->config->ini.entries[i];
        if (entry->key || strncmp(entry->section, "plugin ", 7) != 0) continue;
        if (attni_plugins_find(in->plugins, entry->section + 7)) continue;
        int code = load_one(in, entry->section + 7, 0, error);
        if (code != ATTN_OK) return code;
    }
    return ATTN_OK;
}

int attni_plugins_load(struct attni_plugins *plugins, const struct attni_config *config,
                       const char *held_back, attn_error_t *error) {
    const struct loading in = {plugins, config, held_back};
    *plugins = (struct attni_plugins){0};
    int code = load_listed(&in, error);
    if (code == ATTN_OK) code = load_sections(&in, error);
    if (code != ATTN_OK) attni_plugins_free(plugins);
    return code;
}

void attni_plugins_free(struct attni_plugins *plugins) {
    for (size_t i = 0; i < plugins->count; i++) {
        struct attni_plugin *plugin = plugins->items[i];
        attni_descriptor_drop(plugin);
        free(plugin->path);
        free(plugin->name);
        free(plugin);
    }
    free(plugins->items);
    *plugins = (struct attni_plugins){0};
}
