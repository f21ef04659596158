/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism with threads: every family and form over 2, 3 and 4 ranks against one rank in double
 * (semantics 8). */
#include "ranks_world.h"

#include <attn/attn_comm_threads.h>

struct job {
    struct rank_world *w;
    attn_context_t *context;
    attn_comm_t comm;
    int rank, code;
    attn_error_t error;
    char *output;
    float *lse;
};

static void *run_job(void *user) {
    struct job *j = user;
    j->code = run_rank(j->w, j->context, j->w->c.backend, j->w->c.dtype, j->w->world, j->rank, &j->comm,
                       j->w->c.seq, j->output, j->lse, &j->error);
    return NULL;
}

static double run_threads(struct rank_world *w, attn_context_t *const *contexts) {
    attn_comm_threads_t *all = NULL;
    attn_error_t error = ERROR_INIT;
    struct job jobs[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    double worst = 0;
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
    attn_comm_threads_destroy(all);
    return worst;
}

int main(void) {
    const uint64_t seed = tap_seed();
    attn_context_t *contexts[MAX_WORLD];
    for (int r = 0; r < MAX_WORLD; r++)
        contexts[r] = rank_context();
    for (int i = 0; i < NUM_RANK_CASES; i++)
        for (int world = 2; world <= MAX_WORLD; world++) {
            double worst[3];
            for (uint32_t join = ATTN_JOIN_ALL_TO_ALL; join <= ATTN_JOIN_REDUCE_SCATTER; join++) {
                struct rank_case c = rank_cases[i];
                struct rank_world w;
                attn_error_t error = ERROR_INIT;
                c.join = join;
                if (make_rank_world(&w, &c, world, contexts[0], seed + (uint64_t)i, &error) != ATTN_OK)
                    bail_out("%s: one rank: %s", c.what, error.text);
                worst[join] = run_threads(&w, contexts);
                free_rank_world(&w);
            }
            ok(worst[1] < rank_cases[i].tolerance && worst[2] < rank_cases[i].tolerance,
               "%s over %d ranks, %s (all-to-all %.1e, reduce-scatter %.1e)", rank_cases[i].backend, world,
               rank_cases[i].what, worst[1], worst[2]);
        }
    for (int r = 0; r < MAX_WORLD; r++)
        attn_context_destroy(contexts[r]);
    return tap_done();
}
