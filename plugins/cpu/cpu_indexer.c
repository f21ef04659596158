/* SPDX-License-Identifier: Apache-2.0 */
/* attn.draft.indexer/0 on CPUs: the rows of every call over threads, the arithmetic in the kernels of the
 * best level. Nothing is allocated after open: a thread has scratch for one item. */
#include "../common/indexer_plan.h"
#include "../common/indexer_rows.h"
#include "cpu_instance.h"
#include "cpu_threads.h"

#include <stdlib.h>

enum {
    ROWS = 8,        /* query rows that share prepared keys */
    KEYS = 3072,     /* keys of one item: whole tiles of every level */
    PIECE = 256,     /* rows of an item that only moves or quantises */
    SERIAL = 1 << 15 /* values, below which one thread is faster */
};

struct attn_indexer {
    indexer_rules r;
    const struct cpu_kernels *k;
    int threads, amx;
    char *scratch;
    size_t scratch_step;
};

/* What a thread has. */
struct worker {
    const char *keys[KEYS];
    float scales[KEYS];
    float row[CPU_INDEX_SIZE], floats[CPU_INDEX_SIZE + 64];
    int32_t counts[CPU_SELECT_COUNTS];
};

static struct worker *worker_of(const attn_indexer_t *x, int worker) {
    return (struct worker *)(void *)(x->scratch + (size_t)worker * x->scratch_step);
}
static char *kernel_scratch(const attn_indexer_t *x, int worker) {
    return (char *)worker_of(x, worker) + (sizeof(struct worker) + 63) / 64 * 64;
}

static int open_indexer(const attn_indexer_problem_t *problem, const attn_device_t *device,
                        const attn_host_t *host, attn_indexer_t **indexer, attn_error_t *error) {
    (void)host;
    indexer_rules r = {.device_type = (int)kDLCPU, .alignment = 1};
    attn_device_t dev;
    uint32_t missing;
    int status = indexer_check_open(problem, device, indexer, &r.p, &dev, error);
    if (status == ATTN_OK && dev.type != (int)kDLCPU)
        status = attn_fail(error, ATTN_E_DEVICE, "device",
                           "CPU_ATTN runs on CPUs (type %d); type %d was given", (int)kDLCPU, (int)dev.type);
    if (status != ATTN_OK) return status;
    attn_indexer_t *x = calloc(1, sizeof *x);
    if (x != NULL) {
        x->r = r;
        x->k = cpu_choose_level("auto", cpu_bits(), &missing);
        x->threads = cpu_max_threads();
        x->amx = (cpu_bits() & CPU_BIT_AMX_BF16) != 0;
        const size_t kernels = x->k->index_bytes((int)r.p.num_heads, ROWS);
        x->scratch_step = (sizeof(struct worker) + 63) / 64 * 64 + (kernels + 63) / 64 * 64;
        x->scratch = aligned_alloc(64, (size_t)x->threads * x->scratch_step);
    }
    if (x == NULL || x->scratch == NULL) {
        free(x);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an indexer of %u heads",
                         r.p.num_heads);
    }
    *indexer = x;
    return ATTN_OK;
}

static void close_indexer(attn_indexer_t *x) {
    if (x == NULL) return;
    free(x->scratch);
    free(x);
}

/* One call: the arguments that its items need. */
struct call {
    const attn_indexer_t *x;
    const void *a;
    struct cpu_index index;
    /* of logits: columns that are walked, those of them that are keys, rows of an item */
    int64_t columns, keys, row_step;
    int is_clean;
};

/* fn for each of n pieces; `values` in all. */
static void run(const attn_indexer_t *x, int64_t n, int64_t values, void (*fn)(void *, int64_t, int),
                const struct call *c) {
    const struct cpu_loop loop = {n, fn};
    cpu_run_loops(values < SERIAL ? 1 : x->threads, &loop, 1, (void *)(uintptr_t)c);
}

