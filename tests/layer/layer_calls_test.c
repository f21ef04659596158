/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a step: every wrong argument under its name, profiling, MLA weights, sinks and slopes of the
 * layer. */
#include "layer_testing.h"

#include <math.h>

static attn_error_t error = {.struct_size = sizeof error};

struct call {
    attn_group_t *g;
    attn_layer_t *layer;
    struct buffers buf;
    float q[64], k[64], v[64], out[64], lse[64], sinks[2], slopes[2], cache[32 * 4 * 16], v_cache[32 * 4 * 8],
        scale[1];
    int64_t slots[2];
    int32_t starts[2], lens[1], table[1], topk[2 * 128];
    struct tensor tq, tk, tv, tout, tlse, tsinks, tslopes, tcache, tvcache, tslots, ttable, tscale, ttopk,
        tbad;
    attn_batch_t b;
    attn_kv_update_t u;
    attn_forward_t f;
};

static void open_call(struct call *c, attn_context_t *context, const attn_problem_t *p, const char *backend) {
    memset(c, 0, sizeof *c);
    c->g = open_group(context, p, backend);
    c->buf = alloc_buffers(c->g);
    c->starts[1] = c->lens[0] = 2, c->table[0] = 1, c->slots[0] = 4, c->slots[1] = -1;
    int cache = attn_role_has_cache(p->role), mla = attn_role_is_mla(p->role);
    c->b = (attn_batch_t){.struct_size = sizeof c->b,
                          .num_reqs = 1,
                          .num_actual_tokens = 2,
                          .query_start_loc_host = c->starts,
                          .seq_lens_host = c->lens};
    if (cache) c->b.block_table = tensor(&c->ttable, c->table, ATTN_DTYPE_INT32, 2, 1, 1, 0, 0);
    tensor(&c->tq, c->q, ATTN_DTYPE_FLOAT32, 3, 2, 2, mla ? 16 : 8, 0);
    tensor(&c->tout, c->out, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0);
    tensor(&c->tk, c->k, ATTN_DTYPE_FLOAT32, mla ? 2 : 3, 2, mla ? 16 : 1, 8, 0);
    tensor(&c->tv, c->v, ATTN_DTYPE_FLOAT32, 3, 2, 1, 8, 0);
    tensor(&c->tcache, c->cache, ATTN_DTYPE_FLOAT32, mla ? 3 : 4, 32, mla ? 4 : 1, mla ? 24 : 4, 16);
    tensor(&c->tvcache, c->v_cache, ATTN_DTYPE_FLOAT32, 4, 32, 1, 4, 8);
    tensor(&c->tslots, c->slots, ATTN_DTYPE_INT64, 1, 2, 0, 0, 0);
    tensor(&c->tsinks, c->sinks, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    tensor(&c->tslopes, c->slopes, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    tensor(&c->tlse, c->lse, ATTN_DTYPE_FLOAT32, 2, 2, 2, 0, 0);
    tensor(&c->tscale, c->scale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    tensor(&c->ttopk, c->topk, ATTN_DTYPE_INT32, 2, 2, 128, 0, 0);
    c->u = (attn_kv_update_t){.struct_size = sizeof c->u,
                              .key = &c->tk.t,
                              .value = &c->tv.t,
                              .kv_cache = &c->tcache.t,
                              .slot_mapping = &c->tslots.t};
    c->f = (attn_forward_t){.struct_size = sizeof c->f, .query = &c->tq.t, .output = &c->tout.t};
    if (cache) c->f.kv_cache = &c->tcache.t;
    if (!cache) c->f.key = &c->tk.t, c->f.value = &c->tv.t;
    if (attn_layer_create(c->g, "l.0", NULL, &c->layer, &error) != ATTN_OK) bail_out("layer: %s", error.text);
    if (attn_group_build_metadata(c->g, &c->b, &c->buf.space, NULL, &error) != ATTN_OK)
        bail_out("build: %s", error.text);
}

static void close_call(struct call *c) {
    attn_layer_destroy(c->layer);
    attn_group_close(c->g);
    free(c->buf.memory);
}

static int forward(struct call *c) {
    error.param[0] = error.text[0] = '\0';
    return attn_layer_forward(c->layer, &c->f, &c->buf.space, NULL, &error);
}

static int update(struct call *c) {
    error.param[0] = error.text[0] = '\0';
    return attn_layer_update_kv_cache(c->layer, &c->u, NULL, &error);
}

/* Changes a good call, expects the parameter's name, and puts it right again. */
#define SPOIL(CALL, PARAM, STATEMENT, ...)                                                                   \
    do {                                                                                                     \
        struct call saved_ = *c;                                                                             \
        STATEMENT;                                                                                           \
        int code_ = CALL(c);                                                                                 \
        if (!ok(code_ == ATTN_E_INVALID && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__))   \
            diag("code %d, param '%s', text '%s'", code_, error.param, error.text);                          \
        *c = saved_;                                                                                         \
    } while (0)

/* Metadata serves the groups that are equal to the one that built it, and no other. */
static void test_metadata_of_others(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER), q = p;
    attn_layer_t *twin, *window;
    q.sliding_window = 4;
    open_call(c, context, &p, "FAKE_PLAIN");
    attn_group_t *same = open_group(context, &p, "FAKE_PLAIN"),
                 *other = open_group(context, &q, "FAKE_PLAIN");
    if (attn_layer_create(same, "l.1", NULL, &twin, &error) != ATTN_OK ||
        attn_layer_create(other, "l.2", NULL, &window, &error) != ATTN_OK)
        bail_out("layers: %s", error.text);
    const attn_space_t *space = &c->buf.space;
    is_int(attn_layer_forward(twin, &c->f, space, NULL, &error), ATTN_OK, "metadata of an equal group");
    is_int(attn_layer_forward(window, &c->f, space, NULL, &error), ATTN_E_STATE, "of one without the window");
    is_str(error.param, "metadata", "is refused by name");
    is_int(attn_group_build_metadata(other, &c->b, space, NULL, &error), ATTN_OK, "built anew by its group");
    is_int(attn_layer_forward(window, &c->f, space, NULL, &error), ATTN_OK, "it serves");
    is_int(forward(c), ATTN_E_STATE, "but the first no more");
    is_int(attn_group_update_block_table(c->g, &c->b, space, NULL, &error), ATTN_OK,
           "until its group builds a table");
    is_int(forward(c), ATTN_OK, "into it");
    is_int(attn_layer_forward(window, &c->f, NULL, NULL, &error), ATTN_OK, "a profiling run needs none");
    attn_layer_destroy(twin);
    attn_layer_destroy(window);
    attn_group_close(same);
    attn_group_close(other);
    close_call(c);
}

/* A new table goes into metadata of the same requests and lengths: everything else in it stays as it was
 * built. */
static void test_table_of_others(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    open_call(c, context, &p, "FAKE_PLAIN");
    const struct fake_log *log = fake_log_of(c->g);
    const attn_space_t *space = &c->buf.space;
    const int updates = log->table_updates, builds = log->builds;
    is_int(attn_group_update_block_table(c->g, &c->b, space, NULL, &error), ATTN_OK,
           "the table of the same batch");
    ok(log->table_updates == updates + 1 && log->builds == builds, "is replaced, not planned anew");
    int32_t starts[] = {0, c->b.num_actual_tokens}, lens[] = {c->b.seq_lens_host[0] + 1};
    attn_batch_t b = c->b;
    b.query_start_loc_host = starts, b.seq_lens_host = lens, b.seq_lens = NULL, b.query_start_loc = NULL;
    error.param[0] = '\0';
    is_int(attn_group_update_block_table(c->g, &b, space, NULL, &error), ATTN_E_STATE, "a longer request");
    is_str(error.param, "batch", "is refused by name");
    b.num_reqs = 0, b.num_actual_tokens = 0;
    is_int(attn_group_update_block_table(c->g, &b, space, NULL, &error), ATTN_E_STATE,
           "as are fewer requests");
    is_int(attn_group_build_metadata(c->g, &b, space, NULL, &error) ||
               attn_group_update_block_table(c->g, &b, space, NULL, &error),
           ATTN_OK, "which are built first");
    struct buffers fresh = alloc_buffers(c->g);
    is_int(attn_group_update_block_table(c->g, &c->b, &fresh.space, NULL, &error), ATTN_OK,
           "metadata that nobody built");
    ok(log->builds == builds + 2, "is planned");
    free(fresh.memory);
    close_call(c);
}

/* Options change what a backend plans, so metadata of a group with other ones is another's. */
static void test_options_of_others(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_context_t *configured = fake_context("[option layer_fake]\nsplits = 7\n");
    attn_layer_t *layer;
    open_call(c, context, &p, "FAKE_PLAIN");
    attn_group_t *g = open_group(configured, &p, "FAKE_PLAIN");
    if (attn_layer_create(g, "l.0", NULL, &layer, &error) != ATTN_OK) bail_out("layer: %s", error.text);
    error.param[0] = '\0';
    is_int(attn_layer_forward(layer, &c->f, &c->buf.space, NULL, &error), ATTN_E_STATE,
           "metadata of other options");
    is_str(error.param, "metadata", "is refused by name");
    is_int(attn_group_build_metadata(g, &c->b, &c->buf.space, NULL, &error) ||
               attn_layer_forward(layer, &c->f, &c->buf.space, NULL, &error),
           ATTN_OK, "its own serves");
    attn_layer_destroy(layer);
    attn_group_close(g);
    attn_context_destroy(configured);
    close_call(c);
}

/* Scales that the call reads on the CPU. */
static void test_scale_values(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    open_call(c, context, &p, "FAKE_PLAIN");
    c->u.scales.k = c->u.scales.v = c->f.scales.k = c->f.scales.v = &c->tscale.t;
    c->scale[0] = 0.5f;
    is_int(update(c) || forward(c), ATTN_OK, "a scale");
    SPOIL(update, "k_scale", c->scale[0] = 0, "of 0, which would make every row 0");
    SPOIL(update, "k_scale", c->scale[0] = -1, "of -1");
    SPOIL(forward, "k_scale", c->scale[0] = NAN, "that is no number");
    SPOIL(update, "k_scale", c->tscale.t.shape[0] = 3, "three of them for other heads");
    SPOIL(forward, "v_scale", (c->f.scales.k = NULL, c->tscale.t.shape[0] = 2),
          "one for each head, where the problem does not say so");
    SPOIL(forward, "v_scale", (c->f.scales.k = NULL, c->scale[0] = INFINITY), "that is infinite");
    c->tscale.t.device.device_type = kDLCUDAManaged, c->scale[0] = 0;
    is_int(update(c), ATTN_OK, "what lies elsewhere is not looked at");
    close_call(c);
    p.kv_cache_dtype = ATTN_KV_AUTO;
    open_call(c, context, &p, "FAKE_PLAIN");
    c->u.scales.k = c->u.scales.v = &c->tscale.t;
    is_int(update(c), ATTN_OK, "nor are scales that nobody uses");
    close_call(c);
}

static void test_update(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(update(c), ATTN_OK, "a good write");
    is_int(fake_log_of(c->g)->update_count, 2, "of two slots");
    SPOIL(update, "slot_mapping", c->u.slot_mapping = NULL, "no slots");
    SPOIL(update, "slot_mapping", c->tslots.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT32), "slots of int32");
    SPOIL(update, "slot_mapping", c->slots[1] = 128, "a slot past the end");
    SPOIL(update, "slot_mapping", c->tcache.shape[0] = 1, "a smaller cache than its slots");
    SPOIL(update, "key", c->u.key = NULL, "no key");
    SPOIL(update, "key", c->tk.shape[1] = 2, "two KV heads");
    SPOIL(update, "key", c->tk.shape[0] = 1, "a key row too few");
    SPOIL(update, "value", c->tv.shape[0] = 1, "a value row too few");
    SPOIL(update, "value", c->tv.shape[2] = 4, "values of another size");
    SPOIL(update, "kv_cache", c->u.kv_cache = NULL, "no cache");
    SPOIL(update, "kv_cache", c->tcache.t.ndim = 3, "a cache of three dimensions");
    SPOIL(update, "kv_cache", c->tcache.shape[2] = 8, "a cache of other blocks");
    SPOIL(update, "kv_cache", c->tcache.t.data = NULL, "a cache without data");
    SPOIL(update, "v_cache", c->u.v_cache = &c->tvcache.t, "a second cache that would be ignored");
    SPOIL(update, "args", c->u.struct_size = 0, "no struct_size");
    SPOIL(update, "key", c->tk.t.device.device_type = kDLCUDA, "keys on a GPU");
    SPOIL(update, "kv_cache", c->tcache.t.device.device_type = kDLCUDA, "a cache on a GPU");
    SPOIL(update, "slot_mapping", c->tslots.t.device.device_type = kDLVulkan, "slots on another device");
    c->tk.t.device.device_type = kDLCUDAHost, c->tv.t.device.device_type = kDLCUDAManaged;
    is_int(update(c), ATTN_OK, "pinned and managed memory serve a CPU");
    is_int(attn_layer_update_kv_cache(c->layer, NULL, NULL, &error), ATTN_E_INVALID, "no args");
    is_int(attn_layer_update_kv_cache(NULL, &c->u, NULL, &error), ATTN_E_INVALID, "no layer");
    is_int(update(c), ATTN_OK, "good again");
    close_call(c);
    open_call(c, context, &p, "FAKE_INCLUDES");
    is_int(update(c), ATTN_OK, "where forward writes the cache");
    is_int(fake_log_of(c->g)->cache_updates, 0, "update does nothing");
    close_call(c);
    open_call(c, context, &p, "FAKE_BARE");
    is_int(update(c), ATTN_E_UNSUPPORTED, "a backend without update_kv_cache");
    is_str(error.param, "backend", "is what to change");
    close_call(c);
    p.features = ATTN_F_SEPARATE_KV;
    open_call(c, context, &p, "FAKE_NOOP");
    SPOIL(update, "v_cache", (void)0, "one cache where two are wanted");
    c->u.v_cache = &c->tvcache.t;
    is_int(update(c), ATTN_OK, "two caches");
    SPOIL(update, "slot_mapping", c->slots[0] = 128, "whose slots end, too");
    SPOIL(update, "kv_cache", c->tcache.t.shape = NULL, "the first without a shape");
    SPOIL(update, "kv_cache", c->tcache.t.ndim = 0, "without dimensions");
    SPOIL(update, "v_cache", c->tvcache.t.ndim = 3, "the second of three dimensions");
    SPOIL(update, "v_cache", c->tvcache.t.data = NULL, "without data");
    close_call(c);
}

static void test_forward(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_OK, "a good call");
    SPOIL(forward, "query", c->f.query = NULL, "no query");
    SPOIL(forward, "query", c->tq.t.device.device_type = kDLCUDA, "a query on a GPU");
    SPOIL(forward, "output", c->tout.t.device.device_type = kDLCUDA, "an output on a GPU");
    SPOIL(forward, "kv_cache", c->tcache.t.device.device_type = kDLCUDA, "a cache on a GPU");
    SPOIL(forward, "query", c->tq.shape[1] = 1, "a query of one head");
    SPOIL(forward, "query", c->tq.shape[2] = 4, "a query of another size");
    SPOIL(forward, "query", c->tq.t.dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT16), "a query of another type");
    SPOIL(forward, "query", c->tq.strides[2] = 2, "a query that is not dense");
    SPOIL(forward, "output", c->f.output = NULL, "no output");
    SPOIL(forward, "output", c->tout.shape[2] = 16, "an output of another size");
    SPOIL(forward, "output", c->tout.t.dtype = attn_dl_dtype(ATTN_DTYPE_BFLOAT16),
          "an output of another type");
    SPOIL(forward, "kv_cache", c->f.kv_cache = NULL, "no cache");
    SPOIL(forward, "kv_cache", c->tcache.shape[3] = 12, "a cache of other rows");
    SPOIL(forward, "sinks", c->f.sinks = &c->tsinks.t, "sinks that were not asked for");
    SPOIL(forward, "alibi_slopes", c->f.alibi_slopes = &c->tslopes.t, "slopes that were not asked for");
    SPOIL(forward, "rel_bias", c->f.rel_bias = &c->tlse.t, "a relative bias that was not asked for");
    SPOIL(forward, "lse", c->f.lse = &c->tlse.t, "an LSE that was not asked for");
    SPOIL(forward, "qq_bias", c->f.qq_bias = &c->tlse.t, "a bias that was not asked for");
    SPOIL(forward, "output_scale", c->f.output_scale = &c->tscale.t,
          "an output scale that was not asked for");
    SPOIL(forward, "output_block_scale", c->f.output_block_scale = &c->tscale.t,
          "block scales that were not asked for");
    SPOIL(forward, "slot_mapping", c->f.slot_mapping = &c->tscale.t, "slots that were not asked for");
    SPOIL(forward, "topk_indices", c->f.topk_indices = &c->ttopk.t, "selected tokens of a dense layer");
    SPOIL(forward, "key", c->f.key = &c->tbad.t, "a key without shape");
    SPOIL(forward, "value", c->f.key = &c->tk.t, "a key without value");
    SPOIL(forward, "args", c->f.struct_size = 2, "no struct_size");
    SPOIL(forward, "space", c->buf.space.struct_size = 0, "a space without struct_size");
    attn_space_t s = c->buf.space;
    s.workspace_bytes--;
    is_int(attn_layer_forward(c->layer, &c->f, &s, NULL, &error), ATTN_E_SPACE, "a workspace too small");
    is_int(attn_layer_forward(c->layer, NULL, &s, NULL, &error), ATTN_E_INVALID, "no args");
    is_int(attn_layer_forward(NULL, &c->f, &s, NULL, &error), ATTN_E_INVALID, "no layer");
    is_int(forward(c), ATTN_OK, "good again");
    is_int(fake_log_of(c->g)->forwards, 2, "only good calls reach the backend");
    c->out[0] = c->out[31] = 5;
    c->f.kv_cache = NULL, c->f.query = NULL;
    is_int(attn_layer_forward(c->layer, &c->f, NULL, NULL, &error), ATTN_OK,
           "the profiling run needs an output only");
    ok(c->out[0] == 0 && c->out[31] == 0 && fake_log_of(c->g)->profiling_runs == 1, "and zeroes it");
    close_call(c);
    p = small_problem(ATTN_ROLE_ENCODER_ONLY);
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_OK, "an encoder");
    SPOIL(forward, "key", c->f.key = NULL, "needs keys");
    SPOIL(forward, "value", c->f.value = NULL, "and values");
    SPOIL(forward, "kv_cache", c->f.kv_cache = &c->tcache.t, "has no cache");
    is_int(update(c), ATTN_OK, "its cache write is nothing");
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    is_int(attn_group_kv_cache_shape(c->g, 5, &shape, &error) || shape.ndim != 0, 0,
           "and its cache shape is empty");
    close_call(c);
}

