/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_bench: a layer over several GPUs beside the same layer on one, joined over NCCL (doc/parallel.md), a
 * thread a rank. Decode is a captured graph of 8 layers over caches that do not fit into L2; a prompt is
 * enqueued layer by layer. Prints the time of a layer of the slowest rank, and its parts: attention of one
 * rank, which is one GPU's over its share of the keys (of a prompt: that part of one GPU's); what the kernels
 * beside it take, from a layer that leaves its exchanges out; and the exchanges, by the difference and alone.
 * Of a decode also a layer whose exchanges go through the memory of peers, with what it takes over that share
 * of the keys. MiB: metadata and workspace of a rank. A row with projections has them in the layer, on ranks
 * those of all heads; behind it stands what they take for all heads and for a rank's own, by the difference
 * of two layers over 64 keys. ATTN_CONFIG says where the plugins are, and with rank_part_bytes into which
 * parts a prompt is cut.
 *
 *     ranks_bench [-n RANKS] [row ..]      2 ranks; all rows, or those whose names contain one of the words
 */
#include <attn/attn_comm_nccl.h>

#include <stdlib.h>

enum { MOST_WORLD = 8, LAYERS = 8, ROUNDS = 12, MOST_CACHES = 8, WEIGHTS = 4, LIMIT_MS = 60000 };

typedef struct row {
    const char *name;
    uint32_t role, heads, kv_heads, size, interleave; /* 0: 16 */
    int32_t reqs, len, query;                         /* query: new tokens of a request */
    double target;                                    /* of one GPU's time by two GPUs' */
    int projects;                                     /* latent attention: from and to what is not absorbed */
} row_t;
#define GQA .role = ATTN_ROLE_DECODER, .heads = 32, .kv_heads = 8, .size = 128
#define MLA .role = ATTN_ROLE_MLA, .heads = 128, .size = 576
static const row_t rows[] = {
    {"decode 32/8 heads of 128, 1 x 131072", GQA, .reqs = 1, .len = 131072, .query = 1, .target = 1.6},
    {"decode 32/8 heads of 128, 8 x 16384", GQA, .reqs = 8, .len = 16384, .query = 1, .target = 1.6},
    {"decode 32/8 heads of 128, 1 x 1048576", GQA, .reqs = 1, .len = 1048576, .query = 1, .target = 1.85},
    {"decode 32/8 heads of 128, 1 x 16384", GQA, .reqs = 1, .len = 16384, .query = 1},
    {"decode 32/8 heads of 128, 8 x 4096", GQA, .reqs = 8, .len = 4096, .query = 1},
    {"decode 32/8 heads of 128, 64 x 4096", GQA, .reqs = 64, .len = 4096, .query = 1},
    {"decode 32/8 heads of 128, 256 x 1024", GQA, .reqs = 256, .len = 1024, .query = 1},
    {"latent 128 heads, absorbed, 1 x 131072", MLA, .reqs = 1, .len = 131072, .query = 1, .target = 1.5},
    {"latent 128 heads, with projections, 1 x 131072", MLA, .reqs = 1, .len = 131072, .query = 1,
     .projects = 1},
    {"latent 128 heads, absorbed, 8 x 16384", MLA, .reqs = 8, .len = 16384, .query = 1},
    {"prompt 32/8 heads of 128, 1 x 2048, runs of 64", GQA, .interleave = 64, .reqs = 1, .len = 2048,
     .query = 2048},
    {"prompt 32/8 heads of 128, 1 x 8192, runs of 64", GQA, .interleave = 64, .reqs = 1, .len = 8192,
     .query = 8192},
    {"prompt 32/8 heads of 128, 1 x 32768, runs of 64", GQA, .interleave = 64, .reqs = 1, .len = 32768,
     .query = 32768, .target = 1.8},
    {"prompt 32/8 heads of 128, 1 x 32768, runs of 256", GQA, .interleave = 256, .reqs = 1, .len = 32768,
     .query = 32768, .target = 1.8},
    {"prompt 32/8 heads of 128, 1 x 32768, runs of 1024", GQA, .interleave = 1024, .reqs = 1, .len = 32768,
     .query = 32768, .target = 1.8},
};
enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

/* A run lies in a page. */
static int32_t page_of(const row_t *row) {
    return row->interleave > 64 ? (int32_t)row->interleave : 64;
}

typedef struct tensor {
    DLTensor t;
    int64_t shape[5], strides[5];
} tensor_t;

