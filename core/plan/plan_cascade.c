/* SPDX-License-Identifier: Apache-2.0 */
/* plan_cascade.c: shared prefixes: how long, whether a separate pass over them pays, and the merge of two
 * passes. */
#include "base/arith.h"
#include "base/need.h"

#include <attn/attn_merge.h>
#include <attn/attn_plan.h>

/* The decision and its constants are those of semantics 6.4. */
int32_t attn_plan_use_cascade(const attn_cascade_params_t *params, const int32_t *query_lens,
                              int32_t num_reqs) {
    const int64_t tile = 128;
    const int32_t shortest_prefix = 256, fewest_requests = 8;
    attn_cascade_params_t p;
    if (attn_intake(&p, sizeof p, params, "params", NULL) != ATTN_OK || query_lens == NULL) return 0;
    if (p.common_prefix_len < shortest_prefix || num_reqs < fewest_requests) return 0;
    if (p.has_alibi || p.has_sliding_window || p.has_local_attention || p.dcp_world_size > 1) return 0;
    if (p.num_heads < 1 || p.num_kv_heads < 1) return 0;

    int64_t group = p.num_heads / p.num_kv_heads;
    int single = 1;
    for (int32_t r = 0; r < num_reqs; r++)
        single = single && query_lens[r] == 1;
    if (!(group > 1 && single)) return 1; /* flash decoding would not be used without a cascade either */

    int64_t sms = p.num_sms > 0 ? p.num_sms : 1;
    int64_t prefix_tiles = attni_cdiv(p.common_prefix_len, tile);
    int64_t cascade = attni_cdiv(p.num_heads * attni_cdiv(num_reqs, tile), sms) * prefix_tiles;
    int64_t decoding =
        attni_cdiv((int64_t)num_reqs * p.num_kv_heads * attni_cdiv(group, tile) * prefix_tiles, sms);
    return cascade < decoding;
}

int32_t attn_plan_common_prefix(const int32_t *block_table, int64_t table_stride, const int32_t *seq_lens,
                                int32_t num_reqs, int32_t block_size) {
    if (block_table == NULL || seq_lens == NULL || num_reqs < 1 || block_size < 1) return 0;
    int64_t blocks = table_stride;
    for (int32_t r = 0; r < num_reqs; r++)
        blocks = attni_min64(blocks, seq_lens[r] / block_size);
    int64_t shared = 0;
    for (; shared < blocks; shared++)
        for (int32_t r = 1; r < num_reqs; r++)
            if (block_table[r * table_stride + shared] != block_table[shared])
                return (int32_t)(shared * block_size);
    return (int32_t)(attni_max64(shared, 0) * block_size);
}

/* Dense arrays of floats as tensors: outputs [T, H, Dv] and LSE [H, T]. */
struct dense_state {
    int64_t shape[3], strides[3], lse_shape[2], lse_strides[2];
    DLTensor output, lse;
};

static void describe_state(struct dense_state *s, const float *output, const float *lse, int64_t num_tokens,
                           int64_t num_heads, int64_t size) {
    const DLTensor floats = {.device = {kDLCPU, 0}, .dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32)};
    *s = (struct dense_state){.shape = {num_tokens, num_heads, size},
                              .strides = {num_heads * size, size, 1},
                              .lse_shape = {num_heads, num_tokens},
                              .lse_strides = {num_tokens, 1},
                              .output = floats,
                              .lse = floats};
    s->output.data = (void *)(uintptr_t)output, s->output.ndim = 3;
    s->output.shape = s->shape, s->output.strides = s->strides;
    s->lse.data = (void *)(uintptr_t)lse, s->lse.ndim = 2;
    s->lse.shape = s->lse_shape, s->lse.strides = s->lse_strides;
}

int attn_plan_merge_states(const float *prefix_out, const float *prefix_lse, const float *suffix_out,
                           const float *suffix_lse, int64_t num_tokens, int32_t num_heads,
                           int32_t head_size_v, int64_t prefill_tokens_with_context, float *out,
                           float *lse_out, attn_error_t *error) {
    ATTNI_AT_LEAST(num_tokens, 0, "num_tokens", error);
    ATTNI_AT_LEAST(num_heads, 1, "num_heads", error);
    ATTNI_AT_LEAST(head_size_v, 1, "head_size_v", error);
    ATTNI_AT_LEAST(prefill_tokens_with_context, 0, "prefill_tokens_with_context", error);
    if (num_tokens == 0) return ATTN_OK;
    ATTNI_NEED(prefix_out, "prefix_out", error);
    ATTNI_NEED(prefix_lse, "prefix_lse", error);
    ATTNI_NEED(suffix_out, "suffix_out", error);
    ATTNI_NEED(suffix_lse, "suffix_lse", error);
    ATTNI_NEED(out, "out", error);
    struct dense_state prefix, suffix, merged;
    describe_state(&prefix, prefix_out, prefix_lse, num_tokens, num_heads, head_size_v);
    describe_state(&suffix, suffix_out, suffix_lse, num_tokens, num_heads, head_size_v);
    describe_state(&merged, out, lse_out, num_tokens, num_heads, head_size_v);
    const attn_state_t states[2] = {{&prefix.output, &prefix.lse}, {&suffix.output, &suffix.lse}};
    const int64_t both = attni_min64(prefill_tokens_with_context, num_tokens),
                  row = (int64_t)num_heads * head_size_v;
    int code = attn_merge_states(states, 2, both, NULL, &merged.output,
                                 lse_out != NULL ? &merged.lse : NULL, NULL, error);
    if (code != ATTN_OK) return code;
    memmove(out + both * row, suffix_out + both * row, (size_t)((num_tokens - both) * row) * sizeof *out);
    for (int32_t h = 0; h < num_heads && lse_out != NULL; h++)
        memmove(lse_out + h * num_tokens + both, suffix_lse + h * num_tokens + both,
                (size_t)(num_tokens - both) * sizeof *lse_out);
    return ATTN_OK;
}
