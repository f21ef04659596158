/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of MLA without a GPU: every row of every token meets each of its keys exactly once, within the
 * declared capacities, whatever the lengths are; pieces of one tile lie in neighbouring slots that nobody
 * else has. */
#include "kernels/cuda/latent/mla_config.h"
#include "kernels/cuda/latent/mla_plan.h"
#include "../../tap.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REQS = 40 };

typedef struct batch {
    int32_t q_start[MAX_REQS + 1], seq_lens[MAX_REQS], num_reqs;
} batch_t;

/* Plans one batch and checks it all; returns what is wrong, NULL if nothing. */
static const char *check_plan(const batch_t *b, mla_plan_input in, mla_plan_limits l, int *num_cut) {
    in.q_start = b->q_start, in.seq_lens = b->seq_lens, in.num_reqs = b->num_reqs;
    if (mla_plan_capacity(&l, &in)) return "no capacity";
    mla_slice *slices = calloc((size_t)l.max_slices + 1, sizeof *slices);
    mla_item *items = calloc((size_t)l.max_items + 1, sizeof *items);
    mla_split *splits = calloc((size_t)l.max_splits + 1, sizeof *splits);
    int32_t *parts = calloc((size_t)l.max_slices * (size_t)(in.parts + 1) + 1, sizeof *parts);
    int32_t rows = b->q_start[b->num_reqs] * in.num_heads;
    int32_t *covered = malloc(((size_t)rows + 1) * sizeof *covered); /* keys so far, -1: no item yet */
    char *slot_used = malloc((size_t)l.max_slots + 1);
    memset(covered, 0xff, ((size_t)rows + 1) * sizeof *covered);
    const char *wrong = NULL;
    int n = mla_plan_build(&in, &l, slices, items, splits, in.parts ? parts : NULL), next_item = 0,
        next_split = 0;
    if (n < 0) wrong = "a capacity does not hold";
    for (int s = 0; in.is_bound && s < n; s++) { /* rows count from the first of their request */
        for (int i = slices[s].first_item; i < slices[s].first_item + slices[s].num_items; i++) {
            const int32_t first = b->q_start[items[i].request] * in.num_heads;
            if (items[i].k_end > b->seq_lens[items[i].request]) wrong = "keys beyond the bound";
            items[i].first_row += first;
        }
        for (int i = slices[s].first_split; i < slices[s].first_split + slices[s].num_splits; i++)
            splits[i].first_row += b->q_start[splits[i].request] * in.num_heads;
    }
    for (int s = 0, token = 0; s < n && !wrong; s++) {
        memset(slot_used, 0, (size_t)l.max_slots + 1);
        int32_t most = in.slots ? 0 : in.tile_rows;
        for (int i = slices[s].first_item; i < slices[s].first_item + slices[s].num_items; i++)
            most = items[i].num_rows > most ? items[i].num_rows : most;
        if (slices[s].most_rows != most) wrong = "the largest tile of a slice";
        const int32_t end = mla_slice_end(&in, token, b->q_start[b->num_reqs]);
        const int32_t low = token * in.num_heads, high = end * in.num_heads;
        if (end - token > in.slice_tokens || (token < in.border && end > in.border))
            wrong = "a slice is longer than it may be";
        token = end;
        if (slices[s].first_item != next_item || slices[s].first_split != next_split)
            wrong = "slices do not follow each other";
        if (slices[s].num_items > l.max_slice_items) wrong = "a slice is larger than its launch";
        next_item += slices[s].num_items, next_split += slices[s].num_splits;
        const int32_t *part = parts + s * (in.parts + 1);
        for (int p = 0; p < in.parts; p++)
            if (part[p + 1] < part[p]) wrong = "a part ends before it begins";
        if (in.parts && (part[0] != slices[s].first_item || part[in.parts] != next_item))
            wrong = "the parts do not hold the items of the slice";
        int split = slices[s].first_split, piece = 0;
        for (int i = slices[s].first_item; i < next_item && !wrong; i++) {
            const mla_item *it = &items[i];
            if (it->num_rows < 1 || it->num_rows > in.tile_rows || it->first_row < low ||
                it->first_row + it->num_rows > high)
                wrong = "a tile lies outside its slice";
            int32_t t0 = it->first_row / in.num_heads, t1 = (it->first_row + it->num_rows - 1) / in.num_heads;
            if (t0 < b->q_start[it->request] || t1 >= b->q_start[it->request + 1] || (in.topk && t0 != t1))
                wrong = "a tile holds rows of two lists of keys";
            if (it->base != b->seq_lens[it->request] - (in.is_full ? 0 : b->q_start[it->request + 1]))
                wrong = "base";
            for (int32_t r = it->first_row; r < it->first_row + it->num_rows && !wrong; r++) {
                if (covered[r] != (piece ? it->k_begin : -1) || (piece == 0 && it->k_begin != 0))
                    wrong = "keys are left out or come twice";
                covered[r] = it->k_end;
            }
            if (it->slot < 0) {
                if (piece) wrong = "a whole tile between the pieces of another";
            } else if (split >= next_split || it->slot >= l.max_slots || slot_used[it->slot]++ ||
                       it->slot != splits[split].slot + piece || it->first_row != splits[split].first_row ||
                       it->num_rows != splits[split].num_rows) {
                wrong = "a piece does not fit its split";
            } else if (++piece == splits[split].pieces) {
                piece = 0, split++, (*num_cut)++;
            }
        }
        if (split != next_split || piece != 0) wrong = wrong ? wrong : "a split lacks pieces";
    }
    for (int r = 0; r < b->num_reqs && !wrong; r++)
        for (int32_t t = b->q_start[r]; t < b->q_start[r + 1]; t++)
            for (int h = 0; h < in.num_heads; h++) {
                int64_t seen = in.topk ? in.topk
                               : in.is_full || in.is_bound
                                   ? b->seq_lens[r]
                                   : (int64_t)b->seq_lens[r] - b->q_start[r + 1] + t + 1;
                if (covered[t * in.num_heads + h] < (seen > 0 ? seen : 0))
                    wrong = "a row does not get all its keys";
            }
    free(slices), free(items), free(splits), free(parts), free(covered), free(slot_used);
    return wrong;
}

