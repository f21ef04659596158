/* SPDX-License-Identifier: Apache-2.0 */
/* mbarriers, of this block and of others of its cluster, and the barrier of the cluster. What an mbarrier is
 * lies beside shared memory, which has a mark in its place. */
#include "model.h"

static uint64_t mark_of(uint32_t at) {
    return 0x6d62617272696572ull ^ (uint64_t)at << 40;
}
static void barrier_init(warp_t *w, const op_t *op, uint32_t mask) {
    cluster_t *g = w->cta->cluster;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        place_t place;
        if (model_place(w, op, SPACE_SHARED, lane_value(w, &op->o[0], l) + (uint64_t)op->offset, 8, l,
                        &place) == NULL)
            return;
        uint16_t *number = &place.cta->barriers[place.at / 8];
        if (*number == 0) {
            if (g->num_barriers == MOST_BARRIERS) {
                model_fault(w, op, l, "more mbarriers than the model follows", MOST_BARRIERS);
                return;
            }
            mbarrier_t *b = &g->barriers[g->num_barriers++];
            b->slot = g->num_readers + g->num_barriers - 1;
            b->phase = b->copied = 0;
            model_races_forget(g, b->arriving), model_races_forget(g, b->done);
            *number = (uint16_t)g->num_barriers;
        }
        mbarrier_t *b = &g->barriers[*number - 1];
        const uint64_t mark = mark_of(place.at);
        model_races_write(w, op, place.cta, place.at, 8, l, WRITE_PLAIN);
        memcpy(place.p, &mark, 8);
        b->cta = place.cta, b->at = place.at, b->first = b->phase, b->bytes = 0;
        b->wanted = b->left = (uint32_t)lane_value(w, &op->o[1], l);
        b->by = w->slot, b->clock = w->clocks[w->slot];
    }
}
mbarrier_t *model_barrier(warp_t *w, const op_t *op, uint32_t space, uint64_t address, int lane) {
    place_t place;
    if (model_place(w, op, space, address, 8, lane, &place) == NULL) return NULL;
    const uint32_t number = place.cta->barriers[place.at / 8];
    const uint64_t mark = mark_of(place.at);
    if (number == 0 || memcmp(place.p, &mark, 8) != 0) {
        model_fault(w, op, lane, number == 0 ? "what is no mbarrier" : "an mbarrier that was overwritten",
                    place.at);
        return NULL;
    }
    mbarrier_t *b = &w->cta->cluster->barriers[number - 1];
    if (b->by != w->slot && w->clocks[b->by] < b->clock) {
        model_fault(w, op, lane, "an mbarrier whose initialisation nothing orders before this", place.at);
        return NULL;
    }
    return b;
}
static void ends(mbarrier_t *b) {
    if (b->left != 0 || b->bytes != 0) return;
    const cluster_t *g = b->cta->cluster;
    b->phase++, b->left = b->wanted;
    model_races_join(g, b->done, b->arriving);
    model_races_forget(g, b->arriving);
    b->done[b->slot] = b->phase;
}
void model_barrier_bytes(mbarrier_t *b, int64_t bytes) {
    b->bytes += bytes;
    ends(b);
}
void model_barrier_arrive(mbarrier_t *b) {
    b->left--;
    ends(b);
}
/* variant: 1: in the cluster; 2: and more bytes to come */
static void barrier_arrive(warp_t *w, const op_t *op, uint32_t mask) {
    const mbarrier_t *last = NULL;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint64_t address = lane_value(w, &op->o[1], l) + (uint64_t)op->offset;
        mbarrier_t *b = model_barrier(w, op, op->variant & 1 ? SPACE_CLUSTER : SPACE_SHARED, address, l);
        if (b == NULL) return;
        if (b->left == 0) {
            model_fault(w, op, l, "more arrivals than the mbarrier has", address);
            return;
        }
        if (b != last) model_races_give(w, b->arriving);
        last = b;
        if (op->variant & 2) b->bytes += (int64_t)(uint32_t)lane_value(w, &op->o[2], l);
        model_barrier_arrive(b);
    }
}
static void barrier_try(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t *d = REG(uint32_t, 0), done = 0;
    const mbarrier_t *last = NULL;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const mbarrier_t *b =
            model_barrier(w, op, SPACE_SHARED, lane_value(w, &op->o[1], l) + (uint64_t)op->offset, l);
        if (b == NULL) return;
        if (((b->phase - b->first) & 1) == (lane_value(w, &op->o[2], l) & 1)) continue;
        done |= 1u << l;
        if (b != last) model_races_take(w, b->done);
        last = b;
    }
    *d = (*d & ~mask) | done;
    w->yields = done != mask;
}