/* Scale and e4m3 bytes of a row; NaN does not count for the scale. */
static float quantize_row(const attn_indexer_t *x, struct worker *w, const char *row, float least,
                          int power_of_two, char *bytes) {
    const int n = CPU_INDEX_SIZE;
    float largest = least;
    x->k->write_row(cpu_dtype_of(x->r.p.dtype), row, n, CPU_F32, 1.0f, (char *)w->row, NULL, w->floats);
    for (int i = 0; i < n; i++)
        largest = fabsf(w->row[i]) > largest ? fabsf(w->row[i]) : largest;
    const float scale = indexer_scale(largest, power_of_two);
    x->k->write_row(CPU_F32, (const char *)w->row, n, CPU_E4M3, scale, bytes, NULL, w->floats);
    return scale;
}

static void write_piece(void *arg, int64_t piece, int worker) {
    const struct call *c = arg;
    const attn_indexer_t *x = c->x;
    const attn_indexer_write_t *a = c->a;
    const int64_t bs = x->r.p.block_size, n = a->slot_mapping->shape[0];
    for (int64_t i = piece * PIECE; i < n && i < (piece + 1) * PIECE; i++) {
        int64_t slot;
        memcpy(&slot, indexer_row(a->slot_mapping, i), sizeof slot);
        if (slot < 0 || slot >= a->cache->shape[0] * bs) continue;
        uint8_t *scale_at, *at = indexer_token(&x->r.p, a->cache, slot / bs, slot % bs, &scale_at);
        const float scale = quantize_row(x, worker_of(x, worker), indexer_row(a->key, i), 1e-4f,
                                         x->r.p.scale_format == ATTN_INDEXER_SCALE_UE8M0, (char *)at);
        memcpy(scale_at, &scale, sizeof scale);
    }
}

