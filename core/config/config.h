/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The effective configuration of one context: built-in defaults, files, environment, API, each later one
 * winning.
 */
#ifndef ATTNI_CONFIG_H
#define ATTNI_CONFIG_H

#include "config/config_schema.h"
#include "config/ini_table.h"

struct attni_config {
    struct attni_ini ini;
    const char *environment_source; /* the ini source that $ATTN_CONFIG named, or NULL */
};

struct attni_config_sources {
    const char *plugin_dir;       /* the default of [attn] plugin_dir; NULL: the schema's */
    const char *system_dir;       /* holds attn.ini and conf.d/; NULL: none. Absent files are no error */
    const char *environment_file; /* $ATTN_CONFIG; NULL or "": none. An absent file is an error */
    const char *api_file;         /* NULL: none */
    const char *api_text;         /* NULL: none */
};

/* Reads and checks all sources. On failure the config is empty. */
int attni_config_load(struct attni_config *config, const struct attni_config_sources *sources,
                      attn_error_t *error);
void attni_config_free(struct attni_config *config);

/* The value in force: from the sources, else the schema's default, else NULL. */
const char *attni_config_get(const struct attni_config *config, const char *section, const char *key);
int attni_config_bool(const struct attni_config *config, const char *section, const char *key, int otherwise);

/* Where it comes from: "FILE:LINE", "FILE:LINE ($ATTN_CONFIG)", "api:LINE" or "default". Returns buffer. */
const char *attni_config_origin(const struct attni_config *config, const char *section, const char *key,
                                char *buffer, size_t size);

/* One value in force. */
struct attni_config_item {
    const char *section, *key, *value;
    const char *source; /* file, "api" or "default" */
    unsigned line;      /* 0: not from a text */
    const char *doc;    /* "" if the schema does not have the key */
};
typedef void (*attni_config_visit)(void *user, const struct attni_config_item *item);

/*
 * First the keys that have defaults, then what the sources added. Returns how many; visit NULL: only
 * counts.
 */
size_t attni_config_each(const struct attni_config *config, attni_config_visit visit, void *user);

/* A value from the API's own arguments, stronger than all sources so far. */
int attni_config_set(struct attni_config *config, const char *section, const char *key, const char *value,
                     attn_error_t *error);

/* A list value cut at its commas: names points into *text. free(*text) and free(names). */
int attni_list_split(const char *value, char ***names, size_t *count, char **text);

#endif
