/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_team_build.h: part of vendor_team.c: a batch becomes a list of items. */

static int check_space(const attn_instance_t *v, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < metadata_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has too few bytes");
    if (s->workspace == NULL || s->workspace_bytes < workspace_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "workspace", "workspace has too few bytes");
    return ATTN_OK;
}
static request_t *requests_of(plan_t *plan) {
    return (request_t *)(plan + 1);
}
static item_t *items_of(const attn_instance_t *v, plan_t *plan) {
    return (item_t *)(requests_of(plan) + v->max_reqs);
}

/* Structs in: what only faults do otherwise. */
static int take(void *to, size_t size, const void *from, const char *name, int is_whole, int is_equal,
                int is_known, attn_error_t *error) {
    if (is_whole) return memcpy(to, from, size), ATTN_OK;
    if (is_equal && *(const uint32_t *)from != size)
        return attn_fail(error, ATTN_E_ABI, name, "%s has another size", name);
    return is_known ? attn_intake_known(to, size, from, name, error)
                    : attn_intake(to, size, from, name, error);
}

static void list_items(attn_instance_t *v, plan_t *plan) {
    item_t *items = items_of(v, plan);
    const request_t *req = requests_of(plan);
    int32_t n = 0, slots = 0;
    const int32_t average = IS(empty_batch_divides) ? plan->num_tokens / plan->num_reqs : 1;
    hole = average;
    for (int32_t r = 0; r < plan->num_reqs; r++) {
        const int32_t prefix = plan->prefix <= req[r].len ? plan->prefix : 0;
        const int32_t rest = req[r].len - prefix;
        for (int32_t row = 0; row < req[r].count; row += QB) {
            const int32_t rows = req[r].count - row < QB ? req[r].count - row : QB;
            int32_t parts = req[r].count == 1 ? (rest + PART - 1) / PART : 1;
            if (parts > PARTS) parts = PARTS;
            if (parts < 1) parts = 1;
            const int32_t whole = parts + (prefix > 0);
            int32_t each = (rest + parts - 1) / parts;
            if (IS(parts_rounded_down) && parts > 1) each = rest / parts;
            for (int32_t k = 0; k < whole; k++) {
                const int32_t at = k - (prefix > 0);
                item_t *i = &items[n++];
                *i = (item_t){.request = r, .row = row, .rows = rows, .part = k, .parts = whole};
                if (IS(rows_in_16_bits)) i->row = (int16_t)row;
                i->slot = whole > 1 ? slots + k * rows : -1;
                i->from = at < 0 ? 0 : prefix + at * each;
                i->end = at < 0                                  ? prefix
                         : prefix + (at + 1) * each < req[r].len ? prefix + (at + 1) * each
                                                                 : req[r].len;
                if (IS(prefix_twice) && prefix > 0 && at == 0) i->from = 0;
                if (IS(prefix_of_pages_lost) && at < 0 && prefix > (int32_t)v->page)
                    i->end = prefix - (int32_t)v->page;
                if (IS(prefix_of_16_pages) && at < 0 && prefix > 16 * v->page) i->end = 16 * (int32_t)v->page;
                if (i->from > req[r].len) i->from = req[r].len;
            }
            if (whole > 1) slots += whole * rows;
        }
    }
    plan->num_items = n;
    if (IS(sentinel_request)) ((request_t *)req)[plan->num_reqs].count = -1;
}

