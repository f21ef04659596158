/* SPDX-License-Identifier: Apache-2.0 */
/* run_layer.c: an engine in small for one layer. Each step takes from every request its next tokens: a chunk
 * while more than `decode` tokens are left, then one. Rows are gathered on the host, so that the device sees
 * what an engine would give it. */
#include "run/run_layer.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>

#include "base/describe.h"
#include "base/layer_sizes.h"
#include "tensor/tensor.h"
#include "base/tool.h"

/* Everything of one run; host arrays first, then what lives on the device. */
typedef struct runner {
    const run_input_t *in;
    const run_options_t *options;
    attn_context_t *context;
    run_result_t *result;
    attn_error_t *error;
    device_memory_t *memory;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    int has_cache, is_cross, cross_is_written;
    int32_t max_rows; /* tokens in one step at most */
    int32_t table_width;
    layer_sizes_t sizes;
    size_t element;                     /* bytes */
    int64_t q_row, k_row, v_row, o_row; /* elements of one token */
    int32_t *done;                      /* [B] tokens already computed */
    int32_t *all_tables;                /* [B, table_width] */
    int32_t *requests;                  /* [B] requests of this step in batch order */
    int32_t *starts, *lens, *tables, *encoder_lens;
    int64_t *slots;
    unsigned char *staging;
    void *d_starts, *d_lens, *d_tables, *d_encoder_lens, *d_slots, *d_query, *d_key, *d_value, *d_output,
        *d_cache, *d_topk, *d_lse;
    float *lse; /* of a step, [Hq, rows] */
    tensor_t sinks, slopes, rel_bias, cache, channel_scales;
} runner_t;

static int out_of_memory(const runner_t *r) {
    return attn_fail(r->error, ATTN_E_NO_MEMORY, "", "out of memory for the run");
}

static int32_t length_of(const runner_t *r, int32_t request) {
    return r->in->q_start[request + 1] - r->in->q_start[request];
}
static int32_t keys_of(const runner_t *r, int32_t request) {
    return r->in->k_start[request + 1] - r->in->k_start[request];
}

/* Tokens of a request in the next step. */
static int32_t next_tokens(const runner_t *r, int32_t request) {
    int32_t left = length_of(r, request) - r->done[request];
    if (!r->has_cache || left <= 1) return left;
    int32_t prefill = left - r->options->decode;
    if (prefill <= 0) return 1;
    return prefill < r->options->chunk ? prefill : r->options->chunk;
}

/* Static scales of V's channels, where the cache has such (semantics 3.8). */
static int add_channel_scales(runner_t *r, attn_layer_options_t *options) {
    const attn_problem_t *p = &r->result->problem;
    if (!r->has_cache || !attn_kv_has_channel_scales(p->kv_cache_dtype)) return ATTN_OK;
    const layer_sizes_t z = layer_sizes(p);
    const size_t bytes = (size_t)(z.kv_heads * z.value) * sizeof(float);
    attn_calibration_t *own = NULL;
    char name[64];
    float *host = malloc(bytes);
    if (host == NULL) return out_of_memory(r);
    int64_t shape[2] = {z.kv_heads, z.value}, strides[2] = {z.value, 1};
    DLTensor scales = {.data = host,
                       .device = {kDLCPU, 0},
                       .ndim = 2,
                       .dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32),
                       .shape = shape,
                       .strides = strides};
    int code = ATTN_OK;
    if (r->options->calibration == NULL) {
        code = attn_calibration_create(&own, r->error);
        if (code == ATTN_OK) code = calibrate_add(own, r->in, r->error);
    }
    if (code == ATTN_OK)
        code = attn_calibration_scales(own != NULL ? own : r->options->calibration,
                                       calibrate_name(r->in, name, sizeof name), &scales, r->error);
    void *copy = code == ATTN_OK ? device_memory_new(r->memory, bytes) : NULL;
    if (code == ATTN_OK && (copy == NULL || device_memory_write(r->memory, copy, host, bytes) != 0))
        code = out_of_memory(r);
    if (code == ATTN_OK) {
        TENSOR_2D(&r->channel_scales, r->memory, copy, ATTN_DTYPE_FLOAT32, z.kv_heads, z.value);
        options->scales.v = &r->channel_scales.dl;
    }
    attn_calibration_destroy(own);
    free(host);
    return code;
}

