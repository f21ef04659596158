/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check.c: `attn check`: the conformance kit on one plugin file. The work is in kit/. */
#include "cmd/probe.h"
#include "base/tool.h"

#include "../../kit/run/check.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static void list_groups(char *text, size_t size) {
    size_t at = 0;
    for (int i = 0; check_groups[i] != NULL && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i > 0 ? ", " : "", check_groups[i]);
}

/* A group that does not exist would otherwise run nothing and pass. */
static int groups_exist(const char *wanted) {
    for (const char *at = wanted; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, ",");
        int found = 0;
        for (int i = 0; check_groups[i] != NULL; i++)
            found |= strlen(check_groups[i]) == n && strncmp(at, check_groups[i], n) == 0;
        if (!found) {
            char word[64], names[400];
            snprintf(word, sizeof word, "%.*s", (int)n, at);
            list_groups(names, sizeof names);
            tool_error("--group: there is no group '%s'; the groups are %s", word, names);
            return 0;
        }
        at += n + (at[n] == ',');
    }
    return 1;
}

static const char about[] =
    "Examines a plugin file against the contract of attn_plugin.h and prints TAP: tables, structs of other "
    "ages,\n"
    "truth of the capabilities, numerics against the reference and against itself, memory, offsets, "
    "determinism,\n"
    "errors, threads, leaks, manners, layers and steps of an engine, options. Each check runs in a child "
    "process. A\n"
    "failure prints the case; the same --seed gives it again. --group takes one or more of abi, structs,\n"
    "capabilities, numerics, memory, offsets, determinism, capture, errors, threads, leaks, manners, steps, "
    "options,\n"
    "relations, separated by commas.";

static void collect(void *user, const check_result_t *r) {
    const char *result = r->is_failed ? "failed" : r->is_skipped ? "skipped" : "passed";
    json_t *check =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:f}", "backend", r->backend, "group", r->group, "name", r->name,
                  "result", result, "cases", r->num_cases, "seconds", r->seconds);
    if (r->text[0] != '\0') json_object_set_new(check, "text", json_string(r->text));
    if (r->case_text[0] != '\0') json_object_set_new(check, "case", json_string(r->case_text));
    json_array_append_new(user, check);
}

/* The loader's verdict: a context that requires this plugin and no other, and reads no configuration of
 * the system. */
static int load_alone(const char *path, const char *plugin_name, attn_error_t *error) {
    char text[PATH_MAX + 300];
    attn_context_t *context = NULL;
    ATTN_INIT(attn_context_options_t, options);
    snprintf(text, sizeof text, "[attn]\nplugins = %.63s\n[plugin %.63s]\npath = %s\nrequired = yes\n",
             plugin_name, plugin_name, path);
    options.config_text = text;
    options.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    int status = attn_context_create(&options, &context, error);
    attn_context_destroy(context);
    return status;
}

/* A file that crashes or hangs as it is loaded would take the kit down with it: it is loaded in a child
 * first. What else is wrong with it the kit says itself. */
static int is_unloadable(const char *path, json_t *checks, int is_json, check_totals_t *totals) {
    enum { PATIENCE_MS = 20000 };
    static probe_result_t probed;
    int status = probe_plugin(path, PATIENCE_MS, &probed);
    if (status == ATTN_OK || (status != ATTN_E_INTERNAL && probed.abi_major != 0)) return 0;
    const check_result_t result = {.backend = "",
                                   .group = "abi",
                                   .name = "the file is a plugin",
                                   .is_failed = 1,
                                   .text = probed.text,
                                   .case_text = ""};
    *totals = (check_totals_t){.failed = 1};
    if (is_json)
        collect(checks, &result);
    else
        printf("not ok 1 - abi: %s\n#   %s\n1..1\n", result.name, result.text);
    return 1;
}

