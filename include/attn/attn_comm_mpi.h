/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_comm_mpi.h: a communicator over MPI (attn_comm.h), for host memory. Header only: the engine
 * compiles it with its MPI, and libattn links none. MPI 3.0 and up.
 *
 *     attn_comm_mpi_t mpi;
 *     attn_comm_t comm;
 *     attn_comm_mpi_init(&mpi, MPI_COMM_WORLD, 10000, &comm, &error);     collective
 *     .. attn_group_set_comm(group, &comm, 0, &error);
 *     attn_comm_mpi_end(&mpi);                                            collective; after the groups are
 *     closed
 *
 * Each call first exchanges what is called with how many bytes, 16 bytes a rank: ranks that differ get an
 * error that says who called what, before any data moves. A rank that waits longer than the limit gets an
 * error with the ranks that did not come; then the engine should end by MPI_Abort, since MPI has no way
 * back from there. The calls wait by polling and yield the processor.
 */
#ifndef ATTN_COMM_MPI_H
#define ATTN_COMM_MPI_H

#include <attn/attn_comm.h>
#include <attn/attn_plugin_util.h>

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTN_COMM_MPI_TAG = 24940 };

/* Members are private. */
typedef struct attn_comm_mpi {
    MPI_Comm comm;
    int rank, world, is_broken;
    int64_t limit_ms;
    int64_t mine[2]; /* the call and its bytes */
    int64_t *all;    /* [world][2] */
    char why[320];
} attn_comm_mpi_t;

ATTN_UNUSED static int64_t attn_comm_mpi_now_(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

ATTN_UNUSED static const char *attn_comm_mpi_name_(int64_t call) {
    return call == 1 ? "all_gather" : call == 2 ? "all_to_all" : "reduce_scatter";
}

ATTN_UNUSED static int attn_comm_mpi_fail_(attn_comm_mpi_t *m, int code, attn_error_t *error) {
    m->is_broken = 1;
    return attn_fail(error, code, "comm", "rank %d: %s", m->rank, m->why);
}

ATTN_UNUSED static int attn_comm_mpi_refuse_(attn_comm_mpi_t *m, const char *name, int code,
                                             attn_error_t *error) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    snprintf(m->why, sizeof m->why, "%s: MPI says: %.200s", name, text);
    return attn_comm_mpi_fail_(m, ATTN_E_DEVICE, error);
}

/* Who waits too long tells the others so: those that say nothing in the same time did not come. */
ATTN_UNUSED static int attn_comm_mpi_miss_(attn_comm_mpi_t *m, const char *name, attn_error_t *error) {
    const int64_t until = attn_comm_mpi_now_() + 500 + m->limit_ms / 4;
    char *heard = (char *)calloc((size_t)m->world, 1);
    size_t used, begin;
    for (int r = 0; heard != NULL && r < m->world; r++) {
        MPI_Request request;
        if (r == m->rank) continue;
        if (MPI_Isend(NULL, 0, MPI_BYTE, r, ATTN_COMM_MPI_TAG, m->comm, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
    while (heard != NULL && attn_comm_mpi_now_() < until) {
        int is_there = 0;
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, ATTN_COMM_MPI_TAG, m->comm, &is_there, &status) != MPI_SUCCESS) break;
        if (is_there) {
            MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, ATTN_COMM_MPI_TAG, m->comm, MPI_STATUS_IGNORE);
            heard[status.MPI_SOURCE] = 1;
        }
        sched_yield();
    }
    used = (size_t)snprintf(m->why, sizeof m->why, "%s waited %lld ms for ranks", name,
                            (long long)m->limit_ms);
    begin = used;
    for (int r = 0; heard != NULL && r < m->world && used < sizeof m->why; r++)
        if (r != m->rank && !heard[r])
            used += (size_t)snprintf(m->why + used, sizeof m->why - used, " %d", r);
    if (used == begin)
        snprintf(m->why, sizeof m->why, "%s: the other ranks had given up before this one came", name);
    else if (used < sizeof m->why)
        snprintf(m->why + used, sizeof m->why - used, " of %d, which did not come", m->world);
    free(heard);
    return attn_comm_mpi_fail_(m, ATTN_E_STATE, error);
}

