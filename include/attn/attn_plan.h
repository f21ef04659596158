/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_plan.h: batch planning and KV-cache accounting on the host, as plain functions over plain arrays.
 * Engines reach them through attn.h; plugins, which link to nothing of libattn, through the host extension
 * ATTN_PLAN_EXTENSION. All are [any thread] [pure] [no alloc]: outputs go to the caller's arrays, whose
 * lengths are said at each parameter, and are written on success only; what is out of range is ATTN_E_INVALID
 * with the parameter's name. "semantics n.m" is the section of doc/semantics.md (installed in
 * share/doc/libattn) that defines a rule.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include <attn/attn_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------- decode and prefill */

/* Where the decode part of a batch ends (semantics 1.4). Decodes come first. */
typedef struct attn_split {
    int32_t num_decodes, num_prefills;
    int32_t num_decode_tokens, num_prefill_tokens;
} attn_split_t;

#define ATTN_SPLIT_REQUIRE_UNIFORM (UINT32_C(1) << 0) /* decode requests share one query length */
/* requests with is_prefilling are never decodes */
#define ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL (UINT32_C(1) << 1)

/* Splits at the first prefill. is_prefilling [num_reqs] is read only with ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL
 * (may be NULL otherwise). threshold >= 1: query tokens up to which a request counts as decode. */
int attn_plan_split(const int32_t *query_start_loc, int32_t num_reqs, const uint8_t *is_prefilling,
                    int32_t threshold, uint32_t flags, attn_split_t *split, attn_error_t *error);

/* Three-way split: decodes (query_len <= threshold), extends (longer, with context), prefills (longer, no
 * context). */
typedef struct attn_split3 {
    int32_t num_decodes, num_extends, num_prefills;
    int32_t num_decode_tokens, num_extend_tokens, num_prefill_tokens;
} attn_split3_t;
int attn_plan_split3(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                     int32_t threshold, attn_split3_t *split, attn_error_t *error);

/* Four-region order: decode, short extend, long extend, prefill (semantics 1.4). Stable: only requests in the
 * wrong region move. order [num_reqs] receives the request that belongs at each place; *moved: 1 if it is not
 * the identity. */
int attn_plan_reorder(const int32_t *context_lens, const int32_t *query_lens, const uint8_t *is_prefilling,
                      int32_t num_reqs, int32_t threshold, int32_t *order, int32_t *moved,
                      attn_error_t *error);

/* The threshold to use: base 0 means no reordering and stays 0 (semantics 1.4, last table). */
int32_t attn_plan_reorder_threshold(int32_t base, int32_t spec_as_decode, int32_t num_spec_tokens,
                                    int32_t parallel_drafting, int32_t dcp_world_size, int32_t dcp_varlen);

/* ---------------------------------------------------------- slots and blocks */

/* slots [num_tokens]: cache slot of each new token, T = query_start_loc[num_reqs]; entries T .. num_tokens-1
 * become -1. Token i of request r has position seq_lens[r] - query_len + i. block_table [num_reqs,
 * table_stride] holds manager blocks of manager_block tokens; a slot counts kernel blocks of block_size
 * tokens (manager_block a multiple of it). With cp_world > 1 tokens of other ranks get -1 (semantics 1.3). */
typedef struct attn_slot_params {
    uint32_t struct_size;
    int32_t block_size;
    int32_t manager_block;                    /* 0: block_size */
    int32_t cp_world, cp_rank, cp_interleave; /* 0: 1, 0, 1 */
    int64_t num_blocks;                       /* kernel blocks; 0: not checked */
} attn_slot_params_t;
int attn_plan_slot_mapping(const attn_slot_params_t *params, const int32_t *query_start_loc,
                           const int32_t *seq_lens, int32_t num_reqs, const int32_t *block_table,
                           int64_t table_stride, int64_t num_tokens, int64_t *slots, attn_error_t *error);

/* Expands manager blocks into kernel blocks: b becomes b*f .. b*f+f-1 with f = manager_block / block_size. */
int attn_plan_expand_blocks(const int32_t *manager_blocks, int64_t n, int32_t manager_block,
                            int32_t block_size, int32_t *kernel_blocks /* [n * f] */, attn_error_t *error);

/* Slots of encoder tokens for cross attention: for each request without computed tokens, 0 .. len-1
 * (semantics 6.8).
 * *num_slots: how many were written; capacity: entries in slots. */
int attn_plan_cross_slots(const int32_t *encoder_seq_lens, const int32_t *num_computed, int32_t num_reqs,
                          const int32_t *block_table, int64_t table_stride, int32_t block_size,
                          int64_t *slots, int64_t capacity, int64_t *num_slots, attn_error_t *error);

