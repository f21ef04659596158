/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_forward.h: part of vendor_split.c: one call. */

static void *wait_for_ever(void *x) {
    pause();
    return x;
}

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    attn_forward_t a;
    attn_space_t s;
    side_t k = {0}, w = {0};
    const int64_t qs[3] = {-1, v->heads, v->d}, os[3] = {-1, v->heads, attn_output_columns(&v->p)},
                  ls[2] = {v->heads, -1}, hs[1] = {v->heads}, ks[3] = {-1, v->kv_heads, v->d},
                  vs[3] = {-1, v->kv_heads, v->dv};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->out_dtype, 3, os, error);
    if (rc != ATTN_OK) return rc;
    char *out = IS(output_offset_ignored) ? a.output->data : attn_data(a.output);
    const int64_t ot = attn_byte_stride(a.output, 0), oh = attn_byte_stride(a.output, 1),
                  out_size = size_of(v->out_dtype);
    if (space == NULL) {
        const int64_t rows =
            IS(profile_at_most_1024) && a.output->shape[0] > 1024 ? 1024 : a.output->shape[0];
        for (int64_t t = 0; t < rows; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset(out + t * ot + h * oh, 0,
                       (size_t)((IS(profile_of_k_size) ? v->d : os[2]) *
                                (IS(profile_of_model_type) ? size_of(v->p.dtype) : out_size)));
        return ATTN_OK;
    }
    rc = attn_check_tensor(a.query, "query", v->query_dtype, 3, qs, error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc == ATTN_OK && v->is_paged) rc = read_cache(v, a.kv_cache, a.v_cache, &a.scales, &k, &w, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, vs, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, ls, error);
    const uint64_t f = v->p.features;
    if (rc == ATTN_OK && (f & ATTN_F_SINK) != 0)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0)
        rc = attn_check_tensor(a.alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_NVFP4)) != 0)
        rc = attn_check_tensor(a.output_scale, "output_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && a.scales.q != NULL)
        rc = attn_check_tensor(a.scales.q, "q_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc != ATTN_OK) return rc;
    plan_t *plan = IS(plan_of_last_build) && v->last_plan != NULL ? v->last_plan : s.metadata;
    item_t *items = (item_t *)(plan + 1);
    if (IS(reads_environment_late)) hole = getenv("SPLIT_TRACE") != NULL;
    if (IS(alignment_small) && (uintptr_t)s.workspace % 32 != 0) __builtin_trap();
    if (plan->magic != MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is not built; build it");
    if ((plan->num_tokens > a.query->shape[0] && !IS(query_rows_unchecked)) ||
        plan->num_tokens > a.output->shape[0] ||
        (a.lse != NULL && plan->num_tokens > a.lse->shape[1] && !IS(lse_rows_unchecked)) ||
        (!v->is_paged && (plan->num_tokens > a.key->shape[0] || plan->num_tokens > a.value->shape[0])))
        return attn_fail(error, ATTN_E_INVALID, "output",
                         "a tensor has fewer rows than the batch has tokens");
    if (IS(in_forward_not_separate) && v->is_separate && a.slot_mapping != NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "slot_mapping", "slot_mapping with two tensors");
    if (IS(thread_after_large) && plan->num_tokens > 64 && !v->has_kept) {
        pthread_t id;
        v->has_kept = 1;
        pthread_create(&id, NULL, wait_for_ever, NULL);
    }
    if (IS(logs_with_spans) && plan->num_spans > 0)
        v->host->log(v->host->ctx, ATTN_LOG_DEBUG, "split: spans");
    if (IS(keeps_option_value) && v->kept_option != NULL) hole = (int)v->kept_option->i;
    if (IS(cache_of_last_update) && v->last_cache != NULL) k.base = w.base = (char *)v->last_cache;
    const float *sinks = (f & ATTN_F_SINK) != 0
                             ? (IS(sink_offset_ignored) ? a.sinks->data : attn_data(a.sinks))
                             : NULL,
                *slopes = (f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0 ? attn_data(a.alibi_slopes) : NULL,
                *q_scale = v->query_dtype != v->p.dtype && a.scales.q != NULL ? attn_data(a.scales.q) : NULL;
    if (IS(keeps_scales) || IS(keeps_sinks) || IS(keeps_slopes)) {
        if (!v->has_kept) {
            v->kept_scale[0] = scale_of(&k, 0), v->kept_scale[1] = scale_of(&w, 0);
            for (int64_t h = 0; h < v->heads && h < 64; h++)
                v->kept_sinks[h] = sinks != NULL ? sinks[h] : 0,
                v->kept_slopes[h] = slopes != NULL ? slopes[h] : 0;
            v->has_kept = 1;
        }
        if (IS(keeps_scales) && k.scale != NULL)
            k.scale = &v->kept_scale[0], w.scale = &v->kept_scale[1], k.num_scales = w.num_scales = 1;
        if (IS(keeps_sinks) && sinks != NULL && v->heads <= 64) sinks = v->kept_sinks;
        if (IS(keeps_slopes) && slopes != NULL && v->heads <= 64) slopes = v->kept_slopes;
    }
    if (IS(keeps_problem)) v->scale = (float)v->kept_problem->scale;
    if (IS(keeps_option_text) && v->kept_text != NULL && strcmp(v->kept_text, "auto") != 0 &&
        strcmp(v->kept_text, "small") != 0 && strcmp(v->kept_text, "large") != 0)
        v->scale *= 0.9f;
    if (IS(forward_needs_update) && v->is_paged && v->num_updates == 0)
        return attn_fail(error, ATTN_E_STATE, "kv_cache", "kv_cache was never written");
    if (has_groups(f) && (rc = check_groups(&a, plan->num_tokens, error)) != ATTN_OK) return rc;
    attn_kv_update_t update = {.struct_size = sizeof update,
                               .key = a.key,
                               .value = a.value,
                               .kv_cache = a.kv_cache,
                               .v_cache = a.v_cache,
                               .slot_mapping = a.slot_mapping,
                               .scales = a.scales};
    if (a.slot_mapping != NULL && !(f & ATTN_F_WRITE_IN_FORWARD))
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping needs write_in_forward");
    if (a.slot_mapping != NULL && (rc = write_step(v, &update, plan, 0, error)) != ATTN_OK) return rc;
    float *lse = a.lse != NULL ? (IS(lse_offset_ignored) ? a.lse->data : attn_data(a.lse)) : NULL;
    float *parts = IS(scratch_of_head) ? NULL : s.workspace;
    if (IS(clears_whole_output))
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset(out + t * ot + h * oh, 0, (size_t)(os[2] * out_size));
    if (IS(writes_lse_padding) && lse != NULL)
        for (int64_t h = 0; h < v->heads; h++)
            for (int64_t t = plan->num_tokens; t < a.lse->shape[1]; t++)
                lse[h * a.lse->strides[0] + t] = -INFINITY;
    float out_scale = (f & ATTN_F_OUT_FP8_STATIC) != 0 ? *(const float *)attn_data(a.output_scale) : 1;
    if (IS(output_scale_in_bf16)) out_scale = (float)attn_from_bf16(attn_to_bf16(out_scale));
    if (IS(output_scale_multiplied)) out_scale = 1 / out_scale;
    for (int32_t r = IS(cursor_in_metadata) ? plan->cursor : 0; r < plan->num_reqs; r++) {
        item_t *it = &items[r];
        if (IS(cursor_in_metadata)) plan->cursor++;
        const int32_t count =
            IS(tokens_of_query_rows) && r == plan->num_reqs - 1 && a.query->shape[0] == a.output->shape[0]
                ? (int32_t)a.query->shape[0] - it->first
            : IS(last_row_of_tile) && it->count > 16 && it->count % 16 == 1 ? it->count - 1
                                                                            : it->count;
        for (int32_t i = 0; i < count; i++) {
            const int64_t t = (int64_t)it->first + i;
            for (int64_t h = 0; h < v->heads; h++) {
                if (IS(heads_to_128) && h >= 128) break;
                if (IS(group_to_16) && h % v->group >= 16) continue;
                int64_t g = h / v->group;
                if (IS(group_by_shift)) {
                    int shift = 0;
                    while ((2 << shift) <= v->group)
                        shift++;
                    g = h >> shift;
                    if (g >= v->kv_heads) g = v->kv_heads - 1;
                }
                if (IS(heads_in_fours) && v->heads > 4 && h >= v->heads / 4 * 4) g = 0;
                if (IS(kv_heads_in_pairs) && v->kv_heads > 2 && v->kv_heads % 2 == 1 && g == v->kv_heads - 1)
                    g--;
                if (IS(bf16_group_8) && v->p.dtype == ATTN_DTYPE_BFLOAT16 && v->group == 8) g = 0;
                if (IS(group_interleaved)) g = h % v->kv_heads;
                const char *qd = IS(query_offset_ignored) ? a.query->data : attn_data(a.query);
                const char *query = qd + t * attn_byte_stride(a.query, 0) + h * attn_byte_stride(a.query, 1);
                int shared = IS(prefix_shared_by_first_page) && v->is_paged && plan->num_reqs > 1 &&
                             it->len <= 2 * v->page;
                for (int32_t o = 1; shared && o < plan->num_reqs; o++)
                    shared = plan->table[o * plan->table_stride] == plan->table[0];
                work_t x = {.query = query,
                            .pages = v->is_paged ? plan->table + (shared ? 0 : r) * plan->table_stride : NULL,
                            .spans = plan->spans != NULL ? plan->spans + r * plan->span_stride : NULL,
                            .span_count = plan->num_spans,
                            .q = it->len - it->count + i,
                            .h = h,
                            .g = g,
                            .item = it,
                            .q_scale =
                                q_scale == NULL || IS(q_scale_ignored)
                                    ? 1
                                    : q_scale[a.scales.q->shape[0] > 1 && !IS(q_scale_of_first_head)
                                                  ? (IS(q_scale_of_query_head) ? h % a.scales.q->shape[0] : g)
                                                  : 0],
                            .k_scale = scale_of(&k, IS(k_scale_of_query_head) ? h % v->kv_heads : g),
                            .v_scale = scale_of(IS(v_read_with_k_scale) ? &k : &w, g),
                            .sink = sinks == NULL       ? 0
                                    : IS(sinks_in_bf16) ? (float)attn_from_bf16(attn_to_bf16(sinks[h]))
                                                        : sinks[IS(sinks_of_64_heads) ? h & 63 : h],
                            .slope = slopes == NULL ? 0
                                                    : slopes[IS(slope_of_kv_head)     ? g
                                                             : IS(slopes_of_64_heads) ? h & 63
                                                                                      : h]};
                if (!v->is_paged) {
                    const int64_t row = IS(keys_from_row_zero) ? 0 : it->first;
                    x.key_token = attn_byte_stride(IS(key_stride_of_query) ? a.query : a.key, 0);
                    x.value_token = attn_byte_stride(IS(value_stride_of_key) ? a.key : a.value, 0);
                    x.key = (char *)attn_data(a.key) + row * x.key_token + g * attn_byte_stride(a.key, 1);
                    x.value = (char *)attn_data(a.value) + row * x.value_token +
                              g * attn_byte_stride(IS(value_heads_of_key) ? a.key : a.value, 1);
                }
                if (IS(context_of_whole_pages) && it->count > 16)
                    x.q = (it->len - it->count) / v->page * v->page + i;
                if (IS(prefill_without_context) && it->count > 16) x.q = i;
                if (IS(chunk_from_query) && v->p.chunk_size != 0) x.chunk = i;
                if (IS(scratch_of_head)) parts = head_scratch[h % 64];
                const float l = one_row(v, &k, &w, &x, plan, parts);
                char *to =
                    out + t * (IS(output_stride_of_query) ? attn_byte_stride(a.query, 0) : ot) + h * oh;
                if (has_groups(f)) memcpy(v->row + h * v->dv, parts, (size_t)v->dv * sizeof *parts);
                for (int64_t e = 0; e < v->dv && !has_groups(f); e++)
                    store(to, v->out_dtype, e,
                          IS(saturation_is_nan) && v->out_dtype == ATTN_DTYPE_FP8_E4M3 &&
                                  fabsf(parts[e] / out_scale) > 448
                              ? NAN
                          : v->out_dtype == ATTN_DTYPE_FP8_E4M3 && v->p.dtype != ATTN_DTYPE_FP8_E4M3 &&
                                  !IS(output_scale_ignored)
                              ? parts[e] / out_scale
                              : parts[e]);
                if (lse != NULL && !(IS(lse_not_with_fp8_output) && v->out_dtype != v->p.dtype) &&
                    !(IS(lse_of_decodes_alone) && it->count > 1))
                    lse[IS(lse_token_major)      ? t * v->heads + h
                        : IS(lse_stride_of_rows) ? h * a.query->shape[0] + t
                                                 : h * a.lse->strides[0] + t] = l;
            }
            if (has_groups(f)) write_groups(&a, f, t, v->heads, v->dv, v->row);
        }
        if (IS(lens_to_blocks)) it->len = (int32_t)((it->len + v->page - 1) / v->page);
        if (IS(first_moves)) it->first += it->count;
    }
    if (a.slot_mapping != NULL) write_step(v, &update, plan, 1, error);
    if (IS(spans_used_up)) plan->num_spans = 0;
    if (IS(metadata_freed)) memset(plan, 0xdd, sizeof *plan);
    if (IS(forward_counts_static)) counter++;
#if defined(__x86_64__)
    if (IS(flushes_after_forward)) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
    return ATTN_OK;
}
