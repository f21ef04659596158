/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk copies: of boxes of tensors (maps.c), into shared memory of one or more blocks and out of it, and of
 * plain bytes. Into shared memory they are flights (async.c), which end with bytes of an mbarrier. Out of it
 * they are under way until their group is waited for; what they read must be the same then. */
#include "model.h"

static const tensor_map_t *map_at(warp_t *w, const op_t *op, uint64_t address, int lane) {
    const tensor_map_t *m = (const void *)model_at(w, op, SPACE_GENERIC, address, 64, lane);
    if (m == NULL || model_at(w, op, SPACE_GENERIC, address + 64, 64, lane) == NULL) return NULL;
    if (m->magic == TENSOR_MAGIC) return m;
    model_fault(w, op, lane, "no tensor map", address);
    return NULL;
}
/* Into shared memory: the place, map or address[, coordinates][, bytes], the mbarrier[, blocks][, policy].
 * variant: the rank, 0 for plain bytes; plus 8: of several blocks; plus 16: under a cache policy */
static void bulk_load(warp_t *w, const op_t *op, uint32_t mask) {
    const int rank = op->variant & 7, is_multicast = op->variant >> 3 & 1;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        flight_t f = {.kind = rank ? FLIGHT_TENSOR : FLIGHT_BULK, .lane = l, .w = w, .op = op};
        const uint64_t from = lane_value(w, &op->o[1], l);
        uint32_t next = 2;
        if (rank != 0) {
            const tensor_map_t *m = map_at(w, op, from, l);
            if (m == NULL) return;
            f.map = *m, f.bytes = model_box_bytes(m);
            for (int i = 0; i < rank; i++)
                f.at[i] = (int32_t)lane_value(w, &op->o[next++], l);
            if (m->rank != rank) {
                model_fault(w, op, l, "a tensor map of another rank", m->rank);
                return;
            }
        } else {
            f.bytes = (uint32_t)lane_value(w, &op->o[next++], l);
            f.from = model_at(w, op, SPACE_GLOBAL, from, 16, l);
            if (f.from == NULL) return;
            if (f.bytes == 0 || f.bytes % 16 != 0 || !model_memory_has(f.from, f.bytes)) {
                model_fault(w, op, l, "a bulk copy of this size", f.bytes);
                return;
            }
        }
        const uint64_t to = lane_value(w, &op->o[0], l), bar = lane_value(w, &op->o[next], l);
        const uint32_t ctas = is_multicast ? (uint32_t)lane_value(w, &op->o[next + 1], l) : 1;
        if (op->variant & 16 && !model_is_policy(w, op, l)) return;
        for (uint32_t left_ctas = ctas; left_ctas != 0; left_ctas &= left_ctas - 1) {
            const uint64_t rank_of = (uint64_t)(__builtin_ctz(left_ctas) + 1) << CLUSTER_SHIFT;
            place_t place;
            if (model_place(w, op, SPACE_CLUSTER, is_multicast ? to | rank_of : to, rank ? 128 : 16, l,
                            &place) == NULL)
                return;
            f.b = model_barrier(w, op, SPACE_CLUSTER, is_multicast ? bar | rank_of : bar, l);
            if (f.b == NULL) return;
            f.cta = place.cta, f.to = place.at;
            if ((uint64_t)f.to + f.bytes > f.cta->shared_bytes) {
                model_fault(w, op, l, "a box beyond the block's shared memory", f.to);
                return;
            }
            if (!model_races_bulk(w, op, f.cta, f.to, f.bytes, l)) return;
            memset(f.cta->shared + f.to, 0xff, f.bytes);
            f.b->copied = f.b->phase + 1, f.b->copy = op, f.b->copier = w;
            model_flight_add(&f);
        }
    }
}

