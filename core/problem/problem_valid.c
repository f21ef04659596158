/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a problem makes sense by itself: one column of checks in the order of the struct's members. */
#include "base/names.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <math.h>

enum {
    MAX_HEADS = 65536,
    LARGEST_HEAD = 65536,
    LARGEST_BLOCK = 1 << 20,
    LARGEST_COUNT = 1 << 30,
    LARGEST_WORLD = 4096
};

/* Returns from the caller if the condition holds: the parameter at fault, then the text. */
#define REFUSE_IF(condition, param, ...)                                                                     \
    if (condition) return attn_fail(error, ATTN_E_INVALID, param, __VA_ARGS__)

static int check_enums(const attn_problem_t *p, attn_error_t *error) {
    REFUSE_IF(!attni_name_of(&attni_roles, p->role), "role", "role is %u; give one of ATTN_ROLE_*", p->role);
    REFUSE_IF(!attni_name_of(&attni_masks, p->mask), "mask",
              "mask is %u; give ATTN_MASK_CAUSAL, _FULL or _PER_REQUEST, there is no default", p->mask);
    REFUSE_IF(p->mask == ATTN_MASK_PER_REQUEST && p->role != ATTN_ROLE_DECODER, "mask",
              "mask is per_request with role %s; only decoder has it", attn_role_name(p->role));
    REFUSE_IF(p->role == ATTN_ROLE_ENCODER_DECODER && p->mask != ATTN_MASK_FULL, "mask",
              "mask is %s with role encoder_decoder; every encoder key is visible: give ATTN_MASK_FULL",
              attni_name_of(&attni_masks, p->mask));
    REFUSE_IF(
        p->dtype != ATTN_DTYPE_FLOAT32 && p->dtype != ATTN_DTYPE_FLOAT16 && p->dtype != ATTN_DTYPE_BFLOAT16,
        "dtype", "dtype is %u (%s); give float32, float16 or bfloat16", p->dtype, attn_dtype_name(p->dtype));
    REFUSE_IF(p->out_dtype && !attni_name_of(&attni_dtypes, p->out_dtype), "out_dtype",
              "out_dtype is %u; give one of ATTN_DTYPE_*", p->out_dtype);
    REFUSE_IF(p->query_dtype && p->query_dtype != p->dtype && p->query_dtype != ATTN_DTYPE_FP8_E4M3,
              "query_dtype", "query_dtype is %s; give 0, the dtype or fp8_e4m3",
              attn_dtype_name(p->query_dtype));
    REFUSE_IF(p->kv_cache_dtype && !attni_name_of(&attni_kv_dtypes, p->kv_cache_dtype), "kv_cache_dtype",
              "kv_cache_dtype is %u; give one of ATTN_KV_*", p->kv_cache_dtype);
    REFUSE_IF(!attn_role_has_cache(p->role) && p->role != ATTN_ROLE_MLA_PREFILL &&
                  p->kv_cache_dtype > ATTN_KV_AUTO,
              "kv_cache_dtype", "kv_cache_dtype is %s with role %s, which has no cache; give 0",
              attn_kv_name(p->kv_cache_dtype), attn_role_name(p->role));
    REFUSE_IF(p->kv_layout && !attni_name_of(&attni_layouts, p->kv_layout), "kv_layout",
              "kv_layout is %u; give 0, ATTN_LAYOUT_NHD or _HND", p->kv_layout);
    return ATTN_OK;
}

