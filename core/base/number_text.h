/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as text that do not change with the locale of the program around us. */
#ifndef ATTNI_NUMBER_TEXT_H
#define ATTNI_NUMBER_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* strtod in the C locale. Returns the first byte not read; text itself if there is no number. */
const char *attni_double_parse(const char *text, double *value);

/*
 * The shortest of 15 to 17 digits that reads back exactly, in the C locale. Returns the length, as
 * snprintf.
 */
int attni_double_format(double value, char *buffer, size_t size);

/* yes, no, on, off, true, false, 1, 0 in any case as 1 or 0; -1: another text. */
int attni_bool_value(const char *text);

#endif
