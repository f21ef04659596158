/* SPDX-License-Identifier: Apache-2.0 */
/* mla_testing.h: what the tests of the plugins mla and mla_sparse share: where the plugins are, a case
 * against the reference plugin, the usual layer, and a layer that is captured once and replayed over other
 * batches. */
#ifndef ATTN_TESTS_MLA_TESTING_H
#define ATTN_TESTS_MLA_TESTING_H

#include "kit/case/attn_case.h"
#include "mla_step.h"
#include "../tap.h"

#include <unistd.h>

/* The backend of a plugin file in the folder $MLA_TEST_PLUGINS, else in plugins-built. */
static const attn_backend_t *mla_test_load(const char *file) {
    const char *dir = getenv("MLA_TEST_PLUGINS");
    char path[1200], cwd[1000] = ".", why[256] = "";
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else if (getcwd(cwd, sizeof cwd) != NULL)
        snprintf(path, sizeof path, "%s/plugins-built/%s", cwd, file);
    const attn_backend_t *b = kit_load(path, NULL, why, sizeof why);
    if (b == NULL) bail_out("%s: %s", path, why);
    return b;
}

/* 1 if the backend serves the case and agrees with the oracle, else the reason in why. */
TAP_UNUSED static int mla_test_agrees(const attn_backend_t *backend, const attn_backend_t *oracle,
                                      const kit_case_t *c, const kit_inputs_t *in, const kit_memory_t *memory,
                                      kit_difference_t *d, char *why, size_t size) {
    return kit_is_served(backend, c, memory, why, size) &&
           kit_agrees(backend, oracle, c, in, memory, d, why, size);
}

/* A layer like DeepSeek's for the small engine of mla_step.h: 8 requests, 64 tokens. */
enum { MLA_TEST_SEQS = 8, MLA_TEST_TOKENS = 64, MLA_TEST_LEN = 2048 };
TAP_UNUSED static attn_problem_t mla_test_problem(uint32_t role, uint32_t heads, uint32_t kv) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = role,
                            .mask = ATTN_MASK_CAUSAL,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .kv_cache_dtype = kv,
                            .num_heads = heads,
                            .head_size = 576,
                            .kv_lora_rank = 512,
                            .qk_rope_head_dim = 64,
                            .qk_nope_head_dim = 128,
                            .v_head_dim = 128,
                            .block_size = 64,
                            .scale = 0.05,
                            .max_num_seqs = MLA_TEST_SEQS,
                            .max_num_batched_tokens = MLA_TEST_TOKENS,
                            .max_model_len = MLA_TEST_LEN,
                            .features = ATTN_F_CAPTURE | ATTN_F_LSE,
                            .topk = role == ATTN_ROLE_MLA_SPARSE ? 256 : 0};
}

static size_t mla_test_bytes(const mla_step *s) {
    return (size_t)(s->shape[2][0] * s->shape[2][1] * s->shape[2][2]) * 2;
}

/* The output of a batch, rows that it lacks included; flags and graph: a replay of it instead. */
static int mla_test_output(mla_step *s, const int32_t *q, const int32_t *lens, int reqs, int table,
                           cudaGraphExec_t graph, cudaStream_t stream, void *out) {
    cudaMemset(s->output, 0xee, mla_test_bytes(s));
    int status = mla_step_build(s, q, lens, reqs, table, graph ? ATTN_BATCH_CAPTURE : 0, 0, stream);
    if (status == ATTN_OK) status = graph ? (int)cudaGraphLaunch(graph, stream) : mla_step_forward(s, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, s->output, mla_test_bytes(s), cudaMemcpyDeviceToHost);
    return status;
}

/* Opens a layer of at least 8 requests and 64 tokens and checks what a graph of it makes of other lengths,
 * queries and tables. *s stays open if the result is ATTN_OK. */
TAP_UNUSED static int mla_test_replays(mla_step *s, const attn_backend_t *backend,
                                       const attn_problem_t *problem, const char *name, cudaStream_t stream) {
    static const int32_t first[8] = {1, 1, 1, 1, 1, 1, 1, 1}, second[8] = {1, 1, 1, 1, 1, 1, 2, 0};
    static const int32_t short_lens[8] = {5, 9, 1, 64, 65, 3, 2, 80},
                         long_lens[8] = {2048, 1500, 1, 7, 64, 640, 2000, 8};
    static const int32_t mixed[4] = {40, 1, 20, 3}, mixed_lens[4] = {40, 2000, 500, 3};
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    int status = mla_step_open(s, backend, problem, MLA_TEST_LEN / 64), same = 0;
    ok(status == ATTN_OK, "%s: opens (%s)", name, status ? s->error.text : "");
    if (status != ATTN_OK) return status;
    const size_t bytes = mla_test_bytes(s);
    char *want = malloc(bytes), *got = malloc(bytes);
    mla_step_build(s, first, short_lens, 8, 0, ATTN_BATCH_CAPTURE, 0, stream);
    cudaStreamSynchronize(stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    status = mla_step_forward(s, stream);
    cudaError_t e = cudaStreamEndCapture(stream, &graph);
    e = e == cudaSuccess ? cudaGraphInstantiate(&exec, graph, 0) : e;
    ok(status == ATTN_OK && e == cudaSuccess, "%s: forward is captured (%s)", name, cudaGetErrorString(e));
    for (int i = 0; i < 3 && e == cudaSuccess; i++) {
        const int32_t *q = i == 2 ? second : first, *lens = i ? long_lens : short_lens;
        status = mla_test_output(s, q, lens, 8, i & 1, NULL, stream, want);
        if (status == ATTN_OK) status = mla_test_output(s, q, lens, 8, i & 1, exec, stream, got);
        same += status == ATTN_OK && memcmp(got, want, bytes) == 0;
    }
    is_int(same, 3, "%s: replays with other lengths, queries and tables equal eager runs", name);
    if (exec) {
        mla_test_output(s, first, long_lens, 8, 1, NULL, stream, want);
        mla_step_build(s, first, long_lens, 8, 0, ATTN_BATCH_CAPTURE, 0, stream);
        cudaStreamSynchronize(stream);
        mla_step_build(s, first, long_lens, 8, 1, ATTN_BATCH_CAPTURE, 1, stream);
        cudaGraphLaunch(exec, stream);
        cudaStreamSynchronize(stream);
        cudaMemcpy(got, s->output, bytes, cudaMemcpyDeviceToHost);
        ok(memcmp(got, want, bytes) == 0, "%s: update_block_table reaches the captured graph", name);
        cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    }
    mla_test_output(s, mixed, mixed_lens, 4, 0, NULL, stream, want);
    same = 0;
    for (int i = 0; i < 5; i++)
        same += mla_test_output(s, mixed, mixed_lens, 4, 0, NULL, stream, got) == ATTN_OK &&
                memcmp(got, want, bytes) == 0;
    is_int(same, 5, "%s: the same call gives the same bits", name);
    free(want), free(got);
    return ATTN_OK;
}

#endif
