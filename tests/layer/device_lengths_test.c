/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths on the device (semantics 1.6) through groups and layers, on a CPU: a step built once for bounds
 * follows the lengths in its tensors, and equals steps that are built for them; lengths beyond the bounds are
 * refused; the hooks that look at lengths step aside. */
#include "layer_testing.h"

enum { REQS = 4, BS = 16, BLOCKS = 40, COLUMNS = 9, STEPS = 5, D = 32, HEADS = 4, TOKENS = 16 };

static attn_error_t error = {.struct_size = sizeof error};
static uint64_t state;

static float uniform(void) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (float)((double)(state >> 40) * 0x1p-23 - 1);
}

static float cache[BLOCKS * BS * 2 * 2 * D], query[TOKENS][HEADS][D], out[TOKENS][HEADS][D],
    want[TOKENS][HEADS][D];
static float lse[HEADS][TOKENS], want_lse[HEADS][TOKENS];
static int32_t table[REQS][COLUMNS], starts[REQS + 1], lens[REQS];
static const int32_t most_query[REQS] = {1, 4, 3, 2}, most_len[REQS] = {140, 100, 33, 70};

struct step {
    attn_group_t *g;
    attn_layer_t *layer;
    struct buffers buf;
    attn_batch_t batch;
    attn_forward_t call;
    struct tensor t_starts, t_lens, t_table, t_cache, t_query, t_out, t_lse;
    int32_t most_starts[REQS + 1];
};

static int open_step(struct step *s, attn_context_t *context, const char *backend, uint64_t features) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    p.head_size = D, p.num_heads = HEADS, p.num_kv_heads = 2, p.block_size = BS, p.num_blocks = BLOCKS;
    p.kv_layout = ATTN_LAYOUT_NHD;
    p.max_model_len = 160;
    p.features = features | ATTN_F_LSE;
    memset(s, 0, sizeof *s);
    if (attn_group_open(context, &p, &d, backend, &s->g, NULL, &error) != ATTN_OK ||
        attn_layer_create(s->g, features ? "device" : "host", NULL, &s->layer, &error) != ATTN_OK ||
        attn_group_kv_cache_shape(s->g, BLOCKS, &shape, &error) != ATTN_OK)
        return 0;
    s->buf = alloc_buffers(s->g);
    for (int r = 0; r < REQS; r++)
        s->most_starts[r + 1] = s->most_starts[r] + most_query[r];
    s->batch = (attn_batch_t){.struct_size = sizeof s->batch, .num_reqs = REQS};
    s->batch.query_start_loc = tensor(&s->t_starts, starts, ATTN_DTYPE_INT32, 1, REQS + 1, 0, 0, 0);
    s->batch.seq_lens = tensor(&s->t_lens, lens, ATTN_DTYPE_INT32, 1, REQS, 0, 0, 0);
    s->batch.block_table = tensor(&s->t_table, table, ATTN_DTYPE_INT32, 2, REQS, COLUMNS, 0, 0);
    s->call = (attn_forward_t){.struct_size = sizeof s->call};
    s->call.query = tensor(&s->t_query, query, ATTN_DTYPE_FLOAT32, 3, TOKENS, HEADS, D, 0);
    tensor(&s->t_cache, cache, ATTN_DTYPE_FLOAT32, 4, shape.shape[0], shape.shape[1], shape.shape[2],
           shape.shape[3]);
    for (int i = 0; i < 4; i++)
        s->t_cache.strides[i] = shape.byte_strides[i] / 4;
    s->call.kv_cache = &s->t_cache.t;
    return 1;
}

static int build(struct step *s, const int32_t *host_starts, const int32_t *host_lens) {
    s->batch.query_start_loc_host = host_starts;
    s->batch.seq_lens_host = host_lens;
    s->batch.num_actual_tokens = host_starts[REQS];
    return attn_group_build_metadata(s->g, &s->batch, &s->buf.space, NULL, &error);
}

static int run(struct step *s, float *to, float *to_lse) {
    s->call.output = tensor(&s->t_out, to, ATTN_DTYPE_FLOAT32, 3, TOKENS, HEADS, D, 0);
    s->call.lse = tensor(&s->t_lse, to_lse, ATTN_DTYPE_FLOAT32, 2, HEADS, TOKENS, 0, 0);
    return attn_layer_forward(s->layer, &s->call, &s->buf.space, NULL, &error);
}

static void close_step(struct step *s) {
    attn_layer_destroy(s->layer);
    attn_group_close(s->g);
    free(s->buf.memory);
}

