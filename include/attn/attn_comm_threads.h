/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_comm_threads.h: a communicator of the threads of one process (attn_comm.h), for tests and for
 * engines that keep their ranks in threads. Header only, with pthreads: the engine compiles it.
 *
 *     attn_comm_threads_t *all;
 *     attn_comm_threads_create(4, 10000, &all, &error);
 *     .. thread r: attn_comm_t comm = attn_comm_threads_rank(all, r);
 *     attn_comm_threads_destroy(all);          after the last thread's last call
 *
 * A rank that leaves says so with attn_comm_threads_leave. One that waits longer than the limit for
 * another to make its call gets an error with the ranks that did not come, as do all that wait with it or
 * come later. Ranks that call different functions, or with different sizes, all get an error that says who
 * called what.
 */
#ifndef ATTN_COMM_THREADS_H
#define ATTN_COMM_THREADS_H

#include <attn/attn_comm.h>
#include <attn/attn_plugin_util.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Members are private. */
typedef struct attn_comm_threads_slot {
    struct attn_comm_threads *all;
    int32_t rank;
    uint64_t calls; /* that this rank has begun */
    const char *name;
    uint64_t bytes; /* of one part */
    const void *send;
} attn_comm_threads_slot_t;

typedef struct attn_comm_threads {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t world;
    int32_t here;    /* ranks that wait in the current barrier */
    uint64_t passed; /* barriers */
    int64_t limit_ms;
    int is_broken;
    char why[320];
    attn_comm_threads_slot_t *slots; /* [world] */
} attn_comm_threads_t;

/* limit_ms: how long a call waits for the other ranks, at least 1. [any thread] */
ATTN_UNUSED static int attn_comm_threads_create(int32_t world, int64_t limit_ms, attn_comm_threads_t **made,
                                                attn_error_t *error) {
    pthread_condattr_t clock;
    attn_comm_threads_t *all;
    if (made == NULL)
        return attn_fail(error, ATTN_E_INVALID, "made", "made is NULL; pass where the communicator goes");
    if (world < 1 || limit_ms < 1)
        return attn_fail(error, ATTN_E_INVALID, world < 1 ? "world" : "limit_ms",
                         "world is %d and limit_ms %lld; both must be at least 1", (int)world,
                         (long long)limit_ms);
    all = (attn_comm_threads_t *)calloc(1, sizeof *all);
    if (all != NULL) all->slots = (attn_comm_threads_slot_t *)calloc((size_t)world, sizeof *all->slots);
    if (all == NULL || all->slots == NULL) {
        free(all);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a communicator");
    }
    all->world = world;
    all->limit_ms = limit_ms;
    for (int32_t r = 0; r < world; r++) {
        all->slots[r].all = all;
        all->slots[r].rank = r;
    }
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&all->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&all->lock, NULL);
    *made = all;
    return ATTN_OK;
}

/* After the last call of every rank. NULL is allowed. [one thread] */
ATTN_UNUSED static void attn_comm_threads_destroy(attn_comm_threads_t *all) {
    if (all == NULL) return;
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all->slots);
    free(all);
}

/* Under the lock: why, for the ranks that have not begun `calls` calls. */
ATTN_UNUSED static void attn_comm_threads_miss_(attn_comm_threads_t *all, uint64_t calls, const char *name) {
    size_t used = (size_t)snprintf(all->why, sizeof all->why, "%s waited %lld ms for ranks", name,
                                   (long long)all->limit_ms);
    for (int32_t r = 0; r < all->world && used < sizeof all->why; r++)
        if (all->slots[r].calls < calls)
            used += (size_t)snprintf(all->why + used, sizeof all->why - used, " %d", (int)r);
    if (used < sizeof all->why)
        snprintf(all->why + used, sizeof all->why - used, " of %d, which did not come", (int)all->world);
    all->is_broken = 1;
    pthread_cond_broadcast(&all->changed);
}

/* Under the lock: the calls that met must be the same. */
ATTN_UNUSED static void attn_comm_threads_compare_(attn_comm_threads_t *all) {
    const attn_comm_threads_slot_t *a = &all->slots[0];
    for (int32_t r = 1; r < all->world; r++) {
        const attn_comm_threads_slot_t *b = &all->slots[r];
        if (strcmp(a->name, b->name) == 0 && a->bytes == b->bytes) continue;
        snprintf(all->why, sizeof all->why,
                 "rank 0 called %s with %llu bytes a rank, rank %d %s with %llu: every rank must make the "
                 "same calls in the same order",
                 a->name, (unsigned long long)a->bytes, (int)r, b->name, (unsigned long long)b->bytes);
        all->is_broken = 1;
        return;
    }
}

/* All ranks come, or time is up; is_end: the others are only copying, which ends. */
ATTN_UNUSED static int attn_comm_threads_meet_(attn_comm_threads_slot_t *s, int is_end, attn_error_t *error) {
    attn_comm_threads_t *all = s->all;
    struct timespec until;
    int code = ATTN_OK;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(all->limit_ms / 1000);
    until.tv_nsec += (long)(all->limit_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&all->lock);
    if (!is_end) s->calls++;
    if (!all->is_broken || is_end) {
        const uint64_t mine = all->passed;
        if (++all->here == all->world) {
            if (!is_end) attn_comm_threads_compare_(all);
            all->here = 0;
            all->passed++;
            pthread_cond_broadcast(&all->changed);
        }
        while (all->passed == mine && (!all->is_broken || is_end)) {
            if (is_end)
                pthread_cond_wait(&all->changed, &all->lock);
            else if (pthread_cond_timedwait(&all->changed, &all->lock, &until) != 0 && all->passed == mine &&
                     !all->is_broken)
                attn_comm_threads_miss_(all, s->calls, s->name);
        }
    }
    if (all->is_broken && !is_end)
        code = attn_fail(error, ATTN_E_STATE, "comm", "rank %d: %s", (int)s->rank, all->why);
    pthread_mutex_unlock(&all->lock);
    return code;
}

