/* SPDX-License-Identifier: Apache-2.0 */
/* Warps and barriers of a block. Of a warp, the lanes with the lowest address run, until they come to others;
 * an op that the whole warp takes part in holds lanes until all are there. */
#include "model.h"

uint64_t model_random(uint64_t *state) { /* xorshift64* (Vigna, 2016) */
    uint64_t x = *state;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    *state = x;
    return x * 2685821657736338717ull >> 20;
}

void model_fault(warp_t *w, const op_t *op, int lane, const char *what, uint64_t address) {
    if (w->cta->cluster->failed) return;
    w->cta->cluster->failed = 1;
    const uint32_t *block = w->cta->block;
    fprintf(stderr, "model: %s (0x%llx), thread %u of block (%u, %u, %u) of %s, at\n    %s\n", what,
            (unsigned long long)address, w->index * LANES + (uint32_t)lane, block[0], block[1], block[2],
            w->kernel->name, op->text);
}

/* The lanes that run next; 0 where none can. */
static int choose(warp_t *w) {
    uint32_t lowest = ~0u, here = 0, merge = ~0u;
    for (uint32_t left = w->alive & ~w->held; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        if (w->pcs[l] < lowest) lowest = w->pcs[l];
    }
    if (lowest == ~0u) return 0;
    for (uint32_t left = w->alive; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        if (w->pcs[l] == lowest)
            here |= 1u << l;
        else if (w->pcs[l] > lowest && w->pcs[l] < merge)
            merge = w->pcs[l];
    }
    w->held &= ~here;
    w->here = here, w->pc = lowest, w->merge = merge;
    return 1;
}
static void keep_pcs(warp_t *w) {
    for (uint32_t left = w->here; left != 0; left &= left - 1)
        w->pcs[__builtin_ctz(left)] = w->pc;
}

/* The lanes that have to be there. */
static uint32_t members(const warp_t *w, const op_t *op) {
    if (op->kind != OP_MEMBERS) return w->alive;
    return (uint32_t)lane_value(w, &op->o[op->num - 1], __builtin_ctz(w->here)) & w->alive;
}

static uint32_t barrier_number(const warp_t *w, const op_t *op) {
    return (uint32_t)lane_value(w, &op->o[op->variant == 1 || op->variant == 2], __builtin_ctz(w->here)) & 15;
}
/* Lets everybody on who stands at barrier b, if all are there. */
static void barrier_check(cta_t *cta, uint32_t b) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < cta->num_warps; i++)
        live += cta->warps[i].alive != 0;
    const uint32_t wanted = cta->wanted[b] ? cta->wanted[b] : live * LANES;
    if (cta->arrived[b] == 0 || cta->arrived[b] < wanted) return;
    for (uint32_t i = 0; i < cta->num_warps; i++) {
        warp_t *w = &cta->warps[i];
        const op_t *op = w->waits;
        if (op == NULL || op->kind != OP_BARRIER || barrier_number(w, op) != b) continue;
        if (op->variant == 1 || op->variant == 2) {
            uint32_t *d = w->regs + op->o[0].at;
            const uint32_t yes = op->variant == 1 ? cta->any[b] : cta->every[b];
            *d = (*d & ~w->here) | (yes ? w->here : 0);
        }
        w->waits = NULL;
        model_races_take(w, cta->carried[b]);
    }
    model_races_forget(cta->cluster, cta->carried[b]);
    cta->arrived[b] = cta->wanted[b] = cta->any[b] = 0;
    cta->every[b] = 1;
}
static void barrier_enter(warp_t *w, const op_t *op) {
    cta_t *cta = w->cta;
    const uint32_t b = barrier_number(w, op), is_red = op->variant == 1 || op->variant == 2;
    const uint32_t has_count = is_red ? op->num == 4 : op->num == 2;
    const uint32_t wanted =
        has_count ? (uint32_t)lane_value(w, &op->o[1 + is_red], __builtin_ctz(w->here)) : 0;
    if (cta->arrived[b] != 0 && cta->wanted[b] != wanted) {
        model_fault(w, op, 0, "a barrier of another number of threads", wanted);
        return;
    }
    if (is_red) {
        const operand_t *o = &op->o[op->num - 1];
        const uint32_t p = (w->regs[o->at] ^ (o->negate ? ~0u : 0)) & w->here;
        cta->any[b] |= p != 0;
        cta->every[b] &= p == w->here;
    }
    cta->wanted[b] = wanted;
    cta->arrived[b] += LANES;
    model_races_give(w, cta->carried[b]);
    if (op->variant != 3) w->waits = op;
    barrier_check(cta, b);
}

/* Runs up to `turn` ops; stops at a barrier, at a try that failed, at the end. */
void model_run_warp(warp_t *w, uint32_t turn) {
    const op_t *const ops = w->kernel->ops;
    const uint32_t num_ops = w->kernel->num_ops;
    w->yields = 0;
    if (!choose(w)) return;
    while (turn-- > 0 && !w->cta->cluster->failed) {
        if (w->pc >= w->merge) {
            keep_pcs(w);
            if (!choose(w)) break;
        }
        if (w->pc >= num_ops) { /* the end of the text */
            w->alive &= ~w->here;
            if (!choose(w)) break;
            continue;
        }
        const op_t *op = &ops[w->pc];
        uint32_t mask = w->here;
        if (op->guard != 0) mask &= w->regs[op->guard] ^ (op->guard_not ? ~0u : 0u);
        if (op->kind == OP_PLAIN) {
            if (mask != 0 && w->num_products > 0) model_accumulators(w, op);
            if (mask != 0) op->run(w, op, mask);
            w->pc++;
            continue;
        }
        if (mask == 0 || op->kind == OP_NOTHING) {
            w->pc++;
            continue;
        }
        if (op->kind == OP_BRANCH) {
            if (mask == w->here) {
                const int is_back = op->target <= w->pc;
                w->pc = op->target;
                if (is_back) keep_pcs(w), choose(w); /* others may wait further down by now */
            } else {
                w->pc++;
                keep_pcs(w);
                for (uint32_t left = mask; left != 0; left &= left - 1)
                    w->pcs[__builtin_ctz(left)] = op->target;
                choose(w);
            }
            continue;
        }
        if (op->kind == OP_EXIT) {
            w->alive &= ~mask;
            w->here &= ~mask;
            w->pc++;
            keep_pcs(w);
            if (!choose(w)) break;
            continue;
        }
        if (op->kind == OP_TRY) {
            op->run(w, op, mask);
            w->pc++;
            if (w->yields) break;
            continue;
        }
        const uint32_t all = members(w, op);
        if ((w->here & all) != all) { /* the others have to come first */
            keep_pcs(w);
            w->held |= w->here;
            if (!choose(w)) {
                model_fault(w, op, __builtin_ctz(w->here), "lanes of a warp wait for each other", w->here);
                break;
            }
            continue;
        }
        w->pc++;
        if (op->kind == OP_BARRIER) {
            barrier_enter(w, op);
            if (w->waits != NULL) break;
        } else
            op->run(w, op, mask);
        if (w->yields || (op->kind == OP_CLUSTER && w->waits != NULL)) break;
    }
    keep_pcs(w);
    if (w->alive == 0) model_lets_cluster_on(w->cta->cluster);
    if (w->alive == 0)
        for (uint32_t b = 0; b < 16; b++)
            barrier_check(w->cta, b);
}