/* A rank, or the one GPU with everything (world 1). */
typedef struct rig {
    const row_t *row;
    int world, rank, is_captured, num_caches, leaves_out; /* leaves_out: the exchanges, in layers measured */
    int by_peers; /* exchanges through the memory of peers, where it has them */
    int is_mute;  /* now */
    int32_t len;
    uint32_t join;
    attn_context_t *context;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_comm_nccl_t nccl;
    attn_comm_t comm;
    attn_space_t space;
    attn_batch_t batch;
    attn_forward_t args;
    tensor_t query, output, table, cache[MOST_CACHES];
    int32_t *starts, *lens;
    cudaStream_t stream;
    void *memory[32], *host, *weights[WEIGHTS];
    int taken;
    uint64_t weight_bytes;
    char *room[2]; /* of exchanges alone */
    double microseconds, exchanges;
    attn_error_t error;
} rig_t;

static int ranks = 2;
static attn_context_t *contexts[MOST_WORLD];
static double last_megabytes; /* of the rank that was opened last */
static ncclComm_t comms[MOST_WORLD];
static pthread_barrier_t barrier;

static void need(rig_t *r, int code) {
    if (code == ATTN_OK) return;
    fprintf(stderr, "ranks_bench: %s, rank %d of %d: %s: %s\n", r->row->name, r->rank, r->world,
            r->error.param, r->error.text);
    exit(1);
}
static void cuda(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "ranks_bench: %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
static char *take(rig_t *r, uint64_t bytes) {
    void **p = &r->memory[r->taken++];
    cuda(cudaMalloc(p, bytes + 256), "memory");
    return *p;
}

/* Values between -1 and 1, not all the same: a megabyte of them again and again. */
static void fill(void *to, uint64_t bytes) {
    enum { SOME = 1 << 20 };
    static uint16_t some[SOME / 2];
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    uint32_t random = 1;
    for (int i = 0; i < SOME / 2; i++) {
        random = random * 1664525u + 1013904223u;
        some[i] = attn_to_bf16((double)(random >> 8) / (1 << 23) - 1);
    }
    for (uint64_t at = 0; at < bytes; at += SOME)
        cuda(cudaMemcpy((char *)to + at, some, bytes - at < SOME ? bytes - at : SOME, cudaMemcpyHostToDevice),
             "fill");
    pthread_mutex_unlock(&one);
}

static const DLTensor *tensor(const rig_t *r, tensor_t *v, void *data, uint32_t dtype, int ndim, int64_t a,
                              int64_t b, int64_t c) {
    const int64_t shape[3] = {a, b, c};
    int64_t dense = 1;
    for (int i = ndim - 1; i >= 0; dense *= shape[i--])
        v->shape[i] = shape[i], v->strides[i] = dense;
    v->t =
        (DLTensor){.data = data, .device = {kDLCUDA, r->rank}, .ndim = ndim, .dtype = attn_dl_dtype(dtype)};
    v->t.shape = v->shape, v->t.strides = v->strides;
    return &v->t;
}

static int64_t tokens_of(const row_t *row) {
    return (int64_t)row->reqs * row->query;
}

/* The layer of `heads` heads over `len` keys a request, of all ranks. */
static void open_rig(rig_t *r, uint32_t heads) {
    const row_t *row = r->row;
    const int is_mla = row->role == ATTN_ROLE_MLA;
    const uint32_t interleave = row->interleave != 0 ? row->interleave : 16;
    const int32_t local = (int32_t)attn_plan_cp_local_len(r->len, r->world, r->rank, (int)interleave),
                  columns = (local + page_of(row) - 1) / page_of(row);
    const int64_t tokens = tokens_of(row);
    char name[16];
    r->error.struct_size = sizeof r->error;
    r->space.struct_size = sizeof r->space, r->batch.struct_size = sizeof r->batch;
    r->args.struct_size = sizeof r->args;
    r->is_captured = row->query == 1;
    cuda(cudaSetDevice(r->rank), "device");
    cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "stream");
    ATTN_INIT(attn_device_t, device);
    snprintf(name, sizeof name, "cuda:%d", r->rank);
    need(r, attn_device_parse(name, &device, &r->error));
    ATTN_INIT(attn_problem_t, p);
    p.role = row->role, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_BFLOAT16;
    p.num_heads = heads, p.num_kv_heads = row->kv_heads, p.head_size = row->size,
    p.block_size = (uint32_t)page_of(row);
    p.scale = 0.1;
    p.features = (r->is_captured ? ATTN_F_CAPTURE : 0) | (is_mla && !row->projects ? ATTN_F_LATENT : 0);
    if (is_mla) p.kv_lora_rank = 512, p.qk_rope_head_dim = 64;
    if (row->projects) p.qk_nope_head_dim = p.v_head_dim = 128;
    p.max_num_seqs = (uint32_t)row->reqs, p.max_num_batched_tokens = (uint32_t)tokens;
    p.max_model_len = (uint32_t)r->len, p.num_blocks = (uint32_t)(row->reqs * columns);
    if (r->world > 1) {
        p.dcp_world_size = (uint32_t)r->world, p.dcp_rank = (uint32_t)r->rank;
        p.cp_interleave = interleave;
    }
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, needed);
    need(r, attn_group_open(contexts[r->rank], &p, &device, NULL, &r->group, NULL, &r->error));
    need(r, attn_layer_create(r->group, "layer", NULL, &r->layer, &r->error));
    need(r, attn_group_kv_cache_shape(r->group, 0, &shape, &r->error));
    need(r, attn_group_space_needed(r->group, &needed, &r->error));
    r->space.metadata = take(r, needed.metadata_bytes), r->space.metadata_bytes = needed.metadata_bytes;
    r->space.workspace = take(r, needed.workspace_bytes), r->space.workspace_bytes = needed.workspace_bytes;
    last_megabytes = (double)(needed.metadata_bytes + needed.workspace_bytes) / 1048576;
    cuda(cudaMallocHost(&r->host, needed.host_bytes + 1), "pinned memory");
    r->space.host = r->host, r->space.host_bytes = needed.host_bytes;
    r->num_caches = (int)((512 * 1048576 + shape.total_bytes - 1) / shape.total_bytes);
    if (r->num_caches > MOST_CACHES) r->num_caches = MOST_CACHES;
    for (int i = 0; i < r->num_caches; i++) {
        tensor_t *c = &r->cache[i];
        char *at = take(r, (uint64_t)shape.total_bytes);
        fill(at, (uint64_t)shape.total_bytes);
        c->t = (DLTensor){
            .data = at, .device = {kDLCUDA, r->rank}, .ndim = (int)shape.ndim, .dtype = shape.dtype};
        c->t.shape = c->shape, c->t.strides = c->strides;
        for (uint32_t d = 0; d < shape.ndim; d++)
            c->shape[d] = shape.shape[d], c->strides[d] = shape.byte_strides[d] * 8 / shape.dtype.bits;
    }
    const int64_t in = row->projects ? 128 + 64 : row->size, out = row->projects ? 128
                                                                   : is_mla      ? 512
                                                                                 : row->size;
    const uint64_t query = (uint64_t)(tokens * heads * in) * 2;
    char *q = take(r, query);
    fill(q, query);
    r->args.query = tensor(r, &r->query, q, ATTN_DTYPE_BFLOAT16, 3, tokens, heads, in);
    r->weight_bytes = needed.weight_bytes;
    r->args.output = tensor(r, &r->output, take(r, (uint64_t)(tokens * heads * out) * 2), ATTN_DTYPE_BFLOAT16,
                            3, tokens, heads, out);
    const int32_t entries = row->reqs * columns;
    int32_t *table = malloc((size_t)entries * 4);
    r->starts = malloc((size_t)(row->reqs + 1) * 4), r->lens = malloc((size_t)row->reqs * 4);
    if (table == NULL || r->starts == NULL || r->lens == NULL) exit(1);
    for (int32_t i = 0; i < entries; i++)
        table[i] = (int32_t)(((int64_t)i * 7919 + 3) % entries); /* pages of a cache in use lie anywhere */
    for (int32_t i = 0; i <= row->reqs; i++)
        r->starts[i] = i * row->query;
    for (int32_t i = 0; i < row->reqs; i++)
        r->lens[i] = r->len;
    char *there = take(r, (uint64_t)entries * 4);
    cuda(cudaMemcpy(there, table, (size_t)entries * 4, cudaMemcpyHostToDevice), "table");
    free(table);
    r->batch.block_table = tensor(r, &r->table, there, ATTN_DTYPE_INT32, 2, row->reqs, columns, 1);
    r->batch.num_reqs = row->reqs, r->batch.num_actual_tokens = (int32_t)tokens;
    r->batch.query_start_loc_host = r->starts, r->batch.seq_lens_host = r->lens;
    if (r->is_captured) r->batch.flags = ATTN_BATCH_CAPTURE;
    if (r->world > 1) {
        const uint64_t room = (uint64_t)r->world * ((uint64_t)tokens * heads * (row->size + 4) * 2 + 256);
        r->room[0] = take(r, room), r->room[1] = take(r, room);
        need(r, attn_comm_nccl_init(&r->nccl, comms[r->rank], LIMIT_MS, &r->comm, &r->error));
        if (r->by_peers) need(r, attn_comm_nccl_offer_peers(&r->nccl, &r->comm, &r->error));
    }
    cuda(cudaDeviceSynchronize(), "opening");
}

