/* SPDX-License-Identifier: Apache-2.0 */
/* check_threads.c: groups threads and leaks. Instances know nothing of each other, and leave nothing
 * behind. */
#include "../case/case_run.h"
#include "../run/check_engine.h"
#include "../run/surroundings.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ----------------------------------------------------------------- threads */

/* Beside each instance another one of a different problem is open, opened later and used. */
static attn_instance_t *other;
static attn_problem_t other_problem; /* role 0: the same, of another scale and size */
static int open_beside(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                       attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.scale *= 3;
    p.max_num_seqs = 2;
    int status = shim_target()->ops->open(problem, device, options, num_options, host, instance, error);
    if (status != ATTN_OK) return status;
    return shim_target()->ops->open(other_problem.role != 0 ? &other_problem : &p, device, options,
                                    num_options, host, &other, error);
}
static void close_both(attn_instance_t *instance) {
    shim_target()->ops->close(instance);
    shim_target()->ops->close(other);
}
static const attn_backend_ops_t beside_ops = {.open = open_beside, .close = close_both};

/* The plain case of a decoder with another value of one member. */
enum { NUM_CHANGES = 9 };
static int change(const check_t *c, kit_case_t *k, int i) {
    static const uint64_t needs[NUM_CHANGES] = {ATTN_F_SOFT_CAP, ATTN_F_SLIDING_WINDOW, ATTN_F_SINK,
                                                ATTN_F_ALIBI, ATTN_F_NON_CAUSAL};
    attn_problem_t *p = &k->problem;
    if (!check_plain_case(c, k) || p->role != ATTN_ROLE_DECODER || (c->can.features & needs[i]) != needs[i])
        return 0;
    const attn_problem_t was = *p;
    if (i == 0) p->logits_soft_cap = 2;
    if (i == 1) p->sliding_window = 5;
    if (i == 2 || i == 3) p->features |= needs[i];
    if (i == 4) p->mask = ATTN_MASK_FULL;
    if (i == 5) p->kv_cache_dtype = check_fp8_cache(c);
    if (i == 6) p->block_size = check_block_size(c, 64);
    if (i == 7) p->head_size = check_head_size(c, 64);
    if (i == 8 && (c->can.dtypes & ATTN_BIT(ATTN_DTYPE_BFLOAT16))) p->dtype = ATTN_DTYPE_BFLOAT16;
    check_fit_size(c, k);
    return memcmp(&was, p, sizeof was) != 0 && check_is_served(c, k);
}

static void beside(check_t *c) {
    kit_case_t k, changed;
    if (!check_start(c, &k)) return;
    check_run(c, shim_make(c->backend, &beside_ops), &k, NULL);
    for (int n = 0; n < 4; n++) {
        check_random_case(c, &k, c->seed * 8191 + (uint64_t)n, 100);
        check_run(c, shim_make(c->backend, &beside_ops), &k, NULL);
    }
    for (int i = 0; i < NUM_CHANGES && c->role == 0 && check_plain_case(c, &k); i++) {
        if (!change(c, &changed, i)) continue;
        other_problem = changed.problem;
        check_run(c, shim_make(c->backend, &beside_ops), &k, NULL);
        other_problem = k.problem;
        check_run(c, shim_make(c->backend, &beside_ops), &changed, NULL);
    }
    other_problem.role = 0;
}

