/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_batch.c: a batch as one rank's backend sees it (semantics 8.6). A query at position q sees the first
 * local_len(q + 1) keys of its rank. Over tokens of the rank's own runs that number grows by one a token,
 * which is causal attention; over those of other ranks it stays. So each request is cut into pieces along
 * the runs, and tokens of which the rank has no key look at some block, so that batches have one shape on
 * every rank; what comes of them is thrown away.
 */
#include "base/arith.h"
#include "device/device.h"
#include "group/ranks.h"

#include <math.h>

struct ranks_room {
    DLTensor starts, lens, causal, table;
    int64_t shapes[4][2], strides[4][2];
};

enum { ROOM_ALIGNMENT = 64 };

/* A device gathers the pieces' tables itself: for one the room has their requests, and places of LSE. */
uint64_t attni_ranks_host_bytes(const attn_group_t *g) {
    const struct attni_ranks *k = g->ranks;
    const uint64_t pieces = (uint64_t)k->max_pieces;
    const uint64_t tables = k->is_device ? 16 * pieces : 4 * pieces * (uint64_t)k->columns;
    return ROOM_ALIGNMENT + sizeof(struct ranks_room) + tables + 4 * (3 * pieces + ATTNI_RANKS_PARTS) +
           2 * pieces;
}

/* -inf first, then the lists. */
struct attni_ranks_lists attni_ranks_lists(const attn_group_t *g, const attn_space_t *s) {
    const struct attni_ranks *k = g->ranks;
    char *at = (char *)s->metadata + attni_wrap_device_offset(g);
    struct attni_ranks_lists l = {.minus_infinity = (float *)(void *)at};
    l.requests = (int64_t *)(void *)(at + ROOM_ALIGNMENT);
    l.lse_places = l.requests + k->max_pieces;
    l.table = (int32_t *)(void *)(l.lse_places + k->max_pieces);
    return l;
}

uint64_t attni_ranks_lists_bytes(const attn_group_t *g) {
    const struct attni_ranks *k = g->ranks;
    return ROOM_ALIGNMENT + (uint64_t)k->max_pieces * (16 + 4 * (uint64_t)k->columns);
}

/* Where the pieces go. */
struct cut {
    const attn_group_t *g;
    int32_t *starts, *lens, *causal; /* starts: of each part, one behind the other */
    int32_t *table;                  /* on a CPU */
    int64_t *requests;               /* on a device: of the pieces, -1: none, all blocks are 0 */
    int32_t request;                 /* that is cut */
    uint8_t *causal_host, *is_empty;
    int32_t count, longest_query, longest_seq;
    int32_t part, part_begin; /* that is filled, and its first token */
    int has_masks;
};

static int64_t local_len(const struct cut *c, int64_t keys) {
    const struct attni_ranks *k = c->g->ranks;
    return attn_plan_cp_local_len(keys, k->world, k->rank, k->interleave);
}

/* Tokens first .. first + n - 1 of the batch; ids NULL: they have no key here. */
static void add_piece(struct cut *c, int32_t first, int32_t n, int64_t keys, int is_causal,
                      const int32_t *ids) {
    const struct attni_ranks *k = c->g->ranks;
    const int32_t at = c->count++;
    const int64_t blocks = attni_cdiv(keys, c->g->problem.block_size);
    c->starts[at + c->part] = first - c->part_begin;
    c->starts[at + c->part + 1] = first + n - c->part_begin;
    c->lens[at] = (int32_t)keys;
    c->causal[at] = c->causal_host[at] = (uint8_t)is_causal;
    int32_t *row = c->table != NULL ? c->table + (int64_t)at * k->columns : NULL;
    if (row == NULL)
        c->requests[at] = ids != NULL ? c->request : -1;
    else if (ids != NULL)
        memcpy(row, ids, (size_t)blocks * sizeof *row);
    else
        memset(row, 0, (size_t)blocks * sizeof *row);
    memset(c->is_empty + first, ids == NULL, (size_t)n);
    if (n > c->longest_query) c->longest_query = n;
    if (keys > c->longest_seq) c->longest_seq = (int32_t)keys;
}

