/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of flash that need no GPU: which kernel serves a shape, and the planner's work lists. Every key
 * of every request must be covered exactly once, within the capacities, whatever the lengths are. */
#include "flash_plan_testing.h"

static const flash_device ada = {8, 9, 142, 101376, 102400};
static const flash_device blackwell = {10, 0, 148, 232448, 233472};
static const flash_device turing = {7, 5, 40, 65536, 65536};

static void test_config(void) {
    const flash_device *devices[] = {&hopper, &ampere, &blackwell};
    int bad = 0, first_bad = 0;
    for (int i = 0; i < 3; i++)
        for (int d = 8; d <= 256; d += 8)
            for (int kv = FLASH_F16; kv <= FLASH_E4M3; kv++)
                for (int page = 0; page <= 48; page += 16) {
                    flash_shape s = shape_of(kv == FLASH_F16 ? FLASH_F16 : FLASH_BF16, kv, d, d, page);
                    flash_decode_config dc;
                    flash_prefill_config pc;
                    int wrong = flash_choose_decode(&s, devices[i], &dc) ||
                                flash_choose_prefill(&s, devices[i], &pc) ||
                                dc.smem_bytes > devices[i]->smem_optin ||
                                pc.smem_bytes > devices[i]->smem_optin || dc.warps < 1 ||
                                dc.ctas_per_sm < 1 || flash_classes[dc.class_index].dk < d;
                    if (wrong && !bad++) first_bad = d;
                }
    ok(bad == 0, "every head size has kernels that fit on sm_80, sm_90, sm_100 (%d do not, first %d)", bad,
       first_bad);

    /* what mm_encoder's and mla's tables of kernels go by */
    for (int i = bad = 0; i < 3; i++)
        for (int d = 8; d <= 256; d += 8) {
            flash_prefill_config pc;
            const flash_shape encoder = shape_of(FLASH_F16, FLASH_F16, d, d, 0);
            bad +=
                flash_choose_prefill(&encoder, devices[i], &pc) ||
                (pc.kind == FLASH_PREFILL_SM90
                     ? flash_sm90_classes[pc.class_index].dim.dk != flash_sm90_classes[pc.class_index].dim.dv
                     : flash_classes[pc.class_index].dk != flash_classes[pc.class_index].dv);
        }
    ok(bad == 0, "keys and values of one size run in classes of one size (%d do not)", bad);
    for (int i = bad = 0; i < 3; i++)
        for (int v = 8; v <= 256; v += 8) {
            flash_prefill_config pc;
            const flash_shape projected = shape_of(FLASH_F16, FLASH_F16, v <= 128 ? 192 : 256, v, 0);
            bad += flash_choose_prefill(&projected, devices[i], &pc) != 0;
            const flash_class *k = pc.kind == FLASH_PREFILL_SM90 ? &flash_sm90_classes[pc.class_index].dim
                                                                 : &flash_classes[pc.class_index];
            bad += k->dk != projected.head_size || k->dv != (v <= 128 ? 128 : 256);
        }
    ok(bad == 0, "projected keys of 192 and 256 columns run in the classes of their size (%d do not)", bad);

    flash_prefill_config pc;
    flash_decode_config dc;
    flash_shape s = shape_of(FLASH_BF16, FLASH_BF16, 128, 128, 16);
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM90,
       "Hopper gets the wgmma kernel");
    ok(pc.smem_bytes == 2 * 32768 + 2 * 65536 + 32768 + 1536,
       "its shared memory has room for the result of short tiles: %d bytes", pc.smem_bytes);
    s.has_features = 1;
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.smem_bytes == 2 * 32768 + 2 * 65536 + 1536,
       "with features there are no short tiles: %d bytes", pc.smem_bytes);
    s.has_features = 0;
    ok(flash_choose_prefill(&s, &blackwell, &pc) == 0 && pc.kind == FLASH_PREFILL_SM80,
       "sm_100 gets the portable kernel");
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.tile_heads == 2 && pc.block_rows == 64,
       "a group of 4 has tiles of two heads");
    static const struct {
        int q_heads, kv_heads, head, has_features, heads, rows, band;
    } groups[] = {{32, 32, 128, 0, 1, 128, 0}, {24, 8, 128, 0, 1, 128, 0}, {64, 8, 128, 0, 2, 64, 0},
                  {16, 8, 256, 0, 2, 64, 0},   {8, 2, 256, 0, 4, 32, 0},   {16, 2, 256, 1, 8, 16, 0},
                  {12, 12, 64, 0, 1, 192, 0},  {14, 2, 64, 0, 1, 192, 0},  {16, 8, 64, 0, 2, 96, 32},
                  {32, 8, 64, 0, 4, 48, 16},   {64, 8, 64, 0, 8, 24, 8},   {64, 8, 64, 1, 4, 48, 16},
                  {32, 2, 64, 0, 8, 24, 8},    {24, 4, 64, 0, 2, 96, 32},  {32, 8, 80, 0, 1, 192, 0}};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        flash_shape t = s;
        t.num_q_heads = groups[i].q_heads, t.num_kv_heads = groups[i].kv_heads;
        t.head_size = t.head_size_v = groups[i].head, t.has_features = groups[i].has_features;
        const int rc = flash_choose_prefill(&t, &hopper, &pc);
        ok(rc == 0 && pc.tile_heads == groups[i].heads && pc.block_rows == groups[i].rows &&
               pc.band_tokens == groups[i].band && !pc.all_heads,
           "%d heads of %d on %d%s: tiles of %d heads, %d tokens, %d in a warpgroup", t.num_q_heads,
           t.head_size, t.num_kv_heads, t.has_features ? ", soft cap" : "", pc.tile_heads, pc.block_rows,
           pc.band_tokens);
    }
    static const struct {
        int window, q_heads, head, keys;
        const char *what;
    } windows[] = {{128, 64, 64, 80, "two blocks of 80 instead of two of 112"},
                   {129, 64, 64, 80, "160 keys of 24 tokens"},
                   {130, 64, 64, 112, "three blocks of 80 are more than two of 112"},
                   {200, 64, 64, 80, "three blocks of 80 instead of three of 112"},
                   {256, 64, 64, 112, "four are a twentieth less than three, which is not enough"},
                   {1024, 64, 64, 112, "a long one"},
                   {128, 64, 40, 80, "of a smaller head"},
                   {20, 32, 64, 80, "one of 80 instead of one of 112"},
                   {0, 64, 64, 112, "none"},
                   {128, 8, 64, 112, "192 tokens of one head: five blocks of 80, three of 112"},
                   {128, 64, 96, 112, "heads of 96 have one class"}};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        flash_shape t = s;
        t.num_q_heads = windows[i].q_heads, t.head_size = t.head_size_v = windows[i].head;
        t.window = windows[i].window;
        const int rc = flash_choose_prefill(&t, &hopper, &pc);
        ok(rc == 0 && flash_sm90_classes[pc.class_index].block_keys == windows[i].keys,
           "a window of %d, %d heads: %s (%d)", windows[i].window, windows[i].q_heads, windows[i].what,
           flash_sm90_classes[pc.class_index].block_keys);
    }
    s.force_sm80 = 1;
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM80,
       "arch = sm80 forces it on Hopper");
    s = shape_of(FLASH_BF16, FLASH_E4M3, 128, 128, 16);
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM90_E4M3 &&
           pc.class_index == 1 && pc.smem_bytes <= hopper.smem_optin,
       "16-bit queries over an e4m3 cache get keys widened to f16");
    s = shape_of(FLASH_E4M3, FLASH_E4M3, 128, 128, 16);
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM90_E4M3 &&
           pc.smem_bytes <= hopper.smem_optin,
       "e4m3 queries over an e4m3 cache get products of bytes");
    ok(flash_choose_prefill(&s, &ampere, &pc) == 0 && pc.kind == FLASH_PREFILL_SM80,
       "and f16 ones on other devices");
    s = shape_of(FLASH_E4M3, FLASH_E4M3, 104, 104, 16);
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM80,
       "rows that are an odd multiple of 8 bytes are not for TMA");
    s = shape_of(FLASH_E4M3, FLASH_BF16, 128, 128, 16);
    ok(flash_choose_prefill(&s, &hopper, &pc) == -1 && flash_choose_decode(&s, &hopper, &dc) == -1,
       "e4m3 queries over a bfloat16 cache are refused");
    s = shape_of(FLASH_BF16, FLASH_BF16, 112, 112, 16);
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM80,
       "paged 112: a page box cannot zero-fill half a chunk");
    s.page_size = 0;
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && pc.kind == FLASH_PREFILL_SM90,
       "contiguous 112: it can");
    s = shape_of(FLASH_BF16, FLASH_BF16, 72, 72, 0);
    ok(flash_choose_prefill(&s, &hopper, &pc) == 0 && flash_sm90_classes[pc.class_index].dim.dk == 72,
       "head size 72 is computed at its true size");
    ok(flash_choose_decode(&s, &turing, &dc) == -1, "below sm_80 there is no kernel");
    s = shape_of(FLASH_BF16, FLASH_BF16, 128, 128, 24);
    ok(flash_choose_decode(&s, &hopper, &dc) == -1, "a page of 24 tokens is refused");
    s = shape_of(FLASH_BF16, FLASH_F16, 128, 128, 16);
    ok(flash_choose_decode(&s, &hopper, &dc) == -1, "a float16 cache under bfloat16 queries is refused");
    s = shape_of(FLASH_BF16, FLASH_BF16, 264, 264, 16);
    ok(flash_choose_decode(&s, &hopper, &dc) == -1, "head size 264 is refused");
    s = shape_of(FLASH_BF16, FLASH_BF16, 256, 256, 16);
    int rc = flash_choose_decode(&s, &ada, &dc);
    ok(rc == 0 && dc.warps == 1, "little shared memory means fewer warps (%d)", dc.warps);
    s = shape_of(FLASH_BF16, FLASH_BF16, 128, 128, 16);
    s.max_decode_tokens = 4;
    ok(flash_choose_decode(&s, &hopper, &dc) == 0 && dc.row_tiles == 2, "16 query rows take two row tiles");
    s.max_decode_tokens = 8;
    ok(flash_choose_decode(&s, &hopper, &dc) == 0 && dc.row_tiles == 4 && dc.ctas_per_sm == 2,
       "32 take four, of CTAs of which an SM still has two (%d)", dc.ctas_per_sm);
    ok(flash_choose_decode(&s, &ampere, &dc) == 0 && dc.row_tiles == 4, "on A100 too");
    s.max_decode_tokens = 10;
    ok(flash_choose_decode(&s, &hopper, &dc) == 0 && dc.row_tiles == 3, "40 are twice three");
    s = shape_of(FLASH_BF16, FLASH_BF16, 256, 256, 16);
    s.max_decode_tokens = 8;
    ok(flash_choose_decode(&s, &hopper, &dc) == 0 && dc.row_tiles == 2,
       "heads of 256 have registers for two");
}