ATTN_UNUSED static int attn_comm_mpi_wait_(attn_comm_mpi_t *m, const char *name, MPI_Request *request,
                                           attn_error_t *error) {
    const int64_t until = attn_comm_mpi_now_() + m->limit_ms;
    for (int64_t tries = 1;; tries++) {
        int is_done = 0;
        int code = MPI_Test(request, &is_done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return attn_comm_mpi_refuse_(m, name, code, error);
        if (is_done) return ATTN_OK;
        if (tries % 64 == 0) sched_yield();
        if (tries % 1024 == 0 && attn_comm_mpi_now_() > until) return attn_comm_mpi_miss_(m, name, error);
    }
}

/* Every rank is at the same call with the same size. */
ATTN_UNUSED static int attn_comm_mpi_begin_(attn_comm_mpi_t *m, int64_t call, uint64_t bytes,
                                            attn_error_t *error) {
    const char *name = attn_comm_mpi_name_(call);
    MPI_Request request;
    int code;
    if (m->is_broken) return attn_comm_mpi_fail_(m, ATTN_E_STATE, error);
    m->mine[0] = call;
    m->mine[1] = (int64_t)bytes;
    code = MPI_Iallgather(m->mine, 2, MPI_INT64_T, m->all, 2, MPI_INT64_T, m->comm, &request);
    if (code != MPI_SUCCESS) return attn_comm_mpi_refuse_(m, name, code, error);
    code = attn_comm_mpi_wait_(m, name, &request, error);
    if (code != ATTN_OK) return code;
    for (int r = 1; r < m->world; r++) {
        const int64_t *a = m->all, *b = m->all + 2 * r;
        if (a[0] == b[0] && a[1] == b[1]) continue;
        snprintf(m->why, sizeof m->why,
                 "rank 0 called %s with %lld bytes a rank, rank %d %s with %lld: every rank must make the "
                 "same calls in the same order",
                 attn_comm_mpi_name_(a[0]), (long long)a[1], r, attn_comm_mpi_name_(b[0]), (long long)b[1]);
        return attn_comm_mpi_fail_(m, ATTN_E_STATE, error);
    }
    if (bytes <= INT32_MAX) return ATTN_OK;
    snprintf(m->why, sizeof m->why,
             "%s of %llu bytes a rank; MPI counts to 2147483647: lower max_num_batched_tokens", name,
             (unsigned long long)bytes);
    return attn_comm_mpi_fail_(m, ATTN_E_UNSUPPORTED, error);
}

ATTN_UNUSED static int attn_comm_mpi_all_gather_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                 void *stream, attn_error_t *error) {
    attn_comm_mpi_t *m = (attn_comm_mpi_t *)ctx;
    MPI_Request request;
    int code = attn_comm_mpi_begin_(m, 1, bytes, error);
    (void)stream;
    if (code != ATTN_OK) return code;
    code = MPI_Iallgather((void *)send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, m->comm, &request);
    if (code != MPI_SUCCESS) return attn_comm_mpi_refuse_(m, "all_gather", code, error);
    return attn_comm_mpi_wait_(m, "all_gather", &request, error);
}

ATTN_UNUSED static int attn_comm_mpi_all_to_all_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                 void *stream, attn_error_t *error) {
    attn_comm_mpi_t *m = (attn_comm_mpi_t *)ctx;
    MPI_Request request;
    int code = attn_comm_mpi_begin_(m, 2, bytes, error);
    (void)stream;
    if (code != ATTN_OK) return code;
    code = MPI_Ialltoall((void *)send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, m->comm, &request);
    if (code != MPI_SUCCESS) return attn_comm_mpi_refuse_(m, "all_to_all", code, error);
    return attn_comm_mpi_wait_(m, "all_to_all", &request, error);
}

/* MPI sums neither float16 nor bfloat16: those ranks' parts are exchanged and summed here, in double. */
ATTN_UNUSED static int attn_comm_mpi_sum_(attn_comm_mpi_t *m, const void *send, void *recv, uint64_t count,
                                          int is_bf16, attn_error_t *error) {
    uint16_t *parts = (uint16_t *)malloc((size_t)(2 * count) * (size_t)m->world + 1), *to = (uint16_t *)recv;
    MPI_Request request;
    int code;
    if (parts == NULL) {
        snprintf(m->why, sizeof m->why, "reduce_scatter: out of memory");
        return attn_comm_mpi_fail_(m, ATTN_E_NO_MEMORY, error);
    }
    code = MPI_Ialltoall((void *)send, (int)(2 * count), MPI_BYTE, parts, (int)(2 * count), MPI_BYTE, m->comm,
                         &request);
    if (code != MPI_SUCCESS) {
        free(parts);
        return attn_comm_mpi_refuse_(m, "reduce_scatter", code, error);
    }
    code = attn_comm_mpi_wait_(m, "reduce_scatter", &request, error);
    if (code != ATTN_OK) return code; /* MPI may still write into parts: they are not given back */
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < m->world; r++) {
            const uint16_t x = parts[(uint64_t)r * count + i];
            sum += is_bf16 ? attn_from_bf16(x) : attn_from_f16(x);
        }
        to[i] = is_bf16 ? attn_to_bf16(sum) : attn_to_f16(sum);
    }
    free(parts);
    return ATTN_OK;
}

