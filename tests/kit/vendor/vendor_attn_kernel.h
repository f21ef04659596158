/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_attn_kernel.h: part of vendor_attn.c: one row, one call. */

static float round_sum(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (IS(sums_in_14_bits)) u &= 0xfffffc00u; /* 13 stored bits and the hidden one */
    if (IS(sums_in_bf16)) x = load_bits(to_bf16(x), ATTN_DTYPE_BFLOAT16), memcpy(&u, &x, 4);
    if (IS(sums_in_f16)) x = load_bits(to_f16(x), ATTN_DTYPE_FLOAT16), memcpy(&u, &x, 4);
    memcpy(&x, &u, 4);
    return x;
}

static int is_visible(const attn_instance_t *v, int64_t q, int64_t k) {
    if (v->is_causal && k > q) return 0;
    if (v->window == 0) return 1;
    if (IS(window_one_longer) ? q - k > v->window : q - k >= v->window) return 0;
    return v->is_causal || IS(window_left_only) || k - q < v->window;
}

typedef struct row {
    const char *query;
    const int32_t *pages;
    int64_t q, seq_len, h, num_blocks;
    float sink, slope;
    const float *rel_bias;
    int64_t rel_max;
} row_t;

/* One query of one head: tiles of keys, the maximum kept as it goes. acc: Dv sums, then the tile's scores. */
static float one_row(const attn_instance_t *v, const pages_t *c, const row_t *x, float *acc) {
    const uint32_t group = v->num_heads / v->num_kv_heads;
    const int64_t g = IS(group_to_8) && group > 8                       ? x->h / 8 % v->num_kv_heads
                      : IS(group_power_of_two) && (group & (group - 1)) ? x->h / 8 % v->num_kv_heads
                      : IS(group_modulo)                                ? x->h % v->num_kv_heads
                                                                        : x->h / group;
    const float ks = scale_of(c->k, c->num_k, g), vs = scale_of(c->v, c->num_v, g);
    float max = v->has_sink && !(IS(sink_as_value)) ? x->sink : -INFINITY, sum = v->has_sink ? 1 : 0,
          *score = acc + v->head_size_v;
    if (IS(sink_minus_inf) && v->has_sink) sum = expf(x->sink - max);
    if (IS(finite_minimum) && !v->has_sink) max = -1000;
    if (!IS(sink_minus_inf) && v->has_sink && isinf(x->sink)) sum = 0;
    if (!IS(accumulator_not_cleared)) memset(acc, 0, v->head_size_v * sizeof *acc);
    const int64_t end = v->is_causal && x->q + 1 < x->seq_len && !IS(reads_beyond) ? x->q + 1
                        : IS(reads_beyond) ? (x->seq_len + v->page - 1) / v->page * v->page
                                           : x->seq_len;
    const int64_t tile = v->tile;
    for (int64_t from = 0; from < end && tile > 0; from += tile) {
        int64_t n = end - from < tile ? end - from : tile;
        if (IS(drops_last_tile) && n < tile && from > 8 * tile) break;
        float top = max;
        for (int64_t j = 0; j < n; j++) {
            const int64_t k = from + j;
            if (!is_visible(v, x->q, k)) {
                score[j] = -INFINITY;
                continue;
            }
            int64_t at = k / v->page;
            if (IS(page_in_12_bits)) at &= 0xfff;
            const int64_t id = IS(remembers_first_table) && v->first_table[0] != 0 && at < 64
                                   ? v->first_table[at]
                                   : x->pages[at];
            const char *row = row_of(v, c, id, g, k % v->page);
            float dot = 0;
            for (uint32_t i = 0;
                 i < (IS(head_to_multiple_of_8) && v->head_size > 8 ? v->head_size / 8 * 8 : v->head_size);
                 i++)
                dot = round_sum(dot + load(x->query, v->dtype, i) * load(row, v->storage, i) * ks);
            float s = v->scale * dot;
            if (v->cap > 0 && IS(cap_by_exp)) {
                const float e = expf(2 * s / v->cap);
                s = v->cap * (e - 1) / (e + 1);
            } else if (v->cap > 0)
                s = v->cap * tanhf(s / v->cap);
            if (v->has_alibi) s += x->slope * (float)(k - (IS(alibi_from_end) ? x->seq_len - 1 : x->q));
            if (v->has_rel_bias) {
                const int64_t d = IS(rel_bias_mirrored) ? x->q - k : k - x->q, most = x->rel_max;
                const float log2_units = IS(rel_bias_in_log2) ? 1.442695041f : 1;
                if (d >= -most && d <= most)
                    s += x->rel_bias[most + d] * log2_units / log2_units;
                else if (!IS(rel_bias_ends))
                    s += x->rel_bias[d < 0 ? 0 : 2 * most] * log2_units / log2_units;
            }
            if (IS(clips_scores) && s > 60) s = 60;
            score[j] = s;
            if (s > top) top = s;
        }
        if (top == -INFINITY) continue;
        const float keep = max == -INFINITY ? 0 : expf(max - top);
        for (uint32_t i = 0; i < v->head_size_v; i++)
            acc[i] *= keep;
        sum *= keep;
        for (int64_t j = 0; j < n; j++) {
            if (score[j] == -INFINITY) continue;
            float p = expf(score[j] - top);
            if (IS(no_maximum)) p = expf(score[j]) / expf(top);
            if (IS(maximum_rounded)) p = exp2f(fmaf(score[j], 1.442695041f, -(top * 1.442695041f)));
            if (IS(weights_in_fp8) && p < 0x1p-9f) p = 0;
            if (IS(weights_truncated)) p = load_bits((uint16_t)(bits_of(p) >> 16), ATTN_DTYPE_BFLOAT16);
            const int64_t k = from + j;
            const int64_t id = IS(remembers_first_table) && v->first_table[0] != 0 && k / v->page < 64
                                   ? v->first_table[k / v->page]
                                   : x->pages[k / v->page];
            const char *row = row_of(v, c, id, g, k % v->page);
            for (uint32_t i = 0; i < v->head_size_v; i++)
                acc[i] = round_sum(acc[i] + p * load(row, v->storage, v->head_size + i) *
                                                (IS(ignores_v_scale) ? ks : vs));
            sum = IS(sum_in_bf16) ? load_bits(to_bf16(sum + p), ATTN_DTYPE_BFLOAT16) : sum + p;
        }
        max = top;
    }
    for (uint32_t i = 0; i < v->head_size_v; i++)
        acc[i] = sum > 0 ? acc[i] / sum : IS(empty_row_nan) ? NAN : 0;
    if (IS(adds_epsilon))
        for (uint32_t i = 0; i < v->head_size_v; i++)
            acc[i] *= sum / (sum + 1e-4f);
    if (!(sum > 0)) return IS(empty_lse_zero) ? 0 : -INFINITY;
    if (IS(lse_of_large) && fabsf(acc[0]) > 1e20f) return max + logf(sum) + 1;
    if (IS(lse_base_2)) return max * 1.44269504f + log2f(sum);
    if (IS(lse_without_maximum)) return logf(sum);
    return max + logf(sum);
}

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    attn_forward_t a;
    attn_space_t s;
    pages_t c;
    const int64_t shape[3] = {-1, v->num_heads, v->head_size}, lse_shape[2] = {v->num_heads, -1},
                  heads[1] = {v->num_heads}, bias[2] = {v->num_heads, -1};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK && IS(clears_output_first) && a.output != NULL && a.output->strides != NULL)
        memset(attn_data(a.output), 0, (size_t)v->head_size);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->dtype, 3, shape, error);
    if (rc == ATTN_OK && (space != NULL || IS(profile_needs_cache)))
        rc = attn_check_tensor(a.query, "query", v->dtype, 3, shape, error);
    if (rc == ATTN_OK && IS(profile_needs_cache) && a.kv_cache == NULL)
        return refuse(error, ATTN_E_INVALID, "kv_cache", "required");
    if (rc != ATTN_OK) return rc;
    const int64_t size = a.output->dtype.bits / 8;
    char *out = attn_data(a.output);
    int64_t ot = attn_byte_stride(a.output, 0), oh = attn_byte_stride(a.output, 1);
    if (IS(output_head_dense)) oh = v->head_size_v * size;
    if (space == NULL) {
        if (IS(profile_dense)) {
            memset(out, 0, (size_t)(a.output->shape[0] * v->num_heads * v->head_size_v * size));
            return ATTN_OK;
        }
        if (IS(profile_nothing)) return ATTN_OK;
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->num_heads; h++)
                memset(out + t * ot + h * oh, 0, (size_t)(v->head_size_v * size));
        return ATTN_OK;
    }
    rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, &a.scales, &c, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, lse_shape, error);
    if (rc == ATTN_OK && v->has_sink)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, heads, error);
    if (rc == ATTN_OK && v->has_alibi)
        rc = attn_check_tensor(a.alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1, heads, error);
    if (rc == ATTN_OK && v->has_rel_bias)
        rc = attn_check_tensor(a.rel_bias, "rel_bias", ATTN_DTYPE_FLOAT32, 2, bias, error);
    if (rc != ATTN_OK) return rc;
    if (IS(key_required) && a.key == NULL) return refuse(error, ATTN_E_INVALID, "key", "required");
    if (IS(lse_required) && a.lse == NULL) return refuse(error, ATTN_E_INVALID, "lse", "required");
    if (s.metadata == NULL || s.metadata_bytes < metadata_bytes(v))
        return refuse(error, ATTN_E_SPACE, "metadata", "too small");
    if (s.workspace == NULL || (IS(space_exactly) ? s.workspace_bytes != workspace_bytes(v)
                                                  : s.workspace_bytes < workspace_bytes(v)))
        return refuse(error, IS(space_code) ? ATTN_E_INTERNAL : ATTN_E_SPACE, "workspace", "too small");
    head_t *m = s.metadata;
    record_t *rec = (record_t *)(m + 1);
    if (m->magic != MAGIC) return refuse(error, ATTN_E_STATE, "metadata", "not built");
    if (IS(own_metadata_only) && m->builder != v)
        return refuse(error, ATTN_E_STATE, "metadata", "another instance built it");
    if (IS(uses_builder)) v = (attn_instance_t *)m->builder;
    if (m->num_tokens > a.query->shape[0] || m->num_tokens > a.output->shape[0] ||
        (a.lse != NULL && m->num_tokens > a.lse->shape[1]))
        return refuse(error, ATTN_E_INVALID, "output", "query, output or lse has too few rows");
    if (IS(remembers_cache)) {
        if (v->seen_cache == NULL) v->seen_cache = c.base;
        c.base = (char *)v->seen_cache;
    }
    if (IS(remembers_cache_static)) {
        if (last_cache == NULL) last_cache = c.base;
        c.base = (char *)last_cache;
    }
    if (IS(remembers_query)) {
        if (v->seen_query == NULL) v->seen_query = attn_data(a.query);
    }
    if (IS(uses_last_instance) && last_instance != NULL) v = last_instance;
    if (IS(second_forward) && v->num_forwards++ == 1) v->scale *= 1.1f;
    if (IS(hundredth_forward) && ++counter > 100) v->scale *= 0.5f;
    float *acc = IS(lazy_shared_buffer) ? (float *)(void *)lazy_buffer
                 : IS(static_scratch)   ? static_acc
                                        : s.workspace;
    if (IS(workspace_from_build)) v->scale = ((float *)s.workspace)[0];
    if (IS(workspace_zeroed) && v->head_size_v > 0 && ((uint32_t *)s.workspace)[v->head_size_v] != 0)
        v->cap = 1e-3f;
    const float *sinks = v->has_sink ? attn_data(a.sinks) : NULL,
                *slopes = v->has_alibi ? attn_data(a.alibi_slopes) : NULL,
                *biases = v->has_rel_bias ? attn_data(a.rel_bias) : NULL;
    float *lse = a.lse != NULL ? attn_data(a.lse) : NULL;
    for (uint32_t r = 0; r < m->num_reqs; r++)
        for (int32_t i = 0; i < rec[r].count; i++) {
            const int64_t t = (int64_t)rec[r].first + i;
            for (int64_t h = 0; h < v->num_heads; h++) {
                const int64_t qh = IS(query_head_dense) ? (int64_t)v->head_size * size
                                                        : attn_byte_stride(a.query, 1),
                              qt = IS(query_token_dense) ? (int64_t)v->head_size * v->num_heads * size
                                                         : attn_byte_stride(a.query, 0);
                const char *q =
                    (IS(remembers_query) ? (const char *)v->seen_query : (char *)attn_data(a.query));
                int64_t at = t * qt + h * qh;
                if (IS(query_offset_32)) at = (int32_t)at;
                if (IS(query_offset_u32)) at = (uint32_t)at;
                const row_t x = {
                    .query = q + at,
                    .pages = m->table + (IS(table_rows_32)
                                             ? (int64_t)(int32_t)((uint32_t)r * (uint32_t)m->table_stride)
                                             : (int64_t)r * m->table_stride),
                    .q = v->is_causal || v->window != 0
                             ? (IS(top_left) ? i : rec[r].seq_len - rec[r].count + i)
                             : rec[r].seq_len - rec[r].count + i,
                    .seq_len = rec[r].seq_len,
                    .h = h,
                    .num_blocks = a.kv_cache->shape[0],
                    .sink = sinks != NULL
                                ? sinks[IS(sink_of_kv_head) ? h / (v->num_heads / v->num_kv_heads) : h]
                                : 0,
                    .slope = slopes != NULL ? slopes[h] : 0,
                    .rel_bias = biases != NULL ? biases + h * a.rel_bias->strides[0] : NULL,
                    .rel_max = biases != NULL ? a.rel_bias->shape[1] / 2 : 0};
                const float l = one_row(v, &c, &x, acc);
                int64_t to = t * ot + h * oh;
                if (IS(output_offset_32)) to = (int32_t)to;
                for (uint32_t e = 0; e < v->head_size_v; e++)
                    if (IS(output_truncated))
                        store_truncated(out + to, v->dtype, e, acc[e]);
                    else
                        store(out + to, v->dtype, e, acc[e]);
                if (lse != NULL)
                    lse[h * (IS(lse_dense) ? m->num_tokens : a.lse->strides[0]) + t] =
                        IS(lse_of_first_head) && h > 0 ? lse[t] : l;
            }
        }
    if (IS(consumes_metadata)) rec[0].count = 0;
    if (IS(consumes_lengths)) rec[0].seq_len -= rec[0].seq_len > 1;
    if (IS(clears_magic)) m->magic = 0;
    if (IS(writes_padded_row) && a.output->shape[0] > m->num_tokens)
        store(out + m->num_tokens * ot, v->dtype, 0, 0);
    if (IS(writes_query)) ((char *)attn_data(a.query))[0] ^= 1;
    if (IS(prints_in_forward) && m->num_reqs == 0) puts("empty batch");
    if (IS(locale_in_forward)) setlocale(LC_NUMERIC, "C.UTF-8");
    if (IS(sleeps)) usleep(1);
    if (IS(slow_debug_file)) {
        FILE *f = fopen("/dev/null", "w");
        if (f != NULL) fclose(f);
    }
    return ATTN_OK;
}
