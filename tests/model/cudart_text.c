/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a kernel by its name, among the files that make_ptx writes. */
#include "cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *text_of(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0) {
        const long size = ftell(f);
        rewind(f);
        text = size >= 0 ? calloc((size_t)size + 1, 1) : NULL;
        if (text != NULL && fread(text, 1, (size_t)size, f) != (size_t)size) text[0] = '\0';
    }
    if (f != NULL) fclose(f);
    return text;
}
/* Names of an unnamed namespace hold a number of the compilation, eight digits behind its mark: 1 where
 * `name` is that of `at` but for it. */
static int is_name(const char *name, const char *at) {
    static const char mark[] = "_GLOBAL__N__";
    const char *number = strstr(name, mark);
    const size_t size = strlen(name), first = number ? (size_t)(number - name) + sizeof mark - 1 : size;
    if (strncmp(name, at, first) != 0 || strlen(at) < size) return 0;
    return (first == size || strncmp(name + first + 8, at + first + 8, size - first - 8) == 0) &&
           at[size] == '(';
}
/* The file of a kernel, by a line "file:.entry NAME(" of the index, and its name there. */
static char *file_in(const char *folder, int size, const char *name, char *there) {
    char path[1024], *text = NULL;
    snprintf(path, sizeof path, "%.*s/index", size, folder);
    char *const index = text_of(path);
    for (const char *next = index; next != NULL && text == NULL; next = strchr(next + 1, '\n')) {
        const char *line = *next == '\n' ? next + 1 : next, *entry = strstr(line, ":.entry ");
        if (entry == NULL || !is_name(name, entry + 8)) continue;
        snprintf(there, NAME_SIZE, "%.*s", (int)strlen(name), entry + 8);
        snprintf(path, sizeof path, "%.*s/%.*s", size, folder, (int)(entry - line), line);
        text = text_of(path);
    }
    free(index);
    return text;
}
static char *file_of(const char *name, char *there) {
    char *text = NULL;
    for (const char *at = getenv("ATTN_MODEL_PTX"); at != NULL && *at != '\0' && text == NULL;) {
        const size_t size = strcspn(at, ":");
        text = file_in(at, (int)size, name, there);
        at += size + (at[size] == ':');
    }
    return text;
}
/* A line's beginning. */
static char *line_of(char *text, char *at) {
    while (at > text && at[-1] != '\n')
        at--;
    return at;
}
static const char *end_of(const char *body) { /* behind the brace that closes the first; NULL: it has none */
    int depth = 0;
    for (const char *at = strchr(body, '{'); at != NULL && *at != '\0'; at++) {
        depth += (*at == '{') - (*at == '}');
        if (depth == 0) return at + 1;
    }
    return NULL;
}
/* The text without other kernels than this one; NULL where it is not there. */
static char *kernel_of(char *text, const char *name) {
    char key[NAME_SIZE + 10], *out = malloc(strlen(text) + 1), *to = out;
    int is_there = 0;
    snprintf(key, sizeof key, ".entry %s(", name);
    for (char *from = text; from != NULL;) {
        char *entry = strstr(from, ".entry ");
        const char *end = entry != NULL ? end_of(entry) : NULL;
        char *line = end != NULL ? line_of(text, entry) : from + strlen(from);
        to = mempcpy(to, from, (size_t)(line - from));
        from = (char *)end;
        if (end == NULL || strncmp(entry, key, strlen(key)) != 0) continue;
        to = mempcpy(to, line, (size_t)(end - line));
        is_there = 1;
    }
    *to = '\0';
    if (is_there) return out;
    free(out);
    return NULL;
}

char *cudart_text(const char *name, char *there) {
    char *text = file_of(name, there), *own = text != NULL ? kernel_of(text, there) : NULL;
    free(text);
    return own;
}
