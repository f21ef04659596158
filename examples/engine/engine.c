/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c: the smallest engine with continuous batching: requests come and go, every step serves all that are running,
 * their keys and values live in pages that are handed out as requests grow and taken back when they end. Model weights are
 * left out: queries, keys and values are made up from the request, the layer and the position.
 *
 *     cc engine.c -o engine $(pkg-config --cflags --libs attn) -lm
 *     ./engine             # one line a step, and a checksum of all outputs
 *     ./engine REFERENCE out.bin   # a backend asked for by name; every output as float32 into a file
 */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    HEADS = 8,
    KV_HEADS = 2,
    HEAD_SIZE = 64,
    PAGES = 24,
    MAX_PAGES = 8,
    MAX_TOKENS = 64,
    MAX_RUNNING = 4,
    CHUNK = 24
};
enum { NUM_REQUESTS = 6 };

typedef struct request {
    int arrives, prompt, generate; /* in: step, tokens, tokens */
    int computed;                  /* tokens whose K and V are in the cache */
    int32_t pages[MAX_PAGES];
    int num_pages;
} request_t;

static request_t requests[NUM_REQUESTS] = {
    {.arrives = 0, .prompt = 37, .generate = 6}, {.arrives = 0, .prompt = 5, .generate = 12},
    {.arrives = 2, .prompt = 64, .generate = 3}, {.arrives = 3, .prompt = 1, .generate = 9},
    {.arrives = 4, .prompt = 50, .generate = 4}, {.arrives = 6, .prompt = 17, .generate = 17}};
static int32_t free_pages[PAGES];
static int num_free;
static float query[MAX_TOKENS][HEADS][HEAD_SIZE], key[MAX_TOKENS][KV_HEADS][HEAD_SIZE],
    value[MAX_TOKENS][KV_HEADS][HEAD_SIZE];
static float output[MAX_TOKENS][HEADS][HEAD_SIZE];

static void must(int code, const char *what, const attn_error_t *error) {
    if (code == ATTN_OK) return;
    fprintf(stderr, "engine: %s: %s: %s\n", what, attn_error_name(code), error->text);
    exit(1);
}

/* A dense tensor on the CPU; the compound literals at the call live as long as the step. */
#define TENSOR(DATA, CODE, BITS, NDIM, SHAPE, STRIDES)                                                       \
    &(DLTensor) {                                                                                            \
        .data = (DATA), .device = {kDLCPU, 0}, .ndim = (NDIM), .dtype = {(CODE), (BITS), 1},                 \
        .shape = (SHAPE), .strides = (STRIDES)                                                               \
    }
#define DIMS(...) ((int64_t[]){__VA_ARGS__})

/* Stands for the layer's projections: any fixed function of (request, layer, position, channel). */
static void project(int request, int layer, int position, int row) {
    for (int i = 0; i < HEADS * HEAD_SIZE; i++)
        (&query[row][0][0])[i] = sinf(0.37f * (float)(i + 1) + (float)(position * (layer + 2) + request));
    for (int i = 0; i < KV_HEADS * HEAD_SIZE; i++) {
        (&key[row][0][0])[i] = cosf(0.21f * (float)(i + 1) + (float)(position + 3 * request + layer));
        (&value[row][0][0])[i] = sinf(0.11f * (float)(i * position + 5 * request + layer));
    }
}