enum { NUM_THREADS = 4, ROUNDS = 12, KEPT_ROUNDS = 2 };
static int num_rounds;

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
    for (int i = 0; i < num_rounds && w->wrong[0] == '\0'; i++) {
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

static void parallel_of(check_t *c, int kept) {
    static worker_t workers[NUM_THREADS];
    pthread_t threads[NUM_THREADS];
    pthread_barrier_t barrier;
    num_rounds = kept == 0 ? ROUNDS : KEPT_ROUNDS;
    pthread_barrier_init(&barrier, NULL, NUM_THREADS);
    for (int i = 0; i < NUM_THREADS; i++) {
        worker_t *w = &workers[i];
        w->check = c;
        w->barrier = &barrier;
        w->wrong[0] = '\0';
        if (!check_kept_case(c, &w->k, kept)) return;
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
        c->report->num_cases += num_rounds;
    }
}

static void parallel(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    for (int i = 0; i < CHECK_NUM_KEPT && !c->report->is_failed; i++)
        parallel_of(c, i);
}

/* An engine of many models has many groups. Instances of a device may hold memory of it. */
static void many_instances(check_t *c) {
    enum { MOST = 260, ON_DEVICE = 12 };
    attn_instance_t *all[MOST];
    attn_error_t e = {.struct_size = sizeof e};
    kit_case_t k;
    int n = 0, most = c->memory->kind == NULL ? MOST : ON_DEVICE;
    if (!check_start(c, &k)) return;
    for (; n < most; n++) {
        attn_problem_t p = k.problem;
        p.max_num_seqs = 4 + (uint32_t)n;
        p.max_num_batched_tokens = 512; /* so that room for a step is small */
        if (check_open(c, &p, &all[n], &e) == ATTN_OK) continue;
        check_fail(c, "with %d instances open: %.300s", n, e.text);
        break;
    }
    if (!c->report->is_failed) check_run(c, c->backend, &k, NULL);
    while (n > 0)
        c->backend->ops->close(all[--n]);
    check_run(c, c->backend, &k, NULL);
}

void check_threads_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "threads", 1, beside, 0, "instances of different problems live beside each other");
    check_add(list, "threads", 1, parallel, 0, "instances run in parallel");
    check_add(list, "threads", 1, many_instances, 0, "many instances at once");
}

/* ------------------------------------------------------------------- leaks */

static size_t bytes_in_use(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
#else
    struct mallinfo m = mallinfo(); /* 32 bits of each, which is enough for what a case takes */
    return (size_t)(unsigned)m.uordblks + (unsigned)m.hblkhd;
#endif
#endif
}

/* Bytes of address space: what was mapped and not unmapped. */
static size_t bytes_mapped(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;
    if (f != NULL && fscanf(f, "%lu", &pages) != 1) pages = 0;
    if (f != NULL) fclose(f);
    return pages * 4096;
}

/* Bytes in use: of the process, and those that the plugin's own code took. */
struct growth {
    size_t process, plugin, mapped;
};
static void keep_least(size_t *least, size_t before, size_t after) {
    size_t growth = after > before ? after - before : 0;
    if (growth < *least) *least = growth;
}

enum { CYCLES_OPEN, CYCLES_RUN, CYCLES_REFUSED, CYCLES_BAD_CALLS };

/* Problems that open has to refuse, each for another reason. */
static void spoil(attn_problem_t *p, int how) {
    if (how == 0) p->features |= UINT64_C(1) << 60;
    if (how == 1) p->dtype = 77;
    if (how == 2) p->role = 77;
    if (how == 3) p->kv_cache_dtype = 77;
    if (how == 4) p->num_heads = 0;
    if (how == 5) p->head_size = 0;
    if (how == 6) p->out_dtype = 77;
    if (how == 7) p->num_kv_heads = p->num_heads + 1;
    if (how == 8) p->struct_size = 2;
    if (how == 9) p->head_size = 0x7fffffff, p->head_size_v = 0x7fffffff;
}
enum { NUM_SPOILT = 10 };

void check_bad_calls(check_t *c, const attn_backend_t *backend, const kit_case_t *k, const kit_inputs_t *in) {
    static kit_run_t x;
    kit_result_t result;
    attn_error_t e = {.struct_size = sizeof e};
    const attn_backend_ops_t *ops = backend->ops;
    int status = kit_run_open(&x, backend, k, in, c->memory, &result);
    if (status == ATTN_OK) status = kit_run_fill(&x);
    if (status == ATTN_OK) status = kit_run_outputs(&x);
    if (status == ATTN_OK) status = kit_run_arguments(&x);
    if (status != ATTN_OK) return;
    if (c->memory->kind == NULL) /* metadata that nothing was built in */
        ops->forward(x.instance, &x.args, &x.space, c->memory->stream, &e);
    for (int i = 0; i < 8; i++) {
        attn_batch_t b = x.batch;
        attn_forward_t a = x.args;
        attn_space_t s = x.space;
        DLTensor wrong = *a.output;
        wrong.dtype = attn_dl_dtype(ATTN_DTYPE_INT32);
        if (i == 0) b.num_reqs = -1;
        if (i == 1) b.seq_lens_host = NULL;
        if (i == 2) s.metadata_bytes = 0;
        if (i == 3) s.workspace_bytes = 0, s.workspace = NULL;
        if (i == 4) a.query = NULL;
        if (i == 5) a.output = &wrong;
        if (i == 6) a.kv_cache = NULL;
        if (i == 7) a.output = NULL;
        if (i < 4) ops->build_metadata(x.instance, &b, &s, c->memory->stream, &e);
        if (i >= 2 && (i != 6 || x.cache != NULL)) ops->forward(x.instance, &a, &s, c->memory->stream, &e);
    }
    if (x.cache != NULL && ops->update_kv_cache != NULL) {
        attn_kv_update_t u = {.struct_size = sizeof u, .kv_cache = &x.k_view->t};
        ops->update_kv_cache(x.instance, &u, c->memory->stream, &e);
    }
    kit_run_close(&x);
}

