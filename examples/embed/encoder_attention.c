/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encoder_attention.c: all that this program has to do with libattn. An encoder has no cache: one group
 * for its layers, metadata once per batch from where each sentence starts and how long it is, and one
 * call a layer.
 */
#include <attn/attn.h>
#include <attn/attn_model.h>
#include <stdio.h>
#include <stdlib.h>

#include "embed.h"

typedef struct tensor { /* dense, on the CPU */
    DLTensor dl;
    int64_t shape[3], strides[3];
} tensor_t;

struct attention {
    attn_context_t *context;
    attn_group_t *group;
    attn_layer_t **layers;
    attn_space_t space;
    const sizes_t *sizes;
    int num_tokens;
    tensor_t starts, lens, query, key, value, output;
};

static attn_error_t error = {.struct_size = sizeof error};

static void must(int code, const char *what) {
    if (code != ATTN_OK) die("%s: %s: %s", what, attn_error_name(code), error.text);
}

static const DLTensor *dense(tensor_t *t, void *data, DLDataTypeCode code, int ndim, int64_t n0, int64_t n1,
                             int64_t n2) {
    *t = (tensor_t){.shape = {n0, n1, n2}, .strides = {n1 * n2, n2, 1}};
    t->dl = (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {(uint8_t)code, 32, 1}};
    t->dl.shape = t->shape;
    t->dl.strides = t->strides;
    return &t->dl;
}

static void *aligned(uint64_t bytes) {
    void *p = aligned_alloc(256, (bytes + 256) / 256 * 256); /* alignment: no backend here asks for more */
    if (p == NULL) die("no memory for %llu bytes", (unsigned long long)bytes);
    return p;
}

/* What config.json says of attention; limits are ours. */
static void read_problem(const char *folder, const sizes_t *sizes, attn_problem_t *problem) {
    attn_model_t *model;
    attn_model_kind_t kind = {.struct_size = sizeof kind};
    must(attn_model_load(folder, &model, &error), "config.json");
    if (attn_model_not_understood(model, 0) != NULL)
        die("config.json: %s concerns attention and was not understood", attn_model_not_understood(model, 0));
    must(attn_model_kind(model, 0, &kind, problem, &error), "config.json");
    if (kind.unserved[0] != '\0' || problem->role != ATTN_ROLE_ENCODER_ONLY ||
        kind.num_layers != sizes->layers)
        die("config.json: %s: %s", kind.name,
            kind.unserved[0] != '\0' ? kind.unserved
                                     : "this example serves encoders with layers of one kind");
    attn_model_free(model);
    problem->dtype = ATTN_DTYPE_FLOAT32; /* what bert.c computes in */
    problem->kv_cache_dtype = 0;
    problem->max_num_seqs = (uint32_t)sizes->max_texts;
    problem->max_num_batched_tokens = (uint32_t)sizes->max_tokens;
    problem->max_model_len = sizes->max_len;
}

attention_t *attention_open(const char *folder, const sizes_t *sizes, const char *backend) {
    attention_t *a = room(sizeof *a);
    attn_device_t cpu = {.struct_size = sizeof cpu};
    attn_problem_t problem = {.struct_size = sizeof problem};
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    a->sizes = sizes;
    read_problem(folder, sizes, &problem);
    must(attn_context_create(NULL, &a->context, &error), "libattn");
    must(attn_device_parse("cpu", &cpu, &error), "device");
    must(attn_group_open(a->context, &problem, &cpu, backend, &a->group, NULL, &error), "selection");
    must(attn_group_space_needed(a->group, &needed, &error), "space");
    a->space = (attn_space_t){.struct_size = sizeof a->space,
                              .metadata = aligned(needed.metadata_bytes),
                              .metadata_bytes = needed.metadata_bytes,
                              .workspace = aligned(needed.workspace_bytes),
                              .workspace_bytes = needed.workspace_bytes,
                              .host = aligned(needed.host_bytes),
                              .host_bytes = needed.host_bytes};
    a->layers = room((uint64_t)sizes->layers * sizeof(attn_layer_t *));
    for (int64_t i = 0; i < sizes->layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "encoder.layer.%d.attention.self", (int)i);
        must(attn_layer_create(a->group, name, NULL, &a->layers[i], &error), name);
    }
    return a;
}

const char *attention_backend(const attention_t *a) {
    return attn_group_backend(a->group)->name;
}

void attention_begin(attention_t *a, const batch_t *b) {
    attn_batch_t batch = {.struct_size = sizeof batch,
                          .num_reqs = b->num_texts,
                          .num_actual_tokens = b->num_tokens,
                          .query_start_loc_host = b->starts,
                          .seq_lens_host = b->lens};
    batch.query_start_loc = dense(&a->starts, b->starts, kDLInt, 1, b->num_texts + 1, 1, 1);
    batch.seq_lens = dense(&a->lens, b->lens, kDLInt, 1, b->num_texts, 1, 1);
    must(attn_group_build_metadata(a->group, &batch, &a->space, NULL, &error), "metadata");
    a->num_tokens = b->num_tokens;
}

void attention_layer(attention_t *a, int64_t layer, float *query, float *key, float *value, float *output) {
    const int64_t rows = a->num_tokens, heads = a->sizes->heads, size = a->sizes->hidden / heads;
    attn_forward_t forward = {.struct_size = sizeof forward};
    forward.query = dense(&a->query, query, kDLFloat, 3, rows, heads, size);
    forward.key = dense(&a->key, key, kDLFloat, 3, rows, heads, size);
    forward.value = dense(&a->value, value, kDLFloat, 3, rows, heads, size);
    forward.output = dense(&a->output, output, kDLFloat, 3, rows, heads, size);
    must(attn_layer_forward(a->layers[layer], &forward, &a->space, NULL, &error), "attention");
}

void attention_close(attention_t *a) {
    for (int64_t i = 0; i < a->sizes->layers; i++)
        attn_layer_destroy(a->layers[i]);
    attn_group_close(a->group);
    attn_context_destroy(a->context);
    free(a->space.metadata);
    free(a->space.workspace);
    free(a->space.host);
    free(a->layers);
    free(a);
}
