/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_comm_nccl.h: a communicator over NCCL (attn_comm.h), for groups on CUDA devices. Header only: the
 * engine compiles it with its NCCL (2.18 and up), and libattn links none.
 *
 *     attn_comm_nccl_t nccl;
 *     attn_comm_t comm;
 *     attn_comm_nccl_init(&nccl, nccl_comm, 10000, &comm, &error);      the rank's ncclComm_t
 *     .. attn_group_set_comm(group, &comm, 0, &error);
 *
 * The ncclComm_t is the engine's, used by one thread at a time, and destroyed by it after the groups are
 * closed. Exchanges are put on the stream of the call and can be captured. NCCL does not say who a rank
 * waits for, nor whether ranks call the same: build_metadata compares the batches, so sizes agree, and
 * there the wait has the limit. The first exchange also connects the ranks and may wait for them inside
 * NCCL: make the ncclComm_t with config.blocking = 0, and the limit holds there too.
 *
 * After the limit, or an error of NCCL, the ncclComm_t is aborted (ncclCommAbort), which ends what it has
 * on streams; nccl.comm is NULL then, and the engine makes another one and new groups. A thread of its own
 * aborts, since NCCL waits there until graphs that hold its exchanges are destroyed: destroy them, as
 * before an ncclCommDestroy.
 */
#ifndef ATTN_COMM_NCCL_H
#define ATTN_COMM_NCCL_H

#include <attn/attn_comm.h>
#include <attn/attn_comm_process.h>
#include <attn/attn_plugin_util.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Members but comm are private. */
typedef struct attn_comm_nccl {
    ncclComm_t comm; /* NULL: aborted */
    int rank, world;
    int64_t limit_ms;
    char why[320];
    struct attn_comm_nccl_memory *given; /* to ranks as peers */
} attn_comm_nccl_t;

ATTN_UNUSED static int64_t attn_comm_nccl_now_(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

ATTN_UNUSED static void *attn_comm_nccl_end_(void *comm) {
    ncclCommAbort((ncclComm_t)comm);
    return NULL;
}

/* The communicator ends here, and what it has on streams too. */
ATTN_UNUSED static int attn_comm_nccl_abort_(attn_comm_nccl_t *n, int code, attn_error_t *error) {
    pthread_t ends;
    if (n->comm != NULL && pthread_create(&ends, NULL, attn_comm_nccl_end_, n->comm) == 0)
        pthread_detach(ends);
    n->comm = NULL;
    return attn_fail(error, code, "comm", "rank %d: %s", n->rank, n->why);
}

ATTN_UNUSED static int attn_comm_nccl_begin_(attn_comm_nccl_t *n, const char *name, attn_error_t *error) {
    if (n->comm != NULL) return ATTN_OK;
    return attn_fail(error, ATTN_E_STATE, "comm", "rank %d: %s after an error: %s", n->rank, name, n->why);
}

/* What NCCL returned, once it is more than that the call goes on. */
ATTN_UNUSED static int attn_comm_nccl_settle_(attn_comm_nccl_t *n, const char *name, ncclResult_t result,
                                              attn_error_t *error) {
    const int64_t until = attn_comm_nccl_now_() + n->limit_ms;
    while (result == ncclInProgress) {
        if (ncclCommGetAsyncError(n->comm, &result) != ncclSuccess) result = ncclInternalError;
        if (result != ncclInProgress) break;
        if (attn_comm_nccl_now_() > until) {
            snprintf(n->why, sizeof n->why, "%s waited %lld ms for a rank that did not come", name,
                     (long long)n->limit_ms);
            return attn_comm_nccl_abort_(n, ATTN_E_STATE, error);
        }
        sched_yield();
    }
    if (result == ncclSuccess) return ATTN_OK;
    snprintf(n->why, sizeof n->why, "%s: NCCL says: %.200s", name, ncclGetErrorString(result));
    return attn_comm_nccl_abort_(n, ATTN_E_DEVICE, error);
}

ATTN_UNUSED static int attn_comm_nccl_all_gather_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                  void *stream, attn_error_t *error) {
    attn_comm_nccl_t *n = (attn_comm_nccl_t *)ctx;
    int code = attn_comm_nccl_begin_(n, "all_gather", error);
    if (code != ATTN_OK) return code;
    return attn_comm_nccl_settle_(
        n, "all_gather", ncclAllGather(send, recv, (size_t)bytes, ncclInt8, n->comm, (cudaStream_t)stream),
        error);
}

