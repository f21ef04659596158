/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of several heads, tiles in pieces and tiles of short encoders: which batches become them, and that
 * every row sees every key once. */
#include "flash_plan_testing.h"

static cut_request cut_requests[SEQS];
static const flash_plan_limits uncut;
static flash_cut cut; /* the last that was chosen */

/* How many heads a tile of few tokens has, by the heads of a group and the tokens of the longest query. */
static void test_packed_tiles(void) {
    static const struct {
        int group, head, q_dtype, kv_dtype, tokens, rows, heads; /* 0 heads: no more than a tile has anyway */
        const char *what;
    } cases[] = {{4, 128, FLASH_BF16, FLASH_BF16, 8, 16, 4, "a group of 4: all of it"},
                 {4, 128, FLASH_BF16, FLASH_BF16, 20, 32, 4, "up to 32 tokens"},
                 {4, 128, FLASH_BF16, FLASH_BF16, 33, 64, 2, "then in pairs, as ever"},
                 {8, 128, FLASH_F16, FLASH_F16, 16, 16, 8, "a group of 8: all of it"},
                 {8, 128, FLASH_BF16, FLASH_BF16, 17, 32, 4, "or two tiles of 4"},
                 {8, 256, FLASH_BF16, FLASH_BF16, 17, 0, 0, "where any prompt has tiles of 8 heads, those"},
                 {16, 128, FLASH_BF16, FLASH_BF16, 9, 16, 8, "a group of 16: two tiles"},
                 {16, 128, FLASH_BF16, FLASH_BF16, 8, 8, 16, "of up to 8 tokens one, two heads a warp"},
                 {12, 128, FLASH_BF16, FLASH_E4M3, 5, 8, 12, "a group of 12, keys that are widened"},
                 {20, 256, FLASH_BF16, FLASH_BF16, 2, 8, 10, "a group of 20: two tiles of 10"},
                 {18, 128, FLASH_BF16, FLASH_BF16, 3, 8, 6, "9 heads are no pairs: three of 6"},
                 {9, 128, FLASH_BF16, FLASH_BF16, 4, 16, 3, "nor are those of an odd group"},
                 {16, 64, FLASH_BF16, FLASH_BF16, 8, 8, 16, "head size 64: 16 of room for 24"},
                 {12, 64, FLASH_BF16, FLASH_BF16, 8, 16, 12, "which has room for 12 of 16 tokens"},
                 {5, 128, FLASH_BF16, FLASH_BF16, 16, 16, 5, "a group of 5 in a tile with room for 8"},
                 {12, 128, FLASH_BF16, FLASH_BF16, 9, 16, 6, "a group of 12: two tiles of 6"},
                 {5, 128, FLASH_BF16, FLASH_BF16, 17, 0, 0, "5 heads do not divide into tiles of 4"},
                 {1, 128, FLASH_BF16, FLASH_BF16, 4, 0, 0, "a head alone shares nothing"},
                 {4, 128, FLASH_BF16, FLASH_E4M3, 8, 16, 4, "keys that are widened: as those of 16 bits"},
                 {4, 128, FLASH_E4M3, FLASH_E4M3, 8, 0, 0, "products of bytes have one head"},
                 {8, 64, FLASH_BF16, FLASH_BF16, 8, 16, 8, "head size 64: 8 of room for 12"},
                 {16, 64, FLASH_BF16, FLASH_BF16, 20, 0, 0, "any prompt's tiles have 8 heads and 24 tokens"},
                 {12, 64, FLASH_BF16, FLASH_BF16, 20, 32, 6, "12 heads of 64 in two tiles of 6"},
                 {2, 256, FLASH_BF16, FLASH_BF16, 16, 16, 2, "two heads, as a pair"},
                 {4, 96, FLASH_BF16, FLASH_BF16, 8, 0, 0, "other head sizes do not"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        flash_shape s = shape_of(cases[i].q_dtype, cases[i].kv_dtype, cases[i].head, cases[i].head, 16);
        flash_prefill_config c, packed = {0};
        s.num_kv_heads = 2, s.num_q_heads = 2 * cases[i].group;
        const int rc = flash_choose_prefill(&s, &hopper, &c),
                  has = flash_pack_prefill(&s, &c, cases[i].tokens, &packed) == 0;
        ok(rc == 0 && has == (cases[i].heads > 0) &&
               (!has || (packed.block_rows == cases[i].rows && packed.tile_heads == cases[i].heads)),
           "%s (%d rows of %d heads)", cases[i].what, packed.block_rows, packed.tile_heads);
    }
    flash_shape s = shape_of(FLASH_BF16, FLASH_BF16, 128, 128, 16);
    flash_prefill_config c, packed;
    s.num_kv_heads = 2, s.num_q_heads = 32, s.has_features = 1;
    ok(flash_choose_prefill(&s, &hopper, &c) == 0 && flash_pack_prefill(&s, &c, 8, &packed) == 0 &&
           packed.block_rows == 16,
       "a soft cap: one head a warp");
    s = shape_of(FLASH_BF16, FLASH_BF16, 128, 128, 16);
    ok(flash_choose_prefill(&s, &ampere, &c) == 0 && flash_pack_prefill(&s, &c, 8, &packed) == -1,
       "the portable kernel packs rows by itself");
}

/* A captured launch has tiles where any later batch may be some: of no more requests and no longer queries,
 * whatever the keys are. */
static void test_maybe_packed(void) {
    enum { MOST = 80 };
    static int32_t start[MOST + 1], lens[MOST];
    static const int head_sizes[] = {64, 128, 256};
    int missed = 0, packed = 0, never = 0;
    for (int i = 0; i < 20000; i++) {
        const int n = 1 + (int)next_random(MOST), tokens = 1 + (int)next_random(16),
                  alike = (int)next_random(2), keys = 16 + (int)next_random(20000);
        int longest = 1;
        for (int r = 0; r < n; r++) {
            const int q = (int)next_random((uint32_t)tokens + 1);
            start[r + 1] = start[r] + q;
            lens[r] = q + (alike ? keys : (int)next_random((uint32_t)keys));
            longest = q > longest ? q : longest;
        }
        flash_plan_input in = input(start, lens, n);
        in.head_size = head_sizes[next_random(3)], in.key_bytes = 1 + (int)next_random(2);
        in.decode_tokens = 16, in.tile_heads = 1, in.num_kv_heads = 1 + (int)next_random(8);
        in.group = 1 << next_random(5);
        const flash_class dim = {(int16_t)in.head_size, (int16_t)in.head_size};
        in.decode_rows = 8 * flash_row_tiles_for(&dim, longest * in.group);
        const int tile_heads = in.group < 8 ? in.group : 8,
                  is = longest * in.group > in.decode_rows &&
                       flash_plan_packed(&in, &uncut, 16, tile_heads, cut_requests, &cut);
        in.num_seqs = n + (int)next_random(9);
        in.decode_rows = 8 * flash_row_tiles_for(&dim, tokens * in.group);
        const int may = flash_may_be_packed(&in, tokens, tile_heads);
        missed += is && !may, packed += is, never += !may;
    }
    ok(missed == 0 && packed > 1000 && never > 1000,
       "20000 batches: %d are tiles, %d never, %d of those all the same", packed, never, missed);
}

/* Tiles for few query tokens a request: where decode would read the keys more than once, and tiles, or pieces
 * of them, are enough for the multiprocessors. */
static void test_packed(void) {
    enum { MOST = 256 };
    static int32_t start[MOST + 1], lens[MOST];
    static const struct {
        int requests, tokens, keys, head_size, splits, window, key_bytes, packs, packs_cut;
        const char *what;
    } cases[] = {
        {64, 4, 8192, 128, 0, -1, 2, 0, 0, "16 rows a KV head: decode reads the keys once"},
        {64, 8, 8192, 128, 0, -1, 2, 1, 1, "32 rows, 512 tiles: tiles"},
        {64, 8, 8192, 128, 0, -1, 1, 0, 0, "32 rows over bytes: decode, which takes as long"},
        {64, 16, 8192, 128, 0, -1, 1, 1, 1, "64 rows over bytes: tiles"},
        {4, 8, 2048, 128, 0, -1, 2, 0, 0, "32 tiles leave multiprocessors idle, and pieces cost: decode"},
        {4, 8, 8192, 128, 0, -1, 2, 0, 1, "which more keys are worth"},
        {4, 16, 8192, 128, 0, -1, 2, 0, 1, "which 64 rows are worth"},
        {12, 8, 2048, 128, 0, -1, 2, 1, 1, "192 CTAs of decode: two on some multiprocessors, so tiles"},
        {20, 8, 8192, 128, 0, -1, 2, 0, 1, "160 are a second round for 28: decode, or even pieces"},
        {20, 16, 8192, 128, 0, -1, 2, 1, 1, "160 tiles of 64 rows"},
        {64, 24, 8192, 128, 0, -1, 2, 1, 1, "more tokens than decode takes: fewer tiles of more heads"},
        {64, 16, 8192, 128, 1, -1, 2, 0, 0, "a number of splits is asked for, or batch invariance: decode"},
        {128, 16, 8192, 128, 0, 1023, 2, 1, 1, "windows: by the keys that they leave"},
        {1, 16, 65536, 128, 0, -1, 2, 0, 1, "one request: tiles in pieces"},
        {48, 16, 232, 128, 0, -1, 2, 1, 1, "short contexts (flash_plugin relies on it)"},
        {64, 8, 8192, 64, 0, -1, 2, 0, 0, "head size 64: decode of 32 rows is faster than tiles"},
        {64, 16, 8192, 64, 0, -1, 2, 1, 1, "that of 64 is not"}};
    const flash_plan_limits may_cut = {.max_cut_rows = 4 * 132 * 128, .max_tiles = 2000};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int r = 0; r < cases[i].requests; r++)
            start[r + 1] = start[r] + cases[i].tokens, lens[r] = cases[i].keys;
        flash_plan_input in = input(start, lens, cases[i].requests);
        in.decode_tokens = 16, in.tile_heads = cases[i].head_size == 64 ? 1 : 2, in.block_rows = 64;
        in.num_splits = cases[i].splits, in.window_left = in.window_right = cases[i].window;
        in.head_size = cases[i].head_size, in.key_bytes = cases[i].key_bytes;
        const int rows = cases[i].tokens > 16 ? 32 : 16;
        const int is = flash_plan_packed(&in, &uncut, rows, 4, cut_requests, &cut),
                  is_cut = flash_plan_packed(&in, &may_cut, rows, 4, cut_requests, &cut);
        ok(is == cases[i].packs && is_cut == cases[i].packs_cut, "%s (%d, cut %d)", cases[i].what, is,
           is_cut);
        in.chunk = 512;
        ok(!flash_plan_packed(&in, &may_cut, rows, 4, cut_requests, &cut), "and never with chunks");
    }
    for (int r = 0; r < 200; r++)
        start[r + 1] = start[r] + (r == 199 ? 20 : 1), lens[r] = 8192;
    flash_plan_input in = input(start, lens, 200);
    in.decode_tokens = 16, in.tile_heads = 2, in.block_rows = 64;
    ok(!flash_plan_packed(&in, &may_cut, 32, 4, cut_requests, &cut),
       "one request of 20 tokens does not make tiles of 199 that decode");
}

