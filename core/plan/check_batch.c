/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_batch.c: one batch against its problem, before any plugin sees it. Everything is 64-bit inside:
 * lengths are int32, but their sums and products with block sizes are not.
 */
#include "base/arith.h"
#include "plan/check_batch.h"
#include "base/reserved.h"

#include <attn/attn_plan.h>

struct check {
    const attn_problem_t *p;
    const attn_batch_t *b;
    int64_t max_seqs, max_tokens, max_len;
    int64_t num_blocks;
    int has_key_lengths; /* ATTN_F_KEY_LENGTHS */
    attn_error_t *error;
};

#define REFUSE(PARAM, ...) return attn_fail(c->error, ATTN_E_INVALID, PARAM, __VA_ARGS__)

static int check_counts(const struct check *c) {
    const attn_batch_t *b = c->b;
    if ((b->flags & ~ATTN_BATCH_CAPTURE) != 0)
        REFUSE("flags", "flags is 0x%x; only ATTN_BATCH_CAPTURE (0x%x) is defined", (unsigned)b->flags,
               (unsigned)ATTN_BATCH_CAPTURE);
    ATTNI_AT_LEAST(b->num_reqs, 0, "num_reqs", c->error);
    ATTNI_AT_LEAST(b->num_actual_tokens, 0, "num_actual_tokens", c->error);
    if (b->num_reqs > c->max_seqs)
        REFUSE("num_reqs", "num_reqs is %d; the problem was opened for %lld (max_num_seqs)", (int)b->num_reqs,
               (long long)c->max_seqs);
    if (b->num_actual_tokens > c->max_tokens)
        REFUSE("num_actual_tokens",
               "num_actual_tokens is %d; the problem was opened for %lld (max_num_batched_tokens)",
               (int)b->num_actual_tokens, (long long)c->max_tokens);
    if (b->num_reqs == 0 && b->num_actual_tokens != 0)
        REFUSE("num_actual_tokens", "num_actual_tokens is %d in a batch without requests",
               (int)b->num_actual_tokens);
    return attni_reserved_check("attn_batch_t", (uint32_t)b->reserved0, b->reserved,
                                sizeof b->reserved / sizeof b->reserved[0], c->error);
}

/* Lengths of every request, and the two maxima that a caller may give. */
static int check_lengths(const struct check *c) {
    const attn_batch_t *b = c->b;
    int64_t longest_query = 0, longest_seq = 0;
    if (b->num_reqs == 0) return ATTN_OK;
    ATTNI_NEED(b->query_start_loc_host, "query_start_loc_host", c->error);
    ATTNI_NEED(b->seq_lens_host, "seq_lens_host", c->error);
    const int32_t *starts = b->query_start_loc_host;
    if (starts[0] != 0)
        REFUSE("query_start_loc_host", "query_start_loc_host[0] is %d; it must be 0", (int)starts[0]);
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t query = (int64_t)starts[r + 1] - starts[r], seq = b->seq_lens_host[r];
        if (query < 0)
            REFUSE("query_start_loc_host", "query_start_loc_host[%d] is %d after %d; it must not decrease",
                   (int)r + 1, (int)starts[r + 1], (int)starts[r]);
        if (seq < 0)
            REFUSE("seq_lens_host", "seq_lens_host[%d] is %lld; it must be 0 or more", (int)r,
                   (long long)seq);
        if (seq < query && !c->has_key_lengths)
            REFUSE("seq_lens_host",
                   "seq_lens_host[%d] is %lld with %lld new tokens; it counts them too, so it cannot be less",
                   (int)r, (long long)seq, (long long)query);
        if (!attn_role_has_cache(c->p->role) && !c->has_key_lengths && seq != query)
            REFUSE("seq_lens_host",
                   "seq_lens_host[%d] is %lld with %lld tokens; role %s has no cache, so both are equal: "
                   "request ATTN_F_KEY_LENGTHS for keys with lengths of their own",
                   (int)r, (long long)seq, (long long)query, attn_role_name(c->p->role));
        if (seq > c->max_len)
            REFUSE("seq_lens_host",
                   "seq_lens_host[%d] is %lld; the problem was opened for %lld (max_model_len)", (int)r,
                   (long long)seq, (long long)c->max_len);
        if (b->common_prefix_len > 0 && b->common_prefix_len > seq - query)
            REFUSE("common_prefix_len", "common_prefix_len is %d; request %d has only %lld computed tokens",
                   (int)b->common_prefix_len, (int)r, (long long)(seq - query));
        longest_query = attni_max64(longest_query, query);
        longest_seq = attni_max64(longest_seq, seq);
    }
    if (starts[b->num_reqs] != b->num_actual_tokens)
        REFUSE("num_actual_tokens", "num_actual_tokens is %d; query_start_loc_host ends with %d",
               (int)b->num_actual_tokens, (int)starts[b->num_reqs]);
    if (b->max_query_len != 0 && b->max_query_len < longest_query)
        REFUSE("max_query_len", "max_query_len is %d; the longest query has %lld tokens (0: computed)",
               (int)b->max_query_len, (long long)longest_query);
    if (b->max_seq_len != 0 && b->max_seq_len < longest_seq)
        REFUSE("max_seq_len", "max_seq_len is %lld; the longest sequence has %lld tokens (0: computed)",
               (long long)b->max_seq_len, (long long)longest_seq);
    return ATTN_OK;
}

