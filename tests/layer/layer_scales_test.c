/* SPDX-License-Identifier: Apache-2.0 */
/* Where the scales of a layer come from: the loading table of semantics 3.3, tensors, the first
 * activations. */
#include "layer_testing.h"

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = error.text[0] = '\0';                                                               \
        int code_ = (CALL);                                                                                  \
        if (!ok(code_ == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__))           \
            diag("code %d, param '%s', text '%s'", code_, error.param, error.text);                          \
    } while (0)

static attn_group_t *group_of(attn_context_t *context, uint32_t kv, uint64_t features) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.kv_cache_dtype = kv;
    p.num_kv_heads = 2;
    p.features = features;
    return open_group(context, &p, "FAKE_PLAIN");
}

/* Creates a layer with numbers as loaded and says whether the three scales are what was wanted. */
static int scales_are(attn_group_t *g, const attn_layer_options_t *o, float q, float k, float v) {
    attn_layer_t *layer = NULL;
    float have[3] = {0};
    if (attn_layer_create(g, "l.0", o, &layer, &error) != ATTN_OK) {
        diag("%s: %s", error.param, error.text);
        return 0;
    }
    attn_layer_scales(layer, &have[0], &have[1], &have[2]);
    attn_layer_destroy(layer);
    int same = have[0] == q && have[1] == k && have[2] == v;
    if (!same) diag("have %g %g %g", (double)have[0], (double)have[1], (double)have[2]);
    return same;
}

static void test_loading(attn_context_t *context) {
    attn_group_t *fp8 = group_of(context, ATTN_KV_FP8_E4M3, 0), *plain = group_of(context, ATTN_KV_AUTO, 0),
                 *rows = group_of(context, ATTN_KV_INT8_PER_TOKEN_HEAD, 0);
    attn_layer_options_t o = {.struct_size = sizeof o};
    logged[0] = '\0';
    ok(scales_are(fp8, &o, 1, 1, 1), "nothing loaded: 1");
    has_str(logged, "k_scale and v_scale 1.0", "with a warning");
    logged[0] = '\0';
    ok(scales_are(fp8, NULL, 1, 1, 1), "no options: 1");
    is_str(logged, "", "which is said once in a context");
    o.k_scale = 0.5f, o.v_scale = 0.25f;
    ok(scales_are(fp8, &o, 1, 0.5f, 0.25f), "both loaded: both used");
    o.v_scale = 0;
    ok(scales_are(fp8, &o, 1, 0.5f, 0.5f), "k alone serves for v");
    o.v_scale = -1;
    ok(scales_are(fp8, &o, 1, 0.5f, 0.5f), "-1 is absent, too");
    o.k_scale = -1, o.v_scale = 0.75f;
    ok(scales_are(fp8, &o, 1, 0.75f, 0.75f), "v alone serves for k");
    o.q_scale = 2;
    ok(scales_are(fp8, &o, 2, 0.75f, 0.75f), "q");
    ok(scales_are(plain, &o, 1, 1, 1), "an unquantised cache: all 1");
    ok(scales_are(rows, &o, 1, 1, 1), "a scale per row: all 1");
    attn_problem_t sparse = small_problem(ATTN_ROLE_MLA_SPARSE);
    sparse.kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
    sparse.dtype = ATTN_DTYPE_BFLOAT16;
    sparse.kv_lora_rank = 512, sparse.qk_rope_head_dim = 64, sparse.head_size = 576;
    attn_group_t *ds = open_group(context, &sparse, "FAKE_PLAIN");
    ok(scales_are(ds, &o, 1, 1, 1), "scales in the rows of fp8_ds_mla: all 1");
    attn_group_close(ds);
    o.k_scale = NAN;
    attn_layer_t *layer = NULL;
    BAD(attn_layer_create(fp8, "l.0", &o, &layer, &error), ATTN_E_INVALID, "k_scale", "NaN");
    o.k_scale = 0, o.q_scale = INFINITY;
    BAD(attn_layer_create(fp8, "l.0", &o, &layer, &error), ATTN_E_INVALID, "q_scale", "infinity");
    o.q_scale = 2, o.reserved0 = 1;
    BAD(attn_layer_create(fp8, "l.0", &o, &layer, &error), ATTN_E_TOO_NEW, "reserved", "a reserved member");
    o.reserved0 = 0, o.calculate_kv_scales = 2;
    BAD(attn_layer_create(fp8, "l.0", &o, &layer, &error), ATTN_E_INVALID, "calculate_kv_scales",
        "neither yes nor no");
    attn_group_close(fp8);
    attn_group_close(plain);
    attn_group_close(rows);

    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.query_dtype = ATTN_DTYPE_FP8_E4M3, p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    attn_group_t *quant = open_group(context, &p, "FAKE_PLAIN");
    o = (attn_layer_options_t){.struct_size = sizeof o, .k_scale = 0.5f, .v_scale = 0.5f};
    logged[0] = '\0';
    ok(scales_are(quant, &o, 1, 0.5f, 0.5f), "an fp8 query without q_scale");
    has_str(logged, "the fp8 query has q_scale 1.0", "is warned about");
    attn_group_close(quant);
    p.kv_cache_dtype = ATTN_KV_AUTO;
    attn_group_t *query_only = open_group(context, &p, "FAKE_PLAIN");
    o.q_scale = 4;
    ok(scales_are(query_only, &o, 4, 1, 1), "an fp8 query over a plain cache keeps its scale");
    attn_group_close(query_only);
    p.kv_cache_dtype = ATTN_KV_INT8_PER_TOKEN_HEAD;
    attn_group_t *query_rows = open_group(context, &p, "FAKE_PLAIN");
    ok(scales_are(query_rows, &o, 4, 1, 1), "and over a cache with a scale per row");
    attn_group_close(query_rows);
}

