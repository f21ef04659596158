/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c: all that this engine has to do with libattn. The layers come from config.json (attn_model.h),
 * one group for each kind of layer, and all groups count pages of BLOCK tokens, so that one table of pages
 * serves every layer. Memory of the device is had through libattn's table of the device's kind, so that the
 * same lines serve a CPU, where host and device addresses are the same, and a GPU, where this example copies.
 */
#include <attn/attn.h>
#include <attn/attn_model.h>
#include <attn/draft/attn_device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

enum { MAX_GROUPS = 4 };

typedef struct group { /* layers of one kind */
    attn_group_t *group;
    attn_space_t space;
    attn_kv_cache_shape_t shape;
    int64_t strides[ATTN_CACHE_MAX_DIMS];
} group_t;

typedef struct layer {
    attn_layer_t *layer;
    group_t *group;
    DLTensor cache;
} layer_t;

/* A dense tensor, and its copy on the device. */
typedef struct tensor {
    DLTensor dl;
    int64_t shape[3], strides[3];
} tensor_t;

struct attention {
    attn_context_t *context;
    attn_device_t device;
    const attn_device_kind_t *kind;
    const config_t *config;
    const limits_t *limits;
    group_t groups[MAX_GROUPS];
    uint32_t num_groups;
    char backends[128]; /* of the first group, which may have one for decode and one for prefill */
    layer_t *layers;
    int64_t *slots;
    int num_tokens;
    tensor_t t_starts, t_lens, t_table, t_slots, t_query, t_key, t_value, t_output;
};

static attn_error_t error = {.struct_size = sizeof error};

static void must(int code, const char *what) {
    if (code != ATTN_OK) die("%s: %s: %s", what, attn_error_name(code), error.text);
}

static void *device_room(attention_t *a, uint64_t bytes) {
    void *address = NULL;
    must(a->kind->alloc(a->device.id, bytes != 0 ? bytes : 1, &address, &error), "device memory");
    return address;
}

/* Describes a tensor of at most `bytes` bytes; on a device it has memory there for as many. */
static void tensor_open(attention_t *a, tensor_t *t, DLDataTypeCode code, int bits, int ndim,
                        uint64_t bytes) {
    t->dl = (DLTensor){.device = {(DLDeviceType)a->device.type, a->device.id},
                       .ndim = ndim,
                       .dtype = {(uint8_t)code, (uint8_t)bits, 1},
                       .shape = t->shape,
                       .strides = t->strides};
    if (a->device.type != kDLCPU) t->dl.data = device_room(a, bytes);
}

static void tensor_close(attention_t *a, tensor_t *t) {
    if (a->device.type != kDLCPU) a->kind->free(a->device.id, t->dl.data);
}

/* Gives a tensor its shape of this step, and the host's values unless they are an output. */
static const DLTensor *tensor_set(attention_t *a, tensor_t *t, void *host, int is_input, int64_t n0,
                                  int64_t n1, int64_t n2) {
    t->shape[0] = n0, t->shape[1] = n1, t->shape[2] = n2;
    t->strides[0] = n1 * n2, t->strides[1] = n2, t->strides[2] = 1;
    const size_t bytes = (size_t)(n0 * n1 * n2) * (t->dl.dtype.bits / 8);
    if (a->device.type == kDLCPU)
        t->dl.data = host;
    else if (is_input)
        must(a->kind->copy_to(a->device.id, t->dl.data, host, bytes, NULL, &error), "copy");
    return &t->dl;
}

static void open_group(attention_t *a, group_t *g, const attn_problem_t *problem, const char *backend) {
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    g->shape.struct_size = sizeof g->shape;
    must(attn_group_open(a->context, problem, &a->device, backend, &g->group, NULL, &error), "selection");
    must(attn_group_kv_cache_shape(g->group, a->limits->num_pages, &g->shape, &error), "cache shape");
    must(attn_group_space_needed(g->group, &needed, &error), "space");
    g->space = (attn_space_t){.struct_size = sizeof g->space,
                              .metadata = device_room(a, needed.metadata_bytes),
                              .metadata_bytes = needed.metadata_bytes,
                              .workspace = device_room(a, needed.workspace_bytes),
                              .workspace_bytes = needed.workspace_bytes,
                              .host = room(needed.host_bytes),
                              .host_bytes = needed.host_bytes};
    for (uint32_t i = 0; i < g->shape.ndim; i++)
        g->strides[i] = g->shape.byte_strides[i] / (g->shape.dtype.bits / 8);
}