/* A decoder that reads the keys of the call. */
static void test_direct(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.features = ATTN_F_CONTIGUOUS_KV;
    open_call(c, context, &p, "FAKE_PLAIN");
    SPOIL(forward, "key", (void)0, "contiguous keys that are not given");
    c->f.key = &c->tk.t, c->f.value = &c->tv.t, c->f.kv_cache = NULL;
    is_int(forward(c), ATTN_OK, "take the place of a cache");
    SPOIL(forward, "kv_cache", (c->f.kv_cache = &c->tcache.t, c->tcache.shape[2] = 8),
          "a cache that is given is still checked");
    close_call(c);
}

/* Given once to the layer, used in every call. */
static void test_layer_tensors(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.features = ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_LSE;
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_E_INVALID, "a layer with sinks but none given");
    is_str(error.param, "sinks", "names them");
    attn_layer_options_t o = {.struct_size = sizeof o, .sinks = &c->tsinks.t, .alibi_slopes = &c->tslopes.t};
    attn_layer_destroy(c->layer);
    is_int(attn_layer_create(c->g, "l.0", &o, &c->layer, &error), ATTN_OK, "a layer with sinks and slopes");
    c->f.lse = &c->tlse.t;
    is_int(forward(c), ATTN_OK, "needs none in the call");
    ok(fake_log_of(c->g)->sinks == &c->tsinks.t && fake_log_of(c->g)->slopes == &c->tslopes.t,
       "the backend gets the layer's");
    attn_layer_t *other = NULL;
    c->tsinks.shape[0] = 1;
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID, "one sink for two heads");
    is_str(error.param, "sinks", "names them");
    close_call(c);
    p.features = 0;
    open_call(c, context, &p, "FAKE_PLAIN");
    o.sinks = NULL;
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID,
           "slopes that the problem did not ask for");
    is_str(error.param, "alibi_slopes", "named");
    o = (attn_layer_options_t){.struct_size = sizeof o, .sink_key = &c->tk.t, .sink_value = &c->tv.t};
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID,
           "sink tokens without static_sink_len");
    is_str(error.param, "sink_key", "named");
    close_call(c);
}