static void random_batches(uint64_t seed) {
    static const int32_t heads[] = {1, 2, 3, 8, 16, 63, 64, 65, 128, 200};
    int bad = 0, cut = 0;
    for (int i = 0; i < 3000; i++) {
        batch_t b = {.num_reqs = (int32_t)tap_rand_in(&seed, 0, MAX_REQS)};
        int kind = (int)tap_rand_in(&seed, 0, 3);
        const int32_t equal = (int32_t)tap_rand_in(&seed, 1, 9);
        for (int r = 0; r < b.num_reqs; r++) {
            int32_t q = kind == 0   ? 1
                        : kind == 2 ? equal
                                    : (int32_t)tap_rand_in(&seed, 0, kind == 1 ? 3 : 60);
            b.q_start[r + 1] = b.q_start[r] + q;
            b.seq_lens[r] = q + (int32_t)tap_rand_in(&seed, 0, kind == 3 ? 40000 : 300);
        }
        mla_plan_input in = {.num_heads = heads[tap_rand_in(&seed, 0, 9)],
                             .slots = (int32_t)tap_rand_in(&seed, 0, 3) * 66,
                             .topk = tap_rand_in(&seed, 0, 2) == 0 ? (int32_t)tap_rand_in(&seed, 1, 16) * 128
                                                                   : 0};
        mla_plan_limits l = {.max_seqs = b.num_reqs > 0 ? b.num_reqs : 1,
                             .max_tokens = b.q_start[b.num_reqs] + 1};
        in.is_full = !in.topk && tap_rand_in(&seed, 0, 3) == 0;
        in.tile_rows = 32 * (int32_t)tap_rand_in(&seed, 1, 4);
        if (tap_rand_in(&seed, 0, 1)) in.parts = in.slots ? in.slots : 66;
        in.slice_tokens = (int32_t)tap_rand_in(&seed, 1, l.max_tokens);
        in.is_bound = !in.topk && tap_rand_in(&seed, 0, 2) == 0;
        if (in.is_bound)
            in.slice_tokens = l.max_tokens;
        else if (tap_rand_in(&seed, 0, 1))
            in.border = (int32_t)tap_rand_in(&seed, 1, l.max_tokens);
        const char *wrong = check_plan(&b, in, l, &cut);
        if (wrong && bad++ < 5)
            diag("batch %d: %s (%d requests, %d tokens, %d heads, %d slots, %d parts, topk %d, slices of %d)",
                 i, wrong, b.num_reqs, b.q_start[b.num_reqs], in.num_heads, in.slots, in.parts, in.topk,
                 in.slice_tokens);
    }
    ok(bad == 0, "3000 random batches: each row meets each of its keys once (%d wrong)", bad);
    ok(cut > 1000, "keys were cut in %d tiles", cut);
}

