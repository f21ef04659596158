/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of MLA: the tiles of a slice are listed once, then dealt out for trial until the parts are
 * short, then for good. A list without parts takes two walks over the tiles, one that adds up the work and
 * one that writes. */
#include "mla_plan.h"

#include <stddef.h>
#include <string.h>

static int32_t min32(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}
static int32_t cdiv(int64_t a, int64_t b) {
    return (int32_t)((a + b - 1) / b);
}

int32_t mla_slice_tokens(int32_t num_heads, int32_t max_tokens) {
    int32_t tokens = (1 << 17) / num_heads;
    return tokens < max_tokens ? (tokens < 1 ? 1 : tokens) : max_tokens;
}

int mla_plan_capacity(mla_plan_limits *l, const mla_plan_input *in) {
    int64_t rows = (int64_t)l->max_tokens * in->num_heads,
            slice_rows = (int64_t)in->slice_tokens * in->num_heads;
    l->max_slices = cdiv(l->max_tokens, in->slice_tokens) + (in->border > 0);
    int64_t segments = in->topk ? l->max_tokens : (int64_t)l->max_seqs + l->max_slices;
    int64_t in_slice = in->topk ? in->slice_tokens : min32(l->max_seqs, in->slice_tokens);
    int64_t slots = 2 * (int64_t)in->slots;
    int64_t tiles = rows / in->tile_rows + segments;
    int64_t items = tiles + slots * l->max_slices;
    if (rows > INT32_MAX || items > INT32_MAX / 2) return -1;
    l->max_slots = (int32_t)slots;
    l->max_items = (int32_t)items;
    l->max_splits = (int32_t)(slots / 2 * l->max_slices);
    l->max_slice_items = (int32_t)(slice_rows / in->tile_rows + in_slice + slots);
    return 0;
}

/* Where the next tile of a slice is; request and row start at the slice's first. Rows of a batch have 31 bits
 * (mla_plan_capacity). */
typedef struct tile_walk {
    int32_t request;
    int64_t row, end; /* next row, end of the slice */
} tile_walk;

static int next_tile(const mla_plan_input *in, tile_walk *w, mla_item *out) {
    if (w->row >= w->end) return 0;
    while ((int64_t)in->q_start[w->request + 1] * in->num_heads <= w->row)
        w->request++;
    int32_t r = w->request, q_end = in->q_start[r + 1];
    int64_t stop = (int64_t)q_end * in->num_heads;
    const uint32_t row = (uint32_t)w->row, heads = (uint32_t)in->num_heads;
    if (in->topk) /* tokens have keys of their own: a tile never holds two */
        stop = ((int64_t)(row / heads) + 1) * heads;
    if (stop > w->end) stop = w->end;
    int32_t rows = min32(stop - w->row, in->tile_rows);
    int32_t last = (int32_t)((row + (uint32_t)rows - 1) / heads);
    /* token t sees keys k < base + t + 1: with base the length all of them, whatever t is */
    int32_t base = in->is_full ? in->seq_lens[r] : in->seq_lens[r] - q_end;
    int64_t keys = in->topk                      ? in->topk
                   : in->is_full || in->is_bound ? in->seq_lens[r]
                                                 : (int64_t)base + last + 1;
    *out = (mla_item){r, (int32_t)w->row, rows, base, 0, keys > 0 ? (int32_t)keys : 0, -1, 0};
    w->row += rows;
    return 1;
}

/* Key tiles of one piece. Pieces of cut tiles number at most 2 * slots: a tile of n key tiles becomes ceil(n
 * / piece) < 2n / piece pieces, and the sum of all n is at most slots * piece. */
static int32_t piece_tiles(const mla_plan_input *in, tile_walk w) {
    int64_t work = 0, tiles = 0;
    mla_item it;
    for (; next_tile(in, &w, &it); tiles++)
        work += cdiv(it.k_end, MLA_TILE_KEYS);
    if (in->slots == 0 || tiles >= in->slots) return INT32_MAX / MLA_TILE_KEYS;
    int32_t piece = cdiv(work, in->slots);
    return piece < 4 ? 4 : piece;
}

/* The lists under construction, and how much of them is in use. */
typedef struct plan_lists {
    const mla_plan_limits *limits;
    mla_item *items;
    mla_split *splits;
    int32_t *parts; /* of this slice */
    int32_t num_items, num_splits, num_slots;
} plan_lists;

