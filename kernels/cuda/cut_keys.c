/* SPDX-License-Identifier: Apache-2.0 */
#include "cut_keys.h"

static int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

int32_t cut_pieces_of(int32_t keys, int32_t seen, int32_t piece_keys) {
    if (piece_keys <= 0) return 1;
    const int32_t n = (keys + piece_keys / 2) / piece_keys, most = seen / piece_keys + 1;
    return n < 2 || most < 2 ? 1 : n < most ? n : most;
}

/* What requests are to the device, cut at piece_keys or, 0, not at all. */
typedef struct cut_load {
    double total, longest; /* keys, with what cutting costs */
    double jobs;           /* pieces of blocks of rows */
    int64_t entries;       /* of a head */
    int64_t slots;         /* pieces of requests that are cut */
    int32_t pieces;        /* of the request that has most */
} cut_load;

static cut_load load_of(const cut_request *r, int32_t n, const cut_limits *l, int32_t piece_keys) {
    cut_load x = {.pieces = 1};
    for (int32_t i = 0; i < n; i++) {
        const int32_t pieces = cut_pieces_of(r[i].keys, r[i].seen, piece_keys);
        const double last = r[i].keys - (double)(pieces - 1) * piece_keys,
                     most = pieces < 2 ? last : l->start + (piece_keys > last ? piece_keys : last);
        x.jobs += l->heads * r[i].blocks * pieces;
        x.total += l->heads * r[i].blocks * (r[i].keys + (pieces - 1) * l->start);
        x.longest = most > x.longest ? most : x.longest;
        x.entries += (int64_t)r[i].blocks * pieces;
        x.slots += pieces > 1 ? pieces : 0;
        x.pieces = pieces > x.pieces ? pieces : x.pieces;
    }
    return x;
}

/* Jobs of one length run in waves; others are drawn, and on average half of the longest is left when the list
 * is empty. */
static double time_of(const cut_load *x, int32_t slots) {
    const double waves = (double)(int64_t)((x->jobs + slots - 1) / slots) * x->longest,
                 drawn = x->total / slots + x->longest / 2,
                 time = x->total > 0.9 * x->jobs * x->longest || waves < drawn ? waves : drawn;
    return time > x->longest ? time : x->longest;
}

int32_t cut_keys(const cut_request *r, int32_t n, const cut_limits *l, int32_t *pieces, double *time) {
    const cut_load whole = load_of(r, n, l, 0);
    int32_t longest = 0, best = 0;
    *pieces = 1;
    *time = time_of(&whole, l->slots);
    for (int32_t i = 0; i < n; i++)
        longest = r[i].keys > longest ? r[i].keys : longest;
    if (l->max_rows <= 0 || whole.jobs > 4.0 * l->slots) return 0;
    for (int32_t parts = 2; parts <= CUT_MOST_PIECES; parts += parts < 16 ? 1 : parts / 8) {
        const int32_t keys = ceil_div(ceil_div(longest, parts), l->grain) * l->grain;
        if (keys < CUT_LEAST_KEYS) break;
        const cut_load x = load_of(r, n, l, keys);
        if (x.jobs > 8.0 * l->slots) break;
        if (x.entries > l->max_entries || x.pieces > CUT_MOST_PIECES ||
            (l->rows_a_slot > 0 ? x.slots * l->rows_a_slot : x.pieces * l->rows_a_piece) > l->max_rows)
            continue;
        const double took = time_of(&x, l->slots) + l->merge;
        if (took >= (best > 0 ? 1 : 0.95) * *time) continue;
        best = keys, *pieces = x.pieces, *time = took;
    }
    return best;
}

int64_t cut_rows(int64_t rows_of_wave, int64_t rows, int32_t keys) {
    const int32_t most = keys / CUT_LEAST_KEYS < CUT_MOST_PIECES ? keys / CUT_LEAST_KEYS : CUT_MOST_PIECES;
    const int64_t all = most * rows, waves = 4 * rows_of_wave;
    return most < 2 ? 0 : all < waves ? all : waves;
}
