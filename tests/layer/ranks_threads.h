/* SPDX-License-Identifier: Apache-2.0 */
/* A world of ranks as threads: on CPUs they exchange directly, on a device through host memory, or in its
 * own. */
#ifndef ATTN_TESTS_RANKS_THREADS_H
#define ATTN_TESTS_RANKS_THREADS_H

#include "ranks_world.h"

#include <attn/attn_comm_staged.h>
#include <attn/attn_comm_threads.h>

static int
    rank_peers; /* on a device: ranks exchange in each other's memory; results do not go through the host */

static int refuse_exchange(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                           attn_error_t *error) {
    (void)ctx, (void)send, (void)recv, (void)bytes, (void)stream;
    return attn_fail(error, ATTN_E_INTERNAL, "comm", "results go through the host");
}

struct job {
    struct rank_world *w;
    attn_context_t *context;
    attn_comm_t comm;
    attn_comm_staged_t staged;
    int rank, code;
    attn_error_t error;
    char *output;
    float *lse;
};

static void *run_job(void *user) {
    struct job *j = user;
    const attn_device_kind_t *kind = attn_device_kind(rank_device.type);
    if (rank_peers && kind->stream_create(rank_device.id, &rank_stream, &j->error) != ATTN_OK)
        bail_out("stream");
    j->code = run_rank(j->w, j->context, j->w->c.backend, j->w->c.dtype, j->w->world, j->rank, &j->comm,
                       j->w->c.seq, j->output, j->lse, &j->error);
    if (rank_peers) kind->stream_destroy(rank_device.id, rank_stream);
    return NULL;
}

static double run_threads(struct rank_world *w, attn_context_t *const *contexts) {
    attn_comm_threads_t *all = NULL;
    attn_error_t error = ERROR_INIT;
    struct job jobs[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    pthread_barrier_t start;
    double worst = 0;
    if (rank_peers) {
        pthread_barrier_init(&start, NULL, (unsigned)w->world);
        rank_start = &start;
    }
    if (attn_comm_threads_create(w->world, 60000, &all, &error) != ATTN_OK) bail_out("%s", error.text);
    const size_t rows = (size_t)w->tokens * w->c.heads;
    for (int r = 0; r < w->world; r++) {
        jobs[r] = (struct job){.w = w,
                               .context = contexts[r],
                               .comm = attn_comm_threads_rank(all, r),
                               .rank = r,
                               .error = ERROR_INIT,
                               .output = malloc(rows * (size_t)w->value_size * 8 + 8),
                               .lse = malloc(rows * 4 + 8)};
        if (rank_device.type != kDLCPU) {
            attn_comm_t host = jobs[r].comm;
            if (rank_peers) host.all_to_all = refuse_exchange;
            if (attn_comm_staged_init(&jobs[r].staged, &host, &rank_device, &jobs[r].comm, &error) != ATTN_OK)
                bail_out("%s", error.text);
            if (rank_peers &&
                attn_comm_staged_offer_peers(&jobs[r].staged, 20000, &jobs[r].comm, &error) != ATTN_OK)
                bail_out("%s", error.text);
        }
        pthread_create(&threads[r], NULL, run_job, &jobs[r]);
    }
    for (int r = 0; r < w->world; r++) {
        pthread_join(threads[r], NULL);
        const double d =
            jobs[r].code == ATTN_OK ? rank_difference(w, r, w->c.dtype, jobs[r].output, jobs[r].lse) : 9;
        if (jobs[r].code != ATTN_OK) diag("rank %d: %s: %s", r, jobs[r].error.param, jobs[r].error.text);
        if (!(d <= worst)) worst = d;
        free(jobs[r].output), free(jobs[r].lse);
    }
    for (int r = 0; r < w->world; r++) /* what the ranks share */
        attn_comm_staged_end(&jobs[r].staged);
    attn_comm_threads_destroy(all);
    if (rank_peers) {
        rank_start = NULL;
        pthread_barrier_destroy(&start);
    }
    return worst;
}

/* A case over `world` ranks that exchange in each other's memory. */
TAP_UNUSED static double run_peers(const struct rank_case *c, int world, attn_context_t *const *contexts,
                                   uint64_t seed) {
    struct rank_world w;
    attn_error_t error = ERROR_INIT;
    if (make_rank_world(&w, c, world, contexts[0], seed, &error) != ATTN_OK)
        bail_out("%s: one rank: %s", c->what, error.text);
    rank_peers = 1;
    const double worst = run_threads(&w, contexts);
    rank_peers = 0;
    free_rank_world(&w);
    return worst;
}

/* A case over `world` ranks in both forms: *worst[1] and [2], by ATTN_JOIN_*. */
TAP_UNUSED static void run_case(const struct rank_case *which, int world, attn_context_t *const *contexts,
                                uint64_t seed, double *worst) {
    for (uint32_t join = ATTN_JOIN_ALL_TO_ALL; join <= ATTN_JOIN_REDUCE_SCATTER; join++) {
        struct rank_case c = *which;
        struct rank_world w;
        attn_error_t error = ERROR_INIT;
        c.join = join;
        if (make_rank_world(&w, &c, world, contexts[0], seed, &error) != ATTN_OK)
            bail_out("%s: one rank: %s", c.what, error.text);
        worst[join] = run_threads(&w, contexts);
        free_rank_world(&w);
    }
}

#endif
