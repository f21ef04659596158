/* SPDX-License-Identifier: Apache-2.0 */
/* One layer over ranks: a case, its inputs, what one rank with the whole cache computes of them in double,
 * and what each rank does. Shared by the tests with threads and with processes. */
#ifndef ATTN_TESTS_RANKS_WORLD_H
#define ATTN_TESTS_RANKS_WORLD_H

#include "layer_testing.h"

#include <attn/attn_comm.h>
#include <attn/draft/attn_device.h>

enum { MAX_REQS = 8, LONGEST = 96, MAX_WORLD = 4, MAX_HEADS = 128 /* of all ranks */ };

/* Inputs beside random ones. */
enum {
    RANK_CONSTANT_VALUES = 1, /* so any weights give the constant */
    RANK_LARGE_MEAN,          /* of the values: 100, where they differ by 1 */
    RANK_LOUD_CHANNEL,        /* one of keys and one of values is 100 times the others */
    RANK_FORMAT_ENDS,         /* values of either sign, of which 128 add up to the largest of the format */
    RANK_FORMAT_END           /* the largest value of the format, and equal keys */
};

struct rank_case {
    const char *what, *backend;
    uint32_t role, dtype, heads, kv_heads, size, size_v, block_size, interleave, window, mask, join;
    int sinks;
    uint32_t latent, rope, nope, value; /* of latent attention; 0: 16, 8, 12, 10 */
    int absorbed;                       /* latent in, latent out */
    double soft_cap, tolerance;
    int hard; /* RANK_*, 0: random */
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
    float sinks[MAX_HEADS];
    double *want;
    float *want_lse; /* [heads, T] */
};

static uint32_t or_else(uint32_t a, uint32_t b) {
    return a != 0 ? a : b;
}

static size_t element(const struct rank_world *w) {
    return attn_dtype_size(w->c.dtype);
}

static void set_element(const struct rank_world *w, char *to, size_t i, double v) {
    if (w->c.dtype == ATTN_DTYPE_FLOAT32) ((float *)(void *)to)[i] = (float)v;
    if (w->c.dtype == ATTN_DTYPE_FLOAT16) ((uint16_t *)(void *)to)[i] = attn_to_f16(v);
    if (w->c.dtype == ATTN_DTYPE_BFLOAT16) ((uint16_t *)(void *)to)[i] = attn_to_bf16(v);
}

static char *random_elements(const struct rank_world *w, size_t n, uint64_t seed, double scale) {
    char *to = malloc(n * 4 + 64);
    float *x = malloc(n * 4 + 64);
    fill(x, n, seed);
    for (size_t i = 0; i < n; i++)
        set_element(w, to, i, x[i] * scale);
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
    if (is_mla) {
        p.kv_lora_rank = or_else(c->latent, 16), p.qk_rope_head_dim = or_else(c->rope, 8);
        p.qk_nope_head_dim = or_else(c->nope, 12), p.v_head_dim = or_else(c->value, 10);
        p.head_size = p.kv_lora_rank + p.qk_rope_head_dim;
        if (c->absorbed) p.features |= ATTN_F_LATENT, p.qk_nope_head_dim = p.v_head_dim = 0;
    }
    if (world > 1) {
        p.dcp_world_size = (uint32_t)world;
        p.dcp_rank = (uint32_t)rank;
        p.cp_interleave = c->interleave;
    }
    return p;
}

/* Where the ranks run; one rank that gives the wanted numbers runs on the CPU. */
static attn_device_t rank_device = {.struct_size = sizeof rank_device, .type = kDLCPU};
static const attn_device_t *rank_own_device[MAX_WORLD]; /* of a rank, where it is not that of all */

static _Thread_local void *rank_stream; /* of a rank's steps */
/* Ranks that share a device begin their layer together: some calls wait there for all that runs (freeing
 * memory, the first launch of a kernel with more stack than any before), and so for a rank that waits for
 * this one. NULL: they do not. */
static pthread_barrier_t *rank_start;
static void begin_together(void) {
    if (rank_start != NULL) pthread_barrier_wait(rank_start);
}

/* Memory of a device, which a run takes and gives back at its end. */
struct rank_memory {
    const attn_device_kind_t *kind;
    DLDevice device;
    int count;
    void *all[24];
};

static void *take(struct rank_memory *m, uint64_t bytes) {
    void *p = NULL;
    if (m->count == 24 || m->kind->alloc(m->device.device_id, (size_t)bytes + 64, &p, NULL) != ATTN_OK)
        bail_out("no memory for %llu bytes", (unsigned long long)bytes);
    m->all[m->count++] = p;
    return p;
}