/* Where the keys of the call lie, with ATTN_F_KEY_LENGTHS (semantics 2.16). */
static int check_key_rows(const struct check *c) {
    const attn_batch_t *b = c->b;
    const int32_t *starts = b->key_start_loc_host;
    if (!c->has_key_lengths) {
        if (starts != NULL)
            REFUSE(
                "key_start_loc_host",
                "key_start_loc_host is given, but the problem lacks ATTN_F_KEY_LENGTHS; it would be ignored");
        return ATTN_OK;
    }
    if (b->num_reqs == 0) return ATTN_OK;
    ATTNI_NEED(starts, "key_start_loc_host", c->error);
    if (starts[0] != 0)
        REFUSE("key_start_loc_host", "key_start_loc_host[0] is %d; it must be 0", (int)starts[0]);
    const int is_dense = (c->p->features & ATTN_F_FP8_ATTENTION) != 0; /* scales are those of all rows */
    for (int32_t r = 0; r < b->num_reqs; r++) {
        const int64_t rows = (int64_t)starts[r + 1] - starts[r], seq = b->seq_lens_host[r];
        if (rows < 0)
            REFUSE("key_start_loc_host", "key_start_loc_host[%d] is %d after %d; it must not decrease",
                   (int)r + 1, (int)starts[r + 1], (int)starts[r]);
        if (seq > rows || (is_dense && seq != rows))
            REFUSE("seq_lens_host",
                   "seq_lens_host[%d] is %lld; key_start_loc_host gives request %d %lld rows, and it has %s",
                   (int)r, (long long)seq, (int)r, (long long)rows,
                   is_dense ? "as many keys with fp8_attention" : "at most as many keys");
    }
    const int64_t most = c->p->max_num_batched_keys != 0 ? c->p->max_num_batched_keys : c->max_tokens;
    if (starts[b->num_reqs] > most)
        REFUSE("key_start_loc_host",
               "key_start_loc_host ends with %d; the problem was opened for %lld rows (max_num_batched_keys)",
               (int)starts[b->num_reqs], (long long)most);
    return ATTN_OK;
}

/* A list with one entry per request (or more: padding). */
static int check_list(const struct check *c, const DLTensor *t, const char *name, uint32_t dtype,
                      int64_t least) {
    if (t == NULL) return ATTN_OK;
    int code = attn_check_tensor(t, name, dtype, 1, NULL, c->error);
    if (code == ATTN_OK && t->shape[0] < least)
        REFUSE(name, "%s has %lld entries; this batch needs %lld", name, (long long)t->shape[0],
               (long long)least);
    return code;
}