/* 32 rows of a KV head: few rows where there is little to read, else as many as fit; captured launches by
 * their CTAs alone, as pairs of large ones. */
static void test_many_rows(void) {
    static const int32_t start[] = {0, 4, 8, 12, 16}, few[] = {8192, 8192, 8192, 8192},
                         many[] = {32768, 32768, 32768, 32768};
    flash_plan_input in = input(start, few, 4);
    in.num_kv_heads = 1, in.group = 8, in.max_cluster = 8;
    ok(flash_choose_row_tiles(&in, 4, 0) == 2, "one head of 8192 keys: CTAs of 16 rows");
    ok(flash_choose_row_tiles(&in, 4, 1) == 4, "captured: of 32");
    ok(flash_choose_row_tiles(&in, 1, 0) == 1, "8 rows: as they are");
    in.num_kv_heads = 8, in.seq_lens = many;
    ok(flash_choose_row_tiles(&in, 4, 0) == 4, "eight heads of 32768 keys: of 32");
    static const int32_t one[] = {0, 4, 5, 6, 7}, lens[] = {9000, 32768, 32768, 32768};
    in.q_start = one, in.seq_lens = lens;
    ok(flash_choose_row_tiles(&in, 4, 0) == 2, "of which few are those of many rows: of 16");
    in.q_start = start, in.seq_lens = many;
    in.decode_rows = 32;
    for (int captured = 0; captured < 2; captured++) {
        flash_plan_limits lim = {.max_seqs = 4, .max_tokens = 16};
        in.captured = captured ? 32 : 0;
        flash_plan_capacity(&lim, &in);
        flash_plan p = empty_plan();
        const int rc = flash_plan_build(&in, &lim, &p);
        ok(rc == 0 && p.mode == FLASH_LARGE_CTAS && p.counts.max_pieces == 4 && p.cluster == 2,
           "%s: large CTAs, four pieces in pairs (mode %d, %d pieces, cluster %d)",
           captured ? "captured" : "eager", p.mode, p.counts.max_pieces, p.cluster);
    }
}