static void *put(struct rank_memory *m, const void *host, uint64_t bytes) {
    void *p = take(m, bytes);
    if (m->kind->copy_to(m->device.device_id, p, host, (size_t)bytes, NULL, NULL) != ATTN_OK)
        bail_out("copy to the device");
    return p;
}

static void give_back(struct rank_memory *m) {
    for (int i = 0; i < m->count; i++)
        m->kind->free(m->device.device_id, m->all[i]);
}

/* A tensor over a copy of `host`. */
static const DLTensor *put_tensor(struct rank_memory *m, struct tensor *t, const void *host, uint32_t dtype,
                                  int ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t count = a * (ndim > 1 ? b : 1) * (ndim > 2 ? c : 1);
    tensor(t, put(m, host, (uint64_t)count * attn_dtype_size(dtype)), dtype, ndim, a, b, c, 0);
    t->t.device = m->device;
    return &t->t;
}

/* One rank of `world` (1: with all heads): opens, fills its cache, attends. Results: output in out_dtype
 * [T, heads, Dv], LSE [heads, T]. comm NULL with one rank. */
static int run_rank(struct rank_world *w, attn_context_t *context, const char *backend, uint32_t out_dtype,
                    int world, int rank, const attn_comm_t *comm, const int32_t *seq, void *output,
                    float *lse, attn_error_t *error) {
    const struct rank_case *c = &w->c;
    const int is_mla = c->role == ATTN_ROLE_MLA;
    attn_problem_t p = rank_problem(w, world, rank);
    const attn_device_t d = rank_own_device[rank] != NULL ? *rank_own_device[rank]
                            : comm != NULL                ? rank_device
                                                          : cpu();
    struct rank_memory m = {.kind = attn_device_kind(d.type), .device = {(DLDeviceType)d.type, d.id}};
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    p.out_dtype = out_dtype;
    int code = attn_group_open(context, &p, &d, backend, &g, NULL, error), is_begun = 0;
    if (code != ATTN_OK) {
        begin_together();
        return code;
    }
    struct tensor tq, tk, tv, tc, to, tl, ts, tt, tw, tsink, tlocal;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_kv_update_t, u);
    ATTN_INIT(attn_batch_t, b);
    ATTN_INIT(attn_forward_t, a);
    ATTN_INIT(attn_weights_t, weights);
    ATTN_INIT(attn_layer_options_t, options);
    ATTN_INIT(attn_space_needed_t, need);
    ATTN_INIT(attn_space_t, space);
    void *out = NULL, *out_lse = NULL;
    const int heads = (int)p.num_heads, kv = is_mla ? 1 : (int)c->kv_heads, group = (int)c->heads / kv;
    float sinks[MAX_HEADS];
    int64_t *slots = malloc(sizeof *slots * (size_t)(w->keys + 1));
    int32_t table[MAX_REQS * LONGEST], local[MAX_REQS];
    char *query = malloc((size_t)w->tokens * (size_t)heads * (size_t)w->query_size * 4 + 64), *cache = NULL;
    code = attn_group_kv_cache_shape(g, 0, &shape, error);
    if (code == ATTN_OK) code = attn_group_space_needed(g, &need, error);
    if (comm != NULL && code == ATTN_OK) code = attn_group_set_comm(g, comm, c->join, error);
    if (code != ATTN_OK) goto end;
    space.metadata = take(&m, need.metadata_bytes), space.metadata_bytes = need.metadata_bytes;
    space.workspace = take(&m, need.workspace_bytes), space.workspace_bytes = need.workspace_bytes;
    space.host = malloc(need.host_bytes + 1), space.host_bytes = need.host_bytes;
    cache = malloc((size_t)shape.total_bytes);
    memset(cache, 0xff, (size_t)shape.total_bytes); /* NaN: what is not the rank's must not be read */
    for (int i = 0; i < 5; i++)
        tc.shape[i] = i < (int)shape.ndim ? shape.shape[i] : 1,
        tc.strides[i] = i < (int)shape.ndim ? shape.byte_strides[i] / (shape.dtype.bits / 8) : 1;
    tc.t = (DLTensor){.data = put(&m, cache, (uint64_t)shape.total_bytes),
                      .device = m.device,
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
        options.sinks = put_tensor(&m, &tsink, sinks, ATTN_DTYPE_FLOAT32, 1, heads, 0, 0);
    if (code == ATTN_OK) code = attn_layer_create(g, "model.layers.0.attn", &options, &layer, error);
    const int latent = (int)p.kv_lora_rank, rope = (int)p.qk_rope_head_dim;
    if (code == ATTN_OK && is_mla && !c->absorbed) {
        const int per_head = (int)(p.qk_nope_head_dim + p.v_head_dim), rows = heads * per_head;
        weights.kv_b_proj = put_tensor(
            &m, &tw, w->weights + (size_t)(world > 1 ? rank : 0) * (size_t)(rows * latent) * element(w),
            c->dtype, 2, rows, latent, 0);
        weights.weight_space = take(&m, need.weight_bytes);
        weights.weight_space_bytes = need.weight_bytes;
        code = attn_layer_prepare_weights(layer, &weights, NULL, error);
    }
    u.key = is_mla ? put_tensor(&m, &tk, w->key, c->dtype, 2, w->keys, latent, 0)
                   : put_tensor(&m, &tk, w->key, c->dtype, 3, w->keys, kv, w->key_size);
    u.value = is_mla ? put_tensor(&m, &tv, w->value, c->dtype, 2, w->keys, rope, 0)
                     : put_tensor(&m, &tv, w->value, c->dtype, 3, w->keys, kv, w->second_size);
    u.kv_cache = &tc.t;
    u.slot_mapping = put_tensor(&m, &ts, slots, ATTN_DTYPE_INT64, 1, w->keys, 0, 0);
    if (code == ATTN_OK) code = attn_layer_update_kv_cache(layer, &u, NULL, error);
    b.num_reqs = c->n;
    b.num_actual_tokens = w->tokens;
    b.query_start_loc_host = w->starts;
    b.seq_lens_host = seq;
    b.block_table = put_tensor(&m, &tt, table, ATTN_DTYPE_INT32, 2, c->n, LONGEST, 0);
    for (int r = 0; r < c->n; r++)
        local[r] = (int32_t)attn_plan_cp_local_len(seq[r], world, rank, (int)c->interleave);
    if (world > 1 && rank == 0)
        b.dcp_local_seq_lens = tensor(&tlocal, local, ATTN_DTYPE_INT32, 1, c->n, 0, 0, 0);
    uint8_t causal[MAX_REQS];
    for (int r = 0; r < c->n; r++)
        causal[r] = r % 2;
    if (c->mask == ATTN_MASK_PER_REQUEST) b.causal_host = causal;
    const uint64_t rows = (uint64_t)w->tokens * (uint64_t)heads,
                   out_bytes = rows * (uint64_t)w->value_size * attn_dtype_size(out_dtype);
    a.query = put_tensor(&m, &tq, query, c->dtype, 3, w->tokens, heads, w->query_size);
    a.kv_cache = &tc.t;
    out = take(&m, out_bytes), out_lse = take(&m, rows * 4);
    tensor(&to, out, out_dtype, 3, w->tokens, heads, w->value_size, 0);
    tensor(&tl, out_lse, ATTN_DTYPE_FLOAT32, 2, heads, w->tokens, 0, 0);
    to.t.device = tl.t.device = m.device;
    a.output = &to.t, a.lse = &tl.t;
    if (code == ATTN_OK) code = m.kind->synchronize(d.id, error); /* what is on no stream of the rank */
    if (code == ATTN_OK) code = attn_group_build_metadata(g, &b, &space, rank_stream, error);
    m.kind->fill(d.id, space.workspace, 0xff, space.workspace_bytes, rank_stream, NULL);
    begin_together();
    is_begun = 1;
    if (code == ATTN_OK) code = attn_layer_forward(layer, &a, &space, rank_stream, error);
    if (code == ATTN_OK) code = m.kind->copy_from(d.id, output, out, (size_t)out_bytes, rank_stream, error);
    if (code == ATTN_OK) code = m.kind->copy_from(d.id, lse, out_lse, (size_t)rows * 4, rank_stream, error);
end:
    if (!is_begun) begin_together();
    attn_layer_destroy(layer);
    attn_group_close(g);
    give_back(&m);
    free(space.host), free(cache), free(query), free(slots);
    return code;
}

