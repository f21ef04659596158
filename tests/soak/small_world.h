/* SPDX-License-Identifier: Apache-2.0 */
/* small_world.h: an engine in small, over the public API and the real CPU backends: five kinds of groups,
 * three layers each, two requests that grow. Everything is static, so that what the process allocates is the
 * library's; outputs are compared with the first ones to the bit. For programs that repeat it or hurt it. */
#ifndef ATTN_TESTS_SMALL_WORLD_H
#define ATTN_TESTS_SMALL_WORLD_H

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>

enum { KINDS = 5, LAYERS = 3, STEPS = 20, HQ = 4, HKV = 2, D = 32, PAGE = 16, PAGES = 8, ROWS = 8, REQS = 2 };

static const struct kind {
    const char *backend;
    uint32_t role, dtype, kv, window;
    double soft_cap;
} kinds[KINDS] = {
    {"CPU_ATTN", ATTN_ROLE_DECODER, ATTN_DTYPE_FLOAT32, ATTN_KV_AUTO, 0, 0},
    {"CPU_ATTN", ATTN_ROLE_DECODER, ATTN_DTYPE_BFLOAT16, ATTN_KV_AUTO, 9, 20},
    {"CPU_ATTN", ATTN_ROLE_ENCODER_ONLY, ATTN_DTYPE_FLOAT32, 0, 0, 0},
    {"REFERENCE", ATTN_ROLE_DECODER, ATTN_DTYPE_BFLOAT16, ATTN_KV_FP8_E4M3, 0, 0},
    {"REFERENCE", ATTN_ROLE_DECODER, ATTN_DTYPE_FLOAT32, ATTN_KV_AUTO, 5, 0},
};

static struct lane {
    attn_group_t *group;
    attn_layer_t *layers[LAYERS];
    attn_space_t space;
    attn_kv_cache_shape_t shape;
    int64_t strides[ATTN_CACHE_MAX_DIMS];
    int step;
    _Alignas(256) char metadata[1 << 16], host[4096];
    _Alignas(256) char cache[LAYERS][PAGES * PAGE * HKV * 2 * D * 4];
} lanes[KINDS];
static _Alignas(256) char small_workspace[1 << 24]; /* shared, as by layers of one stream */
static uint64_t seen[KINDS][STEPS][LAYERS];         /* hashes of the first outputs; 0: none yet */
static long forwards, differ;

struct small_tensor {
    DLTensor t;
    int64_t shape[4], strides[4];
};

static const DLTensor *small_tensor(struct small_tensor *s, void *data, uint32_t dtype, int ndim, int64_t a,
                                    int64_t b, int64_t c) {
    *s = (struct small_tensor){.shape = {a, b, c}, .strides = {b * c, c, 1}};
    s->t = (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = attn_dl_dtype(dtype)};
    s->t.shape = s->shape, s->t.strides = s->strides;
    return &s->t;
}

/* Numbers from -1 to 1 that depend on the seed alone. */
static void small_fill(void *data, uint32_t dtype, int n, uint32_t seed) {
    seed = seed * 2654435761u + 1;
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)seed * 0x1p-31F;
        if (dtype == ATTN_DTYPE_FLOAT32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] = attn_to_bf16((double)x);
    }
}

static attn_problem_t small_problem_of(const struct kind *k) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = k->role,
                            .mask = k->role == ATTN_ROLE_DECODER ? ATTN_MASK_CAUSAL : ATTN_MASK_FULL,
                            .dtype = k->dtype,
                            .kv_cache_dtype = k->kv,
                            .num_heads = HQ,
                            .num_kv_heads = HKV,
                            .head_size = D,
                            .block_size = k->role == ATTN_ROLE_DECODER ? PAGE : 0,
                            .sliding_window = k->window,
                            .scale = 0.2,
                            .logits_soft_cap = k->soft_cap,
                            .max_num_seqs = REQS,
                            .max_num_batched_tokens = ROWS,
                            .max_model_len = PAGES / REQS * PAGE};
}

/* A context with the two CPU plugins; text: further INI. */
static int small_context(const char *config_file, const char *text, attn_context_t **context,
                         attn_error_t *error) {
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_file = config_file;
    o.config_text = text;
    return attn_context_create(&o, context, error);
}

static void small_close(struct lane *l) {
    for (int i = 0; i < LAYERS; i++) {
        attn_layer_destroy(l->layers[i]);
        l->layers[i] = NULL;
    }
    attn_group_close(l->group);
    l->group = NULL;
}

/* Opens group and layers of a kind; leaves nothing behind if it fails. */
static int small_open(attn_context_t *context, int kind, attn_error_t *error) {
    struct lane *l = &lanes[kind];
    attn_device_t cpu = {.struct_size = sizeof cpu, .type = kDLCPU};
    attn_problem_t problem = small_problem_of(&kinds[kind]);
    int code = attn_group_open(context, &problem, &cpu, kinds[kind].backend, &l->group, NULL, error);
    for (int i = 0; code == ATTN_OK && i < LAYERS; i++) {
        char name[40];
        snprintf(name, sizeof name, "kind%d.layers.%d.attn", kind, i);
        code = attn_layer_create(l->group, name, NULL, &l->layers[i], error);
    }
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    l->shape = (attn_kv_cache_shape_t){.struct_size = sizeof l->shape};
    if (code == ATTN_OK) code = attn_group_kv_cache_shape(l->group, PAGES, &l->shape, error);
    if (code == ATTN_OK) code = attn_group_space_needed(l->group, &needed, error);
    if (code == ATTN_OK &&
        (needed.metadata_bytes > sizeof l->metadata || needed.host_bytes > sizeof l->host ||
         needed.workspace_bytes > sizeof small_workspace ||
         l->shape.total_bytes > (int64_t)sizeof l->cache[0]))
        code = attn_fail(error, ATTN_E_SPACE, "", "small_world.h has too little room: %llu, %llu, %llu, %lld",
                         (unsigned long long)needed.metadata_bytes, (unsigned long long)needed.host_bytes,
                         (unsigned long long)needed.workspace_bytes, (long long)l->shape.total_bytes);
    for (uint32_t i = 0; i < l->shape.ndim; i++)
        l->strides[i] = l->shape.byte_strides[i] / (l->shape.dtype.bits / 8);
    l->space = (attn_space_t){.struct_size = sizeof l->space,
                              .metadata = l->metadata,
                              .metadata_bytes = sizeof l->metadata,
                              .workspace = small_workspace,
                              .workspace_bytes = sizeof small_workspace,
                              .host = l->host,
                              .host_bytes = sizeof l->host};
    l->step = 0;
    if (code != ATTN_OK) small_close(l);
    return code;
}