/* Tokens that all see the rank's first `keys` keys. */
static void add_level(struct cut *c, int32_t first, int32_t n, int64_t keys, const int32_t *ids) {
    if (keys == 0) {
        add_piece(c, first, n, n, 1, NULL);
    } else if (c->has_masks && keys >= n) { /* a backend wants no more queries than keys */
        add_piece(c, first, n, keys, 0, ids);
    } else {
        for (int32_t i = 0; i < n; i++)
            add_piece(c, first + i, 1, keys, 1, ids);
    }
}

/* Tokens first .. first + n - 1, the first at position `context` of `length`. */
static void cut_request(struct cut *c, int32_t first, int32_t n, int64_t context, int64_t length,
                        int is_causal, const int32_t *ids) {
    const struct attni_ranks *k = c->g->ranks;
    const int64_t run = k->interleave, round = run * k->world;
    if (!is_causal) {
        add_level(c, first, n, local_len(c, length), ids);
        return;
    }
    for (int64_t i = 0; i < n;) {
        const int64_t q = context + i, in_round = q % round, own = run * k->rank;
        const int is_own = in_round >= own && in_round < own + run;
        /* the end of this run, or the next of the rank's own */
        const int64_t next = is_own ? own + run : in_round < own ? own : own + round;
        const int64_t end = attni_min64(n, i + next - in_round);
        if (is_own)
            add_piece(c, first + (int32_t)i, (int32_t)(end - i), local_len(c, context + end), 1, ids);
        else
            add_level(c, first + (int32_t)i, (int32_t)(end - i), local_len(c, q), ids);
        i = end;
    }
}

static const DLTensor *list_tensor(struct ranks_room *room, int which, int32_t *data, int64_t rows,
                                   int64_t columns) {
    DLTensor *t[4] = {&room->starts, &room->lens, &room->causal, &room->table};
    int64_t *shape = room->shapes[which], *strides = room->strides[which];
    shape[0] = rows, shape[1] = columns;
    strides[0] = which == 3 ? columns : 1, strides[1] = 1;
    *t[which] = (DLTensor){.data = data,
                           .device = {kDLCPU, 0},
                           .ndim = which == 3 ? 2 : 1,
                           .dtype = {kDLInt, 32, 1},
                           .shape = shape,
                           .strides = strides};
    return t[which];
}

/* Local lengths follow from the others; those that an engine gives must be these. */
int attni_ranks_check_local(const attn_group_t *g, const attn_batch_t *b, attn_error_t *error) {
    const struct attni_ranks *k = g->ranks;
    if (b->dcp_local_seq_lens == NULL) return ATTN_OK;
    if (!attni_is_host_memory((int32_t)b->dcp_local_seq_lens->device.device_type))
        return attn_fail(
            error, ATTN_E_INVALID, "dcp_local_seq_lens",
            "dcp_local_seq_lens is on a device; it is checked on the host: give it there, or NULL");
    const int32_t *given = attn_data(b->dcp_local_seq_lens);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int64_t has = attn_plan_cp_local_len(b->seq_lens_host[r], k->world, k->rank, k->interleave);
        if (given[r] != has)
            return attn_fail(
                error, ATTN_E_INVALID, "dcp_local_seq_lens",
                "dcp_local_seq_lens[%d] is %d; of %d tokens rank %d of %d has %lld with interleave %d "
                "(attn_plan_cp_local_len)",
                (int)r, (int)given[r], (int)b->seq_lens_host[r], (int)k->rank, (int)k->world, (long long)has,
                (int)k->interleave);
    }
    return ATTN_OK;
}