int cmd_check(int argc, char **argv) {
    check_options_t o = {.path = NULL};
    int64_t seed = 1, timeout = 0, max_failures = 0, jobs = 0;
    int is_json = 0;
    const tool_option_t options[] = {
        {"backend", "NAME", TOOL_TEXT, &o.backend, 0, 0, "examine this backend only"},
        {"group", "LIST", TOOL_TEXT, &o.group, 0, 0, "run these groups only"},
        {"only", "TEXT", TOOL_TEXT, &o.only, 0, 0, "run the checks whose name contains this text"},
        {"option", "LIST", TOOL_TEXT, &o.values, 0, 0,
         "values of the plugin's options: name=value,name=value"},
        {"seed", "N", TOOL_INT, &seed, 1, INT64_MAX, "seed of the cases (1)"},
        {"timeout", "SECONDS", TOOL_INT, &timeout, 1, 86400,
         "time limit of one check (60; on a device, where opening may compile, 180)"},
        {"jobs", "N", TOOL_INT, &jobs, 1, 64, "run N checks at once (as many as there are processors)"},
        {"max-failures", "N", TOOL_INT, &max_failures, 0, 1000000, "stop after N failed checks (0: never)"},
        {"bench", NULL, TOOL_FLAG, &o.is_bench, 0, 0, "add the time of forward for a few batches"},
        {"times", NULL, TOOL_FLAG, &o.is_timed, 0, 0, "say the seconds of each check and of each group"},
        {"list", NULL, TOOL_FLAG, &o.is_listing, 0, 0, "print the checks, run none"},
        {"json", NULL, TOOL_FLAG, &is_json, 0, 0, "print JSON instead of TAP"},
        {"help", NULL, TOOL_HELP, NULL, 0, 0, "show this text"},
    };
    static const char examples[] = "  attn check ./my_plugin.so\n"
                                   "  attn check ./my_plugin.so --group numerics,memory --seed 7\n"
                                   "  attn check ./my_plugin.so --only window";
    const tool_usage_t usage = {
        "check", "PLUGIN.so [options]", about, examples, options, sizeof options / sizeof options[0]};
    int num_words, status = tool_parse(&usage, argc, argv, &num_words);
    if (status >= 0) return status;
    if (num_words != 1) {
        tool_error("give one plugin file, for instance: attn check ./my_plugin.so");
        return TOOL_USAGE;
    }
    if (!groups_exist(o.group)) return TOOL_USAGE;
    char *absolute =
        tool_absolute_path(argv[0]); /* dlopen takes a name without a slash for a library to search */
    if (absolute == NULL) return TOOL_INPUT;
    o.path = absolute;
    o.seed = (uint64_t)seed;
    o.timeout_s = (unsigned)timeout;
    o.max_failures = (int)max_failures;
    o.jobs = (int)jobs;
    o.validate = attn_backend_validate;
    o.load = load_alone;
    o.device_kind = attn_device_kind;
    if (is_json && (o.is_listing || o.is_bench)) {
        tool_error("--json cannot be combined with --list or --bench");
        free(absolute);
        return TOOL_USAGE;
    }
    check_totals_t totals;
    json_t *checks = json_array();
    if (is_json) {
        o.out = fopen("/dev/null", "we");
        o.on_result = collect;
        o.user = checks;
    }
    int result = is_unloadable(absolute, checks, is_json, &totals) ? -1 : check_plugin(&o, &totals);
    if (is_json) {
        if (o.out != NULL) fclose(o.out);
        tool_print_json(json_pack("{s:s, s:I, s:i, s:i, s:i, s:O}", "file", absolute, "seed",
                                  (json_int_t)seed, "passed", totals.passed, "failed", totals.failed,
                                  "skipped", totals.skipped, "checks", checks));
    }
    json_decref(checks);
    free(absolute);
    if (result > 0) { /* the exit status is not in the hands of destructors of a plugin that failed */
        fflush(NULL);
        _exit(TOOL_NO);
    }
    return result < 0 ? TOOL_INPUT : TOOL_OK;
}
