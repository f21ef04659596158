/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the `attn` command: the table of subcommands and the way into them. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

const tool_command_t tool_commands[] = {
    {"info", "plugins, backends, capabilities, devices, configuration", cmd_info},
    {"select", "which backend serves each layer of a model, and why not the others", cmd_select},
    {"plan", "the KV cache of a model in a given memory", cmd_plan},
    {"run", "real tensors through the selected backend, checked against the reference", cmd_run},
    {"record", "the attention calls of a program, in a file that attn run replays", cmd_record},
    {"bench", "speed beside the measured limits of this machine", cmd_bench},
    {"check", "the conformance kit on a plugin file", cmd_check},
    {"compile", "kernels of a model ahead of time, for backends that compile at run time", cmd_compile},
    {NULL, NULL, NULL},
};

static void print_help(void) {
    printf("Usage: attn COMMAND [options]\n\nThe attention layer of LLM engines: see, choose, check and "
           "measure backends.\n\n"
           "Commands:\n");
    for (const tool_command_t *c = tool_commands; c->name != NULL; c++)
        printf("  %-8s %s\n", c->name, c->summary);
    printf("\nExamples:\n"
           "  attn info\n"
           "  attn select --model config.json --device sm_90\n"
           "  attn run activations.safetensors\n"
           "\nattn COMMAND --help tells more. Exit status: 0 yes, 1 no, 2 wrong usage, 3 wrong input file,\n"
           "4 configuration, plugin, device or memory. The manual: man attn\n");
}

int main(int argc, char **argv) {
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
            int status = c->run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                tool_error("stdout: writing failed");
                return TOOL_SETUP;
            }
            return status;
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