static int check_shape(const attn_problem_t *p, attn_error_t *error) {
    REFUSE_IF(!p->num_heads || p->num_heads > MAX_HEADS, "num_heads", "num_heads is %u; give 1 to %d",
              p->num_heads, MAX_HEADS);
    REFUSE_IF(p->num_kv_heads > p->num_heads || (p->num_kv_heads && p->num_heads % p->num_kv_heads),
              "num_kv_heads", "num_kv_heads is %u; it must divide num_heads %u", p->num_kv_heads,
              p->num_heads);
    const int is_mla = attn_role_is_mla(p->role); /* whose head size follows from others: check_mla */
    REFUSE_IF(!is_mla && (!p->head_size || p->head_size > LARGEST_HEAD), "head_size",
              "head_size is %u; give 1 to %d", p->head_size, LARGEST_HEAD);
    REFUSE_IF(p->head_size_v > LARGEST_HEAD, "head_size_v", "head_size_v is %u; give at most %d",
              p->head_size_v, LARGEST_HEAD);
    REFUSE_IF(p->block_size > LARGEST_BLOCK, "block_size", "block_size is %u; give at most %d", p->block_size,
              LARGEST_BLOCK);
    REFUSE_IF(!isfinite(p->scale) || p->scale == 0, "scale",
              "scale is %g; give the softmax scale, usually 1/sqrt(%s), there is no default", p->scale,
              is_mla ? "qk_nope_head_dim + qk_rope_head_dim" : "head_size");
    REFUSE_IF(!isfinite(p->logits_soft_cap) || p->logits_soft_cap < 0, "logits_soft_cap",
              "logits_soft_cap is %g; give 0 or a positive number", p->logits_soft_cap);
    return ATTN_OK;
}

static int check_masks(const attn_problem_t *p, attn_error_t *error) {
    const int is_causal = p->mask == ATTN_MASK_CAUSAL;
    REFUSE_IF(p->sliding_window > INT32_MAX, "sliding_window", "sliding_window is %u; give at most %d",
              p->sliding_window, INT32_MAX);
    REFUSE_IF(p->chunk_size > INT32_MAX, "chunk_size", "chunk_size is %u; give at most %d", p->chunk_size,
              INT32_MAX);
    REFUSE_IF(p->chunk_size && (!is_causal || p->role != ATTN_ROLE_DECODER), "chunk_size",
              "chunk_size is %u; chunked local attention is for a causal decoder", p->chunk_size);
    REFUSE_IF(p->chunk_size && p->block_size && p->chunk_size % p->block_size, "chunk_size",
              "chunk_size is %u; it must be a multiple of block_size %u", p->chunk_size, p->block_size);
    REFUSE_IF(p->chunk_size && p->sliding_window, "chunk_size",
              "chunk_size %u and sliding_window %u exclude each other", p->chunk_size, p->sliding_window);
    REFUSE_IF((p->features & ATTN_F_FP8_ATTENTION) && p->role != ATTN_ROLE_MM_ENCODER, "features",
              "feature fp8_attention with role %s; only mm_encoder has it", attn_role_name(p->role));
    const int has_lookback = (p->features & ATTN_F_CHUNK_LOOKBACK) != 0;
    REFUSE_IF(p->chunk_lookback && !has_lookback, "chunk_lookback",
              "chunk_lookback is %u without feature chunk_lookback; add ATTN_F_CHUNK_LOOKBACK",
              p->chunk_lookback);
    REFUSE_IF(has_lookback && (!is_causal || p->chunk_lookback >= p->sliding_window), "chunk_lookback",
              "chunk_lookback is %u; it needs a causal mask and a larger sliding_window (have %u)",
              p->chunk_lookback,
              p->sliding_window); /* chunks of sliding_window / (lookback + 1) tokens, semantics 2.5 */
    REFUSE_IF(p->rswa_window && (!is_causal || p->sliding_window || p->chunk_size), "rswa_window",
              "rswa_window is %u; it needs a causal mask and no other window", p->rswa_window);
    REFUSE_IF(p->static_sink_len && p->role != ATTN_ROLE_DECODER, "static_sink_len",
              "static_sink_len is %u; only decoder has static sink tokens", p->static_sink_len);
    REFUSE_IF(p->static_sink_len && p->block_size && p->static_sink_len % p->block_size, "static_sink_len",
              "static_sink_len is %u; it must be a multiple of block_size %u", p->static_sink_len,
              p->block_size);
    REFUSE_IF((p->features & ATTN_F_MM_PREFIX_CLAMP) && !(p->features & ATTN_F_MM_PREFIX), "features",
              "feature mm_prefix_clamp without mm_prefix; add ATTN_F_MM_PREFIX");
    REFUSE_IF(p->max_mm_ranges && !(p->features & ATTN_F_MM_PREFIX), "max_mm_ranges",
              "max_mm_ranges is %u without feature mm_prefix; add ATTN_F_MM_PREFIX", p->max_mm_ranges);
    REFUSE_IF((p->features & ATTN_F_KEY_LENGTHS) && attn_role_has_cache(p->role), "features",
              "feature key_lengths with role %s, whose keys are in a cache; it is for roles without one",
              attn_role_name(p->role));
    REFUSE_IF(p->max_num_batched_keys && !(p->features & ATTN_F_KEY_LENGTHS), "max_num_batched_keys",
              "max_num_batched_keys is %u without feature key_lengths; add ATTN_F_KEY_LENGTHS",
              p->max_num_batched_keys);
    return ATTN_OK;
}

