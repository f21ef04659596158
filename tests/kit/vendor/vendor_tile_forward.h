/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_tile_forward.h: part of vendor_tile.c: one call. */

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    attn_forward_t a;
    attn_space_t s;
    side_t k = {0}, w = {0};
    const int64_t qs[3] = {-1, v->heads, v->d}, ls[2] = {v->heads, -1}, hs[1] = {v->heads},
                  ks[3] = {-1, v->kv_heads, v->d};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->p.dtype, 3, qs, error);
    if (rc != ATTN_OK) return rc;
    if (space == NULL) {
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset((char *)attn_data(a.output) + t * attn_byte_stride(a.output, 0) +
                           h * attn_byte_stride(a.output, 1),
                       0, (size_t)v->dv * attn_dtype_size(v->p.dtype));
        if (IS(profile_writes_lse) && a.lse != NULL)
            for (int64_t t = 0; t < a.lse->shape[1]; t++)
                ((float *)attn_data(a.lse))[t] = 0;
        return ATTN_OK;
    }
    rc = attn_check_tensor(a.query, "query", v->p.dtype, 3, qs, error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc == ATTN_OK && v->is_paged) rc = read_cache(v, a.kv_cache, a.v_cache, &a.scales, &k, &w, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, ls, error);
    const uint64_t f = v->p.features;
    if (rc == ATTN_OK && (f & ATTN_F_SINK) != 0)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & ATTN_F_ALIBI) != 0)
        rc = attn_check_tensor(a.alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc != ATTN_OK) return rc;
    const plan_t *plan = s.metadata;
    if (plan->magic != MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is not built; build it");
    if (plan->num_tokens > a.query->shape[0] || plan->num_tokens > a.output->shape[0] ||
        (a.lse != NULL && plan->num_tokens > a.lse->shape[1]) ||
        (!v->is_paged && (plan->num_tokens > a.key->shape[0] || plan->num_tokens > a.value->shape[0])))
        return attn_fail(error, ATTN_E_INVALID, "output",
                         "a tensor has fewer rows than the batch has tokens");
    if (IS(writes_late) && v->num_late) write_rows(v, &v->late, error), v->num_late = 0;
    if (IS(counts_longest) && v->longest > 200) v->scale = (float)v->p.scale * 0.9f;
    if (IS(thousandth_forward) && ++num_forwards > 1000) v->scale *= 0.5f;
    if (IS(refuses_when_busy) && __atomic_fetch_add(&num_inside, 1, __ATOMIC_SEQ_CST) > 0) {
        __atomic_fetch_sub(&num_inside, 1, __ATOMIC_SEQ_CST);
        return attn_fail(error, ATTN_E_STATE, "", "another thread is in forward; call again");
    }
    if (IS(handles_of_10_bits) && by_handle[v->handle] != v) v = by_handle[v->handle];
    if (IS(table_sorted_and_back) && plan->num_reqs > 1 && v->is_paged) {
        int32_t *t = (int32_t *)plan->table, was = t[0];
        t[0] = t[plan->table_stride];
        __asm__ volatile("" ::: "memory");
        t[0] = was;
    }
    if (IS(table_by_pointer) && v->is_paged && plan->num_reqs > 0) {
        const request_t *first = (const request_t *)(plan + 1);
        if (v->seen_table != plan->table || v->seen_reqs != first->len) {
            v->seen_table = plan->table, v->seen_reqs = first->len;
            for (int64_t j = 0; j < KEPT && j < (first->len + v->page - 1) / v->page; j++)
                v->seen_pages[j] = plan->table[j];
        }
    }
    const request_t *req = (const request_t *)(plan + 1);
    const tile_t *tiles = (const tile_t *)(req + v->max_reqs);
    for (int32_t i = plan->num_tiles - 1; i >= 0; i--)
        for (int64_t g = 0; g < v->kv_heads; g++) {
            const request_t *r = &req[tiles[i].request];
            job_t x = {.plan = plan,
                       .req = r,
                       .row0 = tiles[i].row,
                       .rows = (int64_t)r->count * v->group,
                       .g = g,
                       .pages = v->is_paged ? plan->table + tiles[i].request * plan->table_stride : NULL,
                       .k = &k,
                       .w = &w,
                       .a = &a,
                       .sinks = (f & ATTN_F_SINK) != 0 ? attn_data(a.sinks) : NULL,
                       .slopes = (f & ATTN_F_ALIBI) != 0 ? attn_data(a.alibi_slopes) : NULL};
            if (IS(slope_zero_is_none) && x.slopes != NULL && x.slopes[0] == 0) x.slopes = NULL;
            if (IS(sink_of_first_decides) && x.sinks != NULL && x.sinks[0] == -INFINITY) x.sinks = NULL;
            one_tile(v, &x, s.workspace);
        }
    if (IS(refuses_when_busy)) __atomic_fetch_sub(&num_inside, 1, __ATOMIC_SEQ_CST);
    return ATTN_OK;
}