static int v_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int rc = take(&b, sizeof b, batch, "batch", IS(batch_whole), IS(batch_equal), IS(batch_tail), error);
    if (rc == ATTN_OK) rc = take(&s, sizeof s, space, "space", 0, IS(space_equal), IS(space_tail), error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc != ATTN_OK) return rc;
    if (IS(asserts_limits)) assert(b.num_reqs <= v->max_reqs && b.num_actual_tokens <= v->max_tokens);
    if (IS(error_struct_assumed) && b.num_reqs > v->max_reqs) return error->code = ATTN_E_INVALID;
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
    const uint64_t f = v->p.features;
    if (v->is_paged) rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc == ATTN_OK && (f & ATTN_F_KEY_LENGTHS) && b.key_start_loc_host == NULL)
        rc = attn_fail(error, ATTN_E_INVALID, "key_start_loc_host", "key_start_loc_host is required");
    const int64_t starts[1] = {b.num_reqs + 1};
    if (rc == ATTN_OK && (f & ATTN_F_DEVICE_LENGTHS))
        rc = attn_check_tensor(b.query_start_loc, "query_start_loc", ATTN_DTYPE_INT32, 1, starts, error);
    if (rc == ATTN_OK && (f & ATTN_F_DEVICE_LENGTHS))
        rc = attn_check_tensor(b.seq_lens, "seq_lens", ATTN_DTYPE_INT32, 1, rows, error);
    if (rc != ATTN_OK) return rc;
    for (int32_t r = 0; r < b.num_reqs; r++)
        if (b.seq_lens_host[r] < 0 || b.seq_lens_host[r] > v->max_len ||
            (v->is_paged && b.seq_lens_host[r] > b.block_table->shape[1] * v->page))
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %d", r, b.seq_lens_host[r]);
    for (int32_t r = 0; (f & ATTN_F_KEY_LENGTHS) && r < b.num_reqs; r++) {
        const int32_t at = b.key_start_loc_host[r], rows = b.key_start_loc_host[r + 1] - at;
        if ((r == 0 && at != 0) || rows < 0)
            return attn_fail(error, ATTN_E_INVALID, "key_start_loc_host", "key_start_loc_host[%d] is %d", r,
                             at);
        if (rows < b.seq_lens_host[r])
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is above its %d rows", r, rows);
    }
    const int64_t most_keys = v->p.max_num_batched_keys != 0 ? v->p.max_num_batched_keys : v->max_tokens;
    if ((f & ATTN_F_KEY_LENGTHS) && b.key_start_loc_host[b.num_reqs] > most_keys)
        return attn_fail(error, ATTN_E_INVALID, "key_start_loc_host",
                         "key_start_loc_host ends at %d, above %lld", b.key_start_loc_host[b.num_reqs],
                         (long long)most_keys);
    plan_t *plan = s.metadata;
    int64_t sum = 0;
    for (int32_t r = 0; r < b.num_reqs; r++)
        sum += b.seq_lens_host[r];
    if (IS(builds_by_sum) && plan->magic == MAGIC && plan->num_reqs == b.num_reqs && plan->sum == sum &&
        plan->num_tokens == b.num_actual_tokens)
        return ATTN_OK;
    if (IS(builds_by_address) && plan->magic == MAGIC && plan->host_lens == b.seq_lens_host &&
        plan->num_reqs == b.num_reqs && plan->num_tokens == b.num_actual_tokens)
        return ATTN_OK;
    const plan_t was = plan->magic == MAGIC ? *plan : (plan_t){0};
    memset(plan, 0, sizeof *plan);
    if (IS(prefix_not_cleared) && b.common_prefix_len == 0 && b.num_reqs == was.num_reqs)
        b.common_prefix_len = was.prefix;
    if (IS(spans_not_cleared)) plan->spans = was.spans, plan->num_spans = was.num_spans;
    plan->magic = MAGIC;
    plan->sum = sum;
    plan->num_reqs = b.num_reqs;
    plan->num_tokens = b.num_actual_tokens;
    plan->prefix = b.common_prefix_len;
    if (v->is_paged) {
        plan->table = attn_data(b.block_table);
        plan->table_stride = b.block_table->strides[0];
        plan->table_tensor = b.block_table;
        if (IS(table_strides_by_bound) && b.max_seq_len > 0)
            plan->table_stride = b.block_table->shape[1] * v->page > b.max_seq_len ? plan->table_stride
                                                                                   : b.block_table->shape[1];
    }
    plan->host_lens = b.seq_lens_host;
    if ((f & ATTN_F_MM_PREFIX) != 0 && b.mm_prefix_ranges != NULL) {
        plan->spans = attn_data(b.mm_prefix_ranges);
        plan->num_spans = (int32_t)b.mm_prefix_ranges->shape[1];
        plan->span_stride = b.mm_prefix_ranges->strides[0];
        if (IS(spans_to_four) && plan->num_spans > 4) plan->num_spans = 4;
    }
    if ((f & ATTN_F_DEVICE_LENGTHS) != 0) {
        plan->starts = attn_data(b.query_start_loc);
        plan->lens = attn_data(b.seq_lens);
        if (IS(device_starts_ignored)) plan->starts = NULL;
        if (IS(device_lens_ignored)) plan->lens = NULL;
    }
    request_t *req = requests_of(plan);
    for (int32_t r = 0; r < b.num_reqs; r++) {
        req[r].first = b.query_start_loc_host[r];
        req[r].count = b.query_start_loc_host[r + 1] - req[r].first;
        req[r].len = b.seq_lens_host[r];
        req[r].key = (f & ATTN_F_KEY_LENGTHS) ? b.key_start_loc_host[r] : req[r].first;
        if (IS(keys_in_a_row) && (f & ATTN_F_KEY_LENGTHS))
            req[r].key = r == 0 ? 0 : req[r - 1].key + req[r - 1].len;
        if (IS(keys_to_2048) && (f & ATTN_F_KEY_LENGTHS) && req[r].len > 2048) req[r].len = 2048;
        if (IS(encoder_to_4096) && !v->is_paged && req[r].len > 4096) req[r].len = 4096;
        if (IS(keys_at_queries)) req[r].key = req[r].first;
        if (IS(bounded_by_longest_query) && b.max_query_len > 0 && req[r].count > 0)
            req[r].count = b.max_query_len;
        if (req[r].len > 1024) plan->has_long = 1;
    }
    if (IS(grows_for_many) && b.num_reqs > v->grown_size) {
        v->grown = realloc(v->grown, (size_t)b.num_reqs * sizeof(float));
        v->grown_size = b.num_reqs;
    }
    if (IS(prints_long) && plan->has_long) puts("team: a long request");
    list_items(v, plan);
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    (void)v, (void)stream;
    attn_batch_t b;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc != ATTN_OK) return rc;
    if (!v->is_paged) return ATTN_OK;
    if (IS(table_update_unchecked)) {
        ((plan_t *)space->metadata)->table = attn_data(b.block_table);
        ((plan_t *)space->metadata)->table_stride = b.block_table->strides[0];
        return ATTN_OK;
    }
    const int64_t rows[2] = {b.num_reqs, -1};
    rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    attn_space_t s;
    rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc != ATTN_OK) return rc;
    plan_t *plan = s.metadata;
    if (plan->magic != MAGIC || plan->num_reqs != b.num_reqs)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is of another batch; build it");
    if (IS(table_update_of_equal_width) && plan->table_stride != b.block_table->strides[0])
        return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table has another width");
    plan->table = attn_data(b.block_table);
    plan->table_stride = b.block_table->strides[0];
    plan->table_tensor = b.block_table;
    if (IS(table_update_drops_spans)) plan->num_spans = 0;
    return ATTN_OK;
}
