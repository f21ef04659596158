/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layer families on a backend that knows none of them: the core's rewritten batches against attention written
 * down here with the family's own mask (semantics 2.1, 2.4, 2.11).
 */
#define WORLD_D         8
#define WORLD_BS        4
#define WORLD_TOLERANCE 1e-5
#include "group_world.h"

static void test_chunked(attn_context_t *context) {
    for (int chunk = BS; chunk <= 4 * BS; chunk += BS) {
        attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
        p.chunk_size = (uint32_t)chunk;
        p.num_blocks = BLOCKS;
        attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
        attn_layer_t *layer = NULL;
        attn_error_t error = ERROR_INIT;
        struct buffers buf = alloc_buffers(g);
        is_int(attn_layer_create(g, "chunked", NULL, &layer, &error), ATTN_OK, "layer of chunks of %d",
               chunk);
        is_str(attn_layer_kind_name(attn_layer_kind(layer)), "ChunkedLocalAttention", "kind");
        is_int(fake_log_of(g)->problem.chunk_size, 0, "the backend sees no chunks");
        int bad = 0;
        for (int i = 0; i < 60; i++)
            bad += run_once(g, layer, &buf, CHUNKED, chunk, NULL, NULL);
        is_int(bad, 0, "chunks of %d: 60 batches as masked attention", chunk);
        is_int(fake_log_of(g)->table_columns, chunk / BS, "rows of a chunk's blocks");
        attn_layer_destroy(layer);
        attn_group_close(g);
        free(buf.memory);
    }
}

static void test_cross(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_ENCODER_DECODER);
    p.num_blocks = BLOCKS;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    attn_layer_t *layer = NULL;
    attn_error_t error = ERROR_INIT;
    struct buffers buf = alloc_buffers(g);
    is_int(attn_layer_create(g, "cross", NULL, &layer, &error), ATTN_OK, "cross layer");
    int bad = 0;
    for (int i = 0; i < 100; i++)
        bad += run_once(g, layer, &buf, CROSS, 0, NULL, NULL);
    is_int(bad, 0, "100 batches over all encoder keys");
    is_int(fake_log_of(g)->has_encoder_lens, 0, "encoder lengths stand in seq_lens alone");
    int32_t longest = 0;
    for (int r = 0; r < fake_log_of(g)->num_reqs; r++)
        if (fake_log_of(g)->lens[r] > longest) longest = fake_log_of(g)->lens[r];
    is_int(fake_log_of(g)->max_seq_len, longest, "the longest of them in max_seq_len");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