static int write_keys(attn_indexer_t *x, const attn_indexer_write_t *args, void *stream,
                      attn_error_t *error) {
    (void)stream;
    attn_indexer_write_t a;
    const int status = indexer_check_write(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    const struct call c = {.x = x, .a = &a};
    const int64_t n = a.slot_mapping->shape[0];
    run(x, (n + PIECE - 1) / PIECE, n * CPU_INDEX_SIZE, write_piece, &c);
    return ATTN_OK;
}

static void gather_piece(void *arg, int64_t piece, int worker) {
    (void)worker;
    const struct call *c = arg;
    const attn_indexer_gather_t *a = c->a;
    int32_t r = 0;
    for (int64_t i = piece * PIECE; i < c->columns && i < (piece + 1) * PIECE; i++) {
        while (i >= indexer_int(a->prefix, r + 1))
            r++;
        uint8_t *scale;
        const uint8_t *at =
            indexer_lookup(&c->x->r.p, a->cache, a->block_table, r, i - indexer_int(a->prefix, r), &scale);
        if (at == NULL) continue;
        memcpy(indexer_row(a->keys, i), at, CPU_INDEX_SIZE);
        memcpy(indexer_row(a->key_scales, i), scale, sizeof(float));
    }
}

static int gather_keys(attn_indexer_t *x, const attn_indexer_gather_t *args, void *stream,
                       attn_error_t *error) {
    (void)stream;
    attn_indexer_gather_t a;
    const int status = indexer_check_gather(&x->r, args, &a, error);
    if (status != ATTN_OK || a.num_reqs == 0) return status;
    const int64_t end = indexer_int(a.prefix, a.num_reqs), rows = a.keys->shape[0];
    const struct call c = {.x = x, .a = &a, .columns = end < rows ? end : rows};
    if (c.columns > 0) run(x, (c.columns + PIECE - 1) / PIECE, c.columns * CPU_INDEX_SIZE, gather_piece, &c);
    return ATTN_OK;
}

static void quantize_token(void *arg, int64_t t, int worker) {
    const struct call *c = arg;
    const attn_indexer_t *x = c->x;
    const attn_indexer_quantize_t *a = c->a;
    struct worker *w = worker_of(x, worker);
    const enum cpu_dtype type = cpu_dtype_of(attn_dtype_of(a->weights->dtype));
    for (int64_t h = 0; h < x->r.p.num_heads; h++) {
        float weight;
        const float scale =
            quantize_row(x, w, indexer_head(a->query, t, h), 1e-10f, 1, indexer_head(a->quantized, t, h));
        x->k->write_row(type, indexer_row(a->weights, t) + h * cpu_dtype_size(type), 1, CPU_F32, 1.0f,
                        (char *)&weight, NULL, w->floats);
        weight = weight * scale * (float)x->r.p.weight_scale;
        memcpy(indexer_row(a->out_weights, t) + h * 4, &weight, sizeof weight);
    }
}

static int quantize_queries(attn_indexer_t *x, const attn_indexer_quantize_t *args, void *stream,
                            attn_error_t *error) {
    (void)stream;
    attn_indexer_quantize_t a;
    const int status = indexer_check_quantize(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    const struct call c = {.x = x, .a = &a};
    run(x, a.num_rows, (int64_t)a.num_rows * x->r.p.num_heads * CPU_INDEX_SIZE, quantize_token, &c);
    return ATTN_OK;
}

/* Rows of an item, and the columns of it that some of them sees. */
struct part {
    int64_t row0, rows, from, to;
};

/* The part that item `item` of a call is; where asked, the columns that a row does not see become -inf. */
static struct part part_of(const struct call *c, int64_t item, int64_t num_rows) {
    const struct cpu_index *x = &c->index;
    const int64_t pieces = (num_rows + c->row_step - 1) / c->row_step, row0 = item % pieces * c->row_step;
    const int64_t from = item / pieces * KEYS, to = from + KEYS < c->columns ? from + KEYS : c->columns;
    struct part p = {row0, num_rows - row0 < c->row_step ? num_rows - row0 : c->row_step, to, from};
    for (int64_t t = row0; t < row0 + p.rows; t++) {
        int64_t lo = x->first != NULL ? x->first[t] : 0, hi = x->end[t] < c->keys ? x->end[t] : c->keys;
        float *out = (float *)(void *)(x->logits + t * x->logits_row);
        lo = lo < from ? from : lo, hi = hi > to ? to : hi;
        for (int64_t k = from; c->is_clean && k < to; k++)
            if (k < lo || k >= hi) out[k] = -INFINITY;
        if (lo < hi && lo < p.from) p.from = lo;
        if (lo < hi && hi > p.to) p.to = hi;
    }
    return p;
}

static int64_t num_items(const struct call *c, int64_t num_rows) {
    return (num_rows + c->row_step - 1) / c->row_step * ((c->columns + KEYS - 1) / KEYS);
}

static void logits_item(void *arg, int64_t item, int worker) {
    const struct call *c = arg;
    const attn_indexer_logits_t *a = c->a;
    struct worker *w = worker_of(c->x, worker);
    const struct part p = part_of(c, item, a->num_rows);
    if (p.from >= p.to) return;
    for (int64_t k = p.from; k < p.to; k++) {
        w->keys[k - p.from] = indexer_row(a->keys, k);
        w->scales[k - p.from] = indexer_float(indexer_row(a->key_scales, k), 0);
    }
    c->x->k->index(&c->index, (int32_t)p.row0, (int)p.rows, (int32_t)p.from, (int)(p.to - p.from), w->keys,
                   w->scales, kernel_scratch(c->x, worker));
}

static void paged_item(void *arg, int64_t item, int worker) {
    static const char none[CPU_INDEX_SIZE]; /* of blocks outside the cache */
    const struct call *c = arg;
    const attn_indexer_paged_t *a = c->a;
    struct worker *w = worker_of(c->x, worker);
    const struct part p = part_of(c, item, a->num_rows);
    if (p.from >= p.to) return;
    for (int64_t k = p.from; k < p.to; k++) {
        uint8_t *scale;
        const uint8_t *key =
            indexer_lookup(&c->x->r.p, a->cache, a->block_table, p.row0 / a->rows_per_request, k, &scale);
        w->keys[k - p.from] = key != NULL ? (const char *)key : none;
        w->scales[k - p.from] = key != NULL ? indexer_float((const char *)scale, 0) : 0.0f;
    }
    c->x->k->index(&c->index, (int32_t)p.row0, (int)p.rows, (int32_t)p.from, (int)(p.to - p.from), w->keys,
                   w->scales, kernel_scratch(c->x, worker));
}

static struct cpu_index index_of(const attn_indexer_t *x, const DLTensor *query, const DLTensor *weights,
                                 const DLTensor *logits, const DLTensor *first, const DLTensor *end) {
    return (struct cpu_index){.heads = (int)x->r.p.num_heads,
                              .amx = x->amx,
                              .q = attn_data(query),
                              .q_row = attn_byte_stride(query, 0),
                              .q_head = attn_byte_stride(query, 1),
                              .weights = attn_data(weights),
                              .weights_row = attn_byte_stride(weights, 0),
                              .logits = attn_data(logits),
                              .logits_row = attn_byte_stride(logits, 0),
                              .first = first != NULL ? attn_data(first) : NULL,
                              .end = attn_data(end)};
}

static int logits(attn_indexer_t *x, const attn_indexer_logits_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_indexer_logits_t a;
    const int status = indexer_check_logits(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    struct call c = {.x = x, .a = &a, .is_clean = (a.flags & ATTN_INDEXER_CLEAN) != 0, .row_step = ROWS};
    c.index = index_of(x, a.query, a.weights, a.logits, a.row_starts, a.row_ends);
    c.keys = a.keys->shape[0];
    c.columns = c.is_clean ? a.logits->shape[1] : c.keys;
    run(x, num_items(&c, a.num_rows), a.num_rows * c.columns * CPU_INDEX_SIZE, logits_item, &c);
    return ATTN_OK;
}

static int logits_paged(attn_indexer_t *x, const attn_indexer_paged_t *args, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_indexer_paged_t a;
    const int status = indexer_check_paged(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    struct call c = {.x = x, .a = &a, .is_clean = (a.flags & ATTN_INDEXER_CLEAN) != 0};
    c.row_step = a.rows_per_request; /* at most ROWS */
    c.index = index_of(x, a.query, a.weights, a.logits, NULL, a.row_lens);
    c.keys = indexer_paged_keys(&x->r, &a);
    c.columns = c.is_clean ? a.logits->shape[1] : c.keys;
    run(x, num_items(&c, a.num_rows), a.num_rows * c.columns * CPU_INDEX_SIZE, paged_item, &c);
    return ATTN_OK;
}

static void select_row(void *arg, int64_t t, int worker) {
    const struct call *c = arg;
    const attn_indexer_select_t *a = c->a;
    const int32_t topk = (int32_t)c->x->r.p.topk;
    int32_t *out = (int32_t *)(void *)indexer_row(a->indices, t);
    int64_t lo = a->row_starts != NULL ? indexer_int(a->row_starts, t) : 0, hi = indexer_int(a->row_ends, t);
    if (lo < 0) lo = 0;
    if (hi > a->logits->shape[1]) hi = a->logits->shape[1];
    const int32_t n = hi > lo ? (int32_t)(hi - lo) : 0;
    if (n > topk)
        cpu_index_select((const float *)(const void *)indexer_row(a->logits, t) + lo, n, topk, out,
                         worker_of(c->x, worker)->counts);
    for (int32_t i = 0; n <= topk && i < topk; i++)
        out[i] = i < n ? i : -1;
}

static int select_topk(attn_indexer_t *x, const attn_indexer_select_t *args, void *stream,
                       attn_error_t *error) {
    (void)stream;
    attn_indexer_select_t a;
    const int status = indexer_check_select(&x->r, args, &a, error);
    if (status != ATTN_OK) return status;
    const struct call c = {.x = x, .a = &a};
    run(x, a.num_rows, a.num_rows * a.logits->shape[1], select_row, &c);
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

const void *cpu_get_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    return id != NULL && strcmp(id, ATTN_INDEXER_EXTENSION) == 0 ? &table : NULL;
}
