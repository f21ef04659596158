/* SPDX-License-Identifier: Apache-2.0 */
/* args.h: command lines from a table of options. The table is also the --help text, so no option exists
 * outside it. */
#ifndef ATTN_TOOLS_ARGS_H
#define ATTN_TOOLS_ARGS_H

#include <stddef.h>
#include <stdint.h>

enum {
    TOOL_FLAG = 1, /* int *: set to 1 */
    TOOL_TEXT = 2, /* const char ** */
    TOOL_INT = 3,  /* int64_t *, within min..max; suffixes k, m, g and KiB, MiB, GiB, TiB are understood */
    TOOL_LIST = 4, /* tool_list_t *: may be repeated */
    TOOL_HELP = 5
};

#define TOOL_LIST_MAX 32
typedef struct tool_list {
    const char *items[TOOL_LIST_MAX];
    size_t count;
} tool_list_t;

typedef struct tool_option {
    const char *name;  /* without the dashes */
    const char *value; /* what the help calls the value; NULL: a flag */
    int kind;          /* TOOL_* */
    void *to;
    int64_t min, max; /* TOOL_INT */
    const char *help;
} tool_option_t;

typedef struct tool_usage {
    const char *command;  /* "select" */
    const char *synopsis; /* "(--model FILE | PROBLEM) [options]" */
    const char *about;    /* one paragraph */
    const char *examples; /* lines */
    const tool_option_t *options;
    size_t num_options;
} tool_usage_t;

/* Parses argv[1..]; words that are not options are moved to the front: argv[0 .. *num_words - 1] afterwards.
 * Returns -1 to go on, or the exit code to leave with (help was requested, or the line is wrong and the
 * reason was printed). */
int tool_parse(const tool_usage_t *usage, int argc, char **argv, int *num_words);

/* "80GiB", "4096", "2m" -> number; 0 on success. k, m, g, t count in 1024s. */
int tool_parse_size(const char *text, int64_t *value);

/* The entry of names nearest to word within a third of its length, or NULL. */
const char *tool_nearest(const char *word, const char *const *names, size_t num_names);

/* "1,2,30" -> at most capacity numbers of 0..max; returns how many, or -1. */
int tool_parse_list(const char *text, int64_t max, int64_t *values, int capacity);

#endif
