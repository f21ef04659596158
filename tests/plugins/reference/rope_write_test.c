/* SPDX-License-Identifier: Apache-2.0 */
/* rope_write: attn.draft.rope_write/0 of the reference backend: rotated rows against code of its own, the
 * cache against update_kv_cache of the rotated rows, and what is refused. */
#include "rope_case.h"

#include <dlfcn.h>
#include <math.h>

static const attn_rope_extension_t *x;
static const attn_backend_ops_t *ops;
static const attn_device_t device = {.struct_size = sizeof device, .type = kDLCPU};

static void *alloc(size_t bytes) {
    return calloc(1, bytes + 64);
}
static const rope_memory_t memory = {alloc, kDLCPU};

static void free_case(const rope_case_t *c) {
    void *all[] = {c->query.t.data,     c->key.t.data,   c->value.t.data,   c->table.t.data,
                   c->positions.t.data, c->slots.t.data, c->kv_cache.t.data};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        free(all[n]);
}

static void *copy_of(const void *p, size_t n) {
    void *q = malloc(n + 1);
    return q ? memcpy(q, p, n) : NULL;
}

static float rope_get(const void *p, uint32_t dtype, int64_t i) {
    if (dtype == ATTN_DTYPE_FLOAT32) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    uint32_t bits = (uint32_t)h << 16;
    float f;
    if (dtype == ATTN_DTYPE_FLOAT16) {
        const int e = h >> 10 & 31, m = h & 1023;
        f = (float)(e == 0 ? m * 0x1p-24 : ldexp(1 + m / 1024.0, e - 15));
        return h >> 15 ? -f : f;
    }
    memcpy(&f, &bits, 4);
    return f;
}

/* Round to the nearest value of 8, 11 or 24 bits, ties to even; the numbers here are exact in double. */
static float rounded(double v, uint32_t dtype) {
    int bits = dtype == ATTN_DTYPE_FLOAT32 ? 24 : dtype == ATTN_DTYPE_FLOAT16 ? 11 : 8, e;
    double m = frexp(v, &e);
    return (float)ldexp(nearbyint(ldexp(m, bits)), e - bits);
}

static int wrong_rows(const rope_case_t *c, const DLTensor *now, const void *before) {
    const uint32_t dtype = c->attention.dtype;
    const int64_t heads = now->shape[1], size = now->shape[2],
                  half = (c->problem.rotary_dim ? c->problem.rotary_dim : size) / 2;
    const int neox = c->problem.style != ATTN_ROPE_INTERLEAVED;
    int wrong = 0;
    for (int64_t t = 0; t < now->shape[0]; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < size; i++) {
                const int64_t row = (t * heads + h) * size;
                float want = rope_get(before, dtype, row + i);
                if (t < c->num_tokens && i < 2 * half) {
                    const int64_t at = neox ? i % half : i / 2, first = neox ? i < half : i % 2 == 0;
                    const int64_t other = neox ? (first ? i + half : i - half) : i ^ 1;
                    const int64_t entry = ((const int64_t *)c->positions.t.data)[t] * 2 * half + at;
                    const double cosine = rope_get(c->table.t.data, c->table_dtype, entry),
                                 sine = rope_get(c->table.t.data, c->table_dtype, entry + half);
                    want = rounded(want * cosine +
                                       (first ? -1 : 1) * rope_get(before, dtype, row + other) * sine,
                                   dtype);
                }
                wrong += rope_get(now->data, dtype, row + i) != want;
            }
    return wrong;
}

static void one(int i, uint64_t seed) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_rope_t *rope = NULL;
    attn_instance_t *plain = NULL;
    rope_case_t c;
    float scale[2] = {.02f, .05f};
    rope_tensor_t scales[2];
    rope_choose(&c, i);
    rope_fill(&c, &memory, seed);
    for (int s = 0; s < 2; s++)
        rope_over(&scales[s], &scale[s], ATTN_DTYPE_FLOAT32, kDLCPU, 1, (const int64_t[]){1}, NULL);
    void *query = copy_of(c.query.t.data, c.query_bytes), *key = copy_of(c.key.t.data, c.key_bytes);
    void *value = copy_of(c.value.t.data, c.value_bytes), *cache = copy_of(c.kv_cache.t.data, c.cache_bytes);
    int rc = x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e);
    attn_rope_write_t args = rope_args(&c);
    if (attn_kv_is_quantized(c.attention.kv_cache_dtype) &&
        !attn_kv_is_per_token_head(c.attention.kv_cache_dtype))
        args.scales.k = &scales[0].t, args.scales.v = &scales[1].t;
    if (rc == ATTN_OK) rc = x->write(rope, &args, NULL, &e);
    ok(rc == ATTN_OK, "case %d is served %s", i, rc ? e.text : "");
    ok(wrong_rows(&c, &c.query.t, query) == 0 && wrong_rows(&c, &c.key.t, key) == 0,
       "case %d: rows are rotated", i);
    ok(memcmp(c.value.t.data, value, c.value_bytes) == 0, "case %d: values stay", i);
    void *written = copy_of(c.kv_cache.t.data, c.cache_bytes);
    memcpy(c.kv_cache.t.data, cache, c.cache_bytes);
    attn_kv_update_t u = {.struct_size = sizeof u,
                          .key = args.key,
                          .value = args.value,
                          .kv_cache = args.kv_cache,
                          .slot_mapping = args.slot_mapping,
                          .scales = args.scales};
    rc = ops->open(&c.attention, &device, NULL, 0, NULL, &plain, &e);
    if (rc == ATTN_OK) rc = ops->update_kv_cache(plain, &u, NULL, &e);
    ok(rc == ATTN_OK && memcmp(c.kv_cache.t.data, written, c.cache_bytes) == 0 &&
           memcmp(written, cache, c.cache_bytes) != 0,
       "case %d: the cache holds what update_kv_cache writes of the rotated keys", i);
    ops->close(plain);
    x->close(rope);
    free(query), free(key), free(value), free(cache), free(written);
    free_case(&c);
}