static int check_masks(const struct check *c) {
    const attn_problem_t *p = c->p;
    const attn_batch_t *b = c->b;
    int per_request = p->mask == ATTN_MASK_PER_REQUEST, spans = (p->features & ATTN_F_MM_PREFIX) != 0;
    if (!per_request && (b->causal_host != NULL || b->causal != NULL))
        REFUSE("causal", "causal is given, but the problem's mask is not per_request; it would be ignored");
    if (!spans && (b->mm_prefix_ranges != NULL || b->mm_prefix_ranges_host != NULL))
        REFUSE("mm_prefix_ranges", "mm_prefix_ranges are given, but the problem lacks ATTN_F_MM_PREFIX");
    if (p->rswa_window == 0 && (b->rswa_prefix_lens != NULL || b->rswa_prefix_lens_host != NULL))
        REFUSE("rswa_prefix_lens", "rswa_prefix_lens are given, but the problem has no rswa_window");
    if (per_request && b->num_reqs > 0) {
        ATTNI_NEED(b->causal_host, "causal_host", c->error);
        for (int32_t r = 0; r < b->num_reqs; r++)
            if (b->causal_host[r] > 1)
                REFUSE("causal_host", "causal_host[%d] is %u; it must be 0 or 1", (int)r,
                       (unsigned)b->causal_host[r]);
    }
    if (p->rswa_window != 0 && b->num_reqs > 0 && b->rswa_prefix_lens == NULL &&
        b->rswa_prefix_lens_host == NULL)
        REFUSE("rswa_prefix_lens", "rswa_prefix_lens is not given; the problem has an rswa_window");
    for (int32_t r = 0; b->rswa_prefix_lens_host != NULL && r < b->num_reqs; r++)
        ATTNI_AT_LEAST(b->rswa_prefix_lens_host[r], 0, "rswa_prefix_lens_host", c->error);

    int64_t most = p->max_mm_ranges != 0 ? p->max_mm_ranges : 8;
    if (b->num_mm_ranges < 0 || b->num_mm_ranges > most)
        REFUSE("num_mm_ranges", "num_mm_ranges is %d; the problem was opened for 0 .. %lld (max_mm_ranges)",
               (int)b->num_mm_ranges, (long long)most);
    if (b->mm_prefix_ranges != NULL) {
        const int64_t shape[3] = {-1, -1, 2};
        int code =
            attn_check_tensor(b->mm_prefix_ranges, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, shape, c->error);
        if (code != ATTN_OK) return code;
        if (b->mm_prefix_ranges->shape[0] < b->num_reqs || b->mm_prefix_ranges->shape[1] > most)
            REFUSE("mm_prefix_ranges", "mm_prefix_ranges is [%lld, %lld, 2]; expected [%d, at most %lld, 2]",
                   (long long)b->mm_prefix_ranges->shape[0], (long long)b->mm_prefix_ranges->shape[1],
                   (int)b->num_reqs, (long long)most);
    }
    for (int64_t i = 0; b->mm_prefix_ranges_host != NULL && i < (int64_t)b->num_reqs * b->num_mm_ranges;
         i++) {
        int32_t begin = b->mm_prefix_ranges_host[2 * i], end = b->mm_prefix_ranges_host[2 * i + 1];
        if (begin < 0 || end < begin)
            REFUSE("mm_prefix_ranges_host",
                   "span %lld of request %lld is (%d, %d); it must be a start and an end, from 0 up",
                   (long long)(i % b->num_mm_ranges), (long long)(i / b->num_mm_ranges), (int)begin,
                   (int)end);
    }
    return ATTN_OK;
}

static int check_prefix(const struct check *c) {
    const attn_batch_t *b = c->b;
    ATTNI_AT_LEAST(b->common_prefix_len, 0, "common_prefix_len", c->error);
    if (b->common_prefix_len == 0) return ATTN_OK;
    if ((c->p->features & ATTN_F_CASCADE) == 0)
        REFUSE("common_prefix_len", "common_prefix_len is %d, but the problem lacks ATTN_F_CASCADE",
               (int)b->common_prefix_len);
    if (c->p->block_size != 0 && b->common_prefix_len % (int64_t)c->p->block_size != 0)
        REFUSE("common_prefix_len", "common_prefix_len %d is not a multiple of block_size %u",
               (int)b->common_prefix_len, (unsigned)c->p->block_size);
    return ATTN_OK;
}

/* Keys of request r that lie in the cache of one rank. */
static int64_t cached_keys(const struct check *c, int32_t r) {
    int cross = c->p->role == ATTN_ROLE_ENCODER_DECODER;
    int64_t len = cross ? c->b->encoder_seq_lens_host[r] : c->b->seq_lens_host[r];
    return attn_plan_cp_local_len(len, (int32_t)c->p->dcp_world_size, (int32_t)c->p->dcp_rank,
                                  (int32_t)c->p->cp_interleave);
}

/* The first id that is not a block of the cache, n if all are. Sixteen at a time: the sign shows ids below 0
 * and, of the last block minus the id, those beyond it. */
