/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_calls.c: the part of group memory about what calls take in kernels of every kind: allocations and the
 * stack as lengths and batches grow, memory of the allocator that is not zero.
 */
#include "../case/case_run.h"
#include "../run/device_image.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ------------------------------------------------------------- kinds of calls */

/* What kernels and buffers that grow keep apart: long contexts, many requests, many heads, a prompt of many
 * tokens, a large group, the largest rows, a cache of 8 bits; and each term of the scores. */
enum {
    LONG_CONTEXT,
    MANY_REQUESTS,
    MANY_HEADS,
    LONG_PROMPT,
    LARGE_GROUP,
    LARGE_ROWS,
    EIGHT_BITS,
    FIRST_TERM,
    NUM_KINDS = FIRST_TERM + 6
};
static int start_kind(check_t *c, int kind, kit_case_t *k) {
    static const uint64_t terms[] = {ATTN_F_SINK,           ATTN_F_ALIBI,   ATTN_F_SOFT_CAP,
                                     ATTN_F_SLIDING_WINDOW, ATTN_F_QQ_BIAS, ATTN_F_LSE};
    if (!check_start_without(c, k)) return 0;
    const int has_cache = attn_role_has_cache(k->problem.role);
    attn_problem_t *p = &k->problem;
    if (kind == MANY_HEADS) {
        p->num_heads = p->num_kv_heads = 66;
        if (attn_role_is_mla(p->role)) p->num_kv_heads = 0;
    } else if (kind >= LARGE_GROUP && kind < FIRST_TERM) {
        if (p->role != ATTN_ROLE_DECODER) return 0;
        if (kind == LARGE_GROUP) {
            p->num_kv_heads = 1;
            p->num_heads = c->can.max_group == 0 || c->can.max_group > 64 ? 64 : c->can.max_group;
        }
        if (kind == LARGE_ROWS) p->head_size = check_head_size(c, 1024);
        if (kind == EIGHT_BITS) {
            if (check_fp8_cache(c) == 0) return 0;
            p->kv_cache_dtype = check_fp8_cache(c);
        }
        check_fit_size(c, k);
        p->scale = 1 / sqrt((double)p->head_size);
    } else if (c->role == 0 && kind < FIRST_TERM) {
        check_few_heads(c, k);
        p->head_size = p->head_size_v = check_head_size(c, 16);
        p->scale = 1 / sqrt((double)p->head_size);
    }
    if (kind >= FIRST_TERM) {
        const uint64_t term = terms[kind - FIRST_TERM];
        if (c->role != 0 || !(c->can.features & term)) return 0;
        if (term == ATTN_F_SOFT_CAP)
            p->logits_soft_cap = 20;
        else if (term == ATTN_F_SLIDING_WINDOW)
            p->sliding_window = 9;
        else
            p->features |= term;
    }
    if (kind == MANY_REQUESTS) {
        p->max_num_seqs = 300;
        for (int r = 0; r < 280; r++)
            kit_case_add(k, 1 + r % 2, 2 + r % 9);
    } else if (kind == LONG_CONTEXT) {
        if (!has_cache) return 0;
        p->max_model_len = 1 << 17;
        kit_case_add(k, 1, 9000);
        if (c->role == 0) kit_case_add(k, 1, 70000);
    } else if (kind == LONG_PROMPT) {
        p->max_num_batched_tokens = 4096;
        p->max_model_len = 4096;
        kit_case_add(k, 1100, 1100);
    } else {
        kit_case_add(k, 1, 70);
        kit_case_add(k, 20, has_cache ? 40 : 20);
        for (int r = 0; kind == MANY_HEADS && c->memory->kind == NULL && r < 10; r++)
            kit_case_add(k, 1, 1 + r); /* tasks are heads times requests */
    }
    return check_is_served(c, k);
}

/* ----------------------------------------------------------------- allocation */