/* A cache that forward writes, by the call (semantics 3.11): what update_kv_cache would refuse is refused. */
static void test_write_in_forward(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_layer_t *sharing;
    p.features = ATTN_F_WRITE_IN_FORWARD;
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_OK, "a call may write nothing");
    ok(fake_log_of(c->g)->slots == NULL, "and the backend sees that");
    c->f.slot_mapping = &c->tslots.t, c->f.key = &c->tk.t, c->f.value = &c->tv.t;
    is_int(forward(c), ATTN_OK, "or its keys: %s", error.text);
    ok(fake_log_of(c->g)->slots == &c->tslots.t, "which the backend is to do");
    SPOIL(forward, "key", c->f.key = NULL, "slots without keys");
    SPOIL(forward, "value", c->f.value = NULL, "slots without values");
    SPOIL(forward, "key", c->tk.shape[0] = 1, "more slots than keys");
    SPOIL(forward, "slot_mapping", c->tslots.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT32), "slots of 32 bits");
    SPOIL(forward, "slot_mapping", c->slots[0] = 32 * 4, "a slot beyond the cache");
    SPOIL(forward, "slot_mapping", c->tslots.t.device.device_type = kDLCUDA, "slots on a GPU");
    is_int(fake_log_of(c->g)->cache_updates, 0, "nothing went through update_kv_cache");
    attn_layer_options_t o = {.struct_size = sizeof o, .kv_sharing_target = "l.0"};
    is_int(attn_layer_create(c->g, "l.1", &o, &sharing, &error), ATTN_OK, "a layer that shares the cache");
    is_int(attn_layer_forward(sharing, &c->f, &c->buf.space, NULL, &error), ATTN_OK, "takes such a call");
    ok(fake_log_of(c->g)->slots == NULL, "and writes nothing");
    attn_layer_destroy(sharing);
    close_call(c);
}