/* The barrier of the cluster; variant 1: relaxed, which orders nothing. */
void model_lets_cluster_on(cluster_t *g) {
    uint32_t live = 0;
    for (uint32_t c = 0; c < g->num_ctas; c++)
        for (uint32_t i = 0; i < g->ctas[c].num_warps; i++)
            live += g->ctas[c].warps[i].alive != 0;
    if (g->arrived == 0 || g->arrived < live) return;
    g->arrived = 0, g->phase++;
    model_races_join(g, g->done, g->arriving);
    model_races_forget(g, g->arriving);
    for (uint32_t c = 0; c < g->num_ctas; c++)
        for (uint32_t i = 0; i < g->ctas[c].num_warps; i++) {
            warp_t *w = &g->ctas[c].warps[i];
            if (w->waits == NULL || w->waits->kind != OP_CLUSTER) continue;
            w->waits = NULL;
            model_races_take(w, g->done);
        }
}
static void cluster_arrive(warp_t *w, const op_t *op, uint32_t mask) {
    cluster_t *g = w->cta->cluster;
    (void)mask;
    if (w->cluster_phase > g->phase) {
        model_fault(w, op, 0, "arrives twice at the cluster's barrier", g->phase);
        return;
    }
    w->cluster_phase = g->phase + 1;
    if (op->variant != 1) model_races_give(w, g->arriving);
    g->arrived++;
    model_lets_cluster_on(g);
}
static void cluster_wait(warp_t *w, const op_t *op, uint32_t mask) {
    (void)mask;
    if (w->cta->cluster->phase < w->cluster_phase)
        w->waits = op;
    else
        model_races_take(w, w->cta->cluster->done);
}
/* What some warp of a block knew when it ended. */
static uint32_t known(const cta_t *cta, uint32_t slot) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < cta->num_warps; i++)
        if (cta->warps[i].clocks[slot] > most) most = cta->warps[i].clocks[slot];
    return most;
}
void model_ends_check(cluster_t *g) {
    for (uint32_t i = 0; i < g->num_barriers && !g->failed; i++) {
        const mbarrier_t *b = &g->barriers[i];
        if (known(b->cta, b->slot) < b->copied)
            model_fault(b->copier, b->copy, 0, "no thread waits for this copy before its block ends", b->at);
    }
    for (uint32_t c = 0; c < g->num_ctas && !g->failed; c++)
        for (uint32_t i = 0; i < g->num_warps; i++) {
            const struct remote *r = &g->ctas[c].remote[i];
            if (known(&g->ctas[c], i) < r->clock)
                model_fault(&g->ctas[i / g->ctas[0].num_warps].warps[i % g->ctas[0].num_warps], r->op, 0,
                            "shared memory of a block that may have ended", c);
        }
}
/* Where the same place of another block's shared memory is; variant: as a generic address. Of a rank that the
 * cluster has not, an address that nobody may use: compilers ask before they know that they need it. */
static void mapa(warp_t *w, const op_t *op, uint32_t mask) {
    const cluster_t *g = w->cta->cluster;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint64_t a = lane_value(w, &op->o[1], l), asked = (uint32_t)lane_value(w, &op->o[2], l);
        const uint64_t rank = asked < g->num_ctas ? asked : g->num_ctas;
        const uint64_t there = asked < g->num_ctas ? (uint64_t)(uintptr_t)g->ctas[rank].shared : 1ull << 62;
        lane_set(w, &op->o[0], l,
                 op->variant ? a - (uint64_t)(uintptr_t)w->cta->shared + there
                             : (uint32_t)a | (rank + 1) << CLUSTER_SHIFT);
    }
}

const op_name_t model_barrier_ops[] = {{"mbarrier.init.shared::cta.b64", barrier_init, 0, 0},
                                       {"mbarrier.arrive.shared::cta.b64", barrier_arrive, 0, 0},
                                       {"mbarrier.arrive.shared::cluster.b64", barrier_arrive, 0, 1},
                                       {"mbarrier.arrive.expect_tx.shared::cta.b64", barrier_arrive, 0, 2},
                                       {"mbarrier.try_wait.parity.shared::cta.b64", barrier_try, OP_TRY, 0},
                                       {"barrier.cluster.arrive", cluster_arrive, OP_WARP, 0},
                                       {"barrier.cluster.arrive.aligned", cluster_arrive, OP_WARP, 0},
                                       {"barrier.cluster.arrive.relaxed.aligned", cluster_arrive, OP_WARP, 1},
                                       {"barrier.cluster.wait", cluster_wait, OP_CLUSTER, 0},
                                       {"barrier.cluster.wait.aligned", cluster_wait, OP_CLUSTER, 0},
                                       {"mapa.shared::cluster.u32", mapa, 0, 0},
                                       {"mapa.u64", mapa, 0, 1},
                                       {"bar.sync", NULL, OP_BARRIER, 0},
                                       {"barrier.sync", NULL, OP_BARRIER, 0},
                                       {"bar.red.or.pred", NULL, OP_BARRIER, 1},
                                       {"barrier.cta.red.or.pred", NULL, OP_BARRIER, 1},
                                       {"bar.red.and.pred", NULL, OP_BARRIER, 2},
                                       {"bar.arrive", NULL, OP_BARRIER, 3},
                                       {NULL, NULL, 0, 0}};
