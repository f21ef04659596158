/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the sources in order into one table; the last line of a key is the one in force. */
#include "config/config.h"
#include "base/trust.h"

#include <attn/attn_plugin_util.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A configuration chooses what code runs and which files are written: it has to pass the rule of plugins. */
static int add_file(struct attni_ini *ini, const char *path, attn_error_t *error) {
    int code = attni_trust_check_text(path, error);
    return code == ATTN_OK || code == ATTN_E_NOT_FOUND ? attni_ini_add_file(ini, path, error) : code;
}

static int add_if_there(struct attni_ini *ini, const char *path, attn_error_t *error) {
    if (access(path, F_OK) && (errno == ENOENT || errno == ENOTDIR)) return 0;
    return add_file(ini, path, error);
}

static int is_drop_in(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 4 && !strcmp(entry->d_name + length - 4, ".ini");
}

/* By bytes: the order must not depend on the locale. */
static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_system(struct attni_ini *ini, const char *directory, attn_error_t *error) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/attn.ini", directory) >= (int)sizeof path - 512)
        return attn_fail(error, ATTN_E_INVALID, "", "the configuration directory's name is too long");
    int code = add_if_there(ini, path, error);
    if (code != ATTN_OK) return code;
    snprintf(path, sizeof path, "%s/conf.d", directory);
    struct dirent **found;
    int count = scandir(path, &found, is_drop_in, by_name);
    if (count < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : attn_fail(error, ATTN_E_IO, "", "cannot read configuration directory %s: %s", path,
                               strerror(errno));
    for (int i = 0; i < count; i++) {
        if (code == ATTN_OK) {
            snprintf(path, sizeof path, "%s/conf.d/%s", directory, found[i]->d_name);
            code = add_file(ini, path, error);
        }
        free(found[i]);
    }
    free(found);
    return code;
}

static int add_all(struct attni_config *config, const struct attni_config_sources *from,
                   attn_error_t *error) {
    struct attni_ini *ini = &config->ini;
    int code = from->plugin_dir
                   ? attni_ini_add_value(ini, "default", "attn", "plugin_dir", from->plugin_dir, error)
                   : 0;
    if (code == ATTN_OK && from->system_dir) code = add_system(ini, from->system_dir, error);
    if (code == ATTN_OK && from->environment_file && from->environment_file[0]) {
        code = add_file(ini, from->environment_file, error);
        if (code == ATTN_E_IO && error && access(from->environment_file, R_OK))
            attn_fail(error, code, "ATTN_CONFIG",
                      "$ATTN_CONFIG names %s, which cannot be read: %s; correct or unset ATTN_CONFIG",
                      from->environment_file, strerror(errno));
        if (code == ATTN_OK) config->environment_source = ini->sources[ini->source_count - 1];
    }
    if (code == ATTN_OK && from->api_file) code = add_file(ini, from->api_file, error);
    if (code == ATTN_OK && from->api_text)
        code = attni_ini_add_text(ini, "api", from->api_text, strlen(from->api_text), error);
    return code;
}

int attni_config_load(struct attni_config *config, const struct attni_config_sources *sources,
                      attn_error_t *error) {
    *config = (struct attni_config){0};
    int code = add_all(config, sources, error);
    for (size_t i = 0; code == ATTN_OK && i < config->ini.count; i++)
        code = attni_config_check(&config->ini.entries[i], error);
    if (code != ATTN_OK) attni_config_free(config);
    return code;
}

void attni_config_free(struct attni_config *config) {
    attni_ini_free(&config->ini);
    config->environment_source = NULL;
}

/* Whether a key of the schema belongs to the section of this full name. */
static int key_matches(const struct attni_key *key, const char *section) {
    size_t length = strlen(key->section);
    if (strncmp(section, key->section, length) || (section[length] && section[length] != ' ')) return 0;
    return !key->argument || (section[length] && !strcmp(section + length + 1, key->argument));
}

