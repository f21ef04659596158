/* SPDX-License-Identifier: Apache-2.0 */
/* rank_layer.c: opens a layer over ranks, fills the rank's share of the cache, attends. Every exchange
 * is timed; on a device it waits for the stream first, so that attention is not counted with it. */
#include "ranks/rank_layer.h"

#include <attn/attn_comm_staged.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/layer_sizes.h"
#include "base/tool.h"
#include "measure/bench_data.h"
#include "tensor/tensor.h"

enum { SLAB = 4096, MAX_COPIES = 16, MAX_REPETITIONS = 400, LEAST_REPETITIONS = 6 };

/* Exchanges of the layer, and what they took. */
struct timed {
    attn_comm_t comm;
    device_memory_t *memory;
    double seconds;
    uint64_t bytes;
    int32_t calls;
};

struct layer {
    const rank_work_t *work;
    int rank, is_alone;
    attn_error_t *error;
    rank_report_t *report;
    attn_problem_t problem;
    layer_sizes_t z;
    device_memory_t *memory;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    attn_space_needed_t need;
    attn_comm_staged_t staged;
    struct timed timed;
    int64_t num_tokens, num_keys, width;
    int32_t *starts, *key_starts, *table;
    int64_t *slots;
    uint8_t *causal;
    int copies, next;
    tensor_t cache[MAX_COPIES], query, output, sinks, table_t, weights;
    uint32_t out_dtype;
};

int64_t rank_work_tokens(const rank_work_t *work) {
    int64_t n = 0;
    for (int32_t r = 0; r < work->num_reqs; r++)
        n += work->query_lens[r];
    return n;
}

size_t rank_work_outputs(const rank_work_t *work) {
    const layer_sizes_t z = layer_sizes(&work->problem);
    return (size_t)(rank_work_tokens(work) * z.heads * z.output);
}

int64_t rank_work_head(const rank_work_t *work, int rank, int64_t h) {
    const layer_sizes_t z = layer_sizes(&work->problem);
    const int64_t group = z.heads / z.kv_heads;
    return (h / group * work->world + rank) * group + h % group;
}

static int no_memory(const struct layer *x) {
    return attn_fail(x->error, ATTN_E_NO_MEMORY, "", "out of memory for the layer of one rank");
}

static double begin(struct timed *t) {
    if ((t->comm.flags & ATTN_COMM_DEVICE) != 0) device_memory_sync(t->memory);
    return tool_seconds();
}
static int end(struct timed *t, double began, uint64_t part, int code) {
    t->seconds += tool_seconds() - began;
    t->bytes += part * (uint64_t)(t->comm.world - 1);
    t->calls++;
    return code;
}
static int timed_all_gather(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                            attn_error_t *error) {
    struct timed *t = ctx;
    const double began = begin(t);
    return end(t, began, bytes, t->comm.all_gather(t->comm.ctx, send, recv, bytes, stream, error));
}
static int timed_all_to_all(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                            attn_error_t *error) {
    struct timed *t = ctx;
    const double began = begin(t);
    return end(t, began, bytes, t->comm.all_to_all(t->comm.ctx, send, recv, bytes, stream, error));
}
static int timed_reduce_scatter(void *ctx, const void *send, void *recv, uint64_t count, uint32_t dtype,
                                void *stream, attn_error_t *error) {
    struct timed *t = ctx;
    const double began = begin(t);
    return end(t, began, count * attn_dtype_size(dtype),
               t->comm.reduce_scatter(t->comm.ctx, send, recv, count, dtype, stream, error));
}
static int timed_wait(void *ctx, void *stream, attn_error_t *error) {
    struct timed *t = ctx;
    return t->comm.wait(t->comm.ctx, stream, error);
}

