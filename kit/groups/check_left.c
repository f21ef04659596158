/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_left.c: the part of group manners about what calls leave behind: the thread's state after calls that
 * were refused, lines in the log at every step, pointers to what open was given.
 */
#include "../case/case_run.h"
#include "../run/check_engine.h"
#include "../run/surroundings.h"

#include <attn/attn_plan.h>

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

static check_t *current;

/* ---------------------------------------------------- the thread after refusals */

static surroundings_t before;
static void compare(const char *operation, int status) {
    surroundings_t now;
    char what[200];
    surroundings_read(&now);
    if (surroundings_differ(&before, &now, what, sizeof what))
        check_fail(current, "%s %s %s", operation, status == ATTN_OK ? "" : "that was refused", what);
}
static int left_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    const int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    compare("a call of build_metadata", status);
    return status;
}
static int left_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                       attn_error_t *error) {
    const int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    compare("a call of update_kv_cache", status);
    return status;
}
static int left_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                        void *stream, attn_error_t *error) {
    const int status = shim_target()->ops->forward(instance, args, space, stream, error);
    compare(space == NULL ? "a profiling run" : "a call of forward", status);
    return status;
}
static int left_open(const attn_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_instance_t **instance, attn_error_t *error) {
    const int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    compare("a call of open", status);
    return status;
}
static const attn_backend_ops_t left_ops = {
    .open = left_open, .build_metadata = left_build, .update_kv_cache = left_update, .forward = left_forward};

static void left_alone(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    attn_instance_t *none = NULL;
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t device;
    static kit_run_t x;
    current = c;
    if (!check_start(c, &k)) return;
    const attn_backend_t *shim = shim_make(c->backend, &left_ops);
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    check_running(c, &k);
    check_device(c, &device);
    surroundings_read(&before);
    attn_problem_t p = k.problem;
    p.num_heads = 0;
    if (shim->ops->open(&p, &device, NULL, 0, &check_host, &none, &e) == ATTN_OK) shim->ops->close(none);
    check_bad_calls(c, shim, &k, in);
    int status = kit_run_open(&x, shim, &k, in, c->memory, &got);
    if (status == ATTN_OK) status = kit_run_fill(&x);
    if (status == ATTN_OK) status = kit_run_outputs(&x);
    if (status == ATTN_OK) status = kit_run_arguments(&x);
    if (status == ATTN_OK) shim->ops->forward(x.instance, &x.args, NULL, c->memory->stream, &e);
    kit_run_close(&x);
    kit_result_free(&got);
    kit_inputs_free(in);
}

/* -------------------------------------------------------------------- the log */

static long num_lines;
static void counting_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)text, (void)level;
    num_lines++;
}

static void quiet_steps_of(check_t *c, const kit_case_t *of) {
    enum { STEPS = 10 };
    static kit_run_t x;
    kit_case_t k = *of;
    kit_result_t got;
    attn_host_t host = check_host;
    host.log = counting_log;
    kit_memory_t memory = *c->memory;
    memory.host = &host;
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    check_running(c, &k);
    int status = kit_run_open(&x, c->backend, &k, in, &memory, &got);
    if (status == ATTN_OK) status = kit_run_prepare(&x);
    if (status == ATTN_OK) status = kit_run_fill(&x);
    if (status == ATTN_OK) status = kit_run_outputs(&x);
    if (status == ATTN_OK) status = kit_run_update(&x);
    if (status == ATTN_OK) status = kit_run_build(&x);
    if (status == ATTN_OK) status = kit_run_forward(&x); /* the first may say what it found */
    num_lines = 0;
    for (int i = 0; i < STEPS && status == ATTN_OK; i++) {
        status = x.ops->build_metadata(x.instance, &x.batch, &x.space, memory.stream, &got.error);
        if (status == ATTN_OK)
            status = x.ops->forward(x.instance, &x.args, &x.space, memory.stream, &got.error);
    }
    if (status != ATTN_OK)
        check_fail(c, "%s: %d, %.300s", got.operation, status, got.error.text);
    else if (num_lines >= STEPS)
        check_fail(c, "%ld lines in the log in %d steps alike; a log is no trace", num_lines, (int)STEPS);
    c->report->num_cases++;
    kit_run_close(&x);
    kit_result_free(&got);
    kit_inputs_free(in);
}