ATTN_UNUSED static int attn_comm_nccl_all_to_all_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                  void *stream, attn_error_t *error) {
    attn_comm_nccl_t *n = (attn_comm_nccl_t *)ctx;
    ncclResult_t result, ended;
    int code = attn_comm_nccl_begin_(n, "all_to_all", error);
    if (code != ATTN_OK) return code;
    result = ncclGroupStart();
    for (int r = 0; r < n->world && result == ncclSuccess; r++) {
        result = ncclSend((const char *)send + (uint64_t)r * bytes, (size_t)bytes, ncclInt8, r, n->comm,
                          (cudaStream_t)stream);
        if (result == ncclSuccess)
            result = ncclRecv((char *)recv + (uint64_t)r * bytes, (size_t)bytes, ncclInt8, r, n->comm,
                              (cudaStream_t)stream);
    }
    ended = ncclGroupEnd();
    return attn_comm_nccl_settle_(n, "all_to_all", result != ncclSuccess ? result : ended, error);
}

ATTN_UNUSED static int attn_comm_nccl_reduce_scatter_(void *ctx, const void *send, void *recv, uint64_t count,
                                                      uint32_t dtype, void *stream, attn_error_t *error) {
    attn_comm_nccl_t *n = (attn_comm_nccl_t *)ctx;
    const ncclDataType_t type = dtype == ATTN_DTYPE_FLOAT32   ? ncclFloat32
                                : dtype == ATTN_DTYPE_FLOAT64 ? ncclFloat64
                                : dtype == ATTN_DTYPE_FLOAT16 ? ncclFloat16
                                                              : ncclBfloat16;
    int code = attn_comm_nccl_begin_(n, "reduce_scatter", error);
    if (code != ATTN_OK) return code;
    if (type == ncclBfloat16 && dtype != ATTN_DTYPE_BFLOAT16)
        return attn_fail(error, ATTN_E_INVALID, "dtype", "dtype is %u; expected a float type",
                         (unsigned)dtype);
    return attn_comm_nccl_settle_(
        n, "reduce_scatter",
        ncclReduceScatter(send, recv, (size_t)count, type, ncclSum, n->comm, (cudaStream_t)stream), error);
}

/* Until the stream is through, NCCL reports an error, or the limit, which counts all that the stream has. */
ATTN_UNUSED static int attn_comm_nccl_wait_(void *ctx, void *stream, attn_error_t *error) {
    attn_comm_nccl_t *n = (attn_comm_nccl_t *)ctx;
    const int64_t until = attn_comm_nccl_now_() + n->limit_ms;
    int code = attn_comm_nccl_begin_(n, "wait", error);
    if (code != ATTN_OK) return code;
    for (int64_t tries = 1;; tries++) {
        ncclResult_t state = ncclSuccess;
        const cudaError_t e = cudaStreamQuery((cudaStream_t)stream);
        if (e == cudaSuccess) return ATTN_OK;
        if (e != cudaErrorNotReady) {
            snprintf(n->why, sizeof n->why, "the stream failed: %.200s", cudaGetErrorString(e));
            return attn_comm_nccl_abort_(n, ATTN_E_DEVICE, error);
        }
        if (tries % 64 != 0) continue;
        if (ncclCommGetAsyncError(n->comm, &state) != ncclSuccess) state = ncclInternalError;
        if (state != ncclSuccess && state != ncclInProgress)
            return attn_comm_nccl_settle_(n, "an exchange", state, error);
        if (attn_comm_nccl_now_() > until) {
            snprintf(n->why, sizeof n->why,
                     "the exchanges on the stream took more than %lld ms: a rank did not come, or died",
                     (long long)n->limit_ms);
            return attn_comm_nccl_abort_(n, ATTN_E_STATE, error);
        }
        sched_yield();
    }
}

/* Makes *made of an engine's ncclComm_t. nccl must stay where it is until the groups are closed. limit_ms:
 * how long a wait for the other ranks lasts, at least 1. [one thread] */