/* Lists of a prompt's first tokens are short, and parts have equal work all the same. */
static void short_lists(void) {
    static const struct {
        const char *what;
        int32_t heads, requests, tokens, keys;
    } cases[] = {{"a prompt", 16, 1, 2048, 2048},
                 {"short prompts", 16, 40, 50, 50},
                 {"a chunk", 64, 1, 1000, 1500},
                 {"of 128 heads", 128, 1, 1000, 1000},
                 {"lists that are full", 16, 1, 700, 5000},
                 {"decodes of all lengths", 16, 40, 1, 0}};
    enum { TOPK = 2048 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        batch_t b = {.num_reqs = cases[i].requests};
        for (int r = 0; r < b.num_reqs; r++) {
            b.q_start[r + 1] = b.q_start[r] + cases[i].tokens;
            b.seq_lens[r] = cases[i].keys ? cases[i].keys : 100 * (r + 1);
        }
        const int ctas = cases[i].heads > 64 ? 2 : 1;
        mla_plan_input in = {.q_start = b.q_start,
                             .seq_lens = b.seq_lens,
                             .num_reqs = b.num_reqs,
                             .num_heads = cases[i].heads,
                             .topk = TOPK,
                             .slots = 132 / ctas,
                             .parts = 132 / ctas,
                             .tile_rows = 64 * ctas,
                             .slice_tokens = 4096};
        mla_plan_limits l = {.max_seqs = MAX_REQS, .max_tokens = 4096};
        int32_t parts[133];
        mla_slice slice[2];
        if (mla_plan_capacity(&l, &in)) bail_out("no capacity");
        mla_item *items = calloc((size_t)l.max_items, sizeof *items);
        mla_split *splits = calloc((size_t)l.max_splits + 1, sizeof *splits);
        const int n = mla_plan_build(&in, &l, slice, items, splits, parts);
        double total = 0, most = 0;
        for (int p = 0; n == 1 && p < in.parts; p++) {
            double work = 0, cost = cases[i].what[0] == 'l' ? 2 : 5; /* of an item */
            /* as sparse_turns has it: contiguous where lists are cut, else in turn */
            const int cut = slice[0].num_splits > 0, step = cut ? 1 : in.parts,
                      end = cut ? parts[p + 1] : slice[0].num_items;
            for (int k = cut ? parts[p] : p; k < end; k += step) {
                const int token = items[k].first_row / in.num_heads;
                const double seen = items[k].base + token + 1;
                work += cost + (seen < TOPK ? seen : TOPK) / 64 * (items[k].k_end - items[k].k_begin) / TOPK;
            }
            total += work, most = work > most ? work : most;
        }
        ok(n == 1 && most <= 1.15 * total / in.parts + 4, "%s: parts of %.1f blocks, %.1f on average",
           cases[i].what, most, total / in.parts);
        free(items), free(splits);
    }
}

/* The items of a batch that is one slice, NULL if it is not planned; the caller frees them. part: [parts +
 * 1]; *cut counts the splits. */
static mla_item *plan_parts(const int32_t *q_start, const int32_t *seq_lens, int reqs, int heads, int parts,
                            int slots, int32_t *part, int *cut) {
    mla_plan_input in = {.q_start = q_start,
                         .seq_lens = seq_lens,
                         .num_reqs = reqs,
                         .num_heads = heads,
                         .slots = slots,
                         .tile_rows = 128,
                         .parts = parts,
                         .slice_tokens = 1024};
    mla_plan_limits l = {.max_seqs = reqs, .max_tokens = q_start[reqs]};
    mla_plan_capacity(&l, &in);
    mla_slice slice = {0};
    mla_item *items = calloc((size_t)l.max_items, sizeof *items);
    mla_split *splits = calloc((size_t)l.max_splits + 1, sizeof *splits);
    const int n = mla_plan_build(&in, &l, &slice, items, splits, part);
    *cut = slice.num_splits;
    free(splits);
    if (n == 1) return items;
    free(items);
    return NULL;
}

