/* SPDX-License-Identifier: Apache-2.0 */
/* A short prompt behind a long context has few tiles, each with all the keys: they are cut into pieces, which
 * the merge joins, so that no SM is idle. Every row sees all of a piece but its request's last, so the others
 * are tiles without a mask. Measurements: dense-notes.md. */
#include "flash_plan.h"

enum { GRAIN = 128 };

/* In keys that a tile reads meanwhile. */
static const double start_cost = 160, merge_cost = 400;

static int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

int32_t flash_pieces_of(int32_t keys, int32_t seen, int32_t piece_keys) {
    if (piece_keys <= 0) return 1;
    const int32_t n = (keys + piece_keys / 2) / piece_keys, most = seen / piece_keys + 1;
    return n < 2 || most < 2 ? 1 : n < most ? n : most;
}

/* What requests are to the SMs, cut at piece_keys or, 0, not at all. */
typedef struct cut_load {
    double total, longest; /* keys, with what cutting costs */
    double jobs;           /* pieces of tiles, each of as many heads as a tile has */
    int64_t entries;       /* in the list of tiles */
    int32_t pieces;        /* of the request that has most */
} cut_load;

static cut_load load_of(const flash_cut_request *r, int32_t n, double heads, int32_t piece_keys) {
    cut_load x = {.pieces = 1};
    for (int32_t i = 0; i < n; i++) {
        const int32_t pieces = flash_pieces_of(r[i].keys, r[i].seen, piece_keys);
        const double last = r[i].keys - (double)(pieces - 1) * piece_keys,
                     most = pieces < 2 ? last : start_cost + (piece_keys > last ? piece_keys : last);
        x.jobs += heads * r[i].blocks * pieces;
        x.total += heads * r[i].blocks * (r[i].keys + (pieces - 1) * start_cost);
        x.longest = most > x.longest ? most : x.longest;
        x.entries += (int64_t)r[i].blocks * pieces;
        x.pieces = pieces > x.pieces ? pieces : x.pieces;
    }
    return x;
}

/* Jobs of one length run in waves; others are drawn, and on average half of the longest is left when the list
 * is empty. */
static double time_of(const cut_load *x, int32_t num_sms) {
    const double waves = (double)(int64_t)((x->jobs + num_sms - 1) / num_sms) * x->longest,
                 drawn = x->total / num_sms + x->longest / 2,
                 time = x->total > 0.9 * x->jobs * x->longest || waves < drawn ? waves : drawn;
    return time > x->longest ? time : x->longest;
}

double flash_plan_cut(const flash_plan_input *in, const flash_plan_limits *lim, flash_cut_request *r,
                      flash_cut *cut) {
    int32_t n = 0, longest = 0, end = 0;
    *cut = (flash_cut){.pieces = 1};
    for (int32_t s = 0; s < in->num_seqs; s++) {
        const int32_t tokens = in->q_start[s + 1] - in->q_start[s];
        if (tokens <= in->decode_tokens || tokens <= 0) continue;
        const int32_t keys = flash_visible_span(in, s, tokens, 0, tokens - 1);
        if (n == 0) cut->first_row = in->q_start[s];
        end = in->q_start[s + 1];
        longest = keys > longest ? keys : longest;
        r[n++] = (flash_cut_request){keys, flash_is_causal(in, s) ? keys - tokens + 1 : keys,
                                     ceil_div(tokens * (in->packed ? in->group : 1), in->block_rows), 0};
    }
    cut->num_rows = end - cut->first_row;
    const double heads =
        in->num_kv_heads * (in->packed ? 1 : in->group / (in->tile_heads > 1 ? in->tile_heads : 1));
    const cut_load whole = load_of(r, n, heads, 0);
    double best = time_of(&whole, in->num_sms);
    if (lim->max_cut_rows <= 0 || !flash_may_cut(in) || whole.jobs > 4.0 * in->num_sms) return best;
    for (int32_t parts = 2; parts <= FLASH_CUT_PIECES; parts += parts < 16 ? 1 : parts / 8) {
        const int32_t keys = ceil_div(ceil_div(longest, parts), GRAIN) * GRAIN;
        if (keys < FLASH_CUT_KEYS) break;
        const cut_load x = load_of(r, n, heads, keys);
        if (x.jobs > 8.0 * in->num_sms) break;
        if (x.entries > lim->max_tiles ||
            (int64_t)x.pieces * cut->num_rows * in->num_kv_heads * in->group > lim->max_cut_rows)
            continue;
        const double time = time_of(&x, in->num_sms) + merge_cost;
        if (time >= (cut->piece_keys > 0 ? 1 : 0.95) * best) continue;
        best = time;
        cut->piece_keys = keys, cut->pieces = x.pieces;
    }
    return best;
}