/* On a host other problems are opened, run and refused along with the plain one. */
enum { MOST_OTHERS = 72, MOST_REFUSED = 8 };
static attn_problem_t others[MOST_OTHERS];
static int num_others;
static kit_case_t big_case;
static kit_inputs_t *big_inputs;

static void find_others(const check_t *c) {
    static const uint64_t terms = ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_SINK | ATTN_F_SEPARATE_KV |
                                  ATTN_F_MM_PREFIX | ATTN_F_BATCH_INVARIANT | ATTN_F_BLOCK_STRIDE;
    static kit_case_t k;
    num_others = 0;
    if (c->memory->kind != NULL || c->role != 0) return;
    if (c->arg == CYCLES_REFUSED) num_others = check_refused(c, others, MOST_REFUSED);
    if (c->arg == CYCLES_RUN && check_plain_case(c, &big_case)) {
        kit_case_add(&big_case, 1, 700);
        kit_case_add(&big_case, 150, 200);
        big_inputs = kit_inputs_make(&big_case);
    }
    if (c->arg != CYCLES_OPEN) return;
    for (int i = 0; i < CHECK_NUM_KEPT; i++)
        if (check_kept_case(c, &k, i)) others[num_others++] = k.problem;
    for (int i = 0; i < CHECK_NUM_SAID; i++)
        if (check_said_case(c, &k, i)) others[num_others++] = k.problem;
    for (unsigned i = 0; i < 2 * c->can.num_head_sizes && i < 8; i++) { /* the ends of the table's ranges */
        if (!check_plain_case(c, &k)) continue;
        const attn_range_t *r = &c->can.head_sizes[i / 2];
        k.problem.head_size = i % 2 == 0 ? r->min : r->max;
        if (k.problem.role == ATTN_ROLE_DECODER && check_is_served(c, &k)) others[num_others++] = k.problem;
    }
    for (int i = 0; i < 3; i++) { /* many heads, over one and over as many, and many requests */
        if (!check_plain_case(c, &k) || k.problem.role != ATTN_ROLE_DECODER) continue;
        k.problem.num_heads = c->can.max_group == 0 || c->can.max_group > 64 ? 64 : c->can.max_group;
        k.problem.num_kv_heads = i == 1 ? k.problem.num_heads : 1;
        if (i == 2) k.problem.max_num_seqs = 1024;
        if (check_is_served(c, &k)) others[num_others++] = k.problem;
    }
    for (unsigned bit = 0; bit < 64; bit++) {
        if (!(c->can.features & terms & ATTN_BIT(bit)) || !check_plain_case(c, &k)) continue;
        k.problem.features |= ATTN_BIT(bit);
        if (k.problem.role == ATTN_ROLE_DECODER && check_is_served(c, &k)) others[num_others++] = k.problem;
    }
}
static void open_others(check_t *c) {
    for (int i = 0; i < num_others; i++) {
        attn_instance_t *instance = NULL;
        attn_error_t e = {.struct_size = sizeof e};
        if (check_open(c, &others[i], &instance, &e) == ATTN_OK) c->backend->ops->close(instance);
    }
}

static void one_cycle(check_t *c, const kit_case_t *k, const kit_inputs_t *in) {
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    kit_result_t result;
    open_others(c);
    if (big_inputs != NULL && check_run_alone(c, c->backend, &big_case, big_inputs, c->memory, &result))
        kit_result_free(&result);
    if (c->arg == CYCLES_BAD_CALLS) {
        check_bad_calls(c, c->backend, k, in);
    } else if (c->arg == CYCLES_REFUSED) {
        for (int how = 0; how < NUM_SPOILT; how++) {
            attn_problem_t p = k->problem;
            spoil(&p, how);
            instance = NULL;
            if (check_open(c, &p, &instance, &error) == ATTN_OK) c->backend->ops->close(instance);
        }
        attn_device_t none; /* the problem is a good one, the device is not the backend's */
        check_device(c, &none);
        none.type = 77;
        instance = NULL;
        if (c->memory->kind == NULL &&
            c->backend->ops->open(&k->problem, &none, NULL, 0, &check_host, &instance, &error) == ATTN_OK)
            c->backend->ops->close(instance);
    } else if (c->arg == CYCLES_RUN) {
        if (check_run_alone(c, c->backend, k, in, c->memory, &result)) kit_result_free(&result);
    } else {
        check_is_served(c, k);
        int status = check_open(c, &k->problem, &instance, &error);
        if (status == ATTN_OK)
            c->backend->ops->close(instance);
        else
            check_fail(c, "open, again: %d, %.300s", status, error.text);
    }
}