ATTN_UNUSED static int attn_comm_mpi_reduce_scatter_(void *ctx, const void *send, void *recv, uint64_t count,
                                                     uint32_t dtype, void *stream, attn_error_t *error) {
    attn_comm_mpi_t *m = (attn_comm_mpi_t *)ctx;
    MPI_Request request;
    int code;
    (void)stream;
    if (dtype != ATTN_DTYPE_FLOAT32 && dtype != ATTN_DTYPE_FLOAT64 && dtype != ATTN_DTYPE_FLOAT16 &&
        dtype != ATTN_DTYPE_BFLOAT16)
        return attn_fail(error, ATTN_E_INVALID, "dtype", "dtype is %u; expected a float type",
                         (unsigned)dtype);
    code = attn_comm_mpi_begin_(m, 3, count * attn_dtype_size(dtype), error);
    if (code != ATTN_OK) return code;
    if (dtype != ATTN_DTYPE_FLOAT32 && dtype != ATTN_DTYPE_FLOAT64)
        return attn_comm_mpi_sum_(m, send, recv, count, dtype == ATTN_DTYPE_BFLOAT16, error);
    code = MPI_Ireduce_scatter_block((void *)send, recv, (int)count,
                                     dtype == ATTN_DTYPE_FLOAT64 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, m->comm,
                                     &request);
    if (code != MPI_SUCCESS) return attn_comm_mpi_refuse_(m, "reduce_scatter", code, error);
    return attn_comm_mpi_wait_(m, "reduce_scatter", &request, error);
}

/* Makes *made of a duplicate of comm, all of whose processes call this. mpi must stay where it is until
 * attn_comm_mpi_end. limit_ms: how long a call waits for the other ranks, at least 1. [one thread] */
ATTN_UNUSED static int attn_comm_mpi_init(attn_comm_mpi_t *mpi, MPI_Comm comm, int64_t limit_ms,
                                          attn_comm_t *made, attn_error_t *error) {
    if (mpi == NULL || made == NULL || limit_ms < 1)
        return attn_fail(error, ATTN_E_INVALID, limit_ms < 1 ? "limit_ms" : mpi == NULL ? "mpi" : "made",
                         "limit_ms is %lld, mpi and made %s; expected at least 1 ms and both structs",
                         (long long)limit_ms, mpi == NULL || made == NULL ? "not given" : "given");
    memset(mpi, 0, sizeof *mpi);
    mpi->limit_ms = limit_ms;
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS)
        return attn_fail(error, ATTN_E_DEVICE, "comm", "MPI_Comm_dup failed");
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->comm, &mpi->rank);
    MPI_Comm_size(mpi->comm, &mpi->world);
    mpi->all = (int64_t *)calloc((size_t)mpi->world, 2 * sizeof *mpi->all);
    if (mpi->all == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a communicator of %d ranks",
                         mpi->world);
    ATTN_INIT(attn_comm_t, c);
    c.world = mpi->world;
    c.rank = mpi->rank;
    c.ctx = mpi;
    c.all_gather = attn_comm_mpi_all_gather_;
    c.all_to_all = attn_comm_mpi_all_to_all_;
    c.reduce_scatter = attn_comm_mpi_reduce_scatter_;
    *made = c;
    return ATTN_OK;
}

/* Frees it, unless a call failed: then MPI may still be at work in its memory. [one thread] [collective] */
ATTN_UNUSED static void attn_comm_mpi_end(attn_comm_mpi_t *mpi) {
    if (mpi == NULL || mpi->is_broken || mpi->all == NULL) return;
    MPI_Comm_free(&mpi->comm);
    free(mpi->all);
    mpi->all = NULL;
}

#ifdef __cplusplus
}
#endif
#endif
