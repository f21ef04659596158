/* SPDX-License-Identifier: Apache-2.0 */
/* Planner of the flash kernels. Decode: choose one piece length for the whole batch by a small cost model,
 * cut every request into equal pieces of about that length, longest first. Prefill: tiles by falling number
 * of keys. */
#include "flash_plan.h"

#include <string.h>

/* Times, in keys that a small CTA of a full SM reads meanwhile. */
enum {
    PIECE_COST = 160,     /* of a decode CTA, whatever it reads */
    MERGE_COST = 90,      /* from the last piece to the result */
    PIECE_MERGE_COST = 2, /* of each piece, by 512 numbers */
    CLUSTER_COST = 30,    /* the same within a cluster */
};

static int min_i(int a, int b) {
    return a < b ? a : b;
}
static int max_i(int a, int b) {
    return a > b ? a : b;
}
static int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

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

/* A multiple of `unit`. */
static int pieces_for(int span, int chunk, int unit, int limit) {
    if (span <= chunk || chunk <= 0) return unit;
    int n = ceil_div(span, chunk);
    /* the kernel rounds a piece up to 64 keys, so fewer pieces may be enough */
    n = ceil_div(span, (ceil_div(span, n) + 63) / 64 * 64);
    return unit == 1 ? min_i(n, limit) : min_i(ceil_div(n, unit), limit / unit) * unit;
}

/* What decode serves of a batch. */
typedef struct decode_batch {
    const flash_plan_input *in;
    const flash_plan_request *r;
    int n, longest, ctas; /* longest: keys; ctas: of all requests in one piece */
    int rows;             /* query rows of a CTA that are there at most */
    int max_slots;
    int is_alone; /* there are no prompts, beside which clusters would find no room */
} decode_batch;

/* How much slower than alone on an SM the CTAs of one wave are: SMs share the read rate among their CTAs.
 * Where some SMs have none the others read faster, at most so much, and half of them nearly as much as all
 * (dense-notes.md): that is for pieces that meet in clusters (is_local), others had better be many. */
static double crowding(const flash_plan_mode *m, double count, int is_local) {
    const int per_sm = max_i(1, m->ctas_per_sm), sms = max_i(1, m->slots / per_sm);
    double busy = count / sms;
    if (busy > 1 || !is_local) return (double)ceil_div((int)count, sms) / per_sm;
    if (busy < 0.5) busy = 0.5;
    return busy / (0.84 + 0.16 * busy) / per_sm;
}

/* Keys that a CTA of `mode` reads while a small one reads one. */
static double speed_of(const flash_plan_input *in, int mode) {
    return (double)in->modes[0].ctas_per_sm / max_i(1, in->modes[mode].ctas_per_sm);
}

/* From the last piece to the result of a request of so many pieces: whoever comes last adds up those of all
 * clusters, each of its CTAs a share of the columns. A CTA takes its time for 512 numbers of a piece. */
static double merge_time(const decode_batch *b, int pieces, int cluster) {
    const double numbers = b->rows * b->in->head_size / (512.0 * cluster);
    double time = cluster > 1 ? CLUSTER_COST : 0;
    const int clusters = pieces / cluster;
    if (clusters > 1) time += MERGE_COST + PIECE_MERGE_COST * clusters * (numbers > 1 ? numbers : 1);
    return time;
}

static const double no_plan = 1e30; /* a cost above all others */

/* Of the places of large CTAs: more of them find no room in clusters. */
static int half_of(const flash_plan_input *in) {
    return in->modes[FLASH_LARGE_CTAS].slots / 2;
}

/* Estimated time of cutting all requests at `chunk` into multiples of `cluster` pieces: one wave takes its
 * longest piece, more take something between the perfect balance and whole waves of equal pieces. */