/* The longest part of a plan in key tiles. */
static int longest_part(const int32_t *q_start, const int32_t *seq_lens, int reqs, int heads, int parts,
                        int slots, int *cut) {
    int32_t *part = calloc((size_t)parts + 1, sizeof *part);
    mla_item *items = plan_parts(q_start, seq_lens, reqs, heads, parts, slots, part, cut);
    int longest = -1;
    for (int p = 0; items != NULL && p < parts; p++) {
        int tiles = 0;
        for (int i = part[p]; i < part[p + 1]; i++)
            tiles += (items[i].k_end - items[i].k_begin + MLA_TILE_KEYS - 1) / MLA_TILE_KEYS;
        longest = tiles > longest ? tiles : longest;
    }
    free(items), free(part);
    return longest;
}

static void balanced_parts(void) {
    int32_t q_start[129], lens[128];
    for (int r = 0; r <= 128; r++)
        q_start[r] = r;
    for (int r = 0; r < 128; r++)
        lens[r] = 8192;
    int cut = 0;
    is_int(longest_part(q_start, lens, 64, 128, 66, 66, &cut), 128, "64 equal requests on 66 clusters");
    is_int(cut, 0, "are not cut: merging costs more than two idle clusters");
    is_int(longest_part(q_start, lens, 67, 128, 66, 66, &cut), 130, "67 are: two rounds would be 256 tiles");
    ok(cut > 0 && cut <= 66, "in at most as many tiles as there are parts (%d)", cut);
    is_int(longest_part(q_start, lens, 67, 128, 66, 0, &cut), 256,
           "unless results may not depend on the batch");
    lens[0] = 65536;
    is_int(longest_part(q_start, lens, 1, 128, 66, 66, &cut), 16, "one long request is spread over all");
    for (int r = 0; r < 128; r++)
        lens[r] = r % 2 ? 64 * 200 : 64 * 4;
    int longest = longest_part(q_start, lens, 128, 128, 66, 66, &cut);
    ok(longest >= 198 && longest <= 205, "mixed lengths: at most %d tiles a part, 198 on average", longest);
}

/* How many of the parts of the first share have, item by item, the keys of another part for each of the other
 * `tiles` - 1 tiles of a request: parts meet them at the same time and the L2 serves all but one. */
static int parts_side_by_side(int reqs, int32_t length, int tiles, int parts, int *splits_in_all) {
    enum { MOST = 128 };
    int32_t q_start[MOST + 1], lens[MOST], part[133];
    for (int r = 0; r <= reqs; r++)
        q_start[r] = r * tiles;
    for (int r = 0; r < reqs; r++)
        lens[r] = length;
    mla_item *items = plan_parts(q_start, lens, reqs, 128, parts, parts, part, splits_in_all);
    int alike = 0;
    const int share = parts / tiles;
    for (int p = 0; items != NULL && p < share; p++) {
        int same = 1;
        for (int side = 1; side < tiles; side++)
            for (int i = 0, n = part[p + 1] - part[p], q = p + side * share; i < n && same; i++) {
                const mla_item *a = &items[part[p] + i], *b = &items[part[q] + i];
                same = part[q + 1] - part[q] == n && a->request == b->request && a->k_begin == b->k_begin &&
                       b->first_row == a->first_row + side * 128;
            }
        alike += same;
    }
    free(items);
    return alike;
}

/* Requests with several tokens of 128 heads: each token is a tile, and all of them read the same keys. */
static void tiles_side_by_side(void) {
    int cut = 0;
    is_int(parts_side_by_side(64, 8192, 2, 66, &cut), 33, "64 requests of two tokens: parts in pairs");
    is_int(cut, 0, "nothing is cut");
    is_int(parts_side_by_side(20, 8190, 2, 66, &cut), 33, "20: the same");
    ok(cut > 0, "with %d tiles cut", cut);
    is_int(parts_side_by_side(100, 4000, 3, 66, &cut), 22, "three tokens: by threes");
    is_int(parts_side_by_side(64, 8192, 4, 66, &cut), 16, "four: two parts of 66 have nothing");
    is_int(parts_side_by_side(16, 8192, 7, 66, &cut) < 9, 1,
           "seven: three of 66 would have nothing, so in order");
}

