/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong over ranks: ranks that disagree, that refuse, that do not come, communicators that fail.
 * Every rank gets an error that says which and why, and none waits for ever. */
#include "layer_testing.h"

#include <attn/attn_comm_threads.h>

enum { WORLD = 2, D = 16, BS = 16, T = 3, LIMIT = 60000 };

static attn_context_t *contexts[WORLD];

/* One rank of a scene. */
struct rank {
    int rank, code;
    attn_error_t error;
    attn_comm_t comm;
    attn_problem_t p;
    uint32_t join;
    /* what to do, and differently */
    int stop_after; /* calls that this rank makes; 0: all */
    int32_t starts[3], lens[2], local[2];
    int num_reqs, no_table, give_local, bad_output, two_layers, fails_at;
};

/* A communicator that breaks. */
struct broken {
    attn_comm_t inner;
    int left;
};
static int fail_or_gather(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                          attn_error_t *error) {
    struct broken *b = ctx;
    if (b->left-- == 0) return attn_fail(error, ATTN_E_DEVICE, "comm", "the cable is out");
    return b->inner.all_gather(b->inner.ctx, send, recv, bytes, stream, error);
}
static int fail_or_exchange(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                            attn_error_t *error) {
    struct broken *b = ctx;
    if (b->left-- == 0) return attn_fail(error, ATTN_E_DEVICE, "comm", "the cable is out");
    return b->inner.all_to_all(b->inner.ctx, send, recv, bytes, stream, error);
}

static attn_problem_t two_rank_problem(int rank) {
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_DECODER;
    p.mask = ATTN_MASK_CAUSAL;
    p.dtype = ATTN_DTYPE_FLOAT32;
    p.num_heads = 2;
    p.num_kv_heads = 1;
    p.head_size = D;
    p.block_size = BS;
    p.scale = 0.25;
    p.max_num_seqs = 2;
    p.max_num_batched_tokens = 8;
    p.max_model_len = 64;
    p.num_blocks = 8;
    p.dcp_world_size = WORLD;
    p.dcp_rank = (uint32_t)rank;
    return p;
}

/* Opens, meets, builds, attends; stops at the first error. */
static void *run_rank(void *user) {
    struct rank *r = user;
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL, *second = NULL;
    attn_device_t d = cpu();
    struct broken broken = {.inner = r->comm, .left = r->fails_at - 1};
    attn_comm_t comm = r->comm;
    if (r->fails_at > 0)
        comm.ctx = &broken, comm.all_gather = fail_or_gather, comm.all_to_all = fail_or_exchange;
    r->code = attn_group_open(contexts[r->rank], &r->p, &d, "REFERENCE", &g, NULL, &r->error);
    if (r->code != ATTN_OK) bail_out("open: %s", r->error.text);
    if (r->stop_after == 1) goto end;
    r->code = attn_group_set_comm(g, &comm, r->join, &r->error);
    if (r->code != ATTN_OK || r->stop_after == 2) goto end;
    struct buffers buf = alloc_buffers(g);
    struct tensor tq, to, tc, tt, tlocal;
    static const int32_t table[2][8] = {{1, 2, 3, 4}, {5, 6, 7, 1}};
    float *cache = calloc((size_t)8 * BS * 2 * D, sizeof *cache), query[8][2][D] = {{{0}}}, output[8][2][D];
    ATTN_INIT(attn_batch_t, b);
    ATTN_INIT(attn_forward_t, a);
    b.num_reqs = r->num_reqs;
    b.num_actual_tokens = r->starts[r->num_reqs];
    b.query_start_loc_host = r->starts;
    b.seq_lens_host = r->lens;
    if (!r->no_table) b.block_table = tensor(&tt, (void *)(uintptr_t)table, ATTN_DTYPE_INT32, 2, 2, 8, 0, 0);
    if (r->give_local)
        b.dcp_local_seq_lens = tensor(&tlocal, r->local, ATTN_DTYPE_INT32, 1, r->num_reqs, 0, 0, 0);
    a.query = tensor(&tq, query, ATTN_DTYPE_FLOAT32, 3, 8, 2, D, 0);
    a.output = tensor(&to, output, ATTN_DTYPE_FLOAT32, 3, 8, 2, r->bad_output ? D - 1 : D, 0);
    a.kv_cache = tensor(&tc, cache, ATTN_DTYPE_FLOAT32, 4, 8, 1, BS, 2 * D);
    r->code = attn_layer_create(g, "a", NULL, &layer, &r->error);
    if (r->code == ATTN_OK) r->code = attn_layer_create(g, "b", NULL, &second, &r->error);
    if (r->code == ATTN_OK) r->code = attn_group_build_metadata(g, &b, &buf.space, NULL, &r->error);
    if (r->code == ATTN_OK && r->stop_after != 3)
        r->code = attn_layer_forward(r->two_layers ? second : layer, &a, &buf.space, NULL, &r->error);
    free(cache), free(buf.memory);
end:
    attn_layer_destroy(layer);
    attn_layer_destroy(second);
    attn_group_close(g);
    if (r->code != ATTN_OK || r->stop_after != 0) attn_comm_threads_leave(&r->comm);
    return NULL;
}

