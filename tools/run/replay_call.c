/* SPDX-License-Identifier: Apache-2.0 */
/* replay_call.c: opens the recorded problem, puts the recorded pages into a cache as the backend lays it out,
 * plans the recorded batch and calls forward once. Slots are all negative: whatever the call was to write is
 * in the pages. */
#include "run/replay_call.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

#include "tensor/tensor.h"
#include "base/tool.h"

/* Everything of one run. The tensors point into themselves, so that this is never copied. */
typedef struct replay {
    const replay_call_t *call;
    replay_result_t *result;
    attn_error_t *error;
    device_memory_t *memory;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    int32_t *query_lens, *causal;
    int64_t *slots;
    void *d_output, *d_lse;
    tensor_t starts, lens, encoder_lens, table, rswa, ranges, causal_t, slots_t;
    tensor_t query, key, value, kv_cache, v_cache, q_scale, k_scale, v_scale, output_scale, sinks, slopes,
        rel_bias, qq_bias, topk_indices, kv_b_proj, kv_b_proj_scale, output, lse;
} replay_t;

static int out_of_memory(const replay_t *r) {
    return attn_fail(r->error, ATTN_E_NO_MEMORY, "", "out of memory: cannot replay call %d", r->call->number);
}

/* The data on the device under the tensor; NULL without memory. */
static const DLTensor *upload(replay_t *r, tensor_t *t, const void *data, uint32_t dtype, uint32_t ndim,
                              const int64_t *sizes) {
    size_t bytes = attn_dtype_size(dtype);
    for (uint32_t i = 0; i < ndim; i++)
        bytes *= (size_t)sizes[i];
    void *copy = device_memory_new(r->memory, bytes);
    if (copy == NULL || device_memory_write(r->memory, copy, data, bytes) != 0) return NULL;
    tensor_set(t, r->memory, copy, dtype, ndim, sizes);
    return &t->dl;
}

/* A tensor of the file if there is one. */
static int upload_file(replay_t *r, tensor_t *t, const st_tensor_t *f, const DLTensor **to) {
    if (f == NULL) return ATTN_OK;
    *to = upload(r, t, f->data, f->dtype, f->ndim, f->shape);
    return *to != NULL ? ATTN_OK : out_of_memory(r);
}

static int upload_list(replay_t *r, tensor_t *t, const void *data, uint32_t dtype, uint32_t ndim,
                       const int64_t *sizes, const DLTensor **to) {
    if (data == NULL) return ATTN_OK;
    *to = upload(r, t, data, dtype, ndim, sizes);
    return *to != NULL ? ATTN_OK : out_of_memory(r);
}

/* -------------------------------------------------------------------- cache */

/* Dense elements to where the strides (in bytes) want them. */
static const unsigned char *scatter(const st_tensor_t *f, uint32_t dim, const int64_t *byte_strides,
                                    size_t size, const unsigned char *from, unsigned char *to) {
    for (int64_t i = 0; i < f->shape[dim]; i++, to += byte_strides[dim]) {
        if (dim + 1 < f->ndim) {
            from = scatter(f, dim + 1, byte_strides, size, from, to);
        } else {
            memcpy(to, from, size);
            from += size;
        }
    }
    return from;
}

/* Pages can be taken over if both backends place the same things in the same places of a row. Every extent is
 * compared: the file's say how much is copied, the group's how much room there is. */
static int same_layout(const replay_call_t *c, const attn_kv_cache_shape_t *s) {
    const st_tensor_t *f = c->kv_cache;
    int same = s->ndim == f->ndim && c->num_axes == (int)s->ndim && s->k_offset == c->k_offset &&
               s->v_offset == c->v_offset && s->k_scale_offset == c->k_scale_offset &&
               s->v_scale_offset == c->v_scale_offset && s->dtype.lanes == 1 &&
               s->dtype.bits == 8 * attn_dtype_size(f->dtype);
    for (uint32_t i = 0; same && i < s->ndim; i++)
        same = s->axes[i] == c->axes[i] && (s->shape[i] == f->shape[i] || f->bytes == 0);
    return same;
}