static void refusals(void) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_rope_t *rope = NULL;
    rope_case_t c;
    rope_choose(&c, 1);
    rope_fill(&c, &memory, 5);
    c.problem.rotary_dim = 63;
    ok(x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "rotary_dim"),
       "an odd rotary_dim");
    c.problem.rotary_dim = 130;
    ok(x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "rotary_dim"),
       "one beyond head_size");
    c.problem.rotary_dim = 64, c.problem.style = 3;
    ok(x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e) == ATTN_E_INVALID && !strcmp(e.param, "style"),
       "an unknown style");
    c.problem.style = 1, c.attention.role = ATTN_ROLE_MM_ENCODER;
    ok(x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e) == ATTN_E_UNSUPPORTED &&
           !strcmp(e.param, "role"),
       "a role without a cache");
    c.attention.role = ATTN_ROLE_DECODER, c.problem.attention = NULL;
    ok(x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e) == ATTN_E_INVALID && rope == NULL,
       "no problem");
    c.problem.attention = &c.attention;
    if (x->open(&c.problem, &device, NULL, 0, NULL, &rope, &e) != ATTN_OK) bail_out("%s", e.text);
    void *query = copy_of(c.query.t.data, c.query_bytes), *cache = copy_of(c.kv_cache.t.data, c.cache_bytes);
    rope_tensor_t bad;
    attn_rope_write_t a = rope_args(&c);
    rope_over(&bad, c.table.t.data, ATTN_DTYPE_BFLOAT16, kDLCPU, 2, (const int64_t[]){50, 32}, NULL);
    a.cos_sin = &bad.t;
    ok(x->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "cos_sin"),
       "a table of another width");
    a = rope_args(&c);
    rope_over(&bad, c.table.t.data, ATTN_DTYPE_FLOAT16, kDLCPU, 2, (const int64_t[]){50, 64}, NULL);
    a.cos_sin = &bad.t;
    ok(x->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "cos_sin"),
       "a table of another type");
    a = rope_args(&c);
    c.positions.t.shape[0] = 1000;
    ok(x->write(rope, &a, NULL, &e) == ATTN_E_INVALID, "more positions than rows");
    c.positions.t.shape[0] = c.num_tokens;
    ((int64_t *)c.positions.t.data)[3] = 50;
    ok(x->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "positions"),
       "a position beyond the table");
    ((int64_t *)c.positions.t.data)[3] = 1;
    ((int64_t *)c.slots.t.data)[2] = ROPE_BLOCKS * 16;
    ok(x->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "slot_mapping"),
       "a slot beyond the cache");
    ok(memcmp(query, c.query.t.data, c.query_bytes) == 0 &&
           memcmp(cache, c.kv_cache.t.data, c.cache_bytes) == 0,
       "and nothing was touched");
    ((int64_t *)c.slots.t.data)[2] = 2;
    c.positions.t.shape[0] = c.slots.t.shape[0] = 0;
    ok(x->write(rope, &a, NULL, &e) == ATTN_OK && memcmp(query, c.query.t.data, c.query_bytes) == 0,
       "no tokens, no work");
    c.positions.t.shape[0] = c.slots.t.shape[0] = c.num_tokens;
    a.query = NULL;
    ok(x->write(rope, &a, NULL, &e) == ATTN_OK && memcmp(query, c.query.t.data, c.query_bytes) == 0,
       "queries may be left out");
    x->close(rope);
    x->close(NULL);
    free(query), free(cache);
    free_case(&c);
}

int main(void) {
    char path[1024];
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/reference.so", dir ? dir : "plugins-built");
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = so ? dlsym(so, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL) bail_out("%s does not load", path);
    ops = plugin->backends[0]->ops;
    x = ops->get_extension(NULL, ATTN_ROPE_EXTENSION);
    ok(x != NULL && x->struct_size == sizeof *x, "the extension is found by its id");
    if (x == NULL) return tap_done();
    uint64_t seed = tap_seed();
    for (int i = 0; i < ROPE_CASES; i++)
        one(i, seed + (uint64_t)i);
    refusals();
    return tap_done();
}
