/* SPDX-License-Identifier: Apache-2.0 */
/* Planning: cuts a batch into items of similar length, splits long contexts where requests are too few, and
 * groups what shares the partial slots into waves. */
#include "cpu_plan.h"
#include "cpu_mask.h"
#include "cpu_threads.h"

#include <string.h>

enum {
    ITEMS_PER_THREAD = 4,  /* so that the last ones even out */
    SPLITS_PER_THREAD = 2, /* of one request's row dots: each has its own queries, sums and cold start */
    MIN_SPLIT_KEYS = 512,
    SPLIT_UNIT = 64, /* keys: whole tiles of every format */
    INVARIANT_SPLIT_KEYS = 1024,
    MAX_SPLITS = 16,
    SLOT_BYTES = 8 << 20,
    REST = 4, /* rows behind whole vectors of lanes go by row dots where they fill less than 1 / REST */
    SERIAL_NS = 15000 /* below this one thread is as good as two */
};

static int64_t round64(int64_t n) {
    return (n + 63) & ~(int64_t)63;
}
static int64_t at_least(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Sizes follow the limits of the problem, whose product can exceed 64 bits: what does stops at a bound,
 * several of which can still be added. */
static int64_t times(int64_t a, int64_t b) {
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) ? CPU_PLAN_BOUND : at_most(c, CPU_PLAN_BOUND);
}

static int64_t head_groups(const struct cpu_attn *a, const struct cpu_tiling *t) {
    return (a->num_kv_heads + t->heads_per_item - 1) / t->heads_per_item;
}

/* Items at most: lanes blocks may be cut to give every thread its share, row-dot requests may be split. */
static int64_t max_items(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_limits *lim) {
    const int64_t G = a->num_q_heads / a->num_kv_heads,
                  blocks = times(lim->max_tokens, G) / t->rows_per_item + lim->max_seqs;
    const int64_t rests = times((lim->batch_invariant ? MAX_SPLITS : 1) * head_groups(a, t), lim->max_seqs);
    return times(a->num_kv_heads, blocks) + rests +
           (int64_t)lim->threads * (ITEMS_PER_THREAD + 4) * MAX_SPLITS + 64;
}

static int64_t max_merges(const struct cpu_attn *a, const struct cpu_tiling *t,
                          const struct cpu_limits *lim) {
    return max_items(a, t, lim);
}

/* At worst one wave for each request and group of heads. */
static int64_t max_waves(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_limits *lim) {
    return 2 + (lim->batch_invariant ? lim->max_seqs * head_groups(a, t) : 0);
}

int64_t cpu_plan_slots(const struct cpu_attn *a, const struct cpu_limits *lim) {
    (void)lim;
    const int64_t one = cpu_part_floats(a->head_size_v) * 4;
    return at_least(SLOT_BYTES / one, (int64_t)2 * a->num_kv_heads * CPU_ROWDOT_MAX);
}

size_t cpu_plan_bytes(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_limits *lim,
                      int64_t max_spans) {
    return (size_t)(round64(sizeof(struct cpu_plan)) +
                    round64(lim->max_seqs * (int64_t)sizeof(struct cpu_seq)) +
                    round64(times(max_items(a, t, lim), sizeof(struct cpu_item))) +
                    round64(times(max_merges(a, t, lim), sizeof(struct cpu_merge))) +
                    round64(times(max_waves(a, t, lim), sizeof(struct cpu_wave))) +
                    round64(times(max_spans, 8)) + 64);
}

size_t cpu_plan_workspace(const struct cpu_attn *a, const struct cpu_tiling *t,
                          const struct cpu_limits *lim) {
    return (size_t)lim->threads * (size_t)round64((int64_t)t->scratch_bytes) +
           (size_t)(cpu_plan_slots(a, lim) * cpu_part_floats(a->head_size_v) * 4) + 64;
}

