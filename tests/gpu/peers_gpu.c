/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that exchange in each other's memory (semantics 8.6), as threads of one device with a stream each:
 * against one rank in double; captured steps that are replayed; a rank that does not come, and one that
 * refuses its arguments. Results never go through the host here: its all_to_all is refused.
 * PEERS_TEST_PARTS=1: batches in parts too, whose ranks may wait for each other until their limit when they
 * share a device (merge-notes.md); peers_nccl has them with a device each. */
#include "part.h"
#include "../layer/ranks_threads.h"
#include "ranks_cases.h"

/* ------------------------------------------------------------------ steps of two ranks */

enum { REQS = 6, HEADS = 4, SIZE = 64, PAGES = 64, WIDTH = 8, LAYERS = 3, ROUNDS = 4, LIMIT_MS = 5000 };
enum { OUT = REQS * HEADS * SIZE * 2, LSE = REQS * HEADS * 4 };

/* One rank: a group whose exchanges are in peers' memory, and one with the same cache that exchanges by
 * calls. */
struct member {
    int rank, is_ready;
    attn_context_t *context;
    attn_comm_t host;
    attn_comm_staged_t staged[2];
    struct rank_memory m;
    attn_group_t *group[2];
    attn_layer_t *layer[2];
    attn_space_t space[2];
    attn_batch_t batch;
    attn_forward_t args;
    struct tensor tq, to, tl, tc, tt;
    void *stream, *there, *graph;
    pthread_barrier_t *all;
    int same, replayed, alike, code, refused, recovered;
    attn_error_t error, later;
};

static const int32_t starts[REQS + 1] = {0, 1, 2, 3, 4, 5, 6}, lens[ROUNDS][REQS] = {{40, 90, 3, 64, 17, 5},
                                                                                     {1, 100, 2, 1, 33, 120},
                                                                                     {127, 1, 1, 9, 64, 65},
                                                                                     {2, 2, 5, 96, 1, 7}};

