/* SPDX-License-Identifier: Apache-2.0 */
/* comma_locale.h: a locale that writes 1,5 for one and a half, made with localedef, since none may be
 * installed. */
#ifndef ATTN_TESTS_COMMA_LOCALE_H
#define ATTN_TESTS_COMMA_LOCALE_H

#include "tap.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Switches the process to it: 1, or 0 where localedef is missing. Undo: setlocale(LC_ALL, "C"). */
TAP_UNUSED static int comma_locale(void) {
    static const char definition[] =
        "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n";
    char dir[] = "/tmp/attn-locale-XXXXXX", file[64], command[512], shown[16];
    if (mkdtemp(dir) == NULL) return 0;
    snprintf(file, sizeof file, "%s/def", dir);
    FILE *f = fopen(file, "w");
    if (f == NULL || fputs(definition, f) < 0 || fclose(f) != 0) return 0;
    snprintf(command, sizeof command, "localedef -c -i %s -f ANSI_X3.4-1968 %s/comma >/dev/null 2>&1", file,
             dir);
    if (system(command) == -1) return 0; /* it exits with 1 for the categories that are not said */
    setenv("LOCPATH", dir, 1);
    int is_set = setlocale(LC_NUMERIC, "comma") != NULL;
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command) != 0) diag("%s stays", dir);
    snprintf(shown, sizeof shown, "%.1f", 1.5);
    return is_set && strcmp(shown, "1,5") == 0;
}

#endif
