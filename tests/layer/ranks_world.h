/* SPDX-License-Identifier: Apache-2.0 */
/* One layer over ranks: a case, its inputs, what one rank with the whole cache computes of them in double,
 * and what each rank does. Shared by the tests with threads and with processes. */
#ifndef ATTN_TESTS_RANKS_WORLD_H
#define ATTN_TESTS_RANKS_WORLD_H

#include "layer_testing.h"

#include <attn/attn_comm.h>

enum { MAX_REQS = 8, LONGEST = 96, MAX_WORLD = 4 };

struct rank_case {
    const char *what, *backend;
    uint32_t role, dtype, heads, kv_heads, size, size_v, block_size, interleave, window, mask, join;
    int sinks;
    double soft_cap, tolerance;
    int n;
    int32_t query[MAX_REQS], seq[MAX_REQS];
};

/* Everything of one case; queries and results have the heads of all ranks. */
struct rank_world {
    struct rank_case c;
    int world, tokens, keys, all_heads, query_size, value_size, key_size, second_size;
    int32_t starts[MAX_REQS + 1], key_starts[MAX_REQS + 1];
    char *query, *key, *value,
        *weights; /* in the case's dtype: [T, heads, D], [keys, kv, D], [keys, kv, Dv] */
    float sinks[64];
    double *want;
    float *want_lse; /* [heads, T] */
};

static size_t element(const struct rank_world *w) {
    return attn_dtype_size(w->c.dtype);
}

static char *random_elements(const struct rank_world *w, size_t n, uint64_t seed, double scale) {
    char *to = malloc(n * 4 + 64);
    float *x = malloc(n * 4 + 64);
    fill(x, n, seed);
    for (size_t i = 0; i < n; i++) {
        const double v = x[i] * scale;
        if (w->c.dtype == ATTN_DTYPE_FLOAT32) ((float *)(void *)to)[i] = (float)v;
        if (w->c.dtype == ATTN_DTYPE_FLOAT16) ((uint16_t *)(void *)to)[i] = attn_to_f16(v);
        if (w->c.dtype == ATTN_DTYPE_BFLOAT16) ((uint16_t *)(void *)to)[i] = attn_to_bf16(v);
    }
    free(x);
    return to;
}

static double element_at(uint32_t dtype, const void *at, size_t i) {
    return dtype == ATTN_DTYPE_FLOAT32   ? ((const float *)at)[i]
           : dtype == ATTN_DTYPE_FLOAT64 ? ((const double *)at)[i]
           : dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(((const uint16_t *)at)[i])
                                         : attn_from_bf16(((const uint16_t *)at)[i]);
}

static attn_problem_t rank_problem(const struct rank_world *w, int world, int rank) {
    const struct rank_case *c = &w->c;
    const int is_mla = c->role == ATTN_ROLE_MLA;
    ATTN_INIT(attn_problem_t, p);
    p.role = c->role;
    p.mask = c->mask != 0 ? c->mask : (uint32_t)ATTN_MASK_CAUSAL;
    p.dtype = c->dtype;
    p.num_heads = c->heads * (world > 1 ? 1 : (uint32_t)w->world);
    p.num_kv_heads = is_mla ? 0 : c->kv_heads;
    p.head_size = c->size;
    p.head_size_v = is_mla || c->size_v == c->size ? 0 : c->size_v;
    p.block_size = c->block_size;
    p.sliding_window = c->window;
    p.scale = 0.25;
    p.logits_soft_cap = c->soft_cap;
    p.features = ATTN_F_LSE | (c->sinks ? ATTN_F_SINK : 0);
    p.max_num_seqs = MAX_REQS;
    p.max_num_batched_tokens = 256;
    p.max_model_len = LONGEST;
    p.num_blocks = 64;
    if (is_mla) p.kv_lora_rank = 16, p.qk_rope_head_dim = 8, p.qk_nope_head_dim = 12, p.v_head_dim = 10;
    if (world > 1) {
        p.dcp_world_size = (uint32_t)world;
        p.dcp_rank = (uint32_t)rank;
        p.cp_interleave = c->interleave;
    }
    return p;
}

/* One rank of `world` (1: with all heads): opens, fills its cache, attends. Results: output in out_dtype
 * [T, heads, Dv], LSE [heads, T]. comm NULL with one rank. */
