/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this build through groups and layers: every layer family, rewritten or not, against
 * attention with the family's own mask; and one backend in the other's shadow. */
#define WORLD_D         64
#define WORLD_BS        16
#define WORLD_TOLERANCE 2e-5
#include "group_world.h"

static attn_error_t error = {.struct_size = sizeof error};

static attn_context_t *real_context(const char *more) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    char text[1024];
    attn_context_t *context = NULL;
    if (dir == NULL || access(dir, R_OK) != 0) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    snprintf(text, sizeof text, "[attn]\nplugins = reference, cpu\n%s", more);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = text;
    o.plugin_dir = dir;
    o.log = keep_log;
    o.log_level = ATTN_LOG_INFO;
    logged[0] = '\0';
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    return context;
}

static attn_problem_t world_problem(enum family family, int chunk) {
    attn_problem_t p = small_problem(family == CROSS ? ATTN_ROLE_ENCODER_DECODER : ATTN_ROLE_DECODER);
    p.head_size = D;
    p.block_size = BS;
    p.num_blocks = BLOCKS;
    p.chunk_size = family == CHUNKED ? (uint32_t)chunk : 0;
    p.static_sink_len = family == STATIC_SINK ? SINK : 0;
    return p;
}

static void run_family(attn_context_t *context, const char *backend, enum family family, int chunk,
                       int rounds, const char *what) {
    static float k[SINK][1][D], v[SINK][1][D];
    struct tensor tk, tv;
    attn_problem_t p = world_problem(family, chunk);
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    fill(&k[0][0][0], SINK * D, 5);
    fill(&v[0][0][0], SINK * D, 6);
    if (attn_group_open(context, &p, &d, backend, &g, NULL, &error) != ATTN_OK) {
        skip(1, "%s does not serve %s: %s", backend, what, error.text);
        return;
    }
    struct buffers buf = alloc_buffers(g);
    attn_layer_options_t o = {.struct_size = sizeof o};
    if (family == STATIC_SINK) {
        o.sink_key = tensor(&tk, k, ATTN_DTYPE_FLOAT32, 3, SINK, 1, D, 0);
        o.sink_value = tensor(&tv, v, ATTN_DTYPE_FLOAT32, 3, SINK, 1, D, 0);
    }
    int bad = attn_layer_create(g, what, &o, &layer, &error);
    for (int i = 0; i < rounds; i++) {
        /* One world in one cache: the sink tokens are written once for each cache, so a new world needs a new
         * layer. */
        if (family == STATIC_SINK && i > 0) {
            attn_layer_destroy(layer);
            bad += attn_layer_create(g, what, &o, &layer, &error);
        }
        bad += run_once(g, layer, &buf, family, chunk, &k[0][0][0], &v[0][0][0]);
    }
    is_int(bad, 0, "%s: %d batches of %s", backend != NULL ? backend : "two", rounds, what);
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

static void run_backend(attn_context_t *context, const char *backend) {
    if (attn_context_find_backend(context, backend, &error) == NULL) {
        skip(1, "%s is not built: %s", backend, error.text);
        return;
    }
    run_family(context, backend, DECODER, 0, 40, "a decoder");
    run_family(context, backend, CHUNKED, 16, 40, "chunks of 16");
    run_family(context, backend, CHUNKED, 32, 40, "chunks of 32");
    run_family(context, backend, CROSS, 0, 40, "cross attention");
    run_family(context, backend, STATIC_SINK, 0, 20, "static sink tokens");
}

/* Decode by one backend and prefill by the other over one cache, whose rows both write and read alike; with
 * the hooks of each. */
static void run_pair(const char *decode, const char *prefill, const char *more) {
    char text[512], what[128];
    snprintf(text, sizeof text,
             "[select decoder]\ndecode_backend = %s\nprefill_backend = %s\n[select encoder_decoder]\n"
             "decode_backend = %s\nprefill_backend = %s\n%s",
             decode, prefill, decode, prefill, more);
    attn_context_t *context = real_context(text);
    if (attn_context_find_backend(context, "CPU_ATTN", NULL) == NULL ||
        attn_context_find_backend(context, "REFERENCE", NULL) == NULL) {
        skip(1, "a pair needs both backends");
        attn_context_destroy(context);
        return;
    }
    snprintf(what, sizeof what, "decode by %s, prefill by %s, over one cache", decode, prefill);
    run_family(context, NULL, DECODER, 0, 40, "a decoder");
    has_str(logged, what, "two backends agree on the cache of a decoder");
    run_family(context, NULL, CHUNKED, 16, 40, "chunks of 16");
    run_family(context, NULL, CROSS, 0, 40, "cross attention");
    run_family(context, NULL, STATIC_SINK, 0, 20, "static sink tokens");
    logged[0] = '\0';
    attn_context_destroy(context);
}

/* Results of 16 bits over a float32 model round to two neighbours now and then: what is allowed is theirs. */
static void run_short_output(attn_context_t *context) {
    enum { T = 300, H = 2, SIZE = 64 };
    static float q[T][H][SIZE], k[T][1][SIZE], v[T][1][SIZE];
    static uint16_t out[T][H][SIZE];
    static int32_t starts[2] = {0, T}, lens[1] = {T};
    struct tensor tq, tk, tv, tout, tstarts, tlens;
    attn_problem_t p = small_problem(ATTN_ROLE_ENCODER_ONLY);
    p.num_heads = H, p.num_kv_heads = 1, p.head_size = SIZE, p.max_num_batched_tokens = T,
    p.max_model_len = T;
    p.out_dtype = ATTN_DTYPE_BFLOAT16;
    attn_group_t *g = open_group(context, &p, "CPU_ATTN");
    struct buffers buf = alloc_buffers(g);
    attn_layer_t *layer = NULL;
    fill(&q[0][0][0], T * H * SIZE, 7), fill(&k[0][0][0], T * SIZE, 8), fill(&v[0][0][0], T * SIZE, 9);
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = T,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .query_start_loc = tensor(&tstarts, starts, ATTN_DTYPE_INT32, 1, 2, 0, 0, 0),
                      .seq_lens = tensor(&tlens, lens, ATTN_DTYPE_INT32, 1, 1, 0, 0, 0)};
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = tensor(&tq, q, ATTN_DTYPE_FLOAT32, 3, T, H, SIZE, 0),
                        .key = tensor(&tk, k, ATTN_DTYPE_FLOAT32, 3, T, 1, SIZE, 0),
                        .value = tensor(&tv, v, ATTN_DTYPE_FLOAT32, 3, T, 1, SIZE, 0),
                        .output = tensor(&tout, out, ATTN_DTYPE_BFLOAT16, 3, T, H, SIZE, 0)};
    if (attn_layer_create(g, "short", NULL, &layer, &error) != ATTN_OK ||
        attn_group_build_metadata(g, &b, &buf.space, NULL, &error) != ATTN_OK ||
        attn_layer_forward(layer, &f, &buf.space, NULL, &error) != ATTN_OK)
        bail_out("%s: %s", error.param, error.text);
    has_str(logged, "allowed 0.015 + 0.015", "bfloat16 results of a float32 model are compared as such");
    ok(strstr(logged, "2 [hook shadow] call") == NULL, "two roundings are no warning");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