/* A table of distances (semantics 2.15), as sinks and slopes are given. */
static void test_rel_bias(attn_context_t *context) {
    static struct call call, *c = &call;
    float numbers[10] = {0};
    struct tensor table;
    attn_layer_t *other = NULL;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.features = ATTN_F_REL_BIAS;
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_E_INVALID, "a layer with relative bias but none given");
    is_str(error.param, "rel_bias", "names it");
    tensor(&table, numbers, ATTN_DTYPE_FLOAT32, 2, 2, 5, 0, 0);
    attn_layer_options_t o = {.struct_size = sizeof o, .rel_bias = &table.t};
    attn_layer_destroy(c->layer);
    is_int(attn_layer_create(c->g, "l.0", &o, &c->layer, &error), ATTN_OK, "a layer with its table");
    is_int(forward(c), ATTN_OK, "needs none in the call");
    ok(fake_log_of(c->g)->rel_bias == &table.t, "the backend gets the layer's");
    table.shape[1] = 4;
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID, "an even number of columns");
    is_str(error.param, "rel_bias", "named");
    table.shape[1] = 5, table.shape[0] = 1;
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID, "one row for two heads");
    is_str(error.param, "rel_bias", "named");
    table.shape[0] = 2, table.t.device.device_type = kDLCUDA;
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID, "a table on a GPU");
    is_str(error.param, "rel_bias", "named");
    close_call(c);
    p.features = 0;
    open_call(c, context, &p, "FAKE_PLAIN");
    table.t.device.device_type = kDLCPU;
    is_int(attn_layer_create(c->g, "l.1", &o, &other, &error), ATTN_E_INVALID,
           "a table that the problem did not ask for");
    is_str(error.param, "rel_bias", "named");
    close_call(c);
}

