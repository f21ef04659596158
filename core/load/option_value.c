/* SPDX-License-Identifier: Apache-2.0 */
/* option_value.c: one text under the type and bounds of an option. */
#include "load/option_value.h"

#include "base/number_text.h"

#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong(const attn_option_spec_t *spec, const char *text, const char *origin, const char *wanted,
                 attn_error_t *error) {
    return attn_fail(error, ATTN_E_PARSE, spec->name, "%s: option %s has the invalid value '%.60s'; write %s",
                     origin, spec->name, text, wanted);
}

static int parse_int(const attn_option_spec_t *spec, const char *text, const char *origin,
                     attn_option_value_t *value, attn_error_t *error) {
    char *end, wanted[96];
    int bounded = spec->min_int || spec->max_int;
    if (bounded)
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)spec->min_int,
                 (long long)spec->max_int);
    else
        snprintf(wanted, sizeof wanted, "a whole number");
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end || (bounded && (parsed < spec->min_int || parsed > spec->max_int)))
        return wrong(spec, text, origin, wanted, error);
    value->i = parsed;
    return 0;
}

static int parse_double(const attn_option_spec_t *spec, const char *text, const char *origin,
                        attn_option_value_t *value, attn_error_t *error) {
    char wanted[96];
    int bounded = spec->min_double != 0 || spec->max_double != 0;
    if (bounded)
        snprintf(wanted, sizeof wanted, "a number from %g to %g", spec->min_double, spec->max_double);
    else
        snprintf(wanted, sizeof wanted, "a number");
    double parsed = 0;
    const char *end = attni_double_parse(text, &parsed);
    if (end == text || *end || !isfinite(parsed) ||
        (bounded && (parsed < spec->min_double || parsed > spec->max_double)))
        return wrong(spec, text, origin, wanted, error);
    value->d = parsed;
    return 0;
}

static int parse_choice(const attn_option_spec_t *spec, const char *text, const char *origin,
                        attn_option_value_t *value, attn_error_t *error) {
    size_t length = strlen(text);
    int64_t index = 0;
    for (const char *word = spec->choices; *word; index++) {
        size_t width = strcspn(word, " ");
        if (width == length && !strncmp(word, text, length)) {
            value->i = index;
            return 0;
        }
        word += width;
        word += *word == ' ';
    }
    char wanted[200];
    snprintf(wanted, sizeof wanted, "one of: %s", spec->choices);
    return wrong(spec, text, origin, wanted, error);
}

int attni_option_parse(const attn_option_spec_t *spec, const char *text, const char *origin,
                       attn_option_value_t *value, attn_error_t *error) {
    attn_option_value_t parsed = {
        .struct_size = sizeof parsed, .type = spec->type, .name = spec->name, .s = text};
    int code = 0;
    if (spec->type == ATTN_OPTION_INT) code = parse_int(spec, text, origin, &parsed, error);
    if (spec->type == ATTN_OPTION_DOUBLE) code = parse_double(spec, text, origin, &parsed, error);
    if (spec->type == ATTN_OPTION_ENUM) code = parse_choice(spec, text, origin, &parsed, error);
    if (spec->type == ATTN_OPTION_BOOL) {
        int truth = attni_bool_value(text);
        code = truth < 0 ? wrong(spec, text, origin, "yes or no", error) : 0;
        parsed.i = truth;
    }
    if (code == ATTN_OK) *value = parsed;
    return code;
}
