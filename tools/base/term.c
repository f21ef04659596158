/* SPDX-License-Identifier: Apache-2.0 */
/* term.c: colours and the progress bar. */
#include "base/term.h"

#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/tool.h"

#define BAR_WIDTH 30

const char *term_style(int style) {
    static int colours = -1;
    static const char *const codes[] = {"\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[33m"};
    if (colours < 0) {
        const char *no = getenv("NO_COLOR"), *kind = getenv("TERM");
        colours =
            isatty(STDOUT_FILENO) && (no == NULL || *no == '\0') && kind != NULL && strcmp(kind, "dumb") != 0;
    }
    return colours ? codes[style] : "";
}

void term_print(int style, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs(style != TERM_PLAIN ? term_style(style) : "", stdout);
    vprintf(format, args);
    fputs(style != TERM_PLAIN ? term_style(TERM_PLAIN) : "", stdout);
    va_end(args);
}

void progress_start(progress_t *progress, const char *what) {
    progress->what = what;
    progress->started = progress->drawn = tool_seconds();
    progress->is_on = isatty(STDERR_FILENO);
    progress->is_drawn = 0;
}

void progress_step(progress_t *progress, double done) {
    double now = tool_seconds();
    if (!progress->is_on || now - progress->started < 0.5 || now - progress->drawn < 0.1) return;
    int filled = (int)(done * BAR_WIDTH + 0.5);
    if (filled > BAR_WIDTH) filled = BAR_WIDTH;
    fprintf(stderr, "\r%s [", progress->what);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f%%\033[K", done * 100);
    fflush(stderr);
    progress->drawn = now;
    progress->is_drawn = 1;
}

void progress_end(progress_t *progress) {
    if (progress->is_drawn) fprintf(stderr, "\r\033[K");
    progress->is_drawn = 0;
}
