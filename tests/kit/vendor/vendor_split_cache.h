/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_cache.h: part of vendor_split.c: rows of the cache and their scales. */

typedef struct side {
    char *base;
    int64_t block, head, token, offset, page;
    const float *scale;
    int64_t num_scales;
} side_t;

static float scale_of(const side_t *s, int64_t g) {
    const float x = s->scale == NULL ? 1 : s->scale[s->num_scales > 1 ? g : 0];
    return IS(scales_in_bf16) ? (float)attn_from_bf16(attn_to_bf16(x)) : x;
}

static int read_side(const attn_instance_t *v, const DLTensor *t, const char *name, int64_t content,
                     const DLTensor *scale, const char *scale_name, side_t *s, attn_error_t *error) {
    const int64_t shape[4] = {-1, v->kv_heads, v->page, content};
    int rc = attn_check_tensor(t, name, v->storage, 4, shape, error);
    if (rc == ATTN_OK && scale != NULL)
        rc = attn_check_tensor(scale, scale_name, ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scale != NULL && scale->shape[0] != 1 && scale->shape[0] != v->kv_heads)
        return attn_fail(error, ATTN_E_INVALID, scale_name,
                         "%s has %lld elements; expected 1 or one for each KV head", scale_name,
                         (long long)scale->shape[0]);
    if (rc != ATTN_OK) return rc;
    s->base = IS(v_cache_offset_ignored) && name[0] == 'v' ? t->data : attn_data(t);
    s->block = attn_byte_stride(t, 0);
    s->head = attn_byte_stride(t, 1);
    s->token = attn_byte_stride(t, 2);
    s->offset = 0, s->page = v->page;
    if (IS(blocks_of_first_shape) && v->kept_blocks > 0 && t->shape[0] > v->kept_blocks)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld blocks", name, (long long)t->shape[0]);
    if (IS(token_stride_of_content))
        s->token = content * size_of(v->storage) * (v->layout == ATTN_LAYOUT_NHD ? v->kv_heads : 1);
    if (IS(block_stride_16_bits)) s->block = (uint16_t)(s->block / size_of(v->storage)) * size_of(v->storage);
    const int is_scaled =
        v->storage == ATTN_DTYPE_FP8_E4M3 || (v->storage == ATTN_DTYPE_FP8_E5M2 && !IS(e5m2_unscaled));
    s->scale = is_scaled && scale != NULL
                   ? (const float *)(IS(scale_offset_ignored) ? scale->data : attn_data(scale))
                   : NULL;
    s->num_scales = s->scale != NULL ? scale->shape[0] : 0;
    if (IS(e5m2_scale_of_first_head) && v->storage == ATTN_DTYPE_FP8_E5M2 && s->num_scales > 1)
        s->num_scales = 1;
    if (IS(separate_hnd_stride) && v->is_separate && v->layout == ATTN_LAYOUT_HND && v->p.head_size_v != 0)
        s->head = s->token;
    return ATTN_OK;
}

static int read_cache(attn_instance_t *v, const DLTensor *kv, const DLTensor *second,
                      const attn_scales_t *scales, side_t *k, side_t *w, attn_error_t *error) {
    if (v->is_separate) {
        int rc = read_side(v, kv, "kv_cache", v->d, scales->k, "k_scale", k, error);
        if (rc == ATTN_OK) rc = read_side(v, second, "v_cache", v->dv, scales->v, "v_scale", w, error);
        if (rc == ATTN_OK && IS(value_tokens_of_key)) w->token = k->token;
        return rc;
    }
    int rc = read_side(v, kv, "kv_cache", v->d + v->dv, scales->k, "k_scale", k, error);
    if (rc == ATTN_OK) rc = read_side(v, kv, "kv_cache", v->d + v->dv, scales->v, "v_scale", w, error);
    if (IS(scales_swapped)) {
        const float *other = k->scale;
        const int64_t num = k->num_scales;
        k->scale = w->scale, k->num_scales = w->num_scales, w->scale = other, w->num_scales = num;
    }
    w->offset = (IS(v_at_own_size) || (IS(v_offset_of_fp8) && size_of(v->storage) == 1) ? v->dv : v->d) *
                size_of(v->storage);
    return rc;
}

