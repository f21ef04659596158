/* SPDX-License-Identifier: Apache-2.0 */
/* No option exists outside a plugin's table: from it come the types, bounds, defaults and near misses. */
#include "options.h"

#include "fail.h"
#include "nearest.h"
#include "number_text.h"

#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 256 };

static int wrong(const attn_option_spec_t *spec, const char *text, const char *origin, const char *wanted,
                 attn_error_t *err) {
    return attni_fail_param(err, ATTN_E_PARSE, spec->name,
                            "%s: option %s has the bad value '%.60s'; write %s", origin, spec->name, text,
                            wanted);
}

static int parse_int(const attn_option_spec_t *spec, const char *text, const char *origin,
                     attn_option_value_t *value, attn_error_t *err) {
    char *end, wanted[96];
    int bounded = spec->min_int || spec->max_int;
    if (bounded)
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)spec->min_int,
                 (long long)spec->max_int);
    else
        snprintf(wanted, sizeof wanted, "a whole number");
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end || (bounded && (parsed < spec->min_int || parsed > spec->max_int)))
        return wrong(spec, text, origin, wanted, err);
    value->i = parsed;
    return 0;
}

static int parse_double(const attn_option_spec_t *spec, const char *text, const char *origin,
                        attn_option_value_t *value, attn_error_t *err) {
    char wanted[96];
    int bounded = spec->min_double != 0 || spec->max_double != 0;
    if (bounded)
        snprintf(wanted, sizeof wanted, "a number from %g to %g", spec->min_double, spec->max_double);
    else
        snprintf(wanted, sizeof wanted, "a number");
    double parsed = 0;
    const char *end = attni_double_parse(text, &parsed);
    if (end == text || *end || !isfinite(parsed) ||
        (bounded && (parsed < spec->min_double || parsed > spec->max_double)))
        return wrong(spec, text, origin, wanted, err);
    value->d = parsed;
    return 0;
}

static int parse_choice(const attn_option_spec_t *spec, const char *text, const char *origin,
                        attn_option_value_t *value, attn_error_t *err) {
    size_t length = strlen(text);
    int64_t index = 0;
    for (const char *word = spec->choices; *word; index++) {
        size_t width = strcspn(word, " ");
        if (width == length && !strncmp(word, text, length)) {
            value->i = index;
            return 0;
        }
        word += width;
        word += *word == ' ';
    }
    char wanted[200];
    snprintf(wanted, sizeof wanted, "one of: %s", spec->choices);
    return wrong(spec, text, origin, wanted, err);
}

int attni_option_parse(const attn_option_spec_t *spec, const char *text, const char *origin,
                       attn_option_value_t *value, attn_error_t *err) {
    attn_option_value_t parsed = {
        .struct_size = sizeof parsed, .type = spec->type, .name = spec->name, .s = text};
    int code = 0;
    if (spec->type == ATTN_OPTION_INT) code = parse_int(spec, text, origin, &parsed, err);
    if (spec->type == ATTN_OPTION_DOUBLE) code = parse_double(spec, text, origin, &parsed, err);
    if (spec->type == ATTN_OPTION_ENUM) code = parse_choice(spec, text, origin, &parsed, err);
    if (spec->type == ATTN_OPTION_BOOL) {
        int truth = attni_bool_value(text);
        code = truth < 0 ? wrong(spec, text, origin, "yes or no", err) : 0;
        parsed.i = truth;
    }
    if (!code) *value = parsed;
    return code;
}

int attni_options_read(const struct attni_plugin *plugin, const struct attni_config *config,
                       attn_option_value_t **values, attn_error_t *err) {
    uint32_t count = plugin->info.num_options;
    *values = NULL;
    if (!count) return 0;
    attn_option_value_t *read = calloc(count, sizeof *read);
    if (!read)
        return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for the options of plugin '%s'",
                          plugin->name);
    char section[80], origin[512];
    snprintf(section, sizeof section, "option %s", plugin->name);
    int code = 0;
    for (uint32_t i = 0; !code && i < count; i++) {
        const attn_option_spec_t *spec = &plugin->options[i];
        const char *text = attni_config_get(config, section, spec->name);
        if (text)
            attni_config_origin(config, section, spec->name, origin, sizeof origin);
        else
            snprintf(origin, sizeof origin, "default in %s", plugin->path);
        code = attni_option_parse(spec, text ? text : spec->default_value, origin, &read[i], err);
    }
    if (code)
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
                         attn_error_t *err) {
    char section[80];
    const char *names[MOST_NAMES];
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
            return attni_fail_param(
                err, ATTN_E_PARSE, entry->key, "%s:%u: plugin '%s' has no option '%s'%s; it has:%s",
                entry->source, entry->line, plugin->name, entry->key,
                attni_did_you_mean(near, sizeof near, entry->key, names, plugin->info.num_options),
                list_names(list, sizeof list, names, plugin->info.num_options));
    }
    return 0;
}

int attni_options_check(const struct attni_plugins *plugins, const struct attni_config *config,
                        attn_error_t *err) {
    for (size_t i = 0; i < plugins->count; i++) {
        const struct attni_plugin *plugin = plugins->items[i];
        if (plugin->refusal.code != ATTN_OK) continue;
        attn_option_value_t *values;
        int code = check_section(plugin, config, err);
        if (!code) code = attni_options_read(plugin, config, &values, err);
        if (code) return code;
        free(values);
    }
    return 0;
}

void attni_options_stray(const struct attni_plugins *plugins, const struct attni_config *config,
                         const struct attni_log *log) {
    const char *names[MOST_NAMES];
    size_t count = 0;
    for (; count < plugins->count && count < MOST_NAMES; count++)
        names[count] = plugins->items[count]->name;
    for (size_t i = 0; i < config->ini.count; i++) {
        const struct attni_ini_entry *entry = &config->ini.entries[i];
        char near[96];
        if (!entry->key || strncmp(entry->section, "option ", 7) != 0) continue;
        const char *name = entry->section + 7;
        if (attni_plugins_find(plugins, name)) continue;
        attni_log(log, ATTN_LOG_WARN,
                  "%s:%u: [%s] %s is an option of a plugin that [attn] plugins does not name%s",
                  entry->source, entry->line, entry->section, entry->key,
                  attni_did_you_mean(near, sizeof near, name, names, count));
    }
}
