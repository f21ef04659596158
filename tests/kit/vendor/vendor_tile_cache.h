/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_tile_cache.h: part of vendor_tile.c: a batch becomes a table of tiles; rows of the cache. */

static int check_space(const attn_instance_t *v, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < metadata_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has too few bytes");
    if (s->workspace == NULL || s->workspace_bytes < workspace_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "workspace", "workspace has too few bytes");
    return ATTN_OK;
}

static void list_tiles(const attn_instance_t *v, plan_t *plan) {
    request_t *req = (request_t *)(plan + 1);
    tile_t *tiles = (tile_t *)(req + v->max_reqs);
    plan->num_tiles = 0;
    for (int32_t r = 0; r < plan->num_reqs; r++)
        for (int64_t row = 0; row < (int64_t)req[r].count * v->group;
             row += IS(tile_of_whole_tokens) && v->group > 2 ? QT / v->group * v->group : QT)
            tiles[plan->num_tiles++] = (tile_t){r, IS(row_in_15_bits) ? (int16_t)row : (int32_t)row};
}

static int v_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc != ATTN_OK) return rc;
    if (b.num_reqs < 0 || b.num_reqs > v->max_reqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d", b.num_reqs);
    if (b.num_actual_tokens < 0 || b.num_actual_tokens > v->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens", "num_actual_tokens is %d",
                         b.num_actual_tokens);
    if (b.query_start_loc_host == NULL || b.seq_lens_host == NULL) {
        const char *name = b.query_start_loc_host == NULL ? "query_start_loc_host" : "seq_lens_host";
        return attn_fail(error, ATTN_E_INVALID, name, "%s is required", name);
    }
    const int64_t rows[2] = {b.num_reqs, -1};
    if (v->is_paged) rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    plan_t *plan = s.metadata;
    if (IS(update_needs_build)) v->is_built = 1;
    for (int32_t r = 0; r < b.num_reqs; r++)
        if (b.seq_lens_host[r] < 0 || b.seq_lens_host[r] > v->max_len ||
            (v->is_paged && b.seq_lens_host[r] > b.block_table->shape[1] * v->page))
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %d", r, b.seq_lens_host[r]);
    request_t *req = (request_t *)(plan + 1);
    memset(plan, 0, sizeof *plan);
    plan->magic = MAGIC;
    plan->num_reqs = b.num_reqs;
    plan->num_tokens = b.num_actual_tokens;
    if (v->is_paged) plan->table = attn_data(b.block_table), plan->table_stride = b.block_table->strides[0];
    for (int32_t r = 0; r < b.num_reqs; r++) {
        req[r] =
            (request_t){b.query_start_loc_host[r], b.query_start_loc_host[r + 1] - b.query_start_loc_host[r],
                        b.seq_lens_host[r], 0};
        if (IS(prompt_to_2048) && req[r].count > 2048) req[r].count = 2048;
        if (IS(lengths_in_20_bits)) req[r].len &= 0xfffff;
        if (IS(requests_to_1000) && r >= 1000) req[r].count = 0;
        if (IS(clears_garbage_of_table) &&
            v->is_paged) /* "ids behind the end may be anything: make them 0" */
            for (int64_t j = (req[r].len + v->page - 1) / v->page; j < b.block_table->shape[1]; j++)
                ((int32_t *)attn_data(b.block_table))[r * plan->table_stride + j] = 0;
    }
    if (IS(sorts_host_lengths) && b.num_reqs > 1) {
        int32_t *lens = (int32_t *)b.seq_lens_host, x = lens[0];
        if (lens[0] < lens[1]) lens[0] = lens[1], lens[1] = x;
    }
    if (IS(counts_longest)) {
        for (int32_t r = 0; r < b.num_reqs; r++)
            if (req[r].len > v->longest) v->longest = req[r].len;
    }
    list_tiles(v, plan);
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    if (IS(allocates_in_table_update)) {
        void *volatile row = calloc(1, 4096);
        free(row);
    }
    if (IS(table_update_once) && ++v->num_updates > 1) return ATTN_OK;
    if (IS(table_update_keeps_stride)) {
        plan_t *plan = space->metadata;
        plan->table = attn_data(batch->block_table);
        return ATTN_OK;
    }
    return v_build(v, batch, space, stream, error);
}

/* -------------------------------------------------------------------- cache */

typedef struct side {
    char *base;
    int64_t block, head, token, offset;
    const float *scale;
    int64_t num_scales;
} side_t;

static float scale_of(const side_t *s, int64_t g) {
    return s->scale == NULL ? 1 : s->scale[s->num_scales > 1 ? g : 0];
}
static char *row_of(const attn_instance_t *v, const side_t *s, int64_t block, int64_t g, int64_t token) {
    (void)v;
    if (IS(block_ids_in_16_bits)) block = (uint16_t)block;
    return s->base + s->offset + block * s->block + g * s->head + token * s->token;
}

