/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_state.c: the part of group manners about state that belongs to no instance: loading and unloading,
 * writable globals, threads that stay, reads of the environment. What it says goes through the host's log,
 * one line at a time.
 */
#include "../run/check_engine.h"
#include "../run/surroundings.h"

#include <stdlib.h>

static void loading(check_t *c) {
    if (c->load_report->text[0] != '\0') check_fail(c, "%s", c->load_report->text);
}

/* Two problems in turn, until all that is made once is made; then nothing of the file's own data may
 * change any more. Of the kinds that a kernel may keep apart: short ones, long contexts, many heads, a
 * long prompt, one row of one head. */
enum { SHORT, LONG_CONTEXT, MANY_HEADS, LONG_PROMPT, LONE, NUM_KINDS };
static int start_kind(check_t *c, int kind, kit_case_t *k) {
    if (!check_start(c, k)) return 0;
    if (kind == SHORT) return 1;
    k->num_reqs = 0;
    k->problem.max_model_len = 8192;
    k->problem.max_num_batched_tokens = 1024;
    if (kind == MANY_HEADS) {
        k->problem.num_heads = k->problem.num_kv_heads = 66;
        if (attn_role_is_mla(k->problem.role)) k->problem.num_heads = 66, k->problem.num_kv_heads = 0;
        kit_case_add(k, 2, 40);
    } else if (kind == LONE) {
        k->problem.num_heads = 1, k->problem.num_kv_heads = k->problem.num_kv_heads != 0;
        kit_case_add(k, 1, attn_role_has_cache(k->problem.role) ? 3 : 1);
    } else
        kit_case_add(k, kind == LONG_PROMPT ? 600 : 1, kind == LONG_PROMPT ? 600 : 5000);
    return check_is_served(c, k);
}

static size_t globals_of_kind(check_t *c, int kind) {
    enum { ROUNDS = 6 };
    static kit_case_t k[2];
    kit_inputs_t *in[2];
    void *holes[ROUNDS] = {NULL};
    uint64_t print[2] = {0, 0};
    size_t size = 0;
    if (!start_kind(c, kind, &k[0]) || !start_kind(c, kind, &k[1])) return 0;
    k[1].problem.scale *= 2;
    k[1].seed += 5;
    if (kind != LONE) kit_case_add(&k[1], 3, 99);
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
    for (int i = 0; i < 2; i++)
        kit_inputs_free(in[i]);
    return size;
}

static void globals(check_t *c) {
    size_t size = 0;
    for (int kind = 0; kind < NUM_KINDS && !c->report->is_failed; kind++)
        size += globals_of_kind(c, kind);
    if (size == 0 && !c->report->is_failed) check_skip(c, "it has no writable data");
}

/* What a plugin says about itself: two loads of it by one process must find the same. */
static uint64_t print_tables(const check_t *c) {
    const attn_plugin_t *p = c->plugin;
    const attn_backend_t *b = c->raw;
    const attn_capabilities_t *t = b->capabilities;
    uint64_t h = attn_fingerprint64(0, p, p->struct_size);
    h = attn_fingerprint64(h, p->backends, p->num_backends * sizeof *p->backends);
    for (uint32_t i = 0; i < p->num_options; i++)
        h = attn_fingerprint64(h, check_option_spec(p, i), check_option_spec(p, i)->struct_size);
    h = attn_fingerprint64(h, b, b->struct_size);
    h = attn_fingerprint64(h, b->ops, b->ops->struct_size);
    h = attn_fingerprint64(h, t, t->struct_size);
    h = attn_fingerprint64(h, c->can.head_sizes, c->can.num_head_sizes * sizeof *c->can.head_sizes);
    h = attn_fingerprint64(h, c->can.head_sizes_v, c->can.num_head_sizes_v * sizeof *c->can.head_sizes_v);
    h = attn_fingerprint64(h, c->can.block_sizes, c->can.num_block_sizes * sizeof *c->can.block_sizes);
    return attn_fingerprint64(h, c->can.compute_capabilities,
                              c->can.num_compute_capabilities * sizeof *c->can.compute_capabilities);
}

