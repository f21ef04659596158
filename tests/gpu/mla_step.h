/* SPDX-License-Identifier: Apache-2.0 */
/* mla_step.h: one layer of a small engine around an MLA backend, for what attn_case.h does not do: graphs,
 * rebuilt metadata, timing. Random weights, queries and cache; requests have pages of their own in shuffled
 * order. */
#ifndef ATTN_TESTS_MLA_STEP_H
#define ATTN_TESTS_MLA_STEP_H

#include "mla_options.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

typedef struct mla_step {
    const attn_backend_t *backend;
    attn_problem_t problem;
    attn_instance_t *instance;
    attn_space_t space;
    void *cache, *query, *output, *weights, *weight_space, *topk, *table[2];
    float *lse, *q_scale;
    int64_t shape[8][4], strides[8][4];
    DLTensor t_cache, t_query, t_output, t_weights, t_topk, t_table, t_lse, t_q_scale;
    uint64_t weight_bytes;
    int64_t num_blocks, width;
    attn_error_t error;
} mla_step;

static inline uint32_t mla_step_random(uint64_t *s) {
    uint64_t z = *s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(z >> 32);
}

static inline void mla_step_tensor(mla_step *s, int i, DLTensor *t, void *data, DLDataType type, int ndim,
                                   int64_t a, int64_t b, int64_t c) {
    const int64_t shape[3] = {a, b, c};
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        s->shape[i][d] = shape[d], s->strides[i][d] = stride;
        stride *= shape[d];
    }
    *t = (DLTensor){.data = data,
                    .device = {kDLCUDA, 0},
                    .ndim = ndim,
                    .dtype = type,
                    .shape = s->shape[i],
                    .strides = s->strides[i]};
}

/* Random bfloat16 of +-2^-e .. 2^(1-e), or bytes of small e4m3 numbers. */
static inline void *mla_step_fill(size_t bytes, int exponent, int is_bytes, uint64_t seed) {
    void *d = NULL;
    size_t part = bytes < (1u << 22) ? bytes : (1u << 22);
    uint16_t *h = malloc(part + 2);
    for (size_t i = 0; i < part / 2 + 1; i++) {
        uint32_t r = mla_step_random(&seed);
        h[i] =
            is_bytes ? (uint16_t)(r & 0xbfbf) : (uint16_t)((uint32_t)((127 - exponent) << 7) + (r & 0x807f));
    }
    if (cudaMalloc(&d, bytes + 16) != cudaSuccess) {
        free(h);
        return NULL;
    }
    for (size_t at = 0; at < bytes; at += part)
        cudaMemcpy((char *)d + at, h, bytes - at < part ? bytes - at : part, cudaMemcpyHostToDevice);
    free(h);
    return d;
}

/* What mla_step_open opens with; none unless set. */
static const attn_host_t *mla_step_host;

/* problem: role, kv_cache_dtype, num_heads, limits and sizes; bfloat16. Options: mla_options.h. Returns
 * ATTN_OK or a code with s->error. */