/* Returns 0, or the number of the first rule that is broken. */
static int check_plan(const flash_plan_input *in, const flash_plan_limits *lim, const flash_plan *p) {
    static int seen[SEQS], tile_seen[SEQS];
    memset(seen, 0, sizeof seen);
    memset(tile_seen, 0, sizeof tile_seen);
    const flash_counts *c = &p->counts;
    int next_slot = 0;
    if (c->num_items > lim->max_items || c->num_tiles > lim->max_tiles || c->num_slots > lim->max_slots ||
        in->modes[p->mode].slots == 0)
        return 1;
    for (int i = 0; i < c->num_items; i++) {
        const flash_item *t = &p->items[i];
        int q = in->q_start[t->seq + 1] - in->q_start[t->seq];
        if (q <= 0 || q > in->decode_tokens || t->pieces < 1 || t->pieces > FLASH_MAX_PIECES ||
            t->piece < 0 || t->piece >= t->pieces)
            return 2;
        /* the kernel finds a request's slots and its tickets by counting back from a piece's own */
        /* CTAs of one cluster have neighbouring pieces of one request */
        if (p->cluster > 1 && (t->pieces % p->cluster || i % p->cluster != t->piece % p->cluster)) return 7;
        if (t->slot != (t->pieces > 1 ? next_slot : FLASH_SLOT_FINAL) ||
            (i > 0 && t->piece > 0 && t[-1].piece != t->piece - 1))
            return 3;
        next_slot += t->pieces > 1;
        seen[t->seq] += 1;
    }
    if (p->most_items > 0 && (c->num_items > p->most_items || p->most_items % p->cluster)) return 10;
    if (next_slot != c->num_slots) return 4;
    for (int i = 0; i < c->num_tiles; i++)
        tile_seen[p->tiles[i].seq]++;
    for (int s = 0; s < in->num_seqs; s++) {
        int q = in->q_start[s + 1] - in->q_start[s], decode = q > 0 && q <= in->decode_tokens, pieces = 0;
        for (int i = 0; i < c->num_items; i++)
            if (p->items[i].seq == s) pieces = p->items[i].pieces;
        if (decode != (seen[s] > 0) || (decode && seen[s] != pieces)) return 5;
        int rows = q * (in->packed ? in->group : 1);
        if (tile_seen[s] != (q > in->decode_tokens ? (rows + in->block_rows - 1) / in->block_rows : 0))
            return 6;
    }
    return 0;
}