/* token_to_req [num_tokens]: request of each query token; the padded tail becomes 0. */
int attn_plan_token_to_req(const int32_t *query_start_loc, int32_t num_reqs, int32_t *token_to_req,
                           int64_t num_tokens, attn_error_t *error);

/* The table and lengths of a batch with static sink tokens in blocks 1 .. sink_len/block_size (semantics
 * 2.11). out_table [num_reqs, out_stride], out_stride >= table_stride + sink_len / block_size; out_seq_lens
 * [num_reqs]. */
int attn_plan_static_sink(const int32_t *seq_lens, int32_t num_reqs, const int32_t *block_table,
                          int64_t table_stride, int32_t sink_len, int32_t block_size, int32_t *out_table,
                          int64_t out_stride, int32_t *out_seq_lens, attn_error_t *error);

/* Kernel block size of a layer group (semantics 5.5): sizes that every backend of the group takes. Each
 * backend is given as a list of attn_block_size-like pairs {size, is_multiple}. 0 in *block_size never comes
 * with ATTN_OK. */
int attn_plan_kernel_block_size(int32_t manager_block, const uint32_t (*const *sizes)[2],
                                const uint32_t *num_sizes, int32_t num_backends, int32_t *block_size,
                                attn_error_t *error);

/* ------------------------------------------------------ chunked local attention */

/* Number of virtual requests and the widest table row for chunk_size (semantics 6.7). */
int attn_plan_chunked_local_size(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                                 int32_t chunk_size, int32_t *num_virtual, attn_error_t *error);
/* Splits every request at chunk borders. Outputs: query_start_loc_out [num_virtual + 1], seq_lens_out
 * [num_virtual], request_out [num_virtual] (origin), first_block_out [num_virtual] (column where the row of
 * chunk_size / block_size columns starts in the origin's row). */
int attn_plan_chunked_local(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                            int32_t chunk_size, int32_t block_size, int32_t num_virtual,
                            int32_t *query_start_loc_out, int32_t *seq_lens_out, int32_t *request_out,
                            int32_t *first_block_out, attn_error_t *error);
/* Gathers the virtual block table [num_virtual, chunk_size / block_size] from the real one; columns are
 * clipped to its width. Callable again after the table changed (update_block_table). */
int attn_plan_chunked_local_table(const int32_t *block_table, int64_t table_stride, int64_t table_width,
                                  const int32_t *request, const int32_t *first_block, int32_t num_virtual,
                                  int32_t chunk_blocks, int32_t *virtual_table, attn_error_t *error);

/* ------------------------------------------------------- cascade and parallelism */

typedef struct attn_cascade_params {
    uint32_t struct_size;
    int32_t common_prefix_len;
    int32_t num_heads, num_kv_heads;
    int32_t has_alibi, has_sliding_window, has_local_attention; /* 0 or 1 */
    int32_t dcp_world_size;
    int32_t num_sms;
} attn_cascade_params_t;
/* 1: cascade attention pays (semantics 6.4). */
int32_t attn_plan_use_cascade(const attn_cascade_params_t *params, const int32_t *query_lens,
                              int32_t num_reqs);

/* Leading tokens (a multiple of block_size) whose blocks all requests share. */
int32_t attn_plan_common_prefix(const int32_t *block_table, int64_t table_stride, const int32_t *seq_lens,
                                int32_t num_reqs, int32_t block_size);

/* Tokens of a sequence that live on one rank, and the largest such share (semantics 8.1). */
int64_t attn_plan_cp_local_len(int64_t seq_len, int32_t world, int32_t rank, int32_t interleave);
int64_t attn_plan_cp_local_bound(int64_t seq_len, int32_t world, int32_t interleave);

/* KV-sharing fast prefill (semantics 6.8): the batch of logit rows only. logits_indices [num_indices]
 * ascending token rows; query_start_loc_out [num_reqs + 1]. *max_query_len receives the longest. */
int attn_plan_fast_prefill(const int32_t *query_start_loc, int32_t num_reqs, const int32_t *logits_indices,
                           int32_t num_indices, int32_t *query_start_loc_out, int32_t *max_query_len,
                           attn_error_t *error);

/* Merges two partial attention results of float32 rows [num_tokens, num_heads, head_size_v] with natural LSEs
 * [num_heads, num_tokens] (semantics 6.5, 2.14). out may alias either; lse_out may be NULL. Tokens at and
 * beyond prefill_tokens_with_context take the suffix unchanged; pass num_tokens for all. */
