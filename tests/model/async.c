/* SPDX-License-Identifier: Apache-2.0 */
/* Copies beside the warps. A cp.async fills its destination with NaN when it is issued and with its bytes
 * when its group is waited for; by the seed it reads its source at one time or the other. Copies that an
 * mbarrier tells of, and bulk copies (tensors.c), arrive some turns later, by the seed. */
#include "model.h"

/* What createpolicy makes; a copy takes nothing else for a policy. */
static const uint64_t cache_policy = UINT64_C(0x7b1c3d5e9f204681);
static void make_policy(warp_t *w, const op_t *op, uint32_t mask) {
    EACH(lane_set(w, &op->o[0], l, cache_policy));
}
int model_is_policy(warp_t *w, const op_t *op, int lane) {
    const uint64_t policy = lane_value(w, &op->o[op->num - 1], lane);
    if (policy != cache_policy)
        model_fault(w, op, lane, "a cache policy that createpolicy has not made", policy);
    return policy == cache_policy;
}

/* op->variant: 1: the last operand is a policy. */
static void copy_issue(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t bytes = (uint32_t)op->o[2].value, has_size = op->num - (uint32_t)op->variant > 3;
    const int early = (int)(model_random(&w->cta->cluster->random) & 1);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint32_t to = (uint32_t)(lane_value(w, &op->o[0], l) + (uint64_t)op->offset);
        const uint32_t size = has_size ? (uint32_t)lane_value(w, &op->o[3], l) : bytes;
        const uint64_t from = lane_value(w, &op->o[1], l);
        uint8_t *dst = model_at(w, op, SPACE_SHARED, to, bytes, l);
        if (dst == NULL) return;
        if (op->variant && !model_is_policy(w, op, l)) return;
        if (size > bytes) {
            model_fault(w, op, l, "more bytes than the copy has", size);
            return;
        }
        const uint8_t *src =
            size > 0 ? model_at(w, op, SPACE_GLOBAL, from, size == bytes ? bytes : 1, l) : NULL;
        if (size > 0 && src == NULL) return;
        if (w->num_copies == w->room_copies) {
            w->room_copies = w->room_copies ? 2 * w->room_copies : 256;
            w->copies = realloc(w->copies, w->room_copies * sizeof *w->copies);
        }
        copy_t *c = &w->copies[w->num_copies++];
        *c = (copy_t){.to = to, .lane = (uint8_t)l, .bytes = (uint8_t)bytes, .group = w->groups[l]};
        if (size > 0 && (early || size < bytes))
            memcpy(c->data, src, size);
        else if (size > 0)
            c->from = src;
        model_races_write(w, op, w->cta, to, bytes, l, WRITE_STARTS);
        memset(dst, 0xff, bytes);
    }
}
static void copies_arrive(warp_t *w, const op_t *op, uint32_t mask, uint32_t newest) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->num_copies; i++) {
        copy_t *c = &w->copies[i];
        const uint32_t groups = w->groups[c->lane];
        if (IS_SET(mask, c->lane) && (newest == ~0u || (c->group < groups && groups - c->group > newest))) {
            model_races_write(w, op, w->cta, c->to, c->bytes, c->lane, WRITE_ARRIVES);
            memcpy(w->cta->shared + c->to, c->from != NULL ? c->from : c->data, c->bytes);
        } else
            w->copies[kept++] = *c;
    }
    w->num_copies = kept;
}
static void copy_commit(warp_t *w, const op_t *op, uint32_t mask) {
    (void)op;
    EACH(w->groups[l]++);
}
static void copy_wait(warp_t *w, const op_t *op, uint32_t mask) {
    copies_arrive(w, op, mask, (uint32_t)op->o[0].value);
}
static void copy_wait_all(warp_t *w, const op_t *op, uint32_t mask) {
    copies_arrive(w, op, mask, ~0u);
}

