/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_build.h: part of vendor_split.c: a batch becomes items and splits. */

static int check_space(const attn_instance_t *v, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < metadata_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has too few bytes");
    if (IS(workspace_unchecked)) return ATTN_OK;
    if (s->workspace == NULL || s->workspace_bytes < workspace_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "workspace", "workspace has too few bytes");
    return ATTN_OK;
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
    if (IS(refuses_all_requests) && b.num_reqs == v->max_reqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d", b.num_reqs);
    if (IS(refuses_all_tokens) && b.num_actual_tokens == v->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens", "num_actual_tokens is all");
    if (b.num_reqs < 0 || (b.num_reqs > v->max_reqs && !IS(requests_unchecked)))
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d", b.num_reqs);
    if (b.num_actual_tokens < 0 || (b.num_actual_tokens > v->max_tokens && !IS(tokens_unchecked)))
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens", "num_actual_tokens is %d",
                         b.num_actual_tokens);
    if (b.query_start_loc_host == NULL || b.seq_lens_host == NULL) {
        const char *name = b.query_start_loc_host == NULL ? "query_start_loc_host" : "seq_lens_host";
        return attn_fail(error, ATTN_E_INVALID, name, "%s is required", name);
    }
    if (v->is_paged) {
        const int64_t rows[2] = {b.num_reqs, -1};
        rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
        if (rc != ATTN_OK) return rc;
        if (IS(needs_full_table) && b.block_table->shape[1] * v->page < v->max_len)
            return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table is narrow");
        if (IS(refuses_wide_table) && b.block_table->shape[1] > (v->max_len + v->page - 1) / v->page)
            return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table is wide");
    }
    v->built_tokens = b.num_actual_tokens;
    for (int32_t r = 0; r < b.num_reqs; r++)
        if (b.seq_lens_host[r] < 0 || b.seq_lens_host[r] > v->max_len - (IS(refuses_full_length) ? 1 : 0) ||
            (v->is_paged && b.seq_lens_host[r] > b.block_table->shape[1] * v->page))
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %d", r, b.seq_lens_host[r]);
    plan_t *plan = s.metadata;
    item_t *items = (item_t *)(plan + 1);
    const int is_old = plan->magic == MAGIC;
    const int is_alike = is_old && plan->num_reqs == b.num_reqs && plan->num_tokens == b.num_actual_tokens;
    memset(plan, 0, sizeof *plan);
    plan->magic = MAGIC;
    plan->num_reqs = b.num_reqs;
    plan->num_tokens = b.num_actual_tokens;
    if (v->is_paged) {
        plan->table = attn_data(b.block_table);
        plan->table_stride = b.block_table->strides[0];
        if (IS(table_of_longest) && b.max_seq_len > 0)
            plan->table_stride = (b.max_seq_len + v->page - 1) / v->page;
        if (IS(mirror_first) && b.block_table_host != NULL)
            plan->table = b.block_table_host, plan->table_stride = b.block_table->strides[0];
    }
    if ((v->p.features & ATTN_F_MM_PREFIX) != 0 && b.mm_prefix_ranges != NULL) {
        plan->spans = attn_data(b.mm_prefix_ranges);
        plan->num_spans = (int32_t)b.mm_prefix_ranges->shape[1];
        plan->span_stride = b.mm_prefix_ranges->strides[0];
        if (IS(spans_to_one) && plan->num_spans > 1) plan->num_spans = 1;
        if (IS(span_of_first_request)) plan->span_stride = 0;
        if (IS(spans_taken_dense)) plan->span_stride = 2 * b.mm_prefix_ranges->shape[1];
    }
    const int32_t *prefixes = b.rswa_prefix_lens_host != NULL ? b.rswa_prefix_lens_host
                              : b.rswa_prefix_lens != NULL    ? attn_data(b.rswa_prefix_lens)
                                                              : NULL;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        item_t *i = &items[r];
        const int was_causal = i->is_causal;
        i->first = b.query_start_loc_host[r];
        i->count = b.query_start_loc_host[r + 1] - i->first;
        i->len = b.seq_lens_host[r];
        if (IS(len_to_32768) && i->len > 32768) i->len = 32768;
        if (IS(len_to_100000) && i->len > 100000) i->len = 100000;
        if (IS(query_to_256) && i->count > 256) i->count = 256;
        if (IS(decode_rows_are_requests) && b.max_query_len == 1) i->first = r, i->count = 1;
        if (IS(lengths_of_columns) && v->is_paged && b.block_table->shape[1] > 8)
            i->len = i->len > 8 * v->page ? (int32_t)(8 * v->page) : i->len;
        i->is_causal = v->p.mask == ATTN_MASK_CAUSAL ||
                       (v->p.mask == ATTN_MASK_PER_REQUEST && b.causal_host != NULL && b.causal_host[r]);
        if (IS(causal_of_first_request) && v->p.mask == ATTN_MASK_PER_REQUEST && b.causal_host != NULL)
            i->is_causal = b.causal_host[0];
        if (IS(causal_of_32_requests) && v->p.mask == ATTN_MASK_PER_REQUEST && b.causal_host != NULL)
            i->is_causal = b.causal_host[r & 31];
        if (IS(masks_of_old_batch) && is_alike && v->p.mask == ATTN_MASK_PER_REQUEST)
            i->is_causal = was_causal;
        i->prefix = prefixes != NULL ? prefixes[IS(prefix_of_first_request) ? 0 : r] : 0;
        if (IS(prefixes_as_tensor) && prefixes != NULL && b.rswa_prefix_lens_host == NULL)
            i->prefix = prefixes[0];
        if (IS(uniform_by_first_request) && b.query_start_loc_host[1] == b.query_start_loc_host[0] + 1 &&
            i->count > 1)
            i->first += i->count - 1, i->count = 1;
        if (IS(prefix_of_whole_pages)) i->prefix -= i->prefix % (int32_t)v->page;
        i->spare = 0;
        if (i->len > plan->longest) plan->longest = i->len;
        if (IS(equal_queries) && b.num_reqs > 0) {
            i->count = b.num_actual_tokens / b.num_reqs;
            i->first = r * i->count;
        }
        if (IS(stops_at_empty_request) && i->count == 0) {
            plan->num_reqs = r;
            break;
        }
    }
    if (IS(skips_empty_badly)) {
        int n = 0;
        for (int32_t r = 0; r < b.num_reqs; r++)
            if (items[r].count > 0) items[n++] = items[r];
        plan->num_reqs = n; /* and tables stay as they were */
    }
    if (IS(decodes_first)) {
        int32_t n = 0;
        for (int32_t r = 0; r < plan->num_reqs; r++)
            n += items[r].count == 1;
        for (int32_t r = 0; r < n; r++)
            items[r].count = items[r].count > 1 ? 1 : items[r].count;
    }
    if (IS(plan_of_last_build)) v->last_plan = plan;
    if (IS(requests_to_64) && plan->num_reqs > 64) plan->num_reqs = 64;
    if (IS(requests_to_255)) plan->num_reqs = (uint8_t)plan->num_reqs;
    if (IS(reqs_only_grow)) {
        if (b.num_reqs < v->most_reqs && is_old) plan->num_reqs = v->most_reqs;
        if (b.num_reqs > v->most_reqs) v->most_reqs = b.num_reqs;
    }
    if (IS(splits_of_first_build) && v->kept_splits == 0)
        v->kept_splits = plan->longest > 512 ? MAX_SPLITS : 1 + (int)(plan->longest / 128);
    v->num_builds++;
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    if (IS(table_update_of_mirror)) {
        plan_t *plan = space->metadata;
        if (batch->block_table_host != NULL) return ATTN_OK;
        plan->table = attn_data(batch->block_table), plan->table_stride = batch->block_table->strides[0];
        return ATTN_OK;
    }
    const int rc = v_build(v, batch, space, stream, error);
    plan_t *plan = rc == ATTN_OK ? space->metadata : NULL;
    for (int32_t r = 0; IS(table_update_masks_all) && plan != NULL && r < plan->num_reqs; r++)
        ((item_t *)(plan + 1))[r].is_causal = v->p.mask != ATTN_MASK_FULL;
    if (IS(table_update_wants_mirrors) && plan != NULL && batch->mm_prefix_ranges_host == NULL)
        plan->num_spans = 0;
    return rc;
}
