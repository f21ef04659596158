/* SPDX-License-Identifier: Apache-2.0 */
/* Planner of the flash kernels. Decode: every request in equal pieces (flash_pieces.c), longest first.
 * Prefill: tiles by falling number of keys. */
#include "flash_pieces.h"

#include <string.h>

int flash_visible_span(const flash_plan_input *in, int seq, int q_len, int first, int last) {
    long kv = in->seq_lens[seq], lo = in->first_key, hi = kv, pos = kv - q_len;
    if (flash_is_causal(in, seq))
        hi = pos + last + 1;
    else if (in->window_right >= 0 && pos + last + in->window_right + 1 < hi)
        hi = pos + last + in->window_right + 1;
    if (in->window_left >= 0 && pos + first - in->window_left > lo) lo = pos + first - in->window_left;
    if (in->chunk > 0) {
        long start = ((pos + first) / in->chunk - in->lookback) * in->chunk;
        lo = start > lo ? start : lo;
        hi = pos + last + 1;
    }
    if (hi > kv) hi = kv;
    return hi > lo ? (int)(hi - lo) : 0;
}

/* What is sorted, a request or a tile, is four words; the first is its key, not negative. */
enum { WORDS = 4 };
_Static_assert(sizeof(flash_plan_request) == WORDS * sizeof(int32_t) &&
                   sizeof(flash_plan_tile) == WORDS * sizeof(int32_t),
               "the sort moves both by words");

static void move(int32_t *to, const int32_t *from) {
    memcpy(to, from, WORDS * sizeof *to);
}

static void sort_few(int32_t *list, int n) {
    for (int i = 1; i < n; i++) {
        int32_t moved[WORDS];
        int at = i;
        move(moved, list + WORDS * i);
        for (; at > 0 && list[WORDS * (at - 1)] < moved[0]; at--)
            move(list + WORDS * at, list + WORDS * (at - 1));
        move(list + WORDS * at, moved);
    }
}

/* By falling key, those of one key in their order: eight bits at a time, between the list and `scratch`,
 * which holds as many. Unlike the C library's qsort it never allocates. */
static void sort_falling(void *list, void *scratch, int n) {
    enum { FEW = 24 };
    int32_t *from = list, *to = scratch, most = 0;
    int is_sorted = 1;
    for (int i = 0; i < n; i++) {
        is_sorted &= i == 0 || from[WORDS * (i - 1)] >= from[WORDS * i];
        most = max_i(most, from[WORDS * i]);
    }
    if (is_sorted) return;
    if (n <= FEW) {
        sort_few(from, n);
        return;
    }
    for (int shift = 0; shift < 31 && most >> shift != 0; shift += 8) {
        int32_t place[256] = {0}, at = 0;
        for (int i = 0; i < n; i++)
            place[from[WORDS * i] >> shift & 255]++;
        for (int digit = 255; digit >= 0; digit--) {
            const int32_t count = place[digit];
            place[digit] = at;
            at += count;
        }
        for (int i = 0; i < n; i++)
            move(to + (size_t)WORDS * (size_t)place[from[WORDS * i] >> shift & 255]++, from + WORDS * i);
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != list) memcpy(list, from, (size_t)n * WORDS * sizeof *from);
}

static flash_item item_of(const flash_plan_input *in, int seq, int piece, int pieces, int slot) {
    return (flash_item){seq,
                        piece,
                        pieces,
                        slot,
                        in->q_start[seq],
                        in->q_start[seq + 1] - in->q_start[seq],
                        in->seq_lens[seq],
                        flash_is_causal(in, seq)};
}

static int plan_decode(const flash_plan_input *in, const flash_plan_limits *lim, flash_plan *plan) {
    flash_plan_request *r = plan->requests;
    flash_counts *c = &plan->counts;
    int n = 0, longest = 0, ctas = 0, is_alone = 1;
    for (int s = 0; s < in->num_seqs; s++) {
        int q_len = in->q_start[s + 1] - in->q_start[s];
        if (q_len > in->decode_tokens) is_alone = 0;
        if (q_len <= 0 || q_len > in->decode_tokens) continue;
        if (n >= lim->max_seqs || n >= lim->max_items) return -1;
        int own = in->num_kv_heads * ceil_div(q_len * in->group, in->decode_rows);
        r[n] = (flash_plan_request){flash_visible_span(in, s, q_len, 0, q_len - 1), s, own, 1};
        ctas += own;
        plan->decode_keys += r[n].span;
        longest = max_i(longest, r[n++].span);
        plan->decode_tokens = max_i(plan->decode_tokens, q_len);
    }
    flash_decode_batch batch = {.in = in,
                                .r = r,
                                .n = n,
                                .longest = longest,
                                .ctas = ctas,
                                .rows = min_i(in->decode_rows, plan->decode_tokens * in->group),
                                .max_slots = lim->max_slots,
                                .is_alone = is_alone};
    if (n > 0) flash_choose_pieces(&batch, plan);
    for (int i = 0; i < n; i++)
        if (r[i].pieces > 1) r[i].span = ceil_div(r[i].span, r[i].pieces);
    sort_falling(r, plan->items, n);
    for (int i = 0; i < n; i++) {
        int p = r[i].pieces, first = FLASH_SLOT_FINAL;
        if (p > 1 && c->num_slots + p > lim->max_slots) p = 1;
        if (c->num_items + p > lim->max_items) return -1;
        if (p > 1) {
            first = c->num_slots;
            c->num_slots += p;
        }
        for (int k = 0; k < p; k++)
            plan->items[c->num_items++] = item_of(in, r[i].seq, k, p, first < 0 ? first : first + k);
        c->max_pieces = max_i(c->max_pieces, p);
    }
    return 0;
}

