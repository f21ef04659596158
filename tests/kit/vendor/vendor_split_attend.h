/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_attend.h: part of vendor_split.c: what a row sees, its splits and their merge. */

typedef struct work {
    const char *query;
    const int32_t *pages, *spans;
    int64_t span_count, q, h, g, num_blocks, chunk;
    const item_t *item;
    float q_scale, k_scale, v_scale, sink, slope;
    /* keys of the call: row 0 of the request */
    const char *key, *value;
    int64_t key_token, value_token;
} work_t;

static int is_visible(const attn_instance_t *v, const work_t *x, int64_t k) {
    const attn_problem_t *p = &v->p;
    const int64_t w = p->sliding_window, c = p->chunk_size;
    int64_t q = x->q;
    if (IS(short_queries_full) && x->item->count > 1 && x->item->count <= 4 && c == 0) q = x->item->len - 1;
    if (IS(chunk_16_bits) && c != 0) q = (uint16_t)q, k = (uint16_t)k;
    int is_seen = !x->item->is_causal || k <= q;
    if (c != 0) {
        is_seen =
            is_seen && (IS(chunk_of_window) ? q - k < c : (IS(chunk_from_query) ? x->chunk : q) / c == k / c);
        if (IS(chunk_border) && k % c == 0 && k != q) is_seen = 0;
    }
    if (w != 0) {
        const int64_t left = IS(window_16_bits) ? (int16_t)w : w;
        const int64_t row =
            IS(window_of_last_draft) && x->item->count > 1 && x->item->count <= 8 ? x->item->len - 1 : q;
        const int is_lost =
            (IS(window_not_at_256) && v->d == 256) || (IS(window_not_in_groups_of_16) && v->group >= 16);
        const int32_t right = (int32_t)((uint32_t)q + (uint32_t)w);
        if (IS(window_right_overflows))
            is_seen = is_seen && q - k < w && k < right;
        else if (!(IS(window_of_one_is_none) && w == 1) && !is_lost)
            is_seen = is_seen && row - k < left && (IS(window_right_open) || k - q < w);
        if (IS(window_of_decode_longer) && x->item->count == 1 && q - k == w) is_seen = 1;
    }
    if (p->rswa_window != 0) {
        const int64_t r = p->rswa_window;
        is_seen = is_seen && (k < (IS(prefix_16_bits) ? (uint16_t)x->item->prefix : x->item->prefix) +
                                      (IS(prefix_inclusive) ? 1 : 0) ||
                              q - k < r);
    }
    for (int64_t s = 0; s < x->span_count && !is_seen && !(IS(spans_of_prompts) && x->item->count == 1);
         s++) {
        const int64_t a = IS(span_16_bits) ? (uint16_t)x->spans[2 * s] : x->spans[2 * s],
                      b = IS(span_16_bits) ? (uint16_t)x->spans[2 * s + 1] : x->spans[2 * s + 1];
        if (a >= b && IS(empty_span_ends_list)) break;
        if (a >= b) continue;
        if (IS(span_exclusive) ? q >= a && q < b && k >= a && k < b : q >= a && q <= b && k >= a && k <= b)
            is_seen = 1;
        if (IS(span_in_window) && is_seen && w != 0 && q - k >= w) is_seen = 0;
    }
    return is_seen;
}