/* What a layer gets when it is made is read by its calls: on a CPU it must not lie on a GPU. */
static void test_layer_places(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.features = ATTN_F_SINK | ATTN_F_ALIBI;
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    p.static_sink_len = 4;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    float numbers[32] = {0};
    struct tensor t[6];
    tensor(&t[0], numbers, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0),
        tensor(&t[1], numbers, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    tensor(&t[2], numbers, ATTN_DTYPE_FLOAT32, 3, 4, 1, 8, 0),
        tensor(&t[3], numbers, ATTN_DTYPE_FLOAT32, 3, 4, 1, 8, 0);
    tensor(&t[4], c->scale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0),
        tensor(&t[5], c->scale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    c->scale[0] = 1;
    static const char *const names[] = {"sinks",      "alibi_slopes", "sink_key",
                                        "sink_value", "k_scale",      "v_scale"};
    attn_layer_options_t o = {.struct_size = sizeof o, .sinks = &t[0].t, .alibi_slopes = &t[1].t};
    o.sink_key = &t[2].t, o.sink_value = &t[3].t, o.scales.k = &t[4].t, o.scales.v = &t[5].t;
    attn_layer_t *layer = NULL;
    for (int i = 0; i < 6; i++) {
        t[i].t.device.device_type = kDLCUDA;
        int code = attn_layer_create(g, "places", &o, &layer, &error);
        ok(code == ATTN_E_INVALID && strcmp(error.param, names[i]) == 0, "%s on a GPU: %s", names[i],
           error.text);
        if (code == ATTN_OK) attn_layer_destroy(layer);
        t[i].t.device.device_type = kDLCPU;
    }
    is_int(attn_layer_create(g, "places", &o, &layer, &error), ATTN_OK, "all of them here");
    attn_layer_destroy(layer);
    attn_group_close(g);
}

/* The caller projects: other rows, and no weights. */
static void test_latent(attn_context_t *context) {
    static struct call call, *c = &call;
    static float q[2 * 2 * 24], out[2 * 2 * 16];
    attn_problem_t p = small_problem(ATTN_ROLE_MLA);
    float weights[32 * 16], room[8];
    struct tensor tw, tq, tout;
    p.features = ATTN_F_LATENT;
    p.qk_nope_head_dim = p.v_head_dim = 0;
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_E_INVALID, "an output of another size than the latent");
    is_str(error.param, "output", "named");
    c->f.output = tensor(&tout, out, ATTN_DTYPE_FLOAT32, 3, 2, 2, 16, 0);
    is_int(forward(c), ATTN_E_INVALID, "queries that are not absorbed");
    has_str(error.text, "expected 24", "says what it takes");
    c->f.query = tensor(&tq, q, ATTN_DTYPE_FLOAT32, 3, 2, 2, 24, 0);
    attn_weights_t w = {.struct_size = sizeof w,
                        .kv_b_proj = tensor(&tw, weights, ATTN_DTYPE_FLOAT32, 2, 32, 16, 0, 0),
                        .weight_space = room,
                        .weight_space_bytes = sizeof room};
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_E_INVALID, "weights");
    has_str(error.text, "latent", "says why there are none");
    is_int(fake_log_of(c->g)->weight_runs, 0, "the backend saw none");
    is_int(forward(c), ATTN_OK, "absorbed queries, latents, no weights");
    close_call(c);
}

