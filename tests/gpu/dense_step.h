/* SPDX-License-Identifier: Apache-2.0 */
/* dense_step.h: one layer of a small engine around a dense backend, for what attn_case.h does not do: graphs,
 * other block tables, calls in the wrong order. 8 requests, 8/2 heads of 128 in bfloat16, pages of 16;
 * numbers of about 1. */
#ifndef ATTN_TESTS_DENSE_STEP_H
#define ATTN_TESTS_DENSE_STEP_H

#include "gpu_memory.h"
#include "../tap.h"

#include <attn/attn_plugin_util.h>
#include <math.h>

enum { DENSE_STEP_REQS = 8, DENSE_STEP_PAGES = 2048, DENSE_STEP_ROWS = 512, DENSE_STEP_ROW = 8 * 128 };
static const size_t dense_step_bytes = (size_t)DENSE_STEP_ROWS * DENSE_STEP_ROW * 2; /* of query and output */
static const attn_problem_t dense_step_problem = {.struct_size = sizeof dense_step_problem,
                                                  .role = ATTN_ROLE_DECODER,
                                                  .mask = ATTN_MASK_CAUSAL,
                                                  .dtype = ATTN_DTYPE_BFLOAT16,
                                                  .num_heads = 8,
                                                  .num_kv_heads = 2,
                                                  .head_size = 128,
                                                  .block_size = 16,
                                                  .scale = 0.088388,
                                                  .max_num_seqs = DENSE_STEP_REQS,
                                                  .max_num_batched_tokens = DENSE_STEP_ROWS,
                                                  .max_model_len = 32768,
                                                  .num_blocks = 512,
                                                  .features = ATTN_F_CAPTURE};

/* Query tokens of each request. */
static const int dense_step_decode[8] = {1, 1, 1, 1, 1, 1, 1, 1},
                 dense_step_few[8] = {8, 8, 8, 8, 8, 8, 8, 8}, dense_step_fewer[8] = {4, 1, 2, 4, 0, 3, 4, 4},
                 dense_step_mixed[8] = {1, 90, 1, 2, 40, 0, 1, 64},
                 dense_step_other[8] = {2, 64, 1, 1, 1, 8, 0, 120}, dense_step_tokens[1] = {16};

typedef struct dense_step {
    const attn_backend_t *backend;
    attn_instance_t *instance;
    attn_space_t space;
    int32_t max_query_len; /* of the batches; 0: not said */
    int32_t q_start[DENSE_STEP_REQS + 1], lens[DENSE_STEP_REQS], table[DENSE_STEP_REQS * DENSE_STEP_PAGES];
    int32_t *d_table[2];
    DLTensor t_table, t_cache, t_q, t_o;
    int64_t table_shape[2], table_strides[2], cache_shape[4], cache_strides[4], row_shape[3], row_strides[3];
    uint16_t *q, *o, *cache;
} dense_step;

static DLTensor dense_step_tensor(void *data, DLDataType type, int ndim, int64_t *shape, int64_t *strides) {
    return (DLTensor){.data = data,
                      .device = {kDLCUDA, 0},
                      .ndim = ndim,
                      .dtype = type,
                      .shape = shape,
                      .strides = strides};
}

/* 1, or 0 where open fails, which is a diagnostic. */
static int dense_step_open(dense_step *s, const attn_backend_t *backend, uint64_t features,
                           const attn_option_value_t *options, uint32_t num_options) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
    attn_problem_t p = dense_step_problem;
    p.features |= features;
    *s = (dense_step){.backend = backend};
    if (backend->ops->open(&p, &device, options, num_options, NULL, &s->instance, &e) != ATTN_OK) {
        diag("open: %s", e.text);
        return 0;
    }
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    backend->ops->space_needed(s->instance, &need, &e);
    backend->ops->kv_cache_shape(s->instance, 512, &shape, &e);
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata_bytes = need.metadata_bytes,
                              .workspace_bytes = need.workspace_bytes,
                              .host_bytes = need.host_bytes};
    cudaMalloc(&s->space.metadata, need.metadata_bytes);
    cudaMalloc(&s->space.workspace, need.workspace_bytes);
    cudaMallocHost(&s->space.host, need.host_bytes);
    for (int i = 0; i < 2; i++)
        cudaMalloc((void **)&s->d_table[i], sizeof s->table);
    cudaMalloc((void **)&s->cache, (size_t)shape.total_bytes);
    cudaMalloc((void **)&s->q, dense_step_bytes);
    cudaMalloc((void **)&s->o, dense_step_bytes);
    uint16_t *h = malloc((size_t)shape.total_bytes);
    uint64_t state = 5;
    for (size_t i = 0; i < (size_t)shape.total_bytes / 2; i++)
        h[i] = (uint16_t)(0x3f00 + kit_random_in(&state, 0, 0x7f) + (kit_random_in(&state, 0, 1) << 15));
    cudaMemcpy(s->cache, h, (size_t)shape.total_bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(s->q, h, dense_step_bytes, cudaMemcpyHostToDevice);
    free(h);
    for (int i = 0; i < 4; i++)
        s->cache_shape[i] = shape.shape[i], s->cache_strides[i] = shape.byte_strides[i] / 2;
    s->t_cache = dense_step_tensor(s->cache, shape.dtype, 4, s->cache_shape, s->cache_strides);
    s->row_shape[0] = DENSE_STEP_ROWS, s->row_shape[1] = 8, s->row_shape[2] = 128;
    s->row_strides[0] = DENSE_STEP_ROW, s->row_strides[1] = 128, s->row_strides[2] = 1;
    s->t_q = dense_step_tensor(s->q, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, s->row_shape, s->row_strides);
    s->t_o = dense_step_tensor(s->o, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, s->row_shape, s->row_strides);
    s->table_shape[0] = DENSE_STEP_REQS, s->table_shape[1] = DENSE_STEP_PAGES;
    s->table_strides[0] = DENSE_STEP_PAGES, s->table_strides[1] = 1;
    return 1;
}