/* A group for every kind of layer of config.json, and a layer with its cache for every number. */
static void open_layers(attention_t *a, const char *folder, const char *backend) {
    attn_model_t *model;
    attn_model_kind_t kind = {.struct_size = sizeof kind};
    attn_problem_t problem = {.struct_size = sizeof problem};
    must(attn_model_load(folder, &model, &error), "config.json");
    if (attn_model_not_understood(model, 0) != NULL)
        die("config.json: %s concerns attention and was not understood", attn_model_not_understood(model, 0));
    while (attn_model_kind(model, a->num_groups, &kind, &problem, NULL) == ATTN_OK) {
        if (kind.unserved[0] != '\0' || problem.role != ATTN_ROLE_DECODER || a->num_groups == MAX_GROUPS)
            die("config.json: %s: %s", kind.name,
                kind.unserved[0] != '\0' ? kind.unserved : "this example serves layers of decoders");
        problem.dtype = ATTN_DTYPE_FLOAT32; /* what llama.c computes in */
        problem.kv_cache_dtype = 0;
        problem.block_size = BLOCK;
        problem.max_num_seqs = (uint32_t)a->limits->max_reqs;
        problem.max_num_batched_tokens = (uint32_t)a->limits->max_tokens;
        problem.max_model_len = a->limits->max_len;
        problem.num_blocks = a->limits->num_pages;
        group_t *g = &a->groups[a->num_groups++];
        open_group(a, g, &problem, backend);
        for (uint32_t i = 0; i < kind.num_layers; i++) {
            char name[64];
            if (kind.layers[i] >= a->config->layers) die("config.json: num_hidden_layers is ambiguous");
            layer_t *layer = &a->layers[kind.layers[i]];
            snprintf(name, sizeof name, "model.layers.%u.self_attn.attn", kind.layers[i]);
            must(attn_layer_create(g->group, name, NULL, &layer->layer, &error), name);
            layer->group = g;
            layer->cache = (DLTensor){.data = device_room(a, (uint64_t)g->shape.total_bytes),
                                      .device = {(DLDeviceType)a->device.type, a->device.id},
                                      .ndim = (int32_t)g->shape.ndim,
                                      .dtype = g->shape.dtype,
                                      .shape = g->shape.shape,
                                      .strides = g->strides};
        }
    }
    attn_model_free(model);
    for (int64_t i = 0; i < a->config->layers; i++)
        if (a->layers[i].layer == NULL)
            die("config.json: layer %lld is not an attention layer", (long long)i);
}

attention_t *attention_open(const char *folder, const config_t *config, const limits_t *limits,
                            const char *device, const char *backend) {
    attention_t *a = room(sizeof *a);
    a->config = config, a->limits = limits;
    a->device.struct_size = sizeof a->device;
    must(attn_context_create(NULL, &a->context, &error), "libattn");
    must(attn_device_parse(device, &a->device, &error), "device");
    a->kind = attn_device_kind(a->device.type);
    if (a->device.id < 0 || a->kind == NULL) die("device %s is not present", device);
    a->layers = room((uint64_t)config->layers * sizeof *a->layers);
    open_layers(a, folder, backend);
    const char *decode = attn_group_phase_backend(a->groups[0].group, ATTN_PHASE_DECODE)->name,
               *prefill = attn_group_phase_backend(a->groups[0].group, ATTN_PHASE_PREFILL)->name;
    snprintf(a->backends, sizeof a->backends, strcmp(decode, prefill) == 0 ? "%s" : "%s, prefill %s", decode,
             prefill);
    const uint64_t tokens = (uint64_t)limits->max_tokens, reqs = (uint64_t)limits->max_reqs;
    const uint64_t row = (uint64_t)config->head_size * sizeof(float);
    a->slots = room(tokens * sizeof *a->slots);
    tensor_open(a, &a->t_starts, kDLInt, 32, 1, (reqs + 1) * 4);
    tensor_open(a, &a->t_lens, kDLInt, 32, 1, reqs * 4);
    tensor_open(a, &a->t_table, kDLInt, 32, 2, reqs * (uint64_t)(limits->max_len / BLOCK + 1) * 4);
    tensor_open(a, &a->t_slots, kDLInt, 64, 1, tokens * 8);
    tensor_open(a, &a->t_query, kDLFloat, 32, 3, tokens * (uint64_t)config->heads * row);
    tensor_open(a, &a->t_key, kDLFloat, 32, 3, tokens * (uint64_t)config->kv_heads * row);
    tensor_open(a, &a->t_value, kDLFloat, 32, 3, tokens * (uint64_t)config->kv_heads * row);
    tensor_open(a, &a->t_output, kDLFloat, 32, 3, tokens * (uint64_t)config->heads * row);
    return a;
}

