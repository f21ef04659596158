/* SPDX-License-Identifier: Apache-2.0 */
/* One call of attn.draft.rope_write/0 with random rows, table, positions and slots, in host or in managed
 * memory: what the tests of the reference and of a GPU backend share. */
#ifndef ROPE_CASE_H
#define ROPE_CASE_H

#include "../../tap.h"

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_rope_write.h>

typedef struct rope_tensor {
    DLTensor t;
    int64_t shape[4], strides[4];
} rope_tensor_t;

typedef struct rope_case {
    attn_problem_t attention;
    attn_rope_problem_t problem;
    int num_tokens, num_positions;
    uint32_t table_dtype;
    rope_tensor_t query, key, value, positions, table, slots, kv_cache;
    size_t query_bytes, key_bytes, value_bytes,
        cache_bytes; /* rows that are not counted stay behind the others */
} rope_case_t;

enum { ROPE_BLOCKS = 9, ROPE_EXTRA_ROWS = 2 };

typedef struct rope_memory {
    void *(*alloc)(size_t bytes); /* zeroed, may be read and written here */
    int device_type;
} rope_memory_t;

/* Values of few bits: exact in every type. */
static void rope_set(void *p, uint32_t dtype, int64_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (dtype == ATTN_DTYPE_FLOAT32)
        ((float *)p)[i] = x;
    else if (dtype == ATTN_DTYPE_BFLOAT16)
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    else
        ((uint16_t *)p)[i] =
            (uint16_t)((bits >> 16 & 0x8000) |
                       (x == 0 ? 0 : ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023)));
}

static void rope_over(rope_tensor_t *r, void *data, uint32_t dtype, int device_type, int ndim,
                      const int64_t *shape, const int64_t *byte_strides) {
    int64_t count = 1;
    *r = (rope_tensor_t){.t = {.data = data,
                               .device = {.device_type = (DLDeviceType)device_type},
                               .ndim = ndim,
                               .dtype = attn_dl_dtype(dtype)}};
    for (int i = ndim - 1; i >= 0; i--) {
        r->shape[i] = shape[i];
        r->strides[i] = byte_strides ? byte_strides[i] / (int64_t)attn_dtype_size(dtype) : count;
        count *= shape[i];
    }
    r->t.shape = r->shape, r->t.strides = r->strides;
}

static void rope_rows(rope_tensor_t *r, size_t *bytes, uint32_t dtype, const rope_memory_t *memory,
                      int64_t tokens, int64_t heads, int64_t size, uint64_t *seed) {
    const int64_t shape[3] = {tokens + ROPE_EXTRA_ROWS, heads, size}, count = shape[0] * heads * size;
    *bytes = (size_t)count * attn_dtype_size(dtype);
    void *data = memory->alloc(*bytes);
    for (int64_t i = 0; i < count; i++)
        rope_set(data, dtype, i, (float)tap_rand_in(seed, -64, 64) / 32.f);
    rope_over(r, data, dtype, memory->device_type, 3, shape, NULL);
}

/* Cosines and sines of few bits, so that the table is the same in every type; some slots negative. */
static void rope_fill(rope_case_t *c, const rope_memory_t *memory, uint64_t seed) {
    const attn_problem_t *p = &c->attention;
    const int64_t n = c->num_tokens, kv_heads = p->num_kv_heads ? p->num_kv_heads : p->num_heads,
                  dv = p->head_size_v ? p->head_size_v : p->head_size;
    const int64_t rotary = c->problem.rotary_dim ? c->problem.rotary_dim : p->head_size,
                  table[2] = {c->num_positions, rotary};
    rope_rows(&c->query, &c->query_bytes, p->dtype, memory, n, p->num_heads, p->head_size, &seed);
    rope_rows(&c->key, &c->key_bytes, p->dtype, memory, n, kv_heads, p->head_size, &seed);
    rope_rows(&c->value, &c->value_bytes, p->dtype, memory, n, kv_heads, dv, &seed);
    void *data = memory->alloc((size_t)(table[0] * table[1]) * attn_dtype_size(c->table_dtype));
    for (int64_t i = 0; i < table[0] * table[1]; i++)
        rope_set(data, c->table_dtype, i, (float)tap_rand_in(&seed, -64, 64) / 64.f);
    rope_over(&c->table, data, c->table_dtype, memory->device_type, 2, table, NULL);
    int64_t *positions = memory->alloc((size_t)n * 8 + 8), *slots = memory->alloc((size_t)n * 8 + 8);
    const int64_t num_slots = (int64_t)ROPE_BLOCKS * p->block_size,
                  first = tap_rand_in(&seed, 0, num_slots - 1);
    for (int64_t i = 0; i < n; i++) {
        positions[i] = tap_rand_in(&seed, 0, c->num_positions - 1);
        slots[i] = i % 7 == 5 ? -1 : (first + i * 5) % num_slots; /* apart: 5 divides no multiple of 16 */
    }
    rope_over(&c->positions, positions, ATTN_DTYPE_INT64, memory->device_type, 1, &n, NULL);
    rope_over(&c->slots, slots, ATTN_DTYPE_INT64, memory->device_type, 1, &n, NULL);
    attn_kv_cache_shape_t cache = {.struct_size = sizeof cache};
    const uint32_t layout = p->kv_layout ? p->kv_layout : (uint32_t)ATTN_LAYOUT_NHD;
    if (attn_dense_cache_shape(p, layout, p->block_size, ROPE_BLOCKS, &cache, NULL) != ATTN_OK)
        bail_out("no cache of this type");
    c->cache_bytes = (size_t)cache.total_bytes;
    data = memory->alloc(c->cache_bytes);
    memset(data, 0x55, c->cache_bytes);
    rope_over(&c->kv_cache, data, attn_dtype_of(cache.dtype), memory->device_type, 4, cache.shape,
              cache.byte_strides);
}

