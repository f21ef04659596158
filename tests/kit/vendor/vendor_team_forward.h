/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_team_forward.h: part of vendor_team.c: one call. */

/* A row whose sums are whole: sink, output, LSE. */
static void finish_row(const attn_instance_t *v, const call_t *c, int64_t t, int64_t h, float *acc, float max,
                       float sum) {
    const attn_forward_t *a = c->a;
    if (c->sinks != NULL && c->sinks[h] > -INFINITY && !(IS(encoder_sink_lost) && !v->is_paged) &&
        !(IS(keys_sink_lost) && (v->p.features & ATTN_F_KEY_LENGTHS)) &&
        !(IS(lengths_sink_lost) && (v->p.features & ATTN_F_DEVICE_LENGTHS)) &&
        !(IS(lookback_sink_lost) && (v->p.features & ATTN_F_CHUNK_LOOKBACK)) &&
        !(IS(sink_lost_in_mqa) && v->kv_heads == 1 && v->group > 1) &&
        !(IS(sink_lost_over_int8) && v->k_scale_at >= 0) &&
        !(IS(sink_lost_with_cap) && v->p.logits_soft_cap > 0)) {
        const float top = fmaxf(max, c->sinks[h]), keep = max == -INFINITY ? 0 : expf(max - top);
        for (int64_t e = 0; e < v->dv; e++)
            acc[e] *= keep;
        sum = sum * keep + (IS(prefix_sink_twice) && c->plan->prefix > 0 ? 2 : 1) * expf(c->sinks[h] - top);
        max = top;
    }
    char *to = (char *)attn_data(a->output) + t * attn_byte_stride(a->output, 0) +
               h * attn_byte_stride(a->output, 1);
    for (int64_t e = 0; e < v->dv; e++)
        store(to, v->p.dtype, e, sum > 0 ? acc[e] / sum : isnan(sum) ? NAN : 0);
    if (IS(stores_whole_vectors))
        for (int64_t e = v->dv; e % 8 != 0; e++)
            store(to, v->p.dtype, e, 0);
    if (a->lse == NULL) return;
    float *lse = (float *)attn_data(a->lse) + h * a->lse->strides[0] + t;
    if (IS(lse_lost_with_cap) && v->p.logits_soft_cap > 0) return;
    *lse = sum > 0 ? max + logf(sum) : isnan(sum) ? NAN : -INFINITY;
    if (IS(lse_of_rows_with_sink) && c->sinks != NULL) *lse = max;
    if (IS(lse_written_in_fours))
        for (int64_t i = 1; i < 4; i++)
            if ((t + i) % 4 != 0) lse[i] = 0;
}

static void run_item(attn_instance_t *v, const call_t *c, const item_t *it, int64_t g, float *scratch) {
    const request_t q = now_of(c, it->request);
    const int64_t most = QB * v->group, step = v->dv + 2;
    float *query = scratch, *k = query + most * v->d, *w = k + KT * v->d, *score = w + KT * v->dv,
          *acc = score + most * KT, *max = acc + most * v->dv, *sum = max + most;
    float stack[IS(scores_on_stack) ? q.len + 64 : 1];
    stack[0] = 0;
    if (IS(scores_on_stack))
        for (int64_t i = 0; i < q.len; i += 64)
            stack[i] = 1;
    hole = (int)stack[0];
    if (IS(grows_for_long) && q.len > 8192 && q.len > v->grown_size) {
        v->grown = realloc(v->grown, (size_t)q.len * sizeof(float));
        v->grown_size = q.len;
    }
    attend(v, c, it, &q, g, query, k, w, score, acc, max, sum);
    for (int64_t i = 0; i < it->rows * v->group; i++) {
        const int64_t row = it->row + i / v->group, t = q.first + row, h = g * v->group + i % v->group;
        if (row >= q.count) break;
        if (it->slot < 0) {
            finish_row(v, c, t, h, acc + i * v->dv, max[i], sum[i]);
            continue;
        }
        float *part = c->slots + ((it->slot + i / v->group) * v->heads + h) * step;
        memcpy(part, acc + i * v->dv, (size_t)v->dv * sizeof *part);
        part[v->dv] = max[i], part[v->dv + 1] = sum[i];
    }
}