static void test_tensors(attn_context_t *context) {
    attn_group_t *one = group_of(context, ATTN_KV_FP8_E4M3, 0),
                 *heads = group_of(context, ATTN_KV_FP8_E4M3, ATTN_F_PER_HEAD_SCALES);
    float numbers[4] = {0.5f, 0.25f, 2, 3};
    struct tensor single, other, pair, triple, wide;
    const DLTensor *s = tensor(&single, numbers, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0),
                   *s1 = tensor(&other, numbers + 1, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0),
                   *two = tensor(&pair, numbers, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0),
                   *three = tensor(&triple, numbers, ATTN_DTYPE_FLOAT32, 1, 3, 0, 0, 0),
                   *bf16 = tensor(&wide, numbers, ATTN_DTYPE_BFLOAT16, 1, 1, 0, 0, 0);
    attn_layer_options_t o = {
        .struct_size = sizeof o, .k_scale = 9, .v_scale = 9, .scales = {.k = s, .v = s1}};
    attn_layer_t *layer = NULL;
    ok(scales_are(one, &o, 1, 0.5f, 0.25f), "tensors replace numbers");
    o.scales = (attn_scales_t){.k = two, .v = two};
    BAD(attn_layer_create(one, "l.0", &o, &layer, &error), ATTN_E_INVALID, "k_scale",
        "per head without the feature");
    is_int(attn_layer_create(heads, "l.0", &o, &layer, &error), ATTN_OK, "per head with it");
    attn_layer_destroy(layer);
    o.scales.v = s;
    BAD(attn_layer_create(heads, "l.0", &o, &layer, &error), ATTN_E_INVALID, "v_scale",
        "k per head and v per tensor");
    o.scales.v = NULL;
    BAD(attn_layer_create(heads, "l.0", &o, &layer, &error), ATTN_E_INVALID, "v_scale", "k without v");
    o.scales = (attn_scales_t){.k = three, .v = three};
    BAD(attn_layer_create(heads, "l.0", &o, &layer, &error), ATTN_E_INVALID, "k_scale",
        "three numbers for two heads");
    o.scales = (attn_scales_t){.q = bf16};
    BAD(attn_layer_create(heads, "l.0", &o, &layer, &error), ATTN_E_INVALID, "q_scale", "bfloat16");
    attn_group_close(one);
    attn_group_close(heads);
}

