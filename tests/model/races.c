/* SPDX-License-Identifier: Apache-2.0 */
/* Who may touch a word of shared memory after whom. Each warp has a clock of every warp (Mattern, 1989):
 * what it may rely on of the others. Barriers of the block and mbarriers carry clocks from those who arrive
 * to those who wait. Lanes of one warp are ordered by bar.warp.sync, and by barriers. What wgmma reads must
 * have been followed by fence.proxy.async in the warp that wrote it. Global memory is not followed.
 * ATTN_MODEL_RACES=0 turns this off. */
#include "model.h"

typedef struct word {
    const op_t *op;               /* of the last write */
    uint32_t clock, turn, fences; /* likewise */
    uint32_t read_turn, read_lanes;
    uint8_t writer, reader; /* warp + 1; 0: nobody */
    uint8_t lane, bytes;
    uint8_t in_flight; /* a cp.async to it has not been waited for */
} word_t;

static size_t words_of(const cta_t *cta) {
    return (cta->shared_bytes + 3) / 4;
}
void model_races_start(cta_t *cta) {
    const char *off = getenv("ATTN_MODEL_RACES");
    if (off != NULL && atoi(off) == 0) return;
    if (cta->words == NULL) {
        cta->words = malloc(words_of(cta) * sizeof(word_t) + 1);
        cta->reads = malloc(words_of(cta) * cta->num_warps * sizeof(uint32_t) + 1);
    }
    memset(cta->words, 0, words_of(cta) * sizeof(word_t));
    memset(cta->reads, 0, words_of(cta) * cta->num_warps * sizeof(uint32_t));
    memset(cta->carried, 0, sizeof cta->carried);
    cta->num_carriers = 0;
}
void model_races_end(cta_t *cta) {
    free(cta->words), free(cta->reads);
}

static void join(uint32_t *to, const uint32_t *from) {
    for (int i = 0; i < LANES; i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}
/* A barrier takes what a warp knows, and later gives it: `key` is its number, or the address of an mbarrier
 * + 16. */
static uint32_t *carrier(cta_t *cta, uint32_t key) {
    if (key < 16) return cta->carried[key];
    for (uint32_t i = 0; i < cta->num_carriers; i++)
        if (cta->carriers[i] == key) return cta->carried[16 + i];
    if (cta->num_carriers == sizeof cta->carriers / sizeof cta->carriers[0]) {
        fprintf(stderr, "model: more mbarriers in a block than the model follows\n");
        cta->failed = 1;
        return cta->carried[16];
    }
    cta->carriers[cta->num_carriers] = key;
    return cta->carried[16 + cta->num_carriers++];
}
void model_races_give(warp_t *w, uint32_t key) {
    join(carrier(w->cta, key), w->clocks);
    w->clocks[w->index]++;
    w->turn++;
}
void model_races_take(warp_t *w, uint32_t key) {
    join(w->clocks, carrier(w->cta, key));
    w->turn++;
}
void model_races_forget(cta_t *cta, uint32_t key) {
    memset(carrier(cta, key), 0, sizeof cta->carried[0]);
}

static int ordered_write(const warp_t *w, const word_t *x, int lane, uint32_t bytes) {
    if (x->writer == 0 || (x->bytes & bytes) == 0) return 1;
    if (x->writer == w->index + 1) return x->lane == lane || x->turn != w->turn;
    return x->clock <= w->clocks[x->writer - 1];
}
static void hazard(warp_t *w, const op_t *op, int lane, uint32_t at, const word_t *x, const char *what) {
    char text[240];
    snprintf(text, sizeof text, "%s of warp %u, lane %u, with nothing between that orders them: %.60s", what,
             (unsigned)x->writer - 1, (unsigned)x->lane, x->op != NULL ? x->op->text : "");
    model_fault(w, op, lane, text, at);
}

/* Of a word that a copy is still to write, nothing may be asked. */
static int flies(warp_t *w, const op_t *op, int lane, uint32_t at, const word_t *x) {
    if (!x->in_flight) return 0;
    hazard(w, op, lane, at, x, "touches what a cp.async is still to write,");
    return 1;
}

void model_races_read(warp_t *w, const op_t *op, uint32_t at, uint32_t bytes, int lane) {
    cta_t *cta = w->cta;
    if (cta->words == NULL) return;
    for (uint32_t i = at / 4; i <= (at + bytes - 1) / 4; i++) {
        word_t *x = (word_t *)cta->words + i;
        const uint32_t mine = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (at & 3);
        if (flies(w, op, lane, i * 4, x)) return;
        if (!ordered_write(w, x, lane, mine)) {
            hazard(w, op, lane, i * 4, x, "reads after a write");
            return;
        }
        cta->reads[(size_t)i * cta->num_warps + w->index] = w->clocks[w->index];
        if (x->reader != w->index + 1 || x->read_turn != w->turn) x->read_lanes = 0;
        x->reader = (uint8_t)(w->index + 1), x->read_lanes |= 1u << lane, x->read_turn = w->turn;
    }
}
void model_races_write(warp_t *w, const op_t *op, uint32_t at, uint32_t bytes, int lane, int how) {
    cta_t *cta = w->cta;
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
        word_t by = {.writer = x->reader};
        for (uint32_t r = 0; r < cta->num_warps; r++)
            if (r != w->index && cta->reads[(size_t)i * cta->num_warps + r] > w->clocks[r]) {
                by.writer = (uint8_t)(r + 1);
                hazard(w, op, lane, i * 4, &by, "writes after a read");
                return;
            }
        const uint32_t others = x->read_lanes & ~(1u << lane);
        if (bytes >= 4 && x->reader == w->index + 1 && x->read_turn == w->turn && others != 0) {
            by.lane = (uint8_t)__builtin_ctz(others);
            hazard(w, op, lane, i * 4, &by, "writes after a read");
            return;
        }
        x->op = op, x->clock = w->clocks[w->index], x->turn = w->turn, x->fences = w->fences;
        x->writer = (uint8_t)(w->index + 1), x->lane = (uint8_t)lane, x->bytes = (uint8_t)mine;
        x->in_flight = how == WRITE_STARTS;
    }
}
/* wgmma reads a word for the warp: 0 and a message where it must not. */
int model_races_engine(warp_t *w, const op_t *op, uint32_t at) {
    cta_t *cta = w->cta;
    if (cta->words == NULL) return 1;
    word_t *x = (word_t *)cta->words + at / 4;
    if (flies(w, op, 0, at, x)) return 0;
    if (x->writer != 0 && x->writer != w->index + 1 && x->clock > w->clocks[x->writer - 1]) {
        hazard(w, op, 0, at, x, "wgmma reads after a write");
        return 0;
    }
    if (x->writer != 0 && cta->warps[x->writer - 1].fences == x->fences) {
        hazard(w, op, 0, at, x, "wgmma reads without fence.proxy.async after a write");
        return 0;
    }
    cta->reads[(size_t)(at / 4) * cta->num_warps + w->index] = w->clocks[w->index];
    return 1;
}
