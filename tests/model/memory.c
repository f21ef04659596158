/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores and atomics, each access checked. */
#include "model.h"

/* The operands before the address: as many as there are elements. */
static const operand_t *address_of(const op_t *op) {
    return &op->o[op->vector];
}

static cta_t *cta_of(warp_t *w, const op_t *op, uint32_t rank, int lane) {
    cluster_t *g = w->cta->cluster;
    if (rank >= g->num_ctas) return model_fault(w, op, lane, "a rank that the cluster has not", rank), NULL;
    cta_t *cta = &g->ctas[rank];
    uint32_t live = 0;
    for (uint32_t i = 0; i < cta->num_warps; i++)
        live += cta->warps[i].alive != 0;
    if (live == 0) return model_fault(w, op, lane, "shared memory of a block that has ended", rank), NULL;
    if (cta != w->cta) cta->remote[w->slot] = (struct remote){w->clocks[w->slot], op};
    return cta;
}
uint8_t *model_place(warp_t *w, const op_t *op, uint32_t space, uint64_t address, uint32_t bytes, int lane,
                     place_t *place) {
    cta_t *cta = w->cta;
    *place = (place_t){0};
    if (space == SPACE_SHARED || space == SPACE_CLUSTER) {
        const uint32_t rank = space == SPACE_CLUSTER ? (uint32_t)address >> CLUSTER_SHIFT : 0;
        const uint32_t at = rank != 0 ? (uint32_t)address & ((1u << CLUSTER_SHIFT) - 1) : (uint32_t)address;
        if (rank != 0 && (cta = cta_of(w, op, rank - 1, lane)) == NULL) return NULL;
        if (at % bytes != 0) return model_fault(w, op, lane, "misaligned shared memory", address), NULL;
        if ((uint64_t)at + bytes > cta->shared_bytes)
            return model_fault(w, op, lane, "beyond the block's shared memory", address), NULL;
        place->cta = cta, place->at = at;
        return place->p = cta->shared + at;
    }
    if (space == SPACE_LOCAL) {
        if (address + bytes > w->kernel->local_bytes)
            return model_fault(w, op, lane, "beyond local memory", address), NULL;
        return place->p = w->local + (size_t)lane * w->kernel->local_bytes + address;
    }
    uint8_t *p = place->p = (uint8_t *)(uintptr_t)address;
    if (address % bytes != 0) return model_fault(w, op, lane, "misaligned memory", address), NULL;
    if (space != SPACE_GLOBAL) {
        if (p >= cta->params && p + bytes <= cta->params + cta->param_bytes) return p;
        if (space == SPACE_PARAM) return model_fault(w, op, lane, "beyond the parameters", address), NULL;
        for (uint32_t c = 0; c < cta->cluster->num_ctas; c++) {
            cta_t *other = &cta->cluster->ctas[c];
            if (p < other->shared || p + bytes > other->shared + other->shared_bytes) continue;
            if (other != cta && cta_of(w, op, c, lane) == NULL) return NULL;
            place->cta = other, place->at = (uint32_t)(p - other->shared);
            return p;
        }
        const size_t local = w->kernel->local_bytes;
        if (local != 0 && p >= w->local + (size_t)lane * local &&
            p + bytes <= w->local + (size_t)(lane + 1) * local)
            return p;
    }
    if (!model_memory_has(p, bytes))
        return model_fault(w, op, lane, "memory nobody allocated", address), NULL;
    return p;
}
uint8_t *model_at(warp_t *w, const op_t *op, uint32_t space, uint64_t address, uint32_t bytes, int lane) {
    place_t place;
    return model_place(w, op, space, address, bytes, lane, &place);
}

static void load(warp_t *w, const op_t *op, uint32_t mask) {
    const operand_t *at = address_of(op);
    const uint32_t size = op->size, bytes = size * op->vector;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint64_t address = lane_value(w, at, l) + (uint64_t)op->offset;
        place_t place;
        const uint8_t *p = model_place(w, op, op->space, address, bytes, l, &place);
        if (p == NULL) return;
        if (place.cta != NULL) model_races_read(w, op, place.cta, place.at, bytes, l);
        for (uint32_t i = 0; i < op->vector; i++) {
            uint64_t x = 0;
            memcpy(&x, p + i * size, size);
            if (op->is_signed && size < 8) x = (uint64_t)((int64_t)(x << (64 - 8 * size)) >> (64 - 8 * size));
            lane_set(w, &op->o[i], l, x);
        }
    }
}
static void store(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t size = op->size, bytes = size * op->vector;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint64_t address = lane_value(w, &op->o[0], l) + (uint64_t)op->offset;
        place_t place;
        uint8_t *p = model_place(w, op, op->space, address, bytes, l, &place), data[32];
        if (p == NULL) return;
        if (op->num > 1u + op->vector && !model_is_policy(w, op, l)) return;
        for (uint32_t i = 0; i < op->vector; i++) {
            const uint64_t x = lane_value(w, &op->o[1 + i], l);
            memcpy(data + i * size, &x, size);
        }
        if (place.cta != NULL)
            model_races_write(w, op, place.cta, place.at, bytes, l,
                              memcmp(p, data, bytes) == 0 ? WRITE_SAME : WRITE_PLAIN);
        memcpy(p, data, bytes);
    }
}

