/* SPDX-License-Identifier: Apache-2.0 */
/* Who may touch a word of shared memory after whom. Each warp of a cluster has a clock of every warp
 * (Mattern, 1989), of every group of four (its wgmma) and of every mbarrier (its phases): what it may rely on
 * of them. Barriers carry clocks from those who arrive to those who wait. What a bulk copy wrote counts as
 * written by its mbarrier. Lanes of one warp are ordered by bar.warp.sync, and by barriers. Between what
 * threads wrote and what wgmma and bulk copies read or write there must be a fence.proxy.async on the way;
 * behind each clock lies what was known at such a fence, and is carried with it. Global memory is not
 * followed. ATTN_MODEL_RACES=0 turns this off. */
#include "model.h"

typedef struct word {
    const op_t *op;       /* of the last write */
    uint32_t clock, turn; /* likewise */
    uint32_t read_turn, read_lanes;
    uint16_t writer, reader; /* slot + 1; 0: nobody */
    uint8_t lane, bytes;
    uint8_t in_flight; /* 1: a cp.async to it has not been waited for; 2: a bulk copy */
    uint8_t is_bulk;
} word_t;

static size_t words_of(const cta_t *cta) {
    return (cta->shared_bytes + 3) / 4;
}
static uint32_t clock_size(const cluster_t *g) {
    return g->num_readers + MOST_BARRIERS;
}
void model_races_start(cluster_t *g) {
    const char *off = getenv("ATTN_MODEL_RACES");
    const size_t size = 2 * clock_size(g), count = g->num_warps + 16 * g->num_ctas + 2;
    if (g->clocks == NULL) g->clocks = malloc((count + 2 * MOST_BARRIERS) * size * sizeof *g->clocks);
    memset(g->clocks, 0, count * size * sizeof *g->clocks);
    uint32_t *next = g->clocks;
    for (uint32_t c = 0; c < g->num_ctas; c++) {
        cta_t *cta = &g->ctas[c];
        for (uint32_t i = 0; i < cta->num_warps; i++) {
            warp_t *w = &cta->warps[i];
            w->clocks = next, w->fenced = next + size / 2, next += size;
            w->clocks[w->slot] = 1;
        }
        for (uint32_t b = 0; b < 16; b++, next += size)
            cta->carried[b] = next;
        if (off != NULL && atoi(off) == 0) continue;
        if (cta->words == NULL) {
            cta->words = malloc(words_of(cta) * sizeof(word_t) + 1);
            cta->reads = malloc(words_of(cta) * g->num_readers * sizeof(uint32_t) + 1);
        }
        memset(cta->words, 0, words_of(cta) * sizeof(word_t));
        memset(cta->reads, 0, words_of(cta) * g->num_readers * sizeof(uint32_t));
    }
    g->arriving = next, g->done = next + size, next += 2 * size;
    for (uint32_t i = 0; i < MOST_BARRIERS; i++, next += 2 * size)
        g->barriers[i].arriving = next, g->barriers[i].done = next + size;
    g->num_barriers = 0;
}
void model_races_end(cluster_t *g) {
    for (uint32_t c = 0; c < g->num_ctas; c++)
        free(g->ctas[c].words), free(g->ctas[c].reads);
    free(g->clocks);
}