/* Weights of several layers, so that none finds its own in L2. Collective. */
static void prepare(rig_t *r) {
    const int64_t rows = r->args.query->shape[1] * (128 + 128);
    for (int i = 0; i < WEIGHTS && r->row->projects; i++) {
        ATTN_INIT(attn_weights_t, w);
        tensor_t t;
        char *at = take(r, (uint64_t)rows * 512 * 2);
        fill(at, (uint64_t)rows * 512 * 2);
        w.kv_b_proj = tensor(r, &t, at, ATTN_DTYPE_BFLOAT16, 2, rows, 512, 1);
        w.weight_space = r->weights[i] = take(r, r->weight_bytes), w.weight_space_bytes = r->weight_bytes;
        need(r, attn_layer_prepare_weights(r->layer, &w, r->stream, &r->error));
    }
}

static void close_rig(rig_t *r) {
    cuda(cudaDeviceSynchronize(), "closing");
    attn_layer_destroy(r->layer);
    attn_group_close(r->group);
    for (int i = 0; i < r->taken; i++)
        cudaFree(r->memory[i]);
    cudaFreeHost(r->host);
    cudaStreamDestroy(r->stream);
    free(r->starts), free(r->lens);
}

static void layers(rig_t *r, int count) {
    for (int i = 0; i < count; i++) {
        r->args.kv_cache = &r->cache[i % r->num_caches].t;
        r->args.weight_space = r->weights[i % WEIGHTS], r->args.weight_space_bytes = r->weight_bytes;
        need(r, attn_layer_forward(r->layer, &r->args, &r->space, r->stream, &r->error));
    }
}