static void test_plan(void) {
    int broken = 0, where = -1;
    for (int round = 0; round < 400; round++) {
        static int32_t q_start[SEQS + 1], lens[SEQS];
        int n = 1 + (int)next_random(round % 3 ? 12 : 256), tokens = 0;
        for (int s = 0; s < n; s++) {
            int q = next_random(4) ? (int)next_random(5) : (int)next_random(400);
            q_start[s] = tokens;
            tokens += q;
            lens[s] = q + (next_random(3) ? (int)next_random(300) : (int)next_random(200000));
        }
        q_start[n] = tokens;
        flash_plan_input in = input(q_start, lens, n);
        in.num_kv_heads = 1 + (int)next_random(16);
        in.window_left = next_random(3) ? -1 : (int)next_random(500);
        in.causal = (int)next_random(2);
        in.packed = (int)next_random(2);
        in.max_cluster = next_random(2) ? 8 : 0;
        in.captured = next_random(3) ? 0 : in.num_kv_heads * n;
        if (next_random(2)) in.modes[1].slots = in.modes[2].slots = 0;
        in.num_splits = next_random(4) ? 0 : (int)next_random(9);
        flash_plan_limits lim = {.max_seqs = n + (int)next_random(40),
                                 .max_tokens = tokens + (int)next_random(100)};
        flash_plan_capacity(&lim, &in);
        flash_plan p = empty_plan();
        int rule = lim.max_items > 70000 || lim.max_tiles > 70000 ? 9
                   : flash_plan_build(&in, &lim, &p)              ? 8
                                                                  : check_plan(&in, &lim, &p);
        if (rule && !broken) {
            broken = rule;
            where = round;
        }
    }
    ok(broken == 0, "400 random batches: every request is planned once, within capacity (rule %d, round %d)",
       broken, where);

    int32_t one_start[2] = {0, 1}, one_len[1] = {131072};
    flash_plan_limits lim = {.max_seqs = 1, .max_tokens = 1};
    flash_plan_input in = input(one_start, one_len, 1);
    flash_plan_capacity(&lim, &in);
    flash_plan p = empty_plan();
    int rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.counts.num_items * 8 >= 128, "one long request fills the machine: %d pieces on 8 heads",
       p.counts.num_items);
    in.num_splits = 1;
    ok(flash_plan_build(&in, &lim, &p) == 0 && p.counts.num_items == 1 && p.items[0].slot == -1,
       "one split on request: no partial results");
    one_len[0] = 0;
    in.num_splits = 0;
    ok(flash_plan_build(&in, &lim, &p) == 0 && p.counts.num_items == 1,
       "a request without keys is still written");

    one_len[0] = 1024;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 1 && p.counts.num_items > 1,
       "without clusters a short request has pieces too: %d", p.counts.num_items);
    in.max_cluster = 8;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 8 && p.counts.num_items == 8, "with them it is cut over one of %d", p.cluster);
    for (one_len[0] = 4096; one_len[0] <= 16384; one_len[0] *= 2) {
        rc = flash_plan_build(&in, &lim, &p);
        ok(rc == 0 && p.cluster == 8 && p.counts.num_items == 8 && p.mode == FLASH_LARGE_CTAS,
           "so is one of %d keys (cluster %d, %d pieces)", one_len[0], p.cluster, p.counts.num_items);
    }
    one_len[0] = 131072;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 1 && p.mode == FLASH_LARGE_CTAS, "a long one is cut for large CTAs");
    in.captured = 8;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 8 && p.mode == FLASH_LARGE_CTAS && p.counts.num_items == 8,
       "but a captured launch has one cluster whatever comes: %d pieces", p.counts.num_items);
    in.captured = 2, in.num_kv_heads = 2;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 8 && p.mode == FLASH_LARGE_CTAS && p.counts.num_items == 32 &&
           p.most_items == 32,
       "where that would be few SMs, four: %d pieces of %d", p.counts.num_items, p.most_items);
    in.captured = 16, in.num_kv_heads = 16;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 8 && p.mode == FLASH_SMALL_CTAS && p.counts.num_items >= 8,
       "where all SMs have a CTA already, small ones: %d pieces", p.counts.num_items);

    static int32_t many_start[SEQS + 1], many_len[SEQS];
    for (int s = 0; s < 64; s++)
        many_start[s + 1] = s + 1, many_len[s] = 8192;
    in = input(many_start, many_len, 64);
    lim = (flash_plan_limits){.max_seqs = 64, .max_tokens = 64};
    flash_plan_capacity(&lim, &in);
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.mode == 0 && p.counts.num_slots == 0, "64 equal requests are not split (%d pieces)",
       p.counts.num_slots);
    for (int s = 0; s < 64; s++)
        many_len[s] = 512;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.mode == FLASH_NARROW_CTAS && p.counts.num_items == 64 && p.counts.num_slots == 0,
       "64 short ones are one wave of narrow CTAs (mode %d)", p.mode);
    many_len[7] = 30000;
    rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.mode == FLASH_SMALL_CTAS, "not where one is long (mode %d)", p.mode);
    for (int s = 0; s < 64; s++)
        many_len[s] = 8192;
    many_start[1] = 1000;
    for (int s = 1; s <= 3; s++)
        many_start[s + 1] = many_start[s] + 500 * s;
    in = input(many_start, many_len, 4);
    lim = (flash_plan_limits){.max_seqs = 4, .max_tokens = 4000};
    flash_plan_capacity(&lim, &in);
    int falls = flash_plan_build(&in, &lim, &p) == 0;
    for (int i = 1; i < p.counts.num_tiles; i++)
        falls &= tile_keys[i - 1].keys >= tile_keys[i].keys;
    ok(falls && p.counts.num_tiles == 8 + 4 + 8 + 12, "prefill tiles come by falling length (%d)",
       p.counts.num_tiles);
    lim.max_tiles = 3;
    ok(flash_plan_build(&in, &lim, &p) == -1, "a list that is too short is an error, not an overflow");
}

