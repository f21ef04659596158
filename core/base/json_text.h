/* SPDX-License-Identifier: Apache-2.0 */
/* json_text.h: JSON as text, or nothing. jansson 2.14 ignores that memory ran out while a key was written,
 * so that json_dumps succeeds with broken text; here every piece that was lost is noted. */
#ifndef ATTNI_JSON_TEXT_H
#define ATTNI_JSON_TEXT_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct attni_json_text {
    char *text;
    size_t used, room;
    int failed;
};

static inline int attni_json_piece(const char *piece, size_t size, void *user) {
    struct attni_json_text *t = (struct attni_json_text *)user;
    if (t->failed) return -1;
    if (t->room - t->used <= size) {
        size_t room = 2 * t->room + size + 64;
        char *more = (char *)realloc(t->text, room);
        if (more == NULL) return t->failed = -1;
        t->text = more;
        t->room = room;
    }
    memcpy(t->text + t->used, piece, size);
    t->used += size;
    t->text[t->used] = '\0';
    return 0;
}

/* With the flags of json_dumps; free() it. NULL: root is NULL, no memory, or what JSON cannot say. */
static inline char *attni_json_text(const json_t *root, size_t flags) {
    struct attni_json_text t = {NULL, 0, 0, 0};
    if (root != NULL && json_dump_callback(root, attni_json_piece, &t, flags) == 0 && !t.failed)
        return t.text;
    free(t.text);
    return NULL;
}

#endif