/* The messages of a layer and nothing else. */
static void exchanges(rig_t *r, int count) {
    const int64_t tokens = tokens_of(r->row), heads = r->args.query->shape[1];
    const uint64_t query = (uint64_t)(tokens * heads * r->args.query->shape[2]) * 2,
                   results = (uint64_t)(tokens * heads * r->args.output->shape[2]) * 2,
                   lse = (uint64_t)(tokens * heads) * 4;
    attn_comm_t *c = &r->comm;
    for (int i = 0; i < count; i++) {
        need(r, c->all_gather(c->ctx, r->room[0], r->room[1], query, r->stream, &r->error));
        if (r->join == ATTN_JOIN_ALL_TO_ALL) {
            need(r, c->all_to_all(c->ctx, r->room[0], r->room[1], results + lse, r->stream, &r->error));
            continue;
        }
        need(r,
             c->all_gather(c->ctx, r->room[0], r->room[1], lse * (uint64_t)r->world, r->stream, &r->error));
        need(r, c->reduce_scatter(c->ctx, r->room[0], r->room[1], results / 2, ATTN_DTYPE_BFLOAT16, r->stream,
                                  &r->error));
    }
}

/* Microseconds of one: the median of what a stream takes for graphs, or for calls, behind one that brings the
 * ranks together. */
static double measure(rig_t *r, void (*work)(rig_t *, int), int count, int is_captured) {
    cudaEvent_t at[ROUNDS + 1];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    float times[ROUNDS];
    const int rounds = is_captured ? ROUNDS : 5;
    work(r, 1); /* connects the ranks */
    if (r->world > 1) need(r, r->comm.wait(r->comm.ctx, r->stream, &r->error));
    cuda(cudaStreamSynchronize(r->stream), "first call");
    if (is_captured) {
        cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "capture");
        work(r, count);
        cuda(cudaStreamEndCapture(r->stream, &graph), "capture");
        cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
    }
    for (int i = 0; i <= rounds; i++)
        cuda(cudaEventCreate(&at[i]), "event");
    if (r->world > 1) pthread_barrier_wait(&barrier);
    for (int i = -1; i <= rounds; i++) {
        if (i >= 0) cuda(cudaEventRecord(at[i], r->stream), "event");
        if (i == rounds) break;
        if (is_captured)
            cuda(cudaGraphLaunch(exec, r->stream), "graph");
        else
            work(r, count);
    }
    cuda(cudaStreamSynchronize(r->stream), "rounds");
    for (int i = 0; i < rounds; i++) {
        cuda(cudaEventElapsedTime(&times[i], at[i], at[i + 1]), "event");
        for (int k = i; k > 0 && times[k] < times[k - 1]; k--) {
            const float t = times[k];
            times[k] = times[k - 1], times[k - 1] = t;
        }
    }
    for (int i = 0; i <= rounds; i++)
        cudaEventDestroy(at[i]);
    if (is_captured) cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    return (double)times[rounds / 2] * 1000 / count;
}