static void dense_step_close(dense_step *s) {
    s->backend->ops->close(s->instance);
    cudaFree(s->space.metadata), cudaFree(s->space.workspace), cudaFreeHost(s->space.host);
    cudaFree(s->d_table[0]), cudaFree(s->d_table[1]), cudaFree(s->cache), cudaFree(s->q), cudaFree(s->o);
}

/* The first n requests; lengths, of one request to 31657, and pages from `variant`; table number
 * `which`, which update_only alone replaces. */
static int dense_step_build(dense_step *s, const int *q_lens, int n, int variant, int which, uint32_t flags,
                            int update_only, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    for (int r = 0; r < n; r++) {
        s->q_start[r + 1] = s->q_start[r] + q_lens[r];
        s->lens[r] = q_lens[r] + 17 + (n == 1 ? 4520 * ((variant + 5) % 8) : 113 * ((r + variant) % 8));
        for (int i = 0; i < DENSE_STEP_PAGES; i++)
            s->table[r * DENSE_STEP_PAGES + i] =
                (r * DENSE_STEP_PAGES + i * 5 + variant * 31 + which * 7) % 512;
    }
    cudaMemcpy(s->d_table[which], s->table, sizeof s->table, cudaMemcpyHostToDevice);
    s->t_table = dense_step_tensor(s->d_table[which], attn_dl_dtype(ATTN_DTYPE_INT32), 2, s->table_shape,
                                   s->table_strides);
    attn_batch_t b = {.struct_size = sizeof b,
                      .flags = flags,
                      .num_reqs = n,
                      .num_actual_tokens = s->q_start[n],
                      .max_query_len = s->max_query_len,
                      .query_start_loc_host = s->q_start,
                      .seq_lens_host = s->lens,
                      .block_table = &s->t_table};
    int rc = update_only ? s->backend->ops->update_block_table(s->instance, &b, &s->space, stream, &e)
                         : s->backend->ops->build_metadata(s->instance, &b, &s->space, stream, &e);
    if (rc) diag("build: %s", e.text);
    return rc;
}

static int dense_step_forward(dense_step *s, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_forward_t f = {
        .struct_size = sizeof f, .query = &s->t_q, .kv_cache = &s->t_cache, .output = &s->t_o};
    int rc = s->backend->ops->forward(s->instance, &f, &s->space, stream, &e);
    if (rc) diag("forward: %s", e.text);
    return rc;
}

/* The output of a batch, rows that it lacks included. */
static void dense_step_output(dense_step *s, const int *q_lens, int n, int variant, int which, uint32_t flags,
                              cudaGraphExec_t graph, cudaStream_t stream, void *out) {
    cudaMemset(s->o, 0xee, dense_step_bytes);
    dense_step_build(s, q_lens, n, variant, which, flags, 0, stream);
    if (graph != NULL)
        cudaGraphLaunch(graph, stream);
    else
        dense_step_forward(s, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, s->o, dense_step_bytes, cudaMemcpyDeviceToHost);
}

