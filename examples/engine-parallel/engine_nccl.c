/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_nccl.c: engine_parallel.c on GPUs: one layer of a decoder whose tokens are spread over the
 * devices of one machine, a thread a device, joined over NCCL (doc/parallel.md).
 *
 *     cc -pthread engine_nccl.c -o engine_nccl $(pkg-config --cflags --libs attn) -I/usr/local/cuda/include \
 *        -L/usr/local/cuda/lib64 -lcudart -lnccl -lm
 *     ./engine_nccl 1           # one device, a checksum of all outputs
 *     ./engine_nccl 2           # two devices: the same checksum, but for the rounding of partial results
 *
 * Weights are left out: queries, keys and values are made up from the position.
 */
#include "engine_ranks.h"

#include <attn/attn_comm_nccl.h>

#include <pthread.h>

/* What one rank has; what ends in _there lies on its device. */
typedef struct rank {
    int world, rank, heads, computed;
    ncclUniqueId id;
    attn_comm_nccl_t nccl;
    attn_context_t *context;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    cudaStream_t stream;
    attn_kv_cache_shape_t shape;
    int32_t table[PAGES];
    int64_t slots[PROMPT];
    uint16_t query[PROMPT * HEADS * D], output[PROMPT * HEADS * D], key[PROMPT * D], value[PROMPT * D];
    void *query_there, *output_there, *key_there, *value_there, *slots_there, *table_there, *cache_there;
    double sum; /* of all outputs of its heads */
    attn_error_t error;
} rank_t;

static void must(rank_t *r, int code, const char *what) {
    must_be_ok(r->rank, &r->error, code, what);
}

static void cuda(rank_t *r, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "rank %d: %s: %s\n", r->rank, what, cudaGetErrorString(e));
    exit(1);
}

static void *there(rank_t *r, uint64_t bytes) {
    void *p = NULL;
    cuda(r, cudaMalloc(&p, bytes + 256), "device memory");
    return p;
}

static const DLTensor *dense(const rank_t *r, tensor_t *t, void *data, DLDataTypeCode code, int bits,
                             int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    return dense_on((DLDevice){kDLCUDA, r->rank}, t, data, code, bits, ndim, a, b, c, d);
}

/* NCCL's part: the communicator, which does not block, so that a rank that is missing is noticed. */
static void meet(rank_t *r) {
    attn_comm_t comm;
    ncclComm_t made = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t state = ncclCommInitRankConfig(&made, r->world, r->id, r->rank, &config);
    while (state == ncclInProgress) {
        sched_yield();
        ncclCommGetAsyncError(made, &state);
    }
    if (state != ncclSuccess) {
        fprintf(stderr, "rank %d: NCCL: %s\n", r->rank, ncclGetErrorString(state));
        exit(1);
    }
    must(r, attn_comm_nccl_init(&r->nccl, made, LIMIT_MS, &comm, &r->error), "NCCL");
    must(r, attn_group_set_comm(r->group, &comm, 0, &r->error), "communicator");
}

static void open_rank(rank_t *r) {
    ATTN_INIT(attn_device_t, device);
    ATTN_INIT(attn_space_needed_t, need);
    char name[16];
    void *host = NULL;
    r->error.struct_size = sizeof r->error;
    r->shape.struct_size = sizeof r->shape;
    r->heads = HEADS / r->world;
    attn_problem_t p = problem_of(r->world, r->rank, ATTN_DTYPE_FLOAT16);
    snprintf(name, sizeof name, "cuda:%d", r->rank);
    cuda(r, cudaSetDevice(r->rank), "device");
    cuda(r, cudaStreamCreate(&r->stream), "stream");
    must(r, attn_context_create(NULL, &r->context, &r->error), "context"); /* one a rank */
    must(r, attn_device_parse(name, &device, &r->error), "device");
    must(r, attn_group_open(r->context, &p, &device, NULL, &r->group, NULL, &r->error), "open");
    if (r->world > 1) meet(r);
    must(r, attn_layer_create(r->group, "model.layers.0.self_attn.attn", NULL, &r->layer, &r->error),
         "layer");
    must(r, attn_group_kv_cache_shape(r->group, 0, &r->shape, &r->error), "cache");
    must(r, attn_group_space_needed(r->group, &need, &r->error), "space");
    cuda(r, cudaMallocHost(&host, need.host_bytes + 1), "pinned memory");
    r->space = (attn_space_t){.struct_size = sizeof r->space,
                              .metadata = there(r, need.metadata_bytes),
                              .metadata_bytes = need.metadata_bytes,
                              .workspace = there(r, need.workspace_bytes),
                              .workspace_bytes = need.workspace_bytes,
                              .host = host,
                              .host_bytes = need.host_bytes};
    r->cache_there = there(r, (uint64_t)r->shape.total_bytes);
    r->query_there = there(r, sizeof r->query), r->output_there = there(r, sizeof r->output);
    r->key_there = there(r, sizeof r->key), r->value_there = there(r, sizeof r->value);
    r->slots_there = there(r, sizeof r->slots), r->table_there = there(r, sizeof r->table);
    for (int i = 0; i < PAGES; i++)
        r->table[i] = i; /* each rank numbers its own pages */
    cuda(r, cudaMemcpy(r->table_there, r->table, sizeof r->table, cudaMemcpyHostToDevice), "table");
}