static int run_rank(struct rank_world *w, attn_context_t *context, const char *backend, uint32_t out_dtype,
                    int world, int rank, const attn_comm_t *comm, const int32_t *seq, void *output,
                    float *lse, attn_error_t *error) {
    const struct rank_case *c = &w->c;
    const int is_mla = c->role == ATTN_ROLE_MLA;
    attn_problem_t p = rank_problem(w, world, rank);
    attn_device_t d = cpu();
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    p.out_dtype = out_dtype;
    int code = attn_group_open(context, &p, &d, backend, &g, NULL, error);
    if (code != ATTN_OK) return code;
    struct buffers buf = alloc_buffers(g);
    struct tensor tq, tk, tv, tc, to, tl, ts, tt, tw, tsink, tlocal;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_kv_update_t, u);
    ATTN_INIT(attn_batch_t, b);
    ATTN_INIT(attn_forward_t, a);
    ATTN_INIT(attn_weights_t, weights);
    ATTN_INIT(attn_layer_options_t, options);
    ATTN_INIT(attn_space_needed_t, need);
    const int heads = (int)p.num_heads, kv = is_mla ? 1 : (int)c->kv_heads, group = (int)c->heads / kv;
    float sinks[64];
    int64_t *slots = malloc(sizeof *slots * (size_t)(w->keys + 1));
    int32_t table[MAX_REQS * LONGEST], local[MAX_REQS];
    char *query = malloc((size_t)w->tokens * (size_t)heads * (size_t)w->query_size * 4 + 64), *cache = NULL,
         *weight_space = NULL;
    code = attn_group_kv_cache_shape(g, 0, &shape, error);
    if (code == ATTN_OK) code = attn_group_space_needed(g, &need, error);
    if (comm != NULL && code == ATTN_OK) code = attn_group_set_comm(g, comm, c->join, error);
    if (code != ATTN_OK) goto end;
    cache = aligned_alloc(64, ((size_t)shape.total_bytes + 63) / 64 * 64);
    memset(cache, 0xff, (size_t)shape.total_bytes); /* NaN: what is not the rank's must not be read */
    for (int i = 0; i < 5; i++)
        tc.shape[i] = i < (int)shape.ndim ? shape.shape[i] : 1,
        tc.strides[i] = i < (int)shape.ndim ? shape.byte_strides[i] / (shape.dtype.bits / 8) : 1;
    tc.t = (DLTensor){.data = cache,
                      .device = {kDLCPU, 0},
                      .ndim = (int)shape.ndim,
                      .dtype = shape.dtype,
                      .shape = tc.shape,
                      .strides = tc.strides};
    /* own heads of the whole query: of KV head j and rank r they are neighbours */
    for (int t = 0; t < w->tokens; t++)
        for (int h = 0; h < heads; h++) {
            const int j = h / group, whole = world > 1 ? (j * world + rank) * group + h % group : h;
            memcpy(query + ((size_t)t * heads + h) * w->query_size * element(w),
                   w->query + ((size_t)t * w->all_heads + whole) * w->query_size * element(w),
                   (size_t)w->query_size * element(w));
            sinks[h] = w->sinks[whole];
        }
    /* pages in an order of the rank's own; entries that nobody may read are out of range */
    for (int r = 0, next = 1; r < c->n; r++)
        for (int i = 0; i < LONGEST; i++) {
            const int64_t keys = attn_plan_cp_local_len(seq[r], world, rank, (int)c->interleave);
            table[r * LONGEST + i] =
                i < (keys + c->block_size - 1) / c->block_size ? (next++ * 7 + rank) % 64 : -9;
        }
    const attn_slot_params_t params = {.struct_size = sizeof params,
                                       .block_size = (int)c->block_size,
                                       .cp_world = world,
                                       .cp_rank = rank,
                                       .cp_interleave = (int)c->interleave,
                                       .num_blocks = 64};
    code =
        attn_plan_slot_mapping(&params, w->key_starts, c->seq, c->n, table, LONGEST, w->keys, slots, error);
    if (code == ATTN_OK && c->sinks)
        options.sinks = tensor(&tsink, sinks, ATTN_DTYPE_FLOAT32, 1, heads, 0, 0, 0);
    if (code == ATTN_OK) code = attn_layer_create(g, "model.layers.0.attn", &options, &layer, error);
    if (code == ATTN_OK && is_mla) {
        const int per_head = 12 + 10, rows = heads * per_head;
        weight_space = aligned_alloc(64, (need.weight_bytes + 127) / 64 * 64);
        weights.kv_b_proj = tensor(&tw, w->weights + (size_t)(world > 1 ? rank : 0) * rows * 16 * element(w),
                                   c->dtype, 2, rows, 16, 0, 0);
        weights.weight_space = weight_space;
        weights.weight_space_bytes = need.weight_bytes;
        code = attn_layer_prepare_weights(layer, &weights, NULL, error);
    }
    u.key = is_mla ? tensor(&tk, w->key, c->dtype, 2, w->keys, 16, 0, 0)
                   : tensor(&tk, w->key, c->dtype, 3, w->keys, kv, w->key_size, 0);
    u.value = is_mla ? tensor(&tv, w->value, c->dtype, 2, w->keys, 8, 0, 0)
                     : tensor(&tv, w->value, c->dtype, 3, w->keys, kv, w->second_size, 0);
    u.kv_cache = &tc.t;
    u.slot_mapping = tensor(&ts, slots, ATTN_DTYPE_INT64, 1, w->keys, 0, 0, 0);
    if (code == ATTN_OK) code = attn_layer_update_kv_cache(layer, &u, NULL, error);
    b.num_reqs = c->n;
    b.num_actual_tokens = w->tokens;
    b.query_start_loc_host = w->starts;
    b.seq_lens_host = seq;
    b.block_table = tensor(&tt, table, ATTN_DTYPE_INT32, 2, c->n, LONGEST, 0, 0);
    for (int r = 0; r < c->n; r++)
        local[r] = (int32_t)attn_plan_cp_local_len(seq[r], world, rank, (int)c->interleave);
    if (world > 1 && rank == 0)
        b.dcp_local_seq_lens = tensor(&tlocal, local, ATTN_DTYPE_INT32, 1, c->n, 0, 0, 0);
    uint8_t causal[MAX_REQS];
    for (int r = 0; r < c->n; r++)
        causal[r] = r % 2;
    if (c->mask == ATTN_MASK_PER_REQUEST) b.causal_host = causal;
    if (code == ATTN_OK) code = attn_group_build_metadata(g, &b, &buf.space, NULL, error);
    a.query = tensor(&tq, query, c->dtype, 3, w->tokens, heads, w->query_size, 0);
    a.kv_cache = &tc.t;
    a.output = tensor(&to, output, out_dtype, 3, w->tokens, heads, w->value_size, 0);
    a.lse = tensor(&tl, lse, ATTN_DTYPE_FLOAT32, 2, heads, w->tokens, 0, 0);
    memset(buf.space.workspace, 0xff, buf.space.workspace_bytes);
    if (code == ATTN_OK) code = attn_layer_forward(layer, &a, &buf.space, NULL, error);