/* A captured launch serves later batches of fewer requests and shorter queries, whatever their keys are:
 * their items have to be in its grid, and requests to be whole clusters of it. */
static void test_captured(void) {
    int missing = 0, apart = 0, large = 0, wide = 0;
    for (int round = 0; round < 20000; round++) {
        int cluster = 1, most = 0;
        const int heads = 1 + (int)next_random(16), group = 1 << next_random(5), two = (int)next_random(2),
                  most_seqs = 1 + (int)next_random(round % 2 ? 6 : 40), longest = 1 + (int)next_random(8);
        for (int later = 0; later < 2; later++) {
            static int32_t start[41], lens[40];
            const int n = later ? 1 + (int)next_random((uint32_t)most_seqs) : most_seqs,
                      q_len = later ? 1 + (int)next_random((uint32_t)longest) : longest;
            for (int s = 0; s < n; s++)
                start[s + 1] = start[s] + 1 + (int)next_random((uint32_t)q_len),
                          lens[s] = q_len + (int)next_random(next_random(2) ? 100 : 100000);
            flash_plan_input in = input(start, lens, n);
            in.num_kv_heads = heads, in.group = group, in.decode_tokens = 16, in.max_cluster = 8;
            const int row_tiles =
                flash_choose_row_tiles(&in, flash_row_tiles_for(&(flash_class){64, 64}, q_len * group), 1);
            wide += !later && row_tiles > 2;
            in.decode_rows = 8 * row_tiles;
            in.captured = n * heads * ((q_len * group + in.decode_rows - 1) / in.decode_rows);
            flash_plan_limits lim = {.max_seqs = 40, .max_tokens = 40 * 8};
            flash_plan_input first = in;
            for (int m = 0; m < 2 && two; m++)
                first.modes[m].slots *= 2, first.modes[m].ctas_per_sm *= 2;
            flash_plan_capacity(&lim, &first);
            if (row_tiles <= 2) in = first; /* more rows leave an SM half as many CTAs */
            flash_plan p = empty_plan();
            if (flash_plan_build(&in, &lim, &p)) missing++;
            if (!later)
                cluster = p.cluster, most = p.most_items > 0 ? p.most_items : most_seqs + lim.max_slots;
            missing += p.counts.num_items > most;
            for (int i = 0; i < p.counts.num_items; i++)
                apart += p.items[i].pieces % cluster != 0;
            large += later && p.most_items > 0;
        }
    }
    ok(missing == 0 && apart == 0 && large > 1000 && wide > 1000,
       "20000 batches in launches of others (%d of large CTAs, %d of many rows): %d have more items, %d are "
       "no "
       "whole clusters",
       large, wide, missing, apart);
}

