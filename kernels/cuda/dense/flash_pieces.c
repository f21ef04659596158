/* SPDX-License-Identifier: Apache-2.0 */
/* One piece length for all requests of a batch that decode, by a small cost model: each is cut into equal
 * pieces of about that length. Measurements: dense-notes.md. */
#include "flash_pieces.h"

/* Times, in keys that a small CTA of a full SM reads meanwhile. */
enum {
    PIECE_COST = 160,     /* of a decode CTA, whatever it reads */
    MERGE_COST = 90,      /* from the last piece to the result */
    PIECE_MERGE_COST = 2, /* of each piece, by 512 numbers */
    CLUSTER_COST = 30,    /* the same within a cluster */
};

/* A multiple of `unit`. */
static int pieces_for(int span, int chunk, int unit, int limit) {
    if (span <= chunk || chunk <= 0) return unit;
    int n = ceil_div(span, chunk);
    /* the kernel rounds a piece up to 64 keys, so fewer pieces may be enough */
    n = ceil_div(span, (ceil_div(span, n) + 63) / 64 * 64);
    return unit == 1 ? min_i(n, limit) : min_i(ceil_div(n, unit), limit / unit) * unit;
}

/* How much slower than alone on an SM the CTAs of one wave are: SMs share the read rate among their CTAs.
 * Where some SMs have none the others read faster, at most so much, and half of them nearly as much as all
 * (dense-notes.md): that is for pieces that meet in clusters (is_local), others had better be many. */
static double crowding(const flash_plan_input *in, int mode, double count, int is_local) {
    const flash_plan_mode *m = &in->modes[mode];
    const int per_sm = max_i(1, m->ctas_per_sm), sms = max_i(1, m->slots / per_sm);
    double busy = count / sms, time;
    if (busy > 1 || !is_local)
        time = (double)ceil_div((int)count, sms) / per_sm;
    else {
        if (busy < 0.5) busy = 0.5;
        time = busy / (0.84 + 0.16 * busy) / per_sm;
    }
    /* one CTA of many rows does not multiply as fast as an SM reads where others are idle */
    const double least = in->head_size <= 64 ? 0.82 : 0.64;
    return in->decode_rows > FLASH_FEW_ROWS && time < least ? least : time;
}

/* Keys that a CTA of `mode` reads while a small one reads one. */
static double speed_of(const flash_plan_input *in, int mode) {
    return (double)in->modes[0].ctas_per_sm / max_i(1, in->modes[mode].ctas_per_sm);
}

/* From the last piece to the result of a request of so many pieces: whoever comes last adds up those of all
 * clusters, each of its CTAs a share of the columns. A CTA takes its time for 512 numbers of a piece. */
static double merge_time(const flash_decode_batch *b, int pieces, int cluster) {
    const double numbers = b->rows * b->in->head_size / (512.0 * cluster);
    double time = cluster > 1 ? CLUSTER_COST : 0;
    const int clusters = pieces / cluster;
    if (clusters > 1) time += MERGE_COST + PIECE_MERGE_COST * clusters * (numbers > 1 ? numbers : 1);
    return time;
}

static const double no_plan = 1e30; /* a cost above all others */

/* Of the places of large CTAs: more of them find no room in clusters, but pairs do. */
static int half_of(const flash_plan_input *in) {
    return in->modes[FLASH_LARGE_CTAS].slots / 2;
}

/* Estimated time of cutting all requests at `chunk` into multiples of `cluster` pieces: one wave takes its
 * longest piece, more take something between the perfect balance and whole waves of equal pieces. */
static double cost_of(const flash_decode_batch *b, int mode, int chunk, int cluster, int limit) {
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
    if (is_clusters && cluster > 2 && most > cluster && count > half_of(b->in)) return no_plan;
    const double merge = merge_time(b, most, cluster);
    /* clusters find places on half of the SMs, but where two CTAs share an SM they do not spread evenly */
    const int is_local = most <= cluster || (is_clusters && 2 * count * m->ctas_per_sm <= slots);
    if (count <= slots) return (longest * crowding(b->in, mode, count, is_local) + piece) / speed + merge;
    double even = total / slots, waves = (double)(long)((count + slots - 1) / slots) * (total / count);
    double time = waves > even ? 0.5 * (even + waves) : even;
    return (time < longest ? longest : time) / speed + merge;
}

