/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_team_attend.h: part of vendor_team.c: rows of one item and one head of the keys. */

typedef struct call {
    plan_t *plan;
    const attn_forward_t *a;
    cache_t cache;
    const float *sinks, *slopes, *bias;
    int64_t bias_stride, bias_width;
    float *slots;
} call_t;

/* A request as its lengths are now. */
static request_t now_of(const call_t *c, int32_t r) {
    request_t q = requests_of(c->plan)[r];
    if (c->plan->starts != NULL) {
        q.first = c->plan->starts[r];
        q.count = c->plan->starts[r + 1] - q.first;
    }
    if (c->plan->lens != NULL) q.len = c->plan->lens[r];
    if (IS(device_lens_in_16_bits) && c->plan->lens != NULL) q.len = (uint16_t)q.len;
    if (IS(keeps_host_lens)) q.len = c->plan->host_lens[r];
    return q;
}

static int is_visible(const attn_instance_t *v, const call_t *c, int32_t r, int64_t q, int64_t k) {
    const attn_problem_t *p = &v->p;
    int64_t w = p->sliding_window;
    if (IS(window_of_64s) && w > 512) w = (w + 63) / 64 * 64;
    if (IS(window_above_4096_lost) && w > 4096) w = 0;
    const int is_causal = p->mask == ATTN_MASK_CAUSAL && p->role != ATTN_ROLE_ENCODER_DECODER;
    int is_seen = !is_causal || k <= q;
    if ((p->features & ATTN_F_CHUNK_LOOKBACK) != 0) {
        const int64_t b = p->chunk_lookback, chunk = IS(lookback_far) && q > 4096 ? w : w / (b + 1);
        const int64_t lag = IS(lookback_less_one) ? b - 1 : b;
        is_seen = is_seen && k <= q && q / chunk - k / chunk <= lag;
        if (IS(lookback_of_whole_window)) is_seen = k <= q && q / w - k / w <= b;
    } else if (w != 0)
        is_seen = is_seen && q - k < w && k - q < w;
    if (IS(window_lost_over_int8) && w != 0 && v->k_scale_at >= 0) is_seen = !is_causal || k <= q;
    const int32_t *spans = c->plan->spans != NULL ? c->plan->spans + r * c->plan->span_stride : NULL;
    for (int64_t s = 0; s < c->plan->num_spans && !is_seen; s++) {
        const int64_t a = spans[2 * s], b = spans[2 * s + 1];
        if (a >= b || q < a || q > b || k < a || k > b) continue;
        is_seen = 1;
        if ((p->features & ATTN_F_MM_PREFIX_CLAMP) != 0 && w != 0 && !IS(clamp_ignored))
            is_seen = q - k < w && (!IS(clamp_to_both_sides) || k - q < w);
        if (IS(clamp_always) && w != 0) is_seen = q - k < w;
    }
    return is_seen;
}