/* Quantised outputs (semantics 7.7), by the table that backends have. */
static int check_output(const attn_problem_t *p, attn_error_t *error) {
    attn_output_fault_t fault;
    REFUSE_IF((p->features & ATTN_F_WRITE_IN_FORWARD) && p->role != ATTN_ROLE_DECODER, "features",
              "feature write_in_forward with role %s; only decoder has it", attn_role_name(p->role));
    if (!attn_output_fault(p, 0, &fault)) return ATTN_OK;
    const int is_feature = strcmp(fault.param, "out_dtype") != 0;
    return attn_fail(error, ATTN_E_INVALID, is_feature ? "features" : fault.param, "%s%s %s%s; give %s: %s",
                     is_feature ? "feature " : "", fault.param, is_feature ? "" : "is ", fault.have,
                     fault.want, fault.text);
}

/* Lengths on the device go with what no plan on the host has to know of them (semantics 1.6). */
static int check_device_lengths(const attn_problem_t *p, attn_error_t *error) {
    if ((p->features & ATTN_F_DEVICE_LENGTHS) == 0) return ATTN_OK;
    REFUSE_IF(p->role != ATTN_ROLE_DECODER && p->role != ATTN_ROLE_MLA, "features",
              "feature device_lengths with role %s; only decoder and mla have it", attn_role_name(p->role));
    REFUSE_IF(p->static_sink_len, "static_sink_len",
              "static_sink_len is %u with feature device_lengths; the core lengthens requests on the host: "
              "give one of the two",
              p->static_sink_len);
    REFUSE_IF(p->features & ATTN_F_CASCADE, "features",
              "feature device_lengths with cascade; the prefix's length is the host's: give one of the two");
    REFUSE_IF(p->dcp_world_size > 1, "dcp_world_size",
              "dcp_world_size is %u with feature device_lengths; the core cuts requests among ranks on the "
              "host: give one of the two",
              p->dcp_world_size);
    return ATTN_OK;
}

static int check_limits(const attn_problem_t *p, attn_error_t *error) {
    REFUSE_IF(p->max_num_seqs > LARGEST_COUNT, "max_num_seqs", "max_num_seqs is %u; give at most %d",
              p->max_num_seqs, LARGEST_COUNT);
    REFUSE_IF(p->max_num_batched_tokens > LARGEST_COUNT, "max_num_batched_tokens",
              "max_num_batched_tokens is %u; give at most %d", p->max_num_batched_tokens, LARGEST_COUNT);
    REFUSE_IF(p->max_num_batched_keys > LARGEST_COUNT, "max_num_batched_keys",
              "max_num_batched_keys is %u; give at most %d", p->max_num_batched_keys, LARGEST_COUNT);
    REFUSE_IF(p->max_model_len < 0 || p->max_model_len > INT32_MAX, "max_model_len",
              "max_model_len is %lld; give 0 to %d", (long long)p->max_model_len, INT32_MAX);
    REFUSE_IF(p->num_blocks < 0 || p->num_blocks > INT32_MAX, "num_blocks",
              "num_blocks is %lld; give 0 to %d", (long long)p->num_blocks, INT32_MAX);
    REFUSE_IF(p->dcp_rank && p->dcp_rank >= p->dcp_world_size, "dcp_rank",
              "dcp_rank is %u; give less than dcp_world_size %u", p->dcp_rank, p->dcp_world_size);
    REFUSE_IF(p->dcp_world_size > LARGEST_WORLD, "dcp_world_size", "dcp_world_size is %u; give at most %d",
              p->dcp_world_size, LARGEST_WORLD);
    return ATTN_OK;
}