static int make_cache(replay_t *r) {
    const replay_call_t *c = r->call;
    int64_t blocks = c->num_blocks > 0 ? c->num_blocks : 1;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    int code = attn_group_kv_cache_shape(r->group, blocks, &shape, r->error);
    if (code != ATTN_OK) return code;
    if (c->kv_cache != NULL && !same_layout(c, &shape))
        return attn_fail(
            r->error, ATTN_E_UNSUPPORTED, "kv_cache",
            "%s lays out a cache row differently from %s, which was recorded; its pages cannot be "
            "replayed here",
            attn_group_backend(r->group)->name, c->backend);
    unsigned char *staging = malloc((size_t)shape.total_bytes + 1);
    void *cache = device_memory_new(r->memory, (size_t)shape.total_bytes);
    if (staging != NULL) memset(staging, 0xff, (size_t)shape.total_bytes);
    if (staging != NULL && c->kv_cache != NULL && c->kv_cache->bytes > 0)
        scatter(c->kv_cache, 0, shape.byte_strides, shape.dtype.bits / 8u, c->kv_cache->data, staging);
    int failed = staging == NULL || cache == NULL ||
                 device_memory_write(r->memory, cache, staging, (size_t)shape.total_bytes) != 0;
    free(staging);
    if (failed) return out_of_memory(r);
    tensor_set_cache(&r->kv_cache, r->memory, cache, &shape);
    return ATTN_OK;
}

/* ------------------------------------------------------------------ opening */

static int open_layer(replay_t *r, attn_context_t *context, const char *backend,
                      const attn_device_t *device) {
    const replay_call_t *c = r->call;
    attn_problem_t problem = c->problem;
    if (attn_role_has_cache(problem.role)) problem.num_blocks = c->num_blocks > 0 ? c->num_blocks : 1;
    problem.kv_layout = 0; /* pages are placed as the backend wants them */
    int code =
        attn_group_open(context, &problem, device, backend, &r->group, &r->result->selection, r->error);
    if (code != ATTN_OK) return code;
    r->result->backend = attn_group_backend(r->group)->name;
    ATTN_INIT(attn_layer_options_t, options);
    code = upload_file(r, &r->sinks, c->sinks, &options.sinks);
    if (code == ATTN_OK) code = upload_file(r, &r->slopes, c->slopes, &options.alibi_slopes);
    if (code == ATTN_OK) code = upload_file(r, &r->rel_bias, c->rel_bias, &options.rel_bias);
    if (code != ATTN_OK) return code;
    return attn_layer_create(r->group, "replay.0.attn", &options, &r->layer, r->error);
}

static int prepare_weights(replay_t *r, uint64_t bytes) {
    const replay_call_t *c = r->call;
    ATTN_INIT(attn_weights_t, w);
    if (c->kv_b_proj == NULL) return ATTN_OK;
    int code = upload_file(r, &r->kv_b_proj, c->kv_b_proj, &w.kv_b_proj);
    if (code == ATTN_OK) code = upload_file(r, &r->kv_b_proj_scale, c->kv_b_proj_scale, &w.kv_b_proj_scale);
    if (code != ATTN_OK) return code;
    w.weight_space = device_memory_new(r->memory, (size_t)bytes);
    w.weight_space_bytes = bytes;
    if (w.weight_space == NULL) return out_of_memory(r);
    return attn_layer_prepare_weights(r->layer, &w, NULL, r->error);
}

static int make_space(replay_t *r) {
    ATTN_INIT(attn_space_needed_t, needed);
    int code = attn_group_space_needed(r->group, &needed, r->error);
    if (code == ATTN_OK) code = prepare_weights(r, needed.weight_bytes);
    if (code != ATTN_OK) return code;
    r->space.struct_size = sizeof r->space;
    r->space.metadata_bytes = needed.metadata_bytes;
    r->space.workspace_bytes = needed.workspace_bytes;
    r->space.host_bytes = needed.host_bytes;
    r->space.metadata = device_memory_new(r->memory, (size_t)needed.metadata_bytes);
    r->space.workspace = device_memory_new(r->memory, (size_t)needed.workspace_bytes);
    r->space.host = aligned_alloc(256, (size_t)(needed.host_bytes / 256 + 1) * 256);
    return r->space.metadata != NULL && r->space.workspace != NULL && r->space.host != NULL
               ? ATTN_OK
               : out_of_memory(r);
}

/* -------------------------------------------------------------------- batch */

