/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_determinism.c: group determinism. The same call gives the same bits, and where batch invariance is
 * claimed a request gives the same bits alone and among others.
 */
#include "../case/case_run.h"
#include "../run/check_children.h"
#include "../run/device_image.h"
#include "../run/surroundings.h"
#include "../run/thread_stops.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

static check_t *current;

/* Has the tensor the bits of its image? */
static int is_same(const DLTensor *t, const void *image) {
    void *now = image_of(t);
    const int same = memcmp(image, now, image_bytes(t)) == 0;
    free(now);
    return same;
}

static int forward_again(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    int status = shim_target()->ops->forward(instance, args, space, stream, error);
    void *out = image_of(args->output), *lse = args->lse != NULL ? image_of(args->lse) : NULL;
    for (int i = 0; i < 8 && status == ATTN_OK; i++) {
        status = shim_target()->ops->forward(instance, args, space, stream, error);
        if (!is_same(args->output, out)) check_fail(current, "call %d gives other output bits", i + 2);
        if (lse != NULL && !is_same(args->lse, lse))
            check_fail(current, "call %d gives other bits in the LSE", i + 2);
    }
    free(out);
    free(lse);
    return status;
}
static const attn_backend_ops_t again_ops = {.forward = forward_again};

static void same_bits(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start(c, &k)) return;
    kit_case_add(&k, 1, 700);
    check_run(c, shim_make(c->backend, &again_ops), &k, NULL);
}

/* The same while threads of the process are stopped in the middle of their work, each for twice the time of
 * a call: one that does not wait for another meets what that has not written. With four threads of OpenMP. */
enum { LEAST_CALLS = 120, MOST_CALLS = 200, USUAL_MS = 800, MOST_MS = 10000 };
enum { LEAST_STOP_US = 200, LONGEST_STOP_US = 20000 };

static int forward_stopped(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    int status = ATTN_OK;
    int64_t stop_us = LONGEST_STOP_US;
    for (int i = 0; i < 4 && status == ATTN_OK; i++) { /* the first starts threads */
        struct timespec before;
        clock_gettime(CLOCK_MONOTONIC, &before);
        status = shim_target()->ops->forward(instance, args, space, stream, error);
        const int64_t twice = (int64_t)(2e6 * check_seconds_since(&before));
        if (twice < stop_us) stop_us = twice;
    }
    if (stop_us < LEAST_STOP_US) stop_us = LEAST_STOP_US;
    void *out = image_of(args->output);
    const int can_stop = status == ATTN_OK && thread_stops_begin(stop_us, current->seed) == 0;
    struct timespec from;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < MOST_CALLS && can_stop && status == ATTN_OK && !current->report->is_failed; i++) {
        const double ms = 1e3 * check_seconds_since(&from);
        if (ms > MOST_MS || (ms > USUAL_MS && i >= LEAST_CALLS)) break;
        if (space->workspace != NULL) memset(space->workspace, 0xff, (size_t)space->workspace_bytes);
        status = shim_target()->ops->forward(instance, args, space, stream, error);
        if (!is_same(args->output, out))
            check_fail(current, "call %d gives other output bits while its threads are stopped for %lld us",
                       i + 5, (long long)stop_us);
    }
    if (status == ATTN_OK && (!can_stop || thread_stops_end() == 0))
        check_skip(current, "no thread could be stopped");
    free(out);
    return status;
}
static const attn_backend_ops_t stopped_ops = {.forward = forward_stopped};

static void stopped_threads(check_t *c) {
    kit_case_t k;
    current = c;
    if (!check_start_without(c, &k)) return;
    kit_case_add(&k, 1, attn_role_has_cache(k.problem.role) ? 1500 : 1);
    kit_case_add(&k, 1, attn_role_has_cache(k.problem.role) ? 700 : 1);
    kit_case_add(&k, 30, attn_role_has_cache(k.problem.role) ? 90 : 30);
    k.problem.max_model_len = 2048;
    const int threads = surroundings_set_threads(4);
    check_run(c, shim_make(c->backend, &stopped_ops), &k, NULL);
    surroundings_set_threads(threads);
}

/* The same where build_metadata and forward are called by a thread that is bound to one processor: an
 * engine binds its threads, and a plan by the processors of whoever calls has other parts. */