/* Root of the mean square of a - b, as part of that of b. */
static double dense_step_difference(const void *a, const void *b) {
    const uint16_t *x = a, *y = b;
    double num = 0, den = 0;
    for (size_t i = 0; i < dense_step_bytes / 2; i++) {
        const uint32_t u = (uint32_t)x[i] << 16, v = (uint32_t)y[i] << 16;
        float f, g;
        memcpy(&f, &u, 4), memcpy(&g, &v, 4);
        if (x[i] == 0xeeee && y[i] == 0xeeee) continue; /* nobody's row */
        num += (double)(f - g) * (f - g), den += (double)g * g;
    }
    return num == num && den > 0 ? sqrt(num / den) : INFINITY;
}

/* Graphs of a batch of decodes, of a mixed one and of few tokens each, replayed with other lengths, pages and
 * tables, against eager runs with eager_flags, of the same bits where both say the longest query that the
 * graph takes; and the same call twice. */
static void dense_step_replays(dense_step *s, uint32_t eager_flags, cudaStream_t stream) {
    char *want = malloc(dense_step_bytes), *got = malloc(dense_step_bytes);
    static const struct {
        const char *name;
        const int *first, *second;
        int n;
    } kinds[] = {{"decode", dense_step_decode, dense_step_decode, 8},
                 {"mixed", dense_step_mixed, dense_step_other, 8},
                 {"few tokens", dense_step_few, dense_step_few, 8},
                 {"fewer tokens", dense_step_few, dense_step_fewer, 8},
                 {"one request", dense_step_tokens, dense_step_decode, 1}};
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        const char *name = kinds[kind].name;
        const int *first = kinds[kind].first, *second = kinds[kind].second, n = kinds[kind].n;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        dense_step_build(s, first, n, 0, 0, ATTN_BATCH_CAPTURE, 0, stream);
        cudaStreamSynchronize(stream);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        int rc = dense_step_forward(s, stream);
        cudaError_t e = cudaStreamEndCapture(stream, &graph);
        if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
        ok(rc == ATTN_OK && e == cudaSuccess, "%s batch: forward is captured (%s)", name,
           cudaGetErrorString(e));
        if (e != cudaSuccess) continue;
        int same = 0;
        double apart = 0;
        for (int r = 0; r < n; r++) {
            const int longest = first[r] > second[r] ? first[r] : second[r];
            s->max_query_len = longest > s->max_query_len ? longest : s->max_query_len;
        }
        for (int variant = 1; variant <= 4; variant++) {
            dense_step_output(s, second, n, variant, variant & 1, eager_flags, NULL, stream, want);
            dense_step_output(s, second, n, variant, variant & 1, ATTN_BATCH_CAPTURE, exec, stream, got);
            same += memcmp(got, want, dense_step_bytes) == 0;
        }
        const int32_t said = s->max_query_len;
        s->max_query_len = 0;
        for (int variant = 1; variant <= 2; variant++) {
            dense_step_output(s, second, n, variant, variant & 1, eager_flags, NULL, stream, want);
            dense_step_output(s, second, n, variant, variant & 1, ATTN_BATCH_CAPTURE, exec, stream, got);
            const double d = dense_step_difference(got, want);
            apart = d > apart ? d : apart;
        }
        ok(same == 4, "%s: replays with new lengths, pages and another table equal eager runs (%d of 4)",
           name, same);
        ok(apart < 5e-3, "%s: and where nobody says the longest query, but for rounding (%.1e)", name, apart);
        s->max_query_len = said;
        dense_step_build(s, second, n, 6, 0, ATTN_BATCH_CAPTURE, 0, stream);
        dense_step_build(s, second, n, 6, 1, 0, 1, stream);
        cudaMemset(s->o, 0xee, dense_step_bytes);
        cudaGraphLaunch(exec, stream);
        cudaStreamSynchronize(stream);
        cudaMemcpy(got, s->o, dense_step_bytes, cudaMemcpyDeviceToHost);
        dense_step_output(s, second, n, 6, 1, eager_flags, NULL, stream, want);
        ok(memcmp(got, want, dense_step_bytes) == 0, "%s: update_block_table reaches the captured graph",
           name);
        s->max_query_len = 0;
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
    dense_step_output(s, dense_step_mixed, 8, 3, 0, 0, NULL, stream, want);
    dense_step_output(s, dense_step_mixed, 8, 3, 0, 0, NULL, stream, got);
    ok(memcmp(got, want, dense_step_bytes) == 0, "the same call gives the same bits");
    free(want), free(got);
}

/* Pages that are not there, in a table that only the device sees: the other requests keep their results, and
 * the context lives (request 1 of the batch is the one with the bad entries). */