/* A step of two tokens through update and forward. */
struct step {
    float q[2][2][8], k[2][2][8], v[2][2][8], out[2][2][8];
    uint8_t cache[32 * 4 * 2 * 16];
    int64_t slots[2];
    int32_t starts[2], lens[1], table[1];
    struct tensor tq, tk, tv, tout, tcache, tslots, ttable;
    attn_batch_t b;
    attn_kv_update_t u;
    attn_forward_t f;
};

static void make_step(struct step *s) {
    memset(s, 0, sizeof *s);
    s->q[0][1][3] = -50, s->q[1][0][0] = 40;
    s->k[0][0][1] = 20, s->k[1][1][7] = -30;
    s->v[1][0][2] = 5;
    s->starts[1] = s->lens[0] = 2, s->table[0] = 1, s->slots[0] = 4, s->slots[1] = 5;
    s->b = (attn_batch_t){.struct_size = sizeof s->b,
                          .num_reqs = 1,
                          .num_actual_tokens = 2,
                          .query_start_loc_host = s->starts,
                          .seq_lens_host = s->lens,
                          .block_table = tensor(&s->ttable, s->table, ATTN_DTYPE_INT32, 2, 1, 1, 0, 0)};
    s->u = (attn_kv_update_t){.struct_size = sizeof s->u,
                              .key = tensor(&s->tk, s->k, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0),
                              .value = tensor(&s->tv, s->v, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0),
                              .kv_cache = tensor(&s->tcache, s->cache, ATTN_DTYPE_UINT8, 4, 32, 2, 4, 16),
                              .slot_mapping = tensor(&s->tslots, s->slots, ATTN_DTYPE_INT64, 1, 2, 0, 0, 0)};
    s->f = (attn_forward_t){.struct_size = sizeof s->f,
                            .query = tensor(&s->tq, s->q, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0),
                            .output = tensor(&s->tout, s->out, ATTN_DTYPE_FLOAT32, 3, 2, 2, 8, 0),
                            .kv_cache = &s->tcache.t};
}