static int choose_chunk(const flash_decode_batch *b, int mode, int cluster, int limit, double *best_cost) {
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
static int choose_clusters(const flash_decode_batch *b, int cluster, int limit, int chunk, double *cost) {
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
static int choose_captured(flash_decode_batch *b, flash_plan *plan, int limit) {
    const flash_plan_input *in = b->in;
    const int c = cluster_for(in, in->captured), together = in->captured * c, half = half_of(in),
              places = in->modes[FLASH_LARGE_CTAS].slots,
              is_one = in->num_seqs == 1 && 2 * together <= places && 4 * together > places;
    double cost;
    plan->cluster = c;
    if (in->num_splits != 0) return b->longest;
    /* Large CTAs: one request on half of the SMs, whatever its length, or several clusters for each of a few;
     * more of these would not fit. */
    if (!is_one && (c == 1 || 2 * together > half)) {
        /* many rows want the warps of large CTAs, which find room on all SMs in pairs */
        if (c > 1 && in->decode_rows > FLASH_FEW_ROWS) {
            plan->mode = FLASH_LARGE_CTAS;
            plan->cluster = together <= half ? c : 2;
        }
        return choose_chunk(b, plan->mode, plan->cluster, limit, &cost);
    }
    plan->mode = FLASH_LARGE_CTAS;
    /* A later batch of fewer requests or shorter queries is one or the other too, and may have more items,
     * but never more than if an item were one CTA a head; where it has few rows, an SM may hold two. */
    const int most = in->decode_rows > FLASH_FEW_ROWS ? max_i(half, in->num_sms) : half;
    plan->most_items = max_i(most / in->num_kv_heads / c, 1) * c;
    b->max_slots = min_i(b->max_slots, max_i(half * in->num_seqs / in->captured / c, 1) * c);
    cost = cost_of(b, FLASH_LARGE_CTAS, b->longest, c, c);
    return choose_clusters(b, c, limit, b->longest, &cost);
}

/* Clusters are for pieces that merge there at once, or for few heads, and large CTAs for the rest of the
 * small batches: twice the bytes in flight, half the pieces. Returns the keys of a piece. */
static int choose_eager(const flash_decode_batch *b, flash_plan *plan, int limit) {
    const flash_plan_input *in = b->in;
    const int ctas = b->ctas, longest = b->longest, places = in->modes[FLASH_LARGE_CTAS].slots,
              largest = cluster_for(in, ctas);
    double cost;
    plan->mode = 2 * ctas <= places ? FLASH_LARGE_CTAS : FLASH_SMALL_CTAS;
    if (longest <= in->modes[plan->mode].min_piece) return longest;
    int chunk = choose_chunk(b, plan->mode, 1, limit, &cost);
    for (int c = largest; c > 1; c /= 2) {
        /* One CTA on every SM leaves no room to place clusters larger than pairs. On three of four it does,
         * which pays where warps have much to do beside reading. */
        const int mode = c == 2                ? 2 * ctas <= places
                         : in->decode_rows > 8 ? 4 * ctas * c <= 3 * places
                                               : 2 * ctas * c <= places;
        double merged = cost_of(b, mode, longest, c, c);
        const int is_wide = c == 2 && mode == FLASH_LARGE_CTAS && in->decode_rows > FLASH_FEW_ROWS,
                  cut = is_wide ? choose_chunk(b, mode, c, limit, &merged)
                        : b->is_alone && c == largest && ctas * c <= half_of(in) / 2
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

void flash_choose_pieces(flash_decode_batch *b, flash_plan *plan) {
    const flash_plan_input *in = b->in;
    flash_plan_request *r = b->r;
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

int flash_choose_row_tiles(const flash_plan_input *in, int row_tiles, int is_captured) {
    /* a multiprocessor's keys and the share of a batch's below which many rows do not pay (dense-notes.md) */
    enum { KEYS = 512, SHARE = 8 };
    double keys = 0, many = 0; /* of all requests, of those whose rows are too many for one small CTA */
    if (is_captured || 8 * row_tiles <= FLASH_FEW_ROWS) return row_tiles;
    for (int s = 0; s < in->num_seqs; s++) {
        const int q = in->q_start[s + 1] - in->q_start[s];
        if (q <= 0 || q > in->decode_tokens) continue;
        const int span = flash_visible_span(in, s, q, 0, q - 1);
        keys += span;
        many += q * in->group > FLASH_FEW_ROWS ? span : 0;
    }
    return many * in->num_kv_heads >= (double)KEYS * in->num_sms && many * SHARE >= keys ? row_tiles
                                                                                         : FLASH_FEW_ROWS / 8;
}