static int open_layer(runner_t *r) {
    attn_problem_t problem = r->in->problem;
    int32_t longest = 1;
    for (int32_t i = 0; i < r->in->num_reqs; i++) {
        if (length_of(r, i) > longest) longest = length_of(r, i);
        if (keys_of(r, i) > longest) longest = keys_of(r, i);
        r->max_rows += next_tokens(r, i) > 1 ? next_tokens(r, i) : 1;
    }
    if (r->options->kv_cache_dtype != 0 && r->has_cache) problem.kv_cache_dtype = r->options->kv_cache_dtype;
    if (r->options->block_size != 0 && r->has_cache) problem.block_size = r->options->block_size;
    if (r->options->wants_lse) problem.features |= ATTN_F_LSE;
    problem.max_num_seqs = (uint32_t)r->in->num_reqs;
    problem.max_num_batched_tokens = (uint32_t)r->max_rows;
    problem.max_model_len = longest;
    int code = attn_group_open(r->context, &problem, r->options->device, r->options->backend, &r->group,
                               &r->result->selection, r->error);
    if (code != ATTN_OK) return code;
    r->result->problem = *attn_group_problem(r->group);
    describe_group_backends(r->group, r->result->backend, sizeof r->result->backend);
    ATTN_INIT(attn_layer_options_t, options);
    const st_tensor_t *const files[3] = {r->in->sinks, r->in->slopes, r->in->rel_bias};
    tensor_t *const tensors[3] = {&r->sinks, &r->slopes, &r->rel_bias};
    for (int i = 0; i < 3; i++) {
        if (files[i] == NULL) continue;
        void *copy = device_memory_new(r->memory, files[i]->bytes);
        if (copy == NULL || device_memory_write(r->memory, copy, files[i]->data, files[i]->bytes) != 0)
            return out_of_memory(r);
        if (files[i]->ndim == 1)
            TENSOR_1D(tensors[i], r->memory, copy, ATTN_DTYPE_FLOAT32, files[i]->shape[0]);
        else
            TENSOR_2D(tensors[i], r->memory, copy, ATTN_DTYPE_FLOAT32, files[i]->shape[0],
                      files[i]->shape[1]);
    }
    options.sinks = r->in->sinks != NULL ? &r->sinks.dl : NULL;
    options.alibi_slopes = r->in->slopes != NULL ? &r->slopes.dl : NULL;
    options.rel_bias = r->in->rel_bias != NULL ? &r->rel_bias.dl : NULL;
    code = add_channel_scales(r, &options);
    if (code != ATTN_OK) return code;
    char name[64];
    snprintf(name, sizeof name, "run.layers.%lld.attn", (long long)r->in->number);
    return attn_layer_create(r->group, name, &options, &r->layer, r->error);
}