static void open_member(struct member *me) {
    attn_error_t error = ERROR_INIT;
    const attn_device_kind_t *kind = attn_device_kind(kDLCUDA);
    me->m = (struct rank_memory){.kind = kind, .device = {kDLCUDA, 0}};
    me->error = me->later = error;
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_DECODER, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_BFLOAT16;
    p.num_heads = HEADS, p.num_kv_heads = 1, p.head_size = SIZE, p.block_size = 16, p.scale = 0.125;
    p.features = ATTN_F_LSE | ATTN_F_CAPTURE;
    p.max_num_seqs = p.max_num_batched_tokens = 8, p.max_model_len = 256, p.num_blocks = PAGES;
    p.dcp_world_size = 2, p.dcp_rank = (uint32_t)me->rank, p.cp_interleave = 1;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    int code = kind->stream_create(0, &me->stream, &error);
    for (int way = 0; way < 2 && code == ATTN_OK; way++) { /* 0: peers */
        attn_comm_t comm;
        ATTN_INIT(attn_space_needed_t, need);
        code = attn_group_open(me->context, &p, &rank_device, "FLASH_ATTN", &me->group[way], NULL, &error);
        if (code == ATTN_OK)
            code = attn_comm_staged_init(&me->staged[way], &me->host, &rank_device, &comm, &error);
        if (code == ATTN_OK && way == 0)
            code = attn_comm_staged_offer_peers(&me->staged[way], LIMIT_MS, &comm, &error);
        if (code == ATTN_OK) code = attn_group_set_comm(me->group[way], &comm, 0, &error);
        if (code == ATTN_OK)
            code = attn_layer_create(me->group[way], way == 0 ? "peers" : "calls", NULL, &me->layer[way],
                                     &error);
        if (code == ATTN_OK) code = attn_group_space_needed(me->group[way], &need, &error);
        if (code == ATTN_OK) code = attn_group_kv_cache_shape(me->group[way], 0, &shape, &error);
        if (code != ATTN_OK) break;
        attn_space_t *s = &me->space[way];
        s->struct_size = sizeof *s;
        s->metadata = take(&me->m, need.metadata_bytes), s->metadata_bytes = need.metadata_bytes;
        s->workspace = take(&me->m, need.workspace_bytes), s->workspace_bytes = need.workspace_bytes;
        s->host = calloc(need.host_bytes + 1, 1), s->host_bytes = need.host_bytes;
    }
    if (code != ATTN_OK) bail_out("rank %d: %s", me->rank, error.text);
    uint64_t seed = tap_seed() + 17 * (uint64_t)me->rank;
    uint16_t *cache = malloc((size_t)shape.total_bytes), query[REQS * HEADS * SIZE];
    for (int64_t i = 0; i < shape.total_bytes / 2; i++)
        cache[i] = attn_to_bf16((double)tap_rand_in(&seed, 0, 2000) / 1000 - 1);
    for (int i = 0; i < REQS * HEADS * SIZE; i++)
        query[i] = attn_to_bf16((double)tap_rand_in(&seed, 0, 8000) / 1000 - 4);
    me->tc.t = (DLTensor){.data = put(&me->m, cache, (uint64_t)shape.total_bytes),
                          .device = me->m.device,
                          .ndim = (int)shape.ndim,
                          .dtype = shape.dtype,
                          .shape = me->tc.shape,
                          .strides = me->tc.strides};
    for (uint32_t i = 0; i < shape.ndim; i++)
        me->tc.shape[i] = shape.shape[i], me->tc.strides[i] = shape.byte_strides[i] / 2;
    free(cache);
    int32_t table[REQS * WIDTH];
    for (int i = 0; i < REQS * WIDTH; i++)
        table[i] = (i * 29 + 5) % PAGES;
    attn_forward_t *a = &me->args;
    attn_batch_t *b = &me->batch;
    a->struct_size = sizeof *a, b->struct_size = sizeof *b;
    me->there = take(&me->m, OUT + LSE);
    a->query = put_tensor(&me->m, &me->tq, query, ATTN_DTYPE_BFLOAT16, 3, REQS, HEADS, SIZE);
    a->output = tensor(&me->to, me->there, ATTN_DTYPE_BFLOAT16, 3, REQS, HEADS, SIZE, 0);
    a->lse = tensor(&me->tl, (char *)me->there + OUT, ATTN_DTYPE_FLOAT32, 2, HEADS, REQS, 0, 0);
    me->to.t.device = me->tl.t.device = me->m.device;
    a->kv_cache = &me->tc.t;
    b->flags = ATTN_BATCH_CAPTURE;
    b->num_reqs = b->num_actual_tokens = REQS;
    b->query_start_loc_host = starts;
    b->seq_lens_host = lens[0];
    b->block_table = put_tensor(&me->m, &me->tt, table, ATTN_DTYPE_INT32, 2, REQS, WIDTH, 0);
    kind->synchronize(0, &error);
}

static void *open_thread(void *user) {
    open_member(user);
    return NULL;
}

static int forward(struct member *me, int way) {
    return attn_layer_forward(me->layer[way], &me->args, &me->space[way], me->stream, &me->error);
}
static int build(struct member *me, int way) {
    return attn_group_build_metadata(me->group[way], &me->batch, &me->space[way], me->stream, &me->error);
}
static int fetch(struct member *me, char *to) {
    return me->m.kind->copy_from(0, to, me->there, OUT + LSE, me->stream, &me->error);
}
static void clear(struct member *me) {
    me->m.kind->fill(0, me->there, 0xee, OUT + LSE, me->stream, NULL);
}

/* Rounded once from float32 instead of double: a unit in the last place of bfloat16. */
static int is_close(const char *a, const char *b) {
    const uint16_t *x = (const void *)a, *y = (const void *)b;
    for (int i = 0; i < OUT / 2; i++)
        if (!(fabs(attn_from_bf16(x[i]) - attn_from_bf16(y[i])) <= 0.008 * fabs(attn_from_bf16(y[i])) + 1e-6))
            return 0;
    const float *l = (const void *)(a + OUT), *m = (const void *)(b + OUT);
    for (int i = 0; i < LSE / 4; i++)
        if (!(l[i] == m[i] || fabs(l[i] - m[i]) <= 1e-5 * (1 + fabs(m[i])))) return 0;
    return 1;
}