static double cost_of(const decode_batch *b, int mode, int chunk, int cluster, int limit) {
    const flash_plan_mode *m = &b->in->modes[mode];
    const double speed = speed_of(b->in, mode), piece = PIECE_COST * speed;
    double total = 0, longest = 0, count = 0, slots = m->slots, len = 0;
    long used = 0;
    int most = 1, span = -1, p = 1;
    for (int i = 0; i < b->n; i++) {
        const flash_plan_request *r = &b->r[i];
        if (r->span != span) { /* many are alike, and divisions are what this costs */
            span = r->span;
            p = pieces_for(span, chunk, cluster, limit);
            len = ceil_div(span, p);
        }
        used += p > 1 ? p : 0;
        if (used > b->max_slots) return no_plan;
        total += (len + piece) * p * r->ctas;
        count += (double)p * r->ctas;
        longest = len > longest ? len : longest;
        most = max_i(most, p);
    }
    const int is_clusters = cluster > 1 && mode == FLASH_LARGE_CTAS;
    if (is_clusters && most > cluster && count > half_of(b->in)) return no_plan;
    const double merge = merge_time(b, most, cluster);
    /* clusters find places on half of the SMs, but where two CTAs share an SM they do not spread evenly */
    const int is_local = most <= cluster || (is_clusters && 2 * count * m->ctas_per_sm <= slots);
    if (count <= slots) return (longest * crowding(m, count, is_local) + piece) / speed + merge;
    double even = total / slots, waves = (double)(long)((count + slots - 1) / slots) * (total / count);
    double time = waves > even ? 0.5 * (even + waves) : even;
    return (time < longest ? longest : time) / speed + merge;
}

static int choose_chunk(const decode_batch *b, int mode, int cluster, int limit, double *best_cost) {
    const flash_plan_mode *m = &b->in->modes[mode];
    double total = 0;
    for (int i = 0; i < b->n; i++)
        total += (double)b->r[i].span * b->r[i].ctas;
    const double keys = total / speed_of(b->in, mode);
    const int longest = b->longest, even = (int)(total / m->slots) + 1,
              share = max_i(1, m->slots / b->r[0].ctas);
    int best = longest, last = 0;
    *best_cost = cost_of(b, mode, longest, cluster, limit);
    for (int k = 0; k < 25; k++) {
        /* candidates: equal cuts of the longest request; as many as fit one wave; fractions of a slot's even
         * share */
        int chunk = k < 16    ? ceil_div(longest, k + 2)
                    : k == 16 ? ceil_div(longest, share)
                              : ceil_div(even, k - 16);
        chunk = max_i((chunk + 63) / 64 * 64, m->min_piece);
        /* no cut takes less than all keys and the starts of its CTAs in perfect balance; there are as many
         * CTAs as chunks, unless the pieces of a request are too many */
        const double chunks = longest / limit < chunk ? total / chunk : 0;
        const double least = (keys + PIECE_COST * (b->ctas > chunks ? b->ctas : chunks)) / m->slots;
        if (chunk == last || least >= *best_cost * 0.98) continue;
        last = chunk;
        double c = cost_of(b, mode, chunk, cluster, limit);
        if (c < *best_cost * 0.98) {
            *best_cost = c;
            best = chunk;
        }
    }
    return best;
}

/* The largest cluster that leaves every CTA an SM of its own: they must find their SMs together. */
static int cluster_for(const flash_plan_input *in, long ctas) {
    const flash_plan_mode *m = &in->modes[0];
    int c = in->num_splits == 0 ? in->max_cluster : 1;
    while (c > 1 && ctas * c > m->slots / max_i(1, m->ctas_per_sm))
        c /= 2;
    return max_i(c, 1);
}

/* Where requests have few KV heads, several clusters each, of large CTAs in half of their places at most: the
 * best number, if it takes less than *cost does. A ninth piece has to be worth a meeting in memory. */
static int choose_clusters(const decode_batch *b, int cluster, int limit, int chunk, double *cost) {
    for (int p = 2 * cluster; p <= limit && p <= half_of(b->in); p += cluster) {
        const int cut = max_i(ceil_div(b->longest, p), b->in->modes[FLASH_LARGE_CTAS].min_piece / 2);
        const double c = cost_of(b, FLASH_LARGE_CTAS, cut, cluster, p);
        if (c == no_plan) break;
        if (c >= *cost) continue;
        *cost = c;
        chunk = cut;
    }
    return chunk;
}

/* A captured launch keeps its cluster, so all batches that it serves have multiples of it: small clusters
 * divide large ones, and fewer requests have larger clusters. Returns the keys of a piece. */
