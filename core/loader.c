/* SPDX-License-Identifier: Apache-2.0 */
/* Which plugins a configuration asks for, where their files are, and the list of what came of it. */
#include "loader.h"

#include "config.h"
#include "fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int attni_plugin_path(const char *plugin_dir, const char *name, const char *path, char *out, size_t size,
                      attn_error_t *err) {
    int written;
    if (path && path[0] == '/')
        written = snprintf(out, size, "%s", path);
    else if (path && (!strcmp(path, "..") || !strncmp(path, "../", 3) || strstr(path, "/../") ||
                      (strlen(path) > 3 && !strcmp(path + strlen(path) - 3, "/.."))))
        return attni_fail_param(
            err, ATTN_E_TRUST, "path",
            "path '%s' of plugin '%s' leaves the plugin directory; write an absolute path", path, name);
    else
        written = snprintf(out, size, "%s/%s%s", plugin_dir, path ? path : name, path ? "" : ".so");
    if (written < 0 || (size_t)written >= size)
        return attni_fail_param(err, ATTN_E_INVALID, "path", "the path of plugin '%s' is too long", name);
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

/* Why a plugin is not even looked for. */
static int check_switches(const struct attni_config *config, const char *section, const char *name,
                          attn_error_t *err) {
    char origin[512];
    if (!attni_config_bool(config, "attn", "load", 1))
        return attni_fail_param(err, ATTN_E_STATE, "load", "plugin '%s' is not loaded: [attn] load = no (%s)",
                                name, attni_config_origin(config, "attn", "load", origin, sizeof origin));
    if (!attni_config_bool(config, section, "enabled", 1))
        return attni_fail_param(err, ATTN_E_STATE, "enabled",
                                "plugin '%s' is switched off: enabled = no (%s)", name,
                                attni_config_origin(config, section, "enabled", origin, sizeof origin));
    return 0;
}

static int load_one(struct attni_plugins *plugins, const struct attni_config *config, const char *name,
                    int is_default, attn_error_t *err) {
    struct attni_plugin *plugin = append(plugins, name);
    if (!plugin) return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for plugin '%s'", name);
    char section[80], path[4096];
    snprintf(section, sizeof section, "plugin %s", name);
    plugin->is_required = attni_config_bool(config, section, "required", 0);
    plugin->is_default = is_default;
    attn_error_t *why = &plugin->refusal;
    int code = attni_plugin_path(attni_config_get(config, "attn", "plugin_dir"), name,
                                 attni_config_get(config, section, "path"), path, sizeof path, why);
    if (!code && !(plugin->path = strdup(path)))
        return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for plugin '%s'", name);
    if (!code) code = check_switches(config, section, name, why);
    if (!code) code = attni_plugin_open(plugin, plugins, why);
    if (code && plugin->is_required) {
        char origin[512];
        attni_config_origin(config, section, "required", origin, sizeof origin);
        return attni_fail_param(err, code, "required", "required plugin '%s' (%s) did not load: %s", name,
                                origin, why->text);
    }
    return code == ATTN_E_NO_MEMORY ? attni_fail(err, code, "%s", why->text) : 0;
}

static int load_listed(struct attni_plugins *plugins, const struct attni_config *config, attn_error_t *err) {
    char **names, *text;
    size_t count;
    if (attni_list_split(attni_config_get(config, "attn", "plugins"), &names, &count, &text))
        return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for the list of plugins");
    int is_default = !attni_ini_find(&config->ini, "attn", "plugins"), code = 0;
    for (size_t i = 0; !code && i < count; i++)
        code = load_one(plugins, config, names[i], is_default, err);
    free(text);
    free(names);
    return code;
}

/* A package drops a file with [plugin NAME] into conf.d and need not edit [attn] plugins. */
static int load_sections(struct attni_plugins *plugins, const struct attni_config *config,
                         attn_error_t *err) {
    for (size_t i = 0; i < config->ini.count; i++) {
        const struct attni_ini_entry *entry = &config->ini.entries[i];
        if (entry->key || strncmp(entry->section, "plugin ", 7) != 0) continue;
        if (attni_plugins_find(plugins, entry->section + 7)) continue;
        int code = load_one(plugins, config, entry->section + 7, 0, err);
        if (code) return code;
    }
    return 0;
}

int attni_plugins_load(struct attni_plugins *plugins, const struct attni_config *config, attn_error_t *err) {
    *plugins = (struct attni_plugins){0};
    int code = load_listed(plugins, config, err);
    if (!code) code = load_sections(plugins, config, err);
    if (code) attni_plugins_free(plugins);
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
