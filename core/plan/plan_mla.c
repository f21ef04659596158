/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_mla.c: how MLA prefill walks over the context of its requests in a workspace of bounded size: the size
 * of that workspace, and the table of chunks (semantics 6.9, with context parallelism 8.3).
 */
#include "base/arith.h"
#include "plan/check_batch.h"

#include <attn/attn_plan.h>

/* Semantics 6.9: 8 longest requests or 4 blocks a request, at most 64 Ki tokens, and never less than a block
 * a request. */
#define MAX_TOKENS 65536

int attn_plan_mla_workspace(const attn_mla_workspace_t *params, int64_t *tokens, int64_t *rows,
                            attn_error_t *error) {
    attn_mla_workspace_t p;
    ATTNI_NEED(tokens, "tokens", error);
    ATTNI_NEED(rows, "rows", error);
    int code = attn_intake(&p, sizeof p, params, "params", error);
    if (code != ATTN_OK) return code;
    int64_t world = p.cp_world != 0 ? p.cp_world : 1;
    ATTNI_AT_LEAST(p.block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(p.max_num_seqs, 1, "max_num_seqs", error);
    ATTNI_AT_LEAST(p.max_model_len, 1, "max_model_len", error);
    ATTNI_AT_LEAST(p.topk, 0, "topk", error);
    ATTNI_AT_LEAST(world, 1, "cp_world", error);
    int64_t one_block = (int64_t)p.max_num_seqs * p.block_size;
    int64_t longest = attni_min64(p.max_model_len, MAX_TOKENS); /* beyond it the product is cut anyway */
    int64_t ws = attni_max64(8 * longest, attni_min64(one_block, MAX_TOKENS) * 4);
    ws = attni_max64(attni_min64(ws, MAX_TOKENS), one_block);
    if (p.topk > 0) ws = attni_min64(ws, (int64_t)p.max_num_seqs * p.topk);
    if (ws > INT32_MAX)
        return attn_fail(error, ATTN_E_INVALID, "max_num_seqs",
                         "max_num_seqs %d with blocks of %d tokens makes a workspace of %lld tokens; 32-bit "
                         "counts hold 2147483647",
                         (int)p.max_num_seqs, (int)p.block_size, (long long)ws);
    if (ws % world != 0)
        return attn_fail(
            error, ATTN_E_INVALID, "cp_world",
            "cp_world %lld does not divide the workspace of %lld tokens; each rank gathers an equal part",
            (long long)world, (long long)ws);
    *tokens = ws;
    *rows = world > 1 ? ws + ws / world : ws;
    return ATTN_OK;
}

/* Defaults filled in, every member in range. *step: what a chunk is a multiple of. With context parallelism
 * that is also a round of all ranks, so that their shares of a chunk are equal. */
static int read_context_params(const attn_mla_context_params_t *params, attn_mla_context_params_t *p,
                               int64_t *step, attn_error_t *error) {
    int code = attn_intake(p, sizeof *p, params, "params", error);
    if (code != ATTN_OK) return code;
    if (p->cp_world == 0) p->cp_world = 1;
    if (p->cp_interleave == 0) p->cp_interleave = 1;
    ATTNI_AT_LEAST(p->block_size, 1, "block_size", error);
    ATTNI_AT_LEAST(p->workspace_tokens, 1, "workspace_tokens", error);
    ATTNI_AT_LEAST(p->cp_world, 1, "cp_world", error);
    ATTNI_AT_LEAST(p->cp_interleave, 1, "cp_interleave", error);
    if (p->workspace_tokens > INT32_MAX)
        return attn_fail(error, ATTN_E_INVALID, "workspace_tokens",
                         "workspace_tokens is %lld; at most 2147483647 can be counted",
                         (long long)p->workspace_tokens);
    int64_t round = p->cp_world > 1 ? (int64_t)p->cp_world * p->cp_interleave : 1, a = p->block_size,
            b = round;
    while (b != 0) { /* greatest common divisor */
        int64_t rest = a % b;
        a = b, b = rest;
    }
    if (__builtin_mul_overflow(p->block_size / a, round, step))
        return attn_fail(
            error, ATTN_E_INVALID, "cp_interleave",
            "block_size %lld, cp_world %lld and cp_interleave %lld have no common multiple below 2^63",
            (long long)p->block_size, (long long)p->cp_world, (long long)p->cp_interleave);
    return ATTN_OK;
}

int attn_plan_mla_context_size(const attn_mla_context_params_t *params, const int32_t *query_start_loc,
                               const int32_t *seq_lens, int32_t num_reqs, attn_mla_context_t *context,
                               attn_error_t *error) {
    attn_mla_context_params_t p;
    int64_t step = 1;
    ATTNI_NEED(context, "context", error);
    int code = read_context_params(params, &p, &step, error);
    if (code == ATTN_OK) code = attni_check_starts(query_start_loc, num_reqs, error);
    if (code == ATTN_OK) code = attni_check_lens(query_start_loc, seq_lens, num_reqs, error);
    if (code != ATTN_OK) return code;
    attn_mla_context_t c = {0, 0, 0, 0, 0};
    for (int32_t r = 0; r < num_reqs; r++) {
        int32_t len = seq_lens[r] - (query_start_loc[r + 1] - query_start_loc[r]);
        if (len == 0) continue;
        c.num_with_context++;
        c.max_context_len = len > c.max_context_len ? len : c.max_context_len;
        c.tokens_with_context = query_start_loc[r + 1];
    }
    if (c.num_with_context > 0) {
        int64_t chunk = p.workspace_tokens / c.num_with_context / step * step;
        if (chunk == 0)
            return attn_fail(
                error, ATTN_E_SPACE, "workspace_tokens",
                "workspace_tokens %lld holds less than %lld tokens of each of %d requests with context; "
                "attn_plan_mla_workspace says how many are needed",
                (long long)p.workspace_tokens, (long long)step, (int)c.num_with_context);
        c.chunk_len = (int32_t)chunk;
        c.num_chunks = (int32_t)attni_cdiv(c.max_context_len, chunk);
    }
    *context = c;
    return ATTN_OK;
}

int attn_plan_mla_context(const attn_mla_context_params_t *params, const int32_t *query_start_loc,
                          const int32_t *seq_lens, int32_t num_reqs, int32_t num_chunks, int32_t *starts,
                          int32_t *cu_seq_lens, int32_t *max_seq_lens, uint8_t *has_empty,
                          attn_error_t *error) {
    attn_mla_context_params_t p;
    attn_mla_context_t c;
    int64_t step;
    int code = attn_plan_mla_context_size(params, query_start_loc, seq_lens, num_reqs, &c, error);
    if (code == ATTN_OK) code = read_context_params(params, &p, &step, error);
    if (code != ATTN_OK) return code;
    if (num_chunks != c.num_chunks)
        return attn_fail(error, ATTN_E_INVALID, "num_chunks",
                         "num_chunks is %d; this batch makes %d (attn_plan_mla_context_size)",
                         (int)num_chunks, (int)c.num_chunks);
    if (num_chunks > 0) {
        ATTNI_NEED(starts, "starts", error);
        ATTNI_NEED(cu_seq_lens, "cu_seq_lens", error);
    }
    /* what this rank holds; the padded lengths are the same on all (semantics 8.3) */
    int64_t all_ranks = (int64_t)p.cp_world * p.cp_interleave, own = p.cp_interleave;
    int64_t chunk = p.cp_world > 1 ? attni_cdiv(c.chunk_len, all_ranks) * own : c.chunk_len;
    for (int32_t j = 0; j < num_chunks; j++) {
        int32_t *cu = cu_seq_lens + (int64_t)j * (num_reqs + 1), longest = 0;
        uint8_t empty = 0;
        cu[0] = 0;
        for (int32_t r = 0; r < num_reqs; r++) {
            int64_t context = seq_lens[r] - (query_start_loc[r + 1] - query_start_loc[r]), start = j * chunk;
            if (p.cp_world > 1) context = attni_cdiv(context, all_ranks) * own;
            int64_t len = attni_max64(0, attni_min64(context, start + chunk) - start);
            starts[(int64_t)j * num_reqs + r] = (int32_t)start;
            cu[r + 1] = cu[r] + (int32_t)len;
            longest = len > longest ? (int32_t)len : longest;
            empty |= len == 0;
        }
        if (max_seq_lens != NULL) max_seq_lens[j] = longest;
        if (has_empty != NULL) has_empty[j] = empty;
    }
    return ATTN_OK;
}