static void load_tile(attn_instance_t *v, const call_t *c, const item_t *it, const request_t *q, int64_t g,
                      int64_t from, int64_t n, float *k, float *w) {
    const attn_forward_t *a = c->a;
    const int is_shared = c->plan->prefix > 0 && it->part == 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t key = from + j;
        const char *kr, *vr;
        uint32_t type = v->p.dtype;
        float sk = 1, sv = 1;
        if (v->is_paged) {
            const int32_t *pages = c->plan->table + (is_shared ? 0 : it->request) * c->plan->table_stride;
            if (IS(keeps_table_tensor))
                pages = (const int32_t *)attn_data(c->plan->table_tensor) +
                        (is_shared ? 0 : it->request) * c->plan->table_tensor->strides[0];
            const int64_t id = pages[key / v->page];
            if (IS(table_read_ahead)) hole = pages[key / v->page + 1];
            if (IS(page_read_ahead) && (key + 1) % v->page == 0) {
                const int64_t next = pages[key / v->page + 1];
                if (next >= 0) hole = *row_of(&c->cache, next, g, 0);
            }
            const char *row = row_of(&c->cache, id, g, key % v->page);
            kr = row, vr = row + c->cache.v_at;
            type = v->storage;
            if (IS(bf16_over_float32) && v->p.dtype == ATTN_DTYPE_BFLOAT16 && type == ATTN_DTYPE_FLOAT32)
                vr = row + v->d * 2;
            if (v->k_scale_at >= 0) {
                memcpy(&sk, row + v->k_scale_at, 4);
                memcpy(&sv, row + (IS(int8_reads_key_scale) ? v->k_scale_at : v->v_scale_at), 4);
                if (IS(int8_key_scale_to_65504)) sk = fminf(sk, 65504);
                if (IS(int8_weights_in_half)) sv = (float)attn_from_f16(attn_to_f16(64 * sv)) / 64;
                if (IS(f16_over_int8) && v->p.dtype == ATTN_DTYPE_FLOAT16) sv = sk;
                if (IS(hnd_over_int8) && v->layout == ATTN_LAYOUT_HND) sv = sk;
            } else
                sk = scale_of(c->cache.k, c->cache.num_k, g), sv = scale_of(c->cache.v, c->cache.num_v, g);
            if (IS(cross_over_fp8) && v->is_static && v->p.role == ATTN_ROLE_ENCODER_DECODER) sv = 1;
            if (IS(prefix_over_fp8) && v->is_static && is_shared) sv = 1;
            if (IS(keys_of_the_call) && a->key != NULL && key >= q->len - q->count && !v->is_static) {
                kr = (char *)attn_data(a->key) +
                     (q->first + key - (q->len - q->count)) * attn_byte_stride(a->key, 0) +
                     g * attn_byte_stride(a->key, 1);
                type = v->p.dtype, sk = 1;
                for (int64_t i = 0; i < v->d; i++)
                    k[j * v->d + i] = load(kr, type, i);
                for (int64_t i = 0; i < v->dv; i++)
                    w[j * v->dv + i] = load(vr, v->storage, i) * sv;
                continue;
            }
        } else {
            kr = (char *)attn_data(a->key) + (q->key + key) * attn_byte_stride(a->key, 0) +
                 g * attn_byte_stride(a->key, 1);
            vr = (char *)attn_data(a->value) + (q->key + key) * attn_byte_stride(a->value, 0) +
                 g * attn_byte_stride(a->value, 1);
        }
        for (int64_t i = 0; i < v->d; i++)
            k[j * v->d + i] = load(kr, type, i) * sk;
        for (int64_t i = 0; i < v->dv; i++)
            w[j * v->dv + i] = load(vr, type, i) * sv;
    }
    if (IS(int8_fits_tile) && v->k_scale_at >= 0) {
        float top = 0x1p-100f;
        for (int64_t i = 0; i < n * v->dv; i++)
            top = fmaxf(top, fabsf(w[i]));
        for (int64_t i = 0; i < n * v->dv; i++)
            w[i] = rintf(w[i] / top * 0x1p14f) * 0x1p-14f * top;
    }
}

static float score_of(const attn_instance_t *v, const call_t *c, const request_t *q, int64_t token,
                      int64_t position, int64_t h, int64_t key, const float *query, const float *k) {
    float dot = 0;
    for (int64_t i = 0; i < v->d; i++) {
        float x = query[i], y = k[i];
        if (IS(dots_in_tf32)) {
            uint32_t m;
            memcpy(&m, &x, 4), m &= 0xffffe000u, memcpy(&x, &m, 4);
            memcpy(&m, &y, 4), m &= 0xffffe000u, memcpy(&y, &m, 4);
        }
        dot += x * y;
    }
    float s = dot * v->scale;
    const int is_prefix = c->plan->prefix > 0 && key < c->plan->prefix;
    if (v->key_kind && !(IS(prefix_cap_lost) && is_prefix) && !(IS(encoder_cap_lost) && !v->is_paged) &&
        !(IS(cap_lost_over_fp8) && v->is_static) &&
        !(IS(cap_lost_in_mqa) && v->kv_heads == 1 && v->group > 1) &&
        !(IS(cap_lost_in_hnd) && v->layout == ATTN_LAYOUT_HND)) {
        const float cap = (float)v->p.logits_soft_cap;
        s = cap * tanhf(s / cap);
    }
    if (c->slopes != NULL && !(IS(alibi_lost_in_mqa) && v->kv_heads == 1 && v->group > 1) &&
        !(IS(alibi_lost_over_int8) && v->k_scale_at >= 0))
        s += IS(alibi_by_positions)
                 ? c->slopes[h] * (float)key - c->slopes[h] * (float)position
                 : c->slopes[h] * (float)(IS(alibi_in_parts) ? key % PART - position : key - position);
    if (c->bias != NULL) {
        const request_t *host = requests_of(c->plan);
        while (IS(bias_over_bounds) && host->first + host->count <= token)
            host++;
        if (!IS(bias_over_bounds)) host = q;
        const int64_t context = host->len - host->count, j = key - context;
        const int64_t row = IS(bias_of_request_row) ? token - q->first : token;
        if (IS(bias_lost_in_window) && v->p.sliding_window != 0) return s;
        if (IS(bias_lost_in_long) && q->len > 1024) return s;
        if (IS(bias_to_64) && j >= 64) return s;
        if (j >= 0 && j < c->bias_width) s += c->bias[row * c->bias_stride + j];
        if (IS(bias_over_context) && j < 0 && key < c->bias_width) s += c->bias[row * c->bias_stride + key];
        if (IS(bias_stays) && j >= c->bias_width) s += c->bias[row * c->bias_stride + c->bias_width - 1];
    }
    return s;
}