static void test_sink(attn_context_t *context) {
    float k[SINK][1][D], v[SINK][1][D];
    struct tensor tk, tv;
    fill(&k[0][0][0], SINK * D, 5);
    fill(&v[0][0][0], SINK * D, 6);
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.static_sink_len = SINK;
    p.num_blocks = BLOCKS;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    attn_layer_t *layer = NULL;
    attn_error_t error = ERROR_INIT;
    struct buffers buf = alloc_buffers(g);
    is_int(attn_layer_create(g, "sink", NULL, &layer, &error), ATTN_E_INVALID,
           "a sink layer without sink tokens");
    is_str(error.param, "sink_key", "names sink_key");
    ATTN_INIT(attn_layer_options_t, o);
    o.sink_key = tensor(&tk, k, ATTN_DTYPE_FLOAT32, 3, SINK, 1, D, 0);
    o.sink_value = tensor(&tv, v, ATTN_DTYPE_FLOAT32, 3, SINK, 1, D, 0);
    is_int(attn_layer_create(g, "sink", &o, &layer, &error), ATTN_OK, "sink layer");
    is_int(attn_group_problem(g)->static_sink_len, SINK, "the engine's problem keeps its sink");
    is_int(fake_log_of(g)->problem.static_sink_len, 0, "the backend sees none");
    is_int(fake_log_of(g)->problem.max_model_len, 64 + SINK, "but longer sequences");
    int bad = run_once(g, layer, &buf, STATIC_SINK, 0, &k[0][0][0], &v[0][0][0]);
    is_int(bad, 0, "the first forward writes the sink tokens and sees them");
    is_int(fake_log_of(g)->cache_updates, 1, "with one cache write");
    is_int(fake_log_of(g)->update_slots[0], BS, "from slot bs on");
    static struct world w;
    make_world(&w, 0);
    attn_forward_t a = args_of(&w);
    attn_batch_t b = batch_of(&w);
    int32_t starts[] = {0, 1}, lens[] = {9}, blocks[] = {20, 21, 22};
    struct tensor trow;
    b.num_reqs = b.num_actual_tokens = 1, b.query_start_loc_host = starts, b.seq_lens_host = lens;
    b.block_table = tensor(&trow, blocks, ATTN_DTYPE_INT32, 2, 1, 3, 0, 0);
    attn_group_build_metadata(g, &b, &buf.space, NULL, &error);
    attn_layer_forward(layer, &a, &buf.space, NULL, &error);
    is_int(fake_log_of(g)->cache_updates, 2, "another cache is written, too");
    attn_layer_forward(layer, &a, &buf.space, NULL, &error);
    attn_group_build_metadata(g, &b, &buf.space, NULL, &error);
    attn_layer_forward(layer, &a, &buf.space, NULL, &error);
    is_int(fake_log_of(g)->cache_updates, 2, "the same one only once");
    /* The engine clears the cache in place, and its requests begin anew. */
    memset(w.cache, 0, sizeof w.cache);
    lens[0] = starts[1] = b.num_actual_tokens = 3;
    attn_group_build_metadata(g, &b, &buf.space, NULL, &error);
    attn_layer_forward(layer, &a, &buf.space, NULL, &error);
    is_int(fake_log_of(g)->cache_updates, 3, "a request that begins finds the sink tokens written");
    ok(w.cache[1][2][0][3] == k[2][0][3] && w.cache[1][3][0][D + 1] == v[3][0][1], "into their block");
    memset(w.cache, 0, sizeof w.cache);
    lens[0] = 9, starts[1] = b.num_actual_tokens = 1, b.flags = ATTN_BATCH_CAPTURE;
    attn_group_build_metadata(g, &b, &buf.space, NULL, &error);
    attn_layer_forward(layer, &a, &buf.space, NULL, &error);
    is_int(fake_log_of(g)->cache_updates, 4, "a graph holds the write");
    b.flags = 0;
    attn_group_build_metadata(g, &b, &buf.space, NULL, &error);
    attn_layer_destroy(layer);
    attn_layer_t *owner = NULL, *reader = NULL;
    attn_layer_create(g, "layers.0.attn", &o, &owner, &error);
    o.kv_sharing_target = "layers.0.attn";
    is_int(attn_layer_create(g, "layers.1.attn", &o, &reader, &error), ATTN_OK,
           "a layer that reads its cache");
    attn_layer_forward(reader, &a, &buf.space, NULL, &error);
    is_int(fake_log_of(g)->cache_updates, 4, "writes no sink tokens");
    attn_layer_forward(owner, &a, &buf.space, NULL, &error);
    is_int(fake_log_of(g)->cache_updates, 5, "its owner does");
    attn_layer_destroy(reader);
    attn_layer_destroy(owner);
    attn_group_close(g);
    free(buf.memory);
}

/* Whatever a batch says about its lengths counts the sink tokens, too. */
static void test_sink_lengths(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.static_sink_len = SINK, p.features = ATTN_F_CASCADE;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    attn_error_t error = ERROR_INIT;
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 1, 2}, lens[] = {9, 14}, table[2][4] = {{3, 4, 5}, {3, 4, 6, 7}};
    struct tensor t;
    ATTN_INIT(attn_batch_t, b);
    b.num_reqs = 2, b.num_actual_tokens = 2, b.query_start_loc_host = starts, b.seq_lens_host = lens;
    b.block_table = tensor(&t, table, ATTN_DTYPE_INT32, 2, 2, 4, 0, 0);
    b.max_seq_len = 14, b.common_prefix_len = 2 * BS;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK,
           "a cascade behind sink tokens");
    const struct fake_log *log = fake_log_of(g);
    is_int(log->common_prefix_len, 2 * BS + SINK, "its common prefix");
    is_int(log->max_seq_len, 14 + SINK, "its longest request");
    ok(log->lens[0] == 9 + SINK && log->lens[1] == 14 + SINK, "its lengths");
    ok(log->table[0] == 1 && log->table[1] == 3 && log->table[2] == 4, "its table");
    attn_group_close(g);
    free(buf.memory);
}

