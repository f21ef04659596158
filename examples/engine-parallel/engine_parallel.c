/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_parallel.c: one layer of a decoder whose tokens are spread over ranks: a prompt and then one token a
 * step. Each rank keeps its share of the keys and values and has query heads of its own (doc/parallel.md).
 *
 *     cc -pthread engine_parallel.c -o engine_parallel $(pkg-config --cflags --libs attn) -lm
 *     ./engine_parallel 1           # one rank, a checksum of all outputs
 *     ./engine_parallel 4           # four threads: the same checksum
 *     mpicc -DWITH_MPI engine_parallel.c -o engine_mpi $(pkg-config --cflags --libs attn) -lm
 *     mpirun -n 4 ./engine_mpi      # four processes: the same
 *
 * Weights are left out: queries, keys and values are made up from the position.
 */
#include "engine_ranks.h"

#ifdef WITH_MPI
#include <attn/attn_comm_mpi.h>
#else
#include <attn/attn_comm_threads.h>
#endif

/* What one rank has. All heads of the model read one KV head, which every rank has; HEADS / world are its
 * own. */
typedef struct rank {
    int world, rank, heads, computed;
    attn_comm_t comm;
    attn_context_t *context;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    float *cache;
    int32_t table[PAGES];
    float query[PROMPT * HEADS * D], output[PROMPT * HEADS * D], key[PROMPT * D], value[PROMPT * D];
    int64_t slots[PROMPT];
    double sum; /* of all outputs of its heads */
    attn_error_t error;
} rank_t;

static void must(rank_t *r, int code, const char *what) {
    must_be_ok(r->rank, &r->error, code, what);
}

static void *room(uint64_t bytes) {
    return aligned_alloc(256, (bytes + 256) / 256 * 256);
}

static const DLTensor *dense(tensor_t *t, void *data, DLDataTypeCode code, int bits, int ndim, int64_t a,
                             int64_t b, int64_t c, int64_t d) {
    return dense_on((DLDevice){kDLCPU, 0}, t, data, code, bits, ndim, a, b, c, d);
}

/* The layer, over ranks if there are more than one. */
static void open_rank(rank_t *r) {
    ATTN_INIT(attn_device_t, cpu);
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, need);
    r->error.struct_size = sizeof r->error;
    r->heads = HEADS / r->world;
    attn_problem_t p = problem_of(r->world, r->rank, ATTN_DTYPE_FLOAT32);
    p.kv_layout = ATTN_LAYOUT_HND;
    must(r, attn_context_create(NULL, &r->context, &r->error),
         "context"); /* one a rank: names are unique in it */
    must(r, attn_device_parse("cpu", &cpu, &r->error), "device");
    must(r, attn_group_open(r->context, &p, &cpu, NULL, &r->group, NULL, &r->error), "open");
    if (r->world > 1) must(r, attn_group_set_comm(r->group, &r->comm, 0, &r->error), "communicator");
    must(r, attn_layer_create(r->group, "model.layers.0.self_attn.attn", NULL, &r->layer, &r->error),
         "layer");
    must(r, attn_group_kv_cache_shape(r->group, 0, &shape, &r->error), "cache");
    must(r, attn_group_space_needed(r->group, &need, &r->error), "space");
    r->cache = room((uint64_t)shape.total_bytes);
    r->space = (attn_space_t){.struct_size = sizeof r->space,
                              .metadata = room(need.metadata_bytes),
                              .metadata_bytes = need.metadata_bytes,
                              .workspace = room(need.workspace_bytes),
                              .workspace_bytes = need.workspace_bytes,
                              .host = room(need.host_bytes),
                              .host_bytes = need.host_bytes};
    for (int i = 0; i < PAGES; i++)
        r->table[i] = i; /* each rank numbers its own pages */
}

