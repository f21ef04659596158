/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_problem.c: a problem over ranks as one rank's backend sees it, and what cannot be split (semantics
 * 8.5,
 * 8.6). */
#include "problem/ranks_problem.h"
#include "base/arith.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>

#define REFUSE(CONDITION, PARAM, ...)                                                                        \
    do {                                                                                                     \
        if (CONDITION) {                                                                                     \
            snprintf(text, size, __VA_ARGS__);                                                               \
            return PARAM;                                                                                    \
        }                                                                                                    \
    } while (0)

static uint32_t interleave_of(const attn_problem_t *p) {
    return p->cp_interleave != 0 ? p->cp_interleave : 1;
}

const char *attni_ranks_refusal(const attn_problem_t *p, int is_device, char *text, size_t size) {
    const struct {
        uint64_t bit;
        const char *why;
    } excluded[] = {
        {ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT, "ALiBi: a rank's keys are not neighbours"},
        {ATTN_F_REL_BIAS, "a relative bias: a rank's keys are not neighbours"},
        {ATTN_F_MM_PREFIX, "bidirectional spans"},
        {ATTN_F_RSWA, "R-SWA"},
        {ATTN_F_CHUNK_LOOKBACK, "chunk lookback"},
        {ATTN_F_QQ_BIAS, "a query-query bias"},
        {ATTN_F_CASCADE, "cascade"},
        {ATTN_F_STATIC_SINK, "static sink tokens"},
        {ATTN_F_CONTIGUOUS_KV, "keys of the call"},
        {ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4, "quantised outputs"},
        {ATTN_F_WRITE_IN_FORWARD, "a cache that forward writes"},
        {ATTN_F_QUANT_QUERY, "quantised queries: the ranks' scales may differ"},
        {is_device ? 0 : ATTN_F_CAPTURE, "capture on CPUs"},
    };
    const uint32_t n = p->dcp_world_size;
    const uint64_t features = attn_problem_features(p), round = (uint64_t)n * interleave_of(p);
    REFUSE(p->role != ATTN_ROLE_DECODER && p->role != ATTN_ROLE_MLA, "role",
           "role %s is not split over ranks; decoder and mla are", attn_role_name(p->role));
    REFUSE(p->chunk_size, "chunk_size", "chunk_size %u is not split over ranks", p->chunk_size);
    REFUSE(p->static_sink_len, "static_sink_len", "static sink tokens are not split over ranks");
    for (size_t i = 0; i < sizeof excluded / sizeof excluded[0]; i++)
        if ((features & excluded[i].bit) != 0) {
            const unsigned bit = (unsigned)__builtin_ctzll(features & excluded[i].bit);
            snprintf(text, size, "context parallelism excludes %s", excluded[i].why);
            return attn_feature_name(bit);
        }
    REFUSE(p->sliding_window && p->mask != ATTN_MASK_CAUSAL, "mask",
           "a sliding window over ranks needs the causal mask");
    REFUSE(p->sliding_window % round != 0, "sliding_window",
           "sliding_window %u is not a multiple of %llu (dcp_world_size * cp_interleave)", p->sliding_window,
           (unsigned long long)round);
    REFUSE(p->block_size % interleave_of(p) != 0, "cp_interleave",
           "cp_interleave %u does not divide block_size %u", interleave_of(p), p->block_size);
    REFUSE((uint64_t)n * p->num_heads > INT32_MAX / 2, "dcp_world_size",
           "dcp_world_size %u times %u heads is too much", n, p->num_heads);
    return NULL;
}

void attni_ranks_inner(const attn_problem_t *p, uint64_t features, uint64_t out_dtypes,
                       attn_problem_t *inner) {
    const uint32_t n = p->dcp_world_size, run = interleave_of(p),
                   tokens = p->max_num_batched_tokens != 0 ? p->max_num_batched_tokens : 8192;
    const int64_t longest = p->max_model_len != 0 ? p->max_model_len : 131072, round = (int64_t)n * run;
    const uint32_t out = p->out_dtype != 0 ? p->out_dtype : p->dtype;
    *inner = *p;
    inner->num_kv_heads = p->num_kv_heads != 0        ? p->num_kv_heads
                          : attn_role_is_mla(p->role) ? 0
                                                      : p->num_heads;
    inner->num_heads = n * p->num_heads;
    inner->features = (p->features & ~(ATTN_F_DCP | ATTN_F_SINK)) | ATTN_F_LSE;
    inner->dcp_world_size = inner->dcp_rank = inner->cp_interleave = 0;
    inner->sliding_window = p->sliding_window / n;
    /* Partial results are rounded once more when they are joined, so they are kept in float32. */
    inner->out_dtype = out == ATTN_DTYPE_FLOAT64 ? out
                       : p->dtype == ATTN_DTYPE_FLOAT32 || (out_dtypes >> ATTN_DTYPE_FLOAT32 & 1)
                           ? ATTN_DTYPE_FLOAT32
                           : out;
    /* Requests are cut into pieces, each causal by itself or, where that is served, without a mask. */
    inner->mask = ATTN_MASK_CAUSAL;
    if ((features & ATTN_F_PER_REQUEST_CAUSAL) != 0 && p->role == ATTN_ROLE_DECODER &&
        p->sliding_window == 0 && (round - run > 1 || p->mask != ATTN_MASK_CAUSAL))
        inner->mask = ATTN_MASK_PER_REQUEST;
    inner->features &= ~(ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_NON_CAUSAL);
    inner->max_num_seqs = tokens;
    inner->max_num_batched_tokens = tokens;
    inner->max_model_len =
        attni_max64(attn_plan_cp_local_bound(longest, (int32_t)n, (int32_t)run), attni_min64(longest, round));
}
