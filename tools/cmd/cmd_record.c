/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_record.c: `attn record`: runs a command with the record hook switched on, for a bug report.
 * $ATTN_CONFIG of the command names a private copy of the caller's own file with a [hook record] section
 * behind it; all other sources stay in force. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/tool.h"

typedef struct record_args {
    const char *output;
    int64_t calls, first, max_bytes;
    int tensors;
} record_args_t;

/* An absolute name: the command may work in another folder. */
static int absolute(const char *name, char *path, size_t size) {
    char folder[2048] = "";
    if (name[0] != '/' && getcwd(folder, sizeof folder) == NULL) {
        tool_error("the working directory has no name: %s; give --output an absolute one", strerror(errno));
        return -1;
    }
    int n = snprintf(path, size, "%s%s%s", folder, name[0] != '/' ? "/" : "", name);
    if (n > 0 && (size_t)n < size && strpbrk(path, ";#\"\n\r") == NULL) return 0;
    tool_error("--output is '%s'; expected a name of at most %zu bytes without ; # \" or line ends", name,
               size);
    return -1;
}

/* Whether a line opens [hook record], however it is spaced. */
static int opens_record(const char *line) {
    static const char *const words[] = {"[", "hook", "record", "]"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strncmp(line, words[i], strlen(words[i])) != 0) return 0;
        line += strlen(words[i]);
        line += strspn(line, " \t");
    }
    return 1;
}

/* All but a [hook record] section: a key must not occur twice in one file. */
static int copy_config(const char *from, FILE *to) {
    char *line = NULL;
    size_t size = 0;
    int is_record = 0;
    if (from == NULL || from[0] == '\0') return 0;
    FILE *in = fopen(from, "re");
    if (in == NULL) return -1;
    while (getline(&line, &size, in) >= 0) {
        if (line[0] == '[') is_record = opens_record(line);
        if (!is_record) fputs(line, to);
    }
    free(line);
    int failed = ferror(in);
    fclose(in);
    return failed ? -1 : 0;
}

/* The configuration of the command; readable by its owner alone. */
static int write_config(const record_args_t *args, const char *output, char *path) {
    const char *own = getenv("ATTN_CONFIG");
    int fd = mkstemp(path); /* mode 0600 */
    FILE *to = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (to == NULL) {
        tool_error("%s: %s; set TMPDIR to a folder that can be written", path, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    if (copy_config(own, to) != 0) {
        tool_error("ATTN_CONFIG names %s, which cannot be read: %s; correct or unset it", own,
                   strerror(errno));
        fclose(to);
        unlink(path);
        return -1;
    }
    fprintf(to, "\n[hook record]\nfile = %s\ncalls = %lld\nfirst = %lld\ntensors = %s\nmax_bytes = %lld\n",
            output, (long long)args->calls, (long long)args->first, args->tensors ? "yes" : "no",
            (long long)args->max_bytes);
    int failed = ferror(to);
    if (fclose(to) == 0 && !failed) return 0;
    tool_error("%s cannot be written: %s", path, strerror(errno));
    unlink(path);
    return -1;
}

/* Runs the command and returns its status as a shell does. Interrupts are the command's to deal with. */
static int run_command(char **words, const char *config) {
    struct sigaction ignore = {.sa_handler = SIG_IGN}, interrupt, quit;
    int status;
    sigaction(SIGINT, &ignore, &interrupt);
    sigaction(SIGQUIT, &ignore, &quit);
    pid_t child = fork();
    if (child == 0) {
        sigaction(SIGINT, &interrupt, NULL);
        sigaction(SIGQUIT, &quit, NULL);
        if (setenv("ATTN_CONFIG", config, 1) == 0) execvp(words[0], words);
        tool_error("%s: %s", words[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    int failed = child < 0 ? errno : 0;
    while (child > 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR) failed = errno;
    sigaction(SIGINT, &interrupt, NULL);
    sigaction(SIGQUIT, &quit, NULL);
    if (failed != 0) {
        tool_error("%s cannot be started: %s", words[0], strerror(failed));
        return TOOL_SETUP;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Whether the command has written the file: it has another inode then, as it was made anew. */
static int is_new(const char *path, const struct stat *before, int was_there) {
    struct stat now;
    if (stat(path, &now) != 0) return 0;
    return !was_there || now.st_ino != before->st_ino || now.st_mtim.tv_sec != before->st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != before->st_mtim.tv_nsec;
}

static int record(const record_args_t *args, char **words) {
    char output[1000], config[1200];
    struct stat before;
    const char *folder = getenv("TMPDIR");
    if (absolute(args->output, output, sizeof output) != 0) return TOOL_USAGE;
    if (folder == NULL || folder[0] != '/') folder = "/tmp";
    if (snprintf(config, sizeof config, "%s/attn-record-XXXXXX", folder) >= (int)sizeof config) {
        tool_error("TMPDIR is too long");
        return TOOL_SETUP;
    }
    if (write_config(args, output, config) != 0) return TOOL_SETUP;
    int was_there = stat(output, &before) == 0;
    fflush(stdout);
    int status = run_command(words, config);
    unlink(config);
    if (strstr(output, "%p") != NULL) {
        fprintf(stderr, "attn record: %s, with the number of each process in place of %%p\n", output);
    } else if (is_new(output, &before, was_there)) {
        fprintf(stderr, "attn record: %s; replay it with: attn run --replay %s\n", output, args->output);
    } else if (status != 126 && status != 127) { /* those say themselves that there was no command */
        tool_error(
            "nothing was recorded: %s made no attention call through libattn, or fewer than --first, "
            "or it reads a configuration of its own; ATTN_CONFIG counts only where the program names no "
            "file and is not setuid",
            words[0]);
        if (status == 0) status = TOOL_NO;
    }
    return status;
}

int cmd_record(int argc, char **argv) {
    record_args_t args = {.output = "attn-record.safetensors", .calls = 1, .max_bytes = INT64_C(256) << 20};
    int words;
    const tool_option_t options[] = {
        {"output", "FILE", TOOL_TEXT, &args.output, 0, 0,
         "write this file (attn-record.safetensors); %p: the process"},
        {"calls", "N", TOOL_INT, &args.calls, 1, 1000000, "how many attention calls to record (1)"},
        {"first", "N", TOOL_INT, &args.first, 0, INT32_MAX, "how many calls to skip first (0)"},
        {"tensors", NULL, TOOL_FLAG, &args.tensors, 0, 0,
         "with the values of all tensors, which reveal what users wrote"},
        {"max-bytes", "N", TOOL_INT, &args.max_bytes, 4096, INT32_MAX, "maximum size of the file (256MiB)"},
        {"help", NULL, TOOL_HELP, NULL, 0, 0, "show this text"},
    };
    const tool_usage_t usage = {
        "record",
        "[options] -- COMMAND...",
        "Runs COMMAND, an engine that uses libattn, and records attention calls that it makes: problem, "
        "batch and\n"
        "shapes; with --tensors also what the calls read and wrote (CPU tensors). The file is a bug report:\n"
        "attn run --replay FILE executes it on any backend. The exit status is COMMAND's.",
        "  attn record -- python serve.py\n"
        "  attn record --tensors --first 320 --calls 32 --output step.safetensors -- ./engine prompt.txt",
        options,
        sizeof options / sizeof options[0]};
    int status = tool_parse(&usage, argc, argv, &words);
    if (status >= 0) return status;
    if (words == 0) {
        tool_error("no command; give it after --: attn record -- COMMAND...");
        return TOOL_USAGE;
    }
    argv[words] = NULL; /* options came before, so that there is room */
    return record(&args, argv);
}
