/* SPDX-License-Identifier: Apache-2.0 */
/* Planning. Upstream cuts every request of a small decode batch into 16 segments (semantics 6.6); here the
 * number follows from the lengths, so that one long request and a mixture of lengths fill the device as well
 * as equal ones do. Blocks of prefill, where they are few and have many keys, are cut too (cut_keys.h); their
 * partial results take the room of decode's, which is done by then. */
#include "triton_plan.h"

#include "triton_config.h"

enum {
    MAX_PIECES = TRITON_MAX_PIECES,
    LEAST_PARTS = 64,
    WIDE_COST = 5, /* of a CTA of twice the rows, where one of fewer costs NARROW_COST; as measured */
    NARROW_COST = 4,
    OVERHEAD = 384,    /* keys that could be read while a segment starts and ends */
    MERGE_SEGMENT = 10 /* the same for each segment that the last one of a request merges, by eight rows */
};

static int least(int a, int b) {
    return a < b ? a : b;
}
static int64_t greatest(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int keys_of(const triton_plan_input_t *in, int q_len, int kv_len) {
    return in->window > 0 ? least(kv_len, in->window + q_len) : kv_len;
}

int triton_plan_is_wide(const triton_plan_input_t *in, int wide_rows, const int32_t *q_start,
                        const int32_t *seq_lens, int num_seqs) {
    int64_t narrow = 0, wide = 0; /* keys that CTAs read */
    for (int r = 0; r < num_seqs; r++) {
        const int q_len = q_start[r + 1] - q_start[r];
        if (q_len == 0 || q_len > in->decode_tokens) continue;
        const int64_t keys = keys_of(in, q_len, seq_lens[r]);
        narrow += keys * triton_row_blocks(in->group, in->decode_rows, q_len);
        wide += keys * triton_row_blocks(in->group, wide_rows, q_len);
    }
    return wide * WIDE_COST < narrow * NARROW_COST;
}

void triton_plan_capacity(const triton_plan_input_t *in, triton_plan_limits_t *l) {
    int64_t tiles = up((int64_t)l->tokens * in->group, in->block_rows) + l->seqs;
    const int64_t blocks =
        in->decode_tokens > 0 ? triton_row_blocks(in->group, in->decode_rows, in->decode_tokens) : 1;
    int64_t parts = up(6 * (int64_t)in->slots, in->kv_heads * blocks) + 8;
    l->tiles = (int)(tiles < 1 << 24 ? tiles : 1 << 24);
    l->parts = (int)(parts < LEAST_PARTS ? LEAST_PARTS : parts);
    if (l->parts > 65535 - l->seqs) /* items are the y dimension of a grid */
        l->parts = 65535 - l->seqs;
    if (in->decode_tokens == 0) l->parts = 0;
    const int64_t heads = (int64_t)in->kv_heads * in->group;
    l->whole_tiles = l->tiles;
    l->rows = l->parts * in->decode_tokens * heads;
    l->tickets = (int)(l->parts * blocks);
    const int64_t rows = cut_rows((int64_t)in->cut_slots * in->block_rows, heads * l->tokens, l->keys);
    if (rows > 0) { /* as many blocks and pieces as cut_keys takes */
        l->rows = greatest(l->rows, rows);
        l->tickets = (int)greatest(l->tickets, 4 * in->cut_slots / in->kv_heads + 1);
        l->tiles += 8 * in->cut_slots / in->kv_heads;
    }
    l->splits = l->parts / 2 < l->seqs ? l->parts / 2 : l->seqs;
    l->items = l->seqs + l->parts;
}

static int pieces_of(int keys, int piece) {
    return keys <= piece ? 1 : least(MAX_PIECES, (int)up(keys, piece));
}

/* The length of a segment that ends soonest: all work over all slots, plus the part of a wave that stays
 * empty, plus the merge. heads: CTAs of a segment; rows: of one of them. */
static int choose_piece(const triton_plan_input_t *in, const triton_plan_limits_t *l, const int32_t *keys,
                        int n, double heads, int rows) {
    const double merge = MERGE_SEGMENT * (rows > 8 ? rows / 8.0 : 1.0);
    int longest = 1, best_piece = 1 << 30;
    double best = 1e300;
    for (int i = 0; i < n; i++)
        longest = keys[i] > longest ? keys[i] : longest;
    if (in->segments > 0) return (int)up(longest, in->segments);
    const int dense =
        n <= 16 ? 64 : 8; /* every number up to here: a few requests fill the slots exactly or badly */
    for (int pieces = 1; pieces <= MAX_PIECES; pieces = pieces < dense ? pieces + 1 : pieces + pieces / 4) {
        int piece = (int)up(up(longest, pieces), 64) * 64;
        if (pieces > 1 && piece < in->least_keys) break;
        double total = 0, heaviest = 0, lightest = 1e300;
        int64_t count = 0, parts = 0;
        int most = 1;
        for (int i = 0; i < n; i++) {
            int k = pieces_of(keys[i], piece);
            most = k > most ? k : most;
            double cost = (double)keys[i] / k + OVERHEAD;
            total += cost * k;
            count += k;
            parts += k > 1 ? k : 0;
            heaviest = cost > heaviest ? cost : heaviest;
            lightest = cost < lightest ? cost : lightest;
        }
        if (parts > l->parts) break;
        double ctas = (double)count * heads, waves = ctas / in->slots;
        double empty = (double)(int64_t)(waves + 0.999999) - waves;
        double time =
            total * heads / in->slots + empty * lightest + (parts > 0 ? OVERHEAD + merge * most : 0);
        time = time > heaviest ? time : heaviest;
        if (time < best) best = time, best_piece = piece;
    }
    return best_piece;
}

/* Longest first, so that the last wave is short. Shell sort: no memory, and the lists are short. */
static void sort_tiles(triton_tile_t *tiles, int32_t *keys, int n) {
    int gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int i = gap; i < n; i++) {
            triton_tile_t t = tiles[i];
            int32_t k = keys[i];
            int j = i;
            for (; j >= gap && keys[j - gap] < k; j -= gap)
                tiles[j] = tiles[j - gap], keys[j] = keys[j - gap];
            tiles[j] = t, keys[j] = k;
        }
}