void model_races_join(const cluster_t *g, uint32_t *to, const uint32_t *from) {
    const uint32_t count = g->num_readers + g->num_barriers, fenced = clock_size(g);
    for (uint32_t i = 0; i < count; i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
    for (uint32_t i = fenced; i < fenced + count; i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}
void model_races_give(warp_t *w, uint32_t *carrier) {
    model_races_join(w->cta->cluster, carrier, w->clocks);
    w->clocks[w->slot]++;
    w->turn++;
}
void model_races_take(warp_t *w, const uint32_t *carrier) {
    model_races_join(w->cta->cluster, w->clocks, carrier);
    w->turn++;
}
void model_races_fence(warp_t *w) {
    memcpy(w->fenced, w->clocks, clock_size(w->cta->cluster) * sizeof *w->fenced);
    w->clocks[w->slot]++;
}
void model_races_forget(const cluster_t *g, uint32_t *carrier) {
    memset(carrier, 0, 2 * (size_t)clock_size(g) * sizeof *carrier);
}

uint32_t model_races_group(const warp_t *w) {
    const cluster_t *g = w->cta->cluster;
    return g->num_warps + w->cta->rank * ((g->num_readers - g->num_warps) / g->num_ctas) + w->index / 4;
}
static const warp_t *warp_of(const cta_t *cta, uint32_t slot) { /* NULL: not a warp's */
    const cluster_t *g = cta->cluster;
    return slot < g->num_warps ? &g->ctas[slot / cta->num_warps].warps[slot % cta->num_warps] : NULL;
}
static int ordered_write(const warp_t *w, const word_t *x, int lane, uint32_t bytes) {
    if (x->writer == 0 || (x->bytes & bytes) == 0) return 1;
    if (x->writer == w->slot + 1) return lane < 0 || x->lane == lane || x->turn != w->turn;
    return x->clock <= w->clocks[x->writer - 1];
}
/* Whether what threads wrote is seen by the engines that this warp starts. */
static int fenced_write(const warp_t *w, const word_t *x) {
    return x->writer == 0 || x->is_bulk || w->fenced[x->writer - 1] >= x->clock;
}
static void hazard(warp_t *w, const op_t *op, int lane, uint32_t at, const word_t *x, const char *what) {
    char text[280], who[60];
    const warp_t *by = x->writer != 0 ? warp_of(w->cta, x->writer - 1u) : NULL;
    if (by != NULL)
        snprintf(who, sizeof who, "warp %u, lane %u", (unsigned)by->index, (unsigned)x->lane);
    else
        snprintf(who, sizeof who, "%s",
                 x->writer <= w->cta->cluster->num_readers ? "wgmma" : "a copy that an mbarrier tells of");
    snprintf(text, sizeof text, "%s of %s, with nothing between that orders them: %.60s", what, who,
             x->op != NULL ? x->op->text : "");
    model_fault(w, op, lane < 0 ? 0 : lane, text, at);
}

/* Of a word that a copy is still to write, nothing may be asked. */
static int flies(warp_t *w, const op_t *op, int lane, uint32_t at, const word_t *x) {
    if (!x->in_flight) return 0;
    hazard(w, op, lane, at, x,
           x->in_flight == 2 ? "touches what a bulk copy is still to write,"
                             : "touches what a cp.async is still to write,");
    return 1;
}

void model_races_read(warp_t *w, const op_t *op, cta_t *cta, uint32_t at, uint32_t bytes, int lane) {
    if (cta->words == NULL) return;
    for (uint32_t i = at / 4; i <= (at + bytes - 1) / 4; i++) {
        word_t *x = (word_t *)cta->words + i;
        const uint32_t mine = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (at & 3);
        if (flies(w, op, lane, i * 4, x)) return;
        if (!ordered_write(w, x, lane, mine)) {
            hazard(w, op, lane, i * 4, x, "reads after a write");
            return;
        }
        cta->reads[(size_t)i * cta->cluster->num_readers + w->slot] = w->clocks[w->slot];
        if (x->reader != w->slot + 1 || x->read_turn != w->turn) x->read_lanes = 0;
        x->reader = (uint16_t)(w->slot + 1), x->read_lanes |= 1u << lane, x->read_turn = w->turn;
    }
}
/* Of a write by `lane`: 0 after a message about a read that nothing orders before it. Else who comes after
 * the write comes after those reads, too, whatever it knows of them. */
static int ordered_reads(warp_t *w, const op_t *op, cta_t *cta, uint32_t i, uint32_t bytes, int lane) {
    const word_t *x = (const word_t *)cta->words + i;
    uint32_t *reads = cta->reads + (size_t)i * cta->cluster->num_readers;
    word_t by = {.writer = x->reader};
    for (uint32_t r = 0; r < cta->cluster->num_readers; r++)
        if (r != w->slot && reads[r] > w->clocks[r]) {
            by.writer = (uint16_t)(r + 1);
            hazard(w, op, lane, i * 4, &by, "writes after a read");
            return 0;
        }
    const uint32_t others = x->read_lanes & ~(1u << lane);
    if (bytes >= 4 && x->reader == w->slot + 1 && x->read_turn == w->turn && others != 0) {
        by.lane = (uint8_t)__builtin_ctz(others);
        hazard(w, op, lane, i * 4, &by, "writes after a read");
        return 0;
    }
    if (bytes >= 4) memset(reads, 0, cta->cluster->num_readers * sizeof *reads);
    return 1;
}
static void written(word_t *x, const warp_t *w, const op_t *op, int lane, uint32_t bytes) {
    x->op = op, x->clock = w->clocks[w->slot], x->turn = w->turn;
    x->writer = (uint16_t)(w->slot + 1), x->lane = (uint8_t)lane, x->bytes = (uint8_t)bytes;
    x->is_bulk = 0;
}
void model_races_write(warp_t *w, const op_t *op, cta_t *cta, uint32_t at, uint32_t bytes, int lane,
                       int how) {
    if (cta->words == NULL) return;
    for (uint32_t i = at / 4; i <= (at + bytes - 1) / 4; i++) {
        word_t *x = (word_t *)cta->words + i;
        const uint32_t mine = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (at & 3);
        if (how != WRITE_ARRIVES && flies(w, op, lane, i * 4, x)) return;
        if (!ordered_write(w, x, lane, mine)) {
            if (how == WRITE_SAME) continue;
            hazard(w, op, lane, i * 4, x, "writes after a write");
            return;
        }
        if (!ordered_reads(w, op, cta, i, bytes, lane)) return;
        written(x, w, op, lane, mine);
        x->in_flight = how == WRITE_STARTS;
    }
}
int model_races_bulk(warp_t *w, const op_t *op, cta_t *cta, uint32_t at, uint32_t bytes, int lane) {
    if (cta->words == NULL) return 1;
    for (uint32_t i = at / 4; i < (at + bytes) / 4; i++) {
        word_t *x = (word_t *)cta->words + i;
        if (flies(w, op, lane, i * 4, x)) return 0;
        if (!ordered_write(w, x, lane, 15)) {
            hazard(w, op, lane, i * 4, x, "a bulk copy writes after a write");
            return 0;
        }
        if (!fenced_write(w, x)) {
            hazard(w, op, lane, i * 4, x, "a bulk copy writes without fence.proxy.async after a write");
            return 0;
        }
        if (!ordered_reads(w, op, cta, i, 4, lane)) return 0;
        written(x, w, op, lane, 15);
        x->in_flight = 2;
    }
    return 1;
}
/* By a bulk copy, or by a cp.async that an mbarrier tells of. */
void model_races_landed(cta_t *cta, uint32_t at, uint32_t bytes, const mbarrier_t *b, int is_bulk) {
    if (cta->words == NULL) return;
    for (uint32_t i = at / 4; i < (at + bytes) / 4; i++) {
        word_t *x = (word_t *)cta->words + i;
        x->in_flight = 0, x->is_bulk = (uint8_t)is_bulk;
        x->writer = (uint16_t)(b->slot + 1), x->clock = b->phase + 1;
    }
}
int model_races_engine(warp_t *w, const op_t *op, uint32_t at, uint32_t number) {
    cta_t *cta = w->cta;
    if (cta->words == NULL) return 1;
    word_t *x = (word_t *)cta->words + at / 4;
    const uint32_t slot = number != 0 ? model_races_group(w) : w->slot;
    uint32_t *reads = cta->reads + (size_t)(at / 4) * cta->cluster->num_readers;
    if (flies(w, op, -1, at, x)) return 0;
    if (!ordered_write(w, x, -1, 15)) {
        hazard(w, op, -1, at, x,
               number != 0 ? "wgmma reads after a write" : "a bulk copy reads after a write");
        return 0;
    }
    if (!fenced_write(w, x)) {
        hazard(w, op, -1, at, x,
               number != 0 ? "wgmma reads without fence.proxy.async after a write"
                           : "a bulk copy reads without fence.proxy.async after a write");
        return 0;
    }
    const uint32_t clock = number != 0 ? number : w->clocks[w->slot];
    if (reads[slot] < clock) reads[slot] = clock;
    return 1;
}