/* For a rank that makes no further call, after an error or at the end of its thread: the others need not wait
 * for it and get an error that names it. comm: of attn_comm_threads_rank. [any thread] */
ATTN_UNUSED static void attn_comm_threads_leave(const attn_comm_t *comm) {
    attn_comm_threads_slot_t *s = (attn_comm_threads_slot_t *)comm->ctx;
    attn_comm_threads_t *all = s->all;
    pthread_mutex_lock(&all->lock);
    if (!all->is_broken)
        snprintf(all->why, sizeof all->why, "rank %d of %d has left", (int)s->rank, (int)all->world);
    all->is_broken = 1;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

ATTN_UNUSED static int attn_comm_threads_begin_(attn_comm_threads_slot_t *s, const char *name,
                                                const void *send, uint64_t bytes, attn_error_t *error) {
    s->name = name; /* read by others after the barrier alone */
    s->bytes = bytes;
    s->send = send;
    return attn_comm_threads_meet_(s, 0, error);
}

ATTN_UNUSED static int attn_comm_threads_all_gather_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                     void *stream, attn_error_t *error) {
    attn_comm_threads_slot_t *s = (attn_comm_threads_slot_t *)ctx;
    int code = attn_comm_threads_begin_(s, "all_gather", send, bytes, error);
    (void)stream;
    if (code != ATTN_OK) return code;
    for (int32_t r = 0; r < s->all->world; r++)
        memcpy((char *)recv + (uint64_t)r * bytes, s->all->slots[r].send, (size_t)bytes);
    return attn_comm_threads_meet_(s, 1, error);
}

ATTN_UNUSED static int attn_comm_threads_all_to_all_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                     void *stream, attn_error_t *error) {
    attn_comm_threads_slot_t *s = (attn_comm_threads_slot_t *)ctx;
    int code = attn_comm_threads_begin_(s, "all_to_all", send, bytes, error);
    (void)stream;
    if (code != ATTN_OK) return code;
    for (int32_t r = 0; r < s->all->world; r++)
        memcpy((char *)recv + (uint64_t)r * bytes,
               (const char *)s->all->slots[r].send + (uint64_t)s->rank * bytes, (size_t)bytes);
    return attn_comm_threads_meet_(s, 1, error);
}

/* Sums in double, in the order of the ranks: every rank and every run gets the same bits. */
ATTN_UNUSED static int attn_comm_threads_reduce_scatter_(void *ctx, const void *send, void *recv,
                                                         uint64_t count, uint32_t dtype, void *stream,
                                                         attn_error_t *error) {
    attn_comm_threads_slot_t *s = (attn_comm_threads_slot_t *)ctx;
    const uint64_t size = attn_dtype_size(dtype), first = (uint64_t)s->rank * count;
    int code;
    (void)stream;
    if (dtype != ATTN_DTYPE_FLOAT32 && dtype != ATTN_DTYPE_FLOAT64 && dtype != ATTN_DTYPE_FLOAT16 &&
        dtype != ATTN_DTYPE_BFLOAT16)
        return attn_fail(error, ATTN_E_INVALID, "dtype", "dtype is %u; expected a float type",
                         (unsigned)dtype);
    code = attn_comm_threads_begin_(s, "reduce_scatter", send, count * size, error);
    if (code != ATTN_OK) return code;
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int32_t r = 0; r < s->all->world; r++) {
            const void *from = s->all->slots[r].send;
            const uint64_t at = first + i;
            sum += dtype == ATTN_DTYPE_FLOAT32   ? (double)((const float *)from)[at]
                   : dtype == ATTN_DTYPE_FLOAT64 ? ((const double *)from)[at]
                   : dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(((const uint16_t *)from)[at])
                                                 : attn_from_bf16(((const uint16_t *)from)[at]);
        }
        if (dtype == ATTN_DTYPE_FLOAT32) ((float *)recv)[i] = (float)sum;
        if (dtype == ATTN_DTYPE_FLOAT64) ((double *)recv)[i] = sum;
        if (dtype == ATTN_DTYPE_FLOAT16) ((uint16_t *)recv)[i] = attn_to_f16(sum);
        if (dtype == ATTN_DTYPE_BFLOAT16) ((uint16_t *)recv)[i] = attn_to_bf16(sum);
    }
    return attn_comm_threads_meet_(s, 1, error);
}

/* The communicator of one rank, 0 .. world - 1; used by one thread at a time. [any thread] */
ATTN_UNUSED static attn_comm_t attn_comm_threads_rank(attn_comm_threads_t *all, int32_t rank) {
    ATTN_INIT(attn_comm_t, c);
    c.world = all->world;
    c.rank = rank;
    c.ctx = rank >= 0 && rank < all->world ? &all->slots[rank] : NULL;
    c.all_gather = attn_comm_threads_all_gather_;
    c.all_to_all = attn_comm_threads_all_to_all_;
    c.reduce_scatter = attn_comm_threads_reduce_scatter_;
    return c;
}

#ifdef __cplusplus
}
#endif
#endif