static int64_t first_outside(const int32_t *ids, int64_t n, int64_t num_blocks) {
    const uint32_t last = (uint32_t)attni_min64(num_blocks, INT32_MAX) - 1;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32_t signs = 0;
        for (int j = 0; j < 16; j++)
            signs |= (uint32_t)ids[i + j] | (last - (uint32_t)ids[i + j]);
        if (signs >> 31 != 0) break;
    }
    while (i < n && ids[i] >= 0 && ids[i] < num_blocks)
        i++;
    return i;
}

/* Rows long enough for every request, and every id that will be read inside the cache. */
static int check_table(const struct check *c) {
    const attn_batch_t *b = c->b;
    int64_t bs = c->p->block_size, width, stride, host_stride = b->block_table_host_stride;
    const DLTensor *t = b->block_table;
    int64_t keys = 0;
    for (int32_t r = 0; r < b->num_reqs; r++)
        keys = attni_max64(keys, cached_keys(c, r));
    if (t == NULL && (keys == 0 || (c->p->features & ATTN_F_CONTIGUOUS_KV) != 0)) return ATTN_OK;
    int code = attn_check_tensor(t, "block_table", ATTN_DTYPE_INT32, 2, NULL, c->error);
    if (code != ATTN_OK) return code;
    if (t->shape[0] < b->num_reqs)
        REFUSE("block_table", "block_table has %lld rows for %d requests", (long long)t->shape[0],
               (int)b->num_reqs);
    if (bs == 0) return ATTN_OK; /* not opened yet: the block size is the backend's choice */
    width = t->shape[1];
    stride = t->strides[0];
    const int32_t *ids = NULL;
    if (b->block_table_host != NULL) {
        ATTNI_AT_LEAST(host_stride, 0, "block_table_host_stride", c->error);
        width = attni_min64(width, host_stride);
        stride = host_stride;
        ids = b->block_table_host;
    } else if (t->device.device_type == kDLCPU && t->data != NULL) {
        ids = (const int32_t *)attn_data(t);
    }
    if (attni_cdiv(keys, bs) <= width && (ids == NULL || c->num_blocks == 0)) return ATTN_OK;
    for (int32_t r = 0; r < b->num_reqs; r++) {
        int64_t blocks = attni_cdiv(cached_keys(c, r), bs);
        if (blocks > width)
            REFUSE("block_table",
                   "request %d has %lld keys in %lld blocks of %lld; its block_table row has %lld entries",
                   (int)r, (long long)cached_keys(c, r), (long long)blocks, (long long)bs, (long long)width);
        if (ids == NULL || c->num_blocks == 0) continue;
        int64_t j = first_outside(ids + r * stride, blocks, c->num_blocks);
        if (j < blocks)
            REFUSE("block_table", "block_table[%d][%lld] is %d; the cache has blocks 0 .. %lld", (int)r,
                   (long long)j, (int)ids[r * stride + j], (long long)c->num_blocks - 1);
    }
    return ATTN_OK;
}

/* Slots that can be seen from here must lie in the cache; negative ones are skipped by every writer. Those
 * behind the tokens are padding, but for cross attention, whose slots are the encoder's tokens. */
static int check_slots(const struct check *c) {
    const DLTensor *t = c->b->slot_mapping;
    int64_t slots, n;
    if (t == NULL || t->device.device_type != kDLCPU || c->p->block_size == 0 || c->num_blocks == 0)
        return ATTN_OK;
    if (__builtin_mul_overflow(c->num_blocks, (int64_t)c->p->block_size, &slots)) return ATTN_OK;
    const int64_t *slot = (const int64_t *)attn_data(t);
    n = c->p->role == ATTN_ROLE_ENCODER_DECODER ? t->shape[0] : c->b->num_actual_tokens;
    const int64_t i = attni_first_beyond(slot, n, slots);
    if (i < n)
        REFUSE("slot_mapping", "slot_mapping[%lld] is %lld; the cache has %lld slots (%lld blocks of %u)",
               (long long)i, (long long)slot[i], (long long)slots, (long long)c->num_blocks,
               (unsigned)c->p->block_size);
    return ATTN_OK;
}

/* Members that no backend reads: a caller who sets one would expect an effect. */
static int check_unserved(const struct check *c) {
    const attn_batch_t *b = c->b;
    if (b->dcp_local_seq_lens != NULL && c->p->dcp_world_size <= 1)
        REFUSE("dcp_local_seq_lens",
               "dcp_local_seq_lens is given with dcp_world_size %u; it would be ignored",
               (unsigned)c->p->dcp_world_size);
    return ATTN_OK;
}