/* The tables, and what open is given. */
static attn_problem_t given;
static attn_device_t given_device;
static int num_changed;
static int guarded_open(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    given = *problem, given_device = *device;
    const int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    num_changed += memcmp(&given, problem, sizeof given) != 0;
    num_changed += memcmp(&given_device, device, sizeof given_device) != 0;
    return status;
}
static const attn_backend_ops_t guarded_ops = {.open = guarded_open};

static void tables(check_t *c) {
    const uint64_t before = print_tables(c);
    kit_case_t k;
    if (!check_start(c, &k)) return;
    k.problem.block_size = 0; /* what a plugin may be tempted to fill in */
    attn_instance_t *instance = NULL;
    attn_device_t device;
    attn_error_t e = {.struct_size = sizeof e};
    check_device(c, &device);
    const attn_backend_t *b = shim_make(c->backend, &guarded_ops);
    if (b->ops->open(&k.problem, &device, NULL, 0, NULL, &instance, &e) == ATTN_OK) b->ops->close(instance);
    if (!check_start(c, &k)) return;
    check_run(c, b, &k, NULL);
    if (num_changed > 0) check_fail(c, "open changes the problem or the device that it is given");
    if (print_tables(c) != before)
        check_fail(c, "the descriptor, a table or an option of the plugin is another one after use");
}

static void environment(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    if (!check_start(c, &k)) return;
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
    if (!check_start(c, &k)) return;
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
static long staying; /* at most, behind a call */
static const char *staying_behind;
static int behind(const char *operation, int status) {
    const long n = alloc_watch_threads();
    if (n > staying) staying = n, staying_behind = operation;
    return status;
}
static int staying_open(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    return behind("open",
                  shim_target()->ops->open(problem, device, options, num_options, host, instance, error));
}
static int staying_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    return behind("build_metadata",
                  shim_target()->ops->build_metadata(instance, batch, space, stream, error));
}
static int staying_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    return behind("forward", shim_target()->ops->forward(instance, args, space, stream, error));
}
static const attn_backend_ops_t staying_ops = {
    .open = staying_open, .build_metadata = staying_build, .forward = staying_forward};

static void threads_stay(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    alloc_watch_start(c->options->path);
    alloc_watch_on(1);
    check_run(c, shim_make(c->backend, &staying_ops), &k, NULL);
    if (attn_role_has_cache(k.problem.role) && c->memory->kind == NULL) { /* where there is more to do */
        k.problem.max_model_len = k.problem.max_num_batched_tokens = 8192;
        check_few_heads(c, &k);
        kit_case_add(&k, 1, 8000);
        kit_case_add(&k, 2000, 2000);
        check_run(c, shim_make(c->backend, &staying_ops), &k, NULL);
        k.problem.max_num_seqs = 300;
        for (k.num_reqs = 0; k.num_reqs < 150;)
            kit_case_add(&k, 1, 3 + k.num_reqs % 37);
        check_run(c, shim_make(c->backend, &staying_ops), &k, NULL);
    }
    alloc_watch_on(0);
    if (staying > 0)
        check_fail(c, "%ld threads that it started are still running when %s has returned", staying,
                   staying_behind);
    if (alloc_watch_threads() > 0)
        check_fail(c, "%ld threads that it started are still running after close", alloc_watch_threads());
    if (alloc_watch_handler() != NULL)
        check_fail(c, "it leaves a handler with the process by %s, which runs when its instances are gone",
                   alloc_watch_handler());
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
    if (!check_start(c, &k)) return;
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
    check_add(list, "manners", 1, tables, 0, "tables and problems are not changed");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, first_environment, 0, "the environment is not read");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, environment, 0,
              "the environment is not read or changed later");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, threads_stay, 0,
              "no thread or handler outlives its instance");
    check_add(list, "manners", 1, logging, 0, "log lines and extensions");
}