/* Adds keys [from, to) of a tile of `keys` keys. Pieces of a tile come one after the other. */
static inline int add_piece(plan_lists *out, const mla_item *tile, int32_t from, int32_t to, int32_t keys) {
    if (out->num_items >= out->limits->max_items) return -1;
    int32_t slot = -1;
    if (from > 0 || to < keys) {
        if (out->num_slots >= out->limits->max_slots) return -1;
        slot = out->num_slots++;
        if (from == 0) {
            if (out->num_splits >= out->limits->max_splits) return -1;
            out->splits[out->num_splits++] = (mla_split){.first_row = tile->first_row,
                                                         .num_rows = tile->num_rows,
                                                         .slot = slot,
                                                         .request = tile->request};
        }
        out->splits[out->num_splits - 1].pieces++;
    }
    out->items[out->num_items++] =
        (mla_item){tile->request, tile->first_row, tile->num_rows, tile->base, from, to, slot, 0};
    return 0;
}

static int list_items(const mla_plan_input *in, tile_walk w, plan_lists *out) {
    const int32_t step = piece_tiles(in, w) * MLA_TILE_KEYS;
    mla_item it;
    while (next_tile(in, &w, &it)) {
        int32_t keys = it.k_end, from = 0;
        do {
            int32_t to = min32((int64_t)from + step, keys);
            if (add_piece(out, &it, from, to, keys)) return -1;
            from = to;
        } while (from < keys);
    }
    return 0;
}

/* Costs in the time of one key tile: what an item costs beside its keys, the least keys worth a piece, and
 * what cutting costs: the merge kernel, and one more for so many rows of pieces. Those of narrow tiles count
 * double: such tiles wait for memory, and each piece for its first keys. */
enum { ITEM_COST = 2, LEAST_PIECE = 2, CUT_COST = 4, CUT_ROWS = 1024, NARROW_ROWS = 16 };
/* The same over selected tokens, whose key tiles take longer, and how many tiles for each part are so many
 * that the last round of whole ones is no matter. */
enum { SPARSE_CUT_COST = 3, SPARSE_CUT_ROWS = 3072, SPARSE_ROUNDS = 16 };
/* And what an item costs beside its keys where lists differ in length, so that the number of items tells.
 * Short lists are cut down to single key tiles. */
enum { SPARSE_ITEM_COST = 5 };

/* A request's tiles are dealt out side by side where each request has as many, to as many shares of the
 * parts, so that they meet its keys at the same time and all but one find them in the L2: at most SIDES of
 * them, and unless more than one part in LOST would have no share. */
enum { SIDES = 8, LOST = 32 };

/* Tiles for the trials; k_begin is the number of key tiles, the cost of each is that and item_cost. */
typedef struct tile_list {
    const mla_item *tiles; /* [sides][count], the first tile of each request, then the second of each .. */
    int32_t count, sides;
    int32_t parts; /* of a side */
    int32_t item_cost, least_piece;
    int64_t work, longest; /* sum and maximum of the costs of the last side, which has the longest tiles */
} tile_list;

/* Tiles of each request, 1 where they differ in that or may not be dealt out side by side. */
static int32_t equal_sides(const mla_plan_input *in, const mla_item *tiles, int32_t count) {
    int32_t sides = 0;
    while (sides < count && tiles[sides].request == tiles[0].request)
        sides++;
    if (in->topk || sides < 2 || sides > SIDES || count % sides || in->parts % sides * LOST > in->parts)
        return 1;
    for (int32_t i = 0; i < count; i += sides)
        if (tiles[i + sides - 1].request != tiles[i].request ||
            (i + sides < count && tiles[i + sides].request == tiles[i].request))
            return 1;
    return sides;
}

/* Key tiles of a tile. A list of selected tokens names no more than its token sees: those of a prompt's first
 * tokens are short. */
static int32_t key_tiles(const mla_plan_input *in, const mla_item *it) {
    int64_t keys = it->k_end;
    if (in->topk && !in->is_bound) {
        const int64_t seen = in->is_full ? it->base : (int64_t)it->base + it->first_row / in->num_heads + 1;
        if (seen < keys) keys = seen;
    }
    return cdiv(keys, MLA_TILE_KEYS);
}

/* Where key tile `at` of so many begins among the keys, or the positions of a list, of which tiles have equal
 * shares. */
static int32_t key_of_tile(const mla_plan_input *in, int32_t at, int32_t tiles, int32_t keys) {
    if (at >= tiles) return keys;
    return in->topk ? (int32_t)((int64_t)at * keys / tiles) : at * MLA_TILE_KEYS;
}

/* They are at the end of the array of items, where this slice's items cannot reach those that are still to
 * be read: each of them becomes an item at least. Returns 0, or -1 where there is no room. */
