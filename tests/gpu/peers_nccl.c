/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks, two GPUs, two processes: the memory of peers that attn_comm_nccl.h shares by CUDA's handles,
 * against one rank in double (semantics 8.6). Needs two devices that reach each other. */
#include "../layer/ranks_world.h"
#include "ranks_cases.h"

#include <attn/attn_comm_nccl.h>
#include <sys/wait.h>

enum { WORLD = 2, NUM_CASES = 2 * NUM_GPU_CASES };

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

static int begin_nccl(int rank, int to_other, int from_other, ncclComm_t *nccl) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (rank == 0 && (ncclGetUniqueId(&id) != ncclSuccess || write(to_other, &id, sizeof id) != sizeof id))
        return 0;
    if (rank == 1 && read(from_other, &id, sizeof id) != sizeof id) return 0;
    ncclResult_t state = ncclCommInitRankConfig(nccl, WORLD, id, rank, &config);
    while (state == ncclInProgress)
        ncclCommGetAsyncError(*nccl, &state);
    return state == ncclSuccess;
}

/* Everything that a rank does; it ends with the process. */
static void rank_process(int rank, uint64_t seed, int to_other, int from_other, int tell) {
    static struct report all;
    attn_error_t error = ERROR_INIT;
    attn_context_t *context;
    ncclComm_t nccl = NULL;
    attn_comm_nccl_t n[NUM_CASES + 1];
    attn_comm_t comm;
    int count = 0;
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", rank);
    if (cudaGetDeviceCount(&count) == cudaSuccess && count >= WORLD && cudaSetDevice(rank) == cudaSuccess &&
        attn_device_parse(name, &rank_device, &error) == ATTN_OK &&
        begin_nccl(rank, to_other, from_other, &nccl))
        all.has_devices = 1;
    for (int i = 0; i < NUM_CASES && all.has_devices; i++) {
        struct rank_world w;
        context = rank_context_of("reference, flash, triton_like, mla",
                                  i % 2 != 0 ? "[attn]\nrank_part_bytes = 2000\n" : "");
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        rank_stream = stream;
        if (make_rank_world(&w, &gpu_cases[i / 2], WORLD, context, seed + (uint64_t)i, &error) != ATTN_OK)
            break;
        char *output = malloc((size_t)w.tokens * w.c.heads * (size_t)w.value_size * 8);
        float *lse = malloc((size_t)w.tokens * w.c.heads * 4);
        int code = attn_comm_nccl_init(&n[i], nccl, 20000, &comm, &error);
        if (code == ATTN_OK) code = attn_comm_nccl_offer_peers(&n[i], &comm, &error);
        peers_of_nccl = comm.peers, comm.peers = watched_peers;
        exchange_of_nccl = comm.all_to_all, comm.all_to_all = watched_exchange;
        exchanges = 0;
        if (code == ATTN_OK)
            code = run_rank(&w, context, w.c.backend, w.c.dtype, WORLD, rank, &comm, w.c.seq, output, lse,
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
    if (write(tell, &all, sizeof all) != (ssize_t)sizeof all) _exit(1);
    char done = 0; /* the other is through too, and its memory may go */
    if (write(to_other, &done, 1) != 1 || read(from_other, &done, 1) != 1) _exit(1);
    for (int i = 0; i < NUM_CASES && all.has_devices; i++)
        attn_comm_nccl_end(&n[i]);
    if (nccl != NULL) ncclCommDestroy(nccl);
    _exit(0);
}

int main(void) {
    const uint64_t seed = tap_seed();
    int pipes[2][2], tells[WORLD][2];
    struct report r[WORLD];
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (pipe(pipes[0]) != 0 || pipe(pipes[1]) != 0) bail_out("pipe");
    for (int rank = 0; rank < WORLD; rank++) { /* before this process has touched a device */
        if (pipe(tells[rank]) != 0) bail_out("pipe");
        fflush(NULL);
        const pid_t pid = fork();
        if (pid < 0) bail_out("fork");
        if (pid == 0) rank_process(rank, seed, pipes[rank][1], pipes[1 - rank][0], tells[rank][1]);
        close(tells[rank][1]);
    }
    for (int rank = 0; rank < WORLD; rank++) {
        memset(&r[rank], 0, sizeof r[rank]);
        if (read(tells[rank][0], &r[rank], sizeof r[rank]) != (ssize_t)sizeof r[rank])
            diag("rank %d said nothing", rank);
    }
    while (wait(NULL) > 0)
        ;
    if (!r[0].has_devices && !r[1].has_devices)
        skip_all("no two CUDA devices, or NCCL does not start on them");
    for (int i = 0; i < NUM_CASES; i++)
        for (int rank = 0; rank < WORLD; rank++) {
            ok(r[rank].worst[i] < gpu_cases[i / 2].tolerance &&
                   r[rank].bias[i] < RANK_MOST_BIAS * gpu_cases[i / 2].tolerance,
               "%s, rank %d%s, %s (%.1e, mean %.1e) %s", gpu_cases[i / 2].backend, rank,
               i % 2 != 0 ? " in parts" : "", gpu_cases[i / 2].what, r[rank].worst[i], r[rank].bias[i],
               r[rank].code[i] != ATTN_OK ? r[rank].text : "");
            if (r[rank].reaches[i] == 0)
                skip(1, "the devices do not reach each other");
            else
                ok(r[rank].reaches[i] == 1, "results did not go through NCCL");
        }
    return tap_done();
}
