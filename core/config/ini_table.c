/* SPDX-License-Identifier: Apache-2.0 */
/* inih turns checked lines into calls of on_value; this file turns those into table entries. */
#include "config/ini_table.h"

#include <attn/attn_plugin_util.h>
#include "config/ini_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct parse {
    struct attni_ini_lines lines;
    struct attni_ini *ini;
    const char *source;
    size_t first; /* index of this source's first entry */
};

static int out_of_memory(attn_error_t *error) {
    return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory while reading the configuration");
}

static int append(struct parse *parse, const char *section, const char *key, const char *value) {
    struct attni_ini *ini = parse->ini;
    if (ini->count == ini->capacity) {
        size_t capacity = ini->capacity ? 2 * ini->capacity : 32;
        struct attni_ini_entry *moved = realloc(ini->entries, capacity * sizeof *moved);
        if (!moved) return out_of_memory(parse->lines.error);
        ini->entries = moved;
        ini->capacity = capacity;
    }
    struct attni_ini_entry entry = {.section = strdup(section),
                                    .key = key ? strdup(key) : NULL,
                                    .value = value ? strdup(value) : NULL,
                                    .source = parse->source,
                                    .line = parse->lines.line};
    ini->entries[ini->count++] = entry;
    return entry.section && (!key || entry.key) && (!value || entry.value)
               ? 0
               : out_of_memory(parse->lines.error);
}

static int check_new(struct parse *parse, const char *section, const char *key) {
    const struct attni_ini *ini = parse->ini;
    for (size_t i = parse->first; i < ini->count; i++) {
        const struct attni_ini_entry *entry = &ini->entries[i];
        if (entry->key && !strcmp(entry->section, section) && !strcmp(entry->key, key))
            return attn_fail(parse->lines.error, ATTN_E_PARSE, "",
                             "%s:%u: key '%s' of [%s] was already given in line %u; keep one of them",
                             parse->source, parse->lines.line, key, section, entry->line);
    }
    if (ini->count - parse->first >= ATTNI_INI_ENTRIES_MAX)
        return attn_fail(parse->lines.error, ATTN_E_PARSE, "", "%s:%u: more than %d entries in one source",
                         parse->source, parse->lines.line, ATTNI_INI_ENTRIES_MAX);
    return 0;
}

/* The section name comes from our own reader: inih would hand over its blanks unchanged. */
static const char *current_section(const struct parse *parse) {
    const struct attni_ini *ini = parse->ini;
    return ini->count > parse->first ? ini->entries[ini->count - 1].section : "";
}

static char *next_line(char *buffer, int size, void *stream) {
    struct parse *parse = stream;
    char *line = attni_ini_next_line(buffer, size, &parse->lines);
    if (line && parse->lines.section[0]) {
        if (parse->ini->count - parse->first >= ATTNI_INI_ENTRIES_MAX)
            parse->lines.failed =
                attn_fail(parse->lines.error, ATTN_E_PARSE, "", "%s:%u: more than %d entries in one source",
                          parse->source, parse->lines.line, ATTNI_INI_ENTRIES_MAX);
        else
            parse->lines.failed = append(parse, parse->lines.section, NULL, NULL);
    }
    return parse->lines.failed ? NULL : line;
}

static int on_value(void *user, const char *section, const char *key, const char *value) {
    struct parse *parse = user;
    (void)section;
    if (parse->lines.failed) return 0;
    char name[64];
    snprintf(name, sizeof name, "%s", current_section(parse));
    if (!name[0])
        parse->lines.failed =
            attn_fail(parse->lines.error, ATTN_E_PARSE, "",
                      "%s:%u: key '%s' comes before any section; put it below [attn] or another one",
                      parse->source, parse->lines.line, key);
    else if (!(parse->lines.failed = check_new(parse, name, key)))
        parse->lines.failed = append(parse, name, key, value);
    return !parse->lines.failed;
}

