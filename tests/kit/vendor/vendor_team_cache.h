/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_team_cache.h: part of vendor_team.c: numbers, rows of the cache and how they are written. */

static float load(const char *row, uint32_t dtype, int64_t i) {
    uint16_t h;
    float x;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT32:
        memcpy(&x, row + 4 * i, 4);
        return IS(subnormals_flushed) && fabsf(x) < 0x1p-126f ? 0 : x;
    case ATTN_DTYPE_FLOAT16:
        memcpy(&h, row + 2 * i, 2);
        return (float)attn_from_f16(h);
    case ATTN_DTYPE_BFLOAT16:
        memcpy(&h, row + 2 * i, 2);
        return (float)attn_from_bf16(h);
    case ATTN_DTYPE_FP8_E4M3:
        return (float)attn_from_e4m3((uint8_t)row[i]);
    default:
        return (float)(IS(int8_unsigned) ? (uint8_t)row[i] : (int8_t)row[i]);
    }
}
static void store(char *row, uint32_t dtype, int64_t i, float x) {
    const uint16_t h = dtype == ATTN_DTYPE_BFLOAT16  ? attn_to_bf16(x)
                       : dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16(x)
                                                     : 0;
    if (dtype == ATTN_DTYPE_FLOAT32)
        memcpy(row + 4 * i, &x, 4);
    else if (dtype == ATTN_DTYPE_FP8_E4M3)
        row[i] = (char)attn_to_e4m3(x);
    else
        memcpy(row + 2 * i, &h, 2);
}

typedef struct cache {
    char *base;
    int64_t block, head, token, v_at, page, blocks;
    const float *k, *v;
    int64_t num_k, num_v;
} cache_t;

static int read_cache(const attn_instance_t *v, const DLTensor *t, const attn_scales_t *scales, cache_t *c,
                      attn_error_t *error) {
    const int64_t shape[4] = {-1, v->kv_heads, v->page, v->content};
    int rc = attn_check_tensor(t, "kv_cache", v->storage, 4, shape, error);
    const DLTensor *k = v->is_static ? scales->k : NULL, *w = v->is_static ? scales->v : NULL;
    if (rc == ATTN_OK && k != NULL) rc = attn_check_tensor(k, "k_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && w != NULL) rc = attn_check_tensor(w, "v_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && k != NULL && k->shape[0] != 1 && k->shape[0] != v->kv_heads)
        rc = attn_fail(error, ATTN_E_INVALID, "k_scale", "k_scale has neither 1 element nor one a head");
    if (rc == ATTN_OK && w != NULL && w->shape[0] != 1 && w->shape[0] != v->kv_heads)
        rc = attn_fail(error, ATTN_E_INVALID, "v_scale", "v_scale has neither 1 element nor one a head");
    if (rc != ATTN_OK) return rc;
    c->base = attn_data(t);
    c->block = attn_byte_stride(t, 0);
    c->head = attn_byte_stride(t, 1);
    c->token = attn_byte_stride(t, 2);
    c->page = v->page, c->blocks = t->shape[0];
    c->v_at = v->v_at;
    if (IS(value_at_model_size)) c->v_at = v->d * (int64_t)attn_dtype_size(v->p.dtype);
    c->k = k != NULL ? attn_data(k) : NULL, c->num_k = k != NULL ? k->shape[0] : 0;
    c->v = w != NULL ? attn_data(w) : NULL, c->num_v = w != NULL ? w->shape[0] : 0;
    return ATTN_OK;
}
static float scale_of(const float *s, int64_t n, int64_t h) {
    return s == NULL ? 1 : s[n > 1 ? h : 0];
}
static char *row_of(const cache_t *c, int64_t block, int64_t h, int64_t token) {
    if (IS(tokens_swizzled)) token ^= 1; /* pages have an even number of them */
    if (IS(heads_in_32_bits)) return c->base + block * c->block + (int32_t)(h * c->head) + token * c->token;
    return c->base + block * c->block + h * c->head + token * c->token;
}

