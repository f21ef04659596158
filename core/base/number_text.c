/* SPDX-License-Identifier: Apache-2.0 */
/* The decimal point of the running locale is swapped for a point on the way out and avoided on the way in. */
#include "base/number_text.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *attni_double_parse(const char *text, double *value) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end = (char *)text;
    if (c) {
        *value = strtod_l(text, &end, c);
        freelocale(c);
    }
    return end;
}

int attni_double_format(double value, char *buffer, size_t size) {
    char text[40];
    int length = 0;
    for (int digits = 15; digits <= 17; digits++) {
        double back = 0;
        length = snprintf(text, sizeof text, "%.*g", digits, value);
        char *mark = strpbrk(text, ",.");
        if (!mark) mark = text + strspn(text, "+-0123456789e"); /* a locale with a longer decimal point */
        if (*mark && *mark != 'i' && *mark != 'n') *mark = '.';
        attni_double_parse(text, &back);
        if (back == value) break;
    }
    snprintf(buffer, size, "%s", text);
    return length;
}

static const char *const bools[] = {"no", "yes", "off", "on", "false", "true", "0", "1"};

int attni_bool_value(const char *text) {
    for (size_t i = 0; i < sizeof bools / sizeof *bools; i++)
        if (!strcasecmp(text, bools[i])) return (int)(i % 2);
    return -1;
}
