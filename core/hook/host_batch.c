/* SPDX-License-Identifier: Apache-2.0 */
/* host_batch.c: copies of a batch's tensors, a block table over the blocks that it names, and of a call's
 * tensors the rows of the batch. */
#include "hook/host_batch.h"
#include "base/arith.h"
#include "group/tensor_place.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------- batch */

static const struct attni_placed of_batch[ATTNI_BATCH_TENSORS] = {
    ATTNI_PLACED(attn_batch_t, query_start_loc),  ATTNI_PLACED(attn_batch_t, seq_lens),
    ATTNI_PLACED(attn_batch_t, block_table),      ATTNI_PLACED(attn_batch_t, slot_mapping),
    ATTNI_PLACED(attn_batch_t, causal),           ATTNI_PLACED(attn_batch_t, mm_prefix_ranges),
    ATTNI_PLACED(attn_batch_t, rswa_prefix_lens), ATTNI_PLACED(attn_batch_t, encoder_seq_lens),
    ATTNI_PLACED(attn_batch_t, dcp_local_seq_lens)};

/* Blocks get numbers in the order in which the table names them first. */
static int renumber(struct attni_host_batch *m, const int32_t *ids, int64_t stride, int64_t block_size,
                    attn_error_t *error) {
    const attn_batch_t *b = &m->batch;
    int64_t columns = 1, last = -1;
    for (int32_t r = 0; r < b->num_reqs; r++)
        columns = attni_max64(columns, attni_cdiv(b->seq_lens_host[r], block_size));
    for (int32_t r = 0; r < b->num_reqs; r++)
        for (int64_t j = 0; j < attni_cdiv(b->seq_lens_host[r], block_size); j++) {
            const int32_t id = ids[r * stride + j];
            if (id < 0)
                return attn_fail(error, ATTN_E_INVALID, "block_table",
                                 "block_table[%d][%lld] is %d, which is no block", (int)r, (long long)j,
                                 (int)id);
            last = attni_max64(last, id);
        }
    int32_t *number = calloc((size_t)last + 2, sizeof *number); /* of each old block, from 1 on */
    m->map = calloc((size_t)last + 2, sizeof *m->map);
    m->ids = calloc((size_t)(attni_max64(b->num_reqs, 1) * columns), sizeof *m->ids);
    const int failed = number == NULL || m->map == NULL || m->ids == NULL;
    for (int32_t r = 0; r < b->num_reqs && !failed; r++)
        for (int64_t j = 0; j < attni_cdiv(b->seq_lens_host[r], block_size); j++) {
            const int32_t id = ids[r * stride + j];
            if (number[id] == 0) {
                m->map[m->num_blocks] = id;
                number[id] = (int32_t)++m->num_blocks;
            }
            m->ids[r * columns + j] = number[id] - 1;
        }
    free(number);
    if (failed) return attn_fail(error, ATTN_E_NO_MEMORY, "block_table", "no memory for a block table");
    m->table_shape[0] = b->num_reqs, m->table_shape[1] = columns;
    m->table_strides[0] = columns, m->table_strides[1] = 1;
    return ATTN_OK;
}

/* The new table takes the place of the old one, and no slot is written. */
static int replace_table(struct attni_host_batch *m, const attn_group_t *g, attn_error_t *error) {
    attn_batch_t *b = &m->batch;
    if (b->block_table == NULL || g->inner.block_size == 0) return ATTN_OK;
    const int is_there = b->block_table_host != NULL;
    int code = renumber(m, is_there ? b->block_table_host : (const int32_t *)attn_data(b->block_table),
                        is_there ? b->block_table_host_stride : b->block_table->strides[0],
                        g->inner.block_size, error);
    if (code != ATTN_OK) return code;
    m->table = *b->block_table;
    m->table.data = m->ids;
    m->table.byte_offset = 0;
    m->table.shape = m->table_shape;
    m->table.strides = m->table_strides;
    b->block_table = &m->table;
    b->block_table_host = m->ids;
    b->block_table_host_stride = m->table_shape[1];
    if (b->slot_mapping == NULL) return ATTN_OK;
    const int64_t count = b->slot_mapping->shape[0];
    m->no_slots = malloc(((size_t)count + 1) * sizeof *m->no_slots);
    if (m->no_slots == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "slot_mapping", "no memory for %lld slots",
                         (long long)count);
    for (int64_t i = 0; i < count; i++)
        m->no_slots[i] = -1;
    m->slots = *b->slot_mapping;
    m->slots.data = m->no_slots;
    m->slots.byte_offset = 0;
    b->slot_mapping = &m->slots;
    return ATTN_OK;
}

static void free_lists(struct attni_host_batch *m) {
    free(m->ids);
    free(m->map);
    free(m->no_slots);
    m->ids = m->map = NULL;
    m->no_slots = NULL;
    m->num_blocks = 0;
}