/* Items and the longest part in key tiles of one token of each of `tokens` requests over lists of 2048. */
static int longest_sparse_part(int tokens, int heads, int tile_rows, int parts, int *items_in_all) {
    enum { MOST = 4096 };
    static int32_t q_start[MOST + 1], lens[MOST], part[133];
    for (int i = 0; i < tokens; i++)
        q_start[i + 1] = i + 1, lens[i] = 4096;
    mla_plan_input in = {q_start, lens, tokens, heads, 2048, 0, parts, tile_rows, parts, tokens, 0, 0};
    mla_plan_limits l = {.max_seqs = tokens, .max_tokens = tokens};
    mla_plan_capacity(&l, &in);
    mla_slice slice = {0};
    mla_item *items = calloc((size_t)l.max_items, sizeof *items);
    mla_split *splits = calloc((size_t)l.max_splits + 1, sizeof *splits);
    int longest = -1;
    if (mla_plan_build(&in, &l, &slice, items, splits, part) == 1)
        for (int p = 0; p < parts; p++) {
            int tiles = 0;
            for (int i = part[p]; i < part[p + 1]; i++)
                tiles += (items[i].k_end - items[i].k_begin + MLA_TILE_KEYS - 1) / MLA_TILE_KEYS;
            longest = tiles > longest ? tiles : longest;
        }
    *items_in_all = slice.num_items;
    free(items), free(splits);
    return longest;
}

/* Selected tokens: CTAs go through lists of equal length, which end together where they are cut. */
static void sparse_parts(void) {
    int items = 0, longest = longest_sparse_part(40, 128, 128, 66, &items);
    ok(longest <= 22, "40 lists of 32 tiles, 66 parts: at most 22 tiles a part, 19.4 on average (%d)",
       longest);
    longest = longest_sparse_part(40, 64, 64, 132, &items);
    ok(longest <= 12, "132 parts: at most 12, 9.7 on average (%d)", longest);
    longest_sparse_part(132, 64, 64, 132, &items);
    is_int(items, 132, "a list for each part: none is cut");
    longest_sparse_part(4000, 64, 64, 132, &items);
    is_int(items, 4000, "nor where there are many");
}

