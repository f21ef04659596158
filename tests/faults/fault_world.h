/* SPDX-License-Identifier: Apache-2.0 */
/* fault_world.h: what the programs that inject faults run, over and over: the API from the configuration to
 * outputs, real plugins, hooks that write files. An outcome is all right, or an error that says what is
 * wrong. */
#ifndef ATTN_TESTS_FAULT_WORLD_H
#define ATTN_TESTS_FAULT_WORLD_H

#include "../soak/small_world.h"
#include "../tap.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Up to SPARED all is well. */
enum outcome { SERVED, REFUSED, SPARED, UNEXPLAINED, WRONG, LEFT_OPEN, NOT_USABLE, LEAKED, OUTCOMES };
static const char *const outcome_names[OUTCOMES] = {
    "served",        "an error with a text",   "not failed after all",  "an error without a text",
    "wrong numbers", "a descriptor left open", "not usable afterwards", "memory leaked"};
static char scratch[64] = "/tmp/attn-faults-XXXXXX";
static char fault_config[512], fault_text[600];

static void fault_world_start(void) {
    const char *ini = getenv("ATTN_TEST_INI");
    if (ini == NULL) bail_out("ATTN_TEST_INI names no build.ini; use make check");
    if (mkdtemp(scratch) == NULL) bail_out("no scratch folder");
    snprintf(fault_config, sizeof fault_config, "%s", ini);
    snprintf(fault_text, sizeof fault_text,
             "[attn]\nplugins = cpu, reference\n[option cpu]\nnum_threads = 1\n"
             "[hook trace]\nfile = %s/trace.jsonl\n"
             "[hook record]\nfile = %s/record.safetensors\ncalls = 2\ntensors = yes\n",
             scratch, scratch);
}

static void fault_world_empty(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/trace.jsonl", scratch);
    unlink(path);
    snprintf(path, sizeof path, "%s/record.safetensors", scratch);
    unlink(path);
}

static void fault_world_end(void) {
    fault_world_empty();
    if (rmdir(scratch) != 0) diag("something is left in %s", scratch);
}

static int open_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 64; fd++) {
        struct stat s;
        n += fstat(fd, &s) == 0;
    }
    return n;
}

/* The whole of it; leaves nothing behind. */
static enum outcome fault_world_run(void) {
    attn_error_t error = {.struct_size = sizeof error};
    attn_context_t *context = NULL;
    attn_selection_t *selection = NULL;
    attn_device_t cpu = {.struct_size = sizeof cpu};
    attn_problem_t problem = {.struct_size = sizeof problem};
    const long before = differ;
    int code = attn_problem_parse("role=decoder mask=causal dtype=bfloat16 num_heads=8 num_kv_heads=2 "
                                  "head_size=64 scale=0.125",
                                  &problem, &error);
    if (code == ATTN_OK) code = attn_device_parse("cpu", &cpu, &error);
    if (code == ATTN_OK) code = small_context(fault_config, fault_text, &context, &error);
    if (code == ATTN_OK) code = attn_select(context, &problem, &cpu, NULL, &selection, &error);
    for (int kind = 0; code == ATTN_OK && kind < KINDS; kind++) {
        code = small_open(context, kind, &error);
        for (int s = 0; code == ATTN_OK && s < 2; s++)
            code = small_step(kind, &error);
    }
    for (int kind = 0; kind < KINDS; kind++)
        small_close(&lanes[kind]);
    attn_selection_free(selection);
    attn_context_destroy(context);
    if (differ != before) return WRONG;
    if (code == ATTN_OK) return SERVED;
    return error.code == code && error.text[0] != '\0' ? REFUSED : UNEXPLAINED;
}

/* Counts of outcomes, and what ended processes. */
struct tally {
    int tried, outcomes[OUTCOMES], ended;
};

/* A child's answer as its status: away from 0 and 1, with which libraries like to end a process. */
enum { STATUS_OF_OUTCOMES = 64 };

/* Adds how a child ended; 1 if that was not clean, with a line that says what and where. */
static int tally_add(struct tally *t, int status, const char *what, long n) {
    t->tried++;
    const int outcome = WIFEXITED(status) ? WEXITSTATUS(status) - STATUS_OF_OUTCOMES : -1;
    const int is_outcome = outcome >= 0 && outcome < OUTCOMES;
    if (is_outcome)
        t->outcomes[outcome]++;
    else
        t->ended++;
    if (is_outcome && outcome <= SPARED) return 0;
    if (what == NULL) return 1;
    if (is_outcome)
        diag("%s %ld: %s", what, n, outcome_names[outcome]);
    else if (WIFSIGNALED(status))
        diag("%s %ld: ended by signal %d", what, n, WTERMSIG(status));
    else
        diag("%s %ld: ended with status %d", what, n, WEXITSTATUS(status));
    return 1;
}

static void tally_show(const struct tally *t, const char *what) {
    int bad = t->ended;
    for (int i = SPARED + 1; i < OUTCOMES; i++)
        bad += t->outcomes[i];
    diag("%-34s %6d tried: %5d served, %5d refused with a text, %d spared, %d not clean", what, t->tried,
         t->outcomes[SERVED], t->outcomes[REFUSED], t->outcomes[SPARED], bad);
}

/* Every how many faults are tried: all with ATTN_TEST_LONG, else some; which ones the seed says. */
static long fault_stride(long short_stride) {
    const char *is_long = getenv("ATTN_TEST_LONG");
    return is_long != NULL && strcmp(is_long, "0") != 0 ? 1 : short_stride;
}

/* Of a child: no run may take longer than this, whatever waits for whatever. */
static void limit_child(void) {
    struct rlimit cpu = {20, 20}, core = {0, 0};
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &core);
    alarm(120);
}

#endif
