/* SPDX-License-Identifier: Apache-2.0 */
/* One message: filter, format on the stack, make it one line, hand it over. */
#include "base/log.h"
#include "base/plain_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void attni_log(const struct attni_log *log, uint32_t level, const char *format, ...) {
    if (!log->write || level > log->level) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    attni_text_make_plain(text, ' ');
    log->write(log->ctx, level, text);
}

int attni_log_level(const char *name) {
    static const char *const names[] = {"off", "error", "warn", "info", "debug"};
    for (int level = 0; level <= ATTN_LOG_DEBUG; level++)
        if (!strcmp(name, names[level])) return level;
    return -1;
}
