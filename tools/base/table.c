/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: collects cells, then prints them in columns as wide as their widest cell. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/term.h"

typedef struct cell {
    char *text;
    int style; /* -1: a note across the table */
} cell_t;

struct table {
    cell_t *cells;
    size_t count, capacity;
    size_t columns;
    int is_right[TABLE_MAX_COLUMNS];
};

static void push(table_t *table, int style, const char *format, va_list args) {
    if (table == NULL) return;
    if (table->count == table->capacity) {
        size_t more = table->capacity * 2 + 64;
        cell_t *grown = realloc(table->cells, more * sizeof *grown);
        if (grown == NULL) return;
        table->cells = grown;
        table->capacity = more;
    }
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    char *copy = strdup(text);
    if (copy == NULL) return;
    table->cells[table->count].text = copy;
    table->cells[table->count++].style = style;
}

void table_cell(table_t *table, int style, const char *format, ...) {
    va_list args;
    va_start(args, format);
    push(table, style, format, args);
    va_end(args);
}

void table_note(table_t *table, const char *format, ...) {
    va_list args;
    va_start(args, format);
    push(table, -1, format, args);
    va_end(args);
}

table_t *table_new(const char *columns) {
    table_t *table = calloc(1, sizeof *table);
    if (table == NULL) return NULL;
    for (const char *at = columns;;) {
        size_t length = strcspn(at, "|");
        if (table->columns < TABLE_MAX_COLUMNS) {
            int right = *at == '>';
            table->is_right[table->columns++] = right;
            table_cell(table, TERM_BOLD, "%.*s", (int)length - right, at + right);
        }
        if (at[length] == '\0') return table;
        at += length + 1;
    }
}

/* Columns that a text takes: UTF-8 continuation bytes take none. */
static size_t width_of(const char *text) {
    size_t n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

void table_print(table_t *table, FILE *file, const char *indent) {
    if (table == NULL) return;
    size_t width[TABLE_MAX_COLUMNS] = {0}, column = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (table->cells[i].style < 0) continue;
        size_t w = width_of(table->cells[i].text);
        if (w > width[column]) width[column] = w;
        column = (column + 1) % table->columns;
    }
    column = 0;
    for (size_t i = 0; i < table->count; i++) {
        cell_t *cell = &table->cells[i];
        if (cell->style < 0) {
            fprintf(file, "%s%s\n", indent, cell->text);
            continue;
        }
        size_t pad = width[column] - width_of(cell->text);
        int is_last = column + 1 == table->columns;
        if (column == 0) fputs(indent, file);
        if (table->is_right[column]) fprintf(file, "%*s", (int)pad, "");
        int styled = file == stdout && cell->style != TERM_PLAIN;
        fprintf(file, "%s%s%s", styled ? term_style(cell->style) : "", cell->text,
                styled ? term_style(TERM_PLAIN) : "");
        if (!table->is_right[column] && !is_last) fprintf(file, "%*s", (int)pad, "");
        fputs(is_last ? "\n" : "  ", file);
        column = (column + 1) % table->columns;
    }
    table_free(table);
}

void table_free(table_t *table) {
    if (table == NULL) return;
    for (size_t i = 0; i < table->count; i++)
        free(table->cells[i].text);
    free(table->cells);
    free(table);
}