static int check_tensors(const struct check *c) {
    const attn_batch_t *b = c->b;
    int64_t reqs = b->num_reqs;
    if ((c->p->features & ATTN_F_DEVICE_LENGTHS) != 0 &&
        reqs > 0) { /* they say the lengths (semantics 1.6) */
        ATTNI_NEED(b->query_start_loc, "query_start_loc", c->error);
        ATTNI_NEED(b->seq_lens, "seq_lens", c->error);
    }
    /* Cross attention writes encoder tokens, whose count has nothing to do with this step's. */
    int64_t slots = c->p->role == ATTN_ROLE_ENCODER_DECODER ? 0 : b->num_actual_tokens;
    int code = check_list(c, b->query_start_loc, "query_start_loc", ATTN_DTYPE_INT32, reqs + 1);
    if (code == ATTN_OK) code = check_list(c, b->seq_lens, "seq_lens", ATTN_DTYPE_INT32, reqs);
    if (code == ATTN_OK) code = check_list(c, b->slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, slots);
    if (code == ATTN_OK) code = check_list(c, b->causal, "causal", ATTN_DTYPE_INT32, reqs);
    if (code == ATTN_OK)
        code = check_list(c, b->rswa_prefix_lens, "rswa_prefix_lens", ATTN_DTYPE_INT32, reqs);
    if (code == ATTN_OK)
        code = check_list(c, b->encoder_seq_lens, "encoder_seq_lens", ATTN_DTYPE_INT32, reqs);
    if (code == ATTN_OK)
        code = check_list(c, b->dcp_local_seq_lens, "dcp_local_seq_lens", ATTN_DTYPE_INT32, reqs);
    return code;
}

static int check_cache(const struct check *c) {
    const attn_batch_t *b = c->b;
    if (!attn_role_has_cache(c->p->role)) {
        if (b->block_table != NULL || b->block_table_host != NULL || b->slot_mapping != NULL)
            REFUSE(b->slot_mapping != NULL ? "slot_mapping" : "block_table",
                   "role %s has no cache; give neither block_table nor slot_mapping",
                   attn_role_name(c->p->role));
        return ATTN_OK;
    }
    if (c->p->role == ATTN_ROLE_ENCODER_DECODER && b->num_reqs > 0) {
        ATTNI_NEED(b->encoder_seq_lens_host, "encoder_seq_lens_host", c->error);
        for (int32_t r = 0; r < b->num_reqs; r++)
            ATTNI_AT_LEAST(b->encoder_seq_lens_host[r], 0, "encoder_seq_lens_host", c->error);
    }
    int code = check_table(c);
    return code != ATTN_OK ? code : check_slots(c);
}

int attni_check_batch(const attn_problem_t *p, const attn_batch_t *b, int64_t num_blocks,
                      attn_error_t *error) {
    const struct check c = {.p = p,
                            .b = b,
                            .max_seqs = p->max_num_seqs != 0 ? p->max_num_seqs : 256,
                            .max_tokens = p->max_num_batched_tokens != 0 ? p->max_num_batched_tokens : 8192,
                            .max_len = p->max_model_len != 0 ? p->max_model_len : 131072,
                            .num_blocks = num_blocks != 0 ? num_blocks : (int64_t)p->num_blocks,
                            .has_key_lengths = (p->features & ATTN_F_KEY_LENGTHS) != 0,
                            .error = error};
    int code = check_counts(&c);
    if (code == ATTN_OK) code = check_prefix(&c);
    if (code == ATTN_OK) code = check_lengths(&c);
    if (code == ATTN_OK) code = check_key_rows(&c);
    if (code == ATTN_OK) code = check_masks(&c);
    if (code == ATTN_OK) code = check_unserved(&c);
    if (code == ATTN_OK) code = check_tensors(&c);
    return code != ATTN_OK ? code : check_cache(&c);
}

int attn_plan_check_batch(const attn_problem_t *problem, const attn_batch_t *batch, int64_t num_blocks,
                          attn_error_t *error) {
    attn_problem_t p;
    attn_batch_t b;
    int code = attn_intake(&p, sizeof p, problem, "problem", error);
    if (code == ATTN_OK) code = attn_intake(&b, sizeof b, batch, "batch", error);
    if (code != ATTN_OK) return code;
    ATTNI_AT_LEAST(num_blocks, 0, "num_blocks", error);
    return attni_check_batch(&p, &b, num_blocks, error);
}