/* kv_b_proj as loaded, and the space that the backend keeps it in (semantics 7.4). */
static int load_weights(runner_t *r) {
    const st_tensor_t *file = r->in->weights;
    ATTN_INIT(attn_space_needed_t, needed);
    int code = attn_group_space_needed(r->group, &needed, r->error);
    if (code != ATTN_OK) return code;
    void *copy = device_memory_new(r->memory, file->bytes),
         *space = device_memory_new(r->memory, needed.weight_bytes);
    if (copy == NULL || space == NULL || device_memory_write(r->memory, copy, file->data, file->bytes) != 0)
        return out_of_memory(r);
    tensor_t weights;
    TENSOR_2D(&weights, r->memory, copy, r->in->problem.dtype, file->shape[0], file->shape[1]);
    ATTN_INIT(attn_weights_t, w);
    w.kv_b_proj = &weights.dl;
    w.weight_space = space;
    w.weight_space_bytes = needed.weight_bytes;
    code = attn_layer_prepare_weights(r->layer, &w, NULL, r->error);
    if (code == ATTN_OK && device_memory_sync(r->memory) != 0)
        code = attn_fail(r->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    return code;
}

/* Pages in random order: page 0 stays unused, as an engine's null page. All bytes start as NaN or
 * nonsense. */
static int make_cache(runner_t *r) {
    int32_t bs = (int32_t)r->result->problem.block_size, n = r->in->num_reqs;
    int64_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t pages = ((r->is_cross ? keys_of(r, i) : length_of(r, i)) + bs - 1) / bs;
        used += pages;
        if (pages > r->table_width) r->table_width = pages;
    }
    if (r->table_width == 0) r->table_width = 1;
    r->result->num_blocks = used + 1;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    int code = attn_group_kv_cache_shape(r->group, used + 1, &shape, r->error);
    if (code != ATTN_OK) return code;
    r->result->page_bytes = shape.page_bytes;
    r->d_cache = device_memory_new(r->memory, (size_t)shape.total_bytes);
    r->all_tables = calloc((size_t)n * (size_t)r->table_width, sizeof *r->all_tables);
    int32_t *pages = malloc((size_t)(used + 1) * sizeof *pages);
    if (r->d_cache == NULL || r->all_tables == NULL || pages == NULL ||
        device_memory_fill(r->memory, r->d_cache, 0xff, (size_t)shape.total_bytes) != 0) {
        free(pages);
        return out_of_memory(r);
    }
    tensor_set_cache(&r->cache, r->memory, r->d_cache, &shape);
    uint64_t state = r->options->seed;
    for (int64_t i = 0; i < used; i++) { /* Fisher and Yates, from the front */
        int64_t j = (int64_t)(random_u64(&state) % (uint64_t)(i + 1));
        pages[i] = pages[j];
        pages[j] = (int32_t)i + 1;
    }
    int64_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t count = ((r->is_cross ? keys_of(r, i) : length_of(r, i)) + bs - 1) / bs;
        memcpy(r->all_tables + (int64_t)i * r->table_width, pages + at, (size_t)count * sizeof *pages);
        at += count;
    }
    free(pages);
    return ATTN_OK;
}

static int make_buffers(runner_t *r) {
    ATTN_INIT(attn_space_needed_t, needed);
    int code = attn_group_space_needed(r->group, &needed, r->error);
    if (code != ATTN_OK) return code;
    size_t n = (size_t)r->in->num_reqs, rows = (size_t)r->max_rows, key_rows = rows;
    if (r->is_cross && (size_t)r->in->k_start[n] > key_rows) key_rows = (size_t)r->in->k_start[n];
    size_t widest = (size_t)(r->q_row > r->o_row ? r->q_row : r->o_row);
    size_t key_width = (size_t)(r->k_row > r->v_row ? r->k_row : r->v_row);
    size_t staging = rows * widest > key_rows * key_width ? rows * widest : key_rows * key_width;
    if (staging * r->element < rows * r->in->problem.topk * 4) staging = rows * r->in->problem.topk * 4;
    r->space.struct_size = sizeof r->space;
    r->space.metadata_bytes = needed.metadata_bytes;
    r->space.workspace_bytes = needed.workspace_bytes;
    r->space.host_bytes = needed.host_bytes;
    r->space.metadata = device_memory_new(r->memory, needed.metadata_bytes);
    r->space.workspace = device_memory_new(r->memory, needed.workspace_bytes);
    r->space.host = aligned_alloc(256, (needed.host_bytes / 256 + 1) * 256);
    r->requests = calloc(n, sizeof *r->requests);
    r->starts = calloc(n + 1, sizeof *r->starts);
    r->lens = calloc(n, sizeof *r->lens);
    r->encoder_lens = calloc(n, sizeof *r->encoder_lens);
    r->tables = calloc(n * (size_t)(r->table_width + 1), sizeof *r->tables);
    r->slots = calloc(key_rows + 1, sizeof *r->slots);
    r->staging = malloc(staging * r->element + 1);
    r->d_starts = device_memory_new(r->memory, (n + 1) * 4);
    r->d_lens = device_memory_new(r->memory, n * 4);
    r->d_encoder_lens = device_memory_new(r->memory, n * 4);
    r->d_tables = device_memory_new(r->memory, n * (size_t)(r->table_width + 1) * 4);
    r->d_slots = device_memory_new(r->memory, key_rows * 8);
    r->d_query = device_memory_new(r->memory, rows * (size_t)r->q_row * r->element);
    r->d_key = device_memory_new(r->memory, key_rows * (size_t)r->k_row * r->element);
    r->d_value = device_memory_new(r->memory, key_rows * (size_t)r->v_row * r->element);
    r->d_output = device_memory_new(r->memory, rows * (size_t)r->o_row * r->element);
    r->d_topk = device_memory_new(r->memory, rows * (size_t)r->in->problem.topk * 4 + 4);
    const size_t lse_bytes = r->options->wants_lse ? rows * r->in->problem.num_heads * sizeof(float) : 0;
    r->d_lse = device_memory_new(r->memory, lse_bytes);
    r->lse = malloc(lse_bytes + 1);
    if (r->d_lse == NULL || r->lse == NULL) return out_of_memory(r);
    if (r->space.metadata == NULL || r->space.workspace == NULL || r->space.host == NULL ||
        r->requests == NULL || r->starts == NULL || r->lens == NULL || r->encoder_lens == NULL ||
        r->tables == NULL || r->slots == NULL || r->staging == NULL || r->d_starts == NULL ||
        r->d_lens == NULL || r->d_encoder_lens == NULL || r->d_tables == NULL || r->d_slots == NULL ||
        r->d_query == NULL || r->d_key == NULL || r->d_value == NULL || r->d_output == NULL ||
        r->d_topk == NULL)
        return out_of_memory(r);
    return ATTN_OK;
}