/* A row of int8 and its scale behind it. */
static void store_int8(const attn_instance_t *v, char *row, int64_t data, int64_t scale_at, int64_t n,
                       const char *from, const float *other) {
    float most = 0, scale;
    int is_nan = 0;
    for (int64_t i = 0; i < n; i++) {
        const float x = fabsf(load(from, v->p.dtype, i));
        is_nan = is_nan || isnan(x);
        if (x > most) most = x;
    }
    scale = fmaxf(most / 127, IS(int8_zero_row) ? 0 : 1e-6f);
    if (IS(int8_scale_of_128)) scale = fmaxf(most / 128, 1e-6f);
    if (IS(int8_scale_in_half)) scale = (float)attn_from_f16(attn_to_f16(scale));
    if (IS(int8_value_by_key_scale) && other != NULL) scale = *other;
    if (is_nan && !IS(int8_nan_lost)) scale = NAN;
    for (int64_t i = 0; i < n; i++) {
        float x = load(from, v->p.dtype, i) / scale;
        x = IS(int8_cut) ? truncf(x) : roundf(x);
        row[data + i] = (char)(int8_t)(isnan(x) ? 0 : fmaxf(-128, fminf(127, x)));
    }
    if (IS(int8_scale_aligned)) scale_at = (scale_at + 3) / 4 * 4 - (scale_at % 4 != 0 ? 4 : 0);
    memcpy(row + scale_at, &scale, 4);
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    cache_t c;
    const int64_t any[1] = {-1}, ks[3] = {-1, v->kv_heads, v->d}, vs[3] = {-1, v->kv_heads, v->dv};
    int rc = take(&a, sizeof a, args, "args", IS(update_whole), IS(update_equal), IS(update_tail), error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, vs, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, &a.scales, &c, error);
    if (rc != ATTN_OK) return rc;
    const int64_t n = a.slot_mapping->shape[0];
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping has more rows than key");
    const int64_t *slots = IS(slots_offset_ignored) ? a.slot_mapping->data : attn_data(a.slot_mapping);
    if (IS(grows_in_update) && n > v->grown_size) {
        v->grown = realloc(v->grown, (size_t)n * sizeof(float));
        v->grown_size = n;
    }
    float stack[IS(update_on_stack) ? n * 4 + 1 : 1];
    stack[0] = 0;
    if (IS(update_on_stack)) memset(stack, 0, sizeof stack);
    hole = (int)stack[0];
    for (int64_t t = 0; t < n; t++) {
        const int64_t slot = slots[t], next = IS(slots_read_ahead) ? slots[t + 1] : 0;
        hole = IS(slots_read_ahead) ? (int)next : 0;
        if (slot < 0) continue;
        if (IS(update_of_eights) && n > 8 && t >= n / 8 * 8) break;
        const int64_t block = slot / v->page, token = slot % v->page;
        if (block >= c.blocks) continue;
        for (int64_t h = 0; h < v->kv_heads; h++) {
            const char *key = (char *)(IS(key_offset_ignored) ? a.key->data : attn_data(a.key)) +
                              t * attn_byte_stride(a.key, 0) + h * attn_byte_stride(a.key, 1);
            const char *value = (char *)(IS(value_offset_ignored) ? a.value->data : attn_data(a.value)) +
                                t * attn_byte_stride(a.value, 0) + h * attn_byte_stride(a.value, 1);
            if (IS(value_rows_in_32_bits))
                value = (char *)attn_data(a.value) +
                        (int32_t)((uint32_t)t * (uint32_t)attn_byte_stride(a.value, 0)) +
                        h * attn_byte_stride(a.value, 1);
            char *row = row_of(&c, block, h, token);
            if (IS(cache_aligned_16) && (uintptr_t)row % 16 != 0) __builtin_trap();
            if (v->k_scale_at >= 0) {
                store_int8(v, row, 0, v->k_scale_at, v->d, key, NULL);
                float scale;
                memcpy(&scale, row + v->k_scale_at, 4);
                store_int8(v, row, c.v_at, v->v_scale_at, v->dv, value, &scale);
                continue;
            }
            const float sk = scale_of(c.k, c.num_k, h), sv = scale_of(c.v, c.num_v, h);
            for (int64_t i = 0; i < v->d; i++) {
                float x = load(key, v->p.dtype, i);
                if (IS(keys_stored_scaled)) x *= 0.5f;
                store(row, v->storage, i, x / sk);
            }
            for (int64_t i = 0; i < v->dv; i++)
                store(row + c.v_at, v->storage, i, load(value, v->p.dtype, i) / sv);
        }
    }
    return ATTN_OK;
}
