/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h: what every command of `attn` shares: exit codes, the command table, errors, and the context that
 * the common options describe. */
#ifndef ATTN_TOOLS_TOOL_H
#define ATTN_TOOLS_TOOL_H

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <jansson.h>

#include "base/args.h"

/* Exit codes; attn(1) documents them. */
enum {
    TOOL_OK = 0,
    TOOL_NO = 1,    /* the answer is no: nothing serves, a check failed, it does not fit */
    TOOL_USAGE = 2, /* the command line is wrong */
    TOOL_INPUT = 3, /* an input file is missing or wrong */
    TOOL_SETUP = 4  /* configuration, plugin, device or memory */
};

typedef struct tool_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit code */
} tool_command_t;

/* The commands, as `attn --help` lists them: X(NAME, summary) for cmd_NAME in cmd/cmd_NAME.c. */
#define TOOL_COMMANDS(X)                                                                                     \
    X(info, "plugins, backends, capabilities, devices, configuration")                                       \
    X(select, "which backend serves each layer of a model, and why not the others")                          \
    X(plan, "the KV cache of a model in a given memory")                                                     \
    X(run, "real tensors through the selected backend, checked against the reference")                       \
    X(record, "the attention calls of a program, in a file that attn run replays")                           \
    X(calibrate, "static scales of V for int8 caches, from a model's values")                                \
    X(bench, "speed beside the measured limits of this machine")                                             \
    X(tune, "which backend is fastest for a model here, as an INI file")                                     \
    X(check, "the conformance kit on a plugin file")                                                         \
    X(compile, "kernels of a model ahead of time, for backends that compile at run time")
#define TOOL_DECLARE(NAME, SUMMARY) int cmd_##NAME(int argc, char **argv);
TOOL_COMMANDS(TOOL_DECLARE)
#undef TOOL_DECLARE
/* Ends with a NULL name. */
extern const tool_command_t tool_commands[];

/* Prints "attn COMMAND: TEXT" to stderr. */
void tool_error(const char *format, ...) ATTN_PRINTF(1, 2);
/* The same for an error of the library; returns the exit code that fits its number. */
int tool_library_error(const char *what, int code, const attn_error_t *error);
/* The path from / on, links as they are; free it. NULL after an error was printed: no such file, or no
 * memory. */
char *tool_absolute_path(const char *path);
/* Names the running command in error texts. */
void tool_set_command(const char *name);

/* Options that every command takes. */
typedef struct tool_common {
    const char *config;     /* --config-file */
    const char *plugin_dir; /* --plugin-dir */
    tool_list_t settings;   /* --option PLUGIN.KEY=VALUE */
    int json;               /* --json */
    int verbose;            /* --verbose */
    int prints_selection;   /* the command prints what a selection warns of, so the log need not */
    const char *ini;        /* INI text of the command's own, strongest of all; NULL: none */
} tool_common_t;

/* Six entries at the end of an option table; see any command. */
#define TOOL_COMMON_OPTIONS(C)                                                                               \
    {"json", NULL, TOOL_FLAG, &(C).json, 0, 0, "print JSON instead of text"},                                \
        {"config-file", "FILE", TOOL_TEXT, &(C).config, 0, 0, "read this INI file after the system's"},      \
        {"plugin-dir", "DIR", TOOL_TEXT, &(C).plugin_dir, 0, 0, "the folder of plugins (absolute)"},         \
        {"option",                                                                                           \
         "PLUGIN.KEY=VALUE",                                                                                 \
         TOOL_LIST,                                                                                          \
         &(C).settings,                                                                                      \
         0,                                                                                                  \
         0,                                                                                                  \
         "set an option of a plugin; may be repeated"},                                                      \
        {"verbose", NULL, TOOL_FLAG, &(C).verbose, 0, 0, "show the library's log on stderr"}, {              \
        "help", NULL, TOOL_HELP, NULL, 0, 0, "show this text"                                                \
    }

/* Makes a context as the common options say. Returns TOOL_OK or an exit code after printing why. */
int tool_context_open(const tool_common_t *common, uint32_t flags, attn_context_t **context);
/* The same for a command with --device, whose text (NULL: the default) becomes *device. */
int tool_place_open(const tool_common_t *common, const char *device_text, attn_device_t *device,
                    attn_context_t **context);

/* Prints a JSON value with a newline and releases it. */
void tool_print_json(json_t *value);

/* Seconds on a clock that never goes back. */
double tool_seconds(void);

#endif