static const struct attni_key *schema_key(const char *section, const char *name) {
    size_t count;
    const struct attni_key *keys = attni_config_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(keys[i].key, name) && key_matches(&keys[i], section)) return &keys[i];
    return NULL;
}

const char *attni_config_get(const struct attni_config *config, const char *section, const char *key) {
    const struct attni_ini_entry *entry = attni_ini_find(&config->ini, section, key);
    if (entry) return entry->value;
    const struct attni_key *schema = schema_key(section, key);
    return schema ? schema->fallback : NULL;
}

int attni_config_bool(const struct attni_config *config, const char *section, const char *key,
                      int otherwise) {
    const char *text = attni_config_get(config, section, key);
    return text ? attni_bool_value(text) : otherwise;
}

const char *attni_config_origin(const struct attni_config *config, const char *section, const char *key,
                                char *buffer, size_t size) {
    const struct attni_ini_entry *entry = attni_ini_find(&config->ini, section, key);
    if (entry && entry->line)
        snprintf(buffer, size, "%s:%u%s", entry->source, entry->line,
                 entry->source == config->environment_source ? " ($ATTN_CONFIG)" : "");
    else if (entry)
        snprintf(buffer, size, "%s", entry->source);
    else
        snprintf(buffer, size, "default");
    return buffer;
}

/* Section names of the schema's defaults, by key: they must outlive the visit. */
static const char *default_section(const struct attni_key *key) {
    static const char *const hooks[] = {"hook trace", "hook record", "hook check", "hook shadow"};
    for (size_t i = 0; key->argument && i < sizeof hooks / sizeof *hooks; i++)
        if (!strcmp(hooks[i] + 5, key->argument)) return hooks[i];
    return key->section;
}

static size_t visit_one(attni_config_visit visit, void *user, const struct attni_ini_entry *entry,
                        const struct attni_key *key) {
    struct attni_config_item item = {.doc = key ? key->doc : ""};
    if (entry) {
        item.section = entry->section, item.key = entry->key, item.value = entry->value;
        item.source = entry->source, item.line = entry->line;
    } else {
        item.section = default_section(key), item.key = key->key, item.value = key->fallback;
        item.source = "default";
    }
    if (visit) visit(user, &item);
    return 1;
}

size_t attni_config_each(const struct attni_config *config, attni_config_visit visit, void *user) {
    size_t count, seen = 0;
    const struct attni_key *keys = attni_config_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (keys[i].fallback)
            seen += visit_one(visit, user,
                              attni_ini_find(&config->ini, default_section(&keys[i]), keys[i].key), &keys[i]);
    for (size_t i = 0; i < config->ini.count; i++) {
        const struct attni_ini_entry *entry = &config->ini.entries[i];
        if (!entry->key || attni_ini_find(&config->ini, entry->section, entry->key) != entry) continue;
        const struct attni_key *key = schema_key(entry->section, entry->key);
        if (!key || !key->fallback) seen += visit_one(visit, user, entry, key);
    }
    return seen;
}

int attni_config_set(struct attni_config *config, const char *section, const char *key, const char *value,
                     attn_error_t *error) {
    int code = attni_ini_add_value(&config->ini, "api", section, key, value, error);
    return code ? code : attni_config_check(&config->ini.entries[config->ini.count - 1], error);
}

int attni_list_split(const char *value, char ***names, size_t *count, char **text) {
    size_t entries = 1;
    for (const char *p = value; *p; p++)
        entries += *p == ',';
    *text = strdup(value);
    *names = calloc(entries, sizeof **names);
    *count = 0;
    if (!*text || !*names) {
        free(*text);
        free(*names);
        return ATTN_E_NO_MEMORY;
    }
    char *save;
    for (char *word = strtok_r(*text, ", \t", &save); word; word = strtok_r(NULL, ", \t", &save))
        (*names)[(*count)++] = word;
    return 0;
}