static void dense_step_wild_pages(dense_step *s, const char *name, cudaStream_t stream) {
    static const int32_t wild[] = {-1, 512, INT32_MAX, INT32_MIN, 1 << 20};
    char *want = malloc(dense_step_bytes), *got = malloc(dense_step_bytes);
    for (int kind = 0; kind < 2; kind++) {
        const int *q_lens = kind ? dense_step_mixed : dense_step_decode;
        const size_t row = (size_t)DENSE_STEP_ROW * 2, first = (size_t)q_lens[0] * row,
                     second = (size_t)(q_lens[0] + q_lens[1]) * row;
        dense_step_output(s, q_lens, 8, 3, 0, 0, NULL, stream, want);
        dense_step_build(s, q_lens, 8, 3, 0, 0, 0, stream);
        for (int i = 0; i < DENSE_STEP_PAGES; i++)
            s->table[DENSE_STEP_PAGES + i] = wild[i % 5];
        cudaMemcpy(s->d_table[0], s->table, sizeof s->table, cudaMemcpyHostToDevice);
        cudaMemset(s->o, 0xee, dense_step_bytes);
        const int rc = dense_step_forward(s, stream);
        const cudaError_t e = cudaStreamSynchronize(stream);
        cudaMemcpy(got, s->o, dense_step_bytes, cudaMemcpyDeviceToHost);
        ok(rc == ATTN_OK && e == cudaSuccess && memcmp(got, want, first) == 0 &&
               memcmp(got + second, want + second, dense_step_bytes - second) == 0,
           "%s, %s: pages that are not there harm their own request alone (%s)", name,
           kind ? "mixed" : "decode", cudaGetErrorString(e));
    }
    free(want), free(got);
}

/* A batch that breaks its limits, calls in the wrong order, and the profiling run. */
static void dense_step_refusals(dense_step *s, cudaStream_t stream) {
    char *want = calloc(1, dense_step_bytes), *got = malloc(dense_step_bytes);
    attn_error_t e = {.struct_size = sizeof e};
    int32_t start[2] = {0, 1}, lens[1] = {(int32_t)dense_step_problem.max_model_len + 1};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = start,
                      .seq_lens_host = lens,
                      .block_table = &s->t_table};
    ok(s->backend->ops->build_metadata(s->instance, &b, &s->space, stream, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "seq_lens"),
       "a length beyond max_model_len is refused by name");
    lens[0] = 100;
    b.block_table = NULL;
    ok(s->backend->ops->build_metadata(s->instance, &b, &s->space, stream, &e) == ATTN_E_INVALID &&
           !strcmp(e.param, "block_table"),
       "a missing block table is refused by name");
    ok(dense_step_forward(s, stream) == ATTN_E_STATE, "forward after a failed build is refused");
    dense_step_build(s, dense_step_decode, 8, 0, 0, 0, 0, stream);
    s->t_q.byte_offset = 2;
    ok(dense_step_forward(s, stream) == ATTN_E_INVALID, "a misaligned query is refused");
    s->t_q.byte_offset = 0;
    int64_t shape[3] = {8, 2, 128}, strides[3] = {256, 128, 1};
    DLTensor key = dense_step_tensor(s->q, attn_dl_dtype(ATTN_DTYPE_BFLOAT16), 3, shape, strides),
             value = key,
             slots = dense_step_tensor(s->d_table[0], attn_dl_dtype(ATTN_DTYPE_INT64), 1, shape, strides + 2);
    const attn_kv_update_t update = {.struct_size = sizeof update,
                                     .key = &key,
                                     .value = &value,
                                     .kv_cache = &s->t_cache,
                                     .slot_mapping = &slots};
    const struct {
        DLTensor *t;
        const char *name;
    } elsewhere[] = {{&key, "key"}, {&value, "value"}, {&slots, "slot_mapping"}};
    for (int i = 0; i < 3; i++) {
        elsewhere[i].t->device.device_type = kDLCPU;
        ok(s->backend->ops->update_kv_cache(s->instance, &update, stream, &e) == ATTN_E_INVALID &&
               !strcmp(e.param, elsewhere[i].name),
           "%s in host memory is refused by name", elsewhere[i].name);
        elsewhere[i].t->device.device_type = kDLCUDA;
    }
    attn_forward_t f = {.struct_size = sizeof f, .query = &s->t_q, .output = &s->t_o};
    int rc = s->backend->ops->forward(s->instance, &f, NULL, stream, &e);
    cudaStreamSynchronize(stream);
    cudaMemcpy(got, s->o, dense_step_bytes, cudaMemcpyDeviceToHost);
    ok(rc == ATTN_OK && memcmp(got, want, dense_step_bytes) == 0,
       "the profiling run fills the output with zero");
    free(want), free(got);
}

#endif