int attni_host_batch_make(struct attni_host_batch *m, const attn_group_t *g, const attn_batch_t *batch,
                          void *stream, attn_error_t *error) {
    const struct attni_host_read read = {g, stream, 0, -1};
    free_lists(m);
    m->batch = *batch;
    m->batch.flags &= ~ATTN_BATCH_CAPTURE;
    m->longest = 0;
    for (int32_t r = 0; r < batch->num_reqs; r++)
        m->longest = attni_max64(m->longest, batch->seq_lens_host[r]);
    for (size_t i = 0; i < ATTNI_BATCH_TENSORS; i++) {
        const DLTensor *t, *seen;
        memcpy(&t, (const char *)batch + of_batch[i].offset, sizeof t);
        const int code = attni_host_copy(&read, t, of_batch[i].name, &m->copies[i], &seen, error);
        if (code != ATTN_OK) return code;
        memcpy((char *)&m->batch + of_batch[i].offset, &seen, sizeof seen);
    }
    return replace_table(m, g, error);
}

void attni_host_batch_free(struct attni_host_batch *m) {
    free_lists(m);
    for (size_t i = 0; i < ATTNI_BATCH_TENSORS; i++)
        attni_host_copy_free(&m->copies[i]);
}

/* -------------------------------------------------------------------- forward */

/* Which rows are read: those of the batch, or all. */
static const struct {
    struct attni_placed placed;
    int is_of_tokens;
} of_forward[ATTNI_FORWARD_TENSORS] = {{ATTNI_PLACED(attn_forward_t, query), 1},
                                       {ATTNI_PLACED(attn_forward_t, key), 0},
                                       {ATTNI_PLACED(attn_forward_t, value), 0},
                                       {ATTNI_PLACED_AS(attn_forward_t, scales.q, "q_scale"), 0},
                                       {ATTNI_PLACED_AS(attn_forward_t, scales.k, "k_scale"), 0},
                                       {ATTNI_PLACED_AS(attn_forward_t, scales.v, "v_scale"), 0},
                                       {ATTNI_PLACED(attn_forward_t, output_scale), 0},
                                       {ATTNI_PLACED(attn_forward_t, output_block_scale), 1},
                                       {ATTNI_PLACED(attn_forward_t, sinks), 0},
                                       {ATTNI_PLACED(attn_forward_t, alibi_slopes), 0},
                                       {ATTNI_PLACED(attn_forward_t, qq_bias), 1},
                                       {ATTNI_PLACED(attn_forward_t, topk_indices), 1},
                                       {ATTNI_PLACED(attn_forward_t, rel_bias), 0}};

static int copy_cache(const attn_group_t *g, const DLTensor *t, const char *name, int axis,
                      const struct attni_host_batch *batch, void *stream, struct attni_host_copy *copy,
                      const DLTensor **to, attn_error_t *error) {
    if (batch->map == NULL) *to = NULL; /* a batch without a table reads no pages */
    if (t == NULL || batch->map == NULL) return ATTN_OK;
    for (int64_t i = 0; i < batch->num_blocks; i++)
        if (axis >= t->ndim || batch->map[i] >= t->shape[axis])
            return attn_fail(error, ATTN_E_INVALID, "block_table",
                             "the block table names block %d, which %s does not have", (int)batch->map[i],
                             name);
    const int code =
        attni_host_copy_blocks(g, t, name, axis, batch->map, batch->num_blocks, stream, copy, error);
    if (code == ATTN_OK) *to = &copy->t;
    return code;
}

int attni_host_forward_make(struct attni_host_forward *m, const attn_group_t *g, const attn_forward_t *args,
                            const struct attni_host_batch *batch, void *stream, attn_error_t *error) {
    const int has_cache = args->kv_cache != NULL;
    int code = ATTN_OK;
    m->args = *args;
    for (size_t i = 0; i < ATTNI_FORWARD_TENSORS && code == ATTN_OK; i++) {
        const int is_rows = of_forward[i].is_of_tokens || (has_cache && (i == 1 || i == 2));
        const struct attni_host_read read = {g, stream, 0, is_rows ? batch->batch.num_actual_tokens : -1};
        const DLTensor *t, *seen;
        memcpy(&t, (const char *)args + of_forward[i].placed.offset, sizeof t);
        code = attni_host_copy(&read, t, of_forward[i].placed.name, &m->copies[i], &seen, error);
        memcpy((char *)&m->args + of_forward[i].placed.offset, &seen, sizeof seen);
    }
    const int axis = args->v_cache != NULL ? 0 : g->block_axis;
    if (code == ATTN_OK)
        code = copy_cache(g, args->kv_cache, "kv_cache", axis, batch, stream, &m->kv_cache, &m->args.kv_cache,
                          error);
    if (code == ATTN_OK)
        code = copy_cache(g, args->v_cache, "v_cache", axis, batch, stream, &m->v_cache, &m->args.v_cache,
                          error);
    return code;
}

void attni_host_forward_free(struct attni_host_forward *m) {
    for (size_t i = 0; i < ATTNI_FORWARD_TENSORS; i++)
        attni_host_copy_free(&m->copies[i]);
    attni_host_copy_free(&m->kv_cache);
    attni_host_copy_free(&m->v_cache);
}