/* Where tiles are cut. */
static void test_cut(void) {
    enum { MOST = 200 };
    static int32_t start[MOST + 1], lens[MOST];
    static const struct {
        int decodes, requests, tokens, keys, kv_heads, group, rows, heads, window, splits, causal;
        int least, most; /* pieces */
        const char *what;
    } cases[] = {
        {0, 1, 128, 65536, 8, 4, 64, 2, -1, 0, 1, 4, 4, "128 tokens behind 65536 keys: 32 tiles in 4 pieces"},
        {99, 1, 128, 65536, 8, 4, 64, 2, -1, 0, 1, 4, 4, "the same beside requests that decode"},
        {0, 1, 128, 65536, 8, 4, 64, 2, -1, 0, 0, 4, 4, "the same without a mask"},
        {0, 1, 512, 65536, 8, 4, 64, 2, -1, 0, 1, 1, 1, "512: 128 tiles fill the machine"},
        {0, 1, 640, 65536, 8, 4, 64, 2, -1, 0, 1, 2, 16, "160 are two rounds, of 28 in the second"},
        {0, 1, 4096, 65536, 8, 4, 64, 2, -1, 0, 1, 1, 1, "1024 are eight rounds anyway"},
        {0, 1, 512, 512, 8, 1, 128, 1, -1, 0, 1, 1, 1, "a prompt with no keys before it"},
        {0, 1, 128, 1000, 8, 4, 64, 2, -1, 0, 1, 1, 1, "few keys"},
        {0, 1, 128, 65536, 8, 4, 64, 2, 4095, 0, 1, 1, 1, "a window"},
        {0, 1, 128, 65536, 8, 4, 64, 2, -1, 1, 1, 1, 1, "one split is asked for"},
        {0, 1, 128, 131072, 1, 8, 64, 2, -1, 0, 1, 14, 17, "8 heads on 1: 8 tiles"},
        {0, 1, 16, 131072, 1, 8, 16, 8, -1, 0, 1, 60, 128, "one tile alone"},
        {0, 8, 64, 32768, 8, 4, 64, 2, -1, 0, 1, 1, 1, "8 of 64 tokens: 128 tiles"},
        {0, 9, 64, 32768, 8, 4, 64, 2, -1, 0, 1, 2, 16, "9 are a second round"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int n = cases[i].decodes + cases[i].requests;
        for (int r = 0; r < n; r++)
            start[r + 1] = start[r] + (r < cases[i].decodes ? 1 : cases[i].tokens), lens[r] = cases[i].keys;
        flash_plan_input in = input(start, lens, n);
        in.num_kv_heads = cases[i].kv_heads, in.group = cases[i].group, in.causal = cases[i].causal;
        in.block_rows = cases[i].rows, in.tile_heads = cases[i].heads, in.num_splits = cases[i].splits;
        in.window_left = in.window_right = cases[i].window;
        const flash_plan_limits lim = {.max_cut_rows = 4 * 132 * 128, .max_tiles = 1056};
        flash_plan_cut(&in, &lim, cut_requests, &cut);
        ok(cut.pieces >= cases[i].least && cut.pieces <= cases[i].most &&
               (cut.piece_keys > 0) == (cut.pieces > 1) && cut.first_row == cases[i].decodes &&
               cut.num_rows == cases[i].requests * cases[i].tokens,
           "%s (%d pieces of %d)", cases[i].what, cut.pieces, cut.piece_keys);
        in.k_start = start;
        flash_plan_cut(&in, &lim, cut_requests, &cut);
        ok(cut.piece_keys == 0, "keys of the call are never cut");
    }
}

/* The batches of flash_plugin's prompts in pieces, of two KV heads with two pairs each. */
static void test_cuts_of_plugin(void) {
    static const int32_t lens[3][3] = {{3000, 90, 40}, {2100, 4000, 900}, {1900, 2600, 1}},
                         starts[3][4] = {{0, 100, 105, 145}, {0, 24, 25, 42}, {0, 130, 195, 196}};
    for (int i = 0; i < 3; i++) {
        flash_plan_input in = input(starts[i], lens[i], 3);
        in.num_kv_heads = 2, in.block_rows = 64, in.tile_heads = 2, in.decode_tokens = 16;
        const flash_plan_limits lim = {.max_cut_rows = 4 * 132 * 128, .max_tiles = 1056};
        flash_plan_cut(&in, &lim, cut_requests, &cut);
        ok(cut.pieces > 2, "prompts of flash_plugin: %d pieces of %d", cut.pieces, cut.piece_keys);
    }
}

/* Every (query row, key) of tiles that are cut is in exactly one, all keys of a piece but the last are seen
 * by all rows, and the merge is told of as many pieces. */
static int check_cut(const flash_plan_input *in, const flash_plan_limits *lim, const flash_plan *p) {
    const flash_span *spans = (const flash_span *)(const void *)(p->tiles + p->counts.num_tiles);
    int at = 0;
    if (p->counts.num_tiles > lim->max_tiles || p->num_spans > lim->max_spans ||
        (int64_t)cut.pieces * cut.num_rows * in->num_kv_heads * in->group > lim->max_cut_rows)
        return 1;
    for (int s = 0; s < in->num_seqs; s++) {
        const int q = in->q_start[s + 1] - in->q_start[s], kv = in->seq_lens[s];
        if (q <= in->decode_tokens || q <= 0) continue;
        const int blocks = (q * (in->packed ? in->group : 1) + in->block_rows - 1) / in->block_rows;
        int pieces = 0, keys = 0, lasts = 0;
        for (int i = 0; i < p->counts.num_tiles; i++) {
            const flash_tile *t = &p->tiles[i];
            if (t->seq != s) continue;
            const int is_last = t->kv_len == kv && t->causal == in->causal;
            if (t->first_key % cut.piece_keys || t->q0 != in->q_start[s] || t->q_len != q) return 2;
            if (!is_last &&
                (t->kv_len > kv - q + 1 || t->causal || t->kv_len - t->first_key != cut.piece_keys))
                return 3;
            pieces++, keys += t->kv_len - t->first_key, lasts += is_last;
        }
        if (keys != kv * blocks || lasts != blocks) return 4;
        if (spans[at].q0 != in->q_start[s] || spans[at].q_len != q || spans[at].pieces * blocks != pieces)
            return 5;
        if (spans[at].pieces > cut.pieces || p->longest_span < q ||
            q + in->q_start[s] > cut.first_row + cut.num_rows)
            return 6;
        at++;
    }
    return at == p->num_spans ? 0 : 7;
}

static void test_random_cuts(void) {
    int broken = 0, where = -1, cuts = 0, mixed = 0;
    for (int round = 0; round < 2000; round++) {
        static int32_t q_start[SEQS + 1], lens[SEQS];
        const int n = 1 + (int)next_random(round % 3 ? 4 : 60);
        int tokens = 0;
        for (int s = 0; s < n; s++) {
            const int q = next_random(3) ? (int)next_random(5) : (int)next_random(300);
            q_start[s] = tokens;
            tokens += q;
            lens[s] = q + (next_random(3) ? (int)next_random(300) : (int)next_random(200000));
        }
        q_start[n] = tokens;
        flash_plan_input in = input(q_start, lens, n);
        in.num_kv_heads = 1 + (int)next_random(8), in.causal = (int)next_random(2);
        in.packed = (int)next_random(2), in.tile_heads = in.packed ? 1 : 1 << next_random(3);
        in.block_rows = 1 << (4 + next_random(4));
        if (next_random(4) == 0) in.block_rows = 192, in.tile_heads = 1;
        flash_plan_limits lim = {.max_seqs = n, .max_tokens = tokens, .max_cut_rows = 4 * 132 * 128};
        flash_plan_capacity(&lim, &in);
        flash_plan p = empty_plan();
        flash_plan_cut(&in, &lim, cut_requests, &cut);
        in.piece_keys = cut.piece_keys;
        if (flash_plan_build(&in, &lim, &p)) broken = 9, where = round;
        if (broken || cut.piece_keys == 0) continue;
        broken = check_cut(&in, &lim, &p), where = round;
        cuts++, mixed += p.num_spans > 1;
    }
    ok(broken == 0 && cuts > 200 && mixed > 20,
       "of 2000 batches %d are cut, %d of them of several prompts: every key once for every row (rule %d, "
       "round %d)",
       cuts, mixed, broken, where);
}

/* Short encoders: which kernel they have, in which blocks of keys, and in a graph the tiles of the other. */
static void test_resident(void) {
    enum { MOST = 256 };
    static int32_t start[MOST + 1], lens[MOST];
    static const struct {
        int head, requests, tokens, keys, longest, block, most_keys, rows; /* block 0: another kernel */
        const char *what;
    } cases[] = {
        {64, 64, 196, 196, 0, 112, 224, 256, "images of 196 tokens: two blocks"},
        {64, 64, 64, 64, 0, 64, 64, 64, "windows of 64: one block, one warpgroup"},
        {64, 256, 32, 32, 0, 32, 32, 64, "texts of 32 tokens"},
        {64, 64, 128, 128, 0, 128, 128, 128, "128 tokens: two warpgroups"},
        {64, 1, 256, 256, 0, 128, 256, 64, "one image alone: more CTAs of fewer rows"},
        {64, 64, 256, 256, 0, 128, 256, 256, "256 tokens, the most"},
        {64, 64, 257, 257, 0, 0, 0, 0, "257 are too many"},
        {64, 64, 400, 100, 0, 112, 112, 256, "queries may be more than the keys"},
        {64, 64, 100, 0, 0, 0, 0, 0, "no keys"},
        {64, 64, 144, 144, 0, 80, 160, 256, "144 tokens"},
        {80, 64, 64, 64, 0, 64, 64, 64, "heads with a tail: windows of 64"},
        {72, 64, 128, 128, 0, 64, 128, 128, "two blocks: 128 keys are too many for registers"},
        {72, 64, 196, 196, 0, 112, 224, 256, "images of 196"},
        {80, 64, 256, 256, 0, 64, 256, 256, "and of 256"},
        {80, 64, 257, 257, 0, 0, 0, 0, "257 are too many"},
        {96, 64, 192, 192, 0, 96, 192, 256, "a tail of 32 columns: 192 keys"},
        {96, 64, 225, 225, 0, 0, 0, 0, "225 are too many for two CTAs of an SM"},
        {128, 64, 32, 32, 0, 32, 32, 64, "texts of heads of 128"},
        {128, 64, 129, 129, 0, 0, 0, 0, "129 are too many"},
        {160, 64, 64, 64, 0, 0, 0, 0, "larger heads have other kernels"},
        {64, 4, 100, 100, 240, 128, 256, 192, "a graph: room for its longest, tiles of the other kernel"},
        {64, 4, 100, 100, 300, 0, 0, 0, "a graph of longer requests"}};
    const flash_plan_limits lim = {.max_tiles = 2000};
    flash_prefill_config chosen, c = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int r = 0; r < cases[i].requests; r++)
            start[r + 1] = start[r] + cases[i].tokens, lens[r] = cases[i].keys;
        flash_plan_input in = input(start, lens, cases[i].requests);
        flash_shape s = shape_of(FLASH_BF16, FLASH_BF16, cases[i].head, cases[i].head, 0);
        in.causal = 0, in.decode_tokens = 0, in.num_kv_heads = 16, in.group = 1, in.block_rows = 192;
        const int is = flash_choose_resident(&s, &hopper, &chosen) == 0 &&
                       flash_plan_resident(&in, &lim, &chosen, cases[i].longest, &c);
        ok(is == (cases[i].block > 0) &&
               (!is || (c.block_keys == cases[i].block && c.keys == cases[i].most_keys &&
                        c.block_rows == cases[i].rows)),
           "%s (%d: %d of %d keys, %d rows)", cases[i].what, is, c.block_keys, c.keys, c.block_rows);
        if (!is) continue;
        flash_plan_input other = in;
        other.causal = 1;
        ok(!flash_plan_resident(&other, &lim, &chosen, cases[i].longest, &c), "not under a mask");
        other = in, other.num_splits = 1;
        ok(!flash_plan_resident(&other, &lim, &chosen, cases[i].longest, &c), "nor batch invariant");
        other = in, other.window_left = other.window_right = 7;
        ok(!flash_plan_resident(&other, &lim, &chosen, cases[i].longest, &c), "nor with a window");
    }
    static const int32_t two[3] = {0, 30, 60}, decoded[2] = {30, 30};
    flash_plan_input in = input(two, decoded, 2);
    in.causal = 0, in.decode_tokens = 40;
    flash_shape s = shape_of(FLASH_BF16, FLASH_BF16, 64, 64, 0);
    ok(flash_choose_resident(&s, &hopper, &chosen) == 0 && !flash_plan_resident(&in, &lim, &chosen, 0, &c),
       "requests that decode are no tiles");
    ok(flash_choose_resident(&s, &ampere, &chosen) == -1, "GPUs without tensor copies have other kernels");
    s.page_size = 16;
    ok(flash_choose_resident(&s, &hopper, &chosen) == -1, "and so has a cache");
}

int main(void) {
    state = tap_seed();
    test_resident();
    test_packed_tiles();
    test_packed();
    test_maybe_packed();
    test_cut();
    test_cuts_of_plugin();
    test_random_cuts();
    return tap_done();
}