static struct rank ranks[WORLD];
static attn_comm_threads_t *all;

static void start_scene(void) {
    attn_error_t error = ERROR_INIT;
    if (attn_comm_threads_create(WORLD, LIMIT, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    for (int i = 0; i < WORLD; i++)
        ranks[i] = (struct rank){.rank = i,
                                 .error = ERROR_INIT,
                                 .comm = attn_comm_threads_rank(all, i),
                                 .p = two_rank_problem(i),
                                 .starts = {0, 1, T},
                                 .lens = {20, 5},
                                 .num_reqs = 2};
}

static void play(void) {
    pthread_t threads[WORLD];
    for (int i = 0; i < WORLD; i++)
        pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
    for (int i = 0; i < WORLD; i++)
        pthread_join(threads[i], NULL);
    attn_comm_threads_destroy(all);
}

/* Rank i ended with this code, parameter and words. */
static void ends(int i, int code, const char *param, const char *words, const char *more) {
    const struct rank *r = &ranks[i];
    ok(r->code == code && strcmp(r->error.param, param) == 0 && strstr(r->error.text, words) != NULL &&
           strstr(r->error.text, more) != NULL,
       "rank %d: %d %s: %s", i, r->code, r->error.param, r->error.text);
}

#define SCENE(WHAT, CHANGE)                                                                                  \
    start_scene();                                                                                           \
    CHANGE;                                                                                                  \
    play()
#define BOTH(CODE, PARAM, WORDS, MORE)                                                                       \
    ends(0, CODE, PARAM, WORDS, MORE);                                                                       \
    ends(1, CODE, PARAM, WORDS, MORE)

static void meeting(void) {
    SCENE("as it should be", );
    ok(ranks[0].code == ATTN_OK && ranks[1].code == ATTN_OK, "two ranks that agree (%s%s)",
       ranks[0].error.text, ranks[1].error.text);
    SCENE("interleave", ranks[1].p.cp_interleave = 4);
    BOTH(ATTN_E_INVALID, "cp_interleave", "1 on rank 0", "4 on rank 1");
    SCENE("scale", ranks[0].p.scale = 0.5);
    BOTH(ATTN_E_INVALID, "scale", "0.5 on rank 0", "0.25 on rank 1");
    SCENE("a member that one has not", ranks[1].p.logits_soft_cap = 30);
    BOTH(ATTN_E_INVALID, "logits_soft_cap", "30 on rank 1", "not given on rank 0");
    SCENE("world", ranks[1].p.dcp_world_size = 3);
    BOTH(ATTN_E_INVALID, "dcp_world_size", "is 3", "2 ranks");
    SCENE("rank", ranks[0].p.dcp_rank = 1);
    BOTH(ATTN_E_INVALID, "dcp_rank", "dcp_rank is 1", "rank 0");
    SCENE("join", ranks[1].join = ATTN_JOIN_REDUCE_SCATTER);
    BOTH(ATTN_E_INVALID, "join", "all_to_all on rank 0", "reduce_scatter on rank 1");
    SCENE("no join", ranks[0].join = 7);
    BOTH(ATTN_E_INVALID, "join", "join is 7", "ATTN_JOIN_ALL_TO_ALL");
    SCENE("room may differ", ranks[1].p.num_blocks = 9);
    is_int(ranks[0].code, ATTN_OK, "one rank may have more blocks");
}

static void batches(void) {
    SCENE("requests", (ranks[1].num_reqs = 1, ranks[1].starts[1] = T));
    BOTH(ATTN_E_INVALID, "num_reqs", "2 on rank 0", "1 on rank 1");
    SCENE("tokens", ranks[0].starts[2] = T + 1);
    BOTH(ATTN_E_INVALID, "num_actual_tokens", "4 on rank 0", "3 on rank 1");
    SCENE("lengths", ranks[1].lens[1] = 6);
    BOTH(ATTN_E_INVALID, "seq_lens_host", "seq_lens_host[1] is 5 on rank 0", "6 on rank 1");
    SCENE("starts", ranks[1].starts[1] = 2);
    BOTH(ATTN_E_INVALID, "query_start_loc_host", "[1] is 1 on rank 0", "2 on rank 1");
    SCENE("one refuses", ranks[1].no_table = 1);
    ends(0, ATTN_E_INVALID, "block_table", "rank 1 of 2", "block_table is not given");
    ends(1, ATTN_E_INVALID, "block_table", "block_table is not given", "");
    SCENE("local lengths", (ranks[1].give_local = 1, ranks[1].local[0] = 10, ranks[1].local[1] = 3));
    BOTH(ATTN_E_INVALID, "dcp_local_seq_lens", "[1] is 3", "of 5 tokens rank 1 of 2 has 2");
}

static void calls(void) {
    SCENE("output", ranks[0].bad_output = 1);
    ends(0, ATTN_E_INVALID, "output", "15", "");
    ends(1, ATTN_E_INVALID, "output", "rank 0 of 2", "15");
    SCENE("layers", ranks[1].two_layers = 1);
    BOTH(ATTN_E_STATE, "layer", "another layer", "");
    /* gathers: the meeting, the batch, the queries; then the exchange of results */
    for (int at = 1; at <= 4; at++) {
        start_scene();
        ranks[1].fails_at = at;
        play();
        ends(1, ATTN_E_DEVICE, "comm", "the cable is out", "");
        ends(0, ATTN_E_STATE, "comm", "rank 1 of 2 has left", "");
    }
    /* a rank that goes before the meeting, before the batch, before attention */
    for (int at = 1; at <= 3; at++) {
        start_scene();
        ranks[0].stop_after = at;
        play();
        ends(1, ATTN_E_STATE, "comm", "rank 0 of 2 has left", "");
    }
}

/* The communicator by itself: one thread is enough for a rank that does not come. */
static void limits(void) {
    attn_error_t error = ERROR_INIT;
    char send[16] = {0}, recv[32];
    attn_comm_threads_t *three = NULL;
    if (attn_comm_threads_create(3, 30, &three, &error) != ATTN_OK) bail_out("%s", error.text);
    attn_comm_t comm = attn_comm_threads_rank(three, 1);
    int code = comm.all_gather(comm.ctx, send, recv, 8, NULL, &error);
    ok(code == ATTN_E_STATE && strstr(error.text, "waited 30 ms for ranks 0 2 of 3") != NULL, "a limit: %s",
       error.text);
    comm = attn_comm_threads_rank(three, 2);
    code = comm.all_to_all(comm.ctx, send, recv, 8, NULL, &error);
    ok(code == ATTN_E_STATE && strstr(error.text, "ranks 0 2 of 3") != NULL, "who comes later: %s",
       error.text);
    code = comm.reduce_scatter(comm.ctx, send, recv, 2, ATTN_DTYPE_INT32, NULL, &error);
    ok(code == ATTN_E_INVALID && strcmp(error.param, "dtype") == 0, "sums of integers: %s", error.text);
    attn_comm_threads_destroy(three);
}

/* Calls that are not the same. */
static void *gather_eight(void *user) {
    attn_comm_t *c = user;
    attn_error_t error = ERROR_INIT;
    char send[16] = {0}, recv[32];
    int code = c->all_gather(c->ctx, send, recv, 8, NULL, &error);
    ok(code == ATTN_E_STATE && strstr(error.text, "rank 0 called all_gather with 8 bytes") != NULL &&
           strstr(error.text, "rank 1 all_to_all with 16") != NULL,
       "rank 0: %s", error.text);
    return NULL;
}
static void different_calls(void) {
    attn_error_t error = ERROR_INIT;
    pthread_t thread;
    char send[32] = {0}, recv[32];
    start_scene();
    pthread_create(&thread, NULL, gather_eight, &ranks[0].comm);
    int code = ranks[1].comm.all_to_all(ranks[1].comm.ctx, send, recv, 16, NULL, &error);
    pthread_join(thread, NULL);
    ok(code == ATTN_E_STATE && strstr(error.text, "rank 0 called all_gather with 8 bytes") != NULL,
       "rank 1: %s", error.text);
    attn_comm_threads_destroy(all);
}

/* A group whose communicator is none. */
static int no_peers(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error) {
    (void)ctx, (void)bytes, (void)of_rank;
    return attn_fail(error, ATTN_E_UNSUPPORTED, "comm", "there are no peers");
}

static void refusals(void) {
    attn_error_t error = ERROR_INIT;
    attn_comm_t comm;
    attn_problem_t p = two_rank_problem(0);
    attn_group_t *g = open_group(contexts[0], &p, "REFERENCE");
    struct buffers buf = alloc_buffers(g);
    start_scene();
#define REFUSED(CALL, CODE, PARAM)                                                                           \
    ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0, "%s: %s", PARAM, error.text)
    comm = ranks[0].comm, comm.all_to_all = NULL;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_INVALID, "comm");
    comm = ranks[0].comm, comm.flags = ATTN_COMM_DEVICE;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_UNSUPPORTED, "comm");
    comm = ranks[0].comm, comm.flags = 1u << 9;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_TOO_NEW, "comm");
    comm = ranks[0].comm, comm.rank = 2;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_INVALID, "comm");
    comm = ranks[0].comm, comm.reserved[0] = 1;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_TOO_NEW, "reserved");
    comm = ranks[0].comm, comm.peers = no_peers, comm.limit_ms = 1;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_INVALID, "peers");
    REFUSED(attn_group_set_comm(g, NULL, 0, &error), ATTN_E_INVALID, "comm");
    REFUSED(attn_group_set_comm(NULL, &comm, 0, &error), ATTN_E_INVALID, "group");
    ATTN_INIT(attn_batch_t, b);
    const int32_t starts[2] = {0, 1}, lens[1] = {1};
    b.num_reqs = 0, b.query_start_loc_host = starts, b.seq_lens_host = lens;
    REFUSED(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_STATE, "group");
    attn_group_close(g);
    free(buf.memory);
    p.dcp_world_size = p.dcp_rank = 0;
    g = open_group(contexts[0], &p, "REFERENCE");
    comm = ranks[0].comm;
    REFUSED(attn_group_set_comm(g, &comm, 0, &error), ATTN_E_INVALID, "group");
    attn_group_close(g);
    attn_comm_threads_destroy(all);
    REFUSED(attn_comm_threads_create(0, 1, &all, &error), ATTN_E_INVALID, "world");
    REFUSED(attn_comm_threads_create(2, 0, &all, &error), ATTN_E_INVALID, "limit_ms");
}

