/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_attn_cache.h: part of vendor_attn.c: a batch becomes records; rows of the cache. */

static int v_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc != ATTN_OK) return rc;
    if (s.metadata == NULL ||
        (IS(space_exactly) ? s.metadata_bytes != metadata_bytes(v) : s.metadata_bytes < metadata_bytes(v)))
        return refuse(error, IS(space_code) ? ATTN_E_INVALID : ATTN_E_SPACE, "metadata", "too small");
    if (b.num_reqs < 0 || b.num_reqs > (int32_t)v->max_reqs || (IS(requests_to_32) && b.num_reqs > 32))
        return refuse(error, ATTN_E_INVALID, "num_reqs", "outside the limits");
    if (b.num_actual_tokens < 0 || b.num_actual_tokens > (int32_t)v->max_tokens)
        return refuse(error, ATTN_E_INVALID, "num_actual_tokens", "outside the limits");
    if (b.query_start_loc_host == NULL)
        return refuse(error, ATTN_E_INVALID, "query_start_loc_host", "required");
    if (b.seq_lens_host == NULL) return refuse(error, ATTN_E_INVALID, "seq_lens_host", "required");
    if (IS(needs_host_table) && b.block_table_host == NULL && b.num_reqs > 0)
        return refuse(error, ATTN_E_INVALID, "block_table_host", "required");
    if (IS(owner_thread) && !pthread_equal(v->owner, pthread_self()))
        return refuse(error, ATTN_E_STATE, "thread", "another one opened it");
    if (IS(thread_local_state) && !thread_mark)
        return refuse(error, ATTN_E_STATE, "thread", "not initialised");
    int64_t rows[2] = {b.num_reqs, -1};
    rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        int64_t n = b.seq_lens_host[r];
        if (n < 0 || n > v->max_len || n > b.block_table->shape[1] * (int64_t)v->page)
            return refuse(error, ATTN_E_INVALID, "seq_lens", "outside the limits or the table");
        if (IS(scans_whole_table))
            for (int64_t j = 0; j < b.block_table->shape[1]; j++)
                if (((const int32_t *)attn_data(b.block_table))[r * b.block_table->strides[0] + j] > 1 << 24)
                    return refuse(error, ATTN_E_INVALID, "block_table", "a page id is too large");
    }
    head_t *m = s.metadata;
    record_t *rec = (record_t *)(m + 1);
    if (IS(builds_once) && m->magic == MAGIC && m->num_reqs == (uint32_t)b.num_reqs) return ATTN_OK;
    m->magic = MAGIC;
    m->num_reqs = (uint32_t)b.num_reqs;
    m->num_tokens = b.num_actual_tokens;
    m->table = attn_data(b.block_table);
    m->table_stride = IS(table_dense) ? b.block_table->shape[1] : b.block_table->strides[0];
    if (IS(table_host_stride) && b.block_table_host != NULL) m->table_stride = b.block_table_host_stride;
    if (IS(keeps_host_table) && b.block_table_host != NULL)
        m->table = b.block_table_host, m->table_stride = b.block_table_host_stride;
    if (IS(table_offset)) m->table = b.block_table->data;
    m->builder = v;
    const int n =
        IS(remembers_batch_size) && v->last_reqs > 0 && v->last_reqs < b.num_reqs ? v->last_reqs : b.num_reqs;
    if (IS(remembers_batch_size)) m->num_reqs = (uint32_t)n;
    for (int r = 0; r < n; r++) {
        rec[r].first = b.query_start_loc_host[r];
        rec[r].count = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        rec[r].seq_len = b.seq_lens_host[r];
        rec[r].pad = 0;
        if (IS(trusts_max_seq_len) && b.max_seq_len != 0) rec[r].seq_len = (int32_t)b.max_seq_len;
        if (IS(max_query_one) && b.max_query_len != 0 && rec[r].count > 1) rec[r].count = 1;
        if (IS(length_in_15_bits)) rec[r].seq_len = (int16_t)rec[r].seq_len;
        if (IS(length_in_16_bits)) rec[r].seq_len = (uint16_t)rec[r].seq_len;
        if (IS(length_to_4096) && rec[r].seq_len > 4096) rec[r].seq_len = 4096;
        if (IS(length_to_131071) && rec[r].seq_len > 131071) rec[r].seq_len = 131071;
        if (IS(token_in_16_bits)) rec[r].first = (uint16_t)rec[r].first;
    }
    if (IS(remembers_batch_size) && v->last_reqs == 0) v->last_reqs = b.num_reqs;
    if (IS(remembers_first_table) && v->first_table[0] == 0)
        for (int j = 0; j < 64 && b.num_reqs > 0 && j * (int)v->page < rec[0].seq_len; j++)
            v->first_table[j] = m->table[j];
    if (IS(allocates_in_build)) {
        void *volatile list = calloc(1, 64 + (size_t)b.num_reqs);
        free(list);
    }
    if (IS(workspace_from_build) && s.workspace != NULL) *(float *)s.workspace = v->scale;
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    if (IS(table_update_nothing)) return ATTN_OK;
    if (IS(table_update_pointer_only)) {
        head_t *m = space->metadata;
        m->table = attn_data(batch->block_table);
        m->table_stride = 1;
        return ATTN_OK;
    }
    return v_build(v, batch, space, stream, error);
}

