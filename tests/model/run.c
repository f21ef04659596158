/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks and warps. Of a warp, the lanes with the lowest address run, until they come to others; an op
 * that the whole warp takes part in holds lanes until all are there. The warps of a block take turns at
 * random times; blocks run one after another in an order of the seed. */
#include "model.h"

/* Ops of a warp at a time; tries of a block in a row that fail; times that its warps run. */
enum { TURN = 3000, PATIENCE = 20000, MOST_TURNS = 400000 };

uint64_t model_random(uint64_t *state) { /* xorshift64* (Vigna, 2016) */
    uint64_t x = *state;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    *state = x;
    return x * 2685821657736338717ull >> 20;
}

void model_fault(warp_t *w, const op_t *op, int lane, const char *what, uint64_t address) {
    if (w->cta->failed) return;
    w->cta->failed = 1;
    const uint32_t *block = w->cta->block;
    fprintf(stderr, "model: %s, block (%u, %u, %u), thread %u: %s (0x%llx) at\n    %s\n", w->kernel->name,
            block[0], block[1], block[2], w->index * LANES + (uint32_t)lane, what,
            (unsigned long long)address, op->text);
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
        if (op == NULL || barrier_number(w, op) != b) continue;
        if (op->variant == 1 || op->variant == 2) {
            uint32_t *d = w->regs + op->o[0].at;
            const uint32_t yes = op->variant == 1 ? cta->any[b] : cta->every[b];
            *d = (*d & ~w->here) | (yes ? w->here : 0);
        }
        w->waits = NULL;
        model_races_take(w, b);
    }
    model_races_forget(cta, b);
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
    model_races_give(w, b);
    if (op->variant != 3) w->waits = op;
    barrier_check(cta, b);
}

/* Runs up to `turn` ops; stops at a barrier, at a try that failed, at the end. */
static void run_warp(warp_t *w, uint32_t turn) {
    const op_t *const ops = w->kernel->ops;
    const uint32_t num_ops = w->kernel->num_ops;
    w->yields = 0;
    if (!choose(w)) return;
    while (turn-- > 0 && !w->cta->failed) {
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
                w->pc = op->target;
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
    }
    keep_pcs(w);
    if (w->alive == 0)
        for (uint32_t b = 0; b < 16; b++)
            barrier_check(w->cta, b);
}

static void fill(warp_t *w, uint32_t at, uint32_t x) {
    if (at == 0) return;
    for (int l = 0; l < LANES; l++)
        w->regs[at + (uint32_t)l] = x;
}
static void start_warp(warp_t *w, const kernel_t *k, cta_t *cta, uint32_t index, const uint32_t block[3],
                       const uint32_t grid[3]) {
    uint32_t *const regs = w->regs;
    copy_t *const copies = w->copies;
    const uint32_t room = w->room_copies;
    uint32_t *const in_flight = w->in_flight;
    memset(w, 0, sizeof *w);
    *w = (warp_t){.regs = regs,
                  .copies = copies,
                  .room_copies = room,
                  .in_flight = in_flight,
                  .cta = cta,
                  .kernel = k,
                  .index = index,
                  .turn = 1};
    w->clocks[index] = 1;
    memset(in_flight, 0, (k->num_words / 16 + 1) * sizeof *in_flight);
    memcpy(regs, k->first_words, k->num_words * sizeof *regs);
    for (int l = 0; l < LANES; l++) {
        const uint32_t t = index * LANES + (uint32_t)l;
        const uint32_t place[3] = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
        if (t < cta->num_threads) w->alive |= 1u << l;
        for (int i = 0; i < 3; i++)
            if (k->tid[i] != 0) regs[k->tid[i] + (uint32_t)l] = place[i];
        if (k->lane != 0) regs[k->lane + (uint32_t)l] = (uint32_t)l;
    }
    for (int i = 0; i < 3; i++)
        fill(w, k->ntid[i], block[i]), fill(w, k->ctaid[i], cta->block[i]), fill(w, k->nctaid[i], grid[i]);
    for (uint32_t i = 0; i < k->num_params; i++)
        for (int l = 0; l < LANES; l++)
            ((uint64_t *)(regs + k->param_words[i]))[l] = (uint64_t)(uintptr_t)(cta->params + k->param_at[i]);
}

