/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_tile_kernel.h: part of vendor_tile.c: tiles of packed rows. */

typedef struct job {
    const plan_t *plan;
    const request_t *req;
    int64_t row0, rows, g; /* of the request: tokens times heads of the group */
    const int32_t *pages;
    const side_t *k, *w;
    const attn_forward_t *a;
    const float *sinks, *slopes;
} job_t;

static int64_t page_at(const attn_instance_t *v, const job_t *x, int64_t at) {
    const int64_t n = (x->req->len + v->page - 1) / v->page;
    if (IS(table_by_pointer) && v->seen_table == x->pages && at < KEPT && x->req->len == v->seen_reqs)
        return v->seen_pages[at];
    if (IS(pages_in_a_run) && n > 1 && x->pages[n - 1] == x->pages[0] + n - 1) return x->pages[0] + at;
    return x->pages[at];
}

static const char *key_row(const attn_instance_t *v, const job_t *x, int64_t key, int is_value) {
    if (v->is_paged && IS(page_by_reciprocal)) { /* key / page, as a product: right for powers of two */
        const int64_t at = (key * ((1 << 20) / v->page + ((1 << 20) % v->page != 0))) >> 20;
        return row_of(v, is_value ? x->w : x->k, page_at(v, x, at), x->g, key - at * v->page);
    }
    if (v->is_paged)
        return row_of(v, is_value ? x->w : x->k, page_at(v, x, key / v->page), x->g, key % v->page);
    const DLTensor *t = is_value ? x->a->value : x->a->key;
    const int64_t head = IS(key_heads_dense) ? v->d * (t->dtype.bits / 8) : attn_byte_stride(t, 1);
    return (char *)attn_data(t) + (x->req->first + key) * attn_byte_stride(t, 0) + x->g * head;
}

/* Keys from on, n of them, as floats. */
static void load_keys(attn_instance_t *v, const job_t *x, int64_t from, int64_t n, float *k, float *w) {
    const uint32_t type = v->is_paged ? v->storage : v->p.dtype;
    const int is_one = IS(scale_one_of_head_0) && v->is_paged && x->k->scale != NULL && x->k->scale[0] == 1;
    const float sk = v->is_paged && !is_one ? scale_of(x->k, x->g) : 1,
                sv = v->is_paged ? scale_of(x->w, x->g) : 1;
    volatile float scale_past = 0;
    (void)scale_past;
    for (int64_t j = 0; j < KT; j++) {
        if (j >= n && IS(stale_keys_of_last_tile)) break;
        for (int64_t i = 0; i < v->d; i++) {
            k[j * v->d + i] = j < n ? load(key_row(v, x, from + j, 0), type, i) * sk : 0;
            if (IS(reads_past_row) && i + 1 == v->d && j < n)
                scale_past = load(key_row(v, x, from + j, 1), type, v->dv + 3);
            w[j * v->d + i] = j < n ? load(key_row(v, x, from + j, 1), type, i) * sv : 0;
        }
    }
    if (IS(keeps_dequantised_pages) && v->is_paged && v->storage == ATTN_DTYPE_FP8_E4M3 && n == KT) {
        const int64_t id = (page_at(v, x, from / v->page) * v->kv_heads + x->g) * 16 + from % v->page;
        float *kept = v->kept_tile + id / 16 % KEPT * KT * 256;
        if (v->kept_id[id / 16 % KEPT] == id + 1)
            memcpy(k, kept, (size_t)(KT * v->d) * sizeof *k);
        else
            memcpy(kept, k, (size_t)(KT * v->d) * sizeof *k), v->kept_id[id / 16 % KEPT] = id + 1;
    }
}

static int is_visible(const attn_instance_t *v, const job_t *x, int64_t q, int64_t key) {
    const int64_t w = v->p.sliding_window;
    if (key >= x->req->len) return 0;
    if (v->p.mask == ATTN_MASK_CAUSAL && key > q) return 0;
    if (w != 0 && (q - key >= w || (v->p.mask != ATTN_MASK_CAUSAL && key - q >= w))) return 0;
    return 1;
}