/* Step i: lengths grow to the bounds; the tokens of a request come and go, down to none. */
static void set_lengths(int i) {
    starts[0] = 0;
    for (int r = 0; r < REQS; r++) {
        const int32_t now =
            i == STEPS - 1 ? most_query[r] : (most_query[r] * (r + i + 1)) % (most_query[r] + 1);
        starts[r + 1] = starts[r] + now;
        lens[r] = now + (most_len[r] - most_query[r]) * (i + 1) / STEPS;
    }
}

static void test_steps(attn_context_t *context, const char *backend) {
    struct step on_device, on_host;
    if (!open_step(&on_device, context, backend, ATTN_F_DEVICE_LENGTHS) ||
        !open_step(&on_host, context, backend, 0))
        bail_out("%s: %s", backend, error.text);
    set_lengths(2); /* whatever is there when it is built */
    int code = build(&on_device, on_device.most_starts, most_len), bad = 0;
    for (int i = 0; i < STEPS && code == ATTN_OK; i++) {
        set_lengths(i);
        memset(out, 0x7e, sizeof out);
        memset(want, 0x7e, sizeof want);
        code = run(&on_device, &out[0][0][0], &lse[0][0]);
        if (code == ATTN_OK) code = build(&on_host, starts, lens);
        if (code == ATTN_OK) code = run(&on_host, &want[0][0][0], &want_lse[0][0]);
        for (int t = 0; t < TOKENS; t++) /* rows behind the last stay as they were, in both */
            for (int h = 0; h < HEADS; h++) {
                for (int d = 0; d < D; d++)
                    bad += !(fabsf(out[t][h][d] - want[t][h][d]) <= 2e-5f);
                if (t < starts[REQS]) bad += !(fabsf(lse[h][t] - want_lse[h][t]) <= 2e-5f);
            }
    }
    if (!ok(code == ATTN_OK && bad == 0, "%s: %d steps of one build equal steps built for their lengths",
            backend, STEPS))
        diag("code %d, '%s', %d numbers differ", code, error.text, bad);

    set_lengths(STEPS - 1);
    lens[1]++;
    is_int(run(&on_device, &out[0][0][0], &lse[0][0]), ATTN_E_INVALID,
           "a length beyond its bound is refused");
    has_str(error.text, "seq_lens[1] is 101 on the device", "by request and number");
    set_lengths(STEPS - 1);
    starts[2]++, starts[3]++, starts[4]++;
    is_int(run(&on_device, &out[0][0][0], &lse[0][0]), ATTN_E_INVALID, "more tokens than their bound, too");
    has_str(error.text, "request 1 5 tokens", "by request and number");
    set_lengths(0);
    lens[0] = -1;
    is_int(run(&on_device, &out[0][0][0], &lse[0][0]), ATTN_E_INVALID, "and a negative length");
    set_lengths(0);
    is_int(run(&on_device, &out[0][0][0], &lse[0][0]), ATTN_OK, "the next call is as before");
    close_step(&on_device);
    close_step(&on_host);
}

static attn_context_t *real_context(const char *more) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    char text[512];
    attn_context_t *context = NULL;
    if (dir == NULL || access(dir, R_OK) != 0) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    snprintf(text, sizeof text, "[attn]\nplugins = reference, cpu\n%s", more);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = text;
    o.plugin_dir = dir;
    o.log = keep_log;
    o.log_level = ATTN_LOG_INFO;
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    return context;
}

int main(void) {
    state = tap_seed();
    for (size_t i = 0; i < sizeof cache / sizeof cache[0]; i++)
        cache[i] = uniform();
    for (int i = 0; i < TOKENS * HEADS * D; i++)
        (&query[0][0][0])[i] = uniform();
    for (int r = 0; r < REQS; r++)
        for (int c = 0; c < COLUMNS; c++)
            table[r][c] = 1 + (r * COLUMNS + c) % (BLOCKS - 1);
    static const char *const hooks[] = {"", "[hook check]\nlevel = all\n",
                                        "[hook shadow]\nbackend = REFERENCE\n"};
    for (int i = 0; i < 3; i++) {
        attn_context_t *context = real_context(hooks[i]);
        test_steps(context, "REFERENCE");
        if (attn_context_find_backend(context, "CPU_ATTN", NULL) != NULL)
            test_steps(context, "CPU_ATTN");
        else
            skip(7, "CPU_ATTN is not built");
        attn_context_destroy(context);
    }
    has_str(logged, "lengths on the device do not say which rows have a result",
            "the shadow says why it stays away");
    return tap_done();
}