/* n new tokens: every rank makes all keys and values and the queries of its own heads. */
static void step(rank_t *r, int n) {
    const int32_t starts[2] = {0, n}, lens[1] = {r->computed + n};
    tensor_t tq, tk, tv, to, tc, tt, ts;
    for (int i = 0; i < n; i++)
        for (int d = 0; d < D; d++) {
            const int position = r->computed + i;
            r->key[i * D + d] = attn_to_f16(sinf(0.37f * (float)(position * 3 + d)));
            r->value[i * D + d] = attn_to_f16(cosf(0.11f * (float)(position * 5 + d)));
            for (int h = 0; h < r->heads; h++)
                r->query[(i * r->heads + h) * D + d] =
                    attn_to_f16(2 * sinf(0.23f * (float)(position + 7 * (r->rank * r->heads + h) + d)));
        }
    must(r, slots_of(r->world, r->rank, starts, lens, r->table, r->slots, &r->error), "slots");
    cudaMemcpyAsync(r->query_there, r->query, sizeof r->query, cudaMemcpyHostToDevice, r->stream);
    cudaMemcpyAsync(r->key_there, r->key, sizeof r->key, cudaMemcpyHostToDevice, r->stream);
    cudaMemcpyAsync(r->value_there, r->value, sizeof r->value, cudaMemcpyHostToDevice, r->stream);
    cudaMemcpyAsync(r->slots_there, r->slots, sizeof r->slots, cudaMemcpyHostToDevice, r->stream);

    ATTN_INIT(attn_batch_t, batch);
    batch.num_reqs = 1;
    batch.num_actual_tokens = n;
    batch.query_start_loc_host = starts;
    batch.seq_lens_host = lens; /* of the whole request, the same on every rank */
    batch.block_table = dense(r, &tt, r->table_there, kDLInt, 32, 2, 1, PAGES, 1, 1);
    must(r, attn_group_build_metadata(r->group, &batch, &r->space, r->stream, &r->error), "metadata");

    ATTN_INIT(attn_kv_update_t, update);
    update.key = dense(r, &tk, r->key_there, kDLFloat, 16, 3, n, 1, D, 1);
    update.value = dense(r, &tv, r->value_there, kDLFloat, 16, 3, n, 1, D, 1);
    update.kv_cache = dense(r, &tc, r->cache_there, kDLFloat, 16, 4, 1, 1, 1, 1);
    for (uint32_t i = 0; i < r->shape.ndim; i++)
        tc.shape[i] = r->shape.shape[i], tc.strides[i] = r->shape.byte_strides[i] / 2;
    update.slot_mapping = dense(r, &ts, r->slots_there, kDLInt, 64, 1, n, 1, 1, 1);
    must(r, attn_layer_update_kv_cache(r->layer, &update, r->stream, &r->error), "cache write");

    ATTN_INIT(attn_forward_t, args);
    args.query = dense(r, &tq, r->query_there, kDLFloat, 16, 3, n, r->heads, D, 1);
    args.output = dense(r, &to, r->output_there, kDLFloat, 16, 3, n, r->heads, D, 1);
    args.kv_cache = update.kv_cache;
    must(r, attn_layer_forward(r->layer, &args, &r->space, r->stream, &r->error), "forward");
    cudaMemcpyAsync(r->output, r->output_there, sizeof r->output, cudaMemcpyDeviceToHost, r->stream);
    cuda(r, cudaStreamSynchronize(r->stream), "step");
    for (int i = 0; i < n * r->heads * D; i++)
        r->sum += attn_from_f16(r->output[i]) * (1 + 0.001 * (i % D));
    r->computed += n;
}

static void *run(void *user) {
    rank_t *r = user;
    open_rank(r);
    step(r, PROMPT);
    for (int i = 0; i < STEPS; i++)
        step(r, 1);
    attn_layer_destroy(r->layer);
    attn_group_close(r->group);
    attn_context_destroy(r->context);
    if (r->nccl.comm != NULL) ncclCommDestroy(r->nccl.comm);
    return NULL; /* the device's memory ends with the process */
}

int main(int argc, char **argv) {
    static rank_t ranks[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    ncclUniqueId id;
    const int world = argc > 1 ? atoi(argv[1]) : 2;
    int devices = 0;
    double sum = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || world < 1 || world > MAX_RANKS || HEADS % world != 0 ||
        world > devices || ncclGetUniqueId(&id) != ncclSuccess) {
        fprintf(stderr, "engine_nccl: %d ranks on %d devices; %d heads go over 1, 2, 4 or 8 devices\n", world,
                devices, HEADS);
        return 2;
    }
    for (int i = 0; i < world; i++) {
        ranks[i].world = world, ranks[i].rank = i, ranks[i].id = id;
        pthread_create(&threads[i], NULL, run, &ranks[i]);
    }
    for (int i = 0; i < world; i++) {
        pthread_join(threads[i], NULL);
        sum += ranks[i].sum;
    }
    printf("%d devices, %d tokens: %.1f\n", world, ranks[0].computed, sum);
    return 0;
}