static void test_dynamic(attn_context_t *context) {
    static struct step s;
    attn_group_t *g = group_of(context, ATTN_KV_FP8_E4M3, 0);
    struct buffers buf = alloc_buffers(g);
    attn_layer_options_t o = {.struct_size = sizeof o, .calculate_kv_scales = 1, .k_scale = 9, .v_scale = 9};
    attn_layer_t *layer = NULL;
    float q = 0, k = 0, v = 0;
    make_step(&s);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "a layer that measures");
    attn_layer_scales(layer, &q, &k, &v);
    ok(k == 1 && v == 1, "starts from 1, whatever was loaded");
    is_int(attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error), ATTN_OK, "build");
    is_int(attn_layer_forward(layer, &s.f, NULL, NULL, &error), ATTN_OK, "the profiling run");
    attn_layer_scales(layer, &q, &k, &v);
    ok(q == 1 && k == 1, "measures nothing");
    is_int(attn_layer_update_kv_cache(layer, &s.u, NULL, &error), ATTN_OK, "the first write");
    attn_layer_scales(layer, &q, &k, &v);
    ok(q == 1 && k == 30.0f / 200 && v == 5.0f / 100, "max|K| / 200 and max|V| / 100");
    ok(fake_log_of(g)->k_scale == k && fake_log_of(g)->v_scale == v, "which it already uses");
    is_int(attn_layer_forward(layer, &s.f, &buf.space, NULL, &error), ATTN_OK, "the first forward");
    attn_layer_scales(layer, &q, &k, &v);
    ok(q == 50.0f / 200 && fake_log_of(g)->q_scale == q && fake_log_of(g)->k_scale == k, "max|Q| / 200");
    s.q[0][0][0] = 1000, s.k[0][0][0] = 1000;
    attn_layer_update_kv_cache(layer, &s.u, NULL, &error);
    attn_layer_forward(layer, &s.f, &buf.space, NULL, &error);
    attn_layer_scales(layer, &q, &k, &v);
    ok(q == 50.0f / 200 && k == 30.0f / 200, "once and for all");
    attn_layer_destroy(layer);

    make_step(&s);
    memset(s.v, 0, sizeof s.v);
    s.k[0][0][1] = INFINITY, s.k[0][0][2] = NAN;
    attn_layer_create(g, "l.0", &o, &layer, &error);
    attn_layer_update_kv_cache(layer, &s.u, NULL, &error);
    attn_layer_scales(layer, &q, &k, &v);
    ok(k == 30.0f / 200 && v == 1, "infinities do not count, and all zeros give 1");
    attn_layer_destroy(layer);

    o.q_scale = 0.125f;
    ok(scales_are(g, &o, 0.125f, 9, 9), "a loaded q_scale switches measuring off");

    /* Tensors are where the numbers go, as on a device, whatever they held before. */
    float numbers[3] = {7, 8, 9}, pair[2] = {1, 1};
    struct tensor tnumbers[3], tpair;
    make_step(&s);
    o.q_scale = 0;
    o.scales.q = tensor(&tnumbers[0], &numbers[0], ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    o.scales.k = tensor(&tnumbers[1], &numbers[1], ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    o.scales.v = tensor(&tnumbers[2], &numbers[2], ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "a layer that measures into tensors");
    attn_layer_update_kv_cache(layer, &s.u, NULL, &error);
    attn_layer_forward(layer, &s.f, &buf.space, NULL, &error);
    ok(numbers[0] == 50.0f / 200 && numbers[1] == 30.0f / 200 && numbers[2] == 5.0f / 100,
       "they hold what was measured (%g, %g, %g)", (double)numbers[0], (double)numbers[1],
       (double)numbers[2]);
    attn_layer_scales(layer, &q, &k, &v);
    ok(q == numbers[0] && k == numbers[1] && v == numbers[2], "as attn_layer_scales says");
    ok(fake_log_of(g)->k_scale == numbers[1] && fake_log_of(g)->q_scale == numbers[0],
       "and the backend reads");
    attn_layer_destroy(layer);
    attn_group_t *heads = group_of(context, ATTN_KV_FP8_E4M3, ATTN_F_PER_HEAD_SCALES);
    o.scales.k = o.scales.v = tensor(&tpair, pair, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    BAD(attn_layer_create(heads, "l.0", &o, &layer, &error), ATTN_E_INVALID, "k_scale",
        "one number for two heads");
    attn_group_close(heads);
    o.scales = (attn_scales_t){NULL, NULL, NULL};
    attn_group_close(g);
    free(buf.memory);
    attn_group_t *plain = group_of(context, ATTN_KV_AUTO, 0);
    o.q_scale = 0;
    ok(scales_are(plain, &o, 1, 1, 1), "nothing to measure for a plain cache");
    attn_group_close(plain);
}

/* A dense query that arrives as e4m3 was divided by its scale already: codes are nothing to measure a scale
 * on. */
static void test_dynamic_fp8_query(attn_context_t *context) {
    static struct step s;
    static uint8_t codes[2][2][8];
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3, p.num_kv_heads = 2;
    p.query_dtype = ATTN_DTYPE_FP8_E4M3;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    struct buffers buf = alloc_buffers(g);
    attn_layer_options_t o = {.struct_size = sizeof o, .calculate_kv_scales = 1};
    attn_layer_t *layer = NULL;
    float q = 0, k = 0;
    make_step(&s);
    memset(codes, 0x7e, sizeof codes); /* 448 */
    s.f.query = tensor(&s.tq, codes, ATTN_DTYPE_FP8_E4M3, 3, 2, 2, 8, 0);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK,
           "a layer with fp8 queries that measures");
    is_int(attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error), ATTN_OK, "its batch");
    is_int(attn_layer_update_kv_cache(layer, &s.u, NULL, &error), ATTN_OK, "its first write");
    if (!is_int(attn_layer_forward(layer, &s.f, &buf.space, NULL, &error), ATTN_OK, "its first forward"))
        diag("%s: %s", error.param, error.text);
    attn_layer_scales(layer, &q, &k, NULL);
    ok(q == 1 && k == 30.0f / 200, "measures keys, not the codes of queries (q_scale %g)", (double)q);
    attn_layer_destroy(layer);
    o.q_scale = 0.25f;
    attn_layer_create(g, "l.0", &o, &layer, &error);
    attn_layer_update_kv_cache(layer, &s.u, NULL, &error);
    attn_layer_scales(layer, &q, &k, NULL);
    ok(q == 0.25f && k == 30.0f / 200, "with the scale of the codes given, too (%g, %g)", (double)q,
       (double)k);
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

/* Latent attention: both scales of the cache come from kv_c, whatever k_pe holds. */
static void test_latent(attn_context_t *context) {
    static float kv_c[2][16], k_pe[2][8];
    static uint8_t cache[32 * 4 * 24];
    int64_t slots[2] = {4, 5};
    struct tensor tk, tv, tcache, tslots;
    attn_problem_t p = small_problem(ATTN_ROLE_MLA);
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    attn_layer_options_t o = {.struct_size = sizeof o, .calculate_kv_scales = 1};
    attn_layer_t *layer = NULL;
    float k = 0, v = 0;
    kv_c[1][15] = -30, k_pe[0][0] = 500;
    attn_kv_update_t u = {.struct_size = sizeof u,
                          .key = tensor(&tk, kv_c, ATTN_DTYPE_FLOAT32, 2, 2, 16, 0, 0),
                          .value = tensor(&tv, k_pe, ATTN_DTYPE_FLOAT32, 2, 2, 8, 0, 0),
                          .kv_cache = tensor(&tcache, cache, ATTN_DTYPE_UINT8, 3, 32, 4, 24, 0),
                          .slot_mapping = tensor(&tslots, slots, ATTN_DTYPE_INT64, 1, 2, 0, 0, 0)};
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "a latent layer that measures");
    is_int(attn_layer_update_kv_cache(layer, &u, NULL, &error), ATTN_OK, "its first write");
    attn_layer_scales(layer, NULL, &k, &v);
    ok(k == 30.0f / 200 && v == 30.0f / 100, "max|kv_c| / 200 and / 100");
    ok(fake_log_of(g)->k_scale == k, "which it already uses");
    attn_layer_destroy(layer);
    attn_group_close(g);
}