/* Few KV heads, as the ranks of a model have them: clusters of large CTAs in half of their places, as many as
 * pay. */
static void test_few_heads(void) {
    static const struct {
        int heads, group, size, slots, captured; /* slots: of large CTAs on an SM, and of small ones */
        int32_t lens[4];
        int cluster, items, most;
        const char *what;
    } cases[] = {
        {1, 8, 128, 1, 0, {32768}, 8, 64, 0, "a long request: eight clusters"},
        {1, 8, 128, 1, 0, {131072}, 8, 64, 0, "a longer one: no more"},
        {1, 8, 128, 1, 0, {1024}, 8, 8, 0, "a short one: a cluster"},
        {2, 16, 128, 1, 0, {8192}, 8, 32, 0, "two heads: four clusters each"},
        {4, 16, 128, 1, 0, {8192}, 8, 16, 0, "four: two"},
        {8, 4, 128, 1, 0, {8192}, 8, 8, 0, "eight: one"},
        {1, 8, 128, 1, 0, {4096, 4096, 4096, 4096}, 8, 32, 0, "four requests: a cluster each"},
        {1, 8, 128, 1, 0, {32768, 32768, 32768, 32768}, 8, 64, 0, "four long ones: two each"},
        {1, 8, 128, 1, 1, {32768}, 8, 64, 64, "captured: all that there ever are"},
        {1, 8, 128, 1, 1, {100}, 8, 8, 64, "a replay of few keys: others find nothing"},
        {1, 8, 128, 1, 1, {32768, 32768, 32768, 32768}, 8, 64, 64, "four captured requests"},
        {1, 8, 128, 1, 1, {65536, 300, 300, 300}, 8, 64, 64, "the long one has what the others do not need"},
        {1, 8, 64, 2, 1, {131072}, 8, 128, 128, "where two large CTAs fit an SM, twice as many"},
        {8, 4, 64, 2, 0, {131072}, 1, 16, 0, "eight heads fill the places without clusters"},
        {2, 8, 128, 1, 1, {32768, 9}, 8, 32, 32, "four clusters of one head"},
    };
    static const int32_t start[5] = {0, 1, 2, 3, 4};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = 0;
        while (n < 4 && cases[i].lens[n])
            n++;
        flash_plan_input in = input(start, cases[i].lens, n);
        in.num_kv_heads = cases[i].heads, in.group = cases[i].group, in.head_size = cases[i].size;
        in.max_cluster = 8, in.captured = cases[i].captured * n * cases[i].heads;
        for (int m = 0; m < 2; m++)
            in.modes[m].slots *= cases[i].slots, in.modes[m].ctas_per_sm *= cases[i].slots;
        flash_plan_limits lim = {.max_seqs = 4, .max_tokens = 4};
        flash_plan_capacity(&lim, &in);
        flash_plan p = empty_plan();
        const int rc = flash_plan_build(&in, &lim, &p), rule = check_plan(&in, &lim, &p);
        ok(rc == 0 && rule == 0 && p.cluster == cases[i].cluster && p.counts.num_items == cases[i].items &&
               p.most_items == cases[i].most && p.mode == FLASH_LARGE_CTAS,
           "%d heads, %d keys, %d requests: %s (cluster %d, %d items of %d, mode %d, rule %d)",
           cases[i].heads, cases[i].lens[0], n, cases[i].what, p.cluster, p.counts.num_items, p.most_items,
           p.mode, rule);
    }
    static const int32_t mixed_start[3] = {0, 1, 601}, mixed_lens[2] = {32768, 600};
    flash_plan_input in = input(mixed_start, mixed_lens, 2);
    in.num_kv_heads = 1, in.group = 8, in.max_cluster = 8;
    flash_plan_limits lim = {.max_seqs = 2, .max_tokens = 601};
    flash_plan_capacity(&lim, &in);
    flash_plan p = empty_plan();
    const int rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && p.cluster == 1 && p.counts.num_items > 16,
       "beside a prompt clusters would find no room (cluster %d, %d items)", p.cluster, p.counts.num_items);
}

