/* SPDX-License-Identifier: Apache-2.0 */
/* term.h: colours, aligned tables and a progress bar. Colours only on a terminal and without NO_COLOR; the
 * bar only on a terminal's stderr and for work that takes longer than half a second. */
#ifndef ATTN_TOOLS_TERM_H
#define ATTN_TOOLS_TERM_H

#include <stddef.h>
#include <stdio.h>

enum { TERM_PLAIN, TERM_BOLD, TERM_DIM, TERM_GREEN, TERM_RED, TERM_YELLOW };

/* The escape sequence that starts a style on stdout, "" without colours; TERM_PLAIN ends one. */
const char *term_style(int style);
/* printf in a style. */
void term_print(int style, const char *format, ...);

#define TABLE_MAX_COLUMNS 16
typedef struct table table_t;

/* columns: titles separated by '|'; a title that begins with '>' is of a right-aligned column. NULL without
 * memory. */
table_t *table_new(const char *columns);
/* One cell more; a row ends after as many cells as there are columns. printf format. */
void table_cell(table_t *table, int style, const char *format, ...);
/* A line of text across the table, after the rows so far. */
void table_note(table_t *table, const char *format, ...);
/* Prints and frees. */
void table_print(table_t *table, FILE *file, const char *indent);
void table_free(table_t *table);

typedef struct progress {
    const char *what;
    double started;
    double drawn;
    int is_on;
    int is_drawn;
} progress_t;
void progress_start(progress_t *progress, const char *what);
void progress_step(progress_t *progress, double done); /* 0..1 */
void progress_end(progress_t *progress);

#endif