/* One layer of a step: the cache, then attention; counts outputs that differ from the first ones. */
static int small_layer(int kind, int layer, int rows, const DLTensor *slots, attn_error_t *error) {
    static _Alignas(64) float query[ROWS * HQ * D], key[ROWS * HKV * D], value[ROWS * HKV * D],
        output[ROWS * HQ * D];
    struct lane *l = &lanes[kind];
    struct small_tensor tq, tk, tv, to;
    const uint32_t t = kinds[kind].dtype, seed = (uint32_t)(kind * 1000 + l->step * 10 + layer);
    DLTensor cache = {.data = l->cache[layer],
                      .device = {kDLCPU, 0},
                      .ndim = (int32_t)l->shape.ndim,
                      .dtype = l->shape.dtype,
                      .shape = l->shape.shape,
                      .strides = l->strides};
    small_fill(query, t, rows * HQ * D, 3 * seed);
    small_fill(key, t, rows * HKV * D, 3 * seed + 1);
    small_fill(value, t, rows * HKV * D, 3 * seed + 2);
    attn_kv_update_t u = {.struct_size = sizeof u, .slot_mapping = slots, .kv_cache = &cache};
    u.key = small_tensor(&tk, key, t, 3, rows, HKV, D);
    u.value = small_tensor(&tv, value, t, 3, rows, HKV, D);
    attn_forward_t f = {.struct_size = sizeof f, .key = &tk.t, .value = &tv.t};
    f.query = small_tensor(&tq, query, t, 3, rows, HQ, D);
    f.output = small_tensor(&to, output, t, 3, rows, HQ, D);
    int code = ATTN_OK;
    if (kinds[kind].role == ATTN_ROLE_DECODER) {
        f.kv_cache = &cache;
        code = attn_layer_update_kv_cache(l->layers[layer], &u, NULL, error);
    }
    if (code == ATTN_OK) code = attn_layer_forward(l->layers[layer], &f, &l->space, NULL, error);
    if (code != ATTN_OK) return code;
    uint64_t hash = attn_fingerprint64(0, output, (size_t)rows * HQ * D * (t == ATTN_DTYPE_FLOAT32 ? 4 : 2));
    uint64_t *first = &seen[kind][l->step][layer];
    if (*first == 0) *first = hash;
    differ += hash != *first;
    forwards++;
    return ATTN_OK;
}

/* One step of a kind: prompts of 5 and 2 tokens first, then a token each; after STEPS from the beginning. */
static int small_step(int kind, attn_error_t *error) {
    struct lane *l = &lanes[kind];
    const int is_encoder = kinds[kind].role != ATTN_ROLE_DECODER;
    const int past[REQS] = {5, 2}, width = PAGES / REQS;
    int32_t starts[REQS + 1] = {0}, lens[REQS], table[REQS * (PAGES / REQS)];
    int64_t slots[ROWS];
    struct small_tensor t_starts, t_lens, t_table, t_slots;
    for (int r = 0; r < REQS; r++) {
        const int n = is_encoder ? 1 + (l->step + r) % 4 : l->step == 0 ? past[r] : 1;
        lens[r] = is_encoder ? n : past[r] + l->step;
        starts[r + 1] = starts[r] + n;
        for (int i = 0; i < width; i++)
            table[r * width + i] = r * width + (i * 3 + 1) % width;
        for (int i = 0; i < n; i++) {
            const int at = lens[r] - n + i;
            slots[starts[r] + i] = (int64_t)table[r * width + at / PAGE] * PAGE + at % PAGE;
        }
    }
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = REQS,
                      .num_actual_tokens = starts[REQS],
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens};
    b.query_start_loc = small_tensor(&t_starts, starts, ATTN_DTYPE_INT32, 1, REQS + 1, 1, 1);
    b.seq_lens = small_tensor(&t_lens, lens, ATTN_DTYPE_INT32, 1, REQS, 1, 1);
    small_tensor(&t_slots, slots, ATTN_DTYPE_INT64, 1, starts[REQS], 1, 1);
    if (!is_encoder) {
        b.block_table = small_tensor(&t_table, table, ATTN_DTYPE_INT32, 2, REQS, width, 1);
        b.slot_mapping = &t_slots.t;
    }
    int code = attn_group_build_metadata(l->group, &b, &l->space, NULL, error);
    for (int i = 0; code == ATTN_OK && i < LAYERS; i++)
        code = small_layer(kind, i, starts[REQS], &t_slots.t, error);
    l->step = (l->step + 1) % STEPS;
    return code;
}

#endif