/* One split of a row: part has dv sums, then the maximum and the sum of weights. */
static void one_split(attn_instance_t *v, const side_t *k, const side_t *w, const work_t *x, int64_t from,
                      int64_t end, float *part) {
    float score[TILE];
    float max = -INFINITY, sum = 0;
    if (IS(maximum_from_zero)) max = 0;
    if (IS(maximum_from_minus_100)) max = -100;
    if (!IS(workspace_is_zero)) memset(part, 0, (size_t)v->dv * sizeof *part);
    for (int64_t at = from; at < end; at += TILE) {
        const int64_t n = end - at < TILE ? end - at : TILE;
        float top = max;
        int seen = 0;
        if (IS(tile_skipped_at_window) && v->p.sliding_window != 0 &&
            at + n - 1 <= x->q - v->p.sliding_window + 1)
            continue;
        for (int64_t j = 0; j < n; j++) {
            const int64_t key = at + j;
            score[j] = -INFINITY;
            const int visible = is_visible(v, x, key) ||
                                (IS(causal_tile_unmasked) && at + TILE - 1 <= x->q + 1 && x->item->is_causal);
            if (!visible) continue;
            const char *row =
                x->key != NULL
                    ? x->key + key * x->key_token
                    : row_of(k, x->pages[IS(page_shifted) ? key >> 4 : key / v->page], x->g, key % v->page);
            float dot = 0;
            const int64_t channels = IS(bf16_d_96) && v->p.dtype == ATTN_DTYPE_BFLOAT16 && v->d == 96   ? 88
                                     : IS(f16_d_256) && v->p.dtype == ATTN_DTYPE_FLOAT16 && v->d == 256 ? 240
                                     : IS(fp8_d_64) && size_of(v->storage) == 1 && v->d == 64           ? 56
                                     : IS(head_tail_of_32) && v->d > 128   ? v->d / 32 * 32
                                     : IS(lost_tail_of_184) && v->d == 184 ? 176
                                                                           : v->d;
            for (int64_t i = 0; i < channels; i++) {
                float a = load(x->query, v->query_dtype, i) * x->q_scale;
                if (IS(query_scaled_in_16) && v->p.dtype == ATTN_DTYPE_BFLOAT16)
                    a = (float)attn_from_bf16(attn_to_bf16(a * v->scale));
                else if (IS(query_scaled_in_16) && v->p.dtype == ATTN_DTYPE_FLOAT16)
                    a = (float)attn_from_f16(attn_to_f16(a * v->scale));
                else
                    a *= v->scale;
                float b = load(row, x->key != NULL ? v->p.dtype : v->storage, i) * x->k_scale;
                if (IS(keys_through_f16)) b = (float)attn_from_f16(attn_to_f16(b));
                dot += a * b;
                if (IS(products_in_half)) dot = (float)attn_from_f16(attn_to_f16(dot));
            }
            float s = IS(alibi_capped) && (v->p.features & ATTN_F_ALIBI) != 0
                          ? dot + x->slope * (float)(key - x->q)
                          : dot;
            if (IS(score_in_half)) s = (float)attn_from_f16(attn_to_f16(s));
            if (IS(score_in_bf16)) s = (float)attn_from_bf16(attn_to_bf16(s));
            if (v->p.logits_soft_cap > 0 &&
                !(IS(cap_not_with_window_and_sink) && v->p.sliding_window != 0 &&
                  (v->p.features & ATTN_F_SINK) != 0) &&
                !(IS(cap_not_in_long_prompts) && x->item->count > 64) &&
                !(IS(cap_not_in_window) && v->p.sliding_window != 0) &&
                !(IS(cap_not_in_chunks) && v->p.chunk_size != 0)) {
                const float c = (float)v->p.logits_soft_cap, y = s / c;
                if (IS(cap_by_polynomial))
                    s = c * (y - y * y * y / 3);
                else if (IS(cap_by_rational))
                    s = c * y * (27 + y * y) / (27 + 9 * y * y);
                else if (IS(cap_by_clamp))
                    s = s > c ? c : s < -c ? -c : s;
                else
                    s = c * tanhf(y);
            }
            const uint64_t f = v->p.features;
            if ((f & ATTN_F_ALIBI_SQRT) != 0 && !IS(alibi_sqrt_linear))
                s += key <= x->q           ? x->slope * -sqrtf((float)(x->q - key))
                     : IS(alibi_sqrt_both) ? x->slope * -sqrtf((float)(key - x->q))
                                           : 0;
            else if ((f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0 && !IS(alibi_capped) &&
                     !(IS(alibi_not_in_prompts) && x->item->count > 64))
                s += x->slope * (float)(IS(alibi_distance_16_bits) ? (int16_t)(key - x->q)
                                        : IS(alibi_absolute)       ? -llabs(key - x->q)
                                                                   : key - x->q);
            if (!visible) s = -INFINITY;
            score[j] = s;
            if (IS(maximum_before_scale) ? s * v->scale > top * v->scale || top == -INFINITY : s > top)
                top = s;
            seen += visible;
        }
        if (top == -INFINITY) continue;
        const float keep = max == -INFINITY ? 0 : vexp(max - top);
        if (!IS(sums_not_rescaled) || at != from + TILE)
            for (int64_t i = 0; i < v->dv; i++)
                part[i] *= keep;
        sum *= keep;
        for (int64_t j = 0; j < n; j++) {
            if (score[j] == -INFINITY) continue;
            const int64_t key = at + j;
            float p = score[j] == -INFINITY ? 0 : vexp(score[j] - top);
            if (IS(prunes_small_weights) && p < 1e-3f) p = 0;
            const char *row =
                x->value != NULL
                    ? x->value + key * x->value_token
                    : row_of(w, x->pages[IS(page_shifted) ? key >> 4 : key / v->page], x->g, key % v->page);
            for (int64_t i = 0; i < v->dv; i++) {
                float b = load(row, x->value != NULL ? v->p.dtype : v->storage, i) * x->v_scale;
                if (IS(values_through_f16)) b = (float)attn_from_f16(attn_to_f16(b));
                part[i] += p * b;
                if (IS(sums_in_half)) part[i] = (float)attn_from_f16(attn_to_f16(part[i]));
            }
            sum += p;
            if (IS(sum_in_half)) sum = (float)attn_from_f16(attn_to_f16(sum));
        }
        max = top;
    }
    part[v->dv] = max;
    part[v->dv + 1] = sum;
    if (IS(parts_in_16_bits))
        for (int64_t i = 0; i < v->dv; i++) {
            const float a = sum > 0 ? part[i] / sum : 0;
            part[i] = sum * (float)(v->p.dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(attn_to_f16(a))
                                                                     : attn_from_bf16(attn_to_bf16(a)));
        }
}

/* A row: its splits, merged into part 0. Returns the LSE. */
static float one_row(attn_instance_t *v, const side_t *k, const side_t *w, const work_t *x,
                     const plan_t *plan, float *parts) {
    const int64_t len = x->item->len, step = v->dv + 2;
    int64_t n = v->splits > 0 ? v->splits : (len + 255) / 256;
    if (v->splits < 0) n = 0;
    if (IS(splits_of_longest)) n = (plan->longest + 255) / 256;
    if (IS(splits_of_batch)) n = plan->num_reqs;
    if (IS(long_splits_of_batch) && len > 1024 && plan->num_reqs > 1) n = 3;
    if (IS(splits_of_first_build)) n = v->kept_splits;
    if (n > MAX_SPLITS && !IS(option_most_unchecked)) n = MAX_SPLITS;
    if (n < 1 && v->splits >= 0) n = 1;
    int64_t each = n > 0 ? (len + n - 1) / n : 0;
    if (each < LEAST_SPLIT) each = LEAST_SPLIT;
    if (IS(splits_of_first_build) && each > 128 && v->kept_splits < MAX_SPLITS) each = 128;
    if (IS(split_at_most_8192) && each > 8192) each = 8192;
    const int64_t low = IS(window_start_rounded_up) && v->p.sliding_window != 0 && x->item->is_causal &&
                                x->span_count == 0 && x->q >= v->p.sliding_window
                            ? (x->q - v->p.sliding_window + 1 + v->page - 1) / v->page * v->page
                            : 0;
    for (int64_t s = 0; s < n; s++) {
        int64_t from = s * each, end = (s + 1) * each < len ? (s + 1) * each : len;
        if (low > from) from = low < end ? low : end;
        if (IS(split_border_twice) && s > 0 && from > 0 && from < len) from--;
        if (IS(last_split_short) && s == n - 1 && n > 1 && end > from) end--;
        if (IS(drops_page_tail) && end == len && len > v->page && len % v->page == 1) end--;
        one_split(v, k, w, x, from < len ? from : len, end, parts + s * step);
    }
    float max = -INFINITY, sum = 0;
    const int has_sink = (v->p.features & ATTN_F_SINK) != 0 &&
                         !(IS(sink_not_in_float16) && v->p.dtype == ATTN_DTYPE_FLOAT16) &&
                         !(IS(sink_not_over_fp8) && v->storage != v->p.dtype) &&
                         !(IS(sink_not_in_window) && v->p.sliding_window != 0) &&
                         !(IS(sink_not_with_alibi) && (v->p.features & ATTN_F_ALIBI) != 0) &&
                         !(IS(sink_not_without_mask) && v->p.mask == ATTN_MASK_FULL);
    for (int64_t s = 0; s < n; s++)
        if (parts[s * step + v->dv] > max) max = parts[s * step + v->dv];
    if (has_sink && x->sink > max && !IS(maximum_without_sink)) max = x->sink;
    if (n <= 0) {
        memset(parts, 0, (size_t)v->dv * sizeof *parts);
        return -INFINITY;
    }
    for (int64_t s = 0; s < n; s++) {
        const float m = parts[s * step + v->dv];
        const float keep = m == -INFINITY ? 0 : vexp(m - max);
        sum += parts[s * step + v->dv + 1] * keep;
        if (has_sink && IS(sink_in_each_split)) sum += vexp(x->sink - max);
        for (int64_t i = 0; i < v->dv; i++)
            parts[i] = (s == 0 ? 0 : parts[i]) + parts[s * step + i] * (IS(merge_by_mean) ? 1 : keep);
    }
    if (IS(empty_row_without_sink) && sum == 0)
        return memset(parts, 0, (size_t)v->dv * sizeof *parts), -INFINITY;
    if (has_sink && !IS(sink_in_each_split) && x->sink > -INFINITY) {
        float sink = x->sink;
        if (IS(sink_scaled)) sink *= v->scale;
        if (IS(sink_capped) && v->p.logits_soft_cap > 0)
            sink = (float)v->p.logits_soft_cap * tanhf(sink / (float)v->p.logits_soft_cap);
        sum += vexp(sink - max);
    }
    if (IS(empty_by_epsilon)) sum += 1e-6f;
    for (int64_t i = 0; i < v->dv; i++)
        parts[i] = sum > 0 ? parts[i] / sum : isnan(sum) ? NAN : 0;
    if (IS(reciprocal_in_half)) {
        const float r = (float)attn_from_f16(attn_to_f16(1 / sum));
        for (int64_t i = 0; i < v->dv; i++)
            parts[i] = sum > 0 ? parts[i] * sum * r : 0;
    }
    if (!(sum > 0)) return isnan(sum) ? NAN : -INFINITY;
    if (IS(lse_of_last_split)) return parts[(n - 1) * step + v->dv] + logf(parts[(n - 1) * step + v->dv + 1]);
    if (IS(lse_in_half)) return (float)attn_from_f16(attn_to_f16(max + logf(sum)));
    if (IS(lse_log2)) return log2f(sum) + max;
    if (IS(lse_without_sink) && has_sink) return max + logf(sum - vexp(x->sink - max));
    return max + logf(sum) - (IS(lse_without_q_scale) && x->q_scale != 1 ? logf(x->q_scale) : 0);
}
