/* SPDX-License-Identifier: Apache-2.0 */
/* Writes into the caller's attn_error_t, never beyond the struct_size that the caller gave. */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int report(attn_error_t *err, int code, const char *param, const char *format, va_list arguments) {
    if (!err || err->struct_size < offsetof(attn_error_t, text) + 2) return code;
    size_t room = sizeof err->text;
    if (err->struct_size < sizeof *err) room = err->struct_size - offsetof(attn_error_t, text);
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param);
    vsnprintf(err->text, room, format, arguments);
    return code;
}

int attni_fail(attn_error_t *err, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report(err, code, "", format, arguments);
    va_end(arguments);
    return code;
}

int attni_fail_param(attn_error_t *err, int code, const char *param, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report(err, code, param, format, arguments);
    va_end(arguments);
    return code;
}
