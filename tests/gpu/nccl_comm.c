/* SPDX-License-Identifier: Apache-2.0 */
/* attn_comm_nccl.h with a communicator of one rank: what NCCL is asked for, on a stream and captured, and
 * that a wait ends: by the work on the stream, or by the limit. Built where configure finds NCCL. Two
 * ranks: ranks_nccl.c. */
#include "../tap.h"

#include <attn/attn_comm_nccl.h>

/* Exchanges may wait for a busy device; what must end by its limit waits for 2 s of slow work. */
enum { BYTES = 4096, COUNT = 1000, LIMIT_MS = 60000, SHORT_LIMIT_MS = 1000 };

static attn_error_t error = {.struct_size = sizeof error};

static cudaGraph_t graphs[3]; /* they outlive the communicator, as an engine's do */
static cudaGraphExec_t execs[3];

static void exchanges(const attn_comm_t *c, char *from, char *to, cudaStream_t stream, const char *how) {
    static char sent[BYTES], got[BYTES];
    static float numbers[COUNT], sums[COUNT];
    const int is_captured = strcmp(how, "captured") == 0;
    for (int i = 0; i < BYTES; i++)
        sent[i] = (char)(i * 7 + is_captured);
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)i * 0.25f;
    for (int which = 0; which < 3; which++) {
        cudaMemset(to, 0, BYTES);
        cudaMemcpy(from, which < 2 ? (void *)sent : (void *)numbers, which < 2 ? BYTES : sizeof numbers,
                   cudaMemcpyHostToDevice);
        cudaDeviceSynchronize();
        if (is_captured) cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
        int code = which == 0 ? c->all_gather(c->ctx, from, to, BYTES, stream, &error)
                   : which == 1
                       ? c->all_to_all(c->ctx, from, to, BYTES, stream, &error)
                       : c->reduce_scatter(c->ctx, from, to, COUNT, ATTN_DTYPE_FLOAT32, stream, &error);
        if (is_captured) {
            if (cudaStreamEndCapture(stream, &graphs[which]) == cudaSuccess &&
                cudaGraphInstantiate(&execs[which], graphs[which], 0) == cudaSuccess)
                cudaGraphLaunch(execs[which], stream);
        }
        if (code == ATTN_OK) code = c->wait(c->ctx, stream, &error);
        cudaMemcpy(got, to, BYTES, cudaMemcpyDeviceToHost);
        cudaMemcpy(sums, to, sizeof sums, cudaMemcpyDeviceToHost);
        ok(code == ATTN_OK &&
               (which < 2 ? memcmp(got, sent, BYTES) : memcmp(sums, numbers, sizeof sums)) == 0,
           "%s %s %s",
           which == 0   ? "all_gather"
           : which == 1 ? "all_to_all"
                        : "reduce_scatter",
           how, code != ATTN_OK ? error.text : "");
    }
}

static void CUDART_CB sleep_there(void *seconds) {
    const struct timespec t = {.tv_sec = *(int *)seconds};
    nanosleep(&t, NULL);
}

int main(void) {
    ncclUniqueId id;
    ncclComm_t nccl = NULL;
    attn_comm_nccl_t n;
    attn_comm_t c;
    cudaStream_t stream;
    char *from = NULL, *to = NULL;
    int count = 0, seconds = 2;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (ncclGetUniqueId(&id) != ncclSuccess) skip_all("NCCL does not start here");
    ncclResult_t state = ncclCommInitRankConfig(&nccl, 1, id, 0, &config);
    while (state == ncclInProgress)
        ncclCommGetAsyncError(nccl, &state);
    if (state != ncclSuccess) skip_all("NCCL does not start here: %s", ncclGetErrorString(state));
    cudaStreamCreate(&stream);
    cudaMalloc((void **)&from, BYTES), cudaMalloc((void **)&to, BYTES);
    ok(attn_comm_nccl_init(&n, nccl, 0, &c, &error) == ATTN_E_INVALID && strcmp(error.param, "limit_ms") == 0,
       "a limit of 0 is refused: %s", error.text);
    ok(attn_comm_nccl_init(&n, nccl, LIMIT_MS, &c, &error) == ATTN_OK && c.world == 1 && c.rank == 0 &&
           c.flags == ATTN_COMM_DEVICE,
       "one rank");
    exchanges(&c, from, to, stream, "on a stream");
    exchanges(&c, from, to, stream, "captured");
    ok(c.reduce_scatter(c.ctx, from, to, 1, ATTN_DTYPE_INT32, stream, &error) == ATTN_E_INVALID &&
           strcmp(error.param, "dtype") == 0,
       "integers are not summed: %s", error.text);
    n.limit_ms = SHORT_LIMIT_MS;
    cudaLaunchHostFunc(stream, sleep_there, &seconds);
    ok(c.all_gather(c.ctx, from, to, BYTES, stream, &error) == ATTN_OK,
       "an exchange is put behind slow work");
    const int code = c.wait(c.ctx, stream, &error);
    ok(code == ATTN_E_STATE && n.comm == NULL, "a wait ends at the limit: %s", error.text);
    ok(c.all_gather(c.ctx, from, to, BYTES, stream, &error) == ATTN_E_STATE,
       "and the communicator is used no more: %s", error.text);
    ok(cudaStreamSynchronize(stream) == cudaSuccess, "the stream is free again");
    for (int i = 0; i < 3; i++)
        cudaGraphExecDestroy(execs[i]), cudaGraphDestroy(graphs[i]);
    const struct timespec second = {.tv_sec = 1}; /* for the thread that aborts */
    nanosleep(&second, NULL);
    cudaFree(from), cudaFree(to);
    cudaStreamDestroy(stream);
    return tap_done();
}