int main(void) {
    state = tap_seed();
    attn_context_t *context = real_context("");
    run_backend(context, "REFERENCE");
    run_backend(context, "CPU_ATTN");
    attn_context_destroy(context);

    context = real_context("[hook check]\nlevel = all\n");
    run_backend(context, "REFERENCE");
    run_backend(context, "CPU_ATTN");
    attn_context_destroy(context);

    context = real_context("[hook shadow]\nbackend = REFERENCE\nsample = 3\n");
    if (attn_context_find_backend(context, "CPU_ATTN", NULL) == NULL ||
        attn_context_find_backend(context, "REFERENCE", NULL) == NULL) {
        skip(2, "the shadow needs both backends");
    } else {
        run_family(context, "CPU_ATTN", DECODER, 0, 30, "a shadowed decoder");
        has_str(logged, "REFERENCE beside CPU_ATTN: 10 of 30 calls compared",
                "the reference shadows every third call");
        diag("%s", logged);
    }
    attn_context_destroy(context);

    run_pair("CPU_ATTN", "REFERENCE", "");
    run_pair("REFERENCE", "CPU_ATTN", "[hook check]\nlevel = all\n");
    run_pair("CPU_ATTN", "REFERENCE", "[hook shadow]\nbackend = CPU_ATTN\nsample = 2\n");

    context = real_context("[hook shadow]\nbackend = REFERENCE\nsample = 1\n");
    if (attn_context_find_backend(context, "CPU_ATTN", NULL) == NULL ||
        attn_context_find_backend(context, "REFERENCE", NULL) == NULL)
        skip(2, "the shadow needs both backends");
    else
        run_short_output(context);
    attn_context_destroy(context);
    return tap_done();
}