static void quiet_steps(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    quiet_steps_of(c, &k);
    for (int i = 0; i < CHECK_NUM_SAID && !c->report->is_failed; i++)
        if (check_said_case(c, &k, i)) quiet_steps_of(c, &k);
    /* and in steps of other kinds: a prompt, many decodes, a long one */
    for (int kind = 0; kind < 3 && !c->report->is_failed; kind++) {
        if (!check_start(c, &k)) return;
        k.num_reqs = 0;
        k.problem.max_model_len = 8192;
        k.problem.max_num_seqs = 70;
        if (kind == 2 && !kit_has_context(&k)) break;
        for (int r = 0; r < (kind == 1 ? 70 : 1); r++)
            kit_case_add(&k, kind == 0 ? 100 : 1, kind == 0 ? 100 : kind == 1 ? 1 + r % 40 : 4100);
        if (check_is_served(c, &k)) quiet_steps_of(c, &k);
    }
}

/* ------------------------------------------------------- what open was given */

/* Problem, device and options lie on a page that is gone when open has returned. Of the host, which stays,
 * the struct does not lie there. */
enum { GONE = 1 << 16 };
static char *gone_page;
static int gone_open(const attn_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_instance_t **instance, attn_error_t *error) {
    char *at = mmap(NULL, GONE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for the kit");
    gone_page = at;
    attn_problem_t *p = memcpy(at, problem, sizeof *p);
    attn_device_t *d = memcpy(at + 1024, device, sizeof *d);
    attn_option_value_t *o = (attn_option_value_t *)(void *)(at + 2048);
    char *text = at + GONE / 2;
    for (uint32_t i = 0; options != NULL && i < num_options && i < 256; i++) {
        o[i] = options[i];
        if (options[i].s == NULL || text + strlen(options[i].s) + 1 > at + GONE) continue;
        o[i].s = strcpy(text, options[i].s);
        text += strlen(text) + 1;
    }
    const int status = shim_target()->ops->open(p, d, options != NULL && num_options <= 256 ? o : options,
                                                num_options, host, instance, error);
    mprotect(at, GONE, PROT_NONE);
    return status;
}
static void gone_close(attn_instance_t *instance) {
    shim_target()->ops->close(instance);
    if (gone_page != NULL) munmap(gone_page, GONE);
    gone_page = NULL;
}
static const attn_backend_ops_t gone_ops = {.open = gone_open, .close = gone_close};

static void arguments_gone(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    check_run(c, shim_make(c->backend, &gone_ops), &k, NULL);
}

/* ------------------------------------------------------------ tensors of nothing */

/* Of a tensor without elements there may be no memory, as in PyTorch. */
static const DLTensor *of_nothing(const DLTensor *t) {
    static DLTensor copies[32];
    static int next;
    if (t == NULL) return NULL;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0) {
            DLTensor *copy = &copies[next++ % 32];
            *copy = *t;
            copy->data = NULL, copy->byte_offset = 0;
            return copy;
        }
    return t;
}
static int empty_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                       attn_error_t *error) {
    attn_batch_t b = *batch;
    b.block_table = of_nothing(b.block_table);
    b.slot_mapping = of_nothing(b.slot_mapping);
    b.mm_prefix_ranges = of_nothing(b.mm_prefix_ranges);
    return shim_target()->ops->build_metadata(v, &b, space, stream, error);
}
static int empty_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    attn_kv_update_t a = *args;
    shim_each_of_update(&a, of_nothing);
    return shim_target()->ops->update_kv_cache(v, &a, stream, error);
}
static int empty_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    shim_each_of_forward(&a, of_nothing);
    return shim_target()->ops->forward(v, &a, space, stream, error);
}
static const attn_backend_ops_t empty_ops = {
    .build_metadata = empty_build, .update_kv_cache = empty_update, .forward = empty_forward};

static void without_memory(check_t *c) {
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    k.padded_tokens = 0;
    check_run(c, shim_make(c->backend, &empty_ops), &k, NULL);
}

/* ------------------------------------------------------------------ no memory */

static sigjmp_buf ended;
static void on_abort(int number) {
    (void)number;
    siglongjmp(ended, 1);
}