static void *run_member(void *user) {
    struct member *me = user;
    const attn_device_kind_t *kind = me->m.kind;
    char got[3][OUT + LSE];
    int code = build(me, 0);
    if (code == ATTN_OK) code = kind->capture_begin(0, me->stream, 0, &me->error);
    for (int i = 0; i < LAYERS && code == ATTN_OK; i++)
        code = forward(me, 0);
    if (code == ATTN_OK) code = kind->capture_end(0, me->stream, &me->graph, &me->error);
    pthread_barrier_wait(me->all);
    for (int round = 0; round < ROUNDS && code == ATTN_OK; round++) {
        me->batch.seq_lens_host = lens[round];
        code = build(me, 1);
        if (code == ATTN_OK) code = forward(me, 1);
        if (code == ATTN_OK) code = fetch(me, got[2]);
        if (code == ATTN_OK) code = build(me, 0);
        clear(me);
        if (code == ATTN_OK) code = forward(me, 0);
        if (code == ATTN_OK) code = fetch(me, got[0]);
        for (int again = 0; again < 5 && code == ATTN_OK;
             again++) { /* many layers and steps without a host */
            clear(me);
            for (int i = 0; i < 20 && code == ATTN_OK; i++)
                code = kind->graph_launch(0, me->graph, me->stream, &me->error);
            if (code == ATTN_OK) code = fetch(me, got[1]);
            me->replayed++;
            me->same += code == ATTN_OK && memcmp(got[0], got[1], OUT + LSE) == 0;
        }
        me->alike += code == ATTN_OK && is_close(got[0], got[2]);
    }
    me->code = code;
    pthread_barrier_wait(me->all);
    /* rank 1 refuses its arguments: rank 0 gets no numbers and does not wait; then both hear why */
    if (code == ATTN_OK) code = build(me, 0);
    attn_forward_t a = me->args;
    DLTensor narrow = *a.query;
    narrow.dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT16);
    if (me->rank == 1) me->args.query = &narrow;
    const int went = code == ATTN_OK ? forward(me, 0) : code;
    me->args = a;
    if (code == ATTN_OK) code = fetch(me, got[0]);
    float lse;
    memcpy(&lse, got[0] + OUT, sizeof lse);
    me->refused = code == ATTN_OK && (me->rank == 1 ? went == ATTN_E_INVALID : went == ATTN_OK && isnan(lse));
    const int said = build(me, 0);
    me->refused = me->refused && said == ATTN_E_INVALID && strcmp(me->error.param, "query") == 0;
    if (me->refused && build(me, 0) == ATTN_OK && forward(me, 0) == ATTN_OK && fetch(me, got[1]) == ATTN_OK)
        me->recovered = is_close(got[1], got[2]);
    pthread_barrier_wait(me->all);
    /* rank 1 does not come */
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    me->is_ready = me->recovered;
    if (me->rank == 0 && me->is_ready && (forward(me, 0) != ATTN_OK || forward(me, 0) != ATTN_OK))
        me->is_ready = 0;
    if (me->rank == 0 && me->is_ready) me->is_ready = fetch(me, got[0]) == ATTN_OK;
    clock_gettime(CLOCK_MONOTONIC, &to);
    const double took = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6;
    memcpy(&lse, got[0] + OUT, sizeof lse);
    if (me->rank == 0 && me->is_ready)
        me->is_ready = took > 0.9 * LIMIT_MS && took < 3 * LIMIT_MS && isnan(lse);
    if (me->rank == 0) diag("two layers without rank 1 took %.0f ms of a limit of %d", took, LIMIT_MS);
    me->later = me->error;
    me->later.text[0] = '\0';
    me->is_ready = me->is_ready && attn_group_build_metadata(me->group[0], &me->batch, &me->space[0],
                                                             me->stream, &me->later) == ATTN_E_STATE;
    return NULL;
}