/* Lists begin with what takes longest; what takes the same stays in the order of the requests, a request's
 * blocks from its last. A few entries and many are sorted in different ways. */
static void test_order(int n) {
    static int32_t start[SEQS + 1], lens[SEQS];
    for (int s = 0; s < n; s++) {
        const int q = s % 3 ? 1 : 5 + (int)next_random(600);
        start[s + 1] = start[s] + q;
        lens[s] = q + (next_random(3) ? (int)next_random(100000) : 7);
    }
    flash_plan_input in = input(start, lens, n);
    in.block_rows = 192; /* whose causal tiles end with the request's last row */
    in.num_splits = 1;   /* a request is one item */
    flash_plan_limits lim = {.max_seqs = n, .max_tokens = start[n]};
    flash_plan_capacity(&lim, &in);
    flash_plan p = empty_plan();
    int rc = flash_plan_build(&in, &lim, &p), wrong = 0;
    for (int i = 1; i < p.counts.num_items; i++)
        wrong += p.items[i - 1].kv_len < p.items[i].kv_len ||
                 (p.items[i - 1].kv_len == p.items[i].kv_len && p.items[i - 1].seq >= p.items[i].seq);
    for (int i = 0; i < p.counts.num_tiles; i++) {
        const flash_tile *t = &p.tiles[i];
        /* causal tiles end with the request's last row, and what it lacks of rows its first tile lacks */
        const int all = (t->q_len + in.block_rows - 1) / in.block_rows,
                  rows = t->q_len - (all - 1 - t->block) * in.block_rows, keys = t->kv_len - t->q_len + rows;
        wrong += tile_keys[i].keys != keys || t->seq != tile_keys[i].seq || t->block != tile_keys[i].block;
        if (i == 0) continue;
        wrong += tile_keys[i - 1].keys < keys ||
                 (tile_keys[i - 1].keys == keys &&
                  (t[-1].seq > t->seq || (t[-1].seq == t->seq && t[-1].block <= t->block)));
    }
    ok(rc == 0 && wrong == 0 && p.counts.num_items == n - (n + 2) / 3 && p.counts.num_tiles >= (n + 2) / 3,
       "%d items and %d tiles come by falling length (%d do not)", p.counts.num_items, p.counts.num_tiles,
       wrong);
}