static int watched_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    alloc_watch_on(1);
    const int status = shim_target()->ops->build_metadata(instance, batch, space, stream, error);
    alloc_watch_on(0);
    return status;
}
static int watched_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error) {
    alloc_watch_on(1);
    const int status = shim_target()->ops->update_kv_cache(instance, args, stream, error);
    alloc_watch_on(0);
    return status;
}
static int watched_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    char *was = image_of(args->output);
    alloc_watch_on(1);
    int status = shim_target()->ops->forward(instance, args, NULL, stream, error);
    alloc_watch_on(0);
    image_restore(args->output, was);
    free(was);
    if (status != ATTN_OK) return status;
    alloc_watch_on(1);
    status = shim_target()->ops->forward(instance, args, space, stream, error);
    alloc_watch_on(0);
    return status;
}
static const attn_backend_ops_t watched_ops = {
    .build_metadata = watched_build, .update_kv_cache = watched_update, .forward = watched_forward};

/* Buffers that grow at the first long request, or the first large batch, wait for a device there. */
static void no_growth(check_t *c) {
    static const char *const names[NUM_KINDS] = {"a long context", "many requests", "many heads",
                                                 "a long prompt",  "a large group", "large rows",
                                                 "8 bits",         "sinks",         "slopes",
                                                 "a soft cap",     "a window",      "a query-query bias",
                                                 "an LSE"};
    static kit_case_t k;
    const char *last;
    if (alloc_watch_start(c->options->path) == 0) {
        check_skip(c, "the plugin calls no allocator that could be watched");
        return;
    }
    for (int kind = 0; kind < NUM_KINDS && !c->report->is_failed; kind++) {
        if (!start_kind(c, kind, &k)) continue;
        const long before = alloc_watch_count(&last);
        check_run(c, shim_make(c->backend, &watched_ops), &k, NULL);
        const long count = alloc_watch_count(&last) - before;
        if (count > 0)
            check_fail(
                c,
                "%ld calls to the allocator (the last: %s) in the first step with %s, or its profiling "
                "run; take memory in open, or declare it in space_needed",
                count, last, names[kind]);
    }
}

/* ----------------------------------------------------------------- the stack */

enum { STACK = 16 << 20, PAINT = 0x5a, MOST = 512 << 10, MOST_GROWTH = 32 << 10 };
typedef struct stack_run {
    kit_run_t x;
    int status;
} stack_run_t;
static void *steps_on_stack(void *p) {
    stack_run_t *run = p;
    run->status = kit_run_update(&run->x);
    if (run->status == ATTN_OK) run->status = kit_run_outputs(&run->x);
    if (run->status == ATTN_OK) run->status = kit_run_build(&run->x);
    if (run->status == ATTN_OK) run->status = kit_run_forward(&run->x);
    return NULL;
}

/* Bytes of a thread's stack that the calls of one step reached, 0 if they could not be had. */
static size_t stack_of(check_t *c, const kit_case_t *k) {
    static stack_run_t run;
    kit_result_t got;
    kit_inputs_t *in = kit_inputs_make(k);
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    size_t clean = STACK;
    if (in == NULL || stack == MAP_FAILED) return 0;
    memset(stack, PAINT, STACK);
    check_running(c, k);
    run.status = kit_run_open(&run.x, c->backend, k, in, c->memory, &got);
    if (run.status == ATTN_OK) run.status = kit_run_prepare(&run.x);
    if (run.status == ATTN_OK) run.status = kit_run_fill(&run.x);
    pthread_attr_init(&attributes);
    if (run.status == ATTN_OK && pthread_attr_setstack(&attributes, stack, STACK) == 0 &&
        pthread_create(&thread, &attributes, steps_on_stack, &run) == 0) {
        pthread_join(thread, NULL);
        for (clean = 0; clean < STACK && stack[clean] == PAINT;)
            clean++;
    }
    pthread_attr_destroy(&attributes);
    if (run.status != ATTN_OK) check_fail(c, "%s: %d, %.300s", got.operation, run.status, got.error.text);
    kit_run_close(&run.x);
    kit_result_free(&got);
    munmap(stack, STACK);
    kit_inputs_free(in);
    c->report->num_cases++;
    return STACK - clean;
}