/* A communicator that exchanges nothing while it is mute. */
static int mute_gather(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                       attn_error_t *error) {
    rig_t *r = ctx;
    return r->is_mute ? ATTN_OK : r->comm.all_gather(r->comm.ctx, send, recv, bytes, stream, error);
}
static int mute_exchange(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                         attn_error_t *error) {
    rig_t *r = ctx;
    return r->is_mute ? ATTN_OK : r->comm.all_to_all(r->comm.ctx, send, recv, bytes, stream, error);
}
static int mute_sum(void *ctx, const void *send, void *recv, uint64_t count, uint32_t dtype, void *stream,
                    attn_error_t *error) {
    rig_t *r = ctx;
    return r->is_mute ? ATTN_OK
                      : r->comm.reduce_scatter(r->comm.ctx, send, recv, count, dtype, stream, error);
}
static int mute_wait(void *ctx, void *stream, attn_error_t *error) {
    rig_t *r = ctx;
    return r->comm.wait(r->comm.ctx, stream, error);
}

static void *run_rank(void *user) {
    rig_t *r = user;
    const int count = r->is_captured ? LAYERS : 1;
    cuda(cudaSetDevice(r->rank), "device");
    ATTN_INIT(attn_comm_t, mute);
    mute.flags = ATTN_COMM_DEVICE, mute.world = r->world, mute.rank = r->rank, mute.ctx = r;
    mute.all_gather = mute_gather, mute.all_to_all = mute_exchange, mute.reduce_scatter = mute_sum;
    mute.wait = mute_wait;
    need(r, attn_group_set_comm(r->group, r->leaves_out ? &mute : &r->comm, r->join, &r->error));
    prepare(r);
    need(r, attn_group_build_metadata(r->group, &r->batch, &r->space, r->stream, &r->error));
    r->is_mute = r->leaves_out;
    r->microseconds = measure(r, layers, count, r->is_captured);
    if (!r->leaves_out && !r->by_peers) r->exchanges = measure(r, exchanges, count, r->is_captured);
    return NULL;
}

/* One GPU: `heads` heads over `len` keys. */
static double alone_of(const row_t *row, uint32_t heads, int32_t len) {
    rig_t r = {.row = row, .world = 1, .len = len};
    open_rig(&r, heads);
    prepare(&r);
    need(&r, attn_group_build_metadata(r.group, &r.batch, &r.space, r.stream, &r.error));
    const double us = measure(&r, layers, r.is_captured ? LAYERS : 1, r.is_captured);
    close_rig(&r);
    return us;
}
static double alone(const row_t *row, int32_t len) {
    return alone_of(row, row->heads, len);
}

/* What the projections of `heads` heads take. */
static double projections(const row_t *row, uint32_t heads) {
    row_t absorbed = *row;
    absorbed.projects = 0;
    return alone_of(row, heads, 64) - alone_of(&absorbed, heads, 64);
}

/* All GPUs: the slowest rank, and exchanges; exchange NULL: without them. by_peers: through memory. */
static double together(const row_t *row, uint32_t join, double *exchange, int by_peers) {
    static rig_t rigs[MOST_WORLD];
    pthread_t threads[MOST_WORLD];
    double us = 0;
    if (exchange != NULL) *exchange = 0;
    for (int i = 0; i < ranks; i++) {
        rigs[i] = (rig_t){.row = row, .world = ranks, .rank = i, .len = row->len, .join = join};
        rigs[i].leaves_out = exchange == NULL && !by_peers, rigs[i].by_peers = by_peers;
        open_rig(&rigs[i], row->heads / (uint32_t)ranks);
    }
    for (int i = 0; i < ranks; i++)
        pthread_create(&threads[i], NULL, run_rank, &rigs[i]);
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < ranks; i++) {
        if (rigs[i].microseconds > us) us = rigs[i].microseconds;
        if (exchange != NULL && rigs[i].exchanges > *exchange) *exchange = rigs[i].exchanges;
        cuda(cudaSetDevice(i), "device");
        close_rig(&rigs[i]);
    }
    for (int i = 0; i < ranks; i++) /* when the groups of all ranks are closed */
        if (by_peers) attn_comm_nccl_end(&rigs[i].nccl);
    return us;
}

