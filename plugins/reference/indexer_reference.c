/* SPDX-License-Identifier: Apache-2.0 */
/* attn.draft.indexer/0 in plain C: what the bytes of the cache are, and logits and top-k in double, for
 * everybody else to be compared with. Scales are float32 because their bytes are part of the format. */
#include <attn/attn_plugin_util.h>
#include "indexer_reference.h"
#include "rope_reference.h"

#include "../common/indexer_plan.h"
#include "../common/indexer_rows.h"

#include <math.h>
#include <stdlib.h>

struct attn_indexer {
    indexer_rules r;
};

static int open_indexer(const attn_indexer_problem_t *problem, const attn_device_t *device,
                        const attn_host_t *host, attn_indexer_t **indexer, attn_error_t *error) {
    (void)host;
    indexer_rules r = {.device_type = (int)kDLCPU, .alignment = 1};
    attn_device_t dev;
    int status = indexer_check_open(problem, device, indexer, &r.p, &dev, error);
    if (status == ATTN_OK && dev.type != (int)kDLCPU)
        status = attn_fail(error, ATTN_E_DEVICE, "device",
                           "REFERENCE runs on CPUs (type %d); type %d was given", (int)kDLCPU, (int)dev.type);
    if (status != ATTN_OK) return status;
    attn_indexer_t *x = malloc(sizeof *x);
    if (x == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an indexer of %zu bytes", sizeof *x);
    x->r = r;
    *indexer = x;
    return ATTN_OK;
}

static void close_indexer(attn_indexer_t *x) {
    free(x);
}

static float value_at(const char *row, int64_t i, uint32_t dtype) {
    uint16_t h;
    if (dtype == ATTN_DTYPE_FLOAT32) return indexer_float(row, i);
    memcpy(&h, row + i * 2, sizeof h);
    return (float)(dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(h) : attn_from_bf16(h));
}

/* Scale and e4m3 bytes of a row; NaN does not count for the scale. */
static float quantize_row(const char *row, uint32_t dtype, int64_t n, float floor, int power_of_two,
                          uint8_t *bytes) {
    float largest = floor;
    for (int64_t i = 0; i < n; i++) {
        float a = fabsf(value_at(row, i, dtype));
        if (a > largest) largest = a;
    }
    const float scale = indexer_scale(largest, power_of_two);
    for (int64_t i = 0; i < n; i++)
        bytes[i] = attn_to_e4m3((double)(value_at(row, i, dtype) / scale)); /* the quotient is a float32 */
    return scale;
}

static int write_keys(attn_indexer_t *x, const attn_indexer_write_t *args, void *stream,
                      attn_error_t *error) {
    (void)stream;
    attn_indexer_write_t a;
    int status = indexer_check_write(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    int64_t bs = x->r.p.block_size;
    for (int64_t i = 0; i < a.slot_mapping->shape[0]; i++) {
        int64_t slot;
        memcpy(&slot, indexer_row(a.slot_mapping, i), sizeof slot);
        if (slot < 0 || slot >= a.cache->shape[0] * bs) continue;
        uint8_t *scale_at, *at = indexer_token(&x->r.p, a.cache, slot / bs, slot % bs, &scale_at);
        float scale = quantize_row(indexer_row(a.key, i), x->r.p.dtype, x->r.p.head_size, 1e-4f,
                                   x->r.p.scale_format == ATTN_INDEXER_SCALE_UE8M0, at);
        memcpy(scale_at, &scale, sizeof scale);
    }
    return ATTN_OK;
}

static int gather_keys(attn_indexer_t *x, const attn_indexer_gather_t *args, void *stream,
                       attn_error_t *error) {
    (void)stream;
    attn_indexer_gather_t a;
    int status = indexer_check_gather(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    for (int32_t r = 0; r < a.num_reqs; r++)
        for (int64_t i = indexer_int(a.prefix, r); i < indexer_int(a.prefix, r + 1) && i < a.keys->shape[0];
             i++) {
            uint8_t *scale;
            const uint8_t *at =
                indexer_lookup(&x->r.p, a.cache, a.block_table, r, i - indexer_int(a.prefix, r), &scale);
            if (at == NULL) continue;
            memcpy(indexer_row(a.keys, i), at, x->r.p.head_size);
            memcpy(indexer_row(a.key_scales, i), scale, 4);
        }
    return ATTN_OK;
}

static int quantize_queries(attn_indexer_t *x, const attn_indexer_quantize_t *args, void *stream,
                            attn_error_t *error) {
    (void)stream;
    attn_indexer_quantize_t a;
    int status = indexer_check_quantize(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    uint32_t weights = attn_dtype_of(a.weights->dtype);
    for (int64_t t = 0; t < a.num_rows; t++)
        for (int64_t h = 0; h < x->r.p.num_heads; h++) {
            float scale = quantize_row(indexer_head(a.query, t, h), x->r.p.dtype, x->r.p.head_size, 1e-10f, 1,
                                       (uint8_t *)(uintptr_t)indexer_head(a.quantized, t, h));
            float w = value_at(indexer_row(a.weights, t), h, weights) * scale * (float)x->r.p.weight_scale;
            memcpy(indexer_row(a.out_weights, t) + h * 4, &w, sizeof w);
        }
    return ATTN_OK;
}

/* semantics 9.5; max(0, NaN) is 0. */
static float logit(const attn_indexer_t *x, const DLTensor *query, const DLTensor *weights, int64_t t,
                   const uint8_t *key, float key_scale) {
    double k[128], sum = 0;
    for (int i = 0; i < 128; i++)
        k[i] = attn_from_e4m3(key[i]);
    for (int64_t h = 0; h < x->r.p.num_heads; h++) {
        const uint8_t *q = (const uint8_t *)indexer_head(query, t, h);
        double dot = 0;
        for (int i = 0; i < 128; i++)
            dot += attn_from_e4m3(q[i]) * k[i];
        sum += (double)indexer_float(indexer_row(weights, t), h) * (dot > 0 ? dot : 0);
    }
    return (float)(sum * (double)key_scale);
}

static void clean_row(const DLTensor *logits, int64_t t, int64_t lo, int64_t hi) {
    float *out = (float *)(void *)indexer_row(logits, t);
    for (int64_t k = 0; k < logits->shape[1]; k++)
        if (k < lo || k >= hi) out[k] = -INFINITY;
}

static int logits(attn_indexer_t *x, const attn_indexer_logits_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_indexer_logits_t a;
    int status = indexer_check_logits(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    for (int64_t t = 0; t < a.num_rows; t++) {
        int64_t lo = indexer_int(a.row_starts, t), hi = indexer_int(a.row_ends, t);
        if (lo < 0) lo = 0;
        if (hi > a.keys->shape[0]) hi = a.keys->shape[0];
        if ((a.flags & ATTN_INDEXER_CLEAN) != 0) clean_row(a.logits, t, lo, hi);
        float *out = (float *)(void *)indexer_row(a.logits, t);
        for (int64_t k = lo; k < hi; k++)
            out[k] = logit(x, a.query, a.weights, t, (const uint8_t *)indexer_row(a.keys, k),
                           indexer_float(indexer_row(a.key_scales, k), 0));
    }
    return ATTN_OK;
}

static int logits_paged(attn_indexer_t *x, const attn_indexer_paged_t *args, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_indexer_paged_t a;
    int status = indexer_check_paged(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    for (int64_t t = 0; t < a.num_rows; t++) {
        int64_t n = indexer_int(a.row_lens, t), most = indexer_paged_keys(&x->r, &a);
        if (n > most) n = most;
        if ((a.flags & ATTN_INDEXER_CLEAN) != 0) clean_row(a.logits, t, 0, n);
        float *out = (float *)(void *)indexer_row(a.logits, t);
        for (int64_t k = 0; k < n; k++) {
            uint8_t *scale;
            const uint8_t *key =
                indexer_lookup(&x->r.p, a.cache, a.block_table, t / a.rows_per_request, k, &scale);
            if (key != NULL)
                out[k] = logit(x, a.query, a.weights, t, key, indexer_float((const char *)scale, 0));
        }
    }
    return ATTN_OK;
}

/* Whether column i comes before column j: larger first, NaN last, equal ones by column. */
static int comes_before(const float *row, int32_t i, int32_t j) {
    float x = row[i], y = row[j];
    if (isnan(x) || isnan(y)) return isnan(x) && isnan(y) ? i < j : isnan(y);
    return x != y ? x > y : i < j;
}

/* heap[at] sinks until no child comes after it: the root is what comes last. by_column orders columns
 * instead. */
static void sift(int32_t *heap, int32_t n, int32_t at, const float *row) {
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n &&
            (row ? comes_before(row, heap[child], heap[child + 1]) : heap[child] < heap[child + 1]))
            child++;
        if (!(row ? comes_before(row, heap[at], heap[child]) : heap[at] < heap[child])) return;
        int32_t x = heap[at];
        heap[at] = heap[child], heap[child] = x;
        at = child;
    }
}

/* The heap of the best topk grows in the output itself; then it is sorted by column. */
static int select_topk(attn_indexer_t *x, const attn_indexer_select_t *args, void *stream,
                       attn_error_t *error) {
    (void)stream;
    attn_indexer_select_t a;
    int status = indexer_check_select(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    int32_t k = (int32_t)x->r.p.topk;
    for (int64_t t = 0; t < a.num_rows; t++) {
        int32_t *out = (int32_t *)(void *)indexer_row(a.indices, t);
        int64_t lo = a.row_starts != NULL ? indexer_int(a.row_starts, t) : 0, hi = indexer_int(a.row_ends, t);
        if (lo < 0) lo = 0;
        if (hi > a.logits->shape[1]) hi = a.logits->shape[1];
        int32_t n = hi > lo ? (int32_t)(hi - lo) : 0;
        for (int32_t i = 0; i < k; i++)
            out[i] = i < n ? i : -1;
        if (n <= k) continue;
        const float *row = (const float *)(const void *)indexer_row(a.logits, t) + lo;
        for (int32_t i = k / 2; i-- > 0;)
            sift(out, k, i, row);
        for (int32_t i = k; i < n; i++)
            if (comes_before(row, i, out[0])) {
                out[0] = i;
                sift(out, k, 0, row);
            }
        for (int32_t i = k / 2; i-- > 0;)
            sift(out, k, i, NULL);
        for (int32_t left = k - 1; left > 0; left--) {
            int32_t last = out[left];
            out[left] = out[0], out[0] = last;
            sift(out, left, 0, NULL);
        }
    }
    return ATTN_OK;
}

static const attn_indexer_extension_t table = {
    .struct_size = sizeof(attn_indexer_extension_t),
    .open = open_indexer,
    .close = close_indexer,
    .cache_shape = indexer_cache_shape,
    .space_needed = indexer_space_needed,
    .plan_prefill = indexer_plan_prefill,
    .write_keys = write_keys,
    .gather_keys = gather_keys,
    .quantize_queries = quantize_queries,
    .logits = logits,
    .logits_paged = logits_paged,
    .select = select_topk,
};

const void *ref_get_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    if (id != NULL && strcmp(id, ATTN_ROPE_EXTENSION) == 0) return &ref_rope_extension;
    return id != NULL && strcmp(id, ATTN_INDEXER_EXTENSION) == 0 ? &table : NULL;
}
