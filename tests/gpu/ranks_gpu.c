/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism on a CUDA device: all ranks are threads of one device, which exchange through host
 * memory, against one rank in double on the CPU (semantics 8); and a captured step. Two devices:
 * ranks_nccl.c. */
#include "part.h"
#include "../layer/ranks_threads.h"
#include "ranks_cases.h"

/* -------------------------------------------------------------------- capture */

/* A rank that is both ranks: what the other sends is what this one sends. Put on the stream, so that a graph
 * holds it. */
static int echo_gather(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                       attn_error_t *error) {
    const attn_device_kind_t *kind = ctx;
    int code = kind->copy_within(0, recv, send, (size_t)bytes, stream, error);
    return code != ATTN_OK ? code
                           : kind->copy_within(0, (char *)recv + bytes, send, (size_t)bytes, stream, error);
}
static int echo_exchange(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                         attn_error_t *error) {
    return echo_gather(ctx, (const char *)send + bytes, recv, bytes, stream, error); /* the part of rank 1 */
}
static int echo_sum(void *ctx, const void *send, void *recv, uint64_t count, uint32_t dtype, void *stream,
                    attn_error_t *error) {
    (void)ctx, (void)send, (void)recv, (void)count, (void)dtype, (void)stream;
    return attn_fail(error, ATTN_E_UNSUPPORTED, "comm", "the echo sums nothing");
}
static int echo_wait(void *ctx, void *stream, attn_error_t *error) {
    (void)stream;
    return ((const attn_device_kind_t *)ctx)->synchronize(0, error);
}

enum { REQS = 6, HEADS = 4, SIZE = 64, PAGES = 64, WIDTH = 8 };

