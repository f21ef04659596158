/* SPDX-License-Identifier: Apache-2.0 */
/* Which requests of a batch are widened: the last ones, as far as there is room and it pays. Batches begin
 * with the requests that decode, which have one token for all of their context. Measurements:
 * sparse-notes.md. */
#include "widen_rows.h"

/* Nanoseconds on a whole device: what a block of 64 keys and 64 rows takes longer over 656-byte rows, where
 * the L2 holds the copy and where it does not; what a row of the copy takes, and a copy whatever it has. */
enum { ROWS_IN_L2 = 36000 };
static const double block_gain[2] = {4.5, 2.8}, row_cost = 0.6, copy_cost = 5000;

static int32_t pages_of(const widen_batch *b, int32_t r) {
    const int32_t is_empty = b->q_start[r + 1] == b->q_start[r];
    return is_empty ? 0 : (int32_t)(((int64_t)b->seq_lens[r] + b->page_size - 1) / b->page_size);
}

/* Blocks that the tokens of a request are. */
static double blocks_of(const widen_batch *b, int32_t r) {
    const int32_t tokens = b->q_start[r + 1] - b->q_start[r], last = b->seq_lens[r],
                  first = last - tokens + 1, tiles = (b->num_heads + MLA_TILE_ROWS - 1) / MLA_TILE_ROWS;
    const double most = b->topk, from = first < most ? first : most, to = last < most ? last : most;
    return tokens * ((from + to) / 2 / MLA_TILE_KEYS) * tiles;
}

widened widen_choose(const widen_batch *b) {
    widened best = {b->num_reqs, b->q_start[b->num_reqs], 0, 0, 0};
    double blocks = 0, most = 0;
    int64_t pages = 0, longest = 0;
    for (int32_t r = b->num_reqs - 1; r >= 0; r--) {
        const int32_t own = pages_of(b, r);
        pages += own, longest = own > longest ? own : longest;
        if (pages > b->max_pages || longest * (b->num_reqs - r) > b->max_entries) break;
        blocks += own > 0 ? blocks_of(b, r) : 0;
        const double rows = (double)pages * b->page_size,
                     gain = block_gain[rows > ROWS_IN_L2] * blocks - row_cost * rows - copy_cost;
        if (own == 0 || (gain <= most && !b->always)) continue;
        most = gain;
        best = (widened){r, b->q_start[r], b->num_reqs - r, (int32_t)pages, (int32_t)longest};
    }
    return best;
}

void widen_starts(const widen_batch *b, const widened *w, int32_t *starts) {
    int32_t at = 0;
    for (int32_t i = 0; i < w->num_reqs; i++) {
        starts[i] = at;
        at += pages_of(b, w->first_request + i);
    }
    starts[w->num_reqs] = at;
}