end:
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory), free(cache), free(query), free(slots), free(weight_space);
    return code;
}

/* Inputs of a case for a world of ranks, and what one rank gets of them in double. */
static int make_rank_world(struct rank_world *w, const struct rank_case *c, int world,
                           attn_context_t *context, uint64_t seed, attn_error_t *error) {
    const int is_mla = c->role == ATTN_ROLE_MLA;
    memset(w, 0, sizeof *w);
    w->c = *c;
    w->world = world;
    w->all_heads = world * (int)c->heads;
    w->query_size = is_mla ? 20 : (int)c->size;
    w->value_size = is_mla ? 10 : (int)c->size_v;
    w->key_size = is_mla ? 16 : (int)c->size;
    w->second_size = is_mla ? 8 : (int)c->size_v;
    const size_t kv = is_mla ? 1 : c->kv_heads;
    for (int r = 0; r < c->n; r++) {
        w->starts[r + 1] = w->tokens += c->query[r];
        w->key_starts[r + 1] = w->keys += c->seq[r];
    }
    w->query =
        random_elements(w, (size_t)w->tokens * (size_t)w->all_heads * (size_t)w->query_size, seed + 1, 2);
    w->key = random_elements(w, (size_t)w->keys * kv * (size_t)w->key_size, seed + 2, 2);
    w->value = random_elements(w, (size_t)w->keys * kv * (size_t)w->second_size, seed + 3, 1);
    w->weights = random_elements(w, (size_t)w->all_heads * 22 * 16, seed + 4, 0.3);
    fill(w->sinks, (size_t)w->all_heads, seed + 5);
    for (int h = 0; h < w->all_heads; h++)
        w->sinks[h] *= 4;
    w->want = calloc((size_t)w->tokens * (size_t)w->all_heads * (size_t)w->value_size + 1, sizeof *w->want);
    w->want_lse = calloc((size_t)w->tokens * (size_t)w->all_heads + 1, sizeof *w->want_lse);
    return run_rank(w, context, "REFERENCE", ATTN_DTYPE_FLOAT64, 1, 0, NULL, c->seq, w->want, w->want_lse,
                    error);
}

static void free_rank_world(struct rank_world *w) {
    free(w->query), free(w->key), free(w->value), free(w->weights), free(w->want), free(w->want_lse);
}

