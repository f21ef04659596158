/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_batch.c: a batch as one rank's backend sees it (semantics 8.6). A query at position q sees the first
 * local_len(q + 1) keys of its rank. Over tokens of the rank's own runs that number grows by one a token,
 * which is causal attention; over those of other ranks it stays. So each request is cut into pieces along
 * the runs, and tokens of which the rank has no key look at some block, so that batches have one shape on
 * every rank; what comes of them is thrown away.
 */
#include "base/arith.h"
#include "group/ranks.h"

struct ranks_room {
    DLTensor starts, lens, causal, table;
    int64_t shapes[4][2], strides[4][2];
};

enum { ROOM_ALIGNMENT = 64 };

uint64_t attni_ranks_host_bytes(const attn_group_t *g) {
    const struct attni_ranks *k = g->ranks;
    const uint64_t pieces = (uint64_t)k->max_pieces;
    return ROOM_ALIGNMENT + sizeof(struct ranks_room) + 4 * (3 * pieces + 1) +
           4 * pieces * (uint64_t)k->columns + pieces;
}

/* Where the pieces go. */
struct cut {
    const attn_group_t *g;
    int32_t *starts, *lens, *causal, *table;
    uint8_t *causal_host, *is_empty;
    int32_t count, longest_query, longest_seq;
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
    int32_t *row = c->table + (int64_t)at * k->columns;
    c->starts[at] = first;
    c->starts[at + 1] = first + n;
    c->lens[at] = (int32_t)keys;
    c->causal[at] = c->causal_host[at] = (uint8_t)is_causal;
    if (ids != NULL)
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

static void cut_request(struct cut *c, int32_t first, int32_t n, int64_t context, int is_causal,
                        const int32_t *ids) {
    const struct attni_ranks *k = c->g->ranks;
    const int64_t run = k->interleave, round = run * k->world;
    if (!is_causal) {
        add_level(c, first, n, local_len(c, context + n), ids);
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

void attni_ranks_cut(const attn_group_t *g, attn_batch_t *b, void *memory, const attn_space_t *space) {
    const struct attni_ranks *k = g->ranks;
    struct ranks_room *room =
        (struct ranks_room *)(((uintptr_t)memory + ROOM_ALIGNMENT - 1) / ROOM_ALIGNMENT * ROOM_ALIGNMENT);
    struct attni_ranks_meta *meta = attni_ranks_meta(g, space);
    struct cut c = {.g = g, .is_empty = meta->is_empty, .has_masks = g->inner.mask == ATTN_MASK_PER_REQUEST};
    c.starts = (int32_t *)(room + 1);
    c.lens = c.starts + k->max_pieces + 1;
    c.causal = c.lens + k->max_pieces;
    c.table = c.causal + k->max_pieces;
    c.causal_host = (uint8_t *)(c.table + k->max_pieces * k->columns);
    c.starts[0] = 0;
    int64_t stride = 0;
    const int32_t *ids = NULL;
    if (b->block_table_host != NULL) {
        ids = b->block_table_host;
        stride = b->block_table_host_stride;
    } else if (b->block_table != NULL) {
        ids = attn_data(b->block_table);
        stride = b->block_table->strides[0];
    }
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int32_t first = b->query_start_loc_host[r], n = b->query_start_loc_host[r + 1] - first;
        const int is_causal = g->problem.mask == ATTN_MASK_CAUSAL ||
                              (g->problem.mask == ATTN_MASK_PER_REQUEST && b->causal_host[r] != 0);
        if (n > 0) cut_request(&c, first, n, b->seq_lens_host[r] - n, is_causal, ids + r * stride);
    }
    meta->tokens = b->num_actual_tokens;
    b->num_reqs = c.count;
    b->max_query_len = c.longest_query;
    b->max_seq_len = c.longest_seq;
    b->query_start_loc_host = c.starts;
    b->seq_lens_host = c.lens;
    b->causal_host = c.has_masks ? c.causal_host : NULL;
    b->dcp_local_seq_lens = NULL;
    b->query_start_loc = list_tensor(room, 0, c.starts, c.count + 1, 1);
    b->seq_lens = list_tensor(room, 1, c.lens, c.count, 1);
    b->causal = c.has_masks ? list_tensor(room, 2, c.causal, c.count, 1) : NULL;
    b->block_table = list_tensor(room, 3, c.table, c.count, k->columns);
    b->block_table_host = c.table;
    b->block_table_host_stride = k->columns;
}