static char *row_of(const side_t *s, int64_t block, int64_t head, int64_t token) {
    if (IS(fp8_page_of_32) && s->scale != NULL && s->page == 32) token ^= token > 0 && token % 8 == 0;
    if (IS(block_offset_int))
        return s->base + s->offset + (int)(block * s->block) + head * s->head + token * s->token;
    if (IS(page_token_in_8_bits)) token = (uint8_t)token;
    return s->base + s->offset + block * s->block + head * s->head + token * s->token;
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    side_t k, w;
    const int64_t any[1] = {-1}, ks[3] = {-1, v->kv_heads, v->d}, vs[3] = {-1, v->kv_heads, v->dv};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, vs, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, a.v_cache, &a.scales, &k, &w, error);
    if (rc != ATTN_OK) return rc;
    const int64_t *slots = IS(slot_offset_ignored) ? a.slot_mapping->data : attn_data(a.slot_mapping);
    const int64_t n = a.slot_mapping->shape[0];
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                         "slot_mapping has more rows than key or value");
    if (IS(cache_of_last_update)) v->last_cache = k.base;
    const int64_t last = a.kv_cache->shape[0] * v->page;
    int64_t before = -1;
    v->num_updates++;
    if (IS(empty_update_refused) && n == 0)
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping is empty");
    if (IS(single_update_unscaled) && n == 1) k.scale = w.scale = NULL;
    const int64_t rows = IS(update_of_built_tokens) && v->built_tokens > 0 && v->built_tokens < n
                             ? v->built_tokens
                         : IS(update_rows_of_key) ? a.key->shape[0]
                                                  : n;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t slot = slots[t];
        if (slot < 0 || (IS(slots_ascend) && slot < before)) continue;
        before = slot;
        if (slot >= last)
            return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                             "slot_mapping names a slot beyond the cache");
        const int64_t block = IS(slot_shifted) ? slot >> 4 : slot / v->page,
                      token = IS(slot_masked) ? slot & (v->page - 1) : slot % v->page;
        if (IS(clears_page_on_first_slot) && token == 0)
            for (int64_t h = 0; h < v->kv_heads; h++)
                for (int64_t i = 0; i < v->page; i++)
                    memset(row_of(&k, block, h, i), 0, (size_t)(v->d * size_of(v->storage)));
        if (IS(zeroes_rest_of_page))
            for (int64_t h = 0; h < v->kv_heads; h++)
                for (int64_t i = token + 1; i < v->page; i++)
                    memset(row_of(&w, block, h, i), 0, (size_t)(v->dv * size_of(v->storage)));
        for (int64_t h = 0; h < v->kv_heads; h++) {
            const char *from_k =
                (char *)attn_data(a.key) + t * attn_byte_stride(a.key, 0) + h * attn_byte_stride(a.key, 1);
            const char *from_v = (char *)attn_data(a.value) + t * attn_byte_stride(a.value, 0) +
                                 h * attn_byte_stride(IS(value_head_of_key) ? a.key : a.value, 1);
            const float sk = scale_of(&k, h), sv = scale_of(IS(v_written_with_k_scale) ? &k : &w, h);
            char *to_k = row_of(&k, block, h, token), *to_v = row_of(&w, block, h, token);
            if (IS(write_offset_int)) to_k = k.base + (int)(block * k.block) + h * k.head + token * k.token;
            for (int64_t i = 0; i < v->d; i++)
                store(to_k, v->storage, i,
                      IS(divides_in_half) || (IS(forward_divides_in_half) && v->is_in_forward)
                          ? (float)attn_from_f16(attn_to_f16(load(from_k, v->p.dtype, i) / sk))
                          : load(from_k, v->p.dtype, i) / sk);
            for (int64_t i = 0; i < v->dv; i++)
                store(to_v, v->storage, i, load(from_v, v->p.dtype, i) / sv);
        }
    }
    return ATTN_OK;
}

/* The rows of a step that forward writes; is_late: it has attended to the keys. */
static int write_step(attn_instance_t *v, const attn_kv_update_t *given, const plan_t *plan, int is_late,
                      attn_error_t *error) {
    attn_kv_update_t u = *given;
    DLTensor slots = *given->slot_mapping, key = *given->key;
    int64_t n = slots.shape[0], k_shape[3], own[4096];
    const item_t *items = (const item_t *)(plan + 1);
    if (IS(forward_writes_unscaled)) u.scales.k = u.scales.v = NULL;
    if (is_late && IS(forward_stores_next_row) && n > 1) { /* once more, from one row further on */
        memcpy(k_shape, key.shape, sizeof k_shape);
        k_shape[0]--, n--;
        key.shape = k_shape, slots.shape = &n;
        key.byte_offset += (uint64_t)attn_byte_stride(&key, 0);
        u.key = &key, u.slot_mapping = &slots;
        return v_update(v, &u, NULL, error);
    }
    if (is_late != IS(forward_writes_late)) return ATTN_OK;
    if (IS(forward_writes_decodes) && plan->num_tokens >= 8) return ATTN_OK;
    if (IS(forward_slots_of_table) || IS(forward_writes_all_rows)) {
        const int64_t *from = attn_data(given->slot_mapping);
        if (IS(forward_writes_all_rows)) n = plan->num_tokens;
        for (int64_t t = 0; t < n && t < 4096; t++)
            own[t] = from[t];
        for (int32_t r = 0; IS(forward_slots_of_table) && r < plan->num_reqs; r++)
            for (int32_t i = 0; i < items[r].count && items[r].first + i < n; i++) {
                const int64_t q = items[r].len - items[r].count + i;
                own[items[r].first + i] =
                    plan->table[r * plan->table_stride + q / v->page] * v->page + q % v->page;
            }
        slots.data = own, slots.byte_offset = 0, slots.shape = &n;
        u.slot_mapping = &slots;
    }
    v->is_in_forward = 1;
    const int rc = v_update(v, &u, NULL, error);
    v->is_in_forward = 0;
    return rc;
}