static void meet(void) {
    ncclUniqueId id;
    ncclResult_t state = ncclGetUniqueId(&id);
    ncclGroupStart();
    for (int r = 0; r < ranks && state == ncclSuccess; r++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        cuda(cudaSetDevice(r), "device");
        ncclCommInitRankConfig(&comms[r], ranks, id, r, &config);
    }
    ncclGroupEnd();
    for (int r = 0; r < ranks; r++) {
        do
            ncclCommGetAsyncError(comms[r], &state);
        while (state == ncclInProgress);
        if (state != ncclSuccess) {
            fprintf(stderr, "ranks_bench: NCCL, rank %d: %s\n", r, ncclGetErrorString(state));
            exit(1);
        }
    }
}

int main(int argc, char **argv) {
    attn_error_t error = {.struct_size = sizeof error};
    struct cudaDeviceProp prop;
    int count = 0, version = 0, first = 1;
    if (argc > 2 && strcmp(argv[1], "-n") == 0) ranks = atoi(argv[2]), first = 3;
    if (ranks < 2 || ranks > MOST_WORLD) {
        fprintf(stderr, "ranks_bench: give 2 to %d ranks\n", MOST_WORLD);
        return 1;
    }
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < ranks) {
        fprintf(stderr, "ranks_bench: needs %d CUDA devices, here are %d\n", ranks, count);
        return 77;
    }
    for (int r = 0; r < ranks; r++)
        if (attn_context_create(NULL, &contexts[r], &error) != ATTN_OK) {
            fprintf(stderr, "ranks_bench: %s\n", error.text);
            return 1;
        }
    pthread_barrier_init(&barrier, NULL, ranks);
    meet();
    cuda(cudaGetDeviceProperties(&prop, 0), "device");
    ncclGetVersion(&version);
    printf("%d x %s, NCCL %d.%d.%d; microseconds of a layer, bfloat16, pages of 64 or of a run\n"
           "%-50s %8s %8s %6s %6s | %9s %7s %9s %6s | %8s %6s %6s | %6s | %8s %6s %6s\n",
           ranks, prop.name, version / 10000, version / 100 % 100, version % 100, "", "one GPU", "ranks",
           "ratio", "target", "attention", "kernels", "exchanges", "alone", "red.-sc.", "ratio", "alone",
           "MiB", "peers", "ratio", "over");
    for (int i = 0; i < NUM_ROWS; i++) {
        const row_t *row = &rows[i];
        int is_wanted = argc <= first;
        for (int k = first; k < argc; k++)
            is_wanted |= strstr(row->name, argv[k]) != NULL;
        if (!is_wanted) continue;
        double exchange, other;
        const double one = alone(row, row->len),
                     part = row->query == 1 ? alone(row, row->len / ranks) : one / ranks,
                     two = together(row, ATTN_JOIN_ALL_TO_ALL, &exchange, 0),
                     mute = together(row, ATTN_JOIN_ALL_TO_ALL, NULL, 0),
                     sum = together(row, ATTN_JOIN_REDUCE_SCATTER, &other, 0),
                     peers = together(row, ATTN_JOIN_ALL_TO_ALL, NULL, 1);
        printf("%-50s %8.1f %8.1f %6.2f %6.2f | %9.1f %7.1f %9.1f %6.1f | %8.1f %6.2f %6.1f | %6.0f",
               row->name, one, two, one / two, row->target, part, mute - part, two - mute, exchange, sum,
               one / sum, other, last_megabytes);
        printf(" | %8.1f %6.2f %6.1f", peers, one / peers, peers - part);
        if (row->projects)
            printf(" | projections of %u heads %.1f, of %u %.1f", row->heads, projections(row, row->heads),
                   row->heads / (uint32_t)ranks, projections(row, row->heads / (uint32_t)ranks));
        printf("\n");
        fflush(stdout);
    }
    for (int r = 0; r < ranks; r++)
        attn_context_destroy(contexts[r]);
    return 0; /* the communicators end with the process */
}