static void kernel_choice(void) {
    mla_config_input in = {
        .compute_capability = 90, .num_sms = 132, .clusters = 65, .heads = 128, .latent = 512, .scale = 0.1};
    mla_config c = mla_config_choose(&in);
    ok(c.kernel == MLA_KERNEL_SM90 && c.ctas == 2 && c.tile_rows == 128 && c.parts == 65 && c.slots == 65,
       "128 heads on Hopper: as many clusters of two as run at once");
    in.heads = 64;
    c = mla_config_choose(&in);
    ok(c.kernel == MLA_KERNEL_SM90 && c.ctas == 1 && c.tile_rows == 64 && c.parts == 132,
       "64 heads: single CTAs");
    static const struct {
        int heads, ctas, tile_rows, parts;
    } e4m3[] = {{1, 1, 64, 132}, {64, 1, 64, 132}, {65, 2, 128, 66}, {128, 2, 128, 66}, {200, 2, 128, 66}};
    in.cache_kind = MLA_CACHE_E4M3;
    for (size_t i = 0; i < sizeof e4m3 / sizeof e4m3[0]; i++) {
        in.heads = e4m3[i].heads;
        c = mla_config_choose(&in);
        ok(c.kernel == MLA_KERNEL_SM90 && c.ctas == e4m3[i].ctas && c.tile_rows == e4m3[i].tile_rows &&
               c.parts == e4m3[i].parts && c.slots == c.parts,
           "an fp8 cache, %d heads: %d CTAs with 64 rows each share a tile", in.heads, e4m3[i].ctas);
    }
    in.heads = 64;
    in.is_sparse = 1, in.scale = -0.1, in.cache_kind = MLA_CACHE_DS;
    c = mla_config_choose(&in);
    ok(c.kernel == MLA_KERNEL_SPARSE_SM90 && c.ctas == 1 && c.tile_rows == 64 && c.parts == 132 &&
           c.slots == 132,
       "selected keys: the kernel of that role, whatever cache and scale");
    static const int pairs[][2] = {{16, 1},  {65, 2},  {96, 2},  {128, 2},
                                   {129, 1}, {192, 1}, {200, 2}, {256, 2}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        in.heads = pairs[i][0];
        c = mla_config_choose(&in);
        ok(c.ctas == pairs[i][1] && c.tile_rows == 64 * c.ctas && c.parts == 132 / c.ctas &&
               c.slots == c.parts,
           "selected keys, %d heads: both CTAs of a pair have rows, or there are no pairs", in.heads);
    }
    c = mla_config_choose(&in);
    is_int((int64_t)mla_packed_bytes(&c, 2048), INT64_C(132) * 2048 * 4, "a packed list for each CTA");
    is_int((int64_t)mla_packed_bytes(&c, MLA_PACKED_LIST), INT64_C(132) * MLA_PACKED_LIST * 4,
           "33 MiB at most");
    is_int((int64_t)mla_packed_bytes(&c, MLA_PACKED_LIST + 1), 0, "longer lists are not packed");
    is_int((int64_t)mla_packed_bytes(&c, 1 << 20), 0, "so the longest takes no room");
    in.heads = 64;
    static const char *const why[] = {
        "another device",   "latent 256", "a cache of 656 bytes a token", "selected keys elsewhere",
        "a negative scale", "the option", "selected keys and the option"};
    in.is_sparse = 0, in.scale = 0.1, in.cache_kind = MLA_CACHE_16;
    for (int i = 0; i < 7; i++) {
        mla_config_input x = in;
        if (i == 0) x.compute_capability = 100;
        if (i == 1) x.latent = 256;
        if (i == 2) x.cache_kind = MLA_CACHE_DS;
        if (i == 3) x.is_sparse = 1, x.compute_capability = 100;
        if (i == 4) x.scale = -0.1;
        if (i == 5) x.portable = 1;
        if (i == 6) x.is_sparse = x.portable = 1;
        c = mla_config_choose(&x);
        ok(c.kernel == MLA_KERNEL_PORTABLE && c.tile_rows == 64 && c.parts == 0 && c.slots == 132,
           "%s: the portable kernel", why[i]);
        is_int((int64_t)mla_packed_bytes(&c, 2048), 0, "which packs no lists");
    }
    is_int(mla_config_choose(&in).own_rows, 4096,
           "short absorptions: the kernel beside which attention starts");
    in.is_sparse = 1;
    is_int(mla_config_choose(&in).own_rows, 8192, "over selected keys too, which starts early");
    in.is_sparse = 0, in.portable = 1;
    is_int(mla_config_choose(&in).own_rows, 0, "nor with the option");
}

int main(void) {
    is_int(mla_slice_tokens(128, 8192), 1024, "a slice of 128 heads has 1024 tokens");
    is_int(mla_slice_tokens(16, 100), 100, "a slice is never longer than a batch");
    is_int(mla_slice_tokens(1 << 20, 8192), 1, "nor shorter than a token");
    mla_plan_input in = {.num_heads = 1024, .slice_tokens = 128, .tile_rows = 64};
    mla_plan_limits l = {.max_seqs = 4, .max_tokens = 1 << 22};
    is_int(mla_plan_capacity(&l, &in), -1, "more rows than 31 bits count are refused");

    int cut = 0;
    batch_t one = {{0, 1}, {65536}, 1};
    in = (mla_plan_input){.num_heads = 128, .slots = 132, .slice_tokens = 1024, .tile_rows = 64};
    l = (mla_plan_limits){.max_seqs = 256, .max_tokens = 8192};
    const char *wrong = check_plan(&one, in, l, &cut);
    ok(wrong == NULL && cut == 2, "one long sequence of 128 heads is cut in both tiles (%s)",
       wrong ? wrong : "");
    cut = 0;
    in.slots = 0;
    wrong = check_plan(&one, in, l, &cut);
    ok(wrong == NULL && cut == 0, "without slots nothing is cut (%s)", wrong ? wrong : "");
    balanced_parts();
    tiles_side_by_side();
    sparse_parts();
    kernel_choice();
    short_lists();
    random_batches(tap_seed());
    return tap_done();
}