/* Members that no backend reads: a caller who sets one would expect an effect. */
static int check_unserved(const attn_problem_t *p, attn_error_t *error) {
    REFUSE_IF(p->cp_interleave && p->dcp_world_size <= 1, "cp_interleave",
              "cp_interleave is %u with dcp_world_size %u; without ranks it would be ignored: give 0",
              p->cp_interleave, p->dcp_world_size);
    return ATTN_OK;
}

static int check_mla(const attn_problem_t *p, attn_error_t *error) {
    const int is_sparse = p->role == ATTN_ROLE_MLA_SPARSE, is_prefill = p->role == ATTN_ROLE_MLA_PREFILL;
    const char *role = attn_role_name(p->role);
    REFUSE_IF(!p->kv_lora_rank || p->kv_lora_rank > LARGEST_HEAD, "kv_lora_rank",
              "kv_lora_rank is %u; role %s needs 1 to %d", p->kv_lora_rank, role, LARGEST_HEAD);
    const int is_absorbed = (p->features & ATTN_F_LATENT) != 0; /* by the caller: semantics 7.11 */
    REFUSE_IF(is_absorbed && is_prefill, "features",
              "feature latent with role %s; it is for mla and mla_sparse", role);
    REFUSE_IF(is_absorbed && p->qk_nope_head_dim, "qk_nope_head_dim",
              "qk_nope_head_dim is %u with feature latent, whose queries are absorbed already; give 0",
              p->qk_nope_head_dim);
    REFUSE_IF(is_absorbed && p->v_head_dim, "v_head_dim",
              "v_head_dim is %u with feature latent, whose outputs are latents; give 0", p->v_head_dim);
    REFUSE_IF(!is_absorbed && (!p->qk_nope_head_dim || p->qk_nope_head_dim > LARGEST_HEAD),
              "qk_nope_head_dim", "qk_nope_head_dim is %u; role %s needs 1 to %d", p->qk_nope_head_dim, role,
              LARGEST_HEAD);
    REFUSE_IF(!p->qk_rope_head_dim || p->qk_rope_head_dim > LARGEST_HEAD, "qk_rope_head_dim",
              "qk_rope_head_dim is %u; role %s needs 1 to %d", p->qk_rope_head_dim, role, LARGEST_HEAD);
    REFUSE_IF(!is_absorbed && (!p->v_head_dim || p->v_head_dim > LARGEST_HEAD), "v_head_dim",
              "v_head_dim is %u; role %s needs 1 to %d", p->v_head_dim, role, LARGEST_HEAD);
    const uint32_t latent = p->kv_lora_rank + p->qk_rope_head_dim,
                   plain = p->qk_nope_head_dim + p->qk_rope_head_dim;
    REFUSE_IF(p->head_size != latent && !(is_prefill && p->head_size == plain), "head_size",
              "head_size is %u; role %s needs kv_lora_rank + qk_rope_head_dim = %u", p->head_size, role,
              latent);
    REFUSE_IF(p->num_kv_heads > 1 && !is_prefill, "num_kv_heads", "num_kv_heads is %u; role %s needs 0 or 1",
              p->num_kv_heads, role);
    REFUSE_IF(p->head_size_v && !is_prefill, "head_size_v", "head_size_v is %u; role %s needs 0",
              p->head_size_v, role);
    const int may_be_full =
        is_prefill ? (p->features & ATTN_F_KEY_LENGTHS) != 0 : is_absorbed && p->role == ATTN_ROLE_MLA;
    REFUSE_IF(p->mask != ATTN_MASK_CAUSAL && !(may_be_full && p->mask == ATTN_MASK_FULL), "mask",
              "mask is %s; role %s needs causal%s", attni_name_of(&attni_masks, p->mask), role,
              is_prefill                 ? ", or with feature key_lengths full"
              : p->role == ATTN_ROLE_MLA ? ", or with feature latent full"
                                         : "");
    REFUSE_IF(p->sliding_window, "sliding_window", "sliding_window is %u; role %s has none",
              p->sliding_window, role);
    REFUSE_IF(p->kv_cache_dtype == ATTN_KV_FP8_DS_MLA && !is_sparse, "kv_cache_dtype",
              "kv_cache_dtype is fp8_ds_mla with role %s; only mla_sparse has it", role);
    REFUSE_IF(is_sparse && (!p->topk || p->topk % 128), "topk",
              "topk is %u; role mla_sparse needs a multiple of 128", p->topk);
    REFUSE_IF(!is_sparse && p->topk, "topk", "topk is %u with role %s; only mla_sparse has it", p->topk,
              role);
    return ATTN_OK;
}

