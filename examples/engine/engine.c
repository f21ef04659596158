/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c: the smallest engine with continuous batching: requests come and go, every step serves all that
 * are running, and their keys and values live in pages that are handed out as requests grow and taken back
 * when they end. Model weights are left out: queries, keys and values are made up from the request, the layer
 * and the position.
 *
 *     cc engine.c -o engine $(pkg-config --cflags --libs attn) -lm
 *     ./engine                     # one line a step, and a checksum of all outputs
 *     ./engine REFERENCE out.bin   # a backend asked for by name; every output as float32 into a file
 */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HQ = 8, HKV = 2, D = 64 };   /* of the model */
enum { BLOCK = 16, PAGES = 24, MAX_PAGES = 8 }; /* of the cache: tokens a page, pages in all, of a request */
enum { MAX_TOKENS = 64, MAX_RUNNING = 4, CHUNK = 24 }; /* of a step; CHUNK: tokens of a prompt in one step */
enum { NUM_REQUESTS = 6 };

typedef struct request {
    int arrives, prompt, generate; /* given: step, tokens, tokens */
    int computed, num_pages;       /* tokens whose K and V are in the cache, and where */
    int32_t pages[MAX_PAGES];
} request_t;

static request_t requests[NUM_REQUESTS] = {{0, 37, 6, 0, 0, {0}}, {0, 5, 12, 0, 0, {0}},
                                           {2, 64, 3, 0, 0, {0}}, {3, 1, 9, 0, 0, {0}},
                                           {4, 50, 4, 0, 0, {0}}, {6, 17, 17, 0, 0, {0}}};
static int32_t free_pages[PAGES];
static int num_free;
static float query[MAX_TOKENS * HQ * D], key[MAX_TOKENS * HKV * D], value[MAX_TOKENS * HKV * D],
    output[MAX_TOKENS * HQ * D];
static attn_error_t error = {.struct_size = sizeof error};

/* One step's batch: what runs, in batch order, and where its tokens are. */
static int32_t starts[MAX_RUNNING + 1], lens[MAX_RUNNING], table[MAX_RUNNING][MAX_PAGES],
    running[MAX_RUNNING];
static int64_t slots[MAX_TOKENS];

static void must(int code, const char *what) {
    if (code == ATTN_OK) return;
    fprintf(stderr, "engine: %s: %s: %s\n", what, attn_error_name(code), error.text);
    exit(1);
}

static void *room(uint64_t bytes) {
    return aligned_alloc(256, (bytes + 256) / 256 * 256); /* alignment: no backend here asks for more */
}

/* A dense tensor of up to three dimensions on the CPU. */
typedef struct tensor {
    DLTensor dl;
    int64_t shape[3], strides[3];
} tensor_t;
static const DLTensor *dense(tensor_t *t, void *data, DLDataTypeCode code, int bits, int ndim, int64_t a,
                             int64_t b, int64_t c) {
    *t = (tensor_t){.shape = {a, b, c}, .strides = {b * c, c, 1}};
    t->dl = (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {(uint8_t)code, (uint8_t)bits, 1}};
    t->dl.shape = t->shape; /* fewer dimensions: the sizes behind are 1 */
    t->dl.strides = t->strides;
    return &t->dl;
}

/* Stands for a layer's projections: any fixed function of request, layer, position and channel. */
static void project(int request, int layer, int position, int row) {
    for (int i = 0; i < HQ * D; i++)
        query[row * HQ * D + i] = sinf(0.37f * (float)i + (float)(position * (layer + 2) + request));
    for (int i = 0; i < HKV * D; i++) {
        key[row * HKV * D + i] = cosf(0.21f * (float)i + (float)(position + 3 * request + layer));
        value[row * HKV * D + i] = sinf(0.11f * (float)(i * position + 5 * request + layer));
    }
}

/* Decodes first, then prompts in chunks, as far as pages and rows last. Returns how many requests run. */
static int schedule(int step) {
    int count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < NUM_REQUESTS && count < MAX_RUNNING; r++) {
            request_t *q = &requests[r];
            int is_prompt = q->computed < q->prompt, left = q->prompt - q->computed;
            if (q->arrives > step || q->computed == q->prompt + q->generate || is_prompt != pass) continue;
            int n = !is_prompt ? 1 : left < CHUNK ? left : CHUNK;
            int pages = (q->computed + n + BLOCK - 1) / BLOCK;
            if (starts[count] + n > MAX_TOKENS || pages - q->num_pages > num_free)
                continue; /* waits for the next step */
            while (q->num_pages < pages)
                q->pages[q->num_pages++] = free_pages[--num_free];
            memcpy(table[count], q->pages, sizeof q->pages);
            lens[count] = q->computed + n;
            running[count] = r;
            starts[count + 1] = starts[count] + n;
            count++;
        }
    return count;
}

/* After a step: requests that are done give their pages back. Returns how many are done. */
static int finish(int count) {
    int finished = 0;
    for (int i = 0; i < count; i++) {
        request_t *q = &requests[running[i]];
        q->computed = lens[i];
        if (q->computed < q->prompt + q->generate) continue;
        while (q->num_pages > 0)
            free_pages[num_free++] = q->pages[--q->num_pages];
        finished++;
    }
    return finished;
}