const char *attention_backend(const attention_t *a) {
    return a->backends;
}

void attention_begin(attention_t *a, const step_t *s) {
    attn_slot_params_t params = {
        .struct_size = sizeof params, .block_size = BLOCK, .num_blocks = a->limits->num_pages};
    must(attn_plan_slot_mapping(&params, s->starts, s->lens, s->num_reqs, s->table, s->table_width,
                                s->num_tokens, a->slots, &error),
         "slots");
    attn_batch_t batch = {.struct_size = sizeof batch,
                          .num_reqs = s->num_reqs,
                          .num_actual_tokens = s->num_tokens,
                          .query_start_loc_host = s->starts,
                          .seq_lens_host = s->lens,
                          .block_table_host = s->table,
                          .block_table_host_stride = s->table_width};
    batch.query_start_loc = tensor_set(a, &a->t_starts, s->starts, 1, s->num_reqs + 1, 1, 1);
    batch.seq_lens = tensor_set(a, &a->t_lens, s->lens, 1, s->num_reqs, 1, 1);
    batch.block_table = tensor_set(a, &a->t_table, s->table, 1, s->num_reqs, s->table_width, 1);
    batch.slot_mapping = tensor_set(a, &a->t_slots, a->slots, 1, s->num_tokens, 1, 1);
    for (uint32_t i = 0; i < a->num_groups; i++)
        must(attn_group_build_metadata(a->groups[i].group, &batch, &a->groups[i].space, NULL, &error),
             "metadata");
    a->num_tokens = s->num_tokens;
}

void attention_layer(attention_t *a, int64_t number, float *query, float *key, float *value, float *output) {
    layer_t *layer = &a->layers[number];
    const config_t *c = a->config;
    const int64_t rows = a->num_tokens;
    attn_kv_update_t update = {
        .struct_size = sizeof update, .kv_cache = &layer->cache, .slot_mapping = &a->t_slots.dl};
    update.key = tensor_set(a, &a->t_key, key, 1, rows, c->kv_heads, c->head_size);
    update.value = tensor_set(a, &a->t_value, value, 1, rows, c->kv_heads, c->head_size);
    must(attn_layer_update_kv_cache(layer->layer, &update, NULL, &error), "cache update");
    attn_forward_t forward = {
        .struct_size = sizeof forward, .key = update.key, .value = update.value, .kv_cache = &layer->cache};
    forward.query = tensor_set(a, &a->t_query, query, 1, rows, c->heads, c->head_size);
    forward.output = tensor_set(a, &a->t_output, output, 0, rows, c->heads, c->head_size);
    must(attn_layer_forward(layer->layer, &forward, &layer->group->space, NULL, &error), "attention");
    if (a->device.type != kDLCPU) /* waits for the call */
        must(a->kind->copy_from(a->device.id, output, a->t_output.dl.data,
                                (size_t)(rows * c->heads * c->head_size) * sizeof *output, NULL, &error),
             "copy");
}

void attention_close(attention_t *a) {
    for (int64_t i = 0; i < a->config->layers; i++) {
        attn_layer_destroy(a->layers[i].layer);
        a->kind->free(a->device.id, a->layers[i].cache.data);
    }
    for (uint32_t i = 0; i < a->num_groups; i++) {
        attn_group_close(a->groups[i].group);
        a->kind->free(a->device.id, a->groups[i].space.metadata);
        a->kind->free(a->device.id, a->groups[i].space.workspace);
        free(a->groups[i].space.host);
    }
    tensor_t *const tensors[] = {&a->t_starts, &a->t_lens, &a->t_table, &a->t_slots,
                                 &a->t_query,  &a->t_key,  &a->t_value, &a->t_output};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_close(a, tensors[i]);
    attn_context_destroy(a->context);
    free(a->layers);
    free(a->slots);
    free(a);
}