/* Which requests take part and in which order: decodes first, as backends with a threshold want it. */
static int32_t choose_requests(runner_t *r) {
    int32_t count = 0, threshold = (int32_t)attn_backend_reorder_threshold(attn_group_backend(r->group));
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < r->in->num_reqs; i++) {
            int32_t n = next_tokens(r, i);
            int is_late = threshold > 0 && !r->is_cross && (n > threshold || r->done[i] == 0);
            int is_wanted = n > 0 || !r->has_cache || (r->is_cross && !r->cross_is_written);
            if (is_wanted && is_late == pass) r->requests[count++] = i;
        }
    return count;
}

/* Copies the rows of this step's tokens to the device. */
static int gather(runner_t *r, int32_t count, const st_tensor_t *from, const int32_t *offsets, size_t bytes,
                  void *to) {
    size_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t request = r->requests[i], n = r->starts[i + 1] - r->starts[i];
        size_t first = (size_t)(offsets[request] + r->done[request]);
        memcpy(r->staging + at, from->data + first * bytes, (size_t)n * bytes);
        at += (size_t)n * bytes;
    }
    return device_memory_write(r->memory, to, r->staging, at);
}

/* The step's lengths, tables and slots, on the host and on the device. Returns how many rows the cache update
 * has. */
static int plan_step(runner_t *r, int32_t count, int64_t *update_rows) {
    int32_t width = r->table_width, rows;
    for (int32_t i = 0; i < count; i++) {
        int32_t request = r->requests[i], n = next_tokens(r, request);
        r->starts[i + 1] = r->starts[i] + n;
        r->lens[i] = r->has_cache ? r->done[request] + n : n;
        r->encoder_lens[i] = keys_of(r, request);
        if (r->has_cache)
            memcpy(r->tables + (int64_t)i * width, r->all_tables + (int64_t)request * width,
                   (size_t)width * 4);
    }
    rows = r->starts[count];
    *update_rows = 0;
    int code = ATTN_OK;
    int32_t bs = (int32_t)r->result->problem.block_size;
    if (r->is_cross && !r->cross_is_written) {
        int32_t *none = calloc((size_t)count + 1, sizeof *none);
        if (none == NULL) return out_of_memory(r);
        code = attn_plan_cross_slots(r->encoder_lens, none, count, r->tables, width, bs, r->slots,
                                     r->in->k_start[count], update_rows, r->error);
        free(none);
    } else if (r->has_cache && !r->is_cross) {
        ATTN_INIT(attn_slot_params_t, params);
        params.block_size = bs;
        params.num_blocks = r->result->num_blocks;
        *update_rows = rows;
        code = attn_plan_slot_mapping(&params, r->starts, r->lens, count, r->tables, width, rows, r->slots,
                                      r->error);
    }
    if (code != ATTN_OK) return code;
    if (device_memory_write(r->memory, r->d_starts, r->starts, ((size_t)count + 1) * 4) != 0 ||
        device_memory_write(r->memory, r->d_lens, r->lens, (size_t)count * 4) != 0 ||
        device_memory_write(r->memory, r->d_encoder_lens, r->encoder_lens, (size_t)count * 4) != 0 ||
        device_memory_write(r->memory, r->d_tables, r->tables, (size_t)count * (size_t)width * 4) != 0 ||
        device_memory_write(r->memory, r->d_slots, r->slots, (size_t)*update_rows * 8) != 0)
        return attn_fail(r->error, ATTN_E_DEVICE, "", "copying to the device failed");
    return ATTN_OK;
}