/* Flights: copies whose arrival nobody asks for by a group. */
enum { LATEST = 6 };
void model_flight_add(const flight_t *f) {
    cluster_t *g = f->w->cta->cluster;
    if (g->num_flights == g->room_flights) {
        g->room_flights = g->room_flights ? 2 * g->room_flights : 64;
        g->flights = realloc(g->flights, g->room_flights * sizeof *g->flights);
    }
    flight_t *x = &g->flights[g->num_flights++];
    *x = *f;
    x->delay = (uint32_t)(model_random(&g->random) % (LATEST + 1));
}
/* The copies of a thread arrive in order. */
static int is_behind(const cluster_t *g, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (g->flights[j].kind == FLIGHT_ARRIVAL && g->flights[j].w == g->flights[i].w) return 1;
    return 0;
}
static void arrives(flight_t *f) {
    if (f->kind != FLIGHT_ARRIVAL) {
        model_tensor_arrives(f);
        model_races_landed(f->cta, f->to, f->bytes, f->b, 1);
        model_barrier_bytes(f->b, -(int64_t)f->bytes);
        return;
    }
    for (uint32_t i = 0; i < f->num_copies; i++) {
        const copy_t *c = &f->copies[i];
        memcpy(f->cta->shared + c->to, c->from != NULL ? c->from : c->data, c->bytes);
        model_races_landed(f->cta, c->to, c->bytes, f->b, 0);
    }
    for (uint32_t i = 0; i < f->bytes; i++) { /* threads */
        if (f->b->left == 0) {
            model_fault(f->w, f->op, f->lane, "more arrivals than the mbarrier has", f->b->at);
            break;
        }
        model_barrier_arrive(f->b);
    }
    free(f->copies);
}
int model_flights_run(cluster_t *g, int force) {
    int any = 0;
    for (uint32_t i = 0; i < g->num_flights && !g->failed;) {
        flight_t f = g->flights[i];
        if (f.delay > 0 && !(force && !any)) {
            g->flights[i++].delay--;
            continue;
        }
        if (f.kind == FLIGHT_ARRIVAL && is_behind(g, i)) {
            i++;
            continue;
        }
        memmove(&g->flights[i], &g->flights[i + 1], (--g->num_flights - i) * sizeof f);
        arrives(&f);
        any = 1;
    }
    return any;
}
/* cp.async.mbarrier.arrive: a thread arrives when all of its copies have. */
static void copy_tell(warp_t *w, const op_t *op, uint32_t mask) {
    for (uint32_t left = mask, same; left != 0; left &= ~same) {
        const int first = __builtin_ctz(left);
        mbarrier_t *b =
            model_barrier(w, op, SPACE_SHARED, lane_value(w, &op->o[0], first) + (uint64_t)op->offset, first);
        if (b == NULL) return;
        same = 0;
        for (uint32_t rest = left; rest != 0; rest &= rest - 1) {
            const int l = __builtin_ctz(rest);
            if ((uint32_t)lane_value(w, &op->o[0], l) + (uint32_t)op->offset == b->at) same |= 1u << l;
        }
        flight_t f = {.kind = FLIGHT_ARRIVAL, .lane = first, .w = w, .op = op, .cta = w->cta, .b = b};
        f.bytes = (uint32_t)__builtin_popcount(same);
        f.copies = malloc((w->num_copies + 1) * sizeof *f.copies);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < w->num_copies; i++)
            if (IS_SET(same, w->copies[i].lane))
                f.copies[f.num_copies++] = w->copies[i];
            else
                w->copies[kept++] = w->copies[i];
        w->num_copies = kept;
        model_flight_add(&f);
    }
}

const op_name_t model_async_ops[] = {{"cp.async.cg.shared.global", copy_issue, 0, 0},
                                     {"cp.async.cg.shared.global.L2::128B", copy_issue, 0, 0},
                                     {"cp.async.cg.shared.global.L2::256B", copy_issue, 0, 0},
                                     {"cp.async.cg.shared.global.L2::cache_hint.L2::128B", copy_issue, 0, 1},
                                     {"createpolicy.fractional.L2::evict_first.b64", make_policy, 0, 0},
                                     {"cp.async.ca.shared.global", copy_issue, 0, 0},
                                     {"cp.async.commit_group", copy_commit, 0, 0},
                                     {"cp.async.wait_group", copy_wait, 0, 0},
                                     {"cp.async.wait_all", copy_wait_all, 0, 0},
                                     {"cp.async.mbarrier.arrive.noinc.shared::cta.b64", copy_tell, 0, 0},
                                     {NULL, NULL, 0, 0}};