static void two_members(attn_context_t *const *contexts) {
    static struct member members[2];
    attn_comm_threads_t *all = NULL;
    attn_error_t error = ERROR_INIT;
    pthread_t threads[2];
    pthread_barrier_t barrier;
    if (attn_comm_threads_create(2, 20000, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    pthread_barrier_init(&barrier, NULL, 2);
    for (int r = 0; r < 2; r++) {
        members[r].rank = r, members[r].context = contexts[r], members[r].all = &barrier;
        members[r].host = attn_comm_threads_rank(all, r);
    }
    for (int step = 0; step < 2; step++) {
        for (int r = 0; r < 2; r++)
            pthread_create(&threads[r], NULL, step == 0 ? open_thread : run_member, &members[r]);
        for (int r = 0; r < 2; r++)
            pthread_join(threads[r], NULL);
    }
    for (int r = 0; r < 2; r++) {
        const struct member *me = &members[r];
        ok(me->code == ATTN_OK && me->same == me->replayed && me->replayed == 5 * ROUNDS,
           "rank %d: %d layers captured and replayed: %d of %d like the eager step %s", r, LAYERS, me->same,
           me->replayed, me->code != ATTN_OK ? me->error.text : "");
        ok(me->alike == ROUNDS, "rank %d: %d of %d steps like those by calls", r, me->alike, ROUNDS);
        ok(me->refused, "rank %d: arguments that rank 1 refused", r);
        ok(me->recovered, "rank %d: the next step is right again", r);
        ok(me->is_ready && strstr(me->later.text, "for ranks 1 of 2, which did not come") != NULL,
           "rank %d: rank 1 did not come: %s", r, me->later.text);
    }
    for (int r = 0; r < 2; r++) {
        struct member *me = &members[r];
        if (me->graph != NULL) me->m.kind->graph_destroy(0, me->graph);
        me->m.kind->stream_destroy(0, me->stream);
        for (int way = 0; way < 2; way++) {
            attn_layer_destroy(me->layer[way]);
            attn_group_close(me->group[way]);
            free(me->space[way].host);
        }
        give_back(&me->m);
    }
    for (int r = 0; r < 2; r++)
        attn_comm_staged_end(&members[r].staged[0]), attn_comm_staged_end(&members[r].staged[1]);
    pthread_barrier_destroy(&barrier);
    attn_comm_threads_destroy(all);
}

/* A case runs `times` times: whether a rank is late where the others have gone on is a matter of luck. */
static void families(attn_context_t *const *contexts, const char *how, int most, int times, uint64_t seed) {
    for (size_t i = 0; i < NUM_GPU_CASES; i++)
        for (int world = 2; world <= most; world++) {
            const struct rank_case *c = &gpu_cases[i];
            if (!part_in_time()) continue;
            rank_bias = 0;
            double worst = 0;
            for (int n = 0; n < times && worst < c->tolerance; n++)
                worst = run_peers(c, world, contexts, seed + (uint64_t)i);
            ok(worst < c->tolerance && rank_bias < RANK_MOST_BIAS * c->tolerance,
               "%s over %d ranks%s, %s (%.1e, mean %.1e)", c->backend, world, how, c->what, worst, rank_bias);
        }
}

int main(void) {
    const uint64_t seed = tap_seed();
    attn_context_t *contexts[MAX_WORLD];
    attn_error_t error = ERROR_INIT;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);      /* loading a kernel waits for those that wait for it */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* streams of one queue wait for each other */
    if (attn_device_parse("cuda:0", &rank_device, &error) != ATTN_OK) skip_all("%s", error.text);
    for (int r = 0; r < MAX_WORLD; r++)
        contexts[r] = rank_context_of("reference, flash, triton_like, mla", "");
    two_members(contexts);
    families(contexts, "", MAX_WORLD, 1, seed);
    if (getenv("PEERS_TEST_PARTS") != NULL) {
        for (int r = 0; r < MAX_WORLD; r++) {
            attn_context_destroy(contexts[r]);
            contexts[r] =
                rank_context_of("reference, flash, triton_like, mla", "[attn]\nrank_part_bytes = 2000\n");
        }
        families(contexts, " in parts", 2, 4, seed);
    }
    for (int r = 0; r < MAX_WORLD; r++)
        attn_context_destroy(contexts[r]);
    return tap_done();
}