enum { ATOM_ADD, ATOM_ADD_F32, ATOM_MAX, ATOM_MIN, ATOM_OR, ATOM_EXCH, ATOM_CAS, ATOM_INC };
/* op->variant: which, plus 16 for red, which has no result */
static void atomic(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t red = op->variant >= 16, at = red ? 0 : 1;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        uint8_t *p =
            model_at(w, op, op->space, lane_value(w, &op->o[at], l) + (uint64_t)op->offset, op->size, l);
        if (p == NULL) return;
        uint64_t old = 0, x = 0;
        const uint64_t a = lane_value(w, &op->o[at + 1], l);
        memcpy(&old, p, op->size);
        switch (op->variant & 15) {
        case ATOM_ADD:
            x = old + a;
            break;
        case ATOM_ADD_F32:
            x = as_bits(as_float((uint32_t)old) + as_float((uint32_t)a));
            break;
        case ATOM_MAX:
            x = op->is_signed ? ((int32_t)old > (int32_t)a ? old : a) : (old > a ? old : a);
            break;
        case ATOM_MIN:
            x = op->is_signed ? ((int32_t)old < (int32_t)a ? old : a) : (old < a ? old : a);
            break;
        case ATOM_OR:
            x = old | a;
            break;
        case ATOM_INC:
            x = old >= a ? 0 : old + 1;
            break;
        case ATOM_CAS:
            x = old == a ? lane_value(w, &op->o[at + 2], l) : old;
            break;
        default:
            x = a;
        }
        memcpy(p, &x, op->size);
        if (!red) lane_set(w, &op->o[0], l, old);
    }
}

/* The words of a name that say nothing here: caches, scopes and orders. */
static int is_silent(const char *word) {
    static const char *const words[] = {"nc",
                                        "ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "relaxed",
                                        "weak",
                                        "gpu",
                                        "cta",
                                        "sys",
                                        "acquire",
                                        "release",
                                        "acq_rel",
                                        "L1::no_allocate",
                                        "L2::cache_hint",
                                        "volatile",
                                        "L2::128B",
                                        NULL};
    for (int i = 0; words[i] != NULL; i++)
        if (!strcmp(word, words[i])) return 1;
    return 0;
}

int model_find_memory(const char *name, op_t *op) {
    char text[128], *save = NULL, *word;
    snprintf(text, sizeof text, "%s", name);
    const char *what = strtok_r(text, ".", &save);
    const int is_load = !strcmp(what, "ld"), is_store = !strcmp(what, "st"), is_red = !strcmp(what, "red");
    if (!is_load && !is_store && !is_red && strcmp(what, "atom") != 0) return 0;
    op->run = is_load ? load : is_store ? store : atomic;
    op->space = SPACE_GENERIC, op->vector = 1, op->size = 0, op->is_signed = 0;
    op->variant = is_red ? 16 : 0;
    int which = -1;
    while ((word = strtok_r(NULL, ".", &save)) != NULL) {
        static const char *const atoms[] = {"add", "", "max", "min", "or", "exch", "cas", "inc", NULL};
        int atom = -1;
        for (int i = 0; atoms[i] != NULL; i++)
            if (!strcmp(word, atoms[i])) atom = i;
        if (!strcmp(word, "global"))
            op->space = SPACE_GLOBAL;
        else if (!strcmp(word, "shared") || !strcmp(word, "shared::cta"))
            op->space = SPACE_SHARED;
        else if (!strcmp(word, "shared::cluster"))
            op->space = SPACE_CLUSTER;
        else if (!strcmp(word, "local"))
            op->space = SPACE_LOCAL;
        else if (!strcmp(word, "param"))
            op->space = SPACE_PARAM;
        else if (!strcmp(word, "v2") || !strcmp(word, "v4"))
            op->vector = (uint8_t)(word[1] - '0');
        else if (atom >= 0 && !is_load && !is_store)
            which = atom;
        else if (strchr("busf", word[0]) != NULL && word[1] >= '1' && word[1] <= '8') {
            op->size = (uint8_t)(atoi(word + 1) / 8);
            op->is_signed = word[0] == 's';
            if (which == ATOM_ADD && word[0] == 'f') which = ATOM_ADD_F32;
        } else if (!is_silent(word))
            return 0;
    }
    if (op->size == 0 || (!is_load && !is_store && which < 0)) return 0;
    if (which >= 0) op->variant += which;
    return 1;
}
