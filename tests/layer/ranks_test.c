/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism with threads: every family and form over 2, 3 and 4 ranks against one rank in double
 * (semantics 8). */
#include "ranks_threads.h"

int main(void) {
    const uint64_t seed = tap_seed();
    attn_context_t *contexts[MAX_WORLD];
    for (int r = 0; r < MAX_WORLD; r++)
        contexts[r] = rank_context();
    for (int i = 0; i < NUM_RANK_CASES; i++)
        for (int world = 2; world <= MAX_WORLD; world++) {
            double worst[3];
            run_case(&rank_cases[i], world, contexts, seed + (uint64_t)i, worst);
            ok(worst[1] < rank_cases[i].tolerance && worst[2] < rank_cases[i].tolerance,
               "%s over %d ranks, %s (all-to-all %.1e, reduce-scatter %.1e)", rank_cases[i].backend, world,
               rank_cases[i].what, worst[1], worst[2]);
        }
    for (int r = 0; r < MAX_WORLD; r++)
        attn_context_destroy(contexts[r]);
    return tap_done();
}