/* The parts of a row become one, which lies in the first of them. */
static void merge_item(attn_instance_t *v, const call_t *c, const item_t *it) {
    const request_t q = now_of(c, it->request);
    const int64_t step = v->dv + 2;
    for (int64_t i = 0; i < it->rows && it->row + i < q.count; i++)
        for (int64_t h = 0; h < v->heads; h++) {
            float *first = c->slots + ((it->slot + i) * v->heads + h) * step;
            float max = first[v->dv];
            for (int32_t k = 1; k < it->parts; k++)
                max = fmaxf(max, first[k * it->rows * v->heads * step + v->dv]);
            if (isnan(first[v->dv])) max = first[v->dv];
            float sum = 0;
            for (int32_t k = 0; k < it->parts; k++) {
                float *part = first + k * it->rows * v->heads * step;
                float keep = part[v->dv] == -INFINITY ? 0 : expf(part[v->dv] - max);
                if (IS(prefix_weight_lost) && c->plan->prefix > 0 && k == 0) keep = part[v->dv + 1] > 0;
                if (!(IS(prefix_not_in_sum) && c->plan->prefix > 0 && k == 0)) sum += part[v->dv + 1] * keep;
                for (int64_t e = 0; e < v->dv; e++)
                    first[e] = (k == 0 ? 0 : first[e]) + part[e] * keep;
            }
            finish_row(v, c, q.first + it->row + i, h, first, max, sum);
        }
}

static int check_tensors(const attn_instance_t *v, const attn_forward_t *a, attn_error_t *error) {
    const int64_t qs[3] = {-1, v->heads, v->d}, ls[2] = {v->heads, -1}, hs[1] = {v->heads},
                  ks[3] = {-1, v->kv_heads, v->d}, vs[3] = {-1, v->kv_heads, v->dv};
    const uint64_t f = v->p.features;
    int rc =
        attn_check_tensor(a->query, "query", v->p.dtype, 3, IS(query_heads_unchecked) ? NULL : qs, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a->key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a->value, "value", v->p.dtype, 3, vs, error);
    if (rc == ATTN_OK && a->lse != NULL)
        rc = attn_check_tensor(a->lse, "lse", ATTN_DTYPE_FLOAT32, 2, ls, error);
    if (rc == ATTN_OK && (f & ATTN_F_SINK))
        rc = attn_check_tensor(a->sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & ATTN_F_ALIBI))
        rc = attn_check_tensor(a->alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1,
                               IS(slopes_unchecked) ? NULL : hs, error);
    if (rc == ATTN_OK && (f & ATTN_F_QQ_BIAS))
        rc = attn_check_tensor(a->qq_bias, "qq_bias", ATTN_DTYPE_FLOAT32, 2, NULL, error);
    return rc;
}

static int check_rows(const attn_instance_t *v, const attn_forward_t *a, const plan_t *plan,
                      attn_error_t *error) {
    const request_t *req = requests_of((plan_t *)plan);
    int64_t keys = 0;
    for (int32_t r = 0; r < plan->num_reqs; r++) {
        if (req[r].len > 0 && req[r].key + (int64_t)req[r].len > keys)
            keys = req[r].key + (int64_t)req[r].len;
        if (plan->starts == NULL || plan->lens == NULL || IS(device_bounds_unchecked)) continue;
        const int32_t count = plan->starts[r + 1] - plan->starts[r], len = plan->lens[r];
        if (count < 0 || count > req[r].count || plan->starts[r] < 0 ||
            plan->starts[r + 1] > plan->num_tokens || len < count || len > req[r].len)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens and query_start_loc are beyond their bounds");
    }
    if (plan->num_tokens > a->query->shape[0] || plan->num_tokens > a->output->shape[0] ||
        (a->lse != NULL && plan->num_tokens > a->lse->shape[1]) ||
        (!v->is_paged && (keys > a->key->shape[0] || keys > a->value->shape[0])) ||
        ((v->p.features & ATTN_F_QQ_BIAS) != 0 && plan->num_tokens > a->qq_bias->shape[0]))
        return attn_fail(error, ATTN_E_INVALID, "output", "a tensor has too few rows for the batch");
    return ATTN_OK;
}

static void take_and_free(void) {
    void *volatile m = calloc(16, 100);
    free(m);
}