/* What the pieces need on the device: their tables, gathered there, and the places of their LSE. */
static int send_lists(const attn_group_t *g, const attn_batch_t *b, const struct cut *c, int64_t *places,
                      struct ranks_room *room, const attn_space_t *space, void *stream, attn_error_t *error) {
    struct attni_ranks *k = g->ranks;
    const struct attni_ranks_lists l = attni_ranks_lists(g, space);
    static const float minus_infinity = -INFINITY;
    const DLDevice here = attni_device_of(g);
    const int is_capture = (b->flags & ATTN_BATCH_CAPTURE) != 0;
    const int64_t tokens = is_capture ? k->max_pieces : b->num_actual_tokens;
    k->has_empty = is_capture;
    for (int64_t t = 0; t < tokens; t++) {
        const int is_empty = t >= b->num_actual_tokens || c->is_empty[t];
        places[t] = is_empty ? k->max_pieces : t;
        if (is_empty && t < b->num_actual_tokens) k->has_empty = 1;
    }
    if (c->count == 0) return ATTN_OK;
    if (b->block_table == NULL || attni_is_host_memory((int32_t)b->block_table->device.device_type))
        return attn_fail(error, ATTN_E_INVALID, "block_table",
                         "block_table is %s; this group gathers its rows on the device: give it there",
                         b->block_table == NULL ? "not given" : "in host memory");
    int code = k->kind->copy_to(k->device_id, l.minus_infinity, &minus_infinity, sizeof minus_infinity,
                                stream, error);
    if (code == ATTN_OK)
        code = k->kind->copy_to(k->device_id, l.requests, c->requests, (size_t)c->count * sizeof *c->requests,
                                stream, error);
    if (code == ATTN_OK)
        code = k->kind->copy_to(k->device_id, l.lse_places, places, (size_t)tokens * sizeof *places, stream,
                                error);
    if (code == ATTN_OK && k->peer_tokens > 0) /* the others are through with those of the batch before */
        code = k->kind->copy_to(k->device_id, (char *)k->peer_memory[k->rank] + k->peers.places_at, places,
                                (size_t)tokens * sizeof *places, stream, error);
    if (code != ATTN_OK) return code;
    const int64_t width = attni_min64(k->columns, b->block_table->shape[1]);
    int64_t from_shape[2] = {b->block_table->shape[0], width}, rows_shape = c->count, one = 1;
    DLTensor from = *b->block_table, rows = {.data = l.requests,
                                             .device = here,
                                             .ndim = 1,
                                             .dtype = {kDLInt, 64, 1},
                                             .shape = &rows_shape,
                                             .strides = &one};
    from.shape = from_shape;
    list_tensor(room, 3, l.table, c->count, k->columns);
    room->table.device = here;
    room->shapes[3][1] = width;
    return attn_rows_gather(&from, &rows, NULL, &room->table, stream, error);
}

/* The batch as the pieces make it. */
static void set_pieces(attn_batch_t *b, const struct cut *c) {
    b->num_reqs = c->count;
    b->max_query_len = c->longest_query;
    b->max_seq_len = c->longest_seq;
    b->query_start_loc_host = c->starts;
    b->seq_lens_host = c->lens;
    b->causal_host = c->has_masks ? c->causal_host : NULL;
    b->dcp_local_seq_lens = NULL;
}

/* All requests, and all parts; one may end within a request. */
static void cut_parts(struct cut *c, const attn_batch_t *b, const int32_t *ids, int64_t stride) {
    const attn_group_t *g = c->g;
    struct attni_ranks *k = g->ranks;
    const int32_t tokens = b->num_actual_tokens, parts = attni_ranks_parts(k, tokens, b->flags);
    int32_t r = 0, longest_query = 0, longest_seq = 0;
    for (int32_t i = 0; i < parts; i++) {
        const int32_t begin = (int32_t)attni_ranks_part_begin(tokens, parts, i),
                      end = (int32_t)attni_ranks_part_begin(tokens, parts, i + 1);
        struct attni_ranks_part *p = &k->parts[i];
        c->part = i, c->part_begin = begin;
        c->longest_query = c->longest_seq = 0;
        c->starts[c->count + i] = 0;
        p->first_piece = c->count;
        for (; r < b->num_reqs; r++) {
            const int32_t first = b->query_start_loc_host[r], last = b->query_start_loc_host[r + 1],
                          from = first > begin ? first : begin, to = last < end ? last : end;
            const int64_t length = b->seq_lens_host[r];
            const int is_causal = g->problem.mask == ATTN_MASK_CAUSAL ||
                                  (g->problem.mask == ATTN_MASK_PER_REQUEST && b->causal_host[r] != 0);
            c->request = r;
            if (to > from)
                cut_request(c, from, to - from, length - (last - from), length, is_causal, ids + r * stride);
            if (last > end) break; /* the next part goes on with it */
        }
        p->longest_query = c->longest_query, p->longest_seq = c->longest_seq;
        if (c->longest_query > longest_query) longest_query = c->longest_query;
        if (c->longest_seq > longest_seq) longest_seq = c->longest_seq;
    }
    k->parts[parts].first_piece = c->count;
    c->longest_query = longest_query, c->longest_seq = longest_seq;
}