static int check_no_mla(const attn_problem_t *p, attn_error_t *error) {
    const char *role = attn_role_name(p->role);
    REFUSE_IF(p->kv_lora_rank, "kv_lora_rank", "kv_lora_rank is %u with role %s; give 0", p->kv_lora_rank,
              role);
    REFUSE_IF(p->qk_nope_head_dim, "qk_nope_head_dim", "qk_nope_head_dim is %u with role %s; give 0",
              p->qk_nope_head_dim, role);
    REFUSE_IF(p->qk_rope_head_dim, "qk_rope_head_dim", "qk_rope_head_dim is %u with role %s; give 0",
              p->qk_rope_head_dim, role);
    REFUSE_IF(p->v_head_dim, "v_head_dim", "v_head_dim is %u with role %s; give 0", p->v_head_dim, role);
    REFUSE_IF(p->features & ATTN_F_LATENT, "features",
              "feature latent with role %s; it is for mla and mla_sparse", role);
    REFUSE_IF(p->topk, "topk", "topk is %u with role %s; give 0", p->topk, role);
    REFUSE_IF(p->kv_cache_dtype == ATTN_KV_FP8_DS_MLA, "kv_cache_dtype",
              "kv_cache_dtype is fp8_ds_mla with role %s; only mla_sparse has it", role);
    return ATTN_OK;
}

int attn_problem_check(const attn_problem_t *problem, attn_error_t *error) {
    attn_problem_t copy;
    int code = attn_intake(&copy, sizeof copy, problem, "problem", error);
    if (code != ATTN_OK) return code;
    const attn_problem_t *p = &copy;
    for (size_t i = 0; i < sizeof p->reserved / sizeof *p->reserved; i++)
        if (p->reserved[i])
            return attn_fail(error, ATTN_E_TOO_NEW, "reserved", "reserved[%zu] is %u; it must be 0", i,
                             p->reserved[i]);
    if (p->features & ~ATTN_F_KNOWN_)
        return attn_fail(error, ATTN_E_TOO_NEW, "features",
                         "features has unknown bits 0x%llx; update libattn",
                         (unsigned long long)(p->features & ~ATTN_F_KNOWN_));
    if ((code = check_enums(p, error))) return code;
    if ((code = check_shape(p, error))) return code;
    if ((code = check_masks(p, error))) return code;
    if ((code = check_output(p, error))) return code;
    if ((code = check_device_lengths(p, error))) return code;
    if ((code = check_limits(p, error))) return code;
    if ((code = check_unserved(p, error))) return code;
    return attn_role_is_mla(p->role) ? check_mla(p, error) : check_no_mla(p, error);
}