struct cpu_plan *cpu_plan_init(void *mem, const struct cpu_attn *a, const struct cpu_tiling *t,
                               const struct cpu_limits *lim, int64_t max_spans) {
    char *p = mem;
    struct cpu_plan *plan = mem;
    memset(plan, 0, sizeof *plan);
    p += round64(sizeof *plan);
    plan->seqs = (void *)p;
    p += round64(lim->max_seqs * (int64_t)sizeof *plan->seqs);
    plan->item_capacity = max_items(a, t, lim);
    plan->items = (void *)p;
    p += round64(plan->item_capacity * (int64_t)sizeof *plan->items);
    plan->merge_capacity = max_merges(a, t, lim);
    plan->merges = (void *)p;
    p += round64(plan->merge_capacity * (int64_t)sizeof *plan->merges);
    plan->wave_capacity = max_waves(a, t, lim);
    plan->waves = (void *)p;
    p += round64(plan->wave_capacity * (int64_t)sizeof *plan->waves);
    plan->spans = (void *)p;
    plan->span_capacity = max_spans;
    plan->slots = cpu_plan_slots(a, lim);
    return plan;
}

/* Keys that rows [row0, row1) of a request see, as one range. */
static void key_range(const struct cpu_attn *a, const struct cpu_seq *s, int32_t row0, int32_t row1,
                      int32_t *first, int32_t *end) {
    const int G = a->num_q_heads / a->num_kv_heads;
    const struct cpu_interval2 x = cpu_mask_token(s, row0 / G, 0, s->kv_len);
    const struct cpu_interval2 y = cpu_mask_token(s, (row1 - 1) / G, 0, s->kv_len);
    *first = cpu_min(x.hi0 > x.lo0 ? x.lo0 : s->kv_len, y.hi0 > y.lo0 ? y.lo0 : s->kv_len);
    *end = cpu_max(x.hi0, y.hi0);
    if (x.hi1 > x.lo1 || y.hi1 > y.lo1) *first = 0;
    if (*first > *end) *first = *end;
}

/* Estimated nanoseconds: 100 GFLOP/s, 10 GB/s. Only ratios matter, and the border of "too short for
 * threads". */
static double cost_ns(const struct cpu_attn *a, int rowdot, int heads, int rows, int keys) {
    const double width = a->head_size + a->head_size_v,
                 work = 2.0 * heads * rows * (double)keys * width / 100;
    const double bytes = (double)heads * keys * width * cpu_dtype_size(a->kv_dtype) / 10;
    return 200 + (rowdot && bytes > 2 * work ? bytes : rowdot ? 2 * work : work + 0.1 * bytes);
}

/* The wave that a request with `need` partial slots goes into; opens a new one when the slots are spent. */
static struct cpu_wave *wave_for(struct cpu_plan *p, int64_t need, int64_t *used) {
    struct cpu_wave *w = &p->waves[p->num_waves - 1];
    if (*used + need > p->slots && *used > 0 && p->num_waves < p->wave_capacity) {
        w = &p->waves[p->num_waves++];
        *w = (struct cpu_wave){p->num_items, p->num_items, p->num_merges, p->num_merges, 0};
        *used = 0;
    }
    return w;
}

/* KV heads of an item of a request's row dots: all that one may hold, but fewer where the keys are too few to
 * be split and threads would have nothing to do. Results do not depend on it. */
static int heads_of_item(const struct cpu_plan *p, const struct cpu_attn *a, const struct cpu_tiling *t,
                         int32_t rows, int64_t keys, double total) {
    int heads = t->heads_per_item < a->num_kv_heads ? t->heads_per_item : a->num_kv_heads;
    while (p->threads > 1 && heads > 1 && keys < 2 * MIN_SPLIT_KEYS &&
           cost_ns(a, 1, heads, rows, (int)keys) > 0.55 * total / p->threads)
        heads = (heads + 1) / 2;
    return heads;
}

/* Rows behind the last whole sub-block of lanes that are too few for one: 4 of an image of 196, 1 of 257.
 * Tiles of AMX would be done sooner. */
static int32_t rest_of(const struct cpu_tiling *t, int32_t rows, int lanes) {
    const int32_t rest = rows % lanes;
    return !t->amx && rows > lanes && rest * REST <= lanes ? rest : 0;
}