static int compute_step(runner_t *r, int32_t count, int64_t update_rows) {
    const run_input_t *in = r->in;
    const layer_sizes_t *z = &r->sizes;
    int64_t rows = r->starts[count];
    int64_t key_rows = r->is_cross ? in->k_start[in->num_reqs] : rows;
    tensor_t starts, lens, encoder_lens, table, slots, query, key, value, output, topk;
    TENSOR_1D(&starts, r->memory, r->d_starts, ATTN_DTYPE_INT32, count + 1);
    TENSOR_1D(&lens, r->memory, r->d_lens, ATTN_DTYPE_INT32, count);
    TENSOR_1D(&encoder_lens, r->memory, r->d_encoder_lens, ATTN_DTYPE_INT32, count);
    TENSOR_2D(&table, r->memory, r->d_tables, ATTN_DTYPE_INT32, count, r->table_width);
    TENSOR_1D(&slots, r->memory, r->d_slots, ATTN_DTYPE_INT64, update_rows);
    TENSOR_3D(&query, r->memory, r->d_query, in->problem.dtype, rows, z->heads, z->query);
    if (z->is_latent) {
        TENSOR_2D(&key, r->memory, r->d_key, in->problem.dtype, rows, z->key);
        TENSOR_2D(&value, r->memory, r->d_value, in->problem.dtype, rows, z->value);
    } else {
        TENSOR_3D(&key, r->memory, r->d_key, in->problem.dtype, key_rows, z->kv_heads, z->key);
        TENSOR_3D(&value, r->memory, r->d_value, in->problem.dtype, key_rows, z->kv_heads, z->value);
    }
    TENSOR_3D(&output, r->memory, r->d_output, in->problem.dtype, rows, z->heads, z->output);
    if (in->topk != NULL) TENSOR_2D(&topk, r->memory, r->d_topk, ATTN_DTYPE_INT32, rows, in->problem.topk);

    ATTN_INIT(attn_batch_t, batch);
    batch.num_reqs = count;
    batch.num_actual_tokens = (int32_t)rows;
    batch.query_start_loc_host = r->starts;
    batch.seq_lens_host = r->lens;
    batch.query_start_loc = &starts.dl;
    batch.seq_lens = &lens.dl;
    if (r->has_cache) {
        batch.block_table = &table.dl;
        batch.block_table_host = r->tables;
        batch.block_table_host_stride = r->table_width;
    }
    if (r->is_cross) {
        batch.encoder_seq_lens_host = r->encoder_lens;
        batch.encoder_seq_lens = &encoder_lens.dl;
    } else if (r->has_cache) {
        batch.slot_mapping = &slots.dl;
    }
    /* NaN where the forward writes nothing: rows of the step before would pass for this one's */
    if (device_memory_fill(r->memory, r->d_output, 0xff, (size_t)(rows * r->o_row) * r->element) != 0)
        return attn_fail(r->error, ATTN_E_DEVICE, "", "filling the output failed");
    device_memory_sync(r->memory);
    double t0 = tool_seconds();
    int code = attn_group_build_metadata(r->group, &batch, &r->space, NULL, r->error);
    if (code != ATTN_OK) return code;
    device_memory_sync(r->memory);
    double t1 = tool_seconds();
    if (update_rows > 0) {
        ATTN_INIT(attn_kv_update_t, update);
        update.key = &key.dl;
        update.value = &value.dl;
        update.kv_cache = &r->cache.dl;
        update.slot_mapping = &slots.dl;
        code = attn_layer_update_kv_cache(r->layer, &update, NULL, r->error);
        if (code != ATTN_OK) return code;
        device_memory_sync(r->memory);
    }
    double t2 = tool_seconds();
    ATTN_INIT(attn_forward_t, forward);
    forward.query = &query.dl;
    forward.key = r->is_cross ? NULL : &key.dl;
    forward.value = r->is_cross ? NULL : &value.dl;
    forward.kv_cache = r->has_cache ? &r->cache.dl : NULL;
    forward.output = &output.dl;
    forward.topk_indices = in->topk != NULL ? &topk.dl : NULL;
    tensor_t lse;
    TENSOR_2D(&lse, r->memory, r->d_lse, ATTN_DTYPE_FLOAT32, in->problem.num_heads, rows);
    if (r->options->wants_lse) forward.lse = &lse.dl;
    code = attn_layer_forward(r->layer, &forward, &r->space, NULL, r->error);
    if (code == ATTN_OK && device_memory_sync(r->memory) != 0)
        code = attn_fail(r->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    double t3 = tool_seconds();
    r->result->seconds_plan += t1 - t0;
    r->result->seconds_update += t2 - t1;
    r->result->seconds_forward += t3 - t2;
    r->result->steps++;
    return code;
}

static int scatter_output(runner_t *r, int32_t count) {
    size_t row = (size_t)r->o_row, at = 0;
    if (device_memory_read(r->memory, r->staging, r->d_output, (size_t)r->starts[count] * row * r->element) !=
        0)
        return attn_fail(r->error, ATTN_E_DEVICE, "", "copying from the device failed");
    const size_t heads = r->in->problem.num_heads, rows = (size_t)r->starts[count];
    if (r->result->lse != NULL &&
        device_memory_read(r->memory, r->lse, r->d_lse, rows * heads * sizeof *r->lse) != 0)
        return attn_fail(r->error, ATTN_E_DEVICE, "", "copying from the device failed");
    for (int32_t i = 0; i < count; i++) {
        int32_t request = r->requests[i], n = r->starts[i + 1] - r->starts[i];
        for (size_t k = 0; r->result->lse != NULL && k < (size_t)n * heads; k++) {
            const size_t token = (size_t)(r->in->q_start[request] + r->done[request]) + k / heads;
            r->result->lse[token * heads + k % heads] =
                r->lse[k % heads * rows + (size_t)r->starts[i] + k / heads];
        }
        size_t first = (size_t)(r->in->q_start[request] + r->done[request]) * row;
        for (size_t k = 0; k < (size_t)n * row; k++, at++)
            r->result->output[first + k] = tensor_load(r->staging, r->in->problem.dtype, at);
        r->done[request] += n;
    }
    return ATTN_OK;
}

static int run_steps(runner_t *r) {
    for (;;) {
        int32_t count = choose_requests(r);
        int64_t update_rows;
        if (count == 0 || (!r->has_cache && r->result->steps > 0)) return ATTN_OK;
        int code = plan_step(r, count, &update_rows);
        if (code != ATTN_OK) return code;
        if (gather(r, count, r->in->query, r->in->q_start, (size_t)r->q_row * r->element, r->d_query) != 0)
            return out_of_memory(r);
        if (r->in->topk != NULL &&
            gather(r, count, r->in->topk, r->in->q_start, r->in->problem.topk * (size_t)4, r->d_topk) != 0)
            return out_of_memory(r);
        if (!r->is_cross) {
            if (gather(r, count, r->in->key, r->in->q_start, (size_t)r->k_row * r->element, r->d_key) != 0 ||
                gather(r, count, r->in->value, r->in->q_start, (size_t)r->v_row * r->element, r->d_value) !=
                    0)
                return out_of_memory(r);
        } else if (!r->cross_is_written) {
            if (device_memory_write(r->memory, r->d_key, r->in->key->data, r->in->key->bytes) != 0 ||
                device_memory_write(r->memory, r->d_value, r->in->value->data, r->in->value->bytes) != 0)
                return out_of_memory(r);
        }
        code = compute_step(r, count, update_rows);
        if (code != ATTN_OK) return code;
        r->cross_is_written = r->is_cross;
        code = scatter_output(r, count);
        if (code != ATTN_OK) return code;
    }
}

static void runner_free(runner_t *r) {
    if (r->layer != NULL) attn_layer_destroy(r->layer);
    attn_group_close(r->group);
    free(r->done);
    free(r->all_tables);
    free(r->requests);
    free(r->starts);
    free(r->lens);
    free(r->tables);
    free(r->encoder_lens);
    free(r->slots);
    free(r->staging);
    free(r->lse);
    free(r->space.host);
    device_memory_close(r->memory);
}

int run_layer(attn_context_t *context, const run_input_t *input, const run_options_t *options,
              run_result_t *result, attn_error_t *error) {
    const attn_problem_t *p = &input->problem;
    runner_t r = {.in = input, .options = options, .context = context, .result = result, .error = error};
    memset(result, 0, sizeof *result);
    r.sizes = layer_sizes(p);
    r.has_cache = attn_role_has_cache(p->role);
    r.is_cross = p->role == ATTN_ROLE_ENCODER_DECODER;
    r.element = attn_dtype_size(p->dtype);
    r.q_row = r.sizes.heads * r.sizes.query;
    r.k_row = r.sizes.kv_heads * r.sizes.key;
    r.v_row = r.sizes.kv_heads * r.sizes.value;
    r.o_row = r.sizes.heads * r.sizes.output;
    r.done = calloc((size_t)input->num_reqs, sizeof *r.done);
    result->count = (size_t)input->q_start[input->num_reqs] * (size_t)r.o_row;
    result->output = calloc(result->count + 1, sizeof *result->output);
    if (options->wants_lse)
        result->lse = calloc((size_t)input->q_start[input->num_reqs] * p->num_heads + 1, sizeof *result->lse);
    int code = r.done == NULL || result->output == NULL || (options->wants_lse && result->lse == NULL)
                   ? out_of_memory(&r)
                   : ATTN_OK;
    if (code == ATTN_OK) code = device_memory_open(options->device, &r.memory, error);
    if (code == ATTN_OK) code = open_layer(&r);
    if (code == ATTN_OK && input->weights != NULL) code = load_weights(&r);
    if (code == ATTN_OK && r.has_cache) code = make_cache(&r);
    if (code == ATTN_OK) code = make_buffers(&r);
    if (code == ATTN_OK) code = run_steps(&r);
    runner_free(&r);
    return code;
}

void run_result_free(run_result_t *result) {
    attn_selection_free(result->selection);
    free(result->output);
    free(result->lse);
    memset(result, 0, sizeof *result);
}

double run_tolerance(const attn_problem_t *p, int to_model) {
    double tol = p->dtype == ATTN_DTYPE_FLOAT32 ? 2e-5 : p->dtype == ATTN_DTYPE_FLOAT16 ? 3e-3 : 1.5e-2;
    if (p->kv_cache_dtype == ATTN_KV_FLOAT16 && tol < 3e-3) tol = 3e-3;
    if (p->kv_cache_dtype == ATTN_KV_BFLOAT16 && tol < 1.5e-2) tol = 1.5e-2;
    if (attn_kv_is_lossy(p->kv_cache_dtype)) tol = to_model ? 1.5e-1 : 8e-2;
    return to_model ? 2 * tol : tol;
}

run_difference_t run_compare(const float *got, const float *want, size_t count, double atol, double rtol) {
    run_difference_t d = {.is_close = 1};
    double square = 0, reference = 0;
    for (size_t i = 0; i < count; i++) {
        double g = got[i], w = want[i], e = fabs(g - w);
        if (isnan(g) || isnan(w)) {
            if (isnan(g) != isnan(w)) {
                d.is_close = 0;
                d.max_abs = INFINITY;
            }
            continue;
        }
        if (e > d.max_abs) d.max_abs = e;
        if (!(e <= atol + rtol * fabs(w)) && g != w) d.is_close = 0;
        square += e * e;
        reference += w * w;
    }
    d.relative_rms = reference > 0 ? sqrt(square / reference) : sqrt(square);
    return d;
}