/* n new tokens: every rank makes all keys and values and the queries of its own heads. */
static void step(rank_t *r, int n) {
    const int32_t starts[2] = {0, n}, lens[1] = {r->computed + n};
    tensor_t tq, tk, tv, to, tc, tt, ts;
    for (int i = 0; i < n; i++)
        for (int d = 0; d < D; d++) {
            const int position = r->computed + i;
            r->key[i * D + d] = sinf(0.37f * (float)(position * 3 + d));
            r->value[i * D + d] = cosf(0.11f * (float)(position * 5 + d));
            for (int h = 0; h < r->heads; h++)
                r->query[(i * r->heads + h) * D + d] =
                    2 * sinf(0.23f * (float)(position + 7 * (r->rank * r->heads + h) + d));
        }
    must(r, slots_of(r->world, r->rank, starts, lens, r->table, r->slots, &r->error), "slots");

    ATTN_INIT(attn_batch_t, batch);
    batch.num_reqs = 1;
    batch.num_actual_tokens = n;
    batch.query_start_loc_host = starts;
    batch.seq_lens_host = lens; /* of the whole request, the same on every rank */
    batch.block_table = dense(&tt, r->table, kDLInt, 32, 2, 1, PAGES, 1, 1);
    must(r, attn_group_build_metadata(r->group, &batch, &r->space, NULL, &r->error), "metadata");

    ATTN_INIT(attn_kv_update_t, update);
    update.key = dense(&tk, r->key, kDLFloat, 32, 3, n, 1, D, 1);
    update.value = dense(&tv, r->value, kDLFloat, 32, 3, n, 1, D, 1);
    update.kv_cache = dense(&tc, r->cache, kDLFloat, 32, 4, PAGES, 1, BLOCK, 2 * D);
    update.slot_mapping = dense(&ts, r->slots, kDLInt, 64, 1, n, 1, 1, 1);
    must(r, attn_layer_update_kv_cache(r->layer, &update, NULL, &r->error), "cache write");

    ATTN_INIT(attn_forward_t, args);
    args.query = dense(&tq, r->query, kDLFloat, 32, 3, n, r->heads, D, 1);
    args.output = dense(&to, r->output, kDLFloat, 32, 3, n, r->heads, D, 1);
    args.kv_cache = update.kv_cache;
    must(r, attn_layer_forward(r->layer, &args, &r->space, NULL, &r->error), "forward");
    for (int i = 0; i < n * r->heads * D; i++)
        r->sum += r->output[i] * (1 + 0.001 * (i % D));
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
    free(r->cache), free(r->space.metadata), free(r->space.workspace), free(r->space.host);
    return NULL;
}

static int is_possible(int world) {
    if (world >= 1 && world <= MAX_RANKS && HEADS % world == 0) return 1;
    fprintf(stderr, "engine_parallel: %d ranks; %d heads go over 1, 2, 4 or 8\n", world, HEADS);
    return 0;
}

#ifdef WITH_MPI
int main(int argc, char **argv) {
    static rank_t r;
    attn_comm_mpi_t mpi;
    double sum = 0;
    MPI_Init(&argc, &argv);
    r.error.struct_size = sizeof r.error;
    must(&r, attn_comm_mpi_init(&mpi, MPI_COMM_WORLD, LIMIT_MS, &r.comm, &r.error), "MPI");
    r.world = r.comm.world, r.rank = r.comm.rank;
    if (!is_possible(r.world)) MPI_Abort(MPI_COMM_WORLD, 2);
    run(&r);
    MPI_Reduce(&r.sum, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (r.rank == 0) printf("%d processes, %d tokens: %.4f\n", r.world, r.computed, sum);
    attn_comm_mpi_end(&mpi);
    MPI_Finalize();
    return 0;
}
#else
int main(int argc, char **argv) {
    static rank_t ranks[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    attn_comm_threads_t *all = NULL;
    const int world = argc > 1 ? atoi(argv[1]) : 2;
    double sum = 0;
    if (!is_possible(world)) return 2;
    ranks[0].error.struct_size = sizeof ranks[0].error;
    must(&ranks[0], attn_comm_threads_create(world, LIMIT_MS, &all, &ranks[0].error), "threads");
    for (int i = 0; i < world; i++) {
        ranks[i].world = world, ranks[i].rank = i, ranks[i].comm = attn_comm_threads_rank(all, i);
        pthread_create(&threads[i], NULL, run, &ranks[i]);
    }
    for (int i = 0; i < world; i++) {
        pthread_join(threads[i], NULL);
        sum += ranks[i].sum;
    }
    printf("%d threads, %d tokens: %.4f\n", world, ranks[0].computed, sum);
    attn_comm_threads_destroy(all);
    return 0;
}
#endif