/* Adds rows [row0, row1) of heads [head0, head1), in `splits` key ranges of `chunk` keys from `first`. */
static void add_work(struct cpu_plan *p, const struct cpu_item *proto, int splits, int32_t first, int32_t end,
                     int32_t chunk, struct cpu_wave *w, int64_t *used) {
    struct cpu_item it = *proto;
    const int64_t stride = (int64_t)(it.head1 - it.head0) * (it.row1 - it.row0);
    it.part = -1;
    it.key0 = 0;
    it.key1 = INT32_MAX;
    if (splits > 1) {
        p->merges[p->num_merges++] =
            (struct cpu_merge){it.seq, it.head0, it.head1, it.row0, it.row1, splits, *used, stride};
        w->merge1 = p->num_merges;
        w->merge_rows += stride;
        it.part = *used;
        *used += stride * splits;
    }
    for (int s = 0; s < splits; s++) {
        if (splits > 1) {
            it.key0 = s == 0 ? 0 : first + s * chunk; /* the first split owns the sink */
            it.key1 = s + 1 == splits ? end : first + (s + 1) * chunk;
        }
        p->items[p->num_items++] = it;
        it.part += splits > 1 ? stride : 0;
    }
    w->item1 = p->num_items;
}

/* Longest first (heap sort; no allocation). The order changes no result. */
static void sort_items(struct cpu_item *v, int n) {
    for (int start = n / 2 - 1, end = n; end > 1;) {
        int root = 0;
        if (start >= 0) {
            root = start--;
        } else {
            const struct cpu_item last = v[--end];
            v[end] = v[0];
            v[0] = last;
        }
        const struct cpu_item x = v[root];
        for (int child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && v[child + 1].cost < v[child].cost) child++;
            if (v[child].cost >= x.cost) break;
            v[root] = v[child];
        }
        v[root] = x;
    }
}

void cpu_plan_build(struct cpu_plan *p, const struct cpu_kernels *k, const struct cpu_attn *a,
                    const struct cpu_tiling *t, const struct cpu_limits *lim) {
    const int G = a->num_q_heads / a->num_kv_heads, lanes = t->rows_per_item / t->num_sub;
    double total = 0;
    int64_t blocks = 0, used = 0;
    p->num_items = p->num_merges = 0;
    p->num_waves = 1;
    p->waves[0] = (struct cpu_wave){0, 0, 0, 0, 0};
    for (int i = 0; i < p->num_seqs; i++) {
        const struct cpu_seq *s = &p->seqs[i];
        const int32_t rows = s->q_len * G;
        int32_t first, end;
        if (rows == 0) continue;
        key_range(a, s, 0, rows, &first, &end);
        const int rowdot = rows <= k->rowdot_max;
        total +=
            cost_ns(a, rowdot, a->num_kv_heads, rows, end - first) * (!rowdot && s->mask.causal ? 0.75 : 1.0);
        blocks += rowdot ? 0 : a->num_kv_heads * (int64_t)((rows + t->rows_per_item - 1) / t->rows_per_item);
    }
    p->threads = total < SERIAL_NS ? 1 : lim->threads;
    /* Few blocks: cut them, but keep four sub-blocks, which share a prepared tile. */
    int32_t block_rows = t->rows_per_item;
    while (p->threads > 1 && blocks > 0 && blocks < (int64_t)p->threads * ITEMS_PER_THREAD &&
           block_rows > 4 * lanes) {
        block_rows /= 2;
        blocks *= 2;
    }
    for (int i = 0; i < p->num_seqs; i++) {
        const struct cpu_seq *s = &p->seqs[i];
        const int32_t rows = s->q_len * G, few = rows <= k->rowdot_max,
                      whole = few ? 0 : rows - rest_of(t, rows, lanes);
        for (int32_t r = 0, step; r < rows; r += step) {
            const int32_t rowdot = r >= whole;
            int32_t from = 0, to = 0;
            if (rowdot) key_range(a, s, r, rows, &from, &to);
            step = rowdot ? rows - r : cpu_min(block_rows, whole - r);
            const int heads = rowdot ? heads_of_item(p, a, t, rows - r, to - from, total) : 1;
            for (int32_t h = 0; h < a->num_kv_heads; h += heads) {
                struct cpu_item it = {.seq = i, .rowdot = rowdot, .row0 = r, .row1 = r + step};
                int32_t first, end;
                it.head0 = h;
                it.head1 = cpu_min(a->num_kv_heads, h + heads);
                key_range(a, s, it.row0, it.row1, &first, &end);
                const int64_t keys = end - first,
                              slots = (int64_t)(it.head1 - it.head0) * (it.row1 - it.row0);
                int64_t splits = 1, chunk = 0;
                if (lim->batch_invariant) {
                    if (rowdot) {
                        const int64_t most = at_least(1, at_most(MAX_SPLITS, p->slots / slots));
                        chunk = INVARIANT_SPLIT_KEYS * at_least(1, (keys + INVARIANT_SPLIT_KEYS * most - 1) /
                                                                       (INVARIANT_SPLIT_KEYS * most));
                        splits = at_least(1, (keys + chunk - 1) / chunk);
                    }
                } else if (p->threads > 1) {
                    const double cost = cost_ns(a, rowdot, it.head1 - it.head0, it.row1 - it.row0, (int)keys);
                    const int each = rowdot && p->num_seqs == 1 ? SPLITS_PER_THREAD : ITEMS_PER_THREAD;
                    const double target = total / ((double)p->threads * each);
                    splits = cost > 1.5 * target ? (int64_t)(cost / target + 0.99) : 1;
                    splits = at_most(at_most(splits, MAX_SPLITS), keys / MIN_SPLIT_KEYS);
                    splits = at_least(1, at_most(splits, (p->slots - used) / slots));
                    chunk = ((keys + splits - 1) / splits + SPLIT_UNIT - 1) / SPLIT_UNIT * SPLIT_UNIT;
                    splits = at_least(1, (keys + chunk - 1) / at_least(1, chunk));
                }
                it.cost = (float)(cost_ns(a, rowdot, it.head1 - it.head0, it.row1 - it.row0, (int)keys) /
                                  (double)splits);
                struct cpu_wave *w = wave_for(p, splits > 1 ? splits * slots : 0, &used);
                add_work(p, &it, (int)splits, first, end, (int32_t)chunk, w, &used);
            }
        }
    }
    for (int w = 0; w < p->num_waves && p->threads > 1; w++)
        sort_items(p->items + p->waves[w].item0, p->waves[w].item1 - p->waves[w].item0);
}