ATTN_UNUSED static int attn_comm_nccl_init(attn_comm_nccl_t *nccl, ncclComm_t comm, int64_t limit_ms,
                                           attn_comm_t *made, attn_error_t *error) {
    ncclResult_t result;
    if (nccl == NULL || comm == NULL || made == NULL || limit_ms < 1)
        return attn_fail(error, ATTN_E_INVALID,
                         limit_ms < 1   ? "limit_ms"
                         : comm == NULL ? "comm"
                                        : "nccl",
                         "limit_ms is %lld; expected at least 1 ms, and nccl, comm and made given",
                         (long long)limit_ms);
    memset(nccl, 0, sizeof *nccl);
    nccl->comm = comm;
    nccl->limit_ms = limit_ms;
    result = ncclCommUserRank(comm, &nccl->rank);
    if (result == ncclSuccess) result = ncclCommCount(comm, &nccl->world);
    if (result != ncclSuccess)
        return attn_fail(error, ATTN_E_DEVICE, "comm", "NCCL says: %.200s", ncclGetErrorString(result));
    ATTN_INIT(attn_comm_t, c);
    c.flags = ATTN_COMM_DEVICE;
    c.world = nccl->world;
    c.rank = nccl->rank;
    c.ctx = nccl;
    c.all_gather = attn_comm_nccl_all_gather_;
    c.all_to_all = attn_comm_nccl_all_to_all_;
    c.reduce_scatter = attn_comm_nccl_reduce_scatter_;
    c.wait = attn_comm_nccl_wait_;
    *made = c;
    return ATTN_OK;
}

/* ------------------------------------------------------------------ peers */

/* Memory of one call of peers, and what of other processes is mapped. */
typedef struct attn_comm_nccl_memory {
    struct attn_comm_nccl_memory *next;
    void *own;
    void **opened; /* [world], NULL: not by a handle */
    int device;
} attn_comm_nccl_memory_t;

/* What a rank says of its memory. */
typedef struct attn_comm_nccl_peer {
    attn_comm_process_t process;
    cudaIpcMemHandle_t handle;
    void *memory; /* NULL: it has none */
    int device, has_handle, reaches_all;
} attn_comm_nccl_peer_t;

/* all [world] of own, through memory of the device. */
ATTN_UNUSED static int attn_comm_nccl_tell_(attn_comm_nccl_t *n, const attn_comm_nccl_peer_t *own,
                                            attn_comm_nccl_peer_t *all, attn_error_t *error) {
    const size_t size = sizeof *own, whole = size * (size_t)n->world;
    cudaStream_t stream = NULL;
    char *there = NULL;
    int code = ATTN_OK;
    cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaMalloc((void **)&there, size + whole);
    if (e == cudaSuccess) e = cudaMemcpyAsync(there, own, size, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) code = attn_comm_nccl_all_gather_(n, there, there + size, size, stream, error);
    if (e == cudaSuccess && code == ATTN_OK) code = attn_comm_nccl_wait_(n, stream, error);
    if (e == cudaSuccess && code == ATTN_OK)
        e = cudaMemcpyAsync(all, there + size, whole, cudaMemcpyDeviceToHost, stream);
    if (e == cudaSuccess && code == ATTN_OK) e = cudaStreamSynchronize(stream);
    if (code == ATTN_OK) cudaFree(there); /* else what hangs on the stream may use it */
    if (code == ATTN_OK && stream != NULL) cudaStreamDestroy(stream);
    if (e == cudaSuccess) return code;
    snprintf(n->why, sizeof n->why, "peers: CUDA says: %.200s", cudaGetErrorString(e));
    return attn_comm_nccl_abort_(n, ATTN_E_DEVICE, error);
}

/* Where the memory of a rank lies for the device that is current; NULL: out of reach. */
ATTN_UNUSED static void *attn_comm_nccl_reach_(const attn_comm_nccl_peer_t *own,
                                               const attn_comm_nccl_peer_t *peer, void **opened) {
    int can = 0;
    cudaError_t e;
    if (peer->memory == NULL) return NULL;
    if (attn_comm_process_is_same(&own->process, &peer->process)) {
        if (own->device == peer->device) return peer->memory;
        if (cudaDeviceCanAccessPeer(&can, own->device, peer->device) != cudaSuccess || !can) return NULL;
        e = cudaDeviceEnablePeerAccess(peer->device, 0);
        if (e != cudaSuccess) (void)cudaGetLastError(); /* it stays for the engine to find */
        return e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled ? peer->memory : NULL;
    }
    if (own->process.boot != peer->process.boot || !peer->has_handle) return NULL;
    e = cudaIpcOpenMemHandle(opened, peer->handle, cudaIpcMemLazyEnablePeerAccess);
    if (e == cudaSuccess) return *opened;
    (void)cudaGetLastError();
    *opened = NULL;
    return NULL;
}