static void run_block(cta_t *cta) {
    uint32_t idle = 0, turns = 0;
    while (!cta->failed && idle < PATIENCE && turns++ < MOST_TURNS) {
        uint32_t ready[64], num_ready = 0, num_alive = 0;
        for (uint32_t i = 0; i < cta->num_warps; i++) {
            num_alive += cta->warps[i].alive != 0;
            if (cta->warps[i].alive != 0 && cta->warps[i].waits == NULL) ready[num_ready++] = i;
        }
        if (num_alive == 0) return;
        if (num_ready == 0) {
            for (uint32_t i = 0; i < cta->num_warps; i++)
                if (cta->warps[i].waits != NULL)
                    model_fault(&cta->warps[i], cta->warps[i].waits, 0, "nobody else comes to this barrier",
                                0);
            return;
        }
        warp_t *w = &cta->warps[ready[model_random(&cta->random) % num_ready]];
        run_warp(w, 1 + (uint32_t)(model_random(&cta->random) % TURN));
        idle = w->yields ? idle + 1 : 0;
    }
    if (!cta->failed) {
        cta->failed = 1;
        fprintf(stderr, "model: %s, block (%u, %u, %u) does not end\n", cta->warps[0].kernel->name,
                cta->block[0], cta->block[1], cta->block[2]);
    }
}

int model_launch(const kernel_t *k, const uint32_t grid[3], const uint32_t block[3], uint32_t dynamic_bytes,
                 const uint8_t *params) {
    static uint64_t launches;
    const char *seed = getenv("ATTN_MODEL_SEED");
    cta_t cta = {
        .shared_bytes = k->shared_bytes + dynamic_bytes, .params = params, .param_bytes = k->param_bytes};
    cta.num_threads = block[0] * block[1] * block[2];
    cta.num_warps = (cta.num_threads + LANES - 1) / LANES;
    if (cta.num_warps == 0 || cta.num_warps > 32) return -1;
    cta.random = (seed != NULL ? strtoull(seed, NULL, 0) : 1) * 0x9e3779b97f4a7c15ull + ++launches * 2 + 1;
    cta.shared = aligned_alloc(1024, (cta.shared_bytes + 1023) / 1024 * 1024 + 1024);
    cta.warps = calloc(cta.num_warps, sizeof *cta.warps);
    for (uint32_t i = 0; i < cta.num_warps; i++) {
        cta.warps[i].regs = aligned_alloc(64, k->num_words * sizeof(uint32_t));
        cta.warps[i].in_flight = malloc((k->num_words / 16 + 1) * sizeof(uint32_t));
    }
    const uint64_t count = (uint64_t)grid[0] * grid[1] * grid[2];
    const uint64_t first = model_random(&cta.random) % (count ? count : 1);
    const int backwards = (int)(model_random(&cta.random) & 1);
    for (uint64_t i = 0; i < count && !cta.failed; i++) {
        const uint64_t n = backwards ? (first + count - i) % count : (first + i) % count;
        cta.block[0] = (uint32_t)(n % grid[0]), cta.block[1] = (uint32_t)(n / grid[0] % grid[1]);
        cta.block[2] = (uint32_t)(n / grid[0] / grid[1]);
        model_races_start(&cta);
        memset(cta.shared, 0xff, cta.shared_bytes);
        memset(cta.arrived, 0, sizeof cta.arrived), memset(cta.wanted, 0, sizeof cta.wanted);
        memset(cta.any, 0, sizeof cta.any);
        for (int b = 0; b < 16; b++)
            cta.every[b] = 1;
        for (uint32_t j = 0; j < cta.num_warps; j++)
            start_warp(&cta.warps[j], k, &cta, j, block, grid);
        run_block(&cta);
    }
    for (uint32_t i = 0; i < cta.num_warps; i++)
        free(cta.warps[i].regs), free(cta.warps[i].copies), free(cta.warps[i].in_flight);
    model_races_end(&cta);
    free(cta.warps), free(cta.shared);
    return cta.failed ? -1 : 0;
}
