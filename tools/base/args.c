/* SPDX-License-Identifier: Apache-2.0 */
/* args.c: parses a command line by a table of options and prints the table as help. */
#include "base/args.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tool.h"

#define LEFT_COLUMN 30

static void print_help(const tool_usage_t *usage) {
    printf("Usage: attn %s %s\n\n%s\n\nOptions:\n", usage->command, usage->synopsis, usage->about);
    for (size_t i = 0; i < usage->num_options; i++) {
        const tool_option_t *o = &usage->options[i];
        int width =
            printf("  --%s%s%s", o->name, o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
        if (width >= LEFT_COLUMN) {
            printf("\n");
            width = 0;
        }
        printf("%*s%s\n", LEFT_COLUMN - width, "", o->help);
    }
    printf("\nExamples:\n%s\n\nExit status: 0 yes, 1 no, 2 wrong usage, 3 wrong input file, 4 configuration, "
           "plugin, "
           "device or memory.\nThe manual: man attn-%s\n",
           usage->examples, usage->command);
}

int tool_parse_size(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno != 0 || !(number >= -9e18 && number <= 9e18)) return -1;
    int power = 0;
    switch (tolower((unsigned char)*end)) {
    case 'k':
        power = 10;
        break;
    case 'm':
        power = 20;
        break;
    case 'g':
        power = 30;
        break;
    case 't':
        power = 40;
        break;
    default:
        break;
    }
    if (power != 0) end++;
    if (power != 0 && *end == 'i') end++;
    if (*end == 'B') end++;
    if (*end != '\0') return -1;
    number *= (double)(INT64_C(1) << power);
    if (!(number >= -9e18 && number <= 9e18) || number != (double)(int64_t)number) return -1;
    *value = (int64_t)number;
    return 0;
}

int tool_parse_list(const char *text, int64_t max, int64_t *values, int capacity) {
    int count = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long long n = strtoll(at, &end, 10);
        if (end == at || errno != 0 || n < 0 || n > max || count == capacity || (*end != ',' && *end != '\0'))
            return -1;
        values[count++] = n;
        if (*end == '\0') return count;
        at = end;
    }
}

/* Levenshtein distance, two rows; words longer than the rows never come near anything. */
static size_t distance(const char *a, const char *b) {
    size_t row[64], n = strlen(b);
    if (n + 1 > sizeof row / sizeof row[0]) return n;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < change) change = row[j] + 1;
            if (row[j - 1] + 1 < change) change = row[j - 1] + 1;
            row[j] = change;
        }
    }
    return row[n];
}

const char *tool_nearest(const char *word, const char *const *names, size_t num_names) {
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 2;
    for (size_t i = 0; i < num_names; i++) {
        size_t d = distance(word, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

static int unknown_option(const tool_usage_t *usage, const char *word) {
    const char *names[64];
    size_t n = usage->num_options < 64 ? usage->num_options : 64;
    for (size_t i = 0; i < n; i++)
        names[i] = usage->options[i].name;
    char bare[64];
    snprintf(bare, sizeof bare, "%s", word + strspn(word, "-"));
    bare[strcspn(bare, "=")] = '\0';
    const char *near = tool_nearest(bare, names, n);
    if (near != NULL)
        tool_error("unknown option %s; did you mean --%s?", word, near);
    else
        tool_error("unknown option %s; see attn %s --help", word, usage->command);
    return TOOL_USAGE;
}

static int set_option(const tool_option_t *o, const char *value) {
    tool_list_t *list = (tool_list_t *)o->to;
    int64_t number;
    switch (o->kind) {
    case TOOL_FLAG:
        *(int *)o->to = 1;
        return -1;
    case TOOL_TEXT:
        *(const char **)o->to = value;
        return -1;
    case TOOL_LIST:
        if (list->count == TOOL_LIST_MAX) {
            tool_error("--%s may be given at most %d times", o->name, TOOL_LIST_MAX);
            return TOOL_USAGE;
        }
        list->items[list->count++] = value;
        return -1;
    default:
        if (tool_parse_size(value, &number) != 0 || number < o->min || number > o->max) {
            tool_error("--%s is '%s'; expected a whole number from %lld to %lld", o->name, value,
                       (long long)o->min, (long long)o->max);
            return TOOL_USAGE;
        }
        *(int64_t *)o->to = number;
        return -1;
    }
}

int tool_parse(const tool_usage_t *usage, int argc, char **argv, int *num_words) {
    int words = 0, only_words = 0;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (only_words || word[0] != '-' || word[1] == '\0') {
            argv[words++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_words = 1;
            continue;
        }
        if (strcmp(word, "-h") == 0) word = (char *)"--help";
        size_t length = strcspn(word, "=");
        const tool_option_t *o = NULL;
        for (size_t k = 0; k < usage->num_options && word[1] == '-'; k++)
            if (strlen(usage->options[k].name) == length - 2 &&
                strncmp(usage->options[k].name, word + 2, length - 2) == 0)
                o = &usage->options[k];
        if (o == NULL) return unknown_option(usage, word);
        const char *value = word[length] == '=' ? word + length + 1 : NULL;
        if (o->kind == TOOL_HELP) {
            print_help(usage);
            return TOOL_OK;
        }
        if (o->value == NULL && value != NULL) {
            tool_error("--%s takes no value", o->name);
            return TOOL_USAGE;
        }
        if (o->value != NULL && value == NULL) {
            if (i + 1 == argc) {
                tool_error("--%s needs a value: --%s %s", o->name, o->name, o->value);
                return TOOL_USAGE;
            }
            value = argv[++i];
        }
        int status = set_option(o, value);
        if (status >= 0) return status;
    }
    *num_words = words;
    return -1;
}
