/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_bench.c: `attn check --bench`: the time of forward alone, metadata built and cache written, for a few
 * batches. A first impression with the call's own overhead in it; `attn bench` measures against ceilings.
 */
#include "check_engine.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { REPEATS = 21 };
static double times[REPEATS];

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int timed_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    int status = shim_target()->ops->forward(instance, args, space, stream, error); /* warms up */
    for (int i = 0; i < REPEATS && status == ATTN_OK; i++) {
        double start = seconds();
        status = shim_target()->ops->forward(instance, args, space, stream, error);
        times[i] = seconds() - start;
    }
    return status;
}
static const attn_backend_ops_t timed_ops = {.forward = timed_forward};

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const struct {
    const char *name;
    int num_reqs, query_len, seq_len;
} batches[] = {
    {"decode, 1 request of 1024", 1, 1, 1024},
    {"decode, 16 requests of 512", 16, 1, 512},
    {"prefill, 1 request of 256", 1, 256, 256},
    {"extend, 4 requests of 16 after 496", 4, 16, 512},
};

static void one_batch(check_t *c) {
    kit_case_t k;
    kit_result_t result;
    if (!check_plain_case(c, &k)) return;
    k.problem.num_heads = c->can.max_group == 1 ? 2 : 8;
    k.problem.num_kv_heads = 2;
    k.problem.head_size = check_head_size(c, 128);
    k.problem.scale = 1 / sqrt((double)k.problem.head_size);
    k.num_reqs = 0;
    for (int i = 0; i < batches[c->arg].num_reqs; i++)
        kit_case_add(&k, batches[c->arg].query_len, batches[c->arg].seq_len);
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL || !check_run_alone(c, shim_make(c->backend, &timed_ops), &k, in, c->memory, &result))
        return;
    qsort(times, REPEATS, sizeof times[0], compare_times);
    check_skip(c, "%-36s %10.1f us median, %10.1f us least; %s, %u query heads, head size %u",
               batches[c->arg].name, 1e6 * times[REPEATS / 2], 1e6 * times[0],
               attn_dtype_name(k.problem.dtype), k.problem.num_heads, k.problem.head_size);
    kit_result_free(&result);
    kit_inputs_free(in);
}

void check_bench_list(check_list_t *list, const check_t *c) {
    (void)c;
    for (uint32_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
        check_add(list, "bench", CHECK_RUNS, one_batch, i, "%s", batches[i].name);
}
