/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: the blocks of a cluster are made, begin and take turns, one cluster, which is one block as a
 * rule, after another, in an order of the seed. */
#include "model.h"

/* Ops of a warp at a time; tries in a row that fail, and turns of warps, for each block. */
enum { TURN = 3000, PATIENCE = 20000, MOST_TURNS = 400000 };

static void fill(warp_t *w, uint32_t at, uint32_t x) {
    if (at == 0) return;
    for (int l = 0; l < LANES; l++)
        w->regs[at + (uint32_t)l] = x;
}
static void start_warp(warp_t *w, const kernel_t *k, cta_t *cta, uint32_t index, const uint32_t block[3],
                       const uint32_t grid[3], const uint32_t cluster[3]) {
    uint32_t *const regs = w->regs;
    const warp_t kept = *w;
    memset(w, 0, sizeof *w);
    *w = (warp_t){.regs = regs,
                  .copies = kept.copies,
                  .room_copies = kept.room_copies,
                  .in_flight = kept.in_flight,
                  .local = kept.local,
                  .cta = cta,
                  .kernel = k,
                  .index = index,
                  .slot = cta->rank * cta->num_warps + index,
                  .turn = 1};
    memset(w->in_flight, 0, (k->num_words / 16 + 1) * sizeof *w->in_flight);
    memcpy(regs, k->first_words, k->num_words * sizeof *regs);
    if (w->local != NULL) memset(w->local, 0xff, (size_t)LANES * k->local_bytes);
    for (int l = 0; l < LANES; l++) {
        const uint32_t t = index * LANES + (uint32_t)l;
        const uint32_t place[3] = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
        if (t < cta->num_threads) w->alive |= 1u << l;
        for (int i = 0; i < 3; i++)
            if (k->tid[i] != 0) regs[k->tid[i] + (uint32_t)l] = place[i];
        if (k->lane != 0) regs[k->lane + (uint32_t)l] = (uint32_t)l;
    }
    for (int i = 0; i < 3; i++) {
        fill(w, k->ntid[i], block[i]), fill(w, k->ctaid[i], cta->block[i]), fill(w, k->nctaid[i], grid[i]);
        fill(w, k->cluster[i], cluster[i]);
    }
    fill(w, k->rank, cta->rank), fill(w, k->num_ranks, cta->cluster->num_ctas);
    for (uint32_t i = 0; i < k->num_params; i++)
        for (int l = 0; l < LANES; l++)
            ((uint64_t *)(regs + k->param_words[i]))[l] = (uint64_t)(uintptr_t)(cta->params + k->param_at[i]);
}
static void start_block(const kernel_t *k, cta_t *cta, const uint32_t block[3], const uint32_t grid[3],
                        const uint32_t cluster[3]) {
    memset(cta->shared, 0xff, cta->shared_bytes);
    memset(cta->barriers, 0, (cta->shared_bytes / 8 + 1) * sizeof *cta->barriers);
    memset(cta->remote, 0, cta->cluster->num_warps * sizeof *cta->remote);
    memset(cta->arrived, 0, sizeof cta->arrived), memset(cta->wanted, 0, sizeof cta->wanted);
    memset(cta->any, 0, sizeof cta->any);
    for (int b = 0; b < 16; b++)
        cta->every[b] = 1;
    for (uint32_t j = 0; j < cta->num_warps; j++)
        start_warp(&cta->warps[j], k, cta, j, block, grid, cluster);
}

static void run_cluster(cluster_t *g) {
    static uint64_t time;
    const uint64_t most = (uint64_t)MOST_TURNS * g->num_ctas;
    uint64_t turns = 0;
    uint32_t idle = 0;
    while (!g->failed && idle < PATIENCE * g->num_ctas && turns++ < most) {
        warp_t *ready[1024], *stuck = NULL;
        uint32_t num_ready = 0;
        for (uint32_t i = 0; i < g->num_warps; i++) {
            cta_t *cta = &g->ctas[i / g->ctas[0].num_warps];
            warp_t *w = &cta->warps[i % cta->num_warps];
            if (w->alive == 0) continue;
            if (w->waits == NULL)
                ready[num_ready++] = w;
            else
                stuck = w;
        }
        model_flights_run(g, num_ready == 0 || idle > 2 * g->num_warps);
        if (num_ready == 0 && stuck == NULL) {
            if (g->num_flights != 0 && !g->failed) {
                const flight_t *f = &g->flights[0];
                model_fault(f->w, f->op, f->lane, "the block ends before its copies have arrived", f->to);
            }
            return;
        }
        if (num_ready == 0) {
            if (stuck->waits != NULL)
                model_fault(stuck, stuck->waits, 0, "nobody else comes to this barrier", 0);
            return;
        }
        warp_t *w = ready[model_random(&g->random) % num_ready];
        if (w->kernel->timer != 0)
            for (int l = 0; l < LANES; l++)
                ((uint64_t *)(w->regs + w->kernel->timer))[l] = time;
        time += 1000;
        model_run_warp(w, 1 + (uint32_t)(model_random(&g->random) % TURN));
        idle = w->yields ? idle + 1 : 0;
    }
    if (g->failed) return;
    g->failed = 1;
    fprintf(stderr, "model: block (%u, %u, %u) of %s does not end:\n", g->ctas[0].block[0],
            g->ctas[0].block[1], g->ctas[0].block[2], g->ctas[0].warps[0].kernel->name);
    for (uint32_t i = 0; i < g->num_warps; i++) {
        const warp_t *w = &g->ctas[i / g->ctas[0].num_warps].warps[i % g->ctas[0].num_warps];
        if (w->alive == 0) continue;
        const uint32_t pc = w->pcs[__builtin_ctz(w->alive)];
        fprintf(stderr, "    warp %u of block %u at %.100s\n", w->index, w->cta->rank,
                pc < w->kernel->num_ops ? w->kernel->ops[pc].text : "its end");
    }
}