/* What is not split, by the name of the member or feature. */
static void selections(void) {
    const attn_backend_t *backend = attn_context_find_backend(contexts[0], "REFERENCE", NULL);
    attn_error_t error = ERROR_INIT;
    attn_reason_t items[8];
    attn_device_t d = cpu();
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 8, .items = items};
#define NOT_SPLIT(PARAM, CHANGE)                                                                             \
    do {                                                                                                     \
        attn_problem_t p = two_rank_problem(0);                                                              \
        CHANGE;                                                                                              \
        int code = attn_backend_validate(backend, &p, &d, &reasons, &error);                                 \
        ok(code == ATTN_OK && reasons.count == 1 && strcmp(items[0].param, PARAM) == 0, "%s: %s", PARAM,     \
           code == ATTN_OK ? items[0].text : error.text);                                                    \
    } while (0)
    NOT_SPLIT("alibi", p.features = ATTN_F_ALIBI);
    NOT_SPLIT("rel_bias", p.features = ATTN_F_REL_BIAS);
    NOT_SPLIT("write_in_forward", p.features = ATTN_F_WRITE_IN_FORWARD);
    NOT_SPLIT("out_nvfp4", (p.features = ATTN_F_OUT_NVFP4, p.out_dtype = ATTN_DTYPE_UINT8));
    NOT_SPLIT("cascade", p.features = ATTN_F_CASCADE);
    NOT_SPLIT("contiguous_kv", p.features = ATTN_F_CONTIGUOUS_KV);
    NOT_SPLIT("mm_prefix", p.features = ATTN_F_MM_PREFIX);
    NOT_SPLIT("rswa", p.rswa_window = 4);
    NOT_SPLIT("chunk_size", p.chunk_size = 16);
    NOT_SPLIT("static_sink_len", p.static_sink_len = 16);
    NOT_SPLIT("sliding_window", p.sliding_window = 7);
    NOT_SPLIT("cp_interleave", p.cp_interleave = 5);
    NOT_SPLIT("role", (p.role = ATTN_ROLE_ENCODER_DECODER, p.mask = ATTN_MASK_FULL));
    attn_problem_t p = two_rank_problem(0);
    is_int(attn_backend_validate(backend, &p, &d, &reasons, &error), ATTN_OK, "two ranks");
    is_int(reasons.count, 0, "are served on a CPU");
    if (attn_device_parse("sm_90", &d, &error) != ATTN_OK) bail_out("sm_90: %s", error.text);
    is_int(attn_backend_validate(backend, &p, &d, &reasons, &error), ATTN_OK, "on a GPU");
    ok(reasons.count == 1 && strcmp(items[0].param, "dcp_world_size") == 0, "they are not: %s",
       items[0].text);
}

int main(void) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    attn_error_t error = ERROR_INIT;
    if (dir == NULL || access(dir, R_OK) != 0) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = "[attn]\nplugins = reference\n";
    o.plugin_dir = dir;
    for (int i = 0; i < WORLD; i++)
        if (attn_context_create(&o, &contexts[i], &error) != ATTN_OK) bail_out("context: %s", error.text);
    meeting();
    batches();
    calls();
    limits();
    different_calls();
    refusals();
    selections();
    for (int i = 0; i < WORLD; i++)
        attn_context_destroy(contexts[i]);
    return tap_done();
}
