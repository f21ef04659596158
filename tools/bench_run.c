/* SPDX-License-Identifier: Apache-2.0 */
/* bench_run.c: one row of `attn bench`. A row that reads the cache once per call is measured cold: it goes round over so
 * many copies of the cache that none is in a CPU's last cache when its turn comes. Every repetition has a ceiling measured
 * next to it; medians are compared with medians. */
#include "bench_run.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "../bench/ceilings_cpu.h"
#include "bench_data.h"
#include "bench_gpu.h"
#include "device_memory.h"
#include "layer_sizes.h"
#include "tensor.h"
#include "tool.h"

enum { MAX_COPIES = 64, MAX_REPETITIONS = 400, LEAST_REPETITIONS = 6, SLAB = 4096 };

typedef struct bench {
    const bench_options_t *options;
    bench_row_t *row;
    attn_error_t *error;
    device_memory_t *memory;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    attn_problem_t problem; /* as opened */
    int has_cache;
    layer_sizes_t z;
    int32_t pages;              /* of the longest request */
    int64_t num_rows, num_keys; /* of all requests */
    bench_tables_t tables;
    device_timer_t *timer; /* on a GPU */
    void *stream;
    int next; /* the copy of the cache for the next call */
    int64_t page_bytes;
    int num_copies;
    tensor_t cache[MAX_COPIES];
    int32_t *table, *starts, *lens; /* host */
    tensor_t table_t, starts_t, lens_t, query, key, value, output, sinks, slopes, topk, slots;
    void *stream_buffer; /* for the streaming read; the copies themselves where there are several */
    size_t stream_bytes;
    const char **pieces;
    size_t num_pieces, piece_bytes;
} bench_t;

