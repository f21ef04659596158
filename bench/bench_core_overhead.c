/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_core_overhead.c: what the core costs per call: a layer's forward and cache write on a backend that does nothing,
 * beside a direct call of the backend's operation. Prints a table; with --check LIMIT_NS it fails above the limit.
 *
 *     bench/bench_core_overhead [--check 200]
 */
#include "../tests/layer_testing.h"

#include <time.h>

enum { CALLS = 1000, REPEATS = 1000 }; /* short runs, so that some of them are not interrupted */

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static attn_layer_t *layer;
static attn_group_t *group;
static struct buffers buf;
static attn_batch_t batch;
static attn_kv_update_t update;
static attn_forward_t forward;
static attn_error_t error = {.struct_size = sizeof error};

static int call_forward(void) {
    return attn_layer_forward(layer, &forward, &buf.space, NULL, &error);
}
static int call_update(void) {
    return attn_layer_update_kv_cache(layer, &update, NULL, &error);
}
static int call_build(void) {
    return attn_group_build_metadata(group, &batch, &buf.space, NULL, &error);
}
static int call_backend(void) {
    return attn_group_backend(group)->ops->forward(NULL, &forward, &buf.space, NULL, &error);
}

/* The fastest of several runs: noise only adds. */
static double measure(int (*call)(void)) {
    double best = 1e30;
    for (int r = 0; r < REPEATS; r++) {
        int bad = 0;
        double start = now_ns();
        for (int i = 0; i < CALLS; i++)
            bad |= call();
        double each = (now_ns() - start) / CALLS;
        if (bad) bail_out("a call failed: %s", error.text);
        best = each < best ? each : best;
    }
    return best;
}

int main(int argc, char **argv) {
    double limit = argc > 2 && strcmp(argv[1], "--check") == 0 ? strtod(argv[2], NULL) : 0;
    static float q[16], k[8], v[8], out[16], cache[32 * 4 * 16];
    int32_t starts[] = {0, 1}, lens[] = {9}, table[] = {2, 3, 4};
    int64_t slots[] = {16};
    struct tensor tq, tk, tv, tout, tcache, tslots, ttable;
    attn_context_t *context = fake_context("");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    group = open_group(context, &p, "FAKE_NOOP");
    buf = take_buffers(group);
    if (attn_layer_create(group, "bench", NULL, &layer, &error) != ATTN_OK) bail_out("layer: %s", error.text);
    batch = (attn_batch_t){.struct_size = sizeof batch,
                           .num_reqs = 1,
                           .num_actual_tokens = 1,
                           .query_start_loc_host = starts,
                           .seq_lens_host = lens,
                           .block_table = tensor(&ttable, table, ATTN_DTYPE_INT32, 2, 1, 3, 0, 0)};
    update = (attn_kv_update_t){.struct_size = sizeof update,
                                .key = tensor(&tk, k, ATTN_DTYPE_FLOAT32, 3, 1, 1, 8, 0),
                                .value = tensor(&tv, v, ATTN_DTYPE_FLOAT32, 3, 1, 1, 8, 0),
                                .kv_cache = tensor(&tcache, cache, ATTN_DTYPE_FLOAT32, 4, 32, 1, 4, 16),
                                .slot_mapping = tensor(&tslots, slots, ATTN_DTYPE_INT64, 1, 1, 0, 0, 0)};
    forward = (attn_forward_t){.struct_size = sizeof forward,
                               .query = tensor(&tq, q, ATTN_DTYPE_FLOAT32, 3, 1, 2, 8, 0),
                               .output = tensor(&tout, out, ATTN_DTYPE_FLOAT32, 3, 1, 2, 8, 0),
                               .kv_cache = &tcache.t};
    double direct = measure(call_backend), through = measure(call_forward), write = measure(call_update),
           plan_ns = measure(call_build);
    printf("# ns per call, fastest of %d x %d\n", REPEATS, CALLS);
    printf("# %-34s %8.1f\n", "backend's forward, called directly", direct);
    printf("# %-34s %8.1f\n", "attn_layer_forward", through);
    printf("# %-34s %8.1f\n", "attn_layer_update_kv_cache", write);
    printf("# %-34s %8.1f\n", "attn_group_build_metadata", plan_ns);
    printf("# %-34s %8.1f\n", "overhead of the core per forward", through - direct);
    if (limit > 0) ok(through - direct < limit, "the core takes less than %g ns per forward", limit);
    attn_layer_destroy(layer);
    attn_group_close(group);
    attn_context_destroy(context);
    free(buf.memory);
    remove_fake();
    return limit > 0 ? tap_done() : 0;
}