static kit_run_t bound_run;
static void *call_bound(void *unused) {
    cpu_set_t all, one;
    (void)unused;
    if (sched_getaffinity(0, sizeof all, &all) == 0) {
        CPU_ZERO(&one);
        for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
            if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    int status = kit_run_build(&bound_run);
    if (status == ATTN_OK) status = kit_run_forward(&bound_run);
    if (status == ATTN_OK) kit_run_read(&bound_run);
    return NULL;
}

static int same_doubles(const double *a, const double *b, int64_t n) {
    return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static void fresh_instance(check_t *c) {
    kit_case_t k;
    kit_result_t a, b;
    if (!check_start(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL || !check_run_alone(c, c->backend, &k, in, c->memory, &a)) return;
    for (int i = 0; i < 3; i++) {
        if (!check_run_alone(c, c->backend, &k, in, c->memory, &b)) return;
        if (!same_doubles(a.out, b.out, a.num_out) ||
            (a.lse != NULL && !same_doubles(a.lse, b.lse, a.num_lse)))
            check_fail(c, "a second instance of the same problem gives other bits");
        c->report->num_cases++;
        kit_result_free(&b);
    }
    kit_result_free(&a);
    kit_inputs_free(in);
}

static void bound_thread(check_t *c) {
    kit_case_t k;
    kit_result_t a, b;
    pthread_t thread;
    if (!check_start(c, &k)) return;
    k.problem.max_model_len = 8192;
    if (attn_role_has_cache(k.problem.role)) kit_case_add(&k, 1, 5000);
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL || !check_run_alone(c, c->backend, &k, in, c->memory, &a)) return;
    kit_run_t *x = &bound_run;
    int status = kit_run_open(x, c->backend, &k, in, c->memory, &b);
    if (status == ATTN_OK) status = kit_run_fill(x);
    if (status == ATTN_OK) status = kit_run_update(x);
    if (status == ATTN_OK) status = kit_run_prepare(x);
    if (status == ATTN_OK) status = kit_run_outputs(x);
    if (status == ATTN_OK && pthread_create(&thread, NULL, call_bound, NULL) == 0) pthread_join(thread, NULL);
    if (b.status != ATTN_OK)
        check_fail(c, "%s by a thread that is bound to one processor: %.300s", b.operation, b.error.text);
    else if (!same_doubles(a.out, b.out, a.num_out) ||
             (a.lse != NULL && !same_doubles(a.lse, b.lse, a.num_lse)))
        check_fail(c,
                   "build_metadata and forward by a thread that is bound to one processor give other bits");
    c->report->num_cases++;
    kit_run_close(x);
    kit_result_free(&a);
    kit_result_free(&b);
    kit_inputs_free(in);
}

/* The inputs of request r of a case as inputs of their own. */
static kit_inputs_t *inputs_of(const kit_case_t *k, const kit_inputs_t *in, int r, kit_case_t *alone) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    const int64_t query = z.heads * z.query, key = z.kv_heads * z.key, value = z.kv_heads * z.value,
                  topk = k->problem.topk;
    int64_t first = 0;
    for (int i = 0; i < r; i++)
        first += k->query_lens[i];
    *alone = *k;
    alone->num_reqs = 0;
    kit_case_add(alone, k->query_lens[r], k->seq_lens[r]);
    kit_inputs_t *one = kit_inputs_make(alone);
    if (one == NULL) return NULL;
    memcpy(one->query, in->query + first * query, (size_t)(one->num_tokens * query) * sizeof(float));
    memcpy(one->key, in->key + in->key_start[r] * key, (size_t)(one->num_keys * key) * sizeof(float));
    memcpy(one->value, in->value + in->key_start[r] * value, (size_t)(one->num_keys * value) * sizeof(float));
    if (topk != 0)
        memcpy(one->topk_indices, in->topk_indices + first * topk,
               (size_t)(one->num_tokens * topk) * sizeof *in->topk_indices);
    if (in->kv_b_proj != NULL)
        memcpy(one->kv_b_proj, in->kv_b_proj,
               (size_t)(z.heads * ((int64_t)k->problem.qk_nope_head_dim + k->problem.v_head_dim) *
                        k->problem.kv_lora_rank) *
                   sizeof(float));
    return one;
}

/* The longest request as a bound, which may come of anybody. */
static int64_t bound;
static int build_bounded(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_batch_t b = *batch;
    b.max_seq_len = bound;
    return shim_target()->ops->build_metadata(instance, &b, space, stream, error);
}
static const attn_backend_ops_t bounded_ops = {.build_metadata = build_bounded};

static void compare_bounded(check_t *c, const kit_case_t *k, const kit_inputs_t *in,
                            const kit_result_t *all) {
    kit_result_t got;
    bound = k->problem.max_model_len != 0 ? k->problem.max_model_len : 131072;
    if (!check_run_alone(c, shim_make(c->backend, &bounded_ops), k, in, c->memory, &got)) return;
    if (!same_doubles(all->out, got.out, all->num_out))
        check_fail(c, "batch invariance is claimed, but max_seq_len %lld gives other bits than 0",
                   (long long)bound);
    kit_result_free(&got);
}

static void batch_invariance(check_t *c) {
    static const int32_t lens[][2] = {{1, 37}, {5, 20}, {18, 18}, {1, 600}, {1, 129}, {40, 300}};
    kit_case_t k, alone;
    kit_result_t all, one;
    if (!check_start(c, &k)) return;
    k.problem.features |= ATTN_F_BATCH_INVARIANT; /* granted where it is requested */
    k.num_reqs = 0;
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
        kit_case_add(&k, lens[i][0], lens[i][1]);
    if (c->memory->kind == NULL && k.problem.role == ATTN_ROLE_DECODER)
        kit_case_add(&k, 1, 3900), kit_case_add(&k, 3, 2100); /* pieces of a row are longer than those */
    if (c->memory->kind == NULL && c->role == 0) { /* more requests than a choice of kernels has in mind */
        k.problem.max_num_seqs = 128;
        for (int i = 0; i < 62; i++)
            kit_case_add(&k, 1, 1 + (attn_role_has_cache(k.problem.role) ? i : 0));
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL || !check_run_alone(c, c->backend, &k, in, c->memory, &all)) return;
    if (c->memory->kind == NULL && attn_role_has_cache(k.problem.role)) compare_bounded(c, &k, in, &all);
    const kit_sizes_t z = kit_sizes(&k.problem);
    int64_t first = 0, row = z.heads * z.output;
    for (int r = 0; r < k.num_reqs; r++) {
        kit_inputs_t *in_one = inputs_of(&k, in, r, &alone);
        if (in_one == NULL || !check_run_alone(c, c->backend, &alone, in_one, c->memory, &one)) return;
        for (int64_t i = 0; i < one.num_out; i++)
            if (memcmp(&one.out[i], &all.out[first * row + i], sizeof one.out[i]) != 0) {
                check_fail(
                    c,
                    "batch invariance is claimed, but request %d (query_len %d, seq_len %d) alone gives %.9g "
                    "and in the batch %.9g at output %lld",
                    r, k.query_lens[r], k.seq_lens[r], one.out[i], all.out[first * row + i], (long long)i);
                break;
            }
        first += k.query_lens[r];
        kit_result_free(&one);
        kit_inputs_free(in_one);
        c->report->num_cases++;
    }
    kit_result_free(&all);
    kit_inputs_free(in);
}

static void not_claimed(check_t *c) {
    check_skip(c, "not claimed in the table");
}

void check_determinism_list(check_list_t *list, const check_t *c) {
    int is_claimed = (c->can.features & ATTN_F_BATCH_INVARIANT) != 0;
    check_add(list, "determinism", 1, same_bits, 0, "the same call gives the same bits");
    check_add(list, "determinism", 1, fresh_instance, 0, "a fresh instance gives the same bits");
    check_add(list, "determinism", 1, is_claimed ? batch_invariance : not_claimed, 0, "batch invariance");
    check_add(list, "determinism", CHECK_RUNS_ON_CPU, stopped_threads, 0,
              "the same bits while threads are stopped in the middle");
    check_add(list, "determinism", 1, bound_thread, 0, "the same bits by a thread bound to one processor");
    check_behind_list(list, c);
}