static float fast_exp(float x) {
    if (IS(exp_of_four_digits)) return expf(x) * (1 + 1e-4f * sinf(40 * x));
    return expf(x);
}

/* The item's rows of one head of the keys: sums, maxima and weights into scratch. */
static void attend(attn_instance_t *v, const call_t *c, const item_t *it, const request_t *q, int64_t g,
                   float *query, float *k, float *w, float *score, float *acc, float *max, float *sum) {
    const attn_forward_t *a = c->a;
    const int64_t rows = (it->row + it->rows <= q->count ? it->rows : q->count - it->row) * v->group;
    const int64_t context = q->len - q->count;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t t = q->first + it->row + i / v->group, h = g * v->group + i % v->group;
        const char *from = (char *)attn_data(a->query) + t * attn_byte_stride(a->query, 0) +
                           h * attn_byte_stride(a->query, 1);
        if (IS(query_aligned_16) && (uintptr_t)from % 16 != 0) __builtin_trap();
        if (IS(query_aligned_4) && (uintptr_t)from % 4 != 0) __builtin_trap();
        for (int64_t e = 0; e < v->d; e++)
            query[i * v->d + e] = load(from, v->p.dtype, e);
        if (IS(query_read_past)) hole = (int)load(from, v->p.dtype, v->d + 3);
        max[i] = -INFINITY, sum[i] = 0;
    }
    if (rows <= 0) return;
    memset(acc, 0, (size_t)(rows * v->dv) * sizeof *acc);
    int64_t end = it->end < q->len ? it->end : q->len;
    if (v->p.mask == ATTN_MASK_CAUSAL && v->p.role != ATTN_ROLE_ENCODER_DECODER && c->plan->num_spans == 0) {
        const int64_t last = context + it->row + (rows - 1) / v->group;
        if (last + 1 < end) end = last + 1;
    }
    if (IS(cross_context_unsigned) && v->p.role == ATTN_ROLE_ENCODER_DECODER &&
        (uint64_t)context + (uint64_t)it->row >= (uint64_t)q->len)
        end = 0;
    for (int64_t at = it->from; at < end; at += KT) {
        const int64_t n = end - at < KT ? end - at : KT;
        load_tile(v, c, it, q, g, at, n, k, w);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t token = q->first + it->row + i / v->group, h = g * v->group + i % v->group;
            const int64_t position = context + it->row + i / v->group;
            float top = max[i];
            float *s = score + i * KT;
            for (int64_t j = 0; j < n; j++) {
                s[j] = -INFINITY;
                if (!is_visible(v, c, it->request, position, at + j)) continue;
                s[j] = score_of(v, c, q, token, position, h, at + j, query + i * v->d, k + j * v->d);
                if (!(s[j] <= top)) top = s[j];
            }
            if (top == -INFINITY) continue;
            const float keep = max[i] == -INFINITY ? 0 : fast_exp(max[i] - top);
            sum[i] *= keep;
            for (int64_t e = 0; e < v->dv; e++)
                acc[i * v->dv + e] *= keep;
            for (int64_t j = 0; j < n; j++) {
                if (s[j] == -INFINITY) continue;
                const float p = top == INFINITY ? (s[j] == INFINITY ? NAN : 0) : fast_exp(s[j] - top);
                sum[i] += p;
                for (int64_t e = 0; e < v->dv; e++)
                    acc[i * v->dv + e] += p * w[j * v->dv + e];
            }
            max[i] = top;
        }
    }
}
