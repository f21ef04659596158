/* SPDX-License-Identifier: Apache-2.0 */
/* bench_setup.c: makes a workload. What reads the cache once per call is measured cold: there are so many
 * copies of the cache that none is in a CPU's last cache when its turn comes. */
#include "measure/bench_setup.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/tool.h"

enum { SLAB = 4096 };

int bench_no_memory(const bench_t *b) {
    return attn_fail(b->error, ATTN_E_NO_MEMORY, "", "out of memory for this workload");
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

/* Latent attention without its projections, in the form that costs less: absorbed, or over up-projected keys
 * (semantics
 * 7.4). */
static double latent_flops(const bench_t *b, double pairs) {
    const attn_problem_t *p = &b->row->problem;
    double l = p->kv_lora_rank, r = p->qk_rope_head_dim,
           per_head = (double)p->qk_nope_head_dim + p->v_head_dim;
    double absorbed = pairs * (2 * l + r), keys = (double)b->num_keys, queries = (double)b->num_rows;
    double projected = pairs * (per_head + r);
    int is_absorbed = p->topk != 0 || !attn_problem_projects(p) ||
                      absorbed + queries * l * per_head < projected + keys * l * per_head;
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
    /* a few query rows for each key, or as many as one latent has of heads, or a GPU multiplies meanwhile */
    const int is_gpu = b->options->device->type != kDLCPU;
    row->is_memory_bound = row->flops / row->bytes < (z->is_latent || is_gpu ? 72 : 24);
}

static int make_rel_bias(bench_t *b) {
    const int64_t columns = 2 * BENCH_REL_MAX + 1;
    const size_t bytes = (size_t)(b->z.heads * columns) * sizeof(float);
    float *values = malloc(bytes);
    void *copy = device_memory_new(b->memory, bytes);
    for (int64_t i = 0; values != NULL && i < b->z.heads * columns; i++)
        values[i] = bench_rel_bias(i / columns, i % columns - BENCH_REL_MAX);
    const int failed =
        values == NULL || copy == NULL || device_memory_write(b->memory, copy, values, bytes) != 0;
    free(values);
    if (failed) return ATTN_E_NO_MEMORY;
    TENSOR_2D(&b->rel_bias, b->memory, copy, ATTN_DTYPE_FLOAT32, b->z.heads, columns);
    return ATTN_OK;
}

static int open_layer(bench_t *b, attn_context_t *context) {
    bench_row_t *row = b->row;
    attn_problem_t p = row->problem;
    p.max_num_seqs = (uint32_t)row->requests;
    p.max_num_batched_tokens = (uint32_t)b->num_rows;
    p.max_model_len =
        row->query_len > row->seq_len ? row->query_len : row->seq_len; /* cross attention: both */
    const char *backend = bench_backend(row, b->options->backend);
    int code = attn_group_open(context, &p, b->options->device, backend, &b->group, NULL, b->error);
    if (code != ATTN_OK) return code;
    b->problem = *attn_group_problem(b->group);
    ATTN_INIT(attn_layer_options_t, options);
    float *values = malloc((size_t)b->z.heads * sizeof *values);
    if (values == NULL) return bench_no_memory(b);
    for (int kind = 0; kind < 2; kind++) {
        for (int64_t h = 0; h < b->z.heads; h++)
            values[h] =
                kind == 0 ? bench_value(BENCH_SINK, ATTN_DTYPE_FLOAT32, h) : bench_slope(h, b->z.heads);
        void *copy = device_memory_new(b->memory, (size_t)b->z.heads * sizeof *values);
        if (copy == NULL ||
            device_memory_write(b->memory, copy, values, (size_t)b->z.heads * sizeof *values) != 0) {
            free(values);
            return bench_no_memory(b);
        }
        TENSOR_1D(kind == 0 ? &b->sinks : &b->slopes, b->memory, copy, ATTN_DTYPE_FLOAT32, b->z.heads);
    }
    free(values);
    if ((p.features & ATTN_F_REL_BIAS) != 0) {
        if (make_rel_bias(b) != ATTN_OK) return bench_no_memory(b);
        options.rel_bias = &b->rel_bias.dl;
    }
    if (attn_kv_has_channel_scales(p.kv_cache_dtype)) options.v_scale = 4 / 127.0f; /* of normal values */
    if ((p.features & ATTN_F_SINK) != 0) options.sinks = &b->sinks.dl;
    if ((p.features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0) options.alibi_slopes = &b->slopes.dl;
    return attn_layer_create(b->group, "bench.layers.0.attn", &options, &b->layer, b->error);
}

/* A dense tensor [rows, heads, size] on the device, filled. */
static int make_rows(bench_t *b, tensor_t *t, int kind, int64_t rows, int64_t heads, int64_t size) {
    const uint32_t dtype = kind == BENCH_QUERY ? bench_query_dtype(&b->problem) : b->problem.dtype;
    size_t element = attn_dtype_size(dtype), row_bytes = (size_t)(heads * size) * element;
    char *data = device_memory_new(b->memory, (size_t)rows * row_bytes);
    if (data == NULL) return bench_no_memory(b);
    for (int64_t at = 0; kind >= 0 && at < rows; at += SLAB) {
        int64_t n = rows - at < SLAB ? rows - at : SLAB;
        if (bench_fill_device(&b->tables, b->memory, kind, at * heads * size, n * heads * size,
                              data + (size_t)at * row_bytes) != 0)
            return attn_fail(b->error, ATTN_E_DEVICE, "", "copying to the device failed");
    }
    TENSOR_3D(t, b->memory, data, dtype, rows, heads, size);
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
    return n > BENCH_MAX_COPIES ? BENCH_MAX_COPIES : (int)n;
}

/* Writes the keys and values of all requests into one copy of the cache, slab by slab. */
static int fill_cache(bench_t *b, int copy) {
    int64_t total = b->num_keys, bs = b->problem.block_size, request = 0, first = 0;
    int64_t *slots = malloc(SLAB * sizeof *slots);
    size_t element = attn_dtype_size(b->problem.dtype);
    char *key = device_memory_new(b->memory, (size_t)(SLAB * b->z.kv_heads * b->z.key) * element);
    char *value = device_memory_new(b->memory, (size_t)(SLAB * b->z.kv_heads * b->z.value) * element);
    void *device_slots = device_memory_new(b->memory, SLAB * sizeof *slots);
    int code =
        slots == NULL || key == NULL || value == NULL || device_slots == NULL ? bench_no_memory(b) : ATTN_OK;
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
            code = bench_no_memory(b);
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
        return bench_no_memory(b);
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
        return bench_no_memory(b);
    TENSOR_2D(&b->table_t, b->memory, device_table, ATTN_DTYPE_INT32, n, b->pages);
    for (int c = 0; c < b->num_copies && code == ATTN_OK; c++) {
        tensor_set_cache(&b->cache[c], b->memory, all + (size_t)c * (size_t)shape.total_bytes, &shape);
        code = fill_cache(b, c);
    }
    b->stream_buffer = all;
    b->stream_bytes = (size_t)shape.total_bytes * (size_t)b->num_copies;
    return code;
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
    if (space == NULL) return bench_no_memory(b);
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

/* Room for the scales of groups, as consumers of the rows read them: float32; bytes of exponents; tiles. */
static int make_block_scale(bench_t *b, int64_t rows, uint64_t features) {
    const int64_t width = b->z.heads * b->z.output, groups = width / bench_output_group(&b->problem);
    const int64_t tiles[5] = {(rows + 127) / 128, (groups + 3) / 4, 32, 4, 4}, plain[2] = {rows, groups};
    const int is_fp4 = (features & ATTN_F_OUT_NVFP4) != 0,
              is_ue8m0 = (features & ATTN_F_OUT_SCALE_UE8M0) != 0;
    const uint32_t dtype = is_fp4 || is_ue8m0 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FLOAT32;
    const int64_t count = is_fp4 ? tiles[0] * tiles[1] * 512 : rows * groups;
    void *scales = device_memory_new(b->memory, (size_t)count * attn_dtype_size(dtype));
    if (scales == NULL) return bench_no_memory(b);
    tensor_set(&b->block_scale, b->memory, scales, dtype, is_fp4 ? 5 : 2, is_fp4 ? tiles : plain);
    return ATTN_OK;
}

/* The output, and what a quantised one needs (semantics 7.7): a static scale under which no output
 * saturates, or room for the scales of groups. */
static int make_output(bench_t *b, int64_t rows) {
    const int64_t heads = b->z.heads, columns = attn_output_columns(&b->problem);
    const uint32_t dtype = b->problem.out_dtype != 0 ? b->problem.out_dtype : b->problem.dtype;
    const uint64_t features = attn_problem_features(&b->problem);
    const float scale = bench_output_scale(&b->problem);
    void *data = device_memory_new(b->memory, (size_t)(rows * heads * columns) * attn_dtype_size(dtype));
    if (data == NULL) return bench_no_memory(b);
    TENSOR_3D(&b->output, b->memory, data, dtype, rows, heads, columns);
    if ((features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_NVFP4)) != 0) {
        void *one = device_memory_new(b->memory, sizeof scale);
        if (one == NULL || device_memory_write(b->memory, one, &scale, sizeof scale) != 0)
            return bench_no_memory(b);
        TENSOR_1D(&b->output_scale, b->memory, one, ATTN_DTYPE_FLOAT32, 1);
    }
    return (features & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0 ? make_block_scale(b, rows, features)
                                                                       : ATTN_OK;
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
    return failed ? bench_no_memory(b) : ATTN_OK;
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
    if (failed) return bench_no_memory(b);
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
    if (b->starts == NULL || b->lens == NULL) return bench_no_memory(b);
    for (int32_t r = 0; r <= row->requests; r++)
        b->starts[r] = (int32_t)bench_query_start(row, r);
    for (int32_t r = 0; r < row->requests; r++)
        b->lens[r] = bench_len(row, r);
    void *starts = device_memory_new(b->memory, ((size_t)row->requests + 1) * 4);
    void *lens = device_memory_new(b->memory, (size_t)row->requests * 4);
    if (starts == NULL || lens == NULL) return bench_no_memory(b);
    device_memory_write(b->memory, starts, b->starts, ((size_t)row->requests + 1) * 4);
    device_memory_write(b->memory, lens, b->lens, (size_t)row->requests * 4);
    TENSOR_1D(&b->starts_t, b->memory, starts, ATTN_DTYPE_INT32, row->requests + 1);
    TENSOR_1D(&b->lens_t, b->memory, lens, ATTN_DTYPE_INT32, row->requests);
    int code = make_rows(b, &b->query, BENCH_QUERY, rows, z->heads, z->query);
    if (code == ATTN_OK) code = make_output(b, rows);
    if (code == ATTN_OK && attn_problem_projects(&row->problem)) code = make_weights(b);
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
    if (b->space.metadata == NULL || b->space.workspace == NULL || b->space.host == NULL)
        return bench_no_memory(b);
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
        if (decoded == NULL) return bench_no_memory(b);
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
    const attn_backend_t *backend = attn_group_phase_backend(b->group, attn_group_phase(b->group, &batch));
    if (backend != NULL) snprintf(b->row->backend, sizeof b->row->backend, "%s", backend->name);
    free(decoded);
    return code;
}

int bench_setup(bench_t *b, attn_context_t *context) {
    const bench_options_t *options = b->options;
    const bench_row_t *row = b->row;
    b->z = layer_sizes(&row->problem);
    b->has_cache = attn_role_has_cache(row->problem.role);
    b->num_rows = bench_query_start(row, row->requests);
    b->num_keys = bench_key_start(row, row->requests);
    int code = device_memory_open(options->device, &b->memory, b->error);
    if (code == ATTN_OK && options->device->type != kDLCPU &&
        (b->timer = device_timer_open(options->device, b->error)) == NULL)
        code = b->error->code;
    if (b->timer != NULL) b->stream = device_timer_stream(b->timer);
    if (code == ATTN_OK) code = open_layer(b, context);
    b->tables.dtype = b->problem.dtype, b->tables.query_dtype = bench_query_dtype(&b->problem);
    if (code == ATTN_OK) code = make_inputs(b);
    if (code == ATTN_OK && !row->is_write) code = plan(b);
    if (code == ATTN_OK && device_memory_sync(b->memory) != 0) /* the timer's stream waits for no other */
        code = attn_fail(b->error, ATTN_E_DEVICE, "", "the device reports a failed copy");
    return code;
}

void bench_setup_end(bench_t *b) {
    if (b->layer != NULL) attn_layer_destroy(b->layer);
    attn_group_close(b->group);
    free(b->table);
    free(b->starts);
    free(b->lens);
    free(b->space.host);
    free(b->pieces);
    device_timer_close(b->timer);
    device_memory_close(b->memory);
}
