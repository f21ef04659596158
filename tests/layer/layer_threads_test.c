/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads share a context: each opens groups, makes layers, finds those of others, runs steps; two race
 * for one name and exactly one gets it. Meant for ThreadSanitizer as much as for the counts. */
#include "layer_testing.h"

#include <stdatomic.h>

enum { THREADS = 8, ROUNDS = 40 };

static attn_context_t *context;
static atomic_int failures, winners;
static pthread_barrier_t together;

static void count(int bad) {
    atomic_fetch_add(&failures, bad != 0);
}

static void one_round(int thread, int round) {
    attn_error_t error = ERROR_INIT;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.chunk_size = round % 2 ? 8 : 0;
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL, *shared = NULL;
    char name[64];
    if (attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error) != ATTN_OK) {
        count(1);
        return;
    }
    snprintf(name, sizeof name, "thread%d.%d.attn", thread, round);
    count(attn_layer_create(g, name, NULL, &layer, &error) != ATTN_OK);
    count(attn_context_find_layer(context, name) != layer);
    snprintf(name, sizeof name, "shared.%d.attn", round);
    int code = attn_layer_create(g, name, NULL, &shared, &error);
    count(code != ATTN_OK && code != ATTN_E_EXISTS);
    if (code == ATTN_OK) atomic_fetch_add(&winners, 1);
    float q[16] = {1}, out[16], cache[32 * 4 * 16] = {0};
    int32_t starts[] = {0, 1}, lens[] = {3}, table[] = {2};
    struct tensor tq, tout, tcache, ttable;
    struct buffers buf = alloc_buffers(g);
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .block_table = tensor(&ttable, table, ATTN_DTYPE_INT32, 2, 1, 1, 0, 0)};
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = tensor(&tq, q, ATTN_DTYPE_FLOAT32, 3, 1, 2, 8, 0),
                        .output = tensor(&tout, out, ATTN_DTYPE_FLOAT32, 3, 1, 2, 8, 0),
                        .kv_cache = tensor(&tcache, cache, ATTN_DTYPE_FLOAT32, 4, 32, 1, 4, 16)};
    count(attn_group_build_metadata(g, &b, &buf.space, NULL, &error));
    count(attn_layer_forward(layer, &f, &buf.space, NULL, &error));
    pthread_barrier_wait(&together); /* nobody gives the shared name back before all have tried */
    attn_layer_destroy(shared);
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
    pthread_barrier_wait(&together);
}

static void *work(void *argument) {
    for (int round = 0; round < ROUNDS; round++)
        one_round((int)(intptr_t)argument, round);
    return NULL;
}

/* One thread makes and destroys a layer whose cache the others want to share: they get it or are told that it
 * is not there. */
static void *share(void *argument) {
    const int thread = (int)(intptr_t)argument;
    attn_error_t error = ERROR_INIT;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    ATTN_INIT(attn_layer_options_t, o);
    char name[32];
    snprintf(name, sizeof name, "sharer%d.1.attn", thread);
    o.kv_sharing_target = thread != 0 ? "target.0.attn" : NULL;
    count(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error));
    for (int round = 0; round < 50 * ROUNDS; round++) {
        attn_layer_t *layer = NULL;
        int code = attn_layer_create(g, thread != 0 ? name : "target.0.attn", &o, &layer, &error);
        count(code != ATTN_OK && (thread == 0 || code != ATTN_E_NOT_FOUND));
        attn_layer_destroy(layer);
    }
    attn_group_close(g);
    return NULL;
}

/* The same warnings from everywhere: said once. */
static void *warn(void *argument) {
    attn_error_t error = ERROR_INIT;
    attn_layer_t *layer = NULL;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    char name[32];
    snprintf(name, sizeof name, "warn.%d", (int)(intptr_t)argument);
    count(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error));
    count(attn_layer_create(g, name, NULL, &layer, &error));
    attn_layer_destroy(layer);
    attn_group_close(g);
    return NULL;
}

static void run(void *(*function)(void *)) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, function, (void *)(intptr_t)i) != 0) bail_out("no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void) {
    context = fake_context("");
    pthread_barrier_init(&together, NULL, THREADS);
    run(work);
    is_int(atomic_load(&failures), 0, "%d threads, %d rounds each", THREADS, ROUNDS);
    is_int(atomic_load(&winners), ROUNDS, "one thread gets each contested name");
    run(share);
    is_int(atomic_load(&failures), 0, "a shared layer that comes and goes");
    logged[0] = '\0';
    run(warn);
    is_int(atomic_load(&failures), 0, "layers that warn");
    char *first = strstr(logged, "accuracy may suffer");
    ok(first != NULL && strstr(first + 1, "accuracy may suffer") == NULL, "are said once");
    attn_context_destroy(context);
    pthread_barrier_destroy(&together);
    remove_fake();
    return tap_done();
}