static int no_memory(const bench_t *b) {
    return attn_fail(b->error, ATTN_E_NO_MEMORY, "", "no memory for this workload");
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 != 0 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* Query-key pairs that the mask, or the list of selected tokens, leaves. */
static double visible_pairs(const bench_row_t *row) {
    double total = 0;
    int64_t window = row->problem.sliding_window, topk = row->problem.topk;
    for (int32_t r = 0; r < row->requests; r++) {
        const int64_t len = bench_len(row, r), tokens = bench_query(row, r);
        for (int64_t i = 0; i < tokens; i++) {
            int64_t q = len - tokens + i, is_causal = row->problem.mask == ATTN_MASK_CAUSAL;
            int64_t first = window > 0 && q - window + 1 > 0 ? q - window + 1 : 0,
                    last = is_causal ? q : len - 1;
            if (window > 0 && !is_causal && q + window - 1 < last) last = q + window - 1;
            total += (double)(topk > 0 && last - first + 1 > topk ? topk : last - first + 1);
        }
    }
    return total;
}

/* Latent attention without its projections, in the form that costs less: absorbed, or over up-projected keys (semantics
 * 7.4). */
static double latent_flops(const bench_t *b, double pairs) {
    const attn_problem_t *p = &b->row->problem;
    double l = p->kv_lora_rank, r = p->qk_rope_head_dim,
           per_head = (double)p->qk_nope_head_dim + p->v_head_dim;
    double absorbed = pairs * (2 * l + r), keys = (double)b->num_keys, queries = (double)b->num_rows;
    double projected = pairs * (per_head + r);
    int is_absorbed = p->topk != 0 || absorbed + queries * l * per_head < projected + keys * l * per_head;
    return 2.0 * (double)b->z.heads * (is_absorbed ? absorbed : projected);
}

static void count_work(bench_t *b) {
    bench_row_t *row = b->row;
    const layer_sizes_t *z = &b->z;
    double pairs = visible_pairs(row), kv = 0; /* keys that somebody sees */
    int64_t window = row->problem.sliding_window, topk = row->problem.topk;
    for (int32_t r = 0; r < row->requests; r++) {
        int64_t seen = bench_len(row, r), tokens = bench_query(row, r);
        if (window > 0 && window + tokens - 1 < seen) seen = window + tokens - 1;
        if (topk > 0 && topk * tokens < seen) seen = topk * tokens;
        kv += (double)seen;
    }
    row->flops = z->is_latent ? latent_flops(b, pairs)
                              : 2.0 * pairs * (double)z->heads * (double)(z->query + z->value);
    double per_token = b->has_cache ? (double)b->page_bytes / b->problem.block_size
                                    : (double)(z->kv_heads * (z->key + z->value)) *
                                          (double)attn_dtype_size(b->problem.dtype);
    row->bytes = per_token * kv;
    if (row->is_write) { /* the rows are read in the model's type and written in the cache's */
        row->flops = 0;
        row->bytes = (per_token + (double)(z->kv_heads * (z->key + z->value)) *
                                      (double)attn_dtype_size(b->problem.dtype)) *
                     (double)b->num_keys;
    }
    /* a few query rows for each key, or as many as one latent has of heads */
    row->is_memory_bound = row->flops / row->bytes < (z->is_latent ? 72 : 24);
}

static int open_layer(bench_t *b, attn_context_t *context) {
    bench_row_t *row = b->row;
    attn_problem_t p = row->problem;
    p.max_num_seqs = (uint32_t)row->requests;
    p.max_num_batched_tokens = (uint32_t)b->num_rows;
    p.max_model_len =
        row->query_len > row->seq_len ? row->query_len : row->seq_len; /* cross attention: both */
    int code =
        attn_group_open(context, &p, b->options->device, b->options->backend, &b->group, NULL, b->error);
    if (code != ATTN_OK) return code;
    b->problem = *attn_group_problem(b->group);
    snprintf(row->backend, sizeof row->backend, "%s", attn_group_backend(b->group)->name);
    ATTN_INIT(attn_layer_options_t, options);
    float *values = malloc((size_t)b->z.heads * sizeof *values);
    if (values == NULL) return no_memory(b);
    for (int kind = 0; kind < 2; kind++) {
        for (int64_t h = 0; h < b->z.heads; h++)
            values[h] =
                kind == 0 ? bench_value(BENCH_SINK, ATTN_DTYPE_FLOAT32, h) : bench_slope(h, b->z.heads);
        void *copy = device_memory_new(b->memory, (size_t)b->z.heads * sizeof *values);
        if (copy == NULL ||
            device_memory_write(b->memory, copy, values, (size_t)b->z.heads * sizeof *values) != 0) {
            free(values);
            return no_memory(b);
        }
        TENSOR_1D(kind == 0 ? &b->sinks : &b->slopes, b->memory, copy, ATTN_DTYPE_FLOAT32, b->z.heads);
    }
    free(values);
    if ((p.features & ATTN_F_SINK) != 0) options.sinks = &b->sinks.dl;
    if ((p.features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0) options.alibi_slopes = &b->slopes.dl;
    return attn_layer_create(b->group, "bench.layers.0.attn", &options, &b->layer, b->error);
}

/* A dense tensor [rows, heads, size] on the device, filled. */
static int make_rows(bench_t *b, tensor_t *t, int kind, int64_t rows, int64_t heads, int64_t size) {
    size_t element = attn_dtype_size(b->problem.dtype), row_bytes = (size_t)(heads * size) * element;
    char *data = device_memory_new(b->memory, (size_t)rows * row_bytes);
    if (data == NULL) return no_memory(b);
    for (int64_t at = 0; kind >= 0 && at < rows; at += SLAB) {
        int64_t n = rows - at < SLAB ? rows - at : SLAB;
        if (bench_fill_device(&b->tables, b->memory, kind, at * heads * size, n * heads * size,
                              data + (size_t)at * row_bytes) != 0)
            return attn_fail(b->error, ATTN_E_DEVICE, "", "copying to the device failed");
    }
    TENSOR_3D(t, b->memory, data, b->problem.dtype, rows, heads, size);
    return ATTN_OK;
}

/* Copies of the cache: more than three times the last cache of a CPU for rows that only read. */
static int choose_copies(const bench_t *b, int64_t cache_bytes) {
    if (!b->row->is_memory_bound) return 1;
    long last_cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int64_t wanted = b->options->device->type == kDLCPU
                         ? (last_cache > 0 ? 4 * (int64_t)last_cache : INT64_C(256) << 20)
                         : INT64_C(256) << 20;
    int64_t n = (wanted + cache_bytes - 1) / cache_bytes + 1;
    return n > MAX_COPIES ? MAX_COPIES : (int)n;
}

/* Writes the keys and values of all requests into one copy of the cache, slab by slab. */
static int fill_cache(bench_t *b, int copy) {
    int64_t total = b->num_keys, bs = b->problem.block_size, request = 0, first = 0;
    int64_t *slots = malloc(SLAB * sizeof *slots);
    size_t element = attn_dtype_size(b->problem.dtype);
    char *key = device_memory_new(b->memory, (size_t)(SLAB * b->z.kv_heads * b->z.key) * element);
    char *value = device_memory_new(b->memory, (size_t)(SLAB * b->z.kv_heads * b->z.value) * element);
    void *device_slots = device_memory_new(b->memory, SLAB * sizeof *slots);
    int code = slots == NULL || key == NULL || value == NULL || device_slots == NULL ? no_memory(b) : ATTN_OK;
    for (int64_t at = 0; code == ATTN_OK && at < total; at += SLAB) {
        int64_t n = total - at < SLAB ? total - at : SLAB;
        for (int64_t i = 0; i < n; i++) {
            while (at + i - first >= bench_len(b->row, request))
                first += bench_len(b->row, request++);
            const int64_t position = at + i - first;
            slots[i] = (int64_t)b->table[request * b->pages + position / bs] * bs + position % bs;
        }
        if (bench_fill_device(&b->tables, b->memory, BENCH_KEY, at * b->z.kv_heads * b->z.key,
                              n * b->z.kv_heads * b->z.key, key) != 0 ||
            bench_fill_device(&b->tables, b->memory, BENCH_VALUE, at * b->z.kv_heads * b->z.value,
                              n * b->z.kv_heads * b->z.value, value) != 0)
            code = no_memory(b);
        device_memory_write(b->memory, device_slots, slots, (size_t)n * sizeof *slots);
        tensor_t key_t, value_t, slots_t;
        if (b->z.is_latent) {
            TENSOR_2D(&key_t, b->memory, key, b->problem.dtype, n, b->z.key);
            TENSOR_2D(&value_t, b->memory, value, b->problem.dtype, n, b->z.value);
        } else {
            TENSOR_3D(&key_t, b->memory, key, b->problem.dtype, n, b->z.kv_heads, b->z.key);
            TENSOR_3D(&value_t, b->memory, value, b->problem.dtype, n, b->z.kv_heads, b->z.value);
        }
        TENSOR_1D(&slots_t, b->memory, device_slots, ATTN_DTYPE_INT64, n);
        ATTN_INIT(attn_kv_update_t, update);
        update.key = &key_t.dl;
        update.value = &value_t.dl;
        update.kv_cache = &b->cache[copy].dl;
        update.slot_mapping = &slots_t.dl;
        if (code == ATTN_OK) code = attn_layer_update_kv_cache(b->layer, &update, NULL, b->error);
        if (code == ATTN_OK && device_memory_sync(b->memory) != 0)
            code = attn_fail(b->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    }
    free(slots);
    return code;
}

static int make_cache(bench_t *b) {
    int64_t bs = b->problem.block_size, n = b->row->requests;
    b->pages = (int32_t)((b->row->seq_len + bs - 1) / bs);
    int64_t total = 0;
    for (int64_t r = 0; r < n; r++)
        total += (bench_len(b->row, r) + bs - 1) / bs;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    int code = attn_group_kv_cache_shape(b->group, total + 1, &shape, b->error);
    if (code != ATTN_OK) return code;
    b->page_bytes = shape.page_bytes;
    count_work(b);
    b->num_copies = choose_copies(b, shape.total_bytes);
    b->table = calloc((size_t)(n * b->pages), sizeof *b->table);
    int32_t *order = malloc((size_t)(total + 1) * sizeof *order);
    if (b->table == NULL || order == NULL) {
        free(order);
        return no_memory(b);
    }
    uint64_t state = 3;
    for (int64_t i = 0; i < total; i++) { /* Fisher and Yates, from the front; page 0 is left out */
        int64_t j = (int64_t)(random_u64(&state) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i + 1;
    }
    for (int64_t r = 0, at = 0; r < n; r++)
        for (int64_t j = 0; j < (bench_len(b->row, r) + bs - 1) / bs; j++)
            b->table[r * b->pages + j] = order[at++];
    free(order);
    void *device_table = device_memory_new(b->memory, (size_t)(n * b->pages) * 4);
    char *all = device_memory_new(b->memory, (size_t)shape.total_bytes * (size_t)b->num_copies);
    if (device_table == NULL || all == NULL ||
        device_memory_write(b->memory, device_table, b->table, (size_t)(n * b->pages) * 4) != 0)
        return no_memory(b);
    TENSOR_2D(&b->table_t, b->memory, device_table, ATTN_DTYPE_INT32, n, b->pages);
    for (int c = 0; c < b->num_copies && code == ATTN_OK; c++) {
        tensor_set_cache(&b->cache[c], b->memory, all + (size_t)c * (size_t)shape.total_bytes, &shape);
        code = fill_cache(b, c);
    }
    b->stream_buffer = all;
    b->stream_bytes = (size_t)shape.total_bytes * (size_t)b->num_copies;
    return code;
}

/* The pieces that a walk over the pages reads, in its order: tiles of 32 tokens, KV heads inside, pages of the tile. */
static int make_pieces(bench_t *b) {
    if (!b->row->is_memory_bound || !b->has_cache || b->options->device->type != kDLCPU) return ATTN_OK;
    int64_t n = b->row->requests;
    b->piece_bytes = (size_t)(b->page_bytes / b->z.kv_heads) / 256 * 256;
    b->pieces = malloc((size_t)(n * b->pages * b->z.kv_heads) * sizeof *b->pieces);
    return b->pieces == NULL ? no_memory(b) : ATTN_OK;
}

static void set_pieces(bench_t *b, int copy) {
    int64_t bs = b->problem.block_size, tile = bs >= 32 ? 1 : 32 / bs;
    const char *base = attn_data(&b->cache[copy].dl);
    b->num_pieces = 0;
    for (int64_t r = 0; r < b->row->requests; r++)
        for (int64_t first = 0; first < b->pages; first += tile)
            for (int64_t h = 0; h < b->z.kv_heads; h++)
                for (int64_t p = first; p < first + tile && p * bs < bench_len(b->row, r); p++)
                    b->pieces[b->num_pieces++] = base + b->table[r * b->pages + p] * b->page_bytes +
                                                 h * (b->page_bytes / b->z.kv_heads);
}

/* kv_b_proj, handed to the backend once, as after loading. */
static int make_weights(bench_t *b) {
    const int64_t rows = layer_weight_rows(&b->row->problem), latent = b->row->problem.kv_lora_rank;
    ATTN_INIT(attn_space_needed_t, needed);
    int code = attn_group_space_needed(b->group, &needed, b->error);
    tensor_t rows_of_one, weights;
    if (code == ATTN_OK) code = make_rows(b, &rows_of_one, BENCH_WEIGHT, rows, 1, latent);
    if (code != ATTN_OK) return code;
    void *space = device_memory_new(b->memory, needed.weight_bytes);
    if (space == NULL) return no_memory(b);
    TENSOR_2D(&weights, b->memory, attn_data(&rows_of_one.dl), b->problem.dtype, rows, latent);
    ATTN_INIT(attn_weights_t, w);
    w.kv_b_proj = &weights.dl;
    w.weight_space = space;
    w.weight_space_bytes = needed.weight_bytes;
    code = attn_layer_prepare_weights(b->layer, &w, NULL, b->error);
    if (code == ATTN_OK && device_memory_sync(b->memory) != 0)
        code = attn_fail(b->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    return code;
}

static int make_selection(bench_t *b, int64_t rows) {
    const int64_t topk = b->row->problem.topk;
    int32_t *list = malloc((size_t)(rows * topk) * sizeof *list);
    void *copy = device_memory_new(b->memory, (size_t)(rows * topk) * sizeof *list);
    for (int64_t t = 0; list != NULL && t < rows; t++)
        for (int64_t j = 0; j < topk; j++)
            list[t * topk + j] = bench_selected(b->row, t % b->row->query_len, j);
    int failed = list == NULL || copy == NULL ||
                 device_memory_write(b->memory, copy, list, (size_t)(rows * topk) * sizeof *list) != 0;
    free(list);
    TENSOR_2D(&b->topk, b->memory, copy, ATTN_DTYPE_INT32, rows, topk);
    return failed ? no_memory(b) : ATTN_OK;
}

/* Every token of the cache once, in random order. */
static int make_writes(bench_t *b) {
    const int64_t n = b->num_keys, bs = b->problem.block_size;
    int64_t *slots = malloc((size_t)n * sizeof *slots);
    void *copy = device_memory_new(b->memory, (size_t)n * sizeof *slots);
    uint64_t state = 5;
    for (int64_t i = 0; slots != NULL && i < n; i++) {
        const int64_t j = (int64_t)(random_u64(&state) % (uint64_t)(i + 1)), r = i / b->row->seq_len,
                      position = i % b->row->seq_len;
        slots[i] = slots[j];
        slots[j] = (int64_t)b->table[r * b->pages + position / bs] * bs + position % bs;
    }
    int failed = slots == NULL || copy == NULL ||
                 device_memory_write(b->memory, copy, slots, (size_t)n * sizeof *slots) != 0;
    free(slots);
    if (failed) return no_memory(b);
    TENSOR_1D(&b->slots, b->memory, copy, ATTN_DTYPE_INT64, n);
    int code = make_rows(b, &b->key, BENCH_KEY, n, b->z.kv_heads, b->z.key);
    return code == ATTN_OK ? make_rows(b, &b->value, BENCH_VALUE, n, b->z.kv_heads, b->z.value) : code;
}

static int make_inputs(bench_t *b) {
    bench_row_t *row = b->row;
    int64_t rows = b->num_rows, keys = b->num_keys;
    const layer_sizes_t *z = &b->z;
    b->starts = malloc(((size_t)row->requests + 1) * sizeof *b->starts);
    b->lens = malloc((size_t)row->requests * sizeof *b->lens);
    if (b->starts == NULL || b->lens == NULL) return no_memory(b);
    for (int32_t r = 0; r <= row->requests; r++)
        b->starts[r] = (int32_t)bench_query_start(row, r);
    for (int32_t r = 0; r < row->requests; r++)
        b->lens[r] = bench_len(row, r);
    void *starts = device_memory_new(b->memory, ((size_t)row->requests + 1) * 4);
    void *lens = device_memory_new(b->memory, (size_t)row->requests * 4);
    if (starts == NULL || lens == NULL) return no_memory(b);
    device_memory_write(b->memory, starts, b->starts, ((size_t)row->requests + 1) * 4);
    device_memory_write(b->memory, lens, b->lens, (size_t)row->requests * 4);
    TENSOR_1D(&b->starts_t, b->memory, starts, ATTN_DTYPE_INT32, row->requests + 1);
    TENSOR_1D(&b->lens_t, b->memory, lens, ATTN_DTYPE_INT32, row->requests);
    int code = make_rows(b, &b->query, BENCH_QUERY, rows, z->heads, z->query);
    if (code == ATTN_OK) code = make_rows(b, &b->output, -1, rows, z->heads, z->output);
    if (code == ATTN_OK && z->is_latent) code = make_weights(b);
    if (code == ATTN_OK && row->problem.topk != 0) code = make_selection(b, rows);
    if (code != ATTN_OK) return code;
    if (b->has_cache) {
        code = make_cache(b);
        return code == ATTN_OK && row->is_write ? make_writes(b) : code;
    }
    b->num_copies = 1;
    count_work(b);
    code = make_rows(b, &b->key, BENCH_KEY, keys, z->kv_heads, z->key);
    return code == ATTN_OK ? make_rows(b, &b->value, BENCH_VALUE, keys, z->kv_heads, z->value) : code;
}

static int plan(bench_t *b) {
    ATTN_INIT(attn_space_needed_t, needed);
    int code = attn_group_space_needed(b->group, &needed, b->error);
    if (code != ATTN_OK) return code;
    b->space.struct_size = sizeof b->space;
    b->space.metadata_bytes = needed.metadata_bytes;
    b->space.workspace_bytes = needed.workspace_bytes;
    b->space.host_bytes = needed.host_bytes;
    b->space.metadata = device_memory_new(b->memory, needed.metadata_bytes);
    b->space.workspace = device_memory_new(b->memory, needed.workspace_bytes);
    b->space.host = aligned_alloc(256, (needed.host_bytes / 256 + 1) * 256);
    if (b->space.metadata == NULL || b->space.workspace == NULL || b->space.host == NULL) return no_memory(b);
    ATTN_INIT(attn_batch_t, batch);
    batch.num_reqs = b->row->requests;
    batch.num_actual_tokens = (int32_t)b->num_rows;
    batch.query_start_loc_host = b->starts;
    batch.seq_lens_host = b->lens;
    batch.query_start_loc = &b->starts_t.dl;
    batch.seq_lens = &b->lens_t.dl;
    int32_t *decoded = NULL;
    if (b->row->problem.role == ATTN_ROLE_ENCODER_DECODER) { /* the keys are the encoder's */
        decoded = malloc((size_t)b->row->requests * sizeof *decoded);
        if (decoded == NULL) return no_memory(b);
        for (int32_t r = 0; r < b->row->requests; r++)
            decoded[r] = b->row->query_len;
        batch.encoder_seq_lens_host = b->lens;
        batch.encoder_seq_lens = &b->lens_t.dl;
        batch.seq_lens_host = decoded;
    }
    if (b->has_cache) {
        batch.block_table = &b->table_t.dl;
        batch.block_table_host = b->table;
        batch.block_table_host_stride = b->pages;
    }
    code = attn_group_build_metadata(b->group, &batch, &b->space, b->stream, b->error);
    if (code == ATTN_OK && device_memory_sync(b->memory) != 0)
        code = attn_fail(b->error, ATTN_E_DEVICE, "", "the device reports a failed copy");
    free(decoded);
    return code;
}

/* One call, on the copy of the cache whose turn it is. */
static int enqueue(void *user, void *stream) {
    bench_t *b = user;
    tensor_t *cache = b->has_cache ? &b->cache[b->next++ % b->num_copies] : NULL;
    if (b->row->is_write) {
        ATTN_INIT(attn_kv_update_t, update);
        update.key = &b->key.dl;
        update.value = &b->value.dl;
        update.kv_cache = &cache->dl;
        update.slot_mapping = &b->slots.dl;
        return attn_layer_update_kv_cache(b->layer, &update, stream, b->error);
    }
    ATTN_INIT(attn_forward_t, forward);
    forward.query = &b->query.dl;
    forward.output = &b->output.dl;
    forward.topk_indices = b->row->problem.topk != 0 ? &b->topk.dl : NULL;
    forward.key = b->has_cache ? NULL : &b->key.dl;
    forward.value = b->has_cache ? NULL : &b->value.dl;
    forward.kv_cache = cache != NULL ? &cache->dl : NULL;
    return attn_layer_forward(b->layer, &forward, &b->space, stream, b->error);
}

/* Seconds of one call on a CPU, which is over when it returns. Negative on failure. */
static double time_call(bench_t *b) {
    double started = tool_seconds();
    if (enqueue(b, NULL) != ATTN_OK) return -1;
    return tool_seconds() - started;
}

/* The multiply-add ceiling of a row on this CPU: for bf16 the faster of its dot product and of float32, which some CPUs
 * turn it into. */
static double compute_ceiling(const bench_t *b, const char **name) {
    static const char *const levels[] = {"avx512", "avx2", "generic"};
    const char *level = b->options->level;
    int any = level == NULL || strcmp(level, "auto") == 0, threads = b->options->threads;
    double rate = 0, dot = 0;
    if (!any) rate = ceiling_fma(level, threads);
    for (size_t i = 0; any && rate <= 0 && i < sizeof levels / sizeof levels[0]; i++)
        rate = ceiling_fma(levels[i], threads);
    if (b->problem.dtype == ATTN_DTYPE_BFLOAT16 && (any || strcmp(level, "avx512bf16") == 0))
        dot = ceiling_bf16_dot(threads);
    *name = dot > rate ? "bf16 dot" : "f32 FMA";
    return dot > rate ? dot : rate;
}

static int measure_cpu(bench_t *b) {
    static double times[MAX_REPETITIONS], first[MAX_REPETITIONS * 2], second[MAX_REPETITIONS];
    static double order[CEILING_NUM_PREFETCH][MAX_REPETITIONS];
    bench_row_t *row = b->row;
    int n = 0, num_first = 0, num_second = 0, num_order[CEILING_NUM_PREFETCH] = {0};
    if (time_call(b) < 0) return b->error->code; /* warms up */
    double end = tool_seconds() + b->options->seconds;
    while (n < MAX_REPETITIONS && (n < LEAST_REPETITIONS || tool_seconds() < end)) {
        const char *name = "";
        if (!row->is_memory_bound) first[num_first++] = compute_ceiling(b, &name);
        times[n] = time_call(b);
        if (times[n] < 0) return b->error->code;
        if (!row->is_memory_bound) {
            first[num_first++] = compute_ceiling(b, &name);
            row->ceilings[0].name = name;
        } else if (b->pieces != NULL) {
            int kind = n % CEILING_NUM_PREFETCH; /* on the copy that was used longest ago */
            set_pieces(b, (n + 1 + b->num_copies / 2) % b->num_copies);
            order[kind][num_order[kind]++] = ceiling_read_pieces(
                b->pieces, b->num_pieces, b->piece_bytes, b->options->threads, (enum ceiling_prefetch)kind);
            if (n % 4 == 0)
                second[num_second++] = ceiling_read(b->stream_buffer, b->stream_bytes, b->options->threads);
        }
        n++;
    }
    row->repetitions = n;
    row->least = times[0];
    for (int i = 1; i < n; i++)
        if (times[i] < row->least) row->least = times[i];
    row->median = median(times, n);
    row->rate = (row->is_memory_bound ? row->bytes : row->flops) / row->median * 1e-9;
    if (!row->is_memory_bound) {
        row->ceilings[0].rate = median(first, num_first);
        return ATTN_OK;
    }
    row->ceilings[0].name = "same-order read";
    for (int kind = 0; kind < CEILING_NUM_PREFETCH; kind++) {
        double rate = median(order[kind], num_order[kind]);
        if (rate > row->ceilings[0].rate) row->ceilings[0].rate = rate;
    }
    row->ceilings[1].name = "read";
    row->ceilings[1].rate = row->read_ceiling = median(second, num_second);
    return ATTN_OK;
}

static int measure_gpu(bench_t *b) {
    bench_row_t *row = b->row;
    const gpu_ceilings_t *limits = b->options->limits;
    gpu_times_t t;
    b->error->code = ATTN_OK;
    if (bench_gpu_time(b->timer, enqueue, b, 1, &t) != 0) {
        if (b->error->code != ATTN_OK) return b->error->code;
        return attn_fail(b->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    }
    row->median = t.sustained;
    row->least = t.least;
    row->burst = t.burst;
    row->host = t.host;
    row->repetitions = t.samples;
    row->rate = (row->is_memory_bound ? row->bytes : row->flops) / row->median * 1e-9;
    if (limits == NULL) return ATTN_OK;
    row->read_ceiling = limits->read;
    if (row->is_write)
        row->ceilings[0] = (bench_ceiling_t){"copy", limits->copy, limits->copy_burst};
    else if (row->is_memory_bound)
        row->ceilings[0] = (bench_ceiling_t){"read", limits->read, limits->read_burst};
    else
        row->ceilings[0] = (bench_ceiling_t){"bf16 matmul", limits->matmul, limits->matmul_burst};
    return ATTN_OK;
}

static void check(bench_t *b) {
    size_t bytes = (size_t)(b->num_rows * b->z.heads * b->z.output) * attn_dtype_size(b->problem.dtype);
    void *output = malloc(bytes);
    b->row->error = -1;
    if (output != NULL && device_memory_read(b->memory, output, attn_data(&b->output.dl), bytes) == 0)
        b->row->error = bench_error(b->row, output);
    free(output);
}

int bench_run(attn_context_t *context, const bench_options_t *options, bench_row_t *row) {
    ATTN_INIT(attn_error_t, error);
    bench_t *b = calloc(1, sizeof *b);
    if (b == NULL) {
        snprintf(row->failure, sizeof row->failure, "no memory");
        return ATTN_E_NO_MEMORY;
    }
    b->options = options;
    b->row = row;
    b->error = &error;
    b->z = layer_sizes(&row->problem);
    b->has_cache = attn_role_has_cache(row->problem.role);
    b->num_rows = bench_query_start(row, row->requests);
    b->num_keys = bench_key_start(row, row->requests);
    row->error = -1;
    int code = device_memory_open(options->device, &b->memory, &error);
    if (code == ATTN_OK && options->device->type != kDLCPU && (b->timer = device_timer_open()) == NULL)
        code = attn_fail(&error, ATTN_E_DEVICE, "device", "the CUDA driver has no graphs to measure with");
    if (b->timer != NULL) b->stream = device_timer_stream(b->timer);
    if (code == ATTN_OK) code = open_layer(b, context);
    b->tables.dtype = b->problem.dtype;
    if (code == ATTN_OK) code = make_inputs(b);
    if (code == ATTN_OK) code = make_pieces(b);
    if (code == ATTN_OK && !row->is_write) code = plan(b);
    if (code == ATTN_OK) code = b->timer != NULL ? measure_gpu(b) : measure_cpu(b);
    if (code == ATTN_OK && !row->is_write) check(b);
    if (code != ATTN_OK) snprintf(row->failure, sizeof row->failure, "%s", error.text);
    if (b->layer != NULL) attn_layer_destroy(b->layer);
    attn_group_close(b->group);
    free(b->table);
    free(b->starts);
    free(b->lens);
    free(b->space.host);
    free(b->pieces);
    device_timer_close(b->timer);
    device_memory_close(b->memory);
    free(b);
    return code;
}

int bench_limits(const attn_device_t *device, gpu_ceilings_t *limits) {
    device_memory_t *memory = NULL;
    int code = device_memory_open(device, &memory, NULL);
    device_timer_t *timer = code == ATTN_OK ? device_timer_open() : NULL;
    if (timer != NULL) bench_gpu_ceilings(memory, timer, device->num_sms, limits);
    device_timer_close(timer);
    device_memory_close(memory);
    return code;
}
