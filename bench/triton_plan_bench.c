/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of TRITON_ATTN alone: microseconds for decodes of 1 to 8192 keys, 4 query heads a KV head, 264
 * CTAs at once, the fastest of 300 calls. Needs no GPU. Usage: triton_plan_bench */
#include "triton_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REQS = 1024, CALLS = 300 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

int main(void) {
    static int32_t starts[REQS + 1], lens[REQS];
    srand(7);
    for (int r = 0; r < REQS; r++)
        starts[r + 1] = r + 1, lens[r] = 1 + rand() % 8192;
    for (int kv_heads = 1; kv_heads <= 8; kv_heads *= 8)
        for (int reqs = 64; reqs <= REQS; reqs *= 4) {
            const triton_plan_input_t in = {.group = 4,
                                            .kv_heads = kv_heads,
                                            .decode_tokens = 1,
                                            .decode_rows = 8,
                                            .slots = 264,
                                            .least_keys = 256,
                                            .block_rows = 64,
                                            .causal = 1};
            triton_plan_limits_t l = {.seqs = REQS, .tokens = 16384};
            triton_plan_capacity(&in, &l);
            triton_plan_t plan = {.items = calloc((size_t)l.items, sizeof *plan.items),
                                  .splits = calloc((size_t)l.splits + 1, sizeof *plan.splits),
                                  .tiles = calloc((size_t)l.tiles, sizeof *plan.tiles),
                                  .tile_keys = calloc((size_t)l.tiles, sizeof *plan.tile_keys),
                                  .scratch = calloc((size_t)l.seqs, sizeof *plan.scratch)};
            if (!plan.items || !plan.splits || !plan.tiles || !plan.tile_keys || !plan.scratch) return 1;
            double best = 1e30;
            for (int i = 0; i < CALLS; i++) {
                const double from = now_us();
                triton_plan_build(&in, &l, starts, lens, reqs, &plan);
                const double us = now_us() - from;
                best = us < best ? us : best;
            }
            printf("%d KV heads, %4d requests: %6.1f us, %d items\n", kv_heads, reqs, best, plan.num_items);
            free(plan.items), free(plan.splits), free(plan.tiles), free(plan.tile_keys), free(plan.scratch);
        }
    return 0;
}