ATTN_UNUSED static int attn_comm_nccl_peers_(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error) {
    attn_comm_nccl_t *n = (attn_comm_nccl_t *)ctx;
    const uint64_t whole =
        (bytes + (2u << 20) - 1) >> 21 << 21; /* pages of its own: a handle opens whole ones */
    attn_comm_nccl_memory_t *m = (attn_comm_nccl_memory_t *)calloc(1, sizeof *m);
    attn_comm_nccl_peer_t own, *all = (attn_comm_nccl_peer_t *)calloc((size_t)n->world, sizeof *all);
    int before = 0, code = attn_comm_nccl_begin_(n, "peers", error);
    if (m != NULL) m->opened = (void **)calloc((size_t)n->world, sizeof *m->opened);
    if (code == ATTN_OK && (m == NULL || all == NULL || m->opened == NULL))
        code = attn_fail(error, ATTN_E_NO_MEMORY, "comm", "out of memory for the ranks' peers");
    if (code != ATTN_OK) {
        if (m != NULL) free(m->opened);
        free(m), free(all);
        return code;
    }
    m->next = n->given;
    n->given = m;
    memset(&own, 0, sizeof own);
    own.process = attn_comm_process_self();
    cudaGetDevice(&before);
    if (ncclCommCuDevice(n->comm, &m->device) != ncclSuccess) m->device = before;
    cudaSetDevice(m->device);
    own.device = m->device;
    if (cudaMalloc(&m->own, (size_t)whole) == cudaSuccess &&
        cudaMemset(m->own, 0, (size_t)whole) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess) {
        own.memory = m->own;
        own.has_handle = cudaIpcGetMemHandle(&own.handle, m->own) == cudaSuccess;
    }
    (void)cudaGetLastError();
    code = attn_comm_nccl_tell_(n, &own, all, error);
    own.reaches_all = 1;
    for (int r = 0; r < n->world && code == ATTN_OK; r++) {
        of_rank[r] = r == n->rank ? m->own : attn_comm_nccl_reach_(&own, &all[r], &m->opened[r]);
        if (of_rank[r] == NULL || own.memory == NULL) own.reaches_all = 0;
    }
    if (code == ATTN_OK) code = attn_comm_nccl_tell_(n, &own, all, error);
    for (int r = 0; r < n->world && code == ATTN_OK; r++)
        if (!all[r].reaches_all)
            code = attn_fail(error, ATTN_E_UNSUPPORTED, "comm",
                             "rank %d does not reach the memory of all other ranks; exchanges are NCCL's", r);
    cudaSetDevice(before);
    free(all);
    return code;
}

/* Adds to comm, made by attn_comm_nccl_init, the memory of peers. Their waits have the communicator's limit.
 * [one thread] */
ATTN_UNUSED static int attn_comm_nccl_offer_peers(attn_comm_nccl_t *nccl, attn_comm_t *comm,
                                                  attn_error_t *error) {
    if (nccl == NULL || comm == NULL || comm->ctx != nccl)
        return attn_fail(error, ATTN_E_INVALID, "comm",
                         "give nccl and the comm that attn_comm_nccl_init made of it");
    comm->peers = attn_comm_nccl_peers_;
    comm->limit_ms = (uint64_t)nccl->limit_ms;
    return ATTN_OK;
}

/* Frees the memory of peers; needed after attn_comm_nccl_offer_peers alone. [one thread] */
ATTN_UNUSED static void attn_comm_nccl_end(attn_comm_nccl_t *nccl) {
    int before = 0;
    if (nccl == NULL || nccl->given == NULL) return;
    cudaGetDevice(&before);
    while (nccl->given != NULL) {
        attn_comm_nccl_memory_t *m = nccl->given;
        nccl->given = m->next;
        cudaSetDevice(m->device);
        for (int r = 0; r < nccl->world; r++)
            if (m->opened[r] != NULL) cudaIpcCloseMemHandle(m->opened[r]);
        cudaFree(m->own);
        free(m->opened), free(m);
    }
    cudaSetDevice(before);
}

#ifdef __cplusplus
}
#endif
#endif