static void sort_items(triton_item_t *items, int n) {
    int gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int i = gap; i < n; i++) {
            triton_item_t t = items[i];
            int j = i;
            for (; j >= gap && items[j - gap].keys < t.keys; j -= gap)
                items[j] = items[j - gap];
            items[j] = t;
        }
}

/* Whether, and at which multiples of keys, tiles are cut. */
static void choose_cut(const triton_plan_input_t *in, const triton_plan_limits_t *l, const int32_t *q_start,
                       const int32_t *seq_lens, int num_seqs, triton_plan_t *plan) {
    int n = 0, longest = 0, pieces;
    double time;
    plan->piece_keys = plan->cut_rows = plan->num_slots = plan->num_tickets = 0;
    if (in->cut_slots == 0 || in->segments > 0 || l->keys < 2 * CUT_LEAST_KEYS) return;
    for (int r = 0; r < num_seqs; r++) {
        const int q_len = q_start[r + 1] - q_start[r];
        if (q_len <= in->decode_tokens) continue;
        plan->cuts[n++] =
            (cut_request){seq_lens[r], seq_lens[r], (int32_t)up((int64_t)q_len * in->group, in->block_rows)};
        longest = q_len > longest ? q_len : longest;
    }
    if (n == 0) return;
    const int64_t heads = (int64_t)in->kv_heads * in->group;
    const cut_limits limits = {.heads = in->kv_heads,
                               .slots = in->cut_slots,
                               .grain = in->cut_grain,
                               .max_entries = l->tiles,
                               .max_rows = l->rows,
                               .rows_a_slot = longest * heads,
                               .start = 160,
                               .merge = 200};
    plan->piece_keys = cut_keys(plan->cuts, n, &limits, &pieces, &time);
    plan->cut_rows = (int)(longest * heads);
}