static void make_cluster(cluster_t *g, const kernel_t *k, const uint32_t block[3], uint32_t dynamic_bytes,
                         const uint8_t *params) {
    for (uint32_t c = 0; c < g->num_ctas; c++) {
        cta_t *cta = &g->ctas[c];
        *cta = (cta_t){.shared_bytes = k->shared_bytes + dynamic_bytes,
                       .params = params,
                       .param_bytes = k->param_bytes,
                       .rank = c,
                       .cluster = g};
        cta->num_threads = block[0] * block[1] * block[2];
        cta->num_warps = (cta->num_threads + LANES - 1) / LANES;
        cta->shared = aligned_alloc(1024, (cta->shared_bytes + 1023) / 1024 * 1024 + 1024);
        cta->barriers = malloc((cta->shared_bytes / 8 + 1) * sizeof *cta->barriers);
        cta->warps = calloc(cta->num_warps, sizeof *cta->warps);
        cta->remote = malloc(g->num_ctas * cta->num_warps * sizeof *cta->remote);
        for (uint32_t i = 0; i < cta->num_warps; i++) {
            cta->warps[i].regs = aligned_alloc(64, k->num_words * sizeof(uint32_t));
            cta->warps[i].in_flight = malloc((k->num_words / 16 + 1) * sizeof(uint32_t));
            if (k->local_bytes != 0) cta->warps[i].local = aligned_alloc(64, (size_t)LANES * k->local_bytes);
        }
        g->num_warps += cta->num_warps;
        g->num_readers += cta->num_warps + (cta->num_warps + 3) / 4;
    }
}
static void free_cluster(cluster_t *g) {
    for (uint32_t i = 0; i < g->num_flights; i++)
        if (g->flights[i].kind == FLIGHT_ARRIVAL) free(g->flights[i].copies);
    for (uint32_t c = 0; c < g->num_ctas; c++) {
        cta_t *cta = &g->ctas[c];
        for (uint32_t i = 0; i < cta->num_warps; i++) {
            const warp_t *w = &cta->warps[i];
            free(w->regs), free(w->copies), free(w->in_flight), free(w->local);
        }
        free(cta->warps), free(cta->shared), free(cta->barriers), free(cta->remote);
    }
    model_races_end(g);
    free(g->ctas), free(g->flights), free(g);
}

int model_launch(const kernel_t *k, const uint32_t grid[3], const uint32_t block[3],
                 const uint32_t cluster[3], uint32_t dynamic_bytes, const uint8_t *params) {
    static uint64_t launches;
    const char *seed = getenv("ATTN_MODEL_SEED");
    const uint32_t num_warps = (block[0] * block[1] * block[2] + LANES - 1) / LANES;
    uint64_t count = 1;
    if (num_warps == 0 || num_warps > 32) return -1;
    if (getenv("ATTN_MODEL_LAUNCHES") != NULL)
        fprintf(stderr, "model: (%u, %u, %u) blocks of (%u, %u, %u) threads: %s\n", grid[0], grid[1], grid[2],
                block[0], block[1], block[2], k->name);
    for (int i = 0; i < 3; i++) {
        if (cluster[i] == 0 || grid[i] % cluster[i] != 0) return -1;
        count *= grid[i] / cluster[i];
    }
    cluster_t *g = calloc(1, sizeof *g);
    g->num_ctas = cluster[0] * cluster[1] * cluster[2];
    g->ctas = calloc(g->num_ctas, sizeof *g->ctas);
    g->random = (seed != NULL ? strtoull(seed, NULL, 0) : 1) * 0x9e3779b97f4a7c15ull + ++launches * 2 + 1;
    make_cluster(g, k, block, dynamic_bytes, params);
    const uint64_t first = model_random(&g->random) % (count ? count : 1);
    const int backwards = (int)(model_random(&g->random) & 1);
    for (uint64_t i = 0; i < count && !g->failed; i++) {
        const uint64_t n = backwards ? (first + count - i) % count : (first + i) % count;
        const uint64_t nx = grid[0] / cluster[0], ny = grid[1] / cluster[1];
        const uint32_t base[3] = {(uint32_t)(n % nx) * cluster[0], (uint32_t)(n / nx % ny) * cluster[1],
                                  (uint32_t)(n / nx / ny) * cluster[2]};
        g->arrived = g->phase = 0;
        for (uint32_t c = 0; c < g->num_ctas; c++) {
            cta_t *cta = &g->ctas[c];
            cta->block[0] = base[0] + c % cluster[0], cta->block[1] = base[1] + c / cluster[0] % cluster[1];
            cta->block[2] = base[2] + c / cluster[0] / cluster[1];
            start_block(k, cta, block, grid, cluster);
        }
        model_races_start(g);
        run_cluster(g);
        model_ends_check(g);
        for (uint32_t j = 0; j < g->num_warps; j++)
            model_stores_check(&g->ctas[j / num_warps].warps[j % num_warps]);
    }
    const int failed = g->failed;
    free_cluster(g);
    return failed ? -1 : 0;
}
