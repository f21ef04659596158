/* SPDX-License-Identifier: Apache-2.0 */
/* No option exists outside a plugin's table: from it come the types, bounds, defaults and near misses. */
#include "load/options.h"

#include "base/nearest.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 256 };

int attni_options_read(const struct attni_plugin *plugin, const struct attni_config *config,
                       attn_option_value_t **values, attn_error_t *error) {
    uint32_t count = plugin->info.num_options;
    *values = NULL;
    if (!count) return 0;
    attn_option_value_t *read = calloc(count, sizeof *read);
    if (!read)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the options of plugin '%s'",
                         plugin->name);
    char section[80], origin[512];
    snprintf(section, sizeof section, "option %s", plugin->name);
    int code = 0;
    for (uint32_t i = 0; code == ATTN_OK && i < count; i++) {
        const attn_option_spec_t *spec = &plugin->options[i];
        const char *text = attni_config_get(config, section, spec->name);
        if (text)
            attni_config_origin(config, section, spec->name, origin, sizeof origin);
        else
            snprintf(origin, sizeof origin, "default in %s", plugin->path);
        code = attni_option_parse(spec, text ? text : spec->default_value, origin, &read[i], error);
    }
    if (code != ATTN_OK)
        free(read);
    else
        *values = read;
    return code;
}

/* " a b c", or " none". Returns buffer. */
static const char *list_names(char *buffer, size_t size, const char *const *names, uint32_t count) {
    size_t used = (size_t)snprintf(buffer, size, "%s", count == 0 ? " none" : "");
    for (uint32_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, " %s", names[i]);
    return buffer;
}

/* Every line of the section must name an option of the table. */
static int check_section(const struct attni_plugin *plugin, const struct attni_config *config,
                         attn_error_t *error) {
    char section[80];
    const char *names[MAX_NAMES];
    snprintf(section, sizeof section, "option %s", plugin->name);
    for (uint32_t i = 0; i < plugin->info.num_options; i++)
        names[i] = plugin->options[i].name;
    for (size_t i = 0; i < config->ini.count; i++) {
        const struct attni_ini_entry *entry = &config->ini.entries[i];
        if (!entry->key || strcmp(entry->section, section) != 0) continue;
        int known = 0;
        for (uint32_t j = 0; j < plugin->info.num_options; j++)
            known |= !strcmp(names[j], entry->key);
        char near[96], list[200];
        if (!known)
            return attn_fail(
                error, ATTN_E_PARSE, entry->key, "%s:%u: plugin '%s' has no option '%s'%s; it has:%s",
                entry->source, entry->line, plugin->name, entry->key,
                attni_did_you_mean(near, sizeof near, entry->key, names, plugin->info.num_options),
                list_names(list, sizeof list, names, plugin->info.num_options));
    }
    return 0;
}

int attni_options_check(const struct attni_plugins *plugins, const struct attni_config *config,
                        attn_error_t *error) {
    for (size_t i = 0; i < plugins->count; i++) {
        const struct attni_plugin *plugin = plugins->items[i];
        if (plugin->refusal.code != ATTN_OK) continue;
        attn_option_value_t *values;
        int code = check_section(plugin, config, error);
        if (code == ATTN_OK) code = attni_options_read(plugin, config, &values, error);
        if (code != ATTN_OK) return code;
        free(values);
    }
    return 0;
}

void attni_options_stray(const struct attni_plugins *plugins, const struct attni_config *config,
                         const struct attni_log *log) {
    const char *names[MAX_NAMES];
    size_t count = 0;
    for (; count < plugins->count && count < MAX_NAMES; count++)
        names[count] = plugins->items[count]->name;
    for (size_t i = 0; i < config->ini.count; i++) {
        const struct attni_ini_entry *entry = &config->ini.entries[i];
        char near[96];
        if (!entry->key || strncmp(entry->section, "option ", 7) != 0) continue;
        const char *name = entry->section + 7;
        if (attni_plugins_find(plugins, name)) continue;
        attni_log(log, ATTN_LOG_WARN, "%s:%u: [%s] %s: [attn] plugins does not list that plugin%s",
                  entry->source, entry->line, entry->section, entry->key,
                  attni_did_you_mean(near, sizeof near, name, names, count));
    }
}