/* The number of the next key of thread-local data, which is put back; -1: there is none left. */
static int next_key(void) {
    pthread_key_t key;
    if (pthread_key_create(&key, NULL) != 0) return -1;
    pthread_key_delete(key);
    return (int)key;
}

static void cycles(check_t *c) {
    kit_case_t k;
    if (!check_start(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    /* opening on a device loads modules, which waits for every other process on it: up to a second */
    const int is_device = c->memory->kind != NULL;
    const int is_run = c->arg == CYCLES_RUN || c->arg == CYCLES_BAD_CALLS;
    big_inputs = NULL;
    find_others(c);
    const int num_cycles = is_device ? 10 : is_run ? 20 : num_others > MOST_REFUSED ? 30 : 200;
    for (int i = 0; i < (is_device ? 4 : 10); i++)
        one_cycle(c, &k, in); /* pools and tables fill here */
    int files = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    const int keys = next_key();
    /* Of three rounds, and of up to twelve where these look bad: the allocator itself breathes, and may take
     * a few rounds of threads to settle; a leak grows in each. */
    struct growth least = {SIZE_MAX, SIZE_MAX, SIZE_MAX};
    const size_t allowed = (size_t)num_cycles * 8;
    alloc_watch_start(c->options->path);
    alloc_watch_on(1);
    for (int round = 0; round < 3 || (round < 12 && least.process > allowed); round++) {
        struct growth before = {bytes_in_use(), alloc_watch_bytes(), bytes_mapped()};
        for (int i = 0; i < num_cycles; i++)
            one_cycle(c, &k, in);
        keep_least(&least.process, before.process, bytes_in_use());
        keep_least(&least.mapped, before.mapped, bytes_mapped());
        keep_least(&least.plugin, before.plugin, alloc_watch_bytes());
    }
    alloc_watch_on(0);
    /* A device's driver keeps up to 88 bytes of a run and 143 of an open that loads kernels for itself, by
     * its version and the load, so what the plugin took is counted apart; but what a library returned for
     * it is not seen there: both must have grown. */
    if (least.plugin > allowed && least.process > allowed)
        check_fail(c, "%zu bytes that the plugin took were not returned after %d cycles", least.plugin,
                   num_cycles);
    if (least.process > (c->memory->kind != NULL ? 32 : 1) * allowed)
        check_fail(c, "%zu bytes more in use after %d cycles", least.process, num_cycles);
    if (c->memory->kind == NULL && least.mapped >= (size_t)num_cycles * 4096)
        check_fail(c, "%zu bytes more mapped after %d cycles", least.mapped, num_cycles);
    if (count_entries("/proc/self/fd") > files)
        check_fail(c, "%d more open files after %d cycles", count_entries("/proc/self/fd") - files,
                   num_cycles);
    if (keys >= 0 && (next_key() < 0 || next_key() - keys >= num_cycles))
        check_fail(
            c,
            "a key of thread-local data is left (pthread_key_create) by each of %d cycles; a process has %ld",
            num_cycles, sysconf(_SC_THREAD_KEYS_MAX));
    if (count_entries("/proc/self/task") > threads)
        check_fail(c, "%d more threads after %d cycles", count_entries("/proc/self/task") - threads,
                   num_cycles);
    kit_inputs_free(in);
    kit_inputs_free(big_inputs);
}

void check_leaks_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "leaks", 1, cycles, CYCLES_OPEN, "open and close, again and again");
    check_add(list, "leaks", 1, cycles, CYCLES_RUN, "whole runs, again and again");
    check_add(list, "leaks", 1, cycles, CYCLES_REFUSED, "refused problems, again and again");
    check_add(list, "leaks", 1, cycles, CYCLES_BAD_CALLS, "refused calls, again and again");
}