static int choose_captured(decode_batch *b, flash_plan *plan, int limit) {
    const flash_plan_input *in = b->in;
    const int c = cluster_for(in, in->captured), together = in->captured * c, half = half_of(in),
              places = in->modes[FLASH_LARGE_CTAS].slots,
              is_one = in->num_seqs == 1 && 2 * together <= places && 4 * together > places;
    double cost;
    plan->cluster = c;
    if (in->num_splits != 0) return b->longest;
    /* Large CTAs: one request on half of the SMs, whatever its length, or several clusters for each of a few;
     * more of these would not fit. */
    if (!is_one && (c == 1 || 2 * together > half)) return choose_chunk(b, 0, c, limit, &cost);
    plan->mode = FLASH_LARGE_CTAS;
    /* A later batch of fewer requests or shorter queries is one or the other too, and may have more items,
     * but never more than if an item were one CTA a head. */
    plan->most_items = max_i(half / in->num_kv_heads / c, 1) * c;
    b->max_slots = min_i(b->max_slots, max_i(half * in->num_seqs / in->captured / c, 1) * c);
    cost = cost_of(b, FLASH_LARGE_CTAS, b->longest, c, c);
    return choose_clusters(b, c, limit, b->longest, &cost);
}

/* Clusters are for pieces that merge there at once, or for few heads, and large CTAs for the rest of the
 * small batches: twice the bytes in flight, half the pieces. Returns the keys of a piece. */
static int choose_eager(const decode_batch *b, flash_plan *plan, int limit) {
    const flash_plan_input *in = b->in;
    const int ctas = b->ctas, longest = b->longest, places = in->modes[FLASH_LARGE_CTAS].slots,
              largest = cluster_for(in, ctas);
    double cost;
    plan->mode = 2 * ctas <= places ? FLASH_LARGE_CTAS : FLASH_SMALL_CTAS;
    if (longest <= in->modes[plan->mode].min_piece) return longest;
    int chunk = choose_chunk(b, plan->mode, 1, limit, &cost);
    for (int c = largest; c > 1; c /= 2) {
        /* one CTA on every SM leaves no room to place larger clusters */
        const int mode = (c == 2 ? ctas : ctas * c) * 2 <= places;
        double merged = cost_of(b, mode, longest, c, c);
        const int cut = b->is_alone && c == largest && ctas * c <= half_of(in) / 2
                            ? choose_clusters(b, c, limit, longest, &merged)
                            : longest;
        if (merged >= cost) continue;
        cost = merged;
        chunk = cut;
        plan->cluster = c;
        plan->mode = mode;
    }
    if (ctas > in->modes[FLASH_SMALL_CTAS].slots && ctas <= in->modes[FLASH_NARROW_CTAS].slots &&
        cost_of(b, FLASH_NARROW_CTAS, longest, 1, limit) < cost) {
        chunk = longest;
        plan->mode = FLASH_NARROW_CTAS;
    }
    return chunk;
}

/* Into how many pieces requests are cut, by which CTAs, and which of them merge in clusters. */
static void choose_pieces(decode_batch *b, flash_plan *plan) {
    const flash_plan_input *in = b->in;
    flash_plan_request *r = plan->requests;
    const int limit = min_i(FLASH_MAX_PIECES, b->max_slots);
    int chunk = b->longest;
    if (limit > 1 && in->captured > 0)
        chunk = choose_captured(b, plan, limit);
    else if (limit > 1 && in->num_splits == 0)
        chunk = choose_eager(b, plan, limit);
    for (int i = 0; i < b->n; i++)
        r[i].pieces = in->num_splits > 0 ? max_i(1, min_i(in->num_splits, limit))
                                         : pieces_for(r[i].span, chunk, plan->cluster, limit);
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
    decode_batch batch = {.in = in,
                          .r = r,
                          .n = n,
                          .longest = longest,
                          .ctas = ctas,
                          .rows = min_i(in->decode_rows, plan->decode_tokens * in->group),
                          .max_slots = lim->max_slots,
                          .is_alone = is_alone};
    if (n > 0) choose_pieces(&batch, plan);
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