static void test_mla(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_MLA);
    float weights[32 * 16], room[8];
    struct tensor tw;
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(forward(c), ATTN_E_STATE, "MLA before its weights");
    is_str(error.param, "weight_space", "says what is missing");
    attn_weights_t w = {.struct_size = sizeof w,
                        .kv_b_proj = tensor(&tw, weights, ATTN_DTYPE_FLOAT32, 2, 32, 16, 0, 0),
                        .weight_space = room,
                        .weight_space_bytes = 8};
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_E_SPACE, "too little weight space");
    has_str(error.text, "weights.weight_space has 8", "is not said of the space of the calls");
    w.weight_space_bytes = sizeof room;
    tw.t.device.device_type = kDLCUDA;
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_E_INVALID, "weights on a GPU");
    is_str(error.param, "kv_b_proj", "named");
    tw.t.device.device_type = kDLCPU;
    w.kv_b_proj_scale = &c->tscale.t, c->tscale.t.device.device_type = kDLCUDA;
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_E_INVALID, "their scale on a GPU");
    is_str(error.param, "kv_b_proj_scale", "named");
    is_int(fake_log_of(c->g)->weight_runs, 0, "the backend saw none of them");
    w.kv_b_proj_scale = NULL;
    tw.shape[0] = 31;
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_E_INVALID,
           "weights of another shape");
    is_str(error.param, "kv_b_proj", "named");
    tw.shape[0] = 32;
    is_int(attn_layer_prepare_weights(c->layer, NULL, NULL, &error), ATTN_E_INVALID, "no weights");
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_OK, "prepared");
    is_int(fake_log_of(c->g)->weight_runs, 1, "by the backend");
    is_int(forward(c), ATTN_OK, "now it runs");
    ok(fake_log_of(c->g)->weight_space == room, "with the layer's weights");
    is_int(update(c), ATTN_OK, "the latent is written");
    tensor(&c->tv, c->v, ATTN_DTYPE_FLOAT32, 2, 2, 8, 0, 0);
    is_int(update(c), ATTN_OK, "k_pe may be flat");
    SPOIL(update, "key", c->tk.shape[1] = 8, "a latent of another rank");
    close_call(c);
    p = small_problem(ATTN_ROLE_MLA_SPARSE);
    open_call(c, context, &p, "FAKE_PLAIN");
    attn_layer_prepare_weights(c->layer, &w, NULL, &error);
    SPOIL(forward, "topk_indices", (void)0, "sparse MLA without selected tokens");
    c->f.topk_indices = &c->ttopk.t;
    is_int(forward(c), ATTN_OK, "with them");
    close_call(c);
    p = small_problem(ATTN_ROLE_DECODER);
    open_call(c, context, &p, "FAKE_PLAIN");
    is_int(attn_layer_prepare_weights(c->layer, &w, NULL, &error), ATTN_E_INVALID,
           "a dense layer has no absorbed weights");
    close_call(c);
}