/* Each allocation of open fails once: an error comes back, nothing is left. 0: open ended the process. */
static int fail_each(check_t *c, const kit_case_t *k) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_instance_t *instance = NULL;
    if (check_open(c, &k->problem, &instance, &e) == ATTN_OK) c->backend->ops->close(instance);
    for (volatile int nth = 1; nth <= 40 && !c->report->is_failed; nth++) {
        if (sigsetjmp(ended, 1) != 0) { /* what some languages do where there is no memory */
            alloc_watch_on(0);
            check_skip(c, "it ends the process where allocation %d of open fails", nth);
            return 0;
        }
        instance = NULL;
        e = (attn_error_t){.struct_size = sizeof e};
        check_running(c, k);
        alloc_watch_on(1);
        const size_t before_it = alloc_watch_bytes();
        alloc_watch_fail(nth);
        const int status = check_open(c, &k->problem, &instance, &e);
        const int has_failed = alloc_watch_has_failed();
        alloc_watch_fail(0);
        if (status == ATTN_OK) c->backend->ops->close(instance);
        const size_t after = alloc_watch_bytes();
        alloc_watch_on(0);
        if (!has_failed) break;
        c->report->num_cases++;
        if (status != ATTN_OK && (status > 0 || status < -15 || e.text[0] == 0))
            check_fail(c, "allocation %d of open fails, and open returns %d without a text", nth, status);
        else if (status != ATTN_OK && instance != NULL)
            check_fail(c, "allocation %d of open fails, and open writes *instance", nth);
        else if (after > before_it)
            check_fail(c, "allocation %d of open fails, and %zu bytes of the others are left", nth,
                       after - before_it);
    }
    return 1;
}

/* Of the plain problem, and of caches of 8 bits, which may want tables; the next open is as ever. */
static void no_memory(check_t *c) {
    static const uint32_t formats[] = {ATTN_KV_AUTO, ATTN_KV_FP8_E4M3, ATTN_KV_INT8_PER_TOKEN_HEAD};
    kit_case_t k, other;
    if (!check_start(c, &k)) return;
    if (alloc_watch_start(c->options->path) == 0) {
        check_skip(c, "the plugin calls no allocator that could be watched");
        return;
    }
    const struct sigaction catch = {.sa_handler = on_abort, .sa_flags = SA_NODEFER};
    struct sigaction was;
    sigaction(SIGABRT, &catch, &was);
    for (int i = 0; i < 3 && !c->report->is_failed; i++) {
        other = k;
        if (i > 0) other.problem.kv_cache_dtype = formats[i];
        if (i > 0 && (!(c->can.kv_cache_dtypes & ATTN_BIT(formats[i])) || !check_is_served(c, &other)))
            continue;
        if (!fail_each(c, &other)) break;
    }
    sigaction(SIGABRT, &was, NULL);
    if (!c->report->is_failed && !c->report->is_skipped) check_run(c, c->backend, &k, NULL);
}

/* -------------------------------------------------------- a host of another age */

/* Its planning table is there, and ends before the first function. */
static const void *short_table(void *ctx, const char *id) {
    static attn_plan_table_t table;
    (void)ctx;
    memset(&table, 0x11, sizeof table); /* addresses of nothing */
    table.struct_size = offsetof(attn_plan_table_t, split);
    return strcmp(id, ATTN_PLAN_EXTENSION) == 0 ? &table : NULL;
}
static void short_host(check_t *c) {
    const attn_host_t host = {.struct_size = sizeof host, .log = counting_log, .get_extension = short_table};
    kit_case_t k;
    kit_result_t got;
    if (!check_start(c, &k)) return;
    kit_memory_t memory = *c->memory;
    memory.host = &host;
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    check_running(c, &k);
    if (kit_run(c->backend, &k, in, &memory, &got) != ATTN_OK && got.error.text[0] == 0)
        check_fail(c, "%s: %d without a text, with a host whose planning table is short", got.operation,
                   got.status);
    c->report->num_cases++;
    kit_result_free(&got);
    kit_inputs_free(in);
}

void check_left_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "manners", 1, left_alone, 0,
              "refused calls and profiling runs leave the thread as it was");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, quiet_steps, 0, "the log is quiet while steps are alike");
    check_add(list, "manners", 1, arguments_gone, 0, "nothing that open was given is kept but the host");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, short_host, 0, "a host whose planning table is shorter");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, without_memory, 0, "empty tensors without memory");
    check_add(list, "manners", CHECK_RUNS_ON_CPU, no_memory, 0, "open where there is no memory");
}
