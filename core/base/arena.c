/* SPDX-License-Identifier: Apache-2.0 */
/* A list of separate allocations: sanitizers then see each piece's bounds. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct attni_arena_piece {
    struct attni_arena_piece *next;
    max_align_t bytes[];
};

void *attni_arena_alloc(struct attni_arena *arena, size_t size) {
    struct attni_arena_piece *piece =
        arena->failed || size > SIZE_MAX / 4 ? NULL : calloc(1, sizeof *piece + size);
    if (!piece) {
        arena->failed = 1;
        return NULL;
    }
    piece->next = arena->pieces;
    arena->pieces = piece;
    return piece->bytes;
}

const char *attni_arena_text(struct attni_arena *arena, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : attni_arena_alloc(arena, (size_t)length + 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text ? text : "";
}

void attni_arena_free(struct attni_arena *arena) {
    while (arena->pieces) {
        struct attni_arena_piece *next = arena->pieces->next;
        free(arena->pieces);
        arena->pieces = next;
    }
    arena->failed = 0;
}