/* Every (query row, key of the prefix) is in exactly one tile of the prefix pass, within the capacity. */
static void test_prefix(void) {
    int broken = 0, where = -1, cut = 0;
    for (int round = 0; round < 300; round++) {
        int tokens = 1 + (int)next_random(round % 2 ? 300 : 4000), page = 16 * (1 + (int)next_random(8));
        flash_plan_input in = input(NULL, NULL, 0);
        in.num_kv_heads = 1 + (int)next_random(16);
        in.packed = (int)next_random(2);
        in.tile_heads = in.packed ? 1 : (int)next_random(3);
        in.first_key = page * (1 + (int)next_random(600));
        int capacity = flash_prefix_capacity(&in, tokens + (int)next_random(500));
        flash_prefix_plan p;
        int rows = tokens * (in.packed ? in.group : 1), blocks = (rows + in.block_rows - 1) / in.block_rows;
        int bad = capacity > 70000 ? 1 : flash_plan_prefix(&in, tokens, capacity, tiles, &p) ? 2 : 0;
        if (!bad && (p.num_tiles != blocks * p.pieces || p.num_tiles > capacity || p.piece_keys % 16))
            bad = 3;
        for (int b = 0; b < blocks && !bad; b++) {
            long keys = 0;
            for (int i = 0; i < p.num_tiles; i++) {
                const flash_tile *t = &tiles[i];
                if (t->block != b) continue;
                if (t->seq || t->q0 || t->q_len != tokens || t->causal || t->first_key % p.piece_keys ||
                    t->kv_len <= t->first_key || t->kv_len > in.first_key)
                    bad = 4;
                keys += t->kv_len - t->first_key;
            }
            if (keys != in.first_key) bad = 5;
        }
        cut += !bad && p.pieces > 1;
        if (bad && !broken) {
            broken = bad;
            where = round;
        }
    }
    ok(broken == 0 && cut > 0,
       "300 prefixes: every key once for every row, within capacity (rule %d, round %d)", broken, where);
    static const int32_t start[4] = {0, 1, 2, 3}, lens[3] = {600, 700, 513};
    flash_plan_input in = input(start, lens, 3);
    in.first_key = 512;
    flash_plan_limits lim = {.max_seqs = 3, .max_tokens = 3};
    flash_plan_capacity(&lim, &in);
    flash_plan p = empty_plan();
    int rc = flash_plan_build(&in, &lim, &p);
    ok(rc == 0 && requests[0].span == 188 && requests[1].span == 88 && requests[2].span == 1,
       "the suffix pass plans the keys after the prefix");
    ok(flash_plan_prefix(&in, 3, 1, tiles, &(flash_prefix_plan){0, 0, 0}) == 0 &&
           flash_plan_prefix(&in, 3000, 2, tiles, &(flash_prefix_plan){0, 0, 0}) == -1,
       "a prefix list that is too short is an error");
}

/* Decode beside prefill: where there is both, by how much of each. */
static void test_beside(void) {
    enum { DECODES = 64, PROMPTS = 32 };
    static int32_t start[DECODES + PROMPTS + 1], lens[DECODES + PROMPTS];
    static const struct {
        int decodes, keys, prompts, tokens; /* of each */
        int least, most;
        const char *what;
    } cases[] = {{64, 4096, 0, 0, 0, 0, "no prompts: nothing beside"},
                 {0, 0, 32, 512, 0, 0, "no decodes: nothing beside"},
                 {64, 4096, 32, 512, 64, 120, "alike: prefill has more than half of the SMs and leaves some"},
                 {16, 2048, 1, 300, 4, 132, "a short prompt hides behind decodes"},
                 {1, 64, 8, 8192, 0, 0, "one short decode is no matter beside long prompts"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = 0;
        for (; n < cases[i].decodes + cases[i].prompts; n++) {
            const int is_decode = n < cases[i].decodes;
            start[n + 1] = start[n] + (is_decode ? 1 : cases[i].tokens);
            lens[n] = is_decode ? cases[i].keys : cases[i].tokens;
        }
        flash_plan_input in = input(start, lens, n);
        flash_plan_limits lim = {.max_seqs = n, .max_tokens = start[n]};
        flash_plan_capacity(&lim, &in);
        flash_plan p = empty_plan();
        const int rc = flash_plan_build(&in, &lim, &p), sms = flash_plan_beside(&in, &p);
        ok(rc == 0 && p.decode_keys == (int64_t)cases[i].decodes * cases[i].keys && sms >= cases[i].least &&
               sms <= cases[i].most,
           "%s (%d SMs)", cases[i].what, sms);
    }
}
int main(void) {
    state = tap_seed();
    test_config();
    test_plan();
    test_many_rows();
    test_few_heads();
    test_captured();
    test_order(9);
    test_order(30);
    test_order(SEQS);
    test_prefix();
    test_beside();
    return tap_done();
}