static double largest_of(uint32_t dtype) {
    return dtype == ATTN_DTYPE_FLOAT16 ? 65504 : dtype == ATTN_DTYPE_BFLOAT16 ? 0x1.fep127 : 0x1.fffffep127;
}

/* Of latent attention the values are the keys' latent part, so keys are changed alone. */
static void harden(struct rank_world *w, size_t kv) {
    const int is_mla = w->c.role == ATTN_ROLE_MLA;
    char *values = is_mla ? w->key : w->value;
    const size_t row = (size_t)(is_mla ? w->key_size : w->second_size), n = (size_t)w->keys * kv * row;
    const double most = largest_of(w->c.dtype);
    for (size_t i = 0; i < n && w->c.hard != 0; i++) {
        const double x = element_at(w->c.dtype, values, i);
        set_element(w, values, i,
                    w->c.hard == RANK_CONSTANT_VALUES ? 0.75
                    : w->c.hard == RANK_LARGE_MEAN    ? x + 100
                    : w->c.hard == RANK_FORMAT_ENDS   ? (x < 0 ? -most : most) / 128
                    : w->c.hard == RANK_FORMAT_END    ? most
                    : i % row == 5                    ? 100 * x
                                                      : x);
    }
    const size_t keys = (size_t)w->keys * kv * (size_t)w->key_size;
    for (size_t i = 0; i < keys && !is_mla; i++)
        if (w->c.hard == RANK_FORMAT_END || (w->c.hard == RANK_LOUD_CHANNEL && i % (size_t)w->key_size == 3))
            set_element(w, w->key, i,
                        w->c.hard == RANK_FORMAT_END ? 0 : 100 * element_at(w->c.dtype, w->key, i));
}