static int list_tiles(const mla_plan_input *in, const tile_walk start, const plan_lists *out,
                      tile_list *list) {
    mla_item *first = out->items + out->num_items, it;
    const int32_t room = out->limits->max_items - out->num_items;
    tile_walk w = start;
    int32_t n = 0;
    for (; next_tile(in, &w, &it); n++) {
        if (n >= room) return -1;
        it.k_begin = key_tiles(in, &it);
        first[n] = it;
    }
    const int32_t sides = equal_sides(in, first, n);
    mla_item *tiles = first + (room - n);
    *list = (tile_list){tiles, n / sides, sides, in->parts / sides, ITEM_COST, LEAST_PIECE, 0, 0};
    if (sides == 1) memmove(tiles, first, (size_t)n * sizeof *first);
    w = start;
    for (int32_t i = 0; sides > 1 && next_tile(in, &w, &it); i++) {
        it.k_begin = key_tiles(in, &it);
        tiles[i % sides * list->count + i / sides] = it;
    }
    for (int32_t i = 0; in->topk && i < n; i++) {
        if (tiles[i].k_begin != tiles[0].k_begin) list->item_cost = SPARSE_ITEM_COST;
        if (tiles[i].k_begin < cdiv(tiles[i].k_end, MLA_TILE_KEYS)) list->least_piece = 1;
    }
    for (int32_t i = n - list->count; i < n; i++) {
        const int64_t cost = tiles[i].k_begin + list->item_cost;
        list->work += cost;
        list->longest = cost > list->longest ? cost : list->longest;
    }
    return 0;
}

/* How the tiles were dealt out. */
typedef struct deal_result {
    int32_t parts;
    int64_t longest;  /* part */
    int64_t cut_rows; /* of all pieces of cut tiles, as they count */
} deal_result;

/* Deals one side's tiles out to parts of at most `budget` each, in order; writes the lists where `out` is
 * given. Returns 0, or -1 where there is no room. A tile longer than the budget takes a part of its own where
 * it may not be cut. */
static int deal_side(const mla_plan_input *in, const tile_list *list, int32_t side, int64_t budget, int cut,
                     deal_result *d, plan_lists *out) {
    int32_t part = 0;
    int64_t left = budget, least_left = budget;
    *d = (deal_result){0, 0, 0};
    if (out) out->parts[0] = out->num_items;
    for (int32_t i = 0; i < list->count; i++) {
        const mla_item *tile = &list->tiles[side * list->count + i];
        const int32_t tiles = tile->k_begin, rows = tile->num_rows, keys = tile->k_end;
        int32_t at = 0;
        if (!out && tiles + list->item_cost <= left) { /* as below; most tiles of a trial take this way */
            left -= tiles + list->item_cost;
            continue;
        }
        do {
            int32_t take = tiles - at;
            if (take > left - list->item_cost) {
                take = cut ? (int32_t)(left - list->item_cost) : take;
                if (cut ? take < list->least_piece : left < budget) { /* this part is full */
                    least_left = left < least_left ? left : least_left;
                    part++, left = budget;
                    if (out) {
                        if (part >= list->parts) return -1;
                        out->parts[part] = out->num_items;
                    }
                    continue;
                }
            }
            if (out && (out->items + out->num_items > tile ||
                        add_piece(out, tile, at > 0 ? key_of_tile(in, at, tiles, keys) : 0,
                                  key_of_tile(in, at + take, tiles, keys), keys)))
                return -1;
            if (take < tiles) d->cut_rows += !in->topk && rows <= NARROW_ROWS ? 2 * rows : rows;
            at += take, left -= take + list->item_cost;
        } while (at < tiles);
    }
    if (out)
        for (int32_t i = part; i < list->parts; i++)
            out->parts[i + 1] = out->num_items;
    d->parts = part + 1;
    d->longest = budget - (left < least_left ? left : least_left);
    return 0;
}

/* Tries a budget on the side with the longest tiles: with shorter ones no part ends earlier. */
static void try_deal(const mla_plan_input *in, const tile_list *list, int64_t budget, int cut,
                     deal_result *d) {
    deal_side(in, list, list->sides - 1, budget, cut, d, NULL);
    d->cut_rows *= list->sides;
}

/* Writes the lists, side by side; returns as deal_side does. */
static int deal(const mla_plan_input *in, const tile_list *list, int64_t budget, int cut, plan_lists *out) {
    int32_t *parts = out->parts;
    deal_result d;
    for (int32_t side = 0; side < list->sides; side++, out->parts += list->parts)
        if (deal_side(in, list, side, budget, cut, &d, out)) return -1;
    out->parts = parts;
    for (int32_t i = list->sides * list->parts; i < in->parts; i++)
        parts[i + 1] = out->num_items;
    return 0;
}

