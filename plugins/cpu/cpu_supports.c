/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability table of CPU_ATTN cannot say, as a list of reasons. */
#include "cpu_instance.h"

#include <math.h>

#define NUMBER(BUFFER, VALUE) (snprintf(BUFFER, sizeof BUFFER, "%llu", (unsigned long long)(VALUE)), BUFFER)

static void check_sizes(const attn_problem_t *p, attn_reasons_t *reasons) {
    char have[32], want[96];
    if (p->num_heads == 0 || p->num_heads > 4096)
        attn_add_reason(reasons, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads), "1 to 4096",
                        "num_heads is %u; 1 to 4096 are served", p->num_heads);
    if (p->num_kv_heads != 0 && p->num_heads % p->num_kv_heads != 0) {
        snprintf(want, sizeof want, "a divisor of num_heads (%u)", p->num_heads);
        attn_add_reason(reasons, ATTN_REASON_HEAD_COUNT, "num_kv_heads", NUMBER(have, p->num_kv_heads), want,
                        "num_kv_heads %u does not divide num_heads %u", p->num_kv_heads, p->num_heads);
    }
    if (p->block_size > 65536)
        attn_add_reason(reasons, ATTN_REASON_BLOCK_SIZE, "block_size", NUMBER(have, p->block_size),
                        "1 to 65536", "block_size is %u; at most 65536 is served", p->block_size);
    if (!isfinite(p->scale) || p->scale == 0.0)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "scale", "not a usable number", "finite and not 0",
                        "scale must be finite and not 0; 1/sqrt(head_size) is the usual one");
    if (!isfinite(p->logits_soft_cap) || p->logits_soft_cap < 0.0)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "logits_soft_cap", "not a usable number",
                        "0 (off) or a finite positive number",
                        "logits_soft_cap must be 0 or finite and positive");
    if (p->max_model_len < 0 || p->max_model_len > INT32_MAX - 65536)
        attn_add_reason(reasons, ATTN_REASON_LIMIT, "max_model_len", "out of range", "0 to 2147418111",
                        "max_model_len is %lld; lengths are 32-bit", (long long)p->max_model_len);
    if (p->num_blocks < 0 || p->num_blocks > INT32_MAX)
        attn_add_reason(reasons, ATTN_REASON_LIMIT, "num_blocks", "out of range", "0 to 2147483647",
                        "num_blocks is %lld; block ids are 32-bit", (long long)p->num_blocks);
}

static void check_masks(const attn_problem_t *p, uint64_t f, attn_reasons_t *reasons) {
    const int is_decoder = p->role == ATTN_ROLE_DECODER;
    char have[32];
    if (p->mask < ATTN_MASK_CAUSAL || p->mask > ATTN_MASK_PER_REQUEST)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "mask", NUMBER(have, p->mask),
                        "causal, full or per_request", "mask %u is not one; 0 is invalid on purpose",
                        p->mask);
    if (p->role == ATTN_ROLE_ENCODER_DECODER && p->mask != ATTN_MASK_FULL)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "mask", NUMBER(have, p->mask), "full",
                        "cross attention sees every encoder key: mask must be full");
    if (!is_decoder && (p->chunk_size != 0 || p->rswa_window != 0))
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, p->chunk_size != 0 ? "chunk_size" : "rswa_window",
                        NUMBER(have, p->chunk_size != 0 ? p->chunk_size : p->rswa_window), "0",
                        "chunked attention and R-SWA are for role decoder; the role is %s",
                        attn_role_name(p->role));
    if (p->rswa_window != 0 && (p->sliding_window != 0 || p->chunk_size != 0))
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "rswa_window", NUMBER(have, p->rswa_window),
                        "0 with a sliding_window or chunk_size",
                        "R-SWA replaces windows and chunks; give one of them");
    if (!is_decoder && (f & (ATTN_F_MM_PREFIX | ATTN_F_QQ_BIAS | ATTN_F_CHUNK_LOOKBACK)) != 0)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "features", attn_role_name(p->role), "decoder",
                        "spans, query-query bias and chunk lookback are for role decoder");
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 && p->sliding_window != 0 && p->sliding_window <= p->chunk_lookback)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "chunk_lookback", NUMBER(have, p->chunk_lookback),
                        "less than sliding_window",
                        "sliding_window %u over %u chunks leaves chunks of 0 tokens", p->sliding_window,
                        p->chunk_lookback + 1);
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 && p->chunk_size != 0)
        attn_add_reason(
            reasons, ATTN_REASON_COMBINATION, "chunk_lookback", "with chunk_size", "one of the two",
            "chunk lookback (chunks from sliding_window) and chunk_size are two kinds of chunks; give one");
}

static void check_dtypes(const attn_problem_t *p, attn_reasons_t *reasons) {
    if (!attn_role_has_cache(p->role) && attn_kv_is_quantized(p->kv_cache_dtype))
        attn_add_reason(reasons, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype",
                        attn_kv_name(p->kv_cache_dtype), "auto",
                        "role %s has no cache that could be quantised", attn_role_name(p->role));
    if (p->query_dtype != 0 && p->query_dtype != p->dtype && p->query_dtype != ATTN_DTYPE_FP8_E4M3)
        attn_add_reason(reasons, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the problem's dtype or fp8_e4m3", "query_dtype %s is not served with dtype %s",
                        attn_dtype_name(p->query_dtype), attn_dtype_name(p->dtype));
}

int cpu_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    const int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    check_sizes(&p, reasons);
    check_masks(&p, attn_problem_features(&p), reasons);
    check_dtypes(&p, reasons);
    return ATTN_OK;
}