/* All ranks go on, or none. */
static int agree(const struct layer *x, const attn_comm_t *host, int code) {
    struct {
        int32_t code;
        char text[440];
    } mine = {.code = code}, *all;
    if (host == NULL) return code;
    if ((all = calloc((size_t)host->world, sizeof mine)) == NULL) return no_memory(x);
    if (code != ATTN_OK) snprintf(mine.text, sizeof mine.text, "%s", x->error->text);
    ATTN_INIT(attn_error_t, error);
    const int sent = host->all_gather(host->ctx, &mine, all, sizeof mine, NULL, &error);
    if (sent != ATTN_OK && code == ATTN_OK) code = attn_fail(x->error, sent, "comm", "%s", error.text);
    for (int32_t r = 0; sent == ATTN_OK && code == ATTN_OK && r < host->world; r++)
        if (all[r].code != ATTN_OK)
            code = attn_fail(x->error, all[r].code, "ranks", "rank %d: %s", (int)r, all[r].text);
    free(all);
    return code;
}

/* Numbers of the seed, the same for whichever rank holds them. */
static void fill(const struct layer *x, int kind, int64_t first, int64_t count, void *to) {
    bench_fill(kind, x->problem.dtype, first + (int64_t)(x->work->seed % 1000003), count, to);
}

static void *to_device(const struct layer *x, const void *from, size_t bytes) {
    void *data = device_memory_new(x->memory, bytes);
    return data != NULL && device_memory_write(x->memory, data, from, bytes) == 0 ? data : NULL;
}

/* Which of all heads head h of this rank is. */
static int64_t whole_head(const struct layer *x, int64_t h) {
    return x->is_alone ? h : rank_work_head(x->work, x->rank, h);
}

static int open_group(struct layer *x, attn_context_t *context, const attn_device_t *device) {
    const rank_work_t *w = x->work;
    attn_problem_t p = w->problem;
    int64_t longest = 1;
    for (int32_t r = 0; r < w->num_reqs; r++)
        longest = w->seq_lens[r] > longest ? w->seq_lens[r] : longest;
    p.max_num_seqs = (uint32_t)w->num_reqs;
    p.max_num_batched_tokens = (uint32_t)x->num_tokens;
    p.max_model_len = longest;
    p.num_blocks = 0;
    p.dcp_world_size = p.dcp_rank = 0;
    if (x->is_alone) {
        p.num_heads *= (uint32_t)w->world;
        if (layer_sizes(&p).is_latent == 0 && w->problem.num_kv_heads == 0)
            p.num_kv_heads = w->problem.num_heads;
        p.cp_interleave = 0;
    } else {
        p.dcp_world_size = (uint32_t)w->world;
        p.dcp_rank = (uint32_t)x->rank;
    }
    int code = device_memory_open(device, &x->memory, x->error);
    if (code == ATTN_OK) code = attn_group_open(context, &p, device, w->backend, &x->group, NULL, x->error);
    if (code != ATTN_OK) return code;
    x->problem = *attn_group_problem(x->group);
    x->z = layer_sizes(&p);
    x->out_dtype = p.out_dtype != 0 ? p.out_dtype : p.dtype;
    x->report->block_size = x->problem.block_size;
    snprintf(x->report->backend, sizeof x->report->backend, "%s", attn_group_backend(x->group)->name);
    x->need.struct_size = sizeof x->need;
    return attn_group_space_needed(x->group, &x->need, x->error);
}

static int join_ranks(struct layer *x, const attn_device_t *device, const attn_comm_t *host) {
    attn_comm_t comm = *host;
    int code = ATTN_OK;
    if (device->type != kDLCPU) code = attn_comm_staged_init(&x->staged, host, device, &comm, x->error);
    x->timed.comm = comm;
    x->timed.memory = x->memory;
    comm.ctx = &x->timed;
    comm.all_gather = timed_all_gather;
    comm.all_to_all = timed_all_to_all;
    comm.reduce_scatter = timed_reduce_scatter;
    if (comm.wait != NULL) comm.wait = timed_wait;
    return code == ATTN_OK ? attn_group_set_comm(x->group, &comm, x->work->join, x->error) : code;
}