static float score_of(const attn_instance_t *v, const job_t *x, int64_t row, int64_t q, int64_t key,
                      float dot) {
    const int64_t h = x->g * v->group + row % v->group;
    float s = dot * v->scale;
    if (IS(nan_key_skipped) && isnan(s)) return -INFINITY;
    if (!is_visible(v, x, q, key) && IS(cap_after_mask)) s = -1e30f;
    if (v->p.logits_soft_cap > 0) {
        const float c = (float)v->p.logits_soft_cap;
        s = c * tanhf(s / c);
    }
    if (x->slopes != NULL)
        s += (IS(slopes_in_bf16) ? as_bf16(x->slopes[h]) : x->slopes[h]) *
             (float)(IS(alibi_of_tile) ? key - q - x->row0 / v->group + x->row0 / v->group / 8 * 8 : key - q);
    if (!is_visible(v, x, q, key) && !IS(cap_after_mask)) s = IS(mask_minus_10000) ? -10000 : -INFINITY;
    if (IS(mask_minus_10000) && key >= x->req->len) s = -INFINITY;
    return s;
}

/* A tile of keys into the running state of all rows: maxima lag by 8 at most. */
static void add_tile(attn_instance_t *v, const job_t *x, int64_t from, int64_t n, const float *query,
                     const float *k, const float *w, float *scores, float *acc, float *max, float *sum) {
    const int64_t context = x->req->len - x->req->count;
    float top_of_tile = -INFINITY;
    for (int64_t i = 0; i < QT; i++)
        for (int64_t j = 0; j < KT; j++) {
            const int64_t row = x->row0 + i < x->rows ? x->row0 + i : x->rows - 1;
            float dot = 0;
            for (int64_t e = 0; e < v->d; e++)
                dot += query[i * v->d + e] * k[j * v->d + e];
            const int64_t q = v->is_paged ? context + row / v->group : row / v->group;
            scores[i * KT + j] = j >= n && !IS(stale_keys_of_last_tile) ? -INFINITY
                                 : j >= n && from + j >= x->req->len    ? -INFINITY
                                                                     : score_of(v, x, row, q, from + j, dot);
            if (scores[i * KT + j] > top_of_tile) top_of_tile = scores[i * KT + j];
        }
    int any = 0;
    for (int64_t i = 0; i < QT; i++) {
        float top = -INFINITY;
        for (int64_t j = 0; j < KT; j++)
            top = fmaxf(top, scores[i * KT + j]);
        if (top > max[i] + 8) any = 1;
    }
    for (int64_t i = 0; i < QT; i++) {
        float *a = acc + i * v->dv, top = -INFINITY;
        for (int64_t j = 0; j < KT; j++)
            top = fmaxf(top, scores[i * KT + j]);
        if (IS(maximum_of_tile)) top = top_of_tile;
        if (IS(skips_small_tiles) && top < max[i] - 9) continue;
        const float lag = IS(lag_without_limit) ? 90 : 8;
        if (IS(padding_raises_rows) ? any && top > max[i] : top > max[i] + lag) {
            const float keep = max[i] == -INFINITY ? 0 : expf(max[i] - top);
            for (int64_t e = 0; e < v->dv; e++)
                a[e] *= keep;
            if (!IS(sum_not_rescaled_late) || from < 20 * KT) sum[i] *= keep;
            max[i] = top;
        }
        if (max[i] == -INFINITY) continue;
        for (int64_t j = 0; j < KT; j++) {
            if (scores[i * KT + j] == -INFINITY && !IS(stale_keys_of_last_tile)) continue;
            float p = expf(scores[i * KT + j] - max[i]);
            if (IS(weights_in_f16)) p = (float)attn_from_f16(attn_to_f16(p));
            sum[i] += p;
            for (int64_t e = 0; e < v->dv; e++)
                a[e] += p * w[j * v->dv + e];
        }
    }
}