/* Out of shared memory. */
typedef struct bulk_store {
    const op_t *op;
    tensor_map_t map;
    int32_t at[5];
    uint32_t from, group;
    int lane;
    uint8_t *bytes;
} bulk_store_t;
static int store_read(warp_t *w, const op_t *op, const bulk_store_t *s, uint8_t *bytes) {
    const uint32_t size = model_box_bytes(&s->map);
    for (uint32_t i = 0; i < size; i += 4)
        if (!model_races_engine(w, op, s->from + i, 0)) return 0;
    for (uint32_t i = 0; i < size; i++)
        bytes[i] = w->cta->shared[model_swizzled(&s->map, s->from + i)];
    return 1;
}
static void bulk_store(warp_t *w, const op_t *op, uint32_t mask) {
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const int rank = op->variant;
        bulk_store_t s = {.op = op, .lane = l, .group = w->bulk_groups[l]};
        const tensor_map_t *m = map_at(w, op, lane_value(w, &op->o[0], l), l);
        if (m == NULL) return;
        s.map = *m;
        for (int i = 0; i < rank; i++)
            s.at[i] = (int32_t)lane_value(w, &op->o[1 + i], l);
        s.from = (uint32_t)lane_value(w, &op->o[1 + rank], l);
        if (m->rank != rank || s.from % 128 != 0 || s.from + model_box_bytes(m) > w->cta->shared_bytes) {
            model_fault(w, op, l, "a box that is not in shared memory, or of another rank", s.from);
            return;
        }
        s.bytes = malloc(model_box_bytes(m));
        if (!store_read(w, op, &s, s.bytes)) {
            free(s.bytes);
            return;
        }
        w->stores = realloc(w->stores, (w->num_stores + 1) * sizeof s);
        w->stores[w->num_stores++] = s;
    }
}
static void bulk_commit(warp_t *w, const op_t *op, uint32_t mask) {
    (void)op;
    EACH(w->bulk_groups[l]++);
}
static void bulk_wait(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t newest = (uint32_t)op->o[0].value;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->num_stores; i++) {
        bulk_store_t *s = &w->stores[i];
        const tensor_map_t *m = &s->map;
        if (!IS_SET(mask, s->lane) || s->group >= w->bulk_groups[s->lane] ||
            w->bulk_groups[s->lane] - s->group <= newest) {
            w->stores[kept++] = *s;
            continue;
        }
        uint8_t *now = malloc(model_box_bytes(m));
        if (store_read(w, s->op, s, now) && memcmp(now, s->bytes, model_box_bytes(m)) != 0)
            model_fault(w, s->op, s->lane, "shared memory changed while a bulk copy was reading it", s->from);
        free(now);
        for (uint32_t r = 0; r < model_box_rows(m) && !w->cta->cluster->failed; r++) {
            const box_row_t row = model_box_row(m, s->at, r);
            if (row.end <= row.first) continue;
            uint8_t *to = row.data + row.first * m->bytes;
            const size_t bytes = (size_t)((row.end - row.first) * m->bytes);
            if (model_memory_has(to, bytes))
                memcpy(to, s->bytes + row.at + row.first * m->bytes, bytes);
            else
                model_fault(w, s->op, s->lane, "a box in memory nobody allocated", (uintptr_t)to);
        }
        free(s->bytes);
    }
    w->num_stores = kept;
}
void model_stores_check(warp_t *w) {
    if (w->num_stores != 0)
        model_fault(w, w->stores[0].op, w->stores[0].lane,
                    "the block ends before its bulk copies were waited for", w->stores[0].from);
    for (uint32_t i = 0; i < w->num_stores; i++)
        free(w->stores[i].bytes);
    free(w->stores);
    w->stores = NULL, w->num_stores = 0;
}

#define LOAD(rank)                                                                                           \
    {"cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes", bulk_load, 0,    \
     rank},                                                                                                  \
        {"cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes"               \
         ".multicast::cluster",                                                                              \
         bulk_load, 0, rank + 8},                                                                            \
    {                                                                                                        \
        "cp.async.bulk.tensor." #rank "d.global.shared::cta.bulk_group", bulk_store, 0, rank                 \
    }
#define LOAD_BY(rank)                                                                                        \
    {"cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint",   \
     bulk_load, 0, rank + 16},                                                                               \
    {                                                                                                        \
        "cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes"                \
        ".multicast::cluster.L2::cache_hint",                                                                \
            bulk_load, 0, rank + 24                                                                          \
    }
const op_name_t model_tensor_ops[] = {
    LOAD(1),
    LOAD(2),
    LOAD(3),
    LOAD_BY(3),
    LOAD(4),
    LOAD(5),
    {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", bulk_load, 0, 0},
    {"cp.async.bulk.commit_group", bulk_commit, 0, 0},
    {"cp.async.bulk.wait_group", bulk_wait, 0, 0},
    {"cp.async.bulk.wait_group.read", bulk_wait, 0, 0},
    {"prefetch.tensormap", NULL, OP_NOTHING, 0},
    {NULL, NULL, 0, 0}};
