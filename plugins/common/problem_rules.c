/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that every backend has. */
#include "problem_rules.h"

#include <math.h>

static int is_latent(const attn_problem_t *p) {
    return p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE;
}

static void add_numbers(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32], want[96];
    if (p->num_kv_heads != 0 && p->num_heads % p->num_kv_heads != 0) {
        snprintf(want, sizeof want, "a divisor of num_heads (%u)", p->num_heads);
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_kv_heads", NUMBER(have, p->num_kv_heads), want,
                        "num_kv_heads %u does not divide num_heads %u", p->num_kv_heads, p->num_heads);
    }
    if (!isfinite(p->scale) || p->scale == 0.0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "scale", "not a usable number", "finite and not 0",
                        "scale must be finite and not 0; 1/sqrt(head_size) is the usual one");
    if (!isfinite(p->logits_soft_cap) || p->logits_soft_cap < 0.0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "logits_soft_cap", "not a usable number",
                        "0 (off) or a finite positive number",
                        "logits_soft_cap must be 0 or finite and positive");
}

/* Masks that only make sense where queries continue the keys: the decoder. */
static void add_masks(const attn_problem_t *p, uint64_t f, attn_reasons_t *r) {
    const int is_decoder = p->role == ATTN_ROLE_DECODER;
    char have[32];
    if (p->mask < ATTN_MASK_CAUSAL || p->mask > ATTN_MASK_PER_REQUEST)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "mask", NUMBER(have, p->mask),
                        "causal, full or per_request", "mask %u is not one; 0 is invalid on purpose",
                        p->mask);
    if (p->role == ATTN_ROLE_ENCODER_DECODER && p->mask != ATTN_MASK_FULL)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "mask", NUMBER(have, p->mask), "full",
                        "cross attention sees every encoder key: mask must be full");
    if (!is_decoder && p->chunk_size != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_size", NUMBER(have, p->chunk_size), "0",
                        "chunked local attention is for role decoder; the role is %s",
                        attn_role_name(p->role));
    if (!is_decoder && p->rswa_window != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "rswa_window", NUMBER(have, p->rswa_window), "0",
                        "R-SWA is for role decoder; the role is %s", attn_role_name(p->role));
    if (!is_decoder && (f & (ATTN_F_MM_PREFIX | ATTN_F_QQ_BIAS | ATTN_F_CHUNK_LOOKBACK)) != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "features", attn_role_name(p->role), "decoder",
                        "spans, query-query bias and chunk lookback are for role decoder; the role is %s",
                        attn_role_name(p->role));
    if (p->rswa_window != 0 && p->sliding_window != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "rswa_window", NUMBER(have, p->rswa_window),
                        "0 with a sliding_window", "R-SWA replaces the sliding window; give one of the two");
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 && p->sliding_window != 0 && p->sliding_window <= p->chunk_lookback)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_lookback", NUMBER(have, p->chunk_lookback),
                        "less than sliding_window",
                        "sliding_window %u over %u chunks leaves chunks of 0 tokens (semantics 2.5)",
                        p->sliding_window, p->chunk_lookback + 1);
}