static void captured_step(attn_context_t *context) {
    static const int32_t starts[REQS + 1] = {0, 1, 2, 3, 4, 5, 6}, lens[3][REQS] = {{40, 90, 3, 64, 17, 5},
                                                                                    {1, 100, 2, 1, 33, 120},
                                                                                    {127, 1, 1, 9, 64, 65}};
    attn_error_t error = ERROR_INIT;
    struct rank_memory m = {.kind = attn_device_kind(kDLCUDA), .device = {kDLCUDA, 0}};
    const attn_device_kind_t *kind = m.kind;
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    struct tensor tq, to, tl, tc, tt;
    void *stream = NULL, *graph = NULL;
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_DECODER, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_BFLOAT16;
    p.num_heads = HEADS, p.num_kv_heads = 1, p.head_size = SIZE, p.block_size = 16, p.scale = 0.125;
    p.features = ATTN_F_LSE | ATTN_F_CAPTURE;
    p.max_num_seqs = p.max_num_batched_tokens = 8, p.max_model_len = 256, p.num_blocks = PAGES;
    p.dcp_world_size = 2, p.dcp_rank = 1, p.cp_interleave = 1;
    int code = attn_group_open(context, &p, &rank_device, "FLASH_ATTN", &g, NULL, &error);
    if (!ok(code == ATTN_OK, "a group for capture opens: %s", error.text)) return;
    ATTN_INIT(attn_comm_t, comm);
    comm.flags = ATTN_COMM_DEVICE, comm.world = 2, comm.rank = 1, comm.ctx = (void *)(uintptr_t)kind;
    comm.all_gather = echo_gather, comm.all_to_all = echo_exchange, comm.reduce_scatter = echo_sum;
    comm.wait = echo_wait;
    code = attn_group_set_comm(g, &comm, ATTN_JOIN_ALL_TO_ALL, &error);
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, need);
    ATTN_INIT(attn_space_t, space);
    ATTN_INIT(attn_batch_t, b);
    ATTN_INIT(attn_forward_t, a);
    if (code == ATTN_OK) code = attn_group_kv_cache_shape(g, 0, &shape, &error);
    if (code == ATTN_OK) code = attn_group_space_needed(g, &need, &error);
    if (code == ATTN_OK) code = attn_layer_create(g, "captured", NULL, &layer, &error);
    if (code == ATTN_OK) code = kind->stream_create(0, &stream, &error);
    if (code != ATTN_OK) bail_out("%s", error.text);
    space.metadata = take(&m, need.metadata_bytes), space.metadata_bytes = need.metadata_bytes;
    space.workspace = take(&m, need.workspace_bytes), space.workspace_bytes = need.workspace_bytes;
    space.host = calloc(need.host_bytes + 1, 1), space.host_bytes = need.host_bytes;
    uint64_t seed = tap_seed();
    uint16_t *cache = malloc((size_t)shape.total_bytes), query[REQS * HEADS * SIZE];
    for (int64_t i = 0; i < shape.total_bytes / 2; i++)
        cache[i] = attn_to_bf16((double)tap_rand_in(&seed, 0, 2000) / 1000 - 1);
    for (int i = 0; i < REQS * HEADS * SIZE; i++)
        query[i] = attn_to_bf16((double)tap_rand_in(&seed, 0, 4000) / 1000 - 2);
    tc.t = (DLTensor){.data = put(&m, cache, (uint64_t)shape.total_bytes),
                      .device = m.device,
                      .ndim = (int)shape.ndim,
                      .dtype = shape.dtype,
                      .shape = tc.shape,
                      .strides = tc.strides};
    for (uint32_t i = 0; i < shape.ndim; i++)
        tc.shape[i] = shape.shape[i], tc.strides[i] = shape.byte_strides[i] / 2;
    int32_t table[REQS * WIDTH];
    for (int i = 0; i < REQS * WIDTH; i++)
        table[i] = (i * 29 + 5) % PAGES;
    enum { OUT = REQS * HEADS * SIZE * 2, LSE = REQS * HEADS * 4 };
    static char got[2][OUT + LSE];
    void *there = take(&m, OUT + LSE);
    a.query = put_tensor(&m, &tq, query, ATTN_DTYPE_BFLOAT16, 3, REQS, HEADS, SIZE);
    a.output = tensor(&to, there, ATTN_DTYPE_BFLOAT16, 3, REQS, HEADS, SIZE, 0);
    a.lse = tensor(&tl, (char *)there + OUT, ATTN_DTYPE_FLOAT32, 2, HEADS, REQS, 0, 0);
    to.t.device = tl.t.device = m.device;
    a.kv_cache = &tc.t;
    b.flags = ATTN_BATCH_CAPTURE;
    b.num_reqs = b.num_actual_tokens = REQS;
    b.query_start_loc_host = starts;
    b.block_table = put_tensor(&m, &tt, table, ATTN_DTYPE_INT32, 2, REQS, WIDTH, 0);
    int same = 0;
    for (int round = 0; round < 4 && code == ATTN_OK; round++) { /* the first one captures */
        b.seq_lens_host = lens[round == 0 ? 0 : round - 1];
        code = attn_group_build_metadata(g, &b, &space, stream, &error);
        if (round == 0) {
            if (code == ATTN_OK) code = kind->synchronize(0, &error);
            if (code == ATTN_OK) code = kind->capture_begin(0, stream, 0, &error);
            if (code == ATTN_OK) code = attn_layer_forward(layer, &a, &space, stream, &error);
            if (code == ATTN_OK) code = kind->capture_end(0, stream, &graph, &error);
            continue;
        }
        for (int way = 0; way < 2 && code == ATTN_OK; way++) {
            kind->fill(0, there, 0xee, OUT + LSE, stream, &error);
            kind->fill(0, space.workspace, 0xff, space.workspace_bytes, stream, &error);
            code = way == 0 ? attn_layer_forward(layer, &a, &space, stream, &error)
                            : kind->graph_launch(0, graph, stream, &error);
            if (code == ATTN_OK) code = kind->copy_from(0, got[way], there, OUT + LSE, stream, &error);
        }
        same += code == ATTN_OK && memcmp(got[0], got[1], OUT + LSE) == 0;
    }
    ok(code == ATTN_OK && same == 3,
       "a captured step over ranks, replayed with other lengths (%d of 3 alike) %s", same,
       code != ATTN_OK ? error.text : "");
    float lse[HEADS][REQS];
    memcpy(lse, got[1] + OUT, LSE); /* of lengths 127, 1, 1, 9, ..: rank 1 has no key of the second */
    ok(isinf(lse[0][1]) && isinf(lse[3][2]) && !isinf(lse[0][0]) && !isinf(lse[2][5]),
       "where no rank has a key, LSE is -inf");
    static const int32_t two[2] = {0, 2};
    b.num_reqs = 1, b.num_actual_tokens = 2, b.query_start_loc_host = two;
    ok(attn_group_build_metadata(g, &b, &space, stream, &error) == ATTN_E_UNSUPPORTED &&
           strcmp(error.param, "flags") == 0,
       "two tokens of a request are not captured: %s", error.text);
    if (graph != NULL) kind->graph_destroy(0, graph);
    kind->stream_destroy(0, stream);
    attn_layer_destroy(layer);
    attn_group_close(g);
    give_back(&m);
    free(space.host), free(cache);
}

static void families(attn_context_t *const *contexts, uint64_t seed) {
    for (size_t i = 0; i < NUM_GPU_CASES; i++)
        for (int world = 2; world <= MAX_WORLD; world++) {
            double worst[3];
            const struct rank_case *c = &gpu_cases[i];
            if (!part_in_time()) continue;
            rank_bias = 0;
            run_case(c, world, contexts, seed + (uint64_t)i, worst);
            ok(worst[1] < c->tolerance && worst[2] < c->tolerance &&
                   rank_bias < RANK_MOST_BIAS * c->tolerance,
               "%s over %d ranks, %s (all-to-all %.1e, reduce-scatter %.1e, mean %.1e)", c->backend, world,
               c->what, worst[1], worst[2], rank_bias);
        }
}

int main(void) {
    const uint64_t seed = tap_seed();
    attn_context_t *contexts[MAX_WORLD];
    attn_error_t error = ERROR_INIT;
    if (attn_device_parse("cuda:0", &rank_device, &error) != ATTN_OK) skip_all("%s", error.text);
    for (int r = 0; r < MAX_WORLD; r++)
        contexts[r] = rank_context_of("reference, flash, triton_like, mla", "");
    captured_step(contexts[0]);
    families(contexts, seed);
    for (int r = 0; r < MAX_WORLD; r++)
        attn_context_destroy(contexts[r]);
    return tap_done();
}
