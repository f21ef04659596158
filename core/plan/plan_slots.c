/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_slots.c: which cache slot a token goes to, and block tables from the cache manager's blocks (semantics
 * 1.3,
 * 2.11, 6.8).
 */
#include "plan/check_batch.h"

#include <attn/attn_plan.h>

/* Defaults filled in, every member in range. */
static int read_slot_params(const attn_slot_params_t *params, attn_slot_params_t *p, attn_error_t *error) {
    int code = attn_intake(p, sizeof *p, params, "params", error);
    if (code != ATTN_OK) return code;
    if (p->manager_block == 0) p->manager_block = p->block_size;
    if (p->cp_world == 0) p->cp_world = 1;
    if (p->cp_interleave == 0) p->cp_interleave = 1;
    ATTNI_AT_LEAST(p->block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(p->manager_block, 1, "manager_block", error);
    ATTNI_AT_LEAST(p->cp_world, 1, "cp_world", error);
    ATTNI_AT_LEAST(p->cp_interleave, 1, "cp_interleave", error);
    ATTNI_AT_LEAST(p->num_blocks, 0, "num_blocks", error);
    if (p->manager_block % p->block_size != 0)
        return attn_fail(
            error, ATTN_E_INVALID, "manager_block",
            "manager_block %d is not a multiple of block_size %d; a manager block is whole kernel blocks",
            (int)p->manager_block, (int)p->block_size);
    if (p->cp_rank < 0 || p->cp_rank >= p->cp_world)
        return attn_fail(error, ATTN_E_INVALID, "cp_rank", "cp_rank is %d; it must lie in 0 .. %d",
                         (int)p->cp_rank, (int)p->cp_world - 1);
    if (p->cp_world > 1 && p->manager_block % p->cp_interleave != 0)
        return attn_fail(
            error, ATTN_E_INVALID, "cp_interleave",
            "cp_interleave %d does not divide manager_block %d; a rank's run must not cross a block",
            (int)p->cp_interleave, (int)p->manager_block);
    return ATTN_OK;
}

/* Slot of position pos in the row of a request; -1: another rank's token. */
static int slot_of(const attn_slot_params_t *p, const int32_t *row, int64_t width, int64_t pos, int64_t *slot,
                   attn_error_t *error) {
    int64_t virtual_block = (int64_t)p->manager_block * p->cp_world;
    int64_t column = pos / virtual_block, offset = pos % virtual_block;
    *slot = -1;
    if ((offset / p->cp_interleave) % p->cp_world != p->cp_rank) return ATTN_OK;
    if (column >= width)
        return attn_fail(
            error, ATTN_E_INVALID, "table_stride",
            "position %lld needs column %lld of the block table, which has %lld; give it longer rows",
            (long long)pos, (long long)column, (long long)width);
    int64_t local =
        offset / ((int64_t)p->cp_world * p->cp_interleave) * p->cp_interleave + offset % p->cp_interleave;
    int64_t found = (int64_t)row[column] * p->manager_block + local;
    if (row[column] < 0 || (p->num_blocks > 0 && found / p->block_size >= p->num_blocks))
        return attn_fail(
            error, ATTN_E_INVALID, "block_table",
            "block_table column %lld holds block %d, outside a cache of %lld blocks of %d tokens",
            (long long)column, (int)row[column], (long long)p->num_blocks, (int)p->block_size);
    *slot = found;
    return ATTN_OK;
}

int attn_plan_slot_mapping(const attn_slot_params_t *params, const int32_t *query_start_loc,
                           const int32_t *seq_lens, int32_t num_reqs, const int32_t *block_table,
                           int64_t table_stride, int64_t num_tokens, int64_t *slots, attn_error_t *error) {
    attn_slot_params_t p;
    int code = read_slot_params(params, &p, error);
    if (code == ATTN_OK) code = attni_check_starts(query_start_loc, num_reqs, error);
    if (code == ATTN_OK) code = attni_check_lens(query_start_loc, seq_lens, num_reqs, error);
    if (code != ATTN_OK) return code;
    int64_t total = query_start_loc[num_reqs];
    ATTNI_AT_LEAST(table_stride, 0, "table_stride", error);
    if (num_tokens < total)
        return attn_fail(error, ATTN_E_INVALID, "num_tokens",
                         "num_tokens is %lld for a batch of %lld tokens; slots needs an entry for each",
                         (long long)num_tokens, (long long)total);
    if (num_tokens > 0) ATTNI_NEED(slots, "slots", error);
    if (total > 0) ATTNI_NEED(block_table, "block_table", error);
    for (int32_t r = 0; r < num_reqs; r++) {
        int64_t begin = query_start_loc[r], end = query_start_loc[r + 1], first = seq_lens[r] - (end - begin);
        for (int64_t t = begin; t < end; t++) {
            code = slot_of(&p, block_table + r * table_stride, table_stride, first + (t - begin), &slots[t],
                           error);
            if (code != ATTN_OK) return code;
        }
    }
    for (int64_t t = total; t < num_tokens; t++)
        slots[t] = -1;
    return ATTN_OK;
}

int attn_plan_expand_blocks(const int32_t *manager_blocks, int64_t n, int32_t manager_block,
                            int32_t block_size, int32_t *kernel_blocks, attn_error_t *error) {
    ATTNI_AT_LEAST(n, 0, "n", error);
    ATTNI_AT_LEAST(block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(manager_block, 1, "manager_block", error);
    if (manager_block % block_size != 0)
        return attn_fail(error, ATTN_E_INVALID, "manager_block",
                         "manager_block %d is not a multiple of block_size %d", (int)manager_block,
                         (int)block_size);
    if (n > 0) {
        ATTNI_NEED(manager_blocks, "manager_blocks", error);
        ATTNI_NEED(kernel_blocks, "kernel_blocks", error);
    }
    int32_t factor = manager_block / block_size;
    for (int64_t i = 0; i < n; i++) {
        int64_t first = (int64_t)manager_blocks[i] * factor;
        if (first < 0 || first + factor - 1 > INT32_MAX)
            return attn_fail(error, ATTN_E_INVALID, "manager_blocks",
                             "manager_blocks[%lld] is %d; times %d it exceeds a 32-bit block number",
                             (long long)i, (int)manager_blocks[i], (int)factor);
        for (int32_t j = 0; j < factor; j++)
            kernel_blocks[i * factor + j] = (int32_t)first + j;
    }
    return ATTN_OK;
}

int attn_plan_cross_slots(const int32_t *encoder_seq_lens, const int32_t *num_computed, int32_t num_reqs,
                          const int32_t *block_table, int64_t table_stride, int32_t block_size,
                          int64_t *slots, int64_t capacity, int64_t *num_slots, attn_error_t *error) {
    ATTNI_AT_LEAST(num_reqs, 0, "num_reqs", error);
    ATTNI_AT_LEAST(block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(table_stride, 0, "table_stride", error);
    ATTNI_AT_LEAST(capacity, 0, "capacity", error);
    ATTNI_NEED(num_slots, "num_slots", error);
    if (num_reqs > 0) {
        ATTNI_NEED(encoder_seq_lens, "encoder_seq_lens", error);
        ATTNI_NEED(num_computed, "num_computed", error);
        ATTNI_NEED(block_table, "block_table", error);
    }
    if (capacity > 0) ATTNI_NEED(slots, "slots", error);
    const attn_slot_params_t p = {.struct_size = sizeof p,
                                  .block_size = block_size,
                                  .manager_block = block_size,
                                  .cp_world = 1,
                                  .cp_interleave = 1};
    int64_t n = 0;
    for (int32_t r = 0; r < num_reqs; r++) {
        ATTNI_AT_LEAST(encoder_seq_lens[r], 0, "encoder_seq_lens", error);
        if (num_computed[r] > 0) continue; /* its encoder keys are in the cache since its first step */
        if (encoder_seq_lens[r] > capacity - n)
            return attn_fail(error, ATTN_E_SPACE, "capacity",
                             "capacity is %lld; request %d brings the encoder tokens to %lld",
                             (long long)capacity, (int)r, (long long)(n + encoder_seq_lens[r]));
        for (int32_t t = 0; t < encoder_seq_lens[r]; t++) {
            int code = slot_of(&p, block_table + r * table_stride, table_stride, t, &slots[n++], error);
            if (code != ATTN_OK) return code;
        }
    }
    *num_slots = n;
    return ATTN_OK;
}

int attn_plan_static_sink(const int32_t *seq_lens, int32_t num_reqs, const int32_t *block_table,
                          int64_t table_stride, int32_t sink_len, int32_t block_size, int32_t *out_table,
                          int64_t out_stride, int32_t *out_seq_lens, attn_error_t *error) {
    ATTNI_AT_LEAST(num_reqs, 0, "num_reqs", error);
    ATTNI_AT_LEAST(block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(sink_len, 0, "sink_len", error);
    ATTNI_AT_LEAST(table_stride, 0, "table_stride", error);
    if (sink_len % block_size != 0)
        return attn_fail(error, ATTN_E_INVALID, "sink_len", "sink_len %d is not a multiple of block_size %d",
                         (int)sink_len, (int)block_size);
    int32_t sink_blocks = sink_len / block_size;
    ATTNI_AT_LEAST(out_stride, table_stride + sink_blocks, "out_stride", error);
    if (num_reqs > 0) {
        ATTNI_NEED(seq_lens, "seq_lens", error);
        ATTNI_NEED(out_table, "out_table", error);
        ATTNI_NEED(out_seq_lens, "out_seq_lens", error);
        if (table_stride > 0) ATTNI_NEED(block_table, "block_table", error);
    }
    for (int32_t r = 0; r < num_reqs; r++) {
        if (seq_lens[r] < 0 || (int64_t)seq_lens[r] + sink_len > INT32_MAX)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens",
                             "seq_lens[%d] is %d; with %d sink tokens it exceeds 32 bits", (int)r,
                             (int)seq_lens[r], (int)sink_len);
        int32_t *row = out_table + r * out_stride;
        for (int32_t j = 0; j < sink_blocks; j++)
            row[j] = j + 1; /* block 0 stays the null block */
        if (table_stride > 0)
            memcpy(row + sink_blocks, block_table + r * table_stride, (size_t)table_stride * sizeof *row);
        for (int64_t j = table_stride + sink_blocks; j < out_stride; j++)
            row[j] = 0;
        out_seq_lens[r] = seq_lens[r] == 0 ? 0 : seq_lens[r] + sink_len;
    }
    return ATTN_OK;
}