static inline int mla_step_open(mla_step *s, const attn_backend_t *backend, const attn_problem_t *problem,
                                int64_t width) {
    memset(s, 0, sizeof *s);
    s->error.struct_size = sizeof s->error;
    s->backend = backend, s->problem = *problem, s->width = width;
    attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA};
    int status = backend->ops->open(problem, &device, mla_test_options, mla_test_num_options(problem->role),
                                    mla_step_host, &s->instance, &s->error);
    if (status != ATTN_OK) return status;
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    backend->ops->space_needed(s->instance, &need, &s->error);
    s->num_blocks = width * problem->max_num_seqs;
    backend->ops->kv_cache_shape(s->instance, s->num_blocks, &shape, &s->error);
    s->space = (attn_space_t){.struct_size = sizeof s->space,
                              .metadata_bytes = need.metadata_bytes,
                              .workspace_bytes = need.workspace_bytes,
                              .host_bytes = need.host_bytes};
    cudaMalloc(&s->space.metadata, need.metadata_bytes);
    cudaMalloc(&s->space.workspace, need.workspace_bytes);
    /* NaN, so that what a kernel reads before anyone wrote it shows in the results. Not for projections of
     * our own, whose every store compute-sanitizer sees: kernels of cuBLAS store in bulk, which its initcheck
     * does not. */
    if (strcmp(mla_test_options[MLA_TEST_PROJECTIONS].s, "own") != 0)
        cudaMemset(s->space.workspace, 0xff, need.workspace_bytes);
    cudaMallocHost(&s->space.host, need.host_bytes);
    const int projects = attn_problem_projects(problem);
    int64_t tokens = problem->max_num_batched_tokens, heads = problem->num_heads,
            n = projects ? problem->qk_nope_head_dim : problem->kv_lora_rank,
            v = projects ? problem->v_head_dim : problem->kv_lora_rank;
    DLDataType bf16 = attn_dl_dtype(ATTN_DTYPE_BFLOAT16), i32 = attn_dl_dtype(ATTN_DTYPE_INT32);
    s->cache = mla_step_fill((size_t)shape.total_bytes, 1, shape.dtype.bits == 8, 1);
    const int is_e4m3 = !projects && problem->query_dtype == ATTN_DTYPE_FP8_E4M3; /* of the caller */
    s->query = mla_step_fill((size_t)(tokens * heads * (n + 64) * (is_e4m3 ? 1 : 2)), 1, is_e4m3, 2);
    s->output = mla_step_fill((size_t)(tokens * heads * v * 2), 1, 0, 3);
    if (projects) s->weights = mla_step_fill((size_t)(heads * (n + v) * problem->kv_lora_rank * 2), 4, 0, 4);
    cudaMalloc((void **)&s->lse, (size_t)(tokens * heads * 4));
    cudaMemset(s->lse, 0xff, (size_t)(tokens * heads * 4)); /* tests copy what a batch has no rows for, too */
    if (projects) cudaMalloc(&s->weight_space, need.weight_bytes);
    s->weight_bytes = need.weight_bytes;
    mla_step_tensor(s, 0, &s->t_cache, s->cache, shape.dtype, 3, shape.shape[0], shape.shape[1],
                    shape.shape[2]);
    mla_step_tensor(s, 1, &s->t_query, s->query, is_e4m3 ? attn_dl_dtype(ATTN_DTYPE_FP8_E4M3) : bf16, 3,
                    tokens, heads, n + 64);
    mla_step_tensor(s, 2, &s->t_output, s->output, bf16, 3, tokens, heads, v);
    mla_step_tensor(s, 3, &s->t_weights, s->weights, bf16, 2, heads * (n + v), problem->kv_lora_rank, 1);
    mla_step_tensor(s, 6, &s->t_lse, s->lse, attn_dl_dtype(ATTN_DTYPE_FLOAT32), 2, heads, tokens, 1);
    if (problem->query_dtype == ATTN_DTYPE_FP8_E4M3) { /* absorbed queries are some units large */
        const float scale = 0.03f;
        cudaMalloc((void **)&s->q_scale, sizeof scale);
        cudaMemcpy(s->q_scale, &scale, sizeof scale, cudaMemcpyHostToDevice);
        mla_step_tensor(s, 7, &s->t_q_scale, s->q_scale, attn_dl_dtype(ATTN_DTYPE_FLOAT32), 1, 1, 0, 0);
    }
    uint64_t seed = 7;
    int32_t *table = malloc((size_t)s->num_blocks * 4);
    for (int which = 0; which < 2; which++) {
        for (int64_t i = 0; i < s->num_blocks; i++)
            table[i] = (int32_t)i;
        for (int64_t i = s->num_blocks - 1; i > 0; i--) {
            int64_t j = mla_step_random(&seed) % (i + 1);
            int32_t x = table[i];
            table[i] = table[j], table[j] = x;
        }
        s->table[which] = NULL;
        cudaMalloc(&s->table[which], (size_t)s->num_blocks * 4);
        cudaMemcpy(s->table[which], table, (size_t)s->num_blocks * 4, cudaMemcpyHostToDevice);
    }
    free(table);
    mla_step_tensor(s, 4, &s->t_table, s->table[0], i32, 2, problem->max_num_seqs, width, 1);
    if (problem->topk != 0) {
        int64_t count = tokens * problem->topk;
        int32_t *index = malloc((size_t)count * 4);
        for (int64_t i = 0; i < count; i++)
            index[i] = (int32_t)(mla_step_random(&seed) % (uint32_t)problem->max_model_len);
        cudaMalloc(&s->topk, (size_t)count * 4);
        cudaMemcpy(s->topk, index, (size_t)count * 4, cudaMemcpyHostToDevice);
        free(index);
        mla_step_tensor(s, 5, &s->t_topk, s->topk, i32, 2, tokens, problem->topk, 1);
    }
    if (!projects) return cudaDeviceSynchronize() == cudaSuccess ? ATTN_OK : ATTN_E_DEVICE;
    attn_weights_t w = {.struct_size = sizeof w,
                        .kv_b_proj = &s->t_weights,
                        .weight_space = s->weight_space,
                        .weight_space_bytes = need.weight_bytes};
    status = backend->ops->prepare_weights(s->instance, &w, NULL, &s->error);
    cudaDeviceSynchronize();
    return status;
}

static inline int mla_step_build(mla_step *s, const int32_t *query_lens, const int32_t *seq_lens,
                                 int32_t num_reqs, int table, uint32_t flags, int only_table, void *stream) {
    int32_t start[257] = {0};
    for (int r = 0; r < num_reqs; r++)
        start[r + 1] = start[r] + query_lens[r];
    s->t_table.data = s->table[table];
    attn_batch_t b = {.struct_size = sizeof b,
                      .flags = flags,
                      .num_reqs = num_reqs,
                      .num_actual_tokens = start[num_reqs],
                      .query_start_loc_host = start,
                      .seq_lens_host = seq_lens,
                      .block_table = &s->t_table};
    return only_table ? s->backend->ops->update_block_table(s->instance, &b, &s->space, stream, &s->error)
                      : s->backend->ops->build_metadata(s->instance, &b, &s->space, stream, &s->error);
}

static inline int mla_step_forward(mla_step *s, void *stream) {
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = &s->t_query,
                        .kv_cache = &s->t_cache,
                        .output = &s->t_output,
                        .lse = &s->t_lse,
                        .scales.q = s->q_scale ? &s->t_q_scale : NULL,
                        .topk_indices = s->topk ? &s->t_topk : NULL,
                        .weight_space = s->weight_space,
                        .weight_space_bytes = s->weight_bytes};
    return s->backend->ops->forward(s->instance, &f, &s->space, stream, &s->error);
}

static inline void mla_step_close(mla_step *s) {
    void *all[] = {s->cache,    s->query,    s->output, s->weights, s->weight_space,   s->topk,
                   s->table[0], s->table[1], s->lse,    s->q_scale, s->space.metadata, s->space.workspace};
    cudaDeviceSynchronize();
    s->backend->ops->close(s->instance);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cudaFree(all[i]);
    cudaFreeHost(s->space.host);
}

#endif