/* The call's own scales win over the layer's. */
static void test_precedence(attn_context_t *context) {
    static struct step s;
    attn_group_t *g = group_of(context, ATTN_KV_FP8_E4M3, 0);
    struct buffers buf = alloc_buffers(g);
    attn_layer_options_t o = {.struct_size = sizeof o, .k_scale = 0.5f, .v_scale = 0.25f};
    attn_layer_t *layer = NULL;
    float number = 7;
    struct tensor t;
    make_step(&s);
    attn_layer_create(g, "l.0", &o, &layer, &error);
    attn_group_build_metadata(g, &s.b, &buf.space, NULL, &error);
    attn_layer_forward(layer, &s.f, &buf.space, NULL, &error);
    ok(fake_log_of(g)->k_scale == 0.5f && fake_log_of(g)->v_scale == 0.25f && fake_log_of(g)->q_scale == 1,
       "the layer's scales");
    s.f.scales.k = tensor(&t, &number, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    attn_layer_forward(layer, &s.f, &buf.space, NULL, &error);
    ok(fake_log_of(g)->k_scale == 7 && fake_log_of(g)->v_scale == 0.25f, "give way to the call's");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

/* int8 with static scales of V's channels (semantics 3.8). */
static void test_channels(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.kv_cache_dtype = ATTN_KV_INT8_STATIC_V, p.num_kv_heads = 2;
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    const int64_t size = p.head_size;
    float numbers[64];
    struct tensor all, wrong, flat, single;
    for (int i = 0; i < 64; i++)
        numbers[i] = 0.5f;
    attn_layer_options_t o = {.struct_size = sizeof o};
    attn_layer_t *layer = NULL;
    logged[0] = '\0';
    o.scales.v = tensor(&all, numbers, ATTN_DTYPE_FLOAT32, 2, 2, size, 0, 0);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "one scale for each head and channel");
    attn_layer_destroy(layer);
    is_str(logged, "", "which is not called uncalibrated");
    o.scales.v = tensor(&wrong, numbers, ATTN_DTYPE_FLOAT32, 2, 2, size - 1, 0, 0);
    BAD(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID, "v_scale", "another head size");
    o.scales.v = tensor(&flat, numbers, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    BAD(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID, "v_scale", "one for each head");
    o.scales.v = tensor(&single, numbers, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    o.scales.k = o.scales.v;
    BAD(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID, "k_scale", "a k_scale beside it");
    o.scales = (attn_scales_t){0};
    o.calculate_kv_scales = 1;
    BAD(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_UNSUPPORTED, "calculate_kv_scales",
        "scales from the first call");
    o.calculate_kv_scales = 0, o.v_scale = 0.25f, o.k_scale = 3;
    ok(scales_are(g, &o, 1, 1, 0.25f), "one number for all channels; the rows of K have their own");
    o.k_scale = 0, o.v_scale = 0, o.scales.v = tensor(&all, numbers, ATTN_DTYPE_FLOAT32, 2, 2, size, 0, 0);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "a layer");
    static struct step s;
    make_step(&s);
    tensor(&s.tcache, s.cache, ATTN_DTYPE_UINT8, 4, 16, 2, 4, 20);
    const float bad[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        numbers[size + 1] = bad[i]; /* head 1, channel 1 */
        BAD(attn_layer_update_kv_cache(layer, &s.u, NULL, &error), ATTN_E_INVALID, "v_scale", "a scale of %g",
            (double)bad[i]);
        has_str(error.text, "v_scale[1][1]", "by its place");
    }
    attn_layer_destroy(layer);
    attn_group_close(g);
}

/* The constants of a configuration in place of 200, 200 and 100. */
static void test_constants(void) {
    static struct step s;
    attn_context_t *context = fake_context("[attn]\nk_scale_constant = 60\nv_scale_constant = 2.5\n");
    attn_group_t *g = group_of(context, ATTN_KV_FP8_E4M3, 0);
    attn_layer_options_t o = {.struct_size = sizeof o, .calculate_kv_scales = 1};
    attn_layer_t *layer = NULL;
    float q = 0, k = 0, v = 0;
    make_step(&s);
    attn_layer_create(g, "l.0", &o, &layer, &error);
    is_int(attn_layer_update_kv_cache(layer, &s.u, NULL, &error), ATTN_OK, "the first write");
    attn_layer_scales(layer, &q, &k, &v);
    ok(k == 30.0F / 60 && v == 5.0F / 2.5F, "max|K| / 60 and max|V| / 2.5 by configuration: %g and %g",
       (double)k, (double)v);
    attn_layer_destroy(layer);
    attn_group_close(g);
    attn_context_destroy(context);
    context = fake_context("[attn]\nk_scale_constant = 1e300\n");
    g = group_of(context, ATTN_KV_FP8_E4M3, 0);
    attn_layer_create(g, "l.0", &o, &layer, &error);
    BAD(attn_layer_update_kv_cache(layer, &s.u, NULL, &error), ATTN_E_INVALID, "k_scale_constant",
        "a constant that makes a scale of 0 is refused where it is used");
    attn_layer_destroy(layer);
    attn_group_close(g);
    attn_context_destroy(context);
}

int main(void) {
    test_constants();
    attn_context_t *context = fake_context("");
    test_loading(context);
    test_tensors(context);
    test_dynamic(context);
    test_dynamic_fp8_query(context);
    test_latent(context);
    test_precedence(context);
    test_channels(context);
    attn_context_destroy(context);
    remove_fake();
    return tap_done();
}
