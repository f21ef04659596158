/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the `attn` command: the table of subcommands and the way into them. */
#include <stdio.h>
#include <string.h>

#include "base/tool.h"

#define ROW(NAME, SUMMARY) {#NAME, SUMMARY, cmd_##NAME},
const tool_command_t tool_commands[] = {TOOL_COMMANDS(ROW){NULL, NULL, NULL}};
#undef ROW

static void print_help(void) {
    printf("Usage: attn COMMAND [options]\n\nThe attention layer of LLM engines: see, choose, check and "
           "measure backends.\n\n"
           "Commands:\n");
    for (const tool_command_t *c = tool_commands; c->name != NULL; c++)
        printf("  %-9s %s\n", c->name, c->summary);
    printf("\nExamples:\n"
           "  attn info\n"
           "  attn select --model config.json --device sm_90\n"
           "  attn run activations.safetensors\n"
           "\nattn COMMAND --help shows its options. Exit status: 0 yes, 1 no, 2 wrong usage, 3 wrong input "
           "file,\n"
           "4 configuration, plugin, device or memory. The manual: man attn\n");
}

/* What was printed has arrived: a full disk or a closed pipe must not look like an answer. */
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    tool_error("stdout: writing failed");
    return TOOL_SETUP;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help();
        return TOOL_USAGE;
    }
    const char *word = argv[1];
    static char help[] = "--help"; /* attn help COMMAND is attn COMMAND --help */
    char *asked[] = {argv[0], argc > 2 ? argv[2] : NULL, help, NULL};
    if (strcmp(word, "help") == 0 && argc == 3) {
        argv = asked;
        word = argv[1];
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help();
        return TOOL_OK;
    }
    if (strcmp(word, "--version") == 0) {
        printf("attn (libattn) %s\n", attn_version());
        return TOOL_OK;
    }
    const char *names[16];
    size_t count = 0;
    for (const tool_command_t *c = tool_commands; c->name != NULL; c++) {
        if (strcmp(word, c->name) == 0) {
            tool_set_command(c->name);
            return c->run(argc - 1, argv + 1);
        }
        names[count++] = c->name;
    }
    const char *near = tool_nearest(word, names, count);
    if (near != NULL)
        tool_error("unknown command '%s'; did you mean %s?", word, near);
    else
        tool_error("unknown command '%s'; see attn --help", word);
    return TOOL_USAGE;
}

int main(int argc, char **argv) {
    return finish(run(argc, argv));
}
