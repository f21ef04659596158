/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes with a GPU each: the memory of peers that attn_comm_nccl.h shares by CUDA's handles,
 * against one rank in double (semantics 8.6): two of them, and four where there are as many devices. */
#include "../layer/ranks_world.h"
#include "ranks_cases.h"

#include <attn/attn_comm_nccl.h>

#include <signal.h>
#include <sys/wait.h>

enum { NUM_CASES = 2 * NUM_GPU_CASES };

/* What a rank is given: its number, and pipes: for NCCL's id, which rank 0 writes for each of the others, for
 * its report, and for the word that all are through. */
struct place {
    int world, rank, id[MAX_WORLD][2], tell[2], done[2];
};

/* What a rank tells the test: by a pipe, since it is another process. */
struct report {
    int has_devices, reaches[NUM_CASES], code[NUM_CASES];
    double worst[NUM_CASES], bias[NUM_CASES];
    char text[320];
};

static int (*peers_of_nccl)(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error);
static int last_peers = ATTN_E_STATE, exchanges;
static int watched_peers(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error) {
    return last_peers = peers_of_nccl(ctx, bytes, of_rank, error);
}
static int (*exchange_of_nccl)(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                               attn_error_t *error);
static int watched_exchange(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                            attn_error_t *error) {
    exchanges++;
    return exchange_of_nccl(ctx, send, recv, bytes, stream, error);
}

static int begin_nccl(const struct place *at, ncclComm_t *nccl) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (at->rank == 0 && ncclGetUniqueId(&id) != ncclSuccess) return 0;
    for (int r = 1; r < at->world && at->rank == 0; r++)
        if (write(at->id[r][1], &id, sizeof id) != sizeof id) return 0;
    if (at->rank > 0 && read(at->id[at->rank][0], &id, sizeof id) != sizeof id) return 0;
    ncclResult_t state = ncclCommInitRankConfig(nccl, at->world, id, at->rank, &config);
    while (state == ncclInProgress)
        ncclCommGetAsyncError(*nccl, &state);
    return state == ncclSuccess;
}

/* Everything that a rank does; it ends with the process. */
static void rank_process(const struct place *at, uint64_t seed) {
    static struct report all;
    attn_error_t error = ERROR_INIT;
    attn_context_t *context;
    ncclComm_t nccl = NULL;
    attn_comm_nccl_t n[NUM_CASES + 1];
    attn_comm_t comm;
    const int rank = at->rank, world = at->world;
    int count = 0;
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", rank);
    if (cudaGetDeviceCount(&count) == cudaSuccess && count >= world && cudaSetDevice(rank) == cudaSuccess &&
        attn_device_parse(name, &rank_device, &error) == ATTN_OK && begin_nccl(at, &nccl))
        all.has_devices = 1;
    for (int i = 0; i < NUM_CASES; i++)
        all.worst[i] = 9;
    for (int i = 0; i < NUM_CASES && all.has_devices; i++) {
        struct rank_world w;
        context = rank_context_of("reference, flash, triton_like, mla",
                                  i % 2 != 0 ? "[attn]\nrank_part_bytes = 2000\n" : "");
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        rank_stream = stream;
        if (make_rank_world(&w, &gpu_cases[i / 2], world, context, seed + (uint64_t)i, &error) != ATTN_OK)
            break;
        char *output = malloc((size_t)w.tokens * w.c.heads * (size_t)w.value_size * 8);
        float *lse = malloc((size_t)w.tokens * w.c.heads * 4);
        int code = attn_comm_nccl_init(&n[i], nccl, 20000, &comm, &error);
        if (code == ATTN_OK) code = attn_comm_nccl_offer_peers(&n[i], &comm, &error);
        peers_of_nccl = comm.peers, comm.peers = watched_peers;
        exchange_of_nccl = comm.all_to_all, comm.all_to_all = watched_exchange;
        exchanges = 0;
        if (code == ATTN_OK)
            code = run_rank(&w, context, w.c.backend, w.c.dtype, world, rank, &comm, w.c.seq, output, lse,
                            &error);
        all.code[i] = code;
        all.reaches[i] = last_peers == ATTN_OK ? 1 + exchanges : 0;
        if (code != ATTN_OK) snprintf(all.text, sizeof all.text, "%s: %.200s", error.param, error.text);
        rank_bias = 0;
        all.worst[i] = code == ATTN_OK ? rank_difference(&w, rank, w.c.dtype, output, lse) : 9;
        all.bias[i] = rank_bias;
        free(output), free(lse);
        free_rank_world(&w);
        attn_context_destroy(context);
        cudaStreamDestroy(stream);
    }
    if (write(at->tell[1], &all, sizeof all) != (ssize_t)sizeof all) _exit(1);
    char done = 0; /* the others are through too, and their memory may go */
    if (read(at->done[0], &done, 1) != 1) _exit(1);
    for (int i = 0; i < NUM_CASES && all.has_devices; i++)
        attn_comm_nccl_end(&n[i]);
    if (nccl != NULL) ncclCommDestroy(nccl);
    _exit(0);
}