int attni_ranks_cut(const attn_group_t *g, attn_batch_t *b, void *memory, const attn_space_t *space,
                    void *stream, attn_error_t *error) {
    struct attni_ranks *k = g->ranks;
    struct ranks_room *room =
        (struct ranks_room *)(((uintptr_t)memory + ROOM_ALIGNMENT - 1) / ROOM_ALIGNMENT * ROOM_ALIGNMENT);
    const int64_t pieces = k->max_pieces;
    struct cut c = {.g = g, .has_masks = g->inner.mask == ATTN_MASK_PER_REQUEST};
    int64_t *places = NULL, stride = 0;
    char *at = (char *)(room + 1);
    if (k->is_device) {
        c.requests = (int64_t *)(void *)at, places = c.requests + pieces;
        at += 16 * pieces;
    } else {
        c.table = (int32_t *)(void *)at;
        at += 4 * pieces * k->columns;
    }
    c.starts = (int32_t *)(void *)at;
    c.lens = c.starts + pieces + ATTNI_RANKS_PARTS;
    c.causal = c.lens + pieces;
    c.causal_host = (uint8_t *)(c.causal + pieces);
    c.is_empty = k->is_device ? c.causal_host + pieces : attni_ranks_meta(g, space)->is_empty;
    c.starts[0] = 0;
    const int32_t *ids = NULL;
    if (k->is_device) {
        ids = c.starts; /* not followed */
    } else if (b->block_table_host != NULL) {
        ids = b->block_table_host;
        stride = b->block_table_host_stride;
    } else if (b->block_table != NULL) {
        ids = attn_data(b->block_table);
        stride = b->block_table->strides[0];
    }
    for (int32_t r = 0; r < b->num_reqs && k->is_device && (b->flags & ATTN_BATCH_CAPTURE) != 0; r++) {
        const int32_t n = b->query_start_loc_host[r + 1] - b->query_start_loc_host[r];
        if (n > 1)
            return attn_fail(
                error, ATTN_E_UNSUPPORTED, "flags",
                "ATTN_BATCH_CAPTURE: request %d has %d tokens; over ranks a captured batch has one "
                "token a request, since requests of more are cut where their keys lie",
                (int)r, (int)n);
    }
    cut_parts(&c, b, ids, stride);
    if (k->is_device) {
        int code = send_lists(g, b, &c, places, room, space, stream, error);
        if (code != ATTN_OK) return code;
        set_pieces(b, &c);
        b->query_start_loc = b->seq_lens = b->causal = NULL; /* backends of devices have the host's */
        b->block_table = c.count > 0 ? &room->table : NULL;
        b->block_table_host = NULL;
        b->block_table_host_stride = 0;
        return ATTN_OK;
    }
    attni_ranks_meta(g, space)->tokens = b->num_actual_tokens;
    set_pieces(b, &c);
    b->query_start_loc = list_tensor(room, 0, c.starts, c.count + 1, 1);
    b->seq_lens = list_tensor(room, 1, c.lens, c.count, 1);
    b->causal = c.has_masks ? list_tensor(room, 2, c.causal, c.count, 1) : NULL;
    b->block_table = list_tensor(room, 3, c.table, c.count, k->columns);
    b->block_table_host = c.table;
    b->block_table_host_stride = k->columns;
    return ATTN_OK;
}