/* Inputs of a case for a world of ranks, and what one rank gets of them in double. */
static int make_rank_world(struct rank_world *w, const struct rank_case *c, int world,
                           attn_context_t *context, uint64_t seed, attn_error_t *error) {
    const int is_mla = c->role == ATTN_ROLE_MLA;
    memset(w, 0, sizeof *w);
    w->c = *c;
    w->world = world;
    w->all_heads = world * (int)c->heads;
    const uint32_t latent = or_else(c->latent, 16), rope = or_else(c->rope, 8), nope = or_else(c->nope, 12),
                   value = or_else(c->value, 10);
    w->query_size = (int)(!is_mla ? c->size : c->absorbed ? latent + rope : nope + rope);
    w->value_size = (int)(!is_mla ? c->size_v : c->absorbed ? latent : value);
    w->key_size = (int)(is_mla ? latent : c->size);
    w->second_size = (int)(is_mla ? rope : c->size_v);
    const size_t kv = is_mla ? 1 : c->kv_heads;
    for (int r = 0; r < c->n; r++) {
        w->starts[r + 1] = w->tokens += c->query[r];
        w->key_starts[r + 1] = w->keys += c->seq[r];
    }
    w->query =
        random_elements(w, (size_t)w->tokens * (size_t)w->all_heads * (size_t)w->query_size, seed + 1, 2);
    w->key = random_elements(w, (size_t)w->keys * kv * (size_t)w->key_size, seed + 2, 2);
    w->value = random_elements(w, (size_t)w->keys * kv * (size_t)w->second_size, seed + 3, 1);
    harden(w, kv);
    w->weights = random_elements(w, (size_t)w->all_heads * (nope + value) * latent, seed + 4,
                                 0.3 * sqrt(16.0 / latent));
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

/* The mean of the differences below with their signs, the largest of the ranks so far. */
static double rank_bias;

/* How large values of channel v are. */
static double magnitude_of(const struct rank_world *w, int v) {
    if (w->c.hard == RANK_FORMAT_ENDS) return largest_of(w->c.dtype) / 128;
    return w->c.hard == RANK_LOUD_CHANNEL && v == 5 ? 100 : 1;
}

/* The largest difference of a rank's results, relative to what values are and the wanted number. */
static double rank_difference(const struct rank_world *w, int rank, uint32_t out_dtype, const void *output,
                              const float *lse) {
    const int heads = (int)w->c.heads, kv = w->c.role == ATTN_ROLE_MLA ? 1 : (int)w->c.kv_heads,
              group = heads / kv;
    double worst = 0, bias = 0;
    for (int t = 0; t < w->tokens; t++)
        for (int h = 0; h < heads; h++) {
            const int whole = (h / group * w->world + rank) * group + h % group;
            const double l = w->want_lse[whole * w->tokens + t], got = lse[h * w->tokens + t];
            double d = l == got ? 0 : fabs(l - got) / (1 + fabs(l));
            if (!(d <= worst)) worst = d;
            for (int v = 0; v < w->value_size; v++) {
                const double x = w->want[((size_t)t * w->all_heads + whole) * w->value_size + v];
                d = (element_at(out_dtype, output, ((size_t)t * heads + h) * w->value_size + v) - x) /
                    (magnitude_of(w, v) + fabs(x));
                bias += d;
                if (!(fabs(d) <= worst)) worst = fabs(d); /* NaN too */
            }
        }
    bias = fabs(bias) / ((double)w->tokens * heads * w->value_size);
    if (!(bias <= rank_bias)) rank_bias = bias;
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
    {"absorbed", "REFERENCE", .role = ATTN_ROLE_MLA, .dtype = ATTN_DTYPE_FLOAT32, .heads = 3, .kv_heads = 1,
     .block_size = 16, RANK_BATCH, .interleave = 2, .absorbed = 1, .tolerance = 2e-6},
    {"absorbed", "CPU_ATTN", .role = ATTN_ROLE_MLA, .dtype = ATTN_DTYPE_FLOAT32, .heads = 3, .kv_heads = 1,
     .block_size = 16, RANK_BATCH, .interleave = 16, .absorbed = 1, .latent = 64, .rope = 16,
     .tolerance = 1e-5},
    {"float32", "CPU_ATTN", DENSE(FLOAT32, 4, 2, 64, 64, 16), .interleave = 1, .tolerance = 1e-5},
    {"runs of 16", "CPU_ATTN", DENSE(FLOAT32, 4, 1, 64, 64, 16), .interleave = 16, .tolerance = 1e-5},
    {"a window, sinks", "CPU_ATTN", DENSE(FLOAT32, 4, 1, 64, 64, 16), .interleave = 4, .window = 48,
     .sinks = 1, .tolerance = 1e-5},
    {"float16, sinks", "CPU_ATTN", DENSE(FLOAT16, 4, 1, 64, 64, 16), .interleave = 2, .sinks = 1,
     .tolerance = 3e-3},
    {"bfloat16", "CPU_ATTN", DENSE(BFLOAT16, 4, 1, 64, 64, 16), .interleave = 1, .tolerance = 1.5e-2},
    {"constant values", "REFERENCE", DENSE(FLOAT32, 4, 2, 16, 16, 16), .interleave = 16,
     .hard = RANK_CONSTANT_VALUES, .tolerance = 5e-7},
    {"a large mean", "REFERENCE", DENSE(FLOAT32, 4, 2, 16, 16, 16), .interleave = 1, .hard = RANK_LARGE_MEAN,
     .tolerance = 2e-6},
    {"a loud channel", "REFERENCE", DENSE(FLOAT32, 4, 2, 16, 16, 16), .interleave = 1,
     .hard = RANK_LOUD_CHANNEL, .tolerance = 1e-5},
    {"ends of the format", "REFERENCE", DENSE(FLOAT32, 4, 2, 16, 16, 16), .interleave = 4,
     .hard = RANK_FORMAT_ENDS, .tolerance = 2e-6},
    {"constant values", "CPU_ATTN", DENSE(FLOAT32, 4, 2, 64, 64, 16), .interleave = 16,
     .hard = RANK_CONSTANT_VALUES, .tolerance = 1e-6},
    {"a loud channel", "CPU_ATTN", DENSE(FLOAT32, 4, 2, 64, 64, 16), .interleave = 1,
     .hard = RANK_LOUD_CHANNEL, .tolerance = 1e-4},
    {"ends of the format", "CPU_ATTN", DENSE(FLOAT16, 4, 2, 64, 64, 16), .interleave = 16,
     .hard = RANK_FORMAT_ENDS, .tolerance = 3e-3},
};
enum { NUM_RANK_CASES = sizeof rank_cases / sizeof rank_cases[0] };

/* The plugins of `plugins`, and what `more` of a configuration adds; a context for each rank, since names of
 * layers are unique in one. */
TAP_UNUSED static attn_context_t *rank_context_of(const char *plugins, const char *more) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    char text[2048];
    attn_error_t error = ERROR_INIT;
    attn_context_t *context = NULL;
    if (dir == NULL || access(dir, R_OK) != 0) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    snprintf(text, sizeof text, "[attn]\nplugins = %s\n[option cpu]\nnum_threads = 1\n%s", plugins, more);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = text;
    o.plugin_dir = dir;
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    return context;
}

TAP_UNUSED static attn_context_t *rank_context(void) {
    return rank_context_of("reference, cpu", "");
}

#endif