/* Reserved members belong to headers that are newer than the library: what they ask for must not be
 * ignored. */
#define NEWER(CALL, STATEMENT, ...)                                                                          \
    do {                                                                                                     \
        struct call saved_ = *c;                                                                             \
        STATEMENT;                                                                                           \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == ATTN_E_TOO_NEW && strcmp(error.param, "reserved") == 0, __VA_ARGS__);                   \
        *c = saved_;                                                                                         \
    } while (0)

static void test_reserved(attn_context_t *context) {
    static struct call call, *c = &call;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_layer_t *layer = NULL;
    open_call(c, context, &p, "FAKE_PLAIN");
    NEWER(forward(c), c->f.reserved[3] = 1, "a newer attn_forward_t");
    NEWER(forward(c), c->f.reserved0 = 1, "its first word");
    NEWER(forward(c), c->buf.space.reserved0 = 1, "a newer attn_space_t");
    NEWER(attn_layer_forward(c->layer, &c->f, NULL, NULL, &error), c->f.reserved[0] = 1, "a profiling run");
    NEWER(update(c), c->u.reserved[3] = UINT64_C(1) << 63, "a newer attn_kv_update_t");
    NEWER(update(c), c->u.reserved0 = 1, "its first word");
    attn_layer_options_t o = {.struct_size = sizeof o};
    o.reserved[2] = 7;
    NEWER(attn_layer_create(c->g, "l.9", &o, &layer, &error), (void)0, "newer attn_layer_options_t");
    NEWER(attn_group_build_metadata(c->g, &c->b, &c->buf.space, NULL, &error), c->buf.space.reserved0 = 1,
          "a newer attn_space_t when metadata is built");
    c->b.reserved0 = 1;
    ok(attn_group_build_metadata(c->g, &c->b, &c->buf.space, NULL, &error) != ATTN_OK &&
           strcmp(error.param, "reserved") == 0,
       "a newer attn_batch_t");
    is_int(update(c) || forward(c), ATTN_OK, "good again");
    close_call(c);
    p = small_problem(ATTN_ROLE_MLA);
    open_call(c, context, &p, "FAKE_PLAIN");
    attn_weights_t w = {.struct_size = sizeof w};
    w.reserved[0] = 1;
    NEWER(attn_layer_prepare_weights(c->layer, &w, NULL, &error), (void)0, "newer attn_weights_t");
    close_call(c);
}

int main(void) {
    attn_context_t *context = fake_context("");
    test_metadata_of_others(context);
    test_table_of_others(context);
    test_options_of_others(context);
    test_scale_values(context);
    test_update(context);
    test_forward(context);
    test_direct(context);
    test_layer_tensors(context);
    test_rel_bias(context);
    test_write_in_forward(context);
    test_layer_places(context);
    test_mla(context);
    test_latent(context);
    test_reserved(context);
    attn_context_destroy(context);
    remove_fake();
    return tap_done();
}
