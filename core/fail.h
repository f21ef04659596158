/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the core reports: one function that writes a code and a text into the caller's error struct.
 * The function that finds out writes the text; functions above it only pass the code on.
 */
#ifndef ATTNI_FAIL_H
#define ATTNI_FAIL_H

#include <attn/attn_types.h>

/* Writes code and text (cut at the end if too long) and returns code. err may be NULL. [any thread] */
__attribute__((format(printf, 3, 4))) int attni_fail(attn_error_t *err, int code, const char *format, ...);

/* The same with the name of the parameter at fault. */
__attribute__((format(printf, 4, 5))) int attni_fail_param(attn_error_t *err, int code, const char *param,
                                                           const char *format, ...);

#endif