/* The largest difference of a rank's results, relative to 1 + the wanted number. */
static double rank_difference(const struct rank_world *w, int rank, uint32_t out_dtype, const void *output,
                              const float *lse) {
    const int heads = (int)w->c.heads, kv = w->c.role == ATTN_ROLE_MLA ? 1 : (int)w->c.kv_heads,
              group = heads / kv;
    double worst = 0;
    for (int t = 0; t < w->tokens; t++)
        for (int h = 0; h < heads; h++) {
            const int whole = (h / group * w->world + rank) * group + h % group;
            const double l = w->want_lse[whole * w->tokens + t], got = lse[h * w->tokens + t];
            double d = l == got ? 0 : fabs(l - got) / (1 + fabs(l));
            if (!(d <= worst)) worst = d;
            for (int v = 0; v < w->value_size; v++) {
                const double x = w->want[((size_t)t * w->all_heads + whole) * w->value_size + v];
                d = fabs(x - element_at(out_dtype, output, ((size_t)t * heads + h) * w->value_size + v)) /
                    (1 + fabs(x));
                if (!(d <= worst)) worst = d; /* NaN too */
            }
        }
    return worst;
}

/* Decodes, empty shares, several query tokens, a prompt, a prompt in chunks, a request without a token. */
#define RANK_BATCH .n = 8, .query = {1, 1, 1, 4, 23, 17, 0, 1}, .seq = {1, 40, 3, 9, 23, 61, 5, 90}
#define DENSE(TYPE, HEADS, KV, SIZE, SIZE_V, BS)                                                             \
    .role = ATTN_ROLE_DECODER, .dtype = ATTN_DTYPE_##TYPE, .heads = HEADS, .kv_heads = KV, .size = SIZE,     \
    .size_v = SIZE_V, .block_size = BS, RANK_BATCH
static const struct rank_case rank_cases[] = {
    {"grouped heads", "REFERENCE", DENSE(FLOAT32, 4, 2, 16, 16, 16), .interleave = 1, .tolerance = 2e-6},
    {"one KV head, runs of 4", "REFERENCE", DENSE(FLOAT32, 2, 1, 16, 8, 16), .interleave = 4,
     .tolerance = 2e-6},
    {"runs of a page, a cap", "REFERENCE", DENSE(FLOAT32, 2, 2, 16, 16, 8), .interleave = 8, .soft_cap = 5,
     .tolerance = 2e-6},
    {"sinks", "REFERENCE", DENSE(FLOAT32, 2, 1, 16, 16, 16), .interleave = 2, .sinks = 1, .tolerance = 2e-6},
    {"a window, sinks", "REFERENCE", DENSE(FLOAT32, 2, 1, 16, 16, 16), .interleave = 2, .window = 24,
     .sinks = 1, .tolerance = 2e-6},
    {"no mask", "REFERENCE", DENSE(FLOAT32, 2, 1, 16, 16, 16), .interleave = 4, .mask = ATTN_MASK_FULL,
     .tolerance = 2e-6},
    {"a mask per request", "REFERENCE", DENSE(FLOAT32, 2, 1, 16, 16, 16), .interleave = 1,
     .mask = ATTN_MASK_PER_REQUEST, .tolerance = 2e-6},
    {"latent", "REFERENCE", .role = ATTN_ROLE_MLA, .dtype = ATTN_DTYPE_FLOAT32, .heads = 3, .kv_heads = 1,
     .size = 24, .block_size = 16, RANK_BATCH, .interleave = 1, .tolerance = 2e-6},
    {"latent, runs of 16, bfloat16", "REFERENCE", .role = ATTN_ROLE_MLA, .dtype = ATTN_DTYPE_BFLOAT16,
     .heads = 3, .kv_heads = 1, .size = 24, .block_size = 16, RANK_BATCH, .interleave = 16,
     .tolerance = 8e-3},
    {"float32", "CPU_ATTN", DENSE(FLOAT32, 4, 2, 64, 64, 16), .interleave = 1, .tolerance = 1e-5},
    {"runs of 16", "CPU_ATTN", DENSE(FLOAT32, 4, 1, 64, 64, 16), .interleave = 16, .tolerance = 1e-5},
    {"a window, sinks", "CPU_ATTN", DENSE(FLOAT32, 4, 1, 64, 64, 16), .interleave = 4, .window = 48,
     .sinks = 1, .tolerance = 1e-5},
    {"float16, sinks", "CPU_ATTN", DENSE(FLOAT16, 4, 1, 64, 64, 16), .interleave = 2, .sinks = 1,
     .tolerance = 3e-3},
    {"bfloat16", "CPU_ATTN", DENSE(BFLOAT16, 4, 1, 64, 64, 16), .interleave = 1, .tolerance = 1.5e-2},
};
enum { NUM_RANK_CASES = sizeof rank_cases / sizeof rank_cases[0] };

/* The backends of this build; a context for each rank, since names of layers are unique in one. */
static attn_context_t *rank_context(void) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    attn_error_t error = ERROR_INIT;
    attn_context_t *context = NULL;
    if (dir == NULL || access(dir, R_OK) != 0) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = "[attn]\nplugins = reference, cpu\n[option cpu]\nnum_threads = 1\n";
    o.plugin_dir = dir;
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    return context;
}

#endif
