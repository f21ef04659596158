/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of every line of every configuration source, in the order in which the sources were read.
 * It knows the INI syntax only; what the sections and keys mean is in config_schema.h.
 */
#ifndef ATTNI_INI_TABLE_H
#define ATTNI_INI_TABLE_H

#include <attn/attn_types.h>
#include <stddef.h>

enum {
    ATTNI_INI_LINE_MAX = 196,       /* inih 55 splits lines at its buffer of 200 bytes */
    ATTNI_INI_NAME_MAX = 49,        /* inih 55 cuts section names there */
    ATTNI_INI_ENTRIES_MAX = 4096,   /* per source */
    ATTNI_INI_FILE_MAX = 256 * 1024 /* bytes per source */
};

struct attni_ini_entry {
    char *section; /* "select decoder": inner blanks collapsed to one */
    char *key;     /* NULL: this entry is the section's own line */
    char *value;
    const char *source; /* file name or "api"; owned by the table */
    unsigned line;      /* from 1; 0: not from a text */
};

struct attni_ini {
    struct attni_ini_entry *entries;
    size_t count, capacity;
    char **sources;
    size_t source_count;
};

/*
 * Appends one source. On failure the table keeps what it had before, and the text of error starts with
 * "SOURCE:LINE: ". An over-long, indented, malformed or binary line, a key outside a section and a key
 * given twice in one source fail.
 */
int attni_ini_add_text(struct attni_ini *ini, const char *source, const char *text, size_t length,
                       attn_error_t *error);
int attni_ini_add_file(struct attni_ini *ini, const char *path, attn_error_t *error);

/* Appends one value that no text holds: line 0 of source. */
int attni_ini_add_value(struct attni_ini *ini, const char *source, const char *section, const char *key,
                        const char *value, attn_error_t *error);

/* The entry that is in force: the last one of that section and key, or NULL. */
const struct attni_ini_entry *attni_ini_find(const struct attni_ini *ini, const char *section,
                                             const char *key);

void attni_ini_free(struct attni_ini *ini);

#endif