int attn_plan_merge_states(const float *prefix_out, const float *prefix_lse, const float *suffix_out,
                           const float *suffix_lse, int64_t num_tokens, int32_t num_heads,
                           int32_t head_size_v, int64_t prefill_tokens_with_context, float *out,
                           float *lse_out, attn_error_t *error);

/* -------------------------------------------------------- context of MLA prefill
 * Prefill of MLA projects the cached latents of a request's context up to keys and values, chunk by chunk in
 * a workspace of bounded size, attends to each chunk without a mask and merges the results (semantics 6.9,
 * 7.4). */

/* What fixes the size of that workspace. */
typedef struct attn_mla_workspace {
    uint32_t struct_size;
    int32_t block_size;    /* tokens */
    int32_t max_num_seqs;  /* requests in a batch */
    int32_t topk;          /* sparse MLA: never more than topk tokens a request; 0: dense */
    int64_t max_model_len; /* longest request, tokens */
    int32_t cp_world;      /* context-parallel ranks; 0: 1. Must divide the result */
    int32_t reserved0;
} attn_mla_workspace_t;
/* *tokens: context tokens of one chunk of the whole batch. *rows: latent rows to allocate for them: the same,
 * and with cp_world > 1 a rank's own part beside what it receives from all. */
int attn_plan_mla_workspace(const attn_mla_workspace_t *params, int64_t *tokens, int64_t *rows,
                            attn_error_t *error);

typedef struct attn_mla_context_params {
    uint32_t struct_size;
    int32_t block_size;       /* tokens; chunks are whole blocks */
    int64_t workspace_tokens; /* as attn_plan_mla_workspace gave it */
    int32_t cp_world;         /* 0: 1 */
    int32_t cp_interleave;    /* 0: 1 */
} attn_mla_context_params_t;

/* How the context of a batch of prefills is cut. */
typedef struct attn_mla_context {
    int32_t num_chunks;       /* 0: no request has context */
    int32_t num_with_context; /* requests that have some; they share the workspace equally */
    int32_t chunk_len;        /* tokens of one request in a chunk at most */
    int32_t max_context_len;
    int32_t tokens_with_context; /* query tokens up to and with the last request that has context: the
                                    prefill_tokens_with_context of attn_plan_merge_states */
} attn_mla_context_t;
/* query_start_loc [num_reqs + 1] and seq_lens [num_reqs] of the prefill requests alone, starts counted from
 * the first of them. ATTN_E_SPACE where the workspace does not hold a block of each request. */
int attn_plan_mla_context_size(const attn_mla_context_params_t *params, const int32_t *query_start_loc,
                               const int32_t *seq_lens, int32_t num_reqs, attn_mla_context_t *context,
                               attn_error_t *error);
/* The table of chunks; num_chunks as the call above says. Chunk j holds context tokens starts[j][r] .. of
 * request r, as many as cu_seq_lens[j][r + 1] - cu_seq_lens[j][r] (0 where its context ends before), at rows
 * cu_seq_lens[j][r] .. of the workspace: starts [num_chunks, num_reqs], cu_seq_lens [num_chunks, num_reqs +
 * 1]. max_seq_lens [num_chunks]: longest part of a request; has_empty [num_chunks]: 1 if some request has no
 * token in the chunk. Either may be NULL. With cp_world > 1 all of these count tokens of one rank, padded to
 * be equal on all (semantics 8.3). Row to request, for a gather: attn_plan_token_to_req(cu_seq_lens + j *
 * (num_reqs + 1), num_reqs, ..). */
int attn_plan_mla_context(const attn_mla_context_params_t *params, const int32_t *query_start_loc,
                          const int32_t *seq_lens, int32_t num_reqs, int32_t num_chunks, int32_t *starts,
                          int32_t *cu_seq_lens, int32_t *max_seq_lens, uint8_t *has_empty,
                          attn_error_t *error);

/* ---------------------------------------------------------------- cache specs */

enum {
    ATTN_SPEC_FULL = 1,
    ATTN_SPEC_SLIDING_WINDOW = 2,
    ATTN_SPEC_CHUNKED_LOCAL = 3,
    ATTN_SPEC_MLA = 4,
    ATTN_SPEC_CROSS = 5,
    ATTN_SPEC_ENCODER_ONLY = 6, /* no cache */
    ATTN_SPEC_SINK_FULL = 7,
    ATTN_SPEC_TURBOQUANT = 8,
    ATTN_SPEC_RSWA = 9
};

