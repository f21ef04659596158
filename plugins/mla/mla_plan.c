/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of MLA: two walks over the tiles of a slice, one that adds up the work and one that writes the lists. */
#include "mla_plan.h"

#include <stddef.h>

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
    l->max_slices = cdiv(l->max_tokens, in->slice_tokens);
    int64_t segments = in->topk ? l->max_tokens : (int64_t)l->max_seqs + l->max_slices;
    int64_t in_slice = in->topk ? in->slice_tokens : min32(l->max_seqs, in->slice_tokens);
    int64_t slots = 2 * (int64_t)in->slots;
    int64_t tiles = rows / MLA_TILE_ROWS + segments;
    int64_t items = tiles + slots * l->max_slices;
    if (rows > INT32_MAX || items > INT32_MAX / 2) return -1;
    l->max_slots = (int32_t)slots;
    l->max_items = (int32_t)items;
    l->max_splits = (int32_t)(slots / 2 * l->max_slices);
    l->max_slice_items = (int32_t)(slice_rows / MLA_TILE_ROWS + in_slice + slots);
    return 0;
}

/* Where the next tile of a slice is; request and row start at the slice's first. */
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
    if (in->topk) /* tokens have keys of their own: a tile never holds two */
        stop = (w->row / in->num_heads + 1) * in->num_heads;
    if (stop > w->end) stop = w->end;
    int32_t rows = min32(stop - w->row, MLA_TILE_ROWS);
    int32_t last = (int32_t)((w->row + rows - 1) / in->num_heads);
    int32_t base = in->seq_lens[r] - q_end;
    int64_t keys = in->topk ? in->topk : (int64_t)base + last + 1;
    *out = (mla_item){r, (int32_t)w->row, rows, base, 0, keys > 0 ? (int32_t)keys : 0, -1, 0};
    w->row += rows;
    return 1;
}

/* Key tiles of one piece. Pieces of cut tiles number at most 2 * slots: a tile of n key tiles becomes ceil(n / piece)
 * < 2n / piece pieces, and the sum of all n is at most slots * piece. */
static int32_t piece_tiles(const mla_plan_input *in, tile_walk w) {
    int64_t work = 0, tiles = 0;
    mla_item it;
    for (; next_tile(in, &w, &it); tiles++)
        work += cdiv(it.k_end, MLA_TILE_KEYS);
    if (in->slots == 0 || tiles >= in->slots) return INT32_MAX / MLA_TILE_KEYS;
    int32_t piece = cdiv(work, in->slots);
    return piece < 4 ? 4 : piece;
}

int mla_plan_build(const mla_plan_input *in, const mla_plan_limits *limits, mla_slice *slices,
                   mla_item *items, mla_split *splits) {
    int64_t rows = (int64_t)in->q_start[in->num_reqs] * in->num_heads;
    int64_t slice_rows = (int64_t)in->slice_tokens * in->num_heads;
    int32_t n = 0, item = 0, split = 0;
    tile_walk w = {0, 0, 0};
    while (w.row < rows) {
        w.end = w.row + slice_rows < rows ? w.row + slice_rows : rows;
        int32_t piece = piece_tiles(in, w), slot = 0;
        if (n >= limits->max_slices) return -1;
        slices[n] = (mla_slice){item, 0, split, 0};
        mla_item it;
        while (next_tile(in, &w, &it)) {
            int32_t count = cdiv(it.k_end, (int64_t)piece * MLA_TILE_KEYS), keys = it.k_end;
            if (count <= 1) {
                if (item >= limits->max_items) return -1;
                items[item++] = it;
                continue;
            }
            if (split >= limits->max_splits || slot + count > limits->max_slots ||
                item + count > limits->max_items)
                return -1;
            splits[split++] = (mla_split){it.first_row, it.num_rows, slot, count};
            for (int32_t i = 0; i < count; i++) {
                it.k_begin = i * piece * MLA_TILE_KEYS;
                it.k_end = min32((int64_t)(i + 1) * piece * MLA_TILE_KEYS, keys);
                it.slot = slot++;
                items[item++] = it;
            }
        }
        slices[n].num_items = item - slices[n].first_item;
        slices[n].num_splits = split - slices[n].first_split;
        n++;
    }
    return n;
}