struct run {
    const struct cpu_plan *plan;
    const struct cpu_kernels *k;
    const struct cpu_attn *a;
    const struct cpu_tiling *t;
    const struct cpu_wave *wave;
    char *scratch;
    size_t scratch_step;
    float *parts;
};

static void run_item(void *arg, int64_t i, int worker) {
    const struct run *r = arg;
    const struct cpu_item *it = &r->plan->items[r->wave->item0 + i];
    r->k->item(r->a, r->t, &r->plan->seqs[it->seq], it, r->scratch + (size_t)worker * r->scratch_step,
               r->parts);
}

/* The i-th row over all merges of the wave. */
static void run_merge(void *arg, int64_t i, int worker) {
    const struct run *r = arg;
    const struct cpu_merge *m = &r->plan->merges[r->wave->merge0];
    for (; i >= m->stride; m++)
        i -= m->stride;
    r->k->merge(r->a, &r->plan->seqs[m->seq], m, i, r->scratch + (size_t)worker * r->scratch_step, r->parts);
}

void cpu_plan_run(const struct cpu_plan *p, const struct cpu_kernels *k, const struct cpu_attn *a,
                  const struct cpu_tiling *t, const struct cpu_limits *lim, void *workspace, int threads) {
    struct run r = {.plan = p, .k = k, .a = a, .t = t};
    r.scratch = workspace;
    r.scratch_step = (size_t)round64((int64_t)t->scratch_bytes);
    r.parts = (float *)(void *)(r.scratch + (size_t)lim->threads * r.scratch_step);
    for (int w = 0; w < p->num_waves; w++) {
        r.wave = &p->waves[w];
        const struct cpu_loop loops[2] = {{r.wave->item1 - r.wave->item0, run_item},
                                          {r.wave->merge_rows, run_merge}};
        cpu_run_loops(threads > 0 ? threads : p->threads, loops, 1 + (r.wave->merge_rows > 0), &r);
    }
}