static void one_tile(attn_instance_t *v, job_t *x, float *space) {
    float *query = space, *k = query + QT * v->d, *w = k + KT * v->d, *scores = w + KT * v->dv,
          *acc = scores + QT * KT, *max = acc + QT * v->dv, *sum = max + QT;
    const attn_forward_t *a = x->a;
    const int64_t context = x->req->len - x->req->count;
    for (int64_t i = 0; i < QT; i++) {
        const int64_t row = x->row0 + i, t = x->req->first + row / v->group,
                      h = x->g * v->group + row % v->group;
        const char *q = (char *)attn_data(a->query) + t * attn_byte_stride(a->query, 0) +
                        h * attn_byte_stride(a->query, 1);
        const int is_row = IS(padding_raises_rows) ? t < a->query->shape[0] : row < x->rows;
        for (int64_t e = 0; e < v->d; e++)
            query[i * v->d + e] = is_row ? load(q, v->p.dtype, e) : 0;
        if (IS(query_scaled_in_place) && is_row && v->p.dtype == ATTN_DTYPE_FLOAT32) {
            char before[4];
            memcpy(before, q, 4);
            store((char *)q, v->p.dtype, 0, query[i * v->d] * v->scale);
            __asm__ volatile("" ::: "memory");
            memcpy((char *)q, before, 4);
        }
        max[i] = -INFINITY, sum[i] = 0;
    }
    memset(acc, 0, (size_t)(QT * v->dv) * sizeof *acc);
    const int64_t last_row = x->row0 + QT < x->rows ? x->row0 + QT - 1 : x->rows - 1;
    int64_t first_q = context + x->row0 / v->group, last_q = context + last_row / v->group;
    int64_t end = x->req->len, from = 0;
    if (v->p.mask == ATTN_MASK_CAUSAL && v->is_paged) {
        const int64_t q = IS(causal_end_of_first_row) ? first_q : last_q;
        end = q + 1 < end ? q + 1 : end;
    }
    if (v->p.sliding_window != 0 && v->is_paged) {
        from = (IS(window_of_last_row) ? last_q : first_q) - v->p.sliding_window + 1;
        from = from < 0 ? 0 : from / KT * KT;
    }
    if (IS(first_tile_by_clock) && end > 4 * KT) { /* which half a thread takes first */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_nsec >> 10 & 1) {
            const int64_t half = from + (end - from) / 2 / KT * KT;
            for (int64_t at = half; at < end; at += KT) {
                const int64_t n = end - at < KT ? end - at : KT;
                load_keys(v, x, at, n, k, w);
                add_tile(v, x, at, n, query, k, w, scores, acc, max, sum);
            }
            end = half;
        }
    }
    for (; from < end; from += KT) {
        const int64_t n = end - from < KT ? end - from : KT;
        load_keys(v, x, from, n, k, w);
        add_tile(v, x, from, n, query, k, w, scores, acc, max, sum);
    }
    if (IS(scratch_for_long) && x->req->len > 3000) {
        long_scratch[0] = sum[0];
        usleep(50);
        sum[0] = long_scratch[0];
    }
    for (int64_t i = 0; i < QT && (x->row0 + i < x->rows || IS(tail_rows_written)); i++) {
        const int64_t row = x->row0 + i, t = x->req->first + row / v->group,
                      h = x->g * v->group + row % v->group;
        if (t >= a->output->shape[0]) break;
        if (x->sinks != NULL && x->sinks[h] > -INFINITY) {
            const float top = fmaxf(max[i], x->sinks[h]), keep = max[i] == -INFINITY ? 0 : expf(max[i] - top);
            sum[i] = sum[i] * keep + expf(x->sinks[h] - top);
            for (int64_t e = 0; e < v->dv; e++)
                acc[i * v->dv + e] *= keep;
            max[i] = top;
        }
        char *to = (char *)attn_data(a->output) + t * attn_byte_stride(a->output, 0) +
                   h * attn_byte_stride(a->output, 1);
        for (int64_t e = 0; e < v->dv; e++) {
            float y = sum[i] > 0 ? acc[i * v->dv + e] / sum[i] : isnan(sum[i]) ? NAN : 0;
            if (IS(nan_becomes_zero) && isnan(y)) y = 0;
            if (IS(output_clipped) && v->p.dtype == ATTN_DTYPE_FLOAT16) y = fmaxf(-1e4f, fminf(1e4f, y));
            store(to, v->p.dtype, e, y);
        }
        if (a->lse != NULL) {
            float *lse = attn_data(a->lse);
            lse[h * a->lse->strides[0] + t] = sum[i] > 0      ? max[i] + logf(sum[i])
                                              : isnan(sum[i]) ? NAN
                                                              : -INFINITY;
        }
    }
}