/* What cannot be rewritten is refused when the group is opened. */
static void test_refusals(attn_context_t *context) {
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    attn_error_t error = ERROR_INIT;
    const struct {
        const char *what, *param;
        uint64_t features;
        uint32_t chunk, sink, window;
    } cases[] = {{"chunks with spans", "chunk_size", ATTN_F_MM_PREFIX, 8, 0, 0},
                 {"chunks in a graph", "chunk_size", ATTN_F_CAPTURE, 8, 0, 0},
                 {"chunks with sink tokens", "chunk_size", 0, 8, 4, 0},
                 {"sink tokens with spans", "static_sink_len", ATTN_F_MM_PREFIX, 0, 4, 0},
                 {"sink tokens with the keys of the call", "static_sink_len", ATTN_F_CONTIGUOUS_KV, 0, 4, 0},
                 {"sink tokens with chunk lookback", "static_sink_len", ATTN_F_CHUNK_LOOKBACK, 0, 4, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
        p.features = cases[i].features;
        p.chunk_size = cases[i].chunk;
        p.static_sink_len = cases[i].sink;
        p.sliding_window = cases[i].window;
        is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_UNSUPPORTED, "%s",
               cases[i].what);
        is_str(error.param, cases[i].param, "names it");
    }
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.chunk_size = 8;
    p.num_blocks = BLOCKS;
    g = open_group(context, &p, "FAKE_PLAIN");
    struct buffers buf = alloc_buffers(g);
    static struct world w;
    make_world(&w, 0);
    attn_batch_t b = batch_of(&w);
    b.flags = ATTN_BATCH_CAPTURE;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), w.n ? ATTN_E_UNSUPPORTED : ATTN_OK,
           "no capture of chunks");
    b.flags = 0;
    b.common_prefix_len = 4; /* the problem does not even have cascades */
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID,
           "no cascade of chunks");
    b.common_prefix_len = 0;
    buf.space.host_bytes--;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_SPACE,
           "room for rewriting is needed");
    is_str(error.param, "host", "in the host buffer");
    attn_group_close(g);
    free(buf.memory);
    p.chunk_size = 0, p.static_sink_len = 4;
    float sink[4 * D] = {0};
    struct tensor ts;
    attn_layer_t *layer = NULL;
    attn_layer_options_t o = {.struct_size = sizeof o};
    o.sink_key = o.sink_value = tensor(&ts, sink, ATTN_DTYPE_FLOAT32, 3, SINK, 1, D, 0);
    g = open_group(context, &p, "FAKE_BARE");
    buf = alloc_buffers(g);
    attn_forward_t a = args_of(&w);
    is_int(attn_layer_create(g, "bare", &o, &layer, &error), ATTN_OK,
           "a sink layer on a backend without cache writes");
    b = batch_of(&w);
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK, "can be planned");
    is_int(attn_layer_forward(layer, &a, &buf.space, NULL, &error), ATTN_E_UNSUPPORTED, "but not run");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
    p.num_blocks = 1;
    error.param[0] = '\0';
    is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_INVALID,
           "no block for the sink tokens");
    is_str(error.param, "num_blocks", "is said of num_blocks");
    p.num_blocks = 0; /* not known yet: the first call finds out */
    g = open_group(context, &p, "FAKE_PLAIN");
    buf = alloc_buffers(g);
    is_int(attn_layer_create(g, "small", &o, &layer, &error), ATTN_OK, "a sink layer");
    struct tensor tsmall = tcache;
    tsmall.t.shape = tsmall.shape, tsmall.t.strides = tsmall.strides, tsmall.shape[0] = 1;
    a.kv_cache = &tsmall.t;
    b = batch_of(&w);
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK, "a batch");
    is_int(attn_layer_forward(layer, &a, &buf.space, NULL, &error), ATTN_E_INVALID, "a cache of one block");
    is_str(error.param, "kv_cache", "is said of the cache, not of slots that nobody gave");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
    p.static_sink_len = 4, p.max_model_len = INT32_MAX;
    is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_UNSUPPORTED,
           "lengths beyond 32 bits");
}

/* Two batches in two spaces: each forward sees its own rewritten tables. */
static void test_two_spaces(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.chunk_size = 8;
    p.num_blocks = BLOCKS;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    attn_layer_t *layer = NULL;
    attn_error_t error = ERROR_INIT;
    static struct world w[2];
    struct buffers buf[2] = {alloc_buffers(g), alloc_buffers(g)};
    int bad = attn_layer_create(g, "two", NULL, &layer, &error);
    for (int i = 0; i < 2; i++) {
        make_world(&w[i], 0);
        attn_batch_t b = batch_of(&w[i]);
        bad += attn_group_build_metadata(g, &b, &buf[i].space, NULL, &error) != ATTN_OK;
    }
    for (int i = 0; i < 2; i++) {
        attn_forward_t a = args_of(&w[i]);
        bad += attn_layer_forward(layer, &a, &buf[i].space, NULL, &error) != ATTN_OK;
        for (int r = 0; r < w[i].n; r++)
            for (int t = w[i].starts[r]; t < w[i].starts[r + 1]; t++) {
                double want[D];
                int q = w[i].lens[r] - w[i].r[r].query_len + t - w[i].starts[r];
                expect(&w[i], &w[i].r[r], t, 1, q / 8 * 8, q + 1, NULL, NULL, 0, want);
                bad += wrong(&w[i], t, 1, want);
            }
    }
    is_int(bad, 0, "two spaces at once");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf[0].memory);
    free(buf[1].memory);
}

int main(void) {
    state = tap_seed();
    attn_context_t *context = fake_context("");
    test_chunked(context);
    test_cross(context);
    test_sink(context);
    test_sink_lengths(context);
    test_refusals(context);
    test_two_spaces(context);
    attn_context_destroy(context);
    remove_fake();
    return tap_done();
}