static void add_tiles(const triton_plan_input_t *in, const triton_plan_limits_t *l, int seq, int q_len,
                      int kv_len, triton_plan_t *plan) {
    int blocks = (int)up((int64_t)q_len * in->group, in->block_rows);
    const int pieces = cut_pieces_of(kv_len, kv_len, plan->piece_keys), slot = plan->num_slots;
    if (pieces > 1) plan->num_slots += pieces;
    for (int b = 0; b < blocks && plan->num_tiles < l->tiles; b++) {
        int64_t last = ((int64_t)(b + 1) * in->block_rows - 1) / in->group;
        int64_t end = in->causal && last < q_len ? kv_len - q_len + last + 1 : kv_len;
        int tokens = in->block_rows / in->group + 1;
        /* a block ends sooner than its request's last, and so may its pieces */
        const int own = pieces > 1 && plan->piece_keys > 0
                            ? least(pieces, (int)((end - 1) / plan->piece_keys) + 1)
                            : 1,
                  ticket = own > 1 ? plan->num_tickets++ : 0;
        for (int i = 0; i < own && plan->num_tiles < l->tiles; i++) {
            const int64_t keys = i + 1 < own ? plan->piece_keys : end - (int64_t)i * plan->piece_keys;
            plan->tile_keys[plan->num_tiles] =
                in->window > 0 && keys > in->window + tokens ? in->window + tokens : (int32_t)keys;
            plan->tiles[plan->num_tiles++] =
                (triton_tile_t){seq, b, own > 1 ? slot : -1, (uint8_t)i, (uint8_t)own, (uint16_t)ticket};
        }
    }
}

void triton_plan_build(const triton_plan_input_t *in, const triton_plan_limits_t *l, const int32_t *q_start,
                       const int32_t *seq_lens, int num_seqs, triton_plan_t *plan) {
    int32_t *keys = plan->scratch;
    int decodes = 0;
    plan->num_items = plan->num_splits = plan->num_tiles = plan->num_parts = 0;
    plan->max_decode_tokens = 1;
    for (int r = 0; r < num_seqs; r++) {
        int q_len = q_start[r + 1] - q_start[r];
        if (q_len == 0 || q_len > in->decode_tokens) continue;
        keys[decodes++] = keys_of(in, q_len, seq_lens[r]);
        plan->max_decode_tokens = q_len > plan->max_decode_tokens ? q_len : plan->max_decode_tokens;
    }
    const double heads =
        decodes > 0
            ? (double)(in->kv_heads * triton_row_blocks(in->group, in->decode_rows, plan->max_decode_tokens))
            : 0;
    const int rows = least(in->decode_rows, plan->max_decode_tokens * in->group);
    int piece = decodes > 0 ? choose_piece(in, l, keys, decodes, heads, rows) : 1;
    choose_cut(in, l, q_start, seq_lens, num_seqs, plan);
    for (int r = 0; r < num_seqs; r++) {
        int q_len = q_start[r + 1] - q_start[r];
        keys[r] = keys_of(in, q_len, seq_lens[r]); /* by request from here on */
        if (q_len > in->decode_tokens) add_tiles(in, l, r, q_len, seq_lens[r], plan);
        if (q_len == 0 || q_len > in->decode_tokens) continue;
        int pieces = pieces_of(keys[r], piece);
        if (in->segments > 0)
            pieces = least(least(in->segments, MAX_PIECES), pieces_of(keys[r], in->least_keys));
        if (plan->num_parts + pieces > l->parts || plan->num_splits >= l->splits) pieces = 1;
        int first = pieces > 1 ? plan->num_parts : -1, each = keys[r] / pieces;
        for (int i = 0; i < pieces; i++)
            plan->items[plan->num_items++] = (triton_item_t){
                r, i, pieces, first < 0 ? -1 : first + i, q_start[r], q_len, seq_lens[r], each};
        if (pieces > 1) {
            plan->splits[plan->num_splits++] = (triton_split_t){r, first, pieces, 0};
            plan->num_parts += pieces;
        }
    }
    sort_items(plan->items, plan->num_items);
    sort_tiles(plan->tiles, plan->tile_keys, plan->num_tiles);
}