/* An engine's threads may have stacks of half a MiB; 8 MiB are the first thread's. */
static void stack(check_t *c) {
    static kit_case_t k;
    size_t first = 0;
    const int32_t lens[2][2] = {{9000, 90000}, {2000, 14000}};
    for (int is_long = 0; is_long < 2; is_long++) {
        if (!start_kind(c, LONG_CONTEXT, &k)) break;
        k.num_reqs = 0;
        kit_case_add(&k, 1, lens[c->role != 0][is_long]);
        const size_t bytes = stack_of(c, &k);
        if (c->report->is_failed) return;
        if (bytes > MOST)
            check_fail(
                c,
                "the calls of a step take %zu KiB of the caller's stack; an engine's thread may have no "
                "more than %d KiB",
                bytes >> 10, MOST >> 10);
        else if (is_long && bytes > first + MOST_GROWTH)
            check_fail(
                c,
                "the calls of a step take %zu bytes of stack with %d keys and %zu with %d: it grows with "
                "the length; declare a workspace in space_needed",
                bytes, k.seq_lens[0], first, lens[c->role != 0][0]);
        first = bytes;
    }
    first = 0;
    for (int is_long = 0; is_long < 2 && c->role == 0 && (c->can.features & ATTN_F_SLIDING_WINDOW);
         is_long++) {
        if (!start_kind(c, LONG_PROMPT, &k)) break;
        k.num_reqs = 0;
        k.problem.sliding_window = 3; /* few keys, many rows */
        kit_case_add(&k, is_long ? 4000 : 500, is_long ? 4000 : 500);
        const size_t bytes = stack_of(c, &k);
        if (c->report->is_failed) return;
        if (is_long && bytes > first + 3 * 4000)
            check_fail(
                c,
                "the calls of a step take %zu bytes of stack with %d tokens and %zu with 500: it grows "
                "with the batch; declare a workspace in space_needed",
                bytes, k.query_lens[0], first);
        first = bytes;
    }
    first = 0;
    for (int is_large = 0; is_large < 2 && c->role == 0; is_large++) {
        if (!start_kind(c, MANY_REQUESTS, &k)) break;
        k.problem.max_num_seqs = 1000;
        k.num_reqs = 0;
        for (int r = 0; r < (is_large ? 1000 : 8); r++)
            kit_case_add(&k, 1, 2 + r % 9);
        const size_t bytes = stack_of(c, &k);
        if (c->report->is_failed) return;
        if (is_large && bytes > first + MOST_GROWTH)
            check_fail(
                c,
                "the calls of a step take %zu bytes of stack with 1000 requests and %zu with 8: it grows "
                "with the batch; write into the metadata",
                bytes, first);
        first = bytes;
    }
    for (int kind = LARGE_GROUP; kind <= LARGE_ROWS && c->role == 0; kind++) {
        if (!start_kind(c, kind, &k)) continue;
        if (kind == LARGE_GROUP) k.problem.head_size = check_head_size(c, 256);
        const size_t bytes = stack_of(c, &k);
        if (c->report->is_failed) return;
        if (bytes > MOST)
            check_fail(
                c, "the calls of a step take %zu KiB of stack with %u heads of %u over one; no more than %d",
                bytes >> 10, k.problem.num_heads, k.problem.head_size, MOST >> 10);
    }
    if (c->report->num_cases == 0) check_skip(c, "no case of such lengths is served");
}

/* ----------------------------------------------------- memory that is not zero */

/* What malloc gives comes from before, and what free takes is another's at once. */
static void dirty_memory(check_t *c) {
    static kit_case_t k;
    mallopt(M_PERTURB, 0x35);
    if (!check_start(c, &k)) return;
    check_run(c, c->backend, &k, NULL);
    for (int kind = MANY_HEADS; kind < NUM_KINDS && !c->report->is_failed; kind++)
        if (start_kind(c, kind, &k) && kind != LONG_PROMPT) check_run(c, c->backend, &k, NULL);
    for (int n = 0; n < 6 && !c->report->is_failed; n++) {
        check_random_case(c, &k, c->seed * 6151 + (uint64_t)n, 60);
        check_run(c, c->backend, &k, NULL);
    }
    mallopt(M_PERTURB, 0);
}

void check_calls_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "memory", CHECK_RUNS_ON_CPU, no_growth, 0,
              "no allocation in the first long or large step, or the profiling run");
    check_add(list, "memory", CHECK_RUNS_ON_CPU, stack, 0, "the stack does not grow with lengths");
    check_add(list, "memory", CHECK_RUNS_ON_CPU, dirty_memory, 0, "memory of the allocator is not zero");
}