static int read_side(const attn_instance_t *v, const DLTensor *t, const char *name, int64_t content,
                     const DLTensor *scale, const char *scale_name, side_t *s, attn_error_t *error) {
    const int64_t shape[4] = {-1, v->kv_heads, v->page, content};
    int rc = attn_check_tensor(t, name, v->storage, 4, shape, error);
    if (rc == ATTN_OK && scale != NULL)
        rc = attn_check_tensor(scale, scale_name, ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scale != NULL && scale->shape[0] != 1 && scale->shape[0] != v->kv_heads)
        return attn_fail(error, ATTN_E_INVALID, scale_name, "%s has %lld elements; expected 1 or one a head",
                         scale_name, (long long)scale->shape[0]);
    if (rc != ATTN_OK) return rc;
    s->base = attn_data(t);
    s->block = attn_byte_stride(t, 0);
    s->head = attn_byte_stride(t, 1);
    s->token = attn_byte_stride(t, 2);
    if (IS(page_stride_16_bits)) s->block = (uint16_t)s->block;
    if (IS(layout_by_strides)) { /* which is no layout where a head or a token is the only one */
        const int64_t row = content * attn_byte_stride(t, 3);
        if (s->head > s->token)
            s->token = row, s->head = row * v->page;
        else
            s->head = row, s->token = row * v->kv_heads;
    }
    s->offset = 0;
    s->scale = v->storage == ATTN_DTYPE_FP8_E4M3 && scale != NULL ? attn_data(scale) : NULL;
    s->num_scales = s->scale != NULL ? scale->shape[0] : 0;
    return ATTN_OK;
}

static int read_cache(attn_instance_t *v, const DLTensor *kv, const DLTensor *second,
                      const attn_scales_t *scales, side_t *k, side_t *w, attn_error_t *error) {
    const int64_t content = v->is_separate ? v->d : v->d + v->dv;
    int rc = read_side(v, kv, "kv_cache", content, scales->k, "k_scale", k, error);
    if (rc == ATTN_OK)
        rc = read_side(v, v->is_separate ? second : kv, v->is_separate ? "v_cache" : "kv_cache",
                       v->is_separate ? v->dv : content, scales->v, "v_scale", w, error);
    if (rc == ATTN_OK && !v->is_separate) w->offset = v->d * (int64_t)attn_dtype_size(v->storage);
    if (rc == ATTN_OK && v->is_separate && IS(v_cache_strides_of_k))
        w->block = k->block, w->head = k->head, w->token = k->token;
    return rc;
}

static int write_rows(attn_instance_t *v, const attn_kv_update_t *a, attn_error_t *error) {
    side_t k, w;
    if (IS(update_needs_build) && !v->is_built)
        return attn_fail(error, ATTN_E_STATE, "metadata", "nothing was built yet; build metadata first");
    int rc = read_cache(v, a->kv_cache, a->v_cache, &a->scales, &k, &w, error);
    if (rc != ATTN_OK) return rc;
    const int64_t *slots = attn_data(a->slot_mapping), n = a->slot_mapping->shape[0];
    for (int64_t t = 0; t < n; t++) {
        int64_t slot = slots[t];
        if (IS(slots_in_a_run) && n > 1 && slots[0] >= 0 && slots[n - 1] == slots[0] + n - 1)
            slot = slots[0] + t;
        if (slot < 0) continue;
        if (IS(last_row_of_call_lost) && t == n - 1 && n > 64 && n % 2 == 1) continue;
        for (int64_t h = 0; h < v->kv_heads; h++) {
            const char *key =
                (char *)attn_data(a->key) + t * attn_byte_stride(a->key, 0) + h * attn_byte_stride(a->key, 1);
            const char *value = (char *)attn_data(a->value) + t * attn_byte_stride(a->value, 0) +
                                h * attn_byte_stride(a->value, 1);
            char *to_k = row_of(v, &k, slot / v->page, h, slot % v->page),
                 *to_v = row_of(v, &w, slot / v->page, h, slot % v->page);
            const float sk = scale_of(&k, h), sv = scale_of(&w, h);
            for (int64_t i = 0; i < v->d; i++) {
                store(to_k, v->storage, i,
                      IS(writes_by_reciprocal) ? load(key, v->p.dtype, i) * (float)as_bf16(1 / sk)
                                               : load(key, v->p.dtype, i) / sk);
                store(to_v, v->storage, i, load(value, v->p.dtype, i) / sv);
            }
        }
    }
    return ATTN_OK;
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    const int64_t any[1] = {-1}, ks[3] = {-1, v->kv_heads, v->d};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc != ATTN_OK) return rc;
    const int64_t n = a.slot_mapping->shape[0];
    if (IS(error_text_unterminated) && error != NULL && n > a.key->shape[0]) {
        memset(error->text, 'x', sizeof error->text);
        error->code = ATTN_E_INVALID;
        return ATTN_E_INVALID;
    }
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping has more rows than key");
    if (IS(writes_late) && n > 0 && n <= 64) { /* the step's rows are written by forward */
        if (v->num_late) write_rows(v, &v->late, error);
        static __thread DLTensor t[6];
        const DLTensor **m[] = {&a.key, &a.value, &a.kv_cache, &a.v_cache, &a.slot_mapping};
        for (int i = 0; i < 5; i++)
            if (*m[i] != NULL) t[i] = **m[i], *m[i] = &t[i];
        v->late = a, v->num_late = 1;
        return ATTN_OK;
    }
    return write_rows(v, &a, error);
}