static void free_entries_from(struct attni_ini *ini, size_t first) {
    while (ini->count > first) {
        struct attni_ini_entry *entry = &ini->entries[--ini->count];
        free(entry->section);
        free(entry->key);
        free(entry->value);
    }
}

static const char *add_source(struct attni_ini *ini, const char *name) {
    char **moved = realloc(ini->sources, (ini->source_count + 1) * sizeof *moved);
    if (!moved) return NULL;
    ini->sources = moved;
    return (moved[ini->source_count] = strdup(name)) ? moved[ini->source_count++] : NULL;
}

int attni_ini_add_text(struct attni_ini *ini, const char *source, const char *text, size_t length,
                       attn_error_t *error) {
    if (length > ATTNI_INI_FILE_MAX)
        return attn_fail(error, ATTN_E_PARSE, "",
                         "%s:1: %zu bytes, at most %d are read; is this an INI file?", source, length,
                         ATTNI_INI_FILE_MAX);
    const char *kept = add_source(ini, source);
    if (!kept) return out_of_memory(error);
    struct parse parse = {.lines = {.source = kept, .next = text, .end = text + length, .error = error},
                          .ini = ini,
                          .source = kept,
                          .first = ini->count};
    int rc = ini_parse_stream(next_line, &parse, on_value, &parse);
    int code = parse.lines.failed;
    if (code == ATTN_OK && rc == -2) code = out_of_memory(error);
    if (code == ATTN_OK && rc)
        code = attn_fail(error, ATTN_E_PARSE, "", "%s:%d: malformed line; write [section] or key = value",
                         kept, rc);
    if (code != ATTN_OK) free_entries_from(ini, parse.first);
    return code;
}

int attni_ini_add_value(struct attni_ini *ini, const char *source, const char *section, const char *key,
                        const char *value, attn_error_t *error) {
    struct parse parse = {
        .lines = {.error = error}, .ini = ini, .source = add_source(ini, source), .first = ini->count};
    if (!parse.source) return out_of_memory(error);
    int code = append(&parse, section, key, value);
    if (code != ATTN_OK) free_entries_from(ini, parse.first);
    return code;
}

int attni_ini_add_file(struct attni_ini *ini, const char *path, attn_error_t *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block us */
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!file && fd >= 0) close(fd);
    if (!file)
        return attn_fail(error, ATTN_E_IO, "", "cannot read configuration file %s: %s", path,
                         strerror(errno));
    int code = 0;
    struct stat status;
    char *text = malloc(ATTNI_INI_FILE_MAX + 1);
    if (!text)
        code = out_of_memory(error);
    else if (fstat(fileno(file), &status) || !S_ISREG(status.st_mode))
        code = attn_fail(error, ATTN_E_IO, "",
                         "configuration file %s is not a regular file; name an INI file", path);
    else {
        size_t length = fread(text, 1, ATTNI_INI_FILE_MAX + 1, file);
        if (ferror(file))
            code = attn_fail(error, ATTN_E_IO, "", "cannot read configuration file %s: %s", path,
                             strerror(errno));
        else
            code = attni_ini_add_text(ini, path, text, length, error);
    }
    free(text);
    fclose(file);
    return code;
}

const struct attni_ini_entry *attni_ini_find(const struct attni_ini *ini, const char *section,
                                             const char *key) {
    for (size_t i = ini->count; i-- > 0;) {
        const struct attni_ini_entry *entry = &ini->entries[i];
        if (entry->key && !strcmp(entry->section, section) && !strcmp(entry->key, key)) return entry;
    }
    return NULL;
}

void attni_ini_free(struct attni_ini *ini) {
    free_entries_from(ini, 0);
    for (size_t i = 0; i < ini->source_count; i++)
        free(ini->sources[i]);
    free(ini->sources);
    free(ini->entries);
    *ini = (struct attni_ini){0};
}
