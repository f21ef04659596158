/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism on a device whose memory the host cannot touch (tests/kit/device), through the
 * functions of attn_merge.h that its plugin brings: the cases of ranks_test.c, refusals, and an error of one
 * rank, which the others meet at the next batch; all of it by calls of the communicator, and in memory of the
 * peers. */
#include "ranks_threads.h"

static attn_context_t *contexts[MAX_WORLD];

/* ------------------------------------------------------------------- refusals */

static attn_group_t *open_rank(int rank, uint32_t world) {
    struct rank_world w = {.c = rank_cases[0], .world = (int)world};
    attn_problem_t p = rank_problem(&w, (int)world, rank);
    attn_error_t error = ERROR_INIT;
    attn_group_t *g = NULL;
    if (attn_group_open(contexts[rank], &p, &rank_device, "FENCED_ATTN", &g, NULL, &error) != ATTN_OK)
        bail_out("open: %s", error.text);
    return g;
}

static void check_comms(void) {
    attn_comm_threads_t *all = NULL;
    attn_comm_staged_t staged;
    attn_error_t error = ERROR_INIT;
    attn_comm_t host, comm;
    attn_group_t *g = open_rank(0, 2);
    if (attn_comm_threads_create(2, 1000, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    host = attn_comm_threads_rank(all, 0);
    ok(attn_group_set_comm(g, &host, 0, &error) == ATTN_E_UNSUPPORTED && strcmp(error.param, "comm") == 0,
       "a communicator of host memory is refused on a device: %s", error.text);
    attn_comm_staged_init(&staged, &host, &rank_device, &comm, &error);
    comm.wait = NULL;
    ok(attn_group_set_comm(g, &comm, 0, &error) == ATTN_E_INVALID && strcmp(error.param, "comm") == 0,
       "as is one that cannot wait: %s", error.text);
    ok(attn_comm_staged_init(&staged, &comm, &rank_device, &comm, &error) == ATTN_E_INVALID,
       "one of device memory is not staged: %s", error.text);
    const attn_device_t nowhere = {.struct_size = sizeof nowhere, .type = kDLMetal};
    ok(attn_comm_staged_init(&staged, &host, &nowhere, &comm, &error) == ATTN_E_INVALID,
       "nor for a device that nobody knows: %s", error.text);
    attn_group_close(g);
    attn_comm_threads_destroy(all);
}

/* ------------------------------------------------- one rank's arguments are refused */

enum { T = 2, LIMIT = 20000 };

struct scene {
    int rank, world, bad_output, other_layer, leaves, codes[5];
    int peers, stays_away; /* limits of a wait in ms; 0: by calls. stays_away: from the first forward */
    attn_comm_t host;
    pthread_barrier_t *end;
    char params[5][64], texts[5][1024];
    float out[T][4][16];
};

static void note(struct scene *s, int at, int code, const attn_error_t *error) {
    s->codes[at] = code;
    snprintf(s->params[at], sizeof s->params[at], "%s", error->param);
    snprintf(s->texts[at], sizeof s->texts[at], "%s", code == ATTN_OK ? "" : error->text);
}

/* Two steps of two decodes: [0] build, [1] forward, [2] build, [3] build, [4] forward. */
static void *play(void *user) {
    struct scene *s = user;
    attn_error_t error = ERROR_INIT;
    attn_comm_staged_t staged;
    attn_comm_t comm;
    attn_group_t *g = open_rank(s->rank, (uint32_t)s->world);
    attn_layer_t *layer = NULL, *second = NULL;
    struct rank_memory m = {.kind = attn_device_kind(rank_device.type),
                            .device = {(DLDeviceType)rank_device.type, rank_device.id}};
    struct tensor tq, to, tc, tt;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, need);
    ATTN_INIT(attn_space_t, space);
    ATTN_INIT(attn_batch_t, b);
    ATTN_INIT(attn_forward_t, a);
    static const int32_t starts[3] = {0, 1, 2}, lens[2] = {20, 40}, table[2][8] = {{1, 2, 3}, {4, 5, 6}};
    static const float query[T][4][16];
    attn_group_kv_cache_shape(g, 0, &shape, &error);
    attn_group_space_needed(g, &need, &error);
    space.metadata = take(&m, need.metadata_bytes), space.metadata_bytes = need.metadata_bytes;
    space.workspace = take(&m, need.workspace_bytes), space.workspace_bytes = need.workspace_bytes;
    space.host = malloc(need.host_bytes + 1), space.host_bytes = need.host_bytes;
    char *cache = calloc((size_t)shape.total_bytes, 1);
    tc.t = (DLTensor){.data = put(&m, cache, (uint64_t)shape.total_bytes),
                      .device = m.device,
                      .ndim = (int)shape.ndim,
                      .dtype = shape.dtype,
                      .shape = tc.shape,
                      .strides = tc.strides};
    for (uint32_t i = 0; i < shape.ndim; i++)
        tc.shape[i] = shape.shape[i], tc.strides[i] = shape.byte_strides[i] / 4;
    attn_comm_staged_init(&staged, &s->host, &rank_device, &comm, &error);
    if (s->peers > 0) attn_comm_staged_offer_peers(&staged, s->peers, &comm, &error);
    if (attn_group_set_comm(g, &comm, 0, &error) != ATTN_OK) bail_out("set_comm: %s", error.text);
    attn_layer_create(g, "one", NULL, &layer, &error);
    attn_layer_create(g, "two", NULL, &second, &error);
    b.num_reqs = b.num_actual_tokens = T;
    b.query_start_loc_host = starts, b.seq_lens_host = lens;
    b.block_table = put_tensor(&m, &tt, table, ATTN_DTYPE_INT32, 2, 2, 8, 0);
    a.query = put_tensor(&m, &tq, query, ATTN_DTYPE_FLOAT32, 3, T, 4, 16);
    a.output = put_tensor(&m, &to, query, ATTN_DTYPE_FLOAT32, 3, T, 4, 16);
    a.kv_cache = &tc.t;
    for (int at = 0; at < 5; at++) {
        int code;
        if (at == 1 && s->leaves) {
            attn_comm_threads_leave(&s->host);
            break;
        }
        if (at == 1 && s->stays_away) continue;
        if (at == 1) {
            to.t.shape[2] = s->bad_output ? 15 : 16;
            code = attn_layer_forward(s->other_layer ? second : layer, &a, &space, NULL, &error);
            to.t.shape[2] = 16;
            m.kind->copy_from(0, s->out, attn_data(&to.t), sizeof s->out, NULL, NULL);
        } else if (at == 4) {
            code = attn_layer_forward(layer, &a, &space, NULL, &error);
        } else {
            code = attn_group_build_metadata(g, &b, &space, NULL, &error);
        }
        note(s, at, code, &error);
    }
    attn_layer_destroy(layer), attn_layer_destroy(second);
    attn_group_close(g);
    pthread_barrier_wait(s->end); /* the other has what it takes from this rank's memory */
    attn_comm_staged_end(&staged);
    give_back(&m);
    free(space.host), free(cache);
    return NULL;
}

static void play_both(struct scene *s) {
    attn_comm_threads_t *all = NULL;
    attn_error_t error = ERROR_INIT;
    pthread_t threads[2];
    pthread_barrier_t end;
    pthread_barrier_init(&end, NULL, 2);
    if (attn_comm_threads_create(2, LIMIT, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    for (int r = 0; r < 2; r++) {
        s[r].end = &end, s[r].rank = r, s[r].world = 2, s[r].host = attn_comm_threads_rank(all, r);
        pthread_create(&threads[r], NULL, play, &s[r]);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&end);
    attn_comm_threads_destroy(all);
}

static void check_late_errors(int peers) {
    struct scene s[2];
    memset(s, 0, sizeof s);
    s[0].peers = s[1].peers = peers;
    s[1].bad_output = 1;
    play_both(s);
    int numbers = 0;
    for (int i = 0; i < T * 4 * 16; i++)
        numbers += !isnan((&s[0].out[0][0][0])[i]);
    ok(s[1].codes[1] == ATTN_E_INVALID && strcmp(s[1].params[1], "output") == 0,
       "a rank's refused output is its error at once: %s", s[1].texts[1]);
    ok(s[0].codes[1] == ATTN_OK && numbers == 0, "the other rank's results are no numbers (%d are)", numbers);
    for (int r = 0; r < 2; r++)
        ok(s[r].codes[2] == ATTN_E_INVALID && strcmp(s[r].params[2], "output") == 0 &&
               strstr(s[r].texts[2], "rank 1 of 2") != NULL,
           "rank %d hears of it with the next batch: %s", r, s[r].texts[2]);
    ok(s[0].codes[3] == ATTN_OK && s[0].codes[4] == ATTN_OK && s[1].codes[3] == ATTN_OK &&
           s[1].codes[4] == ATTN_OK,
       "and the step after runs: %s%s", s[0].texts[3], s[1].texts[4]);
    memset(s, 0, sizeof s);
    s[0].peers = s[1].peers = peers;
    s[1].other_layer = 1;
    play_both(s);
    for (int r = 0; r < 2; r++)
        ok(s[r].codes[1] == ATTN_OK && s[r].codes[2] == ATTN_E_STATE && strcmp(s[r].params[2], "layer") == 0,
           "rank %d hears of layers in another order: %s", r, s[r].texts[2]);
}

static void check_lost_rank(void) {
    static struct scene s[2];
    s[1].leaves = 1;
    play_both(s);
    ok(s[0].codes[0] == ATTN_OK && s[0].codes[1] == ATTN_E_STATE &&
           strstr(s[0].texts[1], "rank 1 of 2 has left"),
       "a rank that leaves before forward: %s", s[0].texts[1]);
    ok(s[0].codes[2] == ATTN_E_STATE, "and no step follows: %s", s[0].texts[2]);
}

/* ---------------------------------------------------------------------- peers */

/* In peers' memory a rank waits in a kernel, so the communicator does not hear of it. */
ATTN_UNUSED static void check_missing_rank(void) {
    struct scene s[2];
    memset(s, 0, sizeof s);
    s[0].peers = s[1].peers = 50;
    s[1].stays_away = 1;
    play_both(s);
    int numbers = 0;
    for (int i = 0; i < T * 4 * 16; i++)
        numbers += !isnan((&s[0].out[0][0][0])[i]);
    ok(s[0].codes[1] == ATTN_OK && numbers == 0, "a rank that does not come: no numbers (%d are)", numbers);
    for (int r = 0; r < 2; r++)
        ok(s[r].codes[2] == ATTN_E_STATE &&
               strstr(s[r].texts[2], "a layer waited 50 ms for ranks 1 of 2, which did not come") != NULL &&
               s[r].codes[3] == ATTN_E_STATE,
           "rank %d hears of it with the next batch, and with each: %s", r, s[r].texts[2]);
}

enum { GIVES, HAS_NONE, BREAKS };
static int peers_do;
static int (*staged_peers)(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error);
static int other_peers(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error) {
    if (peers_do == GIVES) return staged_peers(ctx, bytes, of_rank, error);
    return attn_fail(error, peers_do == BREAKS ? ATTN_E_NO_MEMORY : ATTN_E_UNSUPPORTED, "comm",
                     "no such memory");
}

struct meeting_rank {
    int rank, gives, code;
    attn_comm_t host;
    attn_error_t error;
};
static void *meet(void *user) {
    struct meeting_rank *me = user;
    attn_comm_staged_t staged;
    attn_comm_t comm;
    attn_group_t *g = open_rank(me->rank, 2);
    me->error = (attn_error_t)ERROR_INIT;
    attn_comm_staged_init(&staged, &me->host, &rank_device, &comm, &me->error);
    if (me->gives) attn_comm_staged_offer_peers(&staged, LIMIT, &comm, &me->error);
    if (me->gives) comm.peers = other_peers;
    me->code = attn_group_set_comm(g, &comm, 0, &me->error);
    attn_group_close(g);
    attn_comm_staged_end(&staged); /* nothing ran */
    return NULL;
}
static void meet_both(struct meeting_rank *ranks, int first, int second) {
    attn_comm_threads_t *all = NULL;
    attn_error_t error = ERROR_INIT;
    pthread_t threads[2];
    if (attn_comm_threads_create(2, LIMIT, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    for (int r = 0; r < 2; r++) {
        ranks[r] = (struct meeting_rank){
            .rank = r, .gives = r == 0 ? first : second, .host = attn_comm_threads_rank(all, r)};
        pthread_create(&threads[r], NULL, meet, &ranks[r]);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    attn_comm_threads_destroy(all);
}

static void check_offers(void) {
    struct meeting_rank ranks[2];
    attn_comm_staged_t staged;
    attn_comm_threads_t *all = NULL;
    attn_error_t error = ERROR_INIT;
    attn_comm_t host, comm;
    if (attn_comm_threads_create(2, 1000, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    host = attn_comm_threads_rank(all, 0);
    attn_comm_staged_init(&staged, &host, &rank_device, &comm, &error);
    ok(attn_comm_staged_offer_peers(&staged, 0, &comm, &error) == ATTN_E_INVALID &&
           strcmp(error.param, "limit_ms") == 0,
       "a limit of 0 is refused: %s", error.text);
    ok(attn_comm_staged_offer_peers(&staged, 1, &host, &error) == ATTN_E_INVALID &&
           strcmp(error.param, "comm") == 0,
       "as is another communicator: %s", error.text);
    attn_comm_staged_offer_peers(&staged, LIMIT, &comm, &error);
    staged_peers = comm.peers;
    attn_group_t *g = open_rank(0, 2);
    comm.limit_ms = 0;
    ok(attn_group_set_comm(g, &comm, 0, &error) == ATTN_E_INVALID && strcmp(error.param, "limit_ms") == 0,
       "peers without a limit are refused: %s", error.text);
    attn_group_close(g);
    attn_comm_staged_end(&staged);
    attn_comm_threads_destroy(all);
    meet_both(ranks, 1, 0);
    for (int r = 0; r < 2; r++)
        ok(ranks[r].code == ATTN_E_INVALID &&
               strcmp(ranks[r].error.text, "peers is yes on rank 0 and no on rank 1; the ranks must agree") ==
                   0,
           "rank %d: one rank has peers and one has not: %s", r, ranks[r].error.text);
    peers_do = HAS_NONE;
    meet_both(ranks, 1, 1);
    ok(ranks[0].code == ATTN_OK && ranks[1].code == ATTN_OK,
       "a communicator without such memory serves without");
    peers_do = BREAKS;
    meet_both(ranks, 1, 1);
    ok(ranks[0].code == ATTN_E_NO_MEMORY && ranks[1].code == ATTN_E_NO_MEMORY,
       "its other errors are the call's: %s", ranks[0].error.text);
    peers_do = GIVES;
    meet_both(ranks, 1, 1);
    ok(ranks[0].code == ATTN_OK && ranks[1].code == ATTN_OK, "and with it the ranks meet");
}

/* ---------------------------------------------------------------------- parts */

/* Every family with batches cut into parts, as many as there can be, and by a size that ends some within a
 * run. That they are cut is seen by the metadata, of which each part has its own. */
static void check_parts(const char *more, uint64_t seed) {
    static const struct {
        const char *bytes;
        int parts;
    } sizes[] = {{"64", 8}, {"1500", 0}, {"0", 1}};
    attn_context_t *whole[MAX_WORLD];
    ATTN_INIT(attn_space_needed_t, once);
    ATTN_INIT(attn_space_needed_t, need);
    attn_error_t error = ERROR_INIT;
    memcpy(whole, contexts, sizeof whole);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        char text[1400];
        attn_group_t *g = open_rank(0, 2);
        attn_group_space_needed(g, &once, &error);
        attn_group_close(g);
        snprintf(text, sizeof text, "%s[attn]\nrank_part_bytes = %s\n", more, sizes[s].bytes);
        for (int r = 0; r < MAX_WORLD; r++)
            contexts[r] = rank_context_of("reference, fenced", text);
        g = open_rank(0, 2);
        attn_group_space_needed(g, &need, &error);
        attn_group_close(g);
        ok(sizes[s].parts == 1 ? need.metadata_bytes == once.metadata_bytes
                               : need.metadata_bytes > once.metadata_bytes,
           "metadata for parts of %s bytes: %llu bytes, %llu for one part", sizes[s].bytes,
           (unsigned long long)need.metadata_bytes, (unsigned long long)once.metadata_bytes);
        for (int i = 0; i < NUM_RANK_CASES; i++) {
            struct rank_case c = rank_cases[i];
            const int world = 2 + i % 3;
            if (strcmp(c.backend, "REFERENCE") != 0) continue;
            c.backend = "FENCED_ATTN";
            if (c.role == ATTN_ROLE_MLA) c.nope = c.value = 16;
            const double worst = run_peers(&c, world, contexts, seed + (uint64_t)i);
            ok(worst < c.tolerance, "%d ranks, parts of %s bytes, %s (%.1e)", world, sizes[s].bytes, c.what,
               worst);
        }
        if (sizes[s].parts == 8) check_late_errors(LIMIT);
        for (int r = 0; r < MAX_WORLD; r++)
            attn_context_destroy(contexts[r]);
        memcpy(contexts, whole, sizeof whole);
    }
}

int main(void) {
    const uint64_t seed = tap_seed();
    const char *build = getenv("ATTN_TEST_BUILDDIR");
    char more[1200];
    attn_error_t error = ERROR_INIT;
    snprintf(more, sizeof more, "[plugin fenced]\npath = %s/tests/kit/device/.libs/fenced_reference.so\n",
             build != NULL ? build : ".");
    for (int r = 0; r < MAX_WORLD; r++)
        contexts[r] = rank_context_of("reference, fenced", more);
    if (attn_device_parse("fenced:0", &rank_device, &error) != ATTN_OK) bail_out("%s", error.text);
    for (int i = 0; i < NUM_RANK_CASES; i++) {
        struct rank_case c = rank_cases[i];
        double worst[3];
        const int world = 2 + i % 3;
        if (strcmp(c.backend, "REFERENCE") != 0) continue;
        c.backend = "FENCED_ATTN";
        run_case(&c, world, contexts, seed + (uint64_t)i, worst);
        ok(worst[1] < c.tolerance && worst[2] < c.tolerance,
           "%d ranks, %s (all-to-all %.1e, reduce-scatter %.1e)", world, c.what, worst[1], worst[2]);
        if (c.role == ATTN_ROLE_MLA) c.nope = c.value = 16; /* rows of 16 bytes, and of 8 numbers */
        worst[0] = run_peers(&c, world, contexts, seed + (uint64_t)i);
        ok(worst[0] < c.tolerance, "%d ranks, %s, in peers' memory (%.1e)", world, c.what, worst[0]);
    }
    check_comms();
    check_late_errors(0);
    check_late_errors(LIMIT);
    check_parts(more, seed);
    check_lost_rank();
#if defined(__SANITIZE_THREAD__) /* ranks go on without each other there, and their results are no numbers */
    diag("a rank that does not come: not under TSan, which would see what nobody uses");
#else
    check_missing_rank();
#endif
    check_offers();
    for (int r = 0; r < MAX_WORLD; r++)
        attn_context_destroy(contexts[r]);
    return tap_done();
}