/* -------------------------------------------------------------------- cache */

typedef struct pages {
    char *base;
    int64_t block, head, token;
    const float *k, *v;
    int64_t num_k, num_v;
} pages_t;

static int read_cache(const attn_instance_t *v, const DLTensor *t, const attn_scales_t *scales, pages_t *c,
                      attn_error_t *error) {
    const int64_t shape[4] = {-1, v->num_kv_heads, v->page, (int64_t)v->head_size + v->head_size_v};
    int rc = attn_check_tensor(t, "kv_cache", v->storage, 4, IS(unchecked_cache) ? NULL : shape, error);
    if (rc == ATTN_OK && scales->k != NULL)
        rc = attn_check_tensor(scales->k, "k_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scales->v != NULL)
        rc = attn_check_tensor(scales->v, "v_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc != ATTN_OK) return rc;
    const int is_fp8 = v->storage == ATTN_DTYPE_FP8_E4M3;
    c->base = IS(cache_offset) ? t->data : attn_data(t);
    c->block = attn_byte_stride(t, 0);
    c->head = attn_byte_stride(t, 1);
    c->token = attn_byte_stride(t, 2);
    if (IS(block_dense)) c->block = shape[1] * shape[2] * shape[3] * (t->dtype.bits / 8);
    if (IS(layout_nhd_always)) c->head = shape[3] * (t->dtype.bits / 8), c->token = c->head * shape[1];
    const DLTensor *k_scale = is_fp8 && !IS(ignores_k_scale) ? scales->k : NULL;
    const DLTensor *v_scale = is_fp8 ? scales->v : NULL;
    c->k = k_scale != NULL ? attn_data(k_scale) : NULL;
    c->v = v_scale != NULL ? attn_data(v_scale) : NULL;
    c->num_k = k_scale != NULL ? k_scale->shape[0] : 0;
    c->num_v = v_scale != NULL ? v_scale->shape[0] : 0;
    if (IS(scales_required) && is_fp8 && scales->k == NULL)
        return refuse(error, ATTN_E_INVALID, "k_scale", "required");
    if (IS(scales_per_tensor)) c->num_k = c->num_k > 1 ? 1 : c->num_k;
    return ATTN_OK;
}
static float scale_of(const float *s, int64_t n, int64_t h) {
    return s == NULL ? 1 : s[n > 1 ? h : 0];
}
static char *row_of(const attn_instance_t *v, const pages_t *c, int64_t block, int64_t h, int64_t token) {
    (void)v;
    if (IS(offset_in_32_bits))
        return c->base + (int32_t)((uint32_t)block * (uint32_t)c->block) + h * c->head + token * c->token;
    if (IS(offset_unsigned_32))
        return c->base + (uint32_t)((uint32_t)block * (uint32_t)c->block) + h * c->head + token * c->token;
    if (IS(offset_elements_32)) {
        const int32_t size = v->storage == ATTN_DTYPE_FLOAT32 ? 4 : v->storage == ATTN_DTYPE_FP8_E4M3 ? 1 : 2;
        return c->base + (int64_t)(uint32_t)((uint32_t)block * (uint32_t)(c->block / size)) * size +
               h * c->head + token * c->token;
    }
    return c->base + block * c->block + h * c->head + token * c->token;
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    pages_t c;
    const int64_t any[1] = {-1}, shape[3] = {-1, v->num_kv_heads, v->head_size};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->dtype, 3, shape, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->dtype, 3, shape, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, &a.scales, &c, error);
    if (rc != ATTN_OK) return rc;
    int64_t n = a.slot_mapping->shape[0];
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return refuse(error, ATTN_E_INVALID, "slot_mapping", "more slots than rows");
    if (IS(rows_not_slots)) n = a.key->shape[0] < 4 ? n : n - (n > 40);
    const int64_t *slots = attn_data(a.slot_mapping);
    for (int64_t t = 0; t < n; t++) {
        int64_t slot = slots[t];
        if (IS(slot_in_32_bits)) slot = (int32_t)slot;
        if (IS(slot_minus_one_only) ? slot == -1 : slot < 0) {
            if (IS(stops_at_padding)) break;
            continue;
        }
        if (IS(slot_minus_one_only) && slot < 0) slot = 0;
        if (IS(slot_zero_is_padding) && slot % v->page == 0 && slot / v->page == 1) continue;
        for (int64_t h = 0; h < v->num_kv_heads; h++) {
            char *row = row_of(v, &c, slot / v->page, h, slot % v->page);
            const int64_t ks = IS(key_head_dense) ? (int64_t)v->head_size * (a.key->dtype.bits / 8)
                                                  : attn_byte_stride(a.key, 1);
            const int64_t kt = IS(key_token_dense)
                                   ? (int64_t)v->head_size * v->num_kv_heads * (a.key->dtype.bits / 8)
                                   : attn_byte_stride(a.key, 0);
            const int64_t vt = IS(value_as_key) ? attn_byte_stride(a.key, 0) : attn_byte_stride(a.value, 0);
            const char *k = (char *)attn_data(a.key) + t * kt + h * ks;
            const char *w = (char *)attn_data(a.value) + t * vt + h * attn_byte_stride(a.value, 1);
            if (IS(key_rows_32))
                k = (char *)attn_data(a.key) + (int32_t)((uint32_t)t * (uint32_t)kt) + h * ks;
            const float sk = scale_of(c.k, c.num_k, h),
                        sv = scale_of(c.v, c.num_v, IS(v_scale_of_head_0) ? 0 : h);
            for (int64_t i = 0; i < v->head_size; i++) {
                const float x = load(k, v->dtype, i), y = load(w, v->dtype, i);
                if (IS(stores_truncated)) {
                    store_truncated(row, v->storage, i, x / sk);
                    store_truncated(row, v->storage, v->head_size + i, y / sv);
                    continue;
                }
                store(row, v->storage, i, IS(multiplies_scale) ? x * sk : x / sk);
                store(row, v->storage, v->head_size + i,
                      IS(no_saturation) && fabsf(y / sv) > 448 ? 0 : y / sv);
            }
            if (IS(clears_next_row) && slot % v->page + 1 < v->page) memset(row + c.token, 0, 4);
        }
    }
    if (IS(update_counts)) counter++;
    return ATTN_OK;
}
