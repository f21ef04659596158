/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is given back all at once: the many small pieces of one record. */
#ifndef ATTNI_ARENA_H
#define ATTNI_ARENA_H

#include <stddef.h>

struct attni_arena {
    struct attni_arena_piece *pieces;
    int failed; /* 1 once memory ran out; every later call returns NULL */
};

/* Zeroed memory, or NULL. */
void *attni_arena_alloc(struct attni_arena *arena, size_t size);

/*
 * A formatted text; "" if memory ran out, so that it can be used without a check before failed is looked
 * at.
 */
__attribute__((format(printf, 2, 3))) const char *attni_arena_text(struct attni_arena *arena,
                                                                   const char *format, ...);

void attni_arena_free(struct attni_arena *arena);

#endif