/* What one layer keeps per block and how many blocks a request may need (semantics 3.10). */
typedef struct attn_kv_spec {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t block_size;
    uint32_t num_kv_heads;
    uint32_t head_size, head_size_v;
    uint32_t dtype;          /* ATTN_DTYPE_* of the model */
    uint32_t kv_cache_dtype; /* ATTN_KV_* */
    uint32_t sliding_window;
    uint32_t chunk_size;
    uint32_t sink_len;
    uint32_t rswa_window;
    uint32_t compress_ratio;   /* 0: 1 */
    uint32_t non_causal;       /* 1: scheduler must not chunk prefill or cache prefixes */
    int64_t page_bytes_padded; /* 0: none; else at least the unpadded size */
    int64_t alignment;         /* 0: none; pad pages up to a multiple */
} attn_kv_spec_t;

/* The spec of a layer; block_size 0 in the problem becomes `block_size`. Encoder roles give
 * ATTN_SPEC_ENCODER_ONLY. */
int attn_kv_spec_of(const attn_problem_t *problem, uint32_t block_size, attn_kv_spec_t *spec,
                    attn_error_t *error);
/* Bytes of one page of one layer, padding and alignment applied. */
int attn_kv_spec_page_bytes(const attn_kv_spec_t *spec, int64_t *bytes, attn_error_t *error);
/* The largest number of blocks that one request can hold: the admission limit. inflight: tokens scheduled and
 * not settled. */
int attn_kv_spec_max_blocks(const attn_kv_spec_t *spec, int64_t max_model_len, int64_t inflight_tokens,
                            int64_t max_encoder_tokens, int32_t dcp_world_size, int64_t *blocks,
                            attn_error_t *error);
/* The spec of a group; an error names the member that differs. */
int attn_kv_spec_merge(const attn_kv_spec_t *specs, uint32_t num_specs, attn_kv_spec_t *merged,
                       attn_error_t *error);
/* "full_attention" and the like, of ATTN_SPEC_*; "unknown" for other numbers. */
const char *attn_kv_spec_kind_name(uint32_t kind);

/* ------------------------------------------------------------------ checking */

/* Checks a batch against the problem and itself: lengths, monotone starts, limits, needed tensors, their
 * types and sizes; with block_table_host also that every block id that will be read is in 0 .. num_blocks-1
 * (num_blocks 0: the problem's; both 0: not checked). max_blocks of the table must cover every seq_len. */
int attn_plan_check_batch(const attn_problem_t *problem, const attn_batch_t *batch, int64_t num_blocks,
                          attn_error_t *error);

/* ------------------------------------------------------------- for plugins */

/* The functions above that plan a batch, from attn_host_t.get_extension(ctx, ATTN_PLAN_EXTENSION): a table
 * whose struct_size says which of them are there; it lives as long as the process. */
#define ATTN_PLAN_EXTENSION "attn.ext.plan/1"
typedef struct attn_plan_table {
    uint32_t struct_size;
    uint32_t reserved0;
    int (*split)(const int32_t *query_start_loc, int32_t num_reqs, const uint8_t *is_prefilling,
                 int32_t threshold, uint32_t flags, attn_split_t *split, attn_error_t *error);
    int (*chunked_local_size)(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                              int32_t chunk_size, int32_t *num_virtual, attn_error_t *error);
    int (*chunked_local)(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                         int32_t chunk_size, int32_t block_size, int32_t num_virtual,
                         int32_t *query_start_loc_out, int32_t *seq_lens_out, int32_t *request_out,
                         int32_t *first_block_out, attn_error_t *error);
    int32_t (*use_cascade)(const attn_cascade_params_t *params, const int32_t *query_lens, int32_t num_reqs);
    int64_t (*cp_local_len)(int64_t seq_len, int32_t world, int32_t rank, int32_t interleave);
    int (*mla_workspace)(const attn_mla_workspace_t *params, int64_t *tokens, int64_t *rows,
                         attn_error_t *error);
    int (*mla_context_size)(const attn_mla_context_params_t *params, const int32_t *query_start_loc,
                            const int32_t *seq_lens, int32_t num_reqs, attn_mla_context_t *context,
                            attn_error_t *error);
    int (*mla_context)(const attn_mla_context_params_t *params, const int32_t *query_start_loc,
                       const int32_t *seq_lens, int32_t num_reqs, int32_t num_chunks, int32_t *starts,
                       int32_t *cu_seq_lens, int32_t *max_seq_lens, uint8_t *has_empty, attn_error_t *error);
} attn_plan_table_t;

#ifdef __cplusplus
}
#endif
#endif