static void add_dtypes(const attn_problem_t *p, uint64_t f, attn_reasons_t *r) {
    if ((f & ATTN_F_LATENT) != 0 && !is_latent(p))
        attn_add_reason(r, ATTN_REASON_FEATURE, "latent", attn_role_name(p->role), "mla or mla_sparse",
                        "feature latent is for roles mla and mla_sparse; the role is %s",
                        attn_role_name(p->role));
    if ((f & ATTN_F_CONTIGUOUS_KV) != 0 && attn_role_has_cache(p->role))
        attn_add_reason(r, ATTN_REASON_FEATURE, "contiguous_kv", attn_role_name(p->role),
                        "a role without a cache", "role %s reads its cache, not the call's key and value",
                        attn_role_name(p->role));
    if ((f & ATTN_F_DEVICE_LENGTHS) != 0 && p->role != ATTN_ROLE_DECODER && p->role != ATTN_ROLE_MLA)
        attn_add_reason(r, ATTN_REASON_FEATURE, "device_lengths", attn_role_name(p->role), "decoder or mla",
                        "lengths on the device are for roles decoder and mla; the role is %s",
                        attn_role_name(p->role));
    if ((f & ATTN_F_DEVICE_LENGTHS) != 0 && (f & ATTN_F_CASCADE) != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "device_lengths", "with cascade", "one of the two",
                        "the length of a common prefix is the host's; device_lengths excludes cascade");
    if ((f & ATTN_F_KEY_LENGTHS) != 0 && attn_role_has_cache(p->role))
        attn_add_reason(r, ATTN_REASON_FEATURE, "key_lengths", attn_role_name(p->role),
                        "a role without a cache", "the keys of role %s are in a cache, not the call's",
                        attn_role_name(p->role));
    if (!attn_role_has_cache(p->role) && p->role != ATTN_ROLE_MLA_PREFILL &&
        attn_kv_is_quantized(p->kv_cache_dtype))
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(p->kv_cache_dtype),
                        "auto", "role %s has no cache that could be quantised", attn_role_name(p->role));
    if (p->query_dtype != 0 && p->query_dtype != p->dtype && p->query_dtype != ATTN_DTYPE_FP8_E4M3)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the problem's dtype or fp8_e4m3", "query_dtype %s is not served with dtype %s",
                        attn_dtype_name(p->query_dtype), attn_dtype_name(p->dtype));
    if (attn_kv_rounds_query(p->kv_cache_dtype) && p->query_dtype != 0 && p->query_dtype != p->dtype)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the problem's dtype",
                        "a cache of %s has its queries rounded to int8 in forward; query_dtype %s would be "
                        "quantised twice",
                        attn_kv_name(p->kv_cache_dtype), attn_dtype_name(p->query_dtype));
    if ((f & ATTN_F_FP8_ATTENTION) != 0 && p->query_dtype != 0 && p->query_dtype != p->dtype)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the problem's dtype",
                        "fp8_attention quantises the query itself; query_dtype %s would be quantised twice",
                        attn_dtype_name(p->query_dtype));
    if ((f & ATTN_F_WRITE_IN_FORWARD) != 0 && p->role != ATTN_ROLE_DECODER)
        attn_add_reason(r, ATTN_REASON_FEATURE, "write_in_forward", attn_role_name(p->role), "decoder",
                        "forward writes the cache of role decoder; the role is %s", attn_role_name(p->role));
}

/* Quantised outputs (semantics 7.7). */
static void add_output(const attn_problem_t *p, attn_reasons_t *r) {
    attn_output_fault_t fault;
    for (uint32_t i = 0; attn_output_fault(p, i, &fault); i++)
        attn_add_reason(r, ATTN_REASON_OUT_DTYPE, fault.param, fault.have, fault.want, "%s", fault.text);
}

/* What the table of formats says of the role and of head sizes. */
static void add_format(const attn_problem_t *p, attn_reasons_t *r) {
    const attn_kv_format_t *f = attn_kv_format(p->kv_cache_dtype);
    const uint32_t sizes[2] = {p->head_size, p->head_size_v != 0 ? p->head_size_v : p->head_size};
    char have[32];
    if (!attn_role_has_cache(p->role)) return;
    if ((f->roles & ATTN_BIT(p->role)) == 0)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", f->name,
                        "a format that the role can keep", "role %s cannot keep a %s cache",
                        attn_role_name(p->role), f->name);
    for (int i = 0; i < 2 && !is_latent(p); i++)
        if (sizes[i] != 0 && !attn_kv_has_size(f, sizes[i]) && (i == 0 || sizes[1] != sizes[0]))
            attn_add_reason(r, ATTN_REASON_HEAD_SIZE, i == 0 ? "head_size" : "head_size_v",
                            NUMBER(have, sizes[i]), attn_kv_size_rule(f), "%s is %u; %s rows hold %s",
                            i == 0 ? "head_size" : "head_size_v", sizes[i], f->name, attn_kv_size_rule(f));
    if (attn_kv_has_one_size(f->kv) && sizes[1] != sizes[0])
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size_v", NUMBER(have, sizes[1]), "0 or head_size",
                        "head_size_v is %u and head_size %u; the rows of K and V of %s have one size",
                        sizes[1], sizes[0], f->name);
    if (attn_kv_is_whole_page(f->kv) && (p->features & ATTN_F_SEPARATE_KV) != 0)
        attn_add_reason(r, ATTN_REASON_FEATURE, "separate_kv", "asked for", "not asked for",
                        "a page of %s holds K and V in one piece, so they are no two tensors; leave out "
                        "separate_kv",
                        f->name);
}