int main(int argc, char **argv) {
    attn_context_t *context;
    attn_group_t *group;
    attn_layer_t *layers[LAYERS];
    tensor_t tq, tk, tv, to, t_slots, t_starts, t_lens, t_table;

    /* 1. the configuration and the plugins */
    must(attn_context_create(NULL, &context, &error), "context");

    /* 2. describe a layer; a backend is selected for it. All layers are alike: one group */
    attn_device_t cpu = {.struct_size = sizeof cpu};
    must(attn_device_parse("cpu", &cpu, &error), "device");
    attn_problem_t problem = {.struct_size = sizeof problem,
                              .role = ATTN_ROLE_DECODER,
                              .mask = ATTN_MASK_CAUSAL,
                              .dtype = ATTN_DTYPE_FLOAT32,
                              .num_heads = HQ,
                              .num_kv_heads = HKV,
                              .head_size = D,
                              .block_size = BLOCK,
                              .scale = 1 / sqrt(D),
                              .max_num_seqs = MAX_RUNNING,
                              .max_num_batched_tokens = MAX_TOKENS,
                              .max_model_len = BLOCK * MAX_PAGES};
    must(attn_group_open(context, &problem, &cpu, argc > 1 ? argv[1] : NULL, &group, NULL, &error), "group");
    for (int i = 0; i < LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "model.layers.%d.attn", i);
        must(attn_layer_create(group, name, NULL, &layers[i], &error), name);
    }

    /* 3. ask what to allocate */
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    must(attn_group_kv_cache_shape(group, PAGES, &shape, &error), "cache shape");
    must(attn_group_space_needed(group, &needed, &error), "space");
    attn_space_t space = {.struct_size = sizeof space,
                          .metadata = room(needed.metadata_bytes),
                          .metadata_bytes = needed.metadata_bytes,
                          .workspace = room(needed.workspace_bytes),
                          .workspace_bytes = needed.workspace_bytes,
                          .host = room(needed.host_bytes),
                          .host_bytes = needed.host_bytes};
    int64_t strides[ATTN_CACHE_MAX_DIMS];
    for (uint32_t i = 0; i < shape.ndim; i++)
        strides[i] = shape.byte_strides[i] / (shape.dtype.bits / 8);
    DLTensor cache[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        cache[i] = (DLTensor){.data = room((uint64_t)shape.total_bytes),
                              .device = {kDLCPU, 0},
                              .ndim = (int32_t)shape.ndim,
                              .dtype = shape.dtype,
                              .shape = shape.shape,
                              .strides = strides};
    printf("%s, pages of %u tokens, %lld bytes\n", attn_group_backend(group)->name, shape.block_size,
           (long long)shape.page_bytes);
    for (int i = PAGES - 1; i > 0; i--)
        free_pages[num_free++] = i; /* page 0 stays unused */

    FILE *dump = argc > 2 ? fopen(argv[2], "wb") : NULL;
    double checksum = 0;
    for (int step = 0, finished = 0; finished < NUM_REQUESTS; step++) {
        int count = schedule(step), rows = starts[count];
        if (count == 0) continue;

        /* 4. once per step and group: where the new tokens go, and the backend's plan */
        attn_slot_params_t params = {.struct_size = sizeof params, .block_size = BLOCK, .num_blocks = PAGES};
        must(attn_plan_slot_mapping(&params, starts, lens, count, table[0], MAX_PAGES, rows, slots, &error),
             "slots");
        attn_batch_t batch = {.struct_size = sizeof batch,
                              .num_reqs = count,
                              .num_actual_tokens = rows,
                              .query_start_loc_host = starts,
                              .seq_lens_host = lens};
        batch.query_start_loc = dense(&t_starts, starts, kDLInt, 32, 1, count + 1, 1, 1);
        batch.seq_lens = dense(&t_lens, lens, kDLInt, 32, 1, count, 1, 1);
        batch.block_table = dense(&t_table, table, kDLInt, 32, 2, count, MAX_PAGES, 1);
        batch.slot_mapping = dense(&t_slots, slots, kDLInt, 64, 1, rows, 1, 1);
        must(attn_group_build_metadata(group, &batch, &space, NULL, &error), "metadata");

        /* 5. once per step and layer: the cache, then attention */
        for (int l = 0; l < LAYERS; l++) {
            for (int i = 0; i < count; i++)
                for (int t = starts[i]; t < starts[i + 1]; t++)
                    project(running[i], l, lens[i] - starts[i + 1] + t, t);
            attn_kv_update_t update = {
                .struct_size = sizeof update, .kv_cache = &cache[l], .slot_mapping = &t_slots.dl};
            update.key = dense(&tk, key, kDLFloat, 32, 3, rows, HKV, D);
            update.value = dense(&tv, value, kDLFloat, 32, 3, rows, HKV, D);
            must(attn_layer_update_kv_cache(layers[l], &update, NULL, &error), "cache update");
            attn_forward_t forward = {
                .struct_size = sizeof forward, .key = &tk.dl, .value = &tv.dl, .kv_cache = &cache[l]};
            forward.query = dense(&tq, query, kDLFloat, 32, 3, rows, HQ, D);
            forward.output = dense(&to, output, kDLFloat, 32, 3, rows, HQ, D);
            must(attn_layer_forward(layers[l], &forward, &space, NULL, &error), "forward");
            for (int i = 0; i < rows * HQ * D; i++)
                checksum += (double)output[i] * (i % 7 - 3);
            if (dump != NULL) fwrite(output, sizeof output[0] * HQ * D, (size_t)rows, dump);
        }
        printf("step %2d: %d requests, %2d tokens, %2d pages free\n", step, count, rows, num_free);
        finished += finish(count);
    }
    printf("checksum %.3f\n", checksum);
    if (dump != NULL) fclose(dump);
    for (int l = 0; l < LAYERS; l++) {
        attn_layer_destroy(layers[l]);
        free(cache[l].data);
    }
    attn_group_close(group);
    attn_context_destroy(context);
    free(space.metadata);
    free(space.workspace);
    free(space.host);
    return 0;
}