static int plan(replay_t *r) {
    const replay_call_t *c = r->call;
    int64_t n = c->num_reqs, tokens = c->num_tokens;
    int is_cross = c->problem.role == ATTN_ROLE_ENCODER_DECODER;
    const int64_t reqs[1] = {n}, starts[1] = {n + 1}, table[2] = {n, c->table_columns},
                  ranges[3] = {n, c->num_mm_ranges, 2}, slots[1] = {tokens};
    ATTN_INIT(attn_batch_t, b);
    b.flags = c->flags;
    b.num_reqs = c->num_reqs;
    b.num_actual_tokens = c->num_tokens;
    b.common_prefix_len = c->common_prefix_len;
    b.query_start_loc_host = c->starts;
    b.seq_lens_host = c->lens;
    b.causal_host = c->causal;
    b.key_start_loc_host = c->key_starts;
    b.rswa_prefix_lens_host = c->rswa;
    b.mm_prefix_ranges_host = c->ranges;
    b.num_mm_ranges = c->num_mm_ranges;
    b.block_table_host = c->table;
    b.block_table_host_stride = c->table_columns;
    r->query_lens = calloc((size_t)n + 1, sizeof *r->query_lens);
    r->causal = calloc((size_t)n + 1, sizeof *r->causal);
    r->slots = calloc((size_t)tokens + 1, sizeof *r->slots);
    if (r->query_lens == NULL || r->causal == NULL || r->slots == NULL) return out_of_memory(r);
    for (int64_t i = 0; i < n; i++) {
        r->query_lens[i] = (int32_t)((int64_t)c->starts[i + 1] - c->starts[i]);
        r->causal[i] = c->causal != NULL ? c->causal[i] : 0;
    }
    for (int64_t i = 0; i < tokens; i++)
        r->slots[i] = -1;
    if (is_cross) { /* what was recorded are the lengths that the backend got: the encoder's */
        b.seq_lens_host = r->query_lens;
        b.encoder_seq_lens_host = c->lens;
    }
    int code = upload_list(r, &r->starts, c->starts, ATTN_DTYPE_INT32, 1, starts, &b.query_start_loc);
    if (code == ATTN_OK)
        code = upload_list(r, &r->lens, b.seq_lens_host, ATTN_DTYPE_INT32, 1, reqs, &b.seq_lens);
    if (code == ATTN_OK)
        code = upload_list(r, &r->encoder_lens, b.encoder_seq_lens_host, ATTN_DTYPE_INT32, 1, reqs,
                           &b.encoder_seq_lens);
    if (code == ATTN_OK)
        code = upload_list(r, &r->table, c->table, ATTN_DTYPE_INT32, 2, table, &b.block_table);
    if (code == ATTN_OK)
        code = upload_list(r, &r->rswa, c->rswa, ATTN_DTYPE_INT32, 1, reqs, &b.rswa_prefix_lens);
    if (code == ATTN_OK)
        code = upload_list(r, &r->ranges, c->ranges, ATTN_DTYPE_INT32, 3, ranges, &b.mm_prefix_ranges);
    if (code == ATTN_OK && c->causal != NULL)
        code = upload_list(r, &r->causal_t, r->causal, ATTN_DTYPE_INT32, 1, reqs, &b.causal);
    if (code == ATTN_OK && attn_role_has_cache(c->problem.role) && !is_cross)
        code = upload_list(r, &r->slots_t, r->slots, ATTN_DTYPE_INT64, 1, slots, &b.slot_mapping);
    if (code == ATTN_OK) code = attn_group_build_metadata(r->group, &b, &r->space, NULL, r->error);
    if (code == ATTN_OK)
        r->result->backend = attn_group_phase_backend(r->group, attn_group_phase(r->group, &b))->name;
    return code;
}

/* --------------------------------------------------------------------- call */