static int make_layer(struct layer *x) {
    ATTN_INIT(attn_layer_options_t, options);
    float *sinks = malloc((size_t)x->z.heads * sizeof *sinks);
    if (sinks == NULL) return no_memory(x);
    for (int64_t h = 0; h < x->z.heads; h++)
        sinks[h] = 2 * bench_value(BENCH_SINK, ATTN_DTYPE_FLOAT32, whole_head(x, h) + (int64_t)x->work->seed);
    void *data = to_device(x, sinks, (size_t)x->z.heads * sizeof *sinks);
    free(sinks);
    if (data == NULL) return no_memory(x);
    TENSOR_1D(&x->sinks, x->memory, data, ATTN_DTYPE_FLOAT32, x->z.heads);
    if ((x->problem.features & ATTN_F_SINK) != 0) options.sinks = &x->sinks.dl;
    if (attn_kv_has_channel_scales(x->problem.kv_cache_dtype)) options.v_scale = 4 / 127.0f;
    int code = attn_layer_create(x->group, "ranks.layers.0.attn", &options, &x->layer, x->error);
    if (code != ATTN_OK || !attn_problem_projects(&x->problem)) return code;
    const int64_t latent = x->problem.kv_lora_rank,
                  per_head = (int64_t)x->problem.qk_nope_head_dim + x->problem.v_head_dim;
    const size_t head = (size_t)(per_head * latent) * attn_dtype_size(x->problem.dtype);
    char *rows = malloc(head * (size_t)x->z.heads);
    for (int64_t h = 0; rows != NULL && h < x->z.heads; h++)
        fill(x, BENCH_WEIGHT, whole_head(x, h) * per_head * latent, per_head * latent,
             rows + head * (size_t)h);
    data = rows != NULL ? to_device(x, rows, head * (size_t)x->z.heads) : NULL;
    free(rows);
    ATTN_INIT(attn_weights_t, w);
    w.weight_space = device_memory_new(x->memory, x->need.weight_bytes);
    w.weight_space_bytes = x->need.weight_bytes;
    if (data == NULL || w.weight_space == NULL) return no_memory(x);
    TENSOR_2D(&x->weights, x->memory, data, x->problem.dtype, x->z.heads * per_head, latent);
    w.kv_b_proj = &x->weights.dl;
    return attn_layer_prepare_weights(x->layer, &w, NULL, x->error);
}