static int fits(const mla_plan_input *in, const tile_list *list, int64_t budget, int cut) {
    deal_result d;
    try_deal(in, list, budget, cut, &d);
    return d.parts <= list->parts;
}

/* The smallest budget with which `parts` parts are enough; so are they with more, since no part then ends
 * earlier. high: one that is enough, or 0: then it is near the even share where tiles may be cut, and at most
 * the longest tile beyond it where not, so steps up from there grow until one is enough. */
static int64_t least_budget(const mla_plan_input *in, const tile_list *list, int cut, int64_t high) {
    int64_t low = cdiv(list->work, list->parts), step = 1;
    if (!cut && low < list->longest) low = list->longest;
    if (low < list->item_cost + list->least_piece) low = list->item_cost + list->least_piece;
    if (high < low)
        for (high = low; !fits(in, list, high, cut); step *= 2)
            low = high + 1, high += step;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (fits(in, list, mid, cut))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Tiles are cut where that ends sooner: then the merge and the rows that go through memory for it add to the
 * longest part, and a slightly longer part is often worth it, because then the cuts of neighbouring tiles
 * fall together. */
static int list_parts(const mla_plan_input *in, tile_walk w, plan_lists *out) {
    tile_list list;
    deal_result d;
    int64_t budget = 0, cost = INT64_MAX, whole = 0;
    const int cut_cost = in->topk ? SPARSE_CUT_COST : CUT_COST,
              cut_rows = in->topk ? SPARSE_CUT_ROWS : CUT_ROWS;
    if (list_tiles(in, w, out, &list)) return -1;
    if (in->topk && list.count >= (int64_t)SPARSE_ROUNDS * in->parts)
        return deal(in, &list, INT64_MAX, 0, out);
    int cut = in->slots > 0;
    if (cut) {
        const int64_t least = least_budget(in, &list, 1, 0);
        for (int64_t b = least; b <= least + 4 && b + cut_cost < cost; b++) {
            try_deal(in, &list, b, 1, &d);
            const int64_t c = b + cut_cost + d.cut_rows / cut_rows;
            if (c < cost) cost = c, budget = b;
        }
        try_deal(in, &list, cost, 0, &d);
        whole = d.longest;
        cut = whole > cost || d.parts > list.parts; /* else whole tiles end no later */
    }
    if (!cut) budget = least_budget(in, &list, 0, whole);
    return deal(in, &list, budget, cut, out);
}

int mla_plan_build(const mla_plan_input *in, const mla_plan_limits *limits, mla_slice *slices,
                   mla_item *items, mla_split *splits, int32_t *parts) {
    const int32_t tokens = in->q_start[in->num_reqs], heads = in->num_heads;
    const int64_t rows = (int64_t)tokens * heads;
    plan_lists out = {limits, items, splits, parts, 0, 0, 0};
    tile_walk w = {0, 0, 0};
    int32_t n = 0;
    for (; w.row < rows; n++, w.row = w.end) {
        w.end = (int64_t)mla_slice_end(in, (int32_t)(w.row / heads), tokens) * heads;
        while ((int64_t)in->q_start[w.request + 1] * heads <= w.row)
            w.request++;
        if (n >= limits->max_slices) return -1;
        slices[n] = (mla_slice){out.num_items, 0, out.num_splits, 0, 0};
        out.num_slots = 0;
        if (in->parts > 0 ? list_parts(in, w, &out) : list_items(in, w, &out)) return -1;
        slices[n].num_items = out.num_items - slices[n].first_item;
        slices[n].num_splits = out.num_splits - slices[n].first_split;
        if (in->slots == 0) slices[n].most_rows = in->tile_rows;
        for (int32_t i = slices[n].first_item; i < out.num_items; i++)
            if (items[i].num_rows > slices[n].most_rows) slices[n].most_rows = items[i].num_rows;
        if (in->parts > 0) out.parts += in->parts + 1;
    }
    for (int32_t i = 0; in->is_bound && i < out.num_items; i++)
        items[i].first_row -= in->q_start[items[i].request] * in->num_heads;
    for (int32_t i = 0; in->is_bound && i < out.num_splits; i++)
        splits[i].first_row -= in->q_start[splits[i].request] * in->num_heads;
    return in->is_bound && n > 1 ? -1 : n;
}