/* What the rows from `first` on see of piece `piece`; all of it but of the last. */
static int piece_span(const flash_plan_input *in, int s, int q_len, int first, int last, int piece,
                      int pieces) {
    return piece < pieces - 1 ? in->piece_keys
                              : flash_visible_span(in, s, q_len, first, last) - piece * in->piece_keys;
}

/* A piece but the last has no mask: its tile is one of a request that ends there. */
static flash_tile tile_of(const flash_plan_input *in, const flash_plan_tile *x) {
    const int s = x->seq, q_len = in->q_start[s + 1] - in->q_start[s],
              is_last = x->piece == flash_pieces_of(in, s) - 1;
    return (flash_tile){s,
                        x->block,
                        in->k_start ? in->k_start[s] : 0,
                        in->first_key + x->piece * in->piece_keys,
                        in->q_start[s],
                        q_len,
                        is_last ? in->seq_lens[s] : (x->piece + 1) * in->piece_keys,
                        is_last && flash_is_causal(in, s)};
}

static int plan_prefill(const flash_plan_input *in, const flash_plan_limits *lim, flash_plan *plan) {
    int n = 0, group = in->packed ? in->group : 1;
    for (int s = 0; s < in->num_seqs; s++) {
        int q_len = in->q_start[s + 1] - in->q_start[s];
        if (q_len > in->decode_tokens) n += ceil_div(q_len * group, in->block_rows) * flash_pieces_of(in, s);
    }
    if (n > lim->max_tiles) return -1;
    if (n == 0) return 0;
    flash_plan_tile *keys = plan->tile_keys;
    flash_span *spans = (flash_span *)(void *)(plan->tiles + n);
    n = 0;
    for (int s = 0; s < in->num_seqs; s++) {
        int q_len = in->q_start[s + 1] - in->q_start[s];
        if (q_len <= in->decode_tokens) continue;
        /* as first_row_of() of the Hopper kernels */
        const int grows = !in->packed && in->block_rows == 192 && (flash_is_causal(in, s) || in->chunk > 0);
        const int missing = grows ? ceil_div(q_len, in->block_rows) * in->block_rows - q_len : 0;
        const int pieces = flash_pieces_of(in, s);
        for (int b = ceil_div(q_len * group, in->block_rows) - 1; b >= 0; b--) {
            int first = b * in->block_rows - missing;
            int end = min_i(q_len * group, first + in->block_rows);
            for (int k = pieces - 1; k >= 0; k--)
                keys[n++] = (flash_plan_tile){
                    piece_span(in, s, q_len, max_i(first, 0) / group, (end - 1) / group, k, pieces), s, b, k};
        }
        if (in->piece_keys <= 0 || q_len <= 0) continue;
        if (plan->num_spans >= lim->max_spans) return -1;
        spans[plan->num_spans++] = (flash_span){in->q_start[s], q_len, pieces, 0};
        plan->longest_span = max_i(plan->longest_span, q_len);
    }
    sort_falling(keys, plan->tiles, n); /* of one length: by request, its last block first */
    double sum = 0;
    for (int i = 0; i < n; i++) {
        plan->tiles[i] = tile_of(in, &keys[i]);
        sum += keys[i].keys;
    }
    plan->keys_per_tile = (int32_t)(sum / n);
    plan->counts.num_tiles = n;
    return 0;
}

void flash_plan_capacity(flash_plan_limits *lim, const flash_plan_input *in) {
    /* Splitting pays until a few pieces per CTA slot; beyond that requests alone fill the machine. */
    int per_head = ceil_div(4 * in->modes[0].slots, max_i(in->num_kv_heads, 1));
    lim->max_slots = in->num_splits == 1 ? 0 : max_i(per_head, in->num_splits * lim->max_seqs);
    lim->max_items = lim->max_seqs + lim->max_slots;
    int group = in->packed ? in->group : 1;
    lim->max_tiles =
        min_i(lim->max_tokens, lim->max_seqs + (int)((long)lim->max_tokens * group / in->block_rows));
    lim->max_whole_tiles = lim->max_tiles;
    lim->max_spans = 0;
    if (lim->max_cut_rows > 0) { /* as many pieces as flash_plan_cut makes */
        lim->max_spans = min_i(lim->max_seqs, 4 * in->num_sms);
        lim->max_tiles = max_i(lim->max_tiles, 8 * in->num_sms);
    }
}

int flash_plan_build(const flash_plan_input *in, const flash_plan_limits *lim, flash_plan *plan) {
    plan->counts = (flash_counts){0, 0, 0, 0, NULL, 0};
    plan->mode = 0;
    plan->cluster = 1;
    plan->most_items = 0;
    plan->keys_per_tile = 0;
    plan->num_spans = plan->longest_span = 0;
    plan->decode_tokens = 0;
    plan->decode_keys = 0;
    int rc = in->decode_tokens > 0 ? plan_decode(in, lim, plan) : 0;
    return rc ? rc : plan_prefill(in, lim, plan);
}