int main(int argc, char **argv) {
    attn_error_t error = {.struct_size = sizeof error};
    attn_context_t *context;
    attn_group_t *group;
    attn_layer_t *layers[LAYERS];

    /* 1. the configuration and the plugins */
    must(attn_context_create(NULL, &context, &error), "context", &error);

    /* 2. describe a layer; a backend is selected for it. All layers are alike: one group */
    attn_device_t cpu = {.struct_size = sizeof cpu};
    must(attn_device_parse("cpu", &cpu, &error), "device", &error);
    attn_problem_t problem = {.struct_size = sizeof problem,
                              .role = ATTN_ROLE_DECODER,
                              .mask = ATTN_MASK_CAUSAL,
                              .dtype = ATTN_DTYPE_FLOAT32,
                              .num_heads = HEADS,
                              .num_kv_heads = KV_HEADS,
                              .head_size = HEAD_SIZE,
                              .block_size = 16,
                              .scale = 1 / sqrt(HEAD_SIZE),
                              .max_num_seqs = MAX_RUNNING,
                              .max_num_batched_tokens = MAX_TOKENS,
                              .max_model_len = 16 * MAX_PAGES};
    must(attn_group_open(context, &problem, &cpu, argc > 1 ? argv[1] : NULL, &group, NULL, &error), "group",
         &error);
    for (int i = 0; i < LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "model.layers.%d.attn", i);
        must(attn_layer_create(group, name, NULL, &layers[i], &error), name, &error);
    }

    /* 3. ask what to allocate */
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    must(attn_group_kv_cache_shape(group, PAGES, &shape, &error), "cache shape", &error);
    must(attn_group_space_needed(group, &needed, &error), "space", &error);
    attn_space_t space = {.struct_size = sizeof space,
                          .metadata = aligned_alloc(256, needed.metadata_bytes / 256 * 256 + 256),
                          .metadata_bytes = needed.metadata_bytes,
                          .workspace = aligned_alloc(256, needed.workspace_bytes / 256 * 256 + 256),
                          .workspace_bytes = needed.workspace_bytes,
                          .host = malloc(needed.host_bytes + 1),
                          .host_bytes = needed.host_bytes};
    int64_t strides[ATTN_CACHE_MAX_DIMS];
    for (uint32_t i = 0; i < shape.ndim; i++)
        strides[i] = shape.byte_strides[i] / (shape.dtype.bits / 8);
    DLTensor cache[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        cache[i] = (DLTensor){.data = aligned_alloc(256, (size_t)shape.total_bytes / 256 * 256 + 256),
                              .device = {kDLCPU, 0},
                              .ndim = (int32_t)shape.ndim,
                              .dtype = shape.dtype,
                              .shape = shape.shape,
                              .strides = strides};
    printf("%s, pages of %u tokens, %lld bytes a page\n", attn_group_backend(group)->name, shape.block_size,
           (long long)shape.page_bytes);
    for (int i = PAGES - 1; i > 0; i--)
        free_pages[num_free++] = i; /* page 0 stays unused */

    FILE *dump = argc > 2 ? fopen(argv[2], "wb") : NULL;
    double checksum = 0;
    for (int step = 0, finished = 0; finished < NUM_REQUESTS; step++) {
        int32_t starts[MAX_RUNNING + 1] = {0}, lens[MAX_RUNNING], table[MAX_RUNNING][MAX_PAGES] = {{0}},
                                     running[MAX_RUNNING];
        int64_t slots[MAX_TOKENS];
        int count = 0, rows = 0;
        for (int pass = 0; pass < 2; pass++) /* decodes first, then prompts */
            for (int r = 0; r < NUM_REQUESTS && count < MAX_RUNNING; r++) {
                request_t *q = &requests[r];
                int is_prompt = q->computed < q->prompt, left = q->prompt + q->generate - q->computed;
                if (q->arrives > step || left == 0 || is_prompt != pass) continue;
                int n = is_prompt ? (q->prompt - q->computed < CHUNK ? q->prompt - q->computed : CHUNK) : 1;
                int pages = (q->computed + n + 15) / 16;
                if (rows + n > MAX_TOKENS || pages - q->num_pages > num_free)
                    continue; /* waits for the next step */
                while (q->num_pages < pages)
                    q->pages[q->num_pages++] = free_pages[--num_free];
                memcpy(table[count], q->pages, sizeof q->pages);
                lens[count] = q->computed + n;
                running[count] = r;
                rows += n;
                starts[++count] = rows;
            }
        if (count == 0) continue;

        /* 4. once per step and group: where the new tokens go, and the backend's plan */
        attn_slot_params_t params = {.struct_size = sizeof params, .block_size = 16, .num_blocks = PAGES};
        must(attn_plan_slot_mapping(&params, starts, lens, count, table[0], MAX_PAGES, rows, slots, &error),
             "slots", &error);
        const DLTensor *slot_tensor = TENSOR(slots, kDLInt, 64, 1, DIMS(rows), DIMS(1));
        attn_batch_t batch = {.struct_size = sizeof batch,
                              .num_reqs = count,
                              .num_actual_tokens = rows,
                              .query_start_loc_host = starts,
                              .seq_lens_host = lens,
                              .query_start_loc = TENSOR(starts, kDLInt, 32, 1, DIMS(count + 1), DIMS(1)),
                              .seq_lens = TENSOR(lens, kDLInt, 32, 1, DIMS(count), DIMS(1)),
                              .block_table =
                                  TENSOR(table, kDLInt, 32, 2, DIMS(count, MAX_PAGES), DIMS(MAX_PAGES, 1)),
                              .slot_mapping = slot_tensor};
        must(attn_group_build_metadata(group, &batch, &space, NULL, &error), "metadata", &error);

        /* 5. once per step and layer: the cache, then attention */
        for (int l = 0; l < LAYERS; l++) {
            for (int i = 0; i < count; i++)
                for (int t = starts[i]; t < starts[i + 1]; t++)
                    project(running[i], l, lens[i] - starts[i + 1] + t, t);
            const DLTensor *k = TENSOR(key, kDLFloat, 32, 3, DIMS(rows, KV_HEADS, HEAD_SIZE),
                                       DIMS(KV_HEADS * HEAD_SIZE, HEAD_SIZE, 1));
            const DLTensor *v = TENSOR(value, kDLFloat, 32, 3, DIMS(rows, KV_HEADS, HEAD_SIZE),
                                       DIMS(KV_HEADS * HEAD_SIZE, HEAD_SIZE, 1));
            attn_kv_update_t update = {.struct_size = sizeof update,
                                       .key = k,
                                       .value = v,
                                       .kv_cache = &cache[l],
                                       .slot_mapping = slot_tensor};
            must(attn_layer_update_kv_cache(layers[l], &update, NULL, &error), "cache update", &error);
            attn_forward_t forward = {.struct_size = sizeof forward,
                                      .key = k,
                                      .value = v,
                                      .kv_cache = &cache[l],
                                      .query = TENSOR(query, kDLFloat, 32, 3, DIMS(rows, HEADS, HEAD_SIZE),
                                                      DIMS(HEADS * HEAD_SIZE, HEAD_SIZE, 1)),
                                      .output = TENSOR(output, kDLFloat, 32, 3, DIMS(rows, HEADS, HEAD_SIZE),
                                                       DIMS(HEADS * HEAD_SIZE, HEAD_SIZE, 1))};
            must(attn_layer_forward(layers[l], &forward, &space, NULL, &error), "forward", &error);
            for (int i = 0; i < rows * HEADS * HEAD_SIZE; i++)
                checksum += (double)(&output[0][0][0])[i] * (i % 7 - 3);
            if (dump != NULL) fwrite(output, sizeof output[0], (size_t)rows, dump);
        }
        printf("step %2d: %d requests, %2d tokens, %2d pages free\n", step, count, rows, num_free);
        for (int i = 0; i < count; i++) {
            request_t *q = &requests[running[i]];
            q->computed = lens[i];
            if (q->computed < q->prompt + q->generate) continue;
            while (q->num_pages > 0)
                free_pages[num_free++] = q->pages[--q->num_pages];
            finished++;
        }
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
