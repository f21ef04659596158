/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_state.c: the part of group manners about state that belongs to no instance: loading and unloading,
 * writable globals, threads that stay, reads of the environment. What it says goes through the host's log,
 * one line at a time.
 */
#include "../run/check_engine.h"
#include "../run/surroundings.h"

#include <stdlib.h>

static int start(check_t *c, kit_case_t *k) {
    if (check_plain_case(c, k)) return 1;
    check_skip(c, "the kit has no cases for its roles");
    return 0;
}

static void loading(check_t *c) {
    if (c->load_report->text[0] != '\0') check_fail(c, "%s", c->load_report->text);
}

/* Two problems in turn, until all that is made once is made; then nothing of the file's own data may change
 * any more. */
static void globals(check_t *c) {
    enum { ROUNDS = 6 };
    kit_case_t k[2];
    kit_inputs_t *in[2];
    void *holes[ROUNDS] = {NULL};
    uint64_t print[2] = {0, 0};
    size_t size = 0;
    if (!start(c, &k[0]) || !start(c, &k[1])) return;
    k[1].problem.scale *= 2;
    k[1].seed += 5;
    kit_case_add(&k[1], 3, 99);
    for (int i = 0; i < 2; i++)
        in[i] = kit_inputs_make(&k[i]);
    for (int round = 0; round < ROUNDS; round++) {
        const int i = round % 2;
        kit_result_t got;
        holes[round] = malloc(4096 + 512 * (size_t)round); /* instances come to lie elsewhere */
        attn_instance_t *elsewhere = NULL;
        attn_error_t e = {.struct_size = sizeof e};
        check_open(c, &k[i].problem, &elsewhere, &e);
        const int ran = check_run_alone(c, c->backend, &k[i], in[i], c->memory, &got);
        if (ran) kit_result_free(&got);
        if (elsewhere != NULL) c->backend->ops->close(elsewhere);
        if (!ran) break;
        const uint64_t now = globals_print(c->options->path, &size);
        if (round >= 4 && now != print[0] && !c->report->is_failed)
            check_fail(c,
                       "its writable data (%zu bytes) still changes after each kind of call ran twice; state "
                       "belongs in "
                       "the instance, in metadata or in the workspace",
                       size);
        if (round == 3) print[0] = now;
        c->report->num_cases++;
    }
    for (int round = 0; round < ROUNDS; round++)
        free(holes[round]);
    if (size == 0 && !c->report->is_failed) check_skip(c, "it has no writable data");
}

static void environment(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    if (!start(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    if (!check_run_alone(c, c->backend, &k, in, c->memory, &got)) return; /* libraries look at it once */
    kit_result_free(&got);
    const uint64_t before = environment_print();
    environment_watch(c->options->path);
    int is_well = check_run_alone(c, c->backend, &k, in, c->memory, &got);
    const int reads = environment_reads();
    if (is_well) kit_result_free(&got);
    if (reads > 0) check_fail(c, "it reads the environment; settings belong in the table of options");
    if (environment_print() != before) check_fail(c, "it changes the environment");
    kit_inputs_free(in);
}

/* The same in the first run of a process, in each operation: a variable may be read once and kept. */
static void first_environment(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    if (!start(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    environment_watch(c->options->path);
    int is_well = check_run_alone(c, c->backend, &k, in, c->memory, &got);
    const int reads = environment_reads();
    if (is_well) kit_result_free(&got);
    if (reads > 0) check_fail(c, "it reads the environment; settings belong in the table of options");
    kit_inputs_free(in);
}

/* Threads that the plugin's own code starts are gone when the call returns; pools of an OpenMP runtime are
 * not its own. */
static void threads_stay(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    alloc_watch_start(c->options->path);
    alloc_watch_on(1);
    check_run(c, c->backend, &k, NULL);
    alloc_watch_on(0);
    if (alloc_watch_threads() > 0)
        check_fail(c, "%ld threads that it started are still running after close", alloc_watch_threads());
}

/* ------------------------------------------------------------------ the log */

static check_t *current;
static void strict_log(void *ctx, uint32_t level, const char *text) {
    if (ctx != &strict_log)
        check_fail(current, "log is called with a ctx other than that of attn_host_t");
    else if (level < ATTN_LOG_ERROR || level > ATTN_LOG_DEBUG)
        check_fail(current, "it logs at level %u; ATTN_LOG_ERROR to ATTN_LOG_DEBUG are 1 to 4", level);
    else if (text == NULL || strpbrk(text, "\n\r\033") != NULL)
        check_fail(current, "a log text is NULL or has a newline or control character in it");
}
static const void *no_extension(void *ctx, const char *id) {
    if (ctx != &strict_log || id == NULL)
        check_fail(current,
                   "get_extension is called with a ctx other than that of attn_host_t, or without an id");
    return NULL;
}

static void logging(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    current = c;
    if (!start(c, &k)) return;
    const attn_host_t host = {.struct_size = sizeof host,
                              .ctx = (void *)&strict_log,
                              .log = strict_log,
                              .get_extension = no_extension};
    kit_memory_t memory = *c->memory;
    memory.host = &host;
    kit_inputs_t *in = kit_inputs_make(&k);
    if (check_run_alone(c, c->backend, &k, in, &memory, &got)) kit_result_free(&got);
    kit_inputs_free(in);
    if (ATTN_HAS_OP(c->backend->ops, get_extension) &&
        c->backend->ops->get_extension(NULL, "attn.ext.there_is_no_such_thing/1") != NULL)
        check_fail(c, "get_extension returns something for an unknown id");
}

void check_state_list(check_list_t *list, const check_t *c) {
    if (c->raw == c->plugin->backends[0] && list->role == 0)
        check_add(list, "manners", 0, loading, 0, "loading and unloading change nothing in the process");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, globals, 0, "no state outside the instance");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, first_environment, 0, "the environment is not read");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, environment, 0,
              "the environment is not read or changed later");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, threads_stay, 0, "no thread outlives its instance");
    check_add(list, "manners", 1, logging, 0, "log lines and extensions");
}