/* 0: there are not so many devices, or they do not work together. */
static int run_world(int world, uint64_t seed) {
    struct place at = {.world = world};
    struct report r[MAX_WORLD];
    int tells[MAX_WORLD], done[MAX_WORLD], have_devices = 0;
    for (int rank = 1; rank < world; rank++)
        if (pipe(at.id[rank]) != 0) bail_out("pipe");
    for (int rank = 0; rank < world; rank++) {
        if (pipe(at.tell) != 0 || pipe(at.done) != 0) bail_out("pipe");
        at.rank = rank, tells[rank] = at.tell[0], done[rank] = at.done[1];
        fflush(NULL);
        const pid_t pid = fork();
        if (pid < 0) bail_out("fork");
        if (pid == 0) rank_process(&at, seed);
        close(at.tell[1]), close(at.done[0]);
    }
    for (int rank = 0; rank < world; rank++) {
        memset(&r[rank], 0, sizeof r[rank]);
        if (read(tells[rank], &r[rank], sizeof r[rank]) != (ssize_t)sizeof r[rank]) {
            diag("rank %d said nothing", rank);
            for (int i = 0; i < NUM_CASES; i++)
                r[rank].worst[i] = 9;
        }
        have_devices |= r[rank].has_devices;
    }
    for (int rank = 0; rank < world; rank++)
        if (write(done[rank], "", 1) != 1) diag("rank %d has ended", rank);
    while (wait(NULL) > 0)
        ;
    for (int rank = 0; rank < world; rank++)
        close(tells[rank]), close(done[rank]);
    for (int i = 0; i < NUM_CASES && have_devices; i++)
        for (int rank = 0; rank < world; rank++) {
            ok(r[rank].worst[i] < gpu_cases[i / 2].tolerance &&
                   r[rank].bias[i] < RANK_MOST_BIAS * gpu_cases[i / 2].tolerance,
               "%s, rank %d of %d%s, %s (%.1e, mean %.1e) %s", gpu_cases[i / 2].backend, rank, world,
               i % 2 != 0 ? " in parts" : "", gpu_cases[i / 2].what, r[rank].worst[i], r[rank].bias[i],
               r[rank].code[i] != ATTN_OK ? r[rank].text : "");
            if (r[rank].reaches[i] == 0)
                skip(1, "the devices do not reach each other");
            else
                ok(r[rank].reaches[i] == 1, "results did not go through NCCL");
        }
    return have_devices;
}

/* Ranks begin before this process has touched a device. */
int main(void) {
    const uint64_t seed = tap_seed();
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    signal(SIGPIPE, SIG_IGN);
    if (!run_world(2, seed)) skip_all("no two CUDA devices, or NCCL does not start on them");
    if (!run_world(MAX_WORLD, seed)) diag("no %d CUDA devices", MAX_WORLD);
    return tap_done();
}
