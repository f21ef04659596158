/* SPDX-License-Identifier: Apache-2.0 */
/* check_threads.c: groups threads and leaks. Instances know nothing of each other, and leave nothing behind. */
#include "check_engine.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

/* ----------------------------------------------------------------- threads */

/* Beside each instance another one of a different problem is open, opened later and used. */
static attn_instance_t *other;
static int open_beside(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.scale *= 3;
    p.max_num_seqs = 2;
    int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    if (status != ATTN_OK) return status;
    return shim_target()->ops->open(&p, device, options, num_options, host, &other, error);
}
static void close_both(attn_instance_t *instance) {
    shim_target()->ops->close(instance);
    shim_target()->ops->close(other);
}
static const attn_backend_ops_t beside_ops = {.open = open_beside, .close = close_both};

static void beside(check_t *c) {
    kit_case_t k;
    if (!check_plain_case(c, &k)) {
        check_skip(c, "the kit has no cases for its roles");
        return;
    }
    check_run(c, shim_make(c->backend, &beside_ops), &k, NULL);
    for (int n = 0; n < 4; n++) {
        check_random_case(c, &k, c->seed * 8191 + (uint64_t)n, 100);
        check_run(c, shim_make(c->backend, &beside_ops), &k, NULL);
    }
}

enum { NUM_THREADS = 4, ROUNDS = 12 };

typedef struct worker {
    check_t *check;
    kit_case_t k;
    kit_inputs_t *in;
    kit_result_t want;
    pthread_barrier_t *barrier;
    char wrong[400];
} worker_t;

static void *work(void *argument) {
    worker_t *w = argument;
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < ROUNDS && w->wrong[0] == '\0'; i++) {
        kit_result_t got;
        if (kit_run(w->check->backend, &w->k, w->in, w->check->memory, &got) != ATTN_OK)
            snprintf(w->wrong, sizeof w->wrong, "%s: %.300s", got.operation, got.error.text);
        else {
            kit_difference_t d = kit_compare(&w->k, &got, &w->want);
            if (!d.is_close) snprintf(w->wrong, sizeof w->wrong, "%s", d.text);
        }
        kit_result_free(&got);
    }
    return NULL;
}

static void parallel(check_t *c) {
    static worker_t workers[NUM_THREADS];
    pthread_t threads[NUM_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, NUM_THREADS);
    for (int i = 0; i < NUM_THREADS; i++) {
        worker_t *w = &workers[i];
        w->check = c;
        w->barrier = &barrier;
        if (!check_plain_case(c, &w->k)) {
            check_skip(c, "the kit has no cases for its roles");
            return;
        }
        w->k.seed = c->seed + (uint64_t)i;
        /* steep scores magnify the rounding of an absorbed query to 16 bits */
        w->k.problem.scale *= c->role != 0 ? 1 + 0.1 * i : 1 + i;
        kit_case_add(&w->k, 24 + i, 150 + i); /* long enough to be interrupted */
        check_running(c, &w->k);
        w->in = kit_inputs_make(&w->k);
        if (w->in == NULL || kit_run_oracle(&kit_oracle, &w->k, w->in, &w->want) != ATTN_OK) {
            check_fail(c, "the oracle failed");
            return;
        }
    }
    for (int i = 0; i < NUM_THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) abort();
    for (int i = 0; i < NUM_THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (workers[i].wrong[0] != '\0') check_fail(c, "with %d threads: %s", NUM_THREADS, workers[i].wrong);
        c->report->num_cases += ROUNDS;
    }
}

void check_threads_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "threads", 1, beside, 0, "instances of different problems live beside each other");
    check_add(list, "threads", 1, parallel, 0, "instances run in parallel");
}

/* ------------------------------------------------------------------- leaks */

static int count_entries(const char *folder) {
    DIR *d = opendir(folder);
    int count = 0;
    while (d != NULL && readdir(d) != NULL)
        count++;
    if (d != NULL) closedir(d);
    return count;
}

static size_t bytes_in_use(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
#endif
}

/* Bytes in use: of the process, and those that the plugin's own code took. */
struct growth {
    size_t process, plugin;
};
static void keep_least(size_t *least, size_t before, size_t after) {
    size_t growth = after > before ? after - before : 0;
    if (growth < *least) *least = growth;
}

enum { CYCLES_OPEN, CYCLES_RUN, CYCLES_REFUSED };

static void one_cycle(check_t *c, const kit_case_t *k, const kit_inputs_t *in) {
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    kit_result_t result;
    if (c->arg == CYCLES_RUN) {
        if (check_run_alone(c, c->backend, k, in, c->memory, &result)) kit_result_free(&result);
    } else {
        int status = check_open(c, &k->problem, &instance, &error);
        if (status == ATTN_OK && c->arg == CYCLES_REFUSED)
            check_skip(c, "open takes the unknown feature bit");
        if (status == ATTN_OK) c->backend->ops->close(instance);
    }
}

static void cycles(check_t *c) {
    kit_case_t k;
    if (!check_plain_case(c, &k)) {
        check_skip(c, "the kit has no cases for its roles");
        return;
    }
    if (c->arg == CYCLES_REFUSED) k.problem.features |= UINT64_C(1) << 60;
    kit_inputs_t *in = kit_inputs_make(&k);
    int num_cycles = c->arg == CYCLES_RUN ? 20 : 200;
    for (int i = 0; i < 10; i++)
        one_cycle(c, &k, in); /* pools and tables fill here */
    int files = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    struct growth least = {
        SIZE_MAX, SIZE_MAX}; /* of three rounds: the allocator itself breathes, a leak grows in each */
    alloc_watch_start(c->options->path);
    alloc_watch_on(1);
    for (int round = 0; round < 3; round++) {
        struct growth before = {bytes_in_use(), alloc_watch_bytes()};
        for (int i = 0; i < num_cycles; i++)
            one_cycle(c, &k, in);
        keep_least(&least.process, before.process, bytes_in_use());
        keep_least(&least.plugin, before.plugin, alloc_watch_bytes());
    }
    alloc_watch_on(0);
    /* A GPU's driver keeps up to 88 bytes of a run for itself, by its version and the load, so what the plugin took is
     * counted apart; but what a library returned for it is not seen there: both must have grown. */
    const size_t allowed = (size_t)num_cycles * 8;
    if (least.plugin > allowed && least.process > allowed)
        check_fail(c, "%zu bytes that the plugin took were not returned after %d cycles", least.plugin,
                   num_cycles);
    if (least.process > (c->memory->device_type == kDLCUDA ? 16 : 1) * allowed)
        check_fail(c, "%zu bytes more in use after %d cycles", least.process, num_cycles);
    if (count_entries("/proc/self/fd") > files)
        check_fail(c, "%d files more open after %d cycles", count_entries("/proc/self/fd") - files,
                   num_cycles);
    if (count_entries("/proc/self/task") > threads)
        check_fail(c, "%d threads more after %d cycles", count_entries("/proc/self/task") - threads,
                   num_cycles);
    kit_inputs_free(in);
}

void check_leaks_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "leaks", 1, cycles, CYCLES_OPEN, "open and close, again and again");
    check_add(list, "leaks", 1, cycles, CYCLES_RUN, "whole runs, again and again");
    check_add(list, "leaks", 1, cycles, CYCLES_REFUSED, "refused problems, again and again");
}