static int forward(replay_t *r) {
    const replay_call_t *c = r->call;
    const attn_problem_t *p = &c->problem;
    int64_t tokens = c->num_tokens;
    const int64_t out[3] = {tokens, p->num_heads, attn_output_size(p)}, lse[2] = {p->num_heads, tokens};
    r->result->output_count = (size_t)(out[0] * out[1] * out[2]);
    r->result->lse_count = (p->features & ATTN_F_LSE) != 0 ? (size_t)(lse[0] * lse[1]) : 0;
    r->d_output = device_memory_new(r->memory, r->result->output_count * attn_dtype_size(p->out_dtype));
    r->d_lse = device_memory_new(r->memory, r->result->lse_count * sizeof(float));
    if (r->d_output == NULL || r->d_lse == NULL) return out_of_memory(r);
    tensor_set(&r->output, r->memory, r->d_output, p->out_dtype, 3, out);
    tensor_set(&r->lse, r->memory, r->d_lse, ATTN_DTYPE_FLOAT32, 2, lse);
    ATTN_INIT(attn_forward_t, a);
    a.output = &r->output.dl;
    if (r->result->lse_count > 0) a.lse = &r->lse.dl;
    const struct {
        tensor_t *t;
        const st_tensor_t *from;
        const DLTensor **to;
    } inputs[] = {{&r->query, c->query, &a.query},
                  {&r->key, c->key, &a.key},
                  {&r->value, c->value, &a.value},
                  {&r->q_scale, c->q_scale, &a.scales.q},
                  {&r->k_scale, c->k_scale, &a.scales.k},
                  {&r->v_scale, c->v_scale, &a.scales.v},
                  {&r->output_scale, c->output_scale, &a.output_scale},
                  {&r->qq_bias, c->qq_bias, &a.qq_bias},
                  {&r->topk_indices, c->topk_indices, &a.topk_indices}};
    int code = ATTN_OK;
    for (size_t i = 0; code == ATTN_OK && i < sizeof inputs / sizeof inputs[0]; i++)
        code = upload_file(r, inputs[i].t, inputs[i].from, inputs[i].to);
    if (code == ATTN_OK && c->v_cache != NULL) { /* two tensors have no layout of the backend's own */
        code = upload_file(r, &r->kv_cache, c->kv_cache, &a.kv_cache);
        if (code == ATTN_OK) code = upload_file(r, &r->v_cache, c->v_cache, &a.v_cache);
    } else if (code == ATTN_OK && attn_role_has_cache(p->role) &&
               (c->kv_cache != NULL || (p->features & ATTN_F_CONTIGUOUS_KV) == 0)) {
        code = make_cache(r);
        a.kv_cache = &r->kv_cache.dl;
    }
    if (code != ATTN_OK) return code;
    double started = tool_seconds();
    code = attn_layer_forward(r->layer, &a, &r->space, NULL, r->error);
    if (code == ATTN_OK && device_memory_sync(r->memory) != 0)
        code = attn_fail(r->error, ATTN_E_DEVICE, "", "the device reports a failed kernel");
    r->result->seconds = tool_seconds() - started;
    return code;
}

static float from_fp8(unsigned char byte, uint32_t dtype) {
    return (float)(dtype == ATTN_DTYPE_FP8_E5M2 ? attn_from_e5m2(byte) : attn_from_e4m3(byte));
}

float *replay_floats(const void *data, uint32_t dtype, size_t count) {
    float *floats = calloc(count + 1, sizeof *floats);
    int is_fp8 = attn_dtype_size(dtype) == 1;
    for (size_t i = 0; floats != NULL && i < count; i++)
        floats[i] = is_fp8 ? from_fp8(((const unsigned char *)data)[i], dtype) : tensor_load(data, dtype, i);
    return floats;
}

static int fetch(replay_t *r) {
    replay_result_t *to = r->result;
    uint32_t dtype = r->call->problem.out_dtype;
    size_t bytes = to->output_count * attn_dtype_size(dtype);
    unsigned char *output = malloc(bytes + 1);
    float *lse = to->lse_count > 0 ? malloc(to->lse_count * sizeof *lse) : NULL;
    int failed =
        output == NULL || (to->lse_count > 0 && lse == NULL) ||
        device_memory_read(r->memory, output, r->d_output, bytes) != 0 ||
        (lse != NULL && device_memory_read(r->memory, lse, r->d_lse, to->lse_count * sizeof *lse) != 0);
    if (!failed) to->output = replay_floats(output, dtype, to->output_count);
    to->lse = lse;
    free(output);
    return failed || to->output == NULL ? out_of_memory(r) : ATTN_OK;
}

int replay_call(attn_context_t *context, const replay_call_t *call, const char *backend,
                const attn_device_t *device, replay_result_t *result, attn_error_t *error) {
    memset(result, 0, sizeof *result);
    replay_t *r = calloc(1, sizeof *r);
    if (r == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory: cannot replay call %d", call->number);
    r->call = call;
    r->result = result;
    r->error = error;
    int code = device_memory_open(device, &r->memory, error);
    if (code == ATTN_OK) code = open_layer(r, context, backend, device);
    if (code == ATTN_OK) code = make_space(r);
    if (code == ATTN_OK) code = plan(r);
    if (code == ATTN_OK) code = forward(r);
    if (code == ATTN_OK) code = fetch(r);
    if (r->layer != NULL) attn_layer_destroy(r->layer);
    attn_group_close(r->group);
    free(r->query_lens);
    free(r->causal);
    free(r->slots);
    free(r->space.host);
    device_memory_close(r->memory);
    free(r);
    return code;
}

void replay_result_free(replay_result_t *result) {
    attn_selection_free(result->selection);
    free(result->output);
    free(result->lse);
    memset(result, 0, sizeof *result);
}
