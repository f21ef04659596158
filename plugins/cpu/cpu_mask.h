/* SPDX-License-Identifier: Apache-2.0 */
/* Masks as a union of two key intervals per query token (semantics 2.6): every mask kind is only data,
 * so the kernels know one test. */
#ifndef CPU_MASK_H
#define CPU_MASK_H

#include "cpu_types.h"

/* Keys [lo0, hi0) and [lo1, hi1) are visible; an empty interval has lo = hi = 0. */
struct cpu_interval2 {
    int32_t lo0, hi0, lo1, hi1;
};

static inline int32_t cpu_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}
static inline int32_t cpu_max(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The keys that query token t of the request sees, within the item's keys [key0, key1). */
static inline struct cpu_interval2 cpu_mask_token(const struct cpu_seq *s, int32_t t, int32_t key0,
                                                  int32_t key1) {
    const struct cpu_mask *m = &s->mask;
    const int64_t q = (int64_t)s->q_offset + t;
    int64_t lo = 0, hi = s->kv_len, prefix = 0;
    if (m->causal && hi > q + 1) hi = q + 1;
    if (m->chunk > 0) {
        /* 2.4 and 2.5: the chunk of q and `lookback` chunks before it. */
        int64_t first = (q / m->chunk - m->lookback) * m->chunk;
        lo = first > 0 ? first : 0;
        if (hi > q + 1) hi = q + 1;
    }
    if (m->window_left >= 0 && q - m->window_left > lo) lo = q - m->window_left;
    if (m->window_right >= 0 && q + m->window_right + 1 < hi) hi = q + m->window_right + 1;
    if (m->prefix > 0 && lo > 0) prefix = m->prefix < hi ? m->prefix : hi;
    /* 2.7: a span that holds q extends the interval that holds q; spans ignore causality. */
    for (int i = 0; i < m->num_spans; i++) {
        int64_t a = m->spans[2 * i], b = m->spans[2 * i + 1];
        if (a >= b || q < a || q > b) continue;
        if (m->span_window > 0 && a < q - m->span_window + 1) a = q - m->span_window + 1;
        lo = a < lo ? a : lo;
        hi = b + 1 > hi ? b + 1 : hi;
    }
    if (hi > s->kv_len) hi = s->kv_len;
    if (prefix > lo) {
        lo = 0;
        prefix = 0;
    }
    struct cpu_interval2 r;
    r.lo0 = (int32_t)(lo > key0 ? lo : key0);
    r.hi0 = (int32_t)(hi < key1 ? hi : key1);
    r.lo1 = key0;
    r.hi1 = (int32_t)(prefix < key1 ? prefix : key1);
    if (r.lo0 >= r.hi0) r.lo0 = r.hi0 = 0;
    if (r.lo1 >= r.hi1) r.lo1 = r.hi1 = 0;
    return r;
}

/* Bounds over several rows: widest and narrowest of each interval. */
struct cpu_mask_bounds {
    int32_t lo_min[2], lo_max[2], hi_min[2], hi_max[2];
};

enum cpu_cover { CPU_COVER_NONE, CPU_COVER_PART, CPU_COVER_FULL };

static inline void cpu_bounds_init(struct cpu_mask_bounds *b) {
    for (int i = 0; i < 2; i++) {
        b->lo_min[i] = b->hi_min[i] = INT32_MAX;
        b->lo_max[i] = b->hi_max[i] = 0;
    }
}

/* An empty interval narrows hi_min to 0 (never "full") and leaves the widest bounds alone. */
static inline void cpu_bounds_add(struct cpu_mask_bounds *b, const struct cpu_interval2 *r) {
    const int32_t lo[2] = {r->lo0, r->lo1}, hi[2] = {r->hi0, r->hi1};
    for (int i = 0; i < 2; i++) {
        b->hi_min[i] = cpu_min(b->hi_min[i], hi[i]);
        b->lo_max[i] = cpu_max(b->lo_max[i], lo[i]);
        if (lo[i] < hi[i]) {
            b->lo_min[i] = cpu_min(b->lo_min[i], lo[i]);
            b->hi_max[i] = cpu_max(b->hi_max[i], hi[i]);
        }
    }
}

static inline void cpu_bounds_join(struct cpu_mask_bounds *b, const struct cpu_mask_bounds *a) {
    for (int i = 0; i < 2; i++) {
        b->hi_min[i] = cpu_min(b->hi_min[i], a->hi_min[i]);
        b->lo_max[i] = cpu_max(b->lo_max[i], a->lo_max[i]);
        b->lo_min[i] = cpu_min(b->lo_min[i], a->lo_min[i]);
        b->hi_max[i] = cpu_max(b->hi_max[i], a->hi_max[i]);
    }
}

/* Does any row see a key of [k0, k1), do all rows see all of them? "Part" when in doubt. */
static inline enum cpu_cover cpu_bounds_cover(const struct cpu_mask_bounds *b, int32_t k0, int32_t k1) {
    int any = 0;
    for (int i = 0; i < 2; i++) {
        if (b->lo_max[i] <= k0 && b->hi_min[i] >= k1) return CPU_COVER_FULL;
        any |= b->lo_min[i] < k1 && b->hi_max[i] > k0;
    }
    return any ? CPU_COVER_PART : CPU_COVER_NONE;
}

/* A key that some row may see, for redirecting the pointers of keys that none may. */
static inline int32_t cpu_bounds_some_key(const struct cpu_mask_bounds *b) {
    return b->hi_max[0] > b->lo_min[0] ? b->lo_min[0] : b->lo_min[1];
}

static inline int cpu_bounds_has(const struct cpu_mask_bounds *b, int32_t k) {
    return (k >= b->lo_min[0] && k < b->hi_max[0]) || (k >= b->lo_min[1] && k < b->hi_max[1]);
}

static inline int32_t cpu_bounds_first(const struct cpu_mask_bounds *b) {
    return cpu_min(b->lo_min[0], b->lo_min[1]);
}

static inline int32_t cpu_bounds_end(const struct cpu_mask_bounds *b) {
    return cpu_max(b->hi_max[0], b->hi_max[1]);
}

#endif