/* The rank's pages in random order, and the slots of its tokens. */
static int make_table(struct layer *x, int64_t *num_pages) {
    const rank_work_t *w = x->work;
    const int world = x->is_alone ? 1 : w->world, rank = x->is_alone ? 0 : x->rank;
    const int64_t bs = x->problem.block_size;
    const int32_t run = x->is_alone ? 1 : (int32_t)x->problem.cp_interleave;
    int64_t pages = 0;
    x->width = 1;
    for (int32_t r = 0; r < w->num_reqs; r++) {
        const int64_t keys = attn_plan_cp_local_len(w->seq_lens[r], world, rank, run),
                      n = (keys + bs - 1) / bs;
        x->report->tokens += keys;
        pages += n;
        x->width = n > x->width ? n : x->width;
    }
    const size_t entries = (size_t)(w->num_reqs * x->width);
    int32_t *order = malloc((size_t)(pages + 1) * sizeof *order);
    x->table = calloc(entries, sizeof *x->table);
    x->slots = malloc((size_t)(x->num_keys + 1) * sizeof *x->slots);
    if (order == NULL || x->table == NULL || x->slots == NULL) {
        free(order);
        return no_memory(x);
    }
    uint64_t state = x->work->seed + (uint64_t)rank;
    for (int64_t i = 0; i < pages; i++) { /* Fisher and Yates; page 0 is left out */
        const int64_t j = (int64_t)(random_u64(&state) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i + 1;
    }
    for (int32_t r = 0, at = 0; r < w->num_reqs; r++) {
        const int64_t keys = attn_plan_cp_local_len(w->seq_lens[r], world, rank, run);
        for (int64_t i = 0; i < (keys + bs - 1) / bs; i++)
            x->table[r * x->width + i] = order[at++];
    }
    free(order);
    *num_pages = pages + 1;
    void *data = to_device(x, x->table, entries * sizeof *x->table);
    if (data == NULL) return no_memory(x);
    TENSOR_2D(&x->table_t, x->memory, data, ATTN_DTYPE_INT32, w->num_reqs, x->width);
    const attn_slot_params_t params = {.struct_size = sizeof params,
                                       .block_size = (int32_t)bs,
                                       .cp_world = world,
                                       .cp_rank = rank,
                                       .cp_interleave = run,
                                       .num_blocks = *num_pages};
    return attn_plan_slot_mapping(&params, x->key_starts, w->seq_lens, w->num_reqs, x->table, x->width,
                                  x->num_keys, x->slots, x->error);
}

static int write_cache(struct layer *x, tensor_t *cache) {
    const layer_sizes_t *z = &x->z;
    const size_t element = attn_dtype_size(x->problem.dtype);
    const int64_t key = z->kv_heads * z->key, value = z->kv_heads * z->value;
    char *rows = malloc((size_t)(SLAB * (key > value ? key : value)) * element);
    void *k = device_memory_new(x->memory, (size_t)(SLAB * key) * element);
    void *v = device_memory_new(x->memory, (size_t)(SLAB * value) * element);
    void *s = device_memory_new(x->memory, SLAB * sizeof *x->slots);
    int code = rows == NULL || k == NULL || v == NULL || s == NULL ? no_memory(x) : ATTN_OK;
    for (int64_t at = 0; code == ATTN_OK && at < x->num_keys; at += SLAB) {
        const int64_t n = x->num_keys - at < SLAB ? x->num_keys - at : SLAB;
        tensor_t kt, vt, st;
        fill(x, BENCH_KEY, at * key, n * key, rows);
        int failed = device_memory_write(x->memory, k, rows, (size_t)(n * key) * element);
        fill(x, BENCH_VALUE, at * value, n * value, rows);
        failed |= device_memory_write(x->memory, v, rows, (size_t)(n * value) * element) |
                  device_memory_write(x->memory, s, x->slots + at, (size_t)n * sizeof *x->slots);
        if (z->is_latent) {
            TENSOR_2D(&kt, x->memory, k, x->problem.dtype, n, z->key);
            TENSOR_2D(&vt, x->memory, v, x->problem.dtype, n, z->value);
        } else {
            TENSOR_3D(&kt, x->memory, k, x->problem.dtype, n, z->kv_heads, z->key);
            TENSOR_3D(&vt, x->memory, v, x->problem.dtype, n, z->kv_heads, z->value);
        }
        TENSOR_1D(&st, x->memory, s, ATTN_DTYPE_INT64, n);
        ATTN_INIT(attn_kv_update_t, u);
        u.key = &kt.dl, u.value = &vt.dl, u.kv_cache = &cache->dl, u.slot_mapping = &st.dl;
        code = failed ? attn_fail(x->error, ATTN_E_DEVICE, "", "copying to the device failed")
                      : attn_layer_update_kv_cache(x->layer, &u, NULL, x->error);
        if (code == ATTN_OK && device_memory_sync(x->memory) != 0)
            code = attn_fail(x->error, ATTN_E_DEVICE, "", "the device reports a failed cache write");
    }
    free(rows);
    return code;
}

/* For one call a cache that holds NaN where nothing is written; for timing so many that none is still in the
 * last cache of a CPU when its turn comes. */
static int make_caches(struct layer *x, const attn_device_t *device) {
    int64_t pages = 0;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    int code = make_table(x, &pages);
    if (code == ATTN_OK) code = attn_group_kv_cache_shape(x->group, pages, &shape, x->error);
    if (code != ATTN_OK) return code;
    const long last = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const int64_t wanted = device->type == kDLCPU && last > 0 ? 2 * (int64_t)last : INT64_C(128) << 20,
                  copies = x->work->seconds > 0 ? wanted / shape.total_bytes + 1 : 1;
    x->copies = copies > MAX_COPIES ? MAX_COPIES : (int)copies;
    for (int i = 0; i < x->copies && code == ATTN_OK; i++) {
        void *data = device_memory_new(x->memory, (size_t)shape.total_bytes);
        if (data == NULL || device_memory_fill(x->memory, data, 0xff, (size_t)shape.total_bytes) != 0)
            return no_memory(x);
        tensor_set_cache(&x->cache[i], x->memory, data, &shape);
        code = write_cache(x, &x->cache[i]);
    }
    return code;
}

static int make_rows(struct layer *x) {
    const layer_sizes_t *z = &x->z;
    const int64_t whole = x->is_alone ? z->heads : z->heads * x->work->world;
    const size_t element = attn_dtype_size(x->problem.dtype), head = (size_t)z->query * element,
                 bytes = (size_t)(x->num_tokens * z->heads) * head,
                 out = (size_t)(x->num_tokens * z->heads * z->output) * attn_dtype_size(x->out_dtype);
    char *rows = malloc(bytes + 1);
    for (int64_t t = 0; rows != NULL && t < x->num_tokens; t++)
        for (int64_t h = 0; h < z->heads; h++)
            fill(x, BENCH_QUERY, (t * whole + whole_head(x, h)) * z->query, z->query,
                 rows + (size_t)(t * z->heads + h) * head);
    void *query = rows != NULL ? to_device(x, rows, bytes) : NULL,
         *output = device_memory_new(x->memory, out);
    free(rows);
    x->space = (attn_space_t){.struct_size = sizeof x->space,
                              .metadata = device_memory_new(x->memory, x->need.metadata_bytes),
                              .metadata_bytes = x->need.metadata_bytes,
                              .workspace = device_memory_new(x->memory, x->need.workspace_bytes),
                              .workspace_bytes = x->need.workspace_bytes,
                              .host = aligned_alloc(256, (x->need.host_bytes / 256 + 1) * 256),
                              .host_bytes = x->need.host_bytes};
    if (query == NULL || output == NULL || x->space.metadata == NULL || x->space.workspace == NULL ||
        x->space.host == NULL || device_memory_fill(x->memory, output, 0xff, out) != 0)
        return no_memory(x);
    TENSOR_3D(&x->query, x->memory, query, x->problem.dtype, x->num_tokens, z->heads, z->query);
    TENSOR_3D(&x->output, x->memory, output, x->out_dtype, x->num_tokens, z->heads, z->output);
    return ATTN_OK;
}

static int build(struct layer *x) {
    ATTN_INIT(attn_batch_t, b);
    b.num_reqs = x->work->num_reqs;
    b.num_actual_tokens = (int32_t)x->num_tokens;
    b.query_start_loc_host = x->starts;
    b.seq_lens_host = x->work->seq_lens;
    b.block_table = &x->table_t.dl;
    if (x->problem.mask == ATTN_MASK_PER_REQUEST) b.causal_host = x->causal;
    return attn_group_build_metadata(x->group, &b, &x->space, NULL, x->error);
}

/* One call; seconds of it and of its exchanges. */
static int call(struct layer *x, double *forward, double *exchange) {
    ATTN_INIT(attn_forward_t, a);
    a.query = &x->query.dl;
    a.output = &x->output.dl;
    a.kv_cache = &x->cache[x->next++ % x->copies].dl;
    x->timed.seconds = 0;
    x->timed.bytes = 0;
    x->timed.calls = 0;
    const double began = tool_seconds();
    int code = attn_layer_forward(x->layer, &a, &x->space, NULL, x->error);
    if (code == ATTN_OK && device_memory_sync(x->memory) != 0)
        code = attn_fail(x->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    *forward = tool_seconds() - began;
    *exchange = x->timed.seconds;
    return code;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 != 0 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* As many calls on every rank: the slowest rank's second one says how many. */
static int measure(struct layer *x, const attn_comm_t *host) {
    double forward[MAX_REPETITIONS], exchange[MAX_REPETITIONS], slowest;
    int n = 1, code = call(x, &forward[0], &exchange[0]);
    if (code == ATTN_OK && x->work->seconds > 0) {
        code = call(x, &forward[0], &exchange[0]);
        slowest = forward[0];
        double *all = host != NULL ? malloc((size_t)host->world * sizeof *all) : NULL;
        if (host != NULL && all == NULL) return no_memory(x);
        if (host != NULL && code == ATTN_OK)
            code = host->all_gather(host->ctx, forward, all, sizeof *all, NULL, x->error);
        for (int32_t r = 0; host != NULL && code == ATTN_OK && r < host->world; r++)
            slowest = all[r] > slowest ? all[r] : slowest;
        free(all);
        const double wanted = x->work->seconds / (slowest > 1e-9 ? slowest : 1e-9);
        n = wanted > MAX_REPETITIONS     ? MAX_REPETITIONS
            : wanted < LEAST_REPETITIONS ? LEAST_REPETITIONS
                                         : (int)wanted;
        for (int i = 0; i < n && code == ATTN_OK; i++)
            code = call(x, &forward[i], &exchange[i]);
    }
    if (code != ATTN_OK) return code;
    x->report->repetitions = n;
    x->report->forward = median(forward, n);
    x->report->exchange = median(exchange, n);
    x->report->exchanges = x->timed.calls;
    x->report->sent = x->timed.bytes;
    return ATTN_OK;
}

static int read_output(const struct layer *x, float *output) {
    const size_t n = (size_t)(x->num_tokens * x->z.heads * x->z.output), size = attn_dtype_size(x->out_dtype);
    void *data = malloc(n * size + 1);
    if (data == NULL || device_memory_read(x->memory, data, attn_data(&x->output.dl), n * size) != 0) {
        free(data);
        return no_memory(x);
    }
    for (size_t i = 0; i < n; i++)
        output[i] = tensor_load(data, x->out_dtype, i);
    free(data);
    return ATTN_OK;
}

static int make_lists(struct layer *x) {
    const rank_work_t *w = x->work;
    x->starts = calloc((size_t)w->num_reqs + 1, sizeof *x->starts);
    x->key_starts = calloc((size_t)w->num_reqs + 1, sizeof *x->key_starts);
    x->causal = calloc((size_t)w->num_reqs + 1, 1);
    if (x->starts == NULL || x->key_starts == NULL || x->causal == NULL) return no_memory(x);
    for (int32_t r = 0; r < w->num_reqs; r++) {
        x->num_tokens += w->query_lens[r];
        x->num_keys += w->seq_lens[r];
        x->starts[r + 1] = (int32_t)x->num_tokens;
        x->key_starts[r + 1] = (int32_t)x->num_keys;
        x->causal[r] = r % 2 == 0;
    }
    if (x->num_keys <= INT32_MAX / 2 && x->num_tokens <= INT32_MAX / 2) return ATTN_OK;
    return attn_fail(x->error, ATTN_E_INVALID, "seq_lens", "%lld keys together; at most %d are run",
                     (long long)x->num_keys, INT32_MAX / 2);
}

int rank_layer_run(attn_context_t *context, const attn_device_t *device, const rank_work_t *work, int rank,
                   const attn_comm_t *host, rank_report_t *report, float *output) {
    ATTN_INIT(attn_error_t, error);
    struct layer *x = calloc(1, sizeof *x);
    memset(report, 0, sizeof *report);
    if (x == NULL) return report->code = ATTN_E_NO_MEMORY;
    x->work = work;
    x->rank = rank;
    x->is_alone = host == NULL;
    x->error = &error;
    x->report = report;
    int code = make_lists(x);
    if (code == ATTN_OK) code = open_group(x, context, device);
    code = agree(x, host, code); /* what follows is collective */
    if (code == ATTN_OK && host != NULL) code = join_ranks(x, device, host);
    if (code == ATTN_OK) code = make_layer(x);
    if (code == ATTN_OK) code = make_caches(x, device);
    if (code == ATTN_OK) code = make_rows(x);
    code = agree(x, host, code);
    if (code == ATTN_OK) code = build(x);
    if (code == ATTN_OK) code = measure(x, host);
    if (code == ATTN_OK) code = read_output(x, output);
    report->code = code;
    snprintf(report->text, sizeof report->text, "%s", error.text);
    attn_layer_destroy(x->layer);
    attn_group_close(x->group);
    if (x->memory != NULL) device_memory_close(x->memory);
    attn_comm_staged_end(&x->staged);
    free(x->space.host), free(x->starts), free(x->key_starts), free(x->causal), free(x->table),
        free(x->slots);
    free(x);
    return code;
}