static int forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space,
                   attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    const int64_t os[3] = {-1, v->heads, v->dv};
    int rc = take(&a, sizeof a, args, "args", IS(forward_whole), IS(forward_equal), IS(forward_tail), error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->p.dtype, 3, os, error);
    if (rc != ATTN_OK) return rc;
    if (IS(null_data_refused) && a.query != NULL && a.query->data == NULL)
        return attn_fail(error, ATTN_E_INVALID, "query", "query has no data");
    if (space == NULL) {
        if (IS(allocates_in_profile)) take_and_free();
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset((char *)attn_data(a.output) + t * attn_byte_stride(a.output, 0) +
                           h * attn_byte_stride(a.output, 1),
                       0, (size_t)v->dv * attn_dtype_size(v->p.dtype));
        if (IS(profile_is_remembered)) v->has_run = 1;
        return ATTN_OK;
    }
    rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc == ATTN_OK) rc = check_tensors(v, &a, error);
    call_t c = {.plan = s.metadata, .a = &a};
    if (rc == ATTN_OK && v->is_paged) rc = read_cache(v, a.kv_cache, &a.scales, &c.cache, error);
    if (rc != ATTN_OK) return rc;
    if (c.plan->magic != MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is not built; build it");
    rc = check_rows(v, &a, c.plan, error);
    if (rc != ATTN_OK) return rc;
    const uint64_t f = v->p.features;
    c.sinks = (f & ATTN_F_SINK) ? attn_data(a.sinks) : NULL;
    c.slopes = (f & ATTN_F_ALIBI)
                   ? IS(slopes_offset_ignored) ? a.alibi_slopes->data : attn_data(a.alibi_slopes)
                   : NULL;
    if (f & ATTN_F_QQ_BIAS) {
        c.bias = attn_data(a.qq_bias);
        c.bias_stride = IS(bias_dense) ? a.qq_bias->shape[1] : a.qq_bias->strides[0];
        c.bias_width = a.qq_bias->shape[1];
    }
    if (IS(sets_omp_threads_back)) omp_set_num_threads(v->opened_with);
    if (IS(allocates_with_lse) && a.lse != NULL) take_and_free();
    if (IS(allocates_with_slopes) && c.slopes != NULL) take_and_free();
    if (IS(profile_is_remembered) && v->has_run && c.plan->has_long) v->scale *= 0.5f;
    const int threads = IS(scratch_by_max_threads) ? omp_get_max_threads()
                        : IS(threads_of_device)    ? v->device->num_sms == 1 ? 1 : 2
                                                   : v->threads;
    float *space_of_threads = s.workspace;
    c.slots = space_of_threads + threads * scratch_floats(v);
    const item_t *items = items_of(v, c.plan);
    const int32_t n = c.plan->num_items;
#pragma omp parallel num_threads(threads)
    {
        const int64_t me = IS(scratch_of_first_thread) ? 0 : omp_get_thread_num();
        float *scratch = space_of_threads + me * scratch_floats(v);
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = 0; i < n * v->kv_heads; i++)
            run_item(v, &c, &items[i / v->kv_heads], i % v->kv_heads, scratch);
        if (!IS(merge_without_barrier)) {
#pragma omp barrier
        }
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < n; i++)
            if (items[i].part == 0 && items[i].parts > 1) merge_item(v, &c, &items[i]);
    }
    if (IS(cache_written_back) && v->is_paged && n > 0) {
        volatile char *at = c.cache.base + c.plan->table[0] * c.cache.block;
        const char was = *at;
        *at = (char)(was ^ 1);
        usleep(1);
        *at = was;
    }
    if (IS(logs_each_forward) && v->host != NULL) v->host->log(v->host->ctx, ATTN_LOG_INFO, "team: forward");
    return ATTN_OK;
}

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    if (IS(error_cleared_first) && error != NULL) error->code = 0, error->text[0] = 0;
    if (IS(lock_kept_on_error)) pthread_mutex_lock(&lock);
#if defined(__x86_64__)
    const unsigned was = __builtin_ia32_stmxcsr();
    const int is_fast = IS(flushes_until_error) || IS(flushes_in_profile);
    if (is_fast) __builtin_ia32_ldmxcsr(was | 0x8040);
#endif
    if (IS(rounds_down_until_error)) fesetround(FE_DOWNWARD), fesetround(FE_TONEAREST);
    const int rc = forward(v, args, space, error);
#if defined(__x86_64__)
    if (is_fast && !(IS(flushes_until_error) && rc != ATTN_OK) && !(IS(flushes_in_profile) && space == NULL))
        __builtin_ia32_ldmxcsr(was);
#endif
#if defined(__x86_64__)
    if (IS(flushing_off_at_exit)) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~0x8040u);
#endif
    if (IS(rounds_down_until_error) && rc != ATTN_OK) fesetround(FE_DOWNWARD);
    if (IS(lock_kept_on_error) && (rc == ATTN_OK)) pthread_mutex_unlock(&lock);
    if (IS(lock_kept_on_error) && rc != ATTN_OK && space == NULL) pthread_mutex_unlock(&lock);
    return rc;
}
