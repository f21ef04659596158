/* SPDX-License-Identifier: Apache-2.0 */
/* The line reader under inih: hands out one checked line at a time and knows its number. */
#ifndef ATTNI_INI_LINES_H
#define ATTNI_INI_LINES_H

#include <attn/attn_types.h>
#include <stddef.h>

struct attni_ini_lines {
    const char *source;     /* for messages */
    const char *next, *end; /* what is still to read */
    unsigned line;          /* number of the line handed out last */
    int failed;             /* the code of the first error, 0 if none; stops the reading */
    attn_error_t *error;
    char section[64]; /* set when the line handed out last opens a section, else "" */
};

/* An ini_reader of inih: stream is a struct attni_ini_lines. NULL at the end and after an error. */
char *attni_ini_next_line(char *buffer, int size, void *stream);

#endif