static void add_latent(const attn_problem_t *p, attn_reasons_t *r) {
    const uint32_t latent = p->kv_lora_rank + p->qk_rope_head_dim;
    char have[32], want[96];
    if (p->head_size != latent) {
        snprintf(want, sizeof want, "kv_lora_rank + qk_rope_head_dim = %u", latent);
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size", NUMBER(have, p->head_size), want,
                        "head_size is %u; role %s wants %u", p->head_size, attn_role_name(p->role), latent);
    }
    if (p->num_kv_heads > 1)
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_kv_heads", NUMBER(have, p->num_kv_heads), "0 or 1",
                        "num_kv_heads is %u; latent attention has one", p->num_kv_heads);
    if (p->mask != ATTN_MASK_CAUSAL &&
        !(p->role == ATTN_ROLE_MLA && !attn_problem_projects(p) && p->mask == ATTN_MASK_FULL))
        attn_add_reason(r, ATTN_REASON_NON_CAUSAL, "mask", NUMBER(have, p->mask), "causal",
                        "role %s is causal", attn_role_name(p->role));
    if (!attn_problem_projects(p) && (p->qk_nope_head_dim != 0 || p->v_head_dim != 0)) {
        const int is_value = p->qk_nope_head_dim == 0;
        attn_add_reason(r, ATTN_REASON_MLA, is_value ? "v_head_dim" : "qk_nope_head_dim",
                        NUMBER(have, is_value ? p->v_head_dim : p->qk_nope_head_dim), "0 with feature latent",
                        "with feature latent the caller projects: qk_nope_head_dim and v_head_dim are 0");
    }
    if ((p->role == ATTN_ROLE_MLA_SPARSE) != (p->topk != 0))
        attn_add_reason(r, ATTN_REASON_SPARSE, "topk", NUMBER(have, p->topk), "given with mla_sparse alone",
                        "topk is %u with role %s", p->topk, attn_role_name(p->role));
}

/* What latent attention has in none of its roles, nor mla_prefill, whose keys are of the call (semantics
 * 7.4). */
static void add_not_latent(const attn_problem_t *p, uint64_t f, attn_reasons_t *r) {
    const uint64_t others = ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_REL_BIAS |
                            ATTN_F_SEPARATE_KV | ATTN_F_PER_HEAD_SCALES;
    char have[32];
    if (!is_latent(p) && p->mask != ATTN_MASK_CAUSAL && (f & ATTN_F_KEY_LENGTHS) == 0)
        attn_add_reason(r, ATTN_REASON_NON_CAUSAL, "mask", NUMBER(have, p->mask),
                        "causal, or with key_lengths full", "role %s is causal without key_lengths",
                        attn_role_name(p->role));
    if (!is_latent(p) && p->topk != 0)
        attn_add_reason(r, ATTN_REASON_SPARSE, "topk", NUMBER(have, p->topk), "0",
                        "topk is for role mla_sparse; the role is %s", attn_role_name(p->role));
    if (p->sliding_window != 0)
        attn_add_reason(r, ATTN_REASON_SLIDING_WINDOW, "sliding_window", NUMBER(have, p->sliding_window), "0",
                        "role %s has no sliding window", attn_role_name(p->role));
    for (unsigned bit = 0; bit < 64; bit++)
        if ((f & others) >> bit & 1)
            attn_add_reason(r, ATTN_REASON_FEATURE, attn_feature_name(bit), "asked for", "not asked for",
                            "role %s has no %s", attn_role_name(p->role), attn_feature_name(bit));
}

void problem_add_rules(const attn_problem_t *p, uint64_t features, attn_reasons_t *reasons) {
    add_numbers(p, reasons);
    add_masks(p, features, reasons);
    add_dtypes(p, features, reasons);
    add_output(p, reasons);
    add_format(p, reasons);
    if (is_latent(p)) add_latent(p, reasons);
    if (attn_role_is_mla(p->role)) add_not_latent(p, features, reasons);
}

void problem_add_ds_mla(const attn_problem_t *p, attn_reasons_t *reasons) {
    const int is_16_bit = p->dtype == ATTN_DTYPE_FLOAT16 || p->dtype == ATTN_DTYPE_BFLOAT16;
    if (p->kv_cache_dtype != ATTN_KV_FP8_DS_MLA) return;
    if (p->role != ATTN_ROLE_MLA_SPARSE || p->kv_lora_rank != 512 || p->qk_rope_head_dim != 64 || !is_16_bit)
        attn_add_reason(reasons, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", "fp8_ds_mla",
                        "role mla_sparse, kv_lora_rank 512, qk_rope_head_dim 64, a 16-bit dtype",
                        "fp8_ds_mla rows hold 512 latent and 64 rope values of 16-bit sparse MLA");
}