static attn_rope_write_t rope_args(const rope_case_t *c) {
    return (attn_rope_write_t){.struct_size = sizeof(attn_rope_write_t),
                               .query = &c->query.t,
                               .key = &c->key.t,
                               .value = &c->value.t,
                               .positions = &c->positions.t,
                               .cos_sin = &c->table.t,
                               .slot_mapping = &c->slots.t,
                               .kv_cache = &c->kv_cache.t};
}

/* The i-th of them: types, sizes, parts of a row, both styles. */
enum { ROPE_CASES = 10 };
static void rope_choose(rope_case_t *c, int i) {
    static const struct {
        uint32_t dtype, kv, table, heads, kv_heads, d, dv, rotary, style, layout;
    } list[ROPE_CASES] = {
        {ATTN_DTYPE_BFLOAT16, 0, ATTN_DTYPE_FLOAT32, 8, 2, 128, 0, 0, 0, 0},
        {ATTN_DTYPE_BFLOAT16, 0, ATTN_DTYPE_BFLOAT16, 8, 2, 128, 0, 64, ATTN_ROPE_INTERLEAVED, 0},
        {ATTN_DTYPE_FLOAT16, 0, ATTN_DTYPE_FLOAT16, 4, 4, 80, 0, 32, ATTN_ROPE_NEOX, ATTN_LAYOUT_HND},
        {ATTN_DTYPE_FLOAT32, 0, ATTN_DTYPE_FLOAT32, 3, 1, 64, 0, 0, 0, 0},
        {ATTN_DTYPE_FLOAT32, 0, ATTN_DTYPE_FLOAT32, 2, 2, 64, 0, 6, ATTN_ROPE_INTERLEAVED, 0},
        {ATTN_DTYPE_BFLOAT16, ATTN_KV_FP8_E4M3, ATTN_DTYPE_FLOAT32, 8, 1, 128, 0, 128, 0, ATTN_LAYOUT_HND},
        {ATTN_DTYPE_FLOAT16, ATTN_KV_FP8_E5M2, ATTN_DTYPE_FLOAT32, 4, 2, 64, 0, 0, 0, 0},
        {ATTN_DTYPE_BFLOAT16, ATTN_KV_INT8_PER_TOKEN_HEAD, ATTN_DTYPE_FLOAT32, 4, 2, 96, 64, 48, 0, 0},
        {ATTN_DTYPE_FLOAT16, ATTN_KV_FP8_PER_TOKEN_HEAD, ATTN_DTYPE_FLOAT16, 4, 2, 37, 0, 2,
         ATTN_ROPE_INTERLEAVED, 0},
        {ATTN_DTYPE_BFLOAT16, 0, ATTN_DTYPE_FLOAT32, 5, 5, 72, 0, 22, 0, 0}};
    memset(c, 0, sizeof *c);
    c->attention = (attn_problem_t){.struct_size = sizeof c->attention,
                                    .role = ATTN_ROLE_DECODER,
                                    .mask = ATTN_MASK_CAUSAL,
                                    .dtype = list[i].dtype,
                                    .kv_cache_dtype = list[i].kv,
                                    .num_heads = list[i].heads,
                                    .num_kv_heads = list[i].kv_heads,
                                    .head_size = list[i].d,
                                    .head_size_v = list[i].dv,
                                    .kv_layout = list[i].layout,
                                    .block_size = 16,
                                    .scale = 0.1,
                                    .num_blocks = ROPE_BLOCKS};
    if (list[i].dv != 0) c->attention.features |= ATTN_F_DIFF_KV;
    c->problem = (attn_rope_problem_t){.struct_size = sizeof c->problem,
                                       .rotary_dim = list[i].rotary,
                                       .style = list[i].style,
                                       .attention = &c->attention};
    c->table_dtype = list[i].table, c->num_tokens = 1 + i * 9, c->num_positions = 50;
}

#endif
