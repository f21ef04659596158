/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability tables of FLASH_ATTN cannot say, as a list of reasons. */
#include "flash_instance.h"

#include <math.h>

#define NUMBER(BUFFER, VALUE) (snprintf(BUFFER, sizeof BUFFER, "%lld", (long long)(VALUE)), BUFFER)

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32], want[96];
    if (p->num_heads == 0 || p->num_heads > 65535)
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads), "1 to 65535",
                        "num_heads is %u; 1 to 65535 are served", p->num_heads);
    if (p->num_kv_heads != 0 && p->num_heads % p->num_kv_heads != 0) {
        snprintf(want, sizeof want, "a divisor of num_heads (%u)", p->num_heads);
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_kv_heads", NUMBER(have, p->num_kv_heads), want,
                        "num_kv_heads %u does not divide num_heads %u", p->num_kv_heads, p->num_heads);
    }
    if (p->head_size == 0 || p->head_size % 8 != 0 || p->head_size > 256)
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size", NUMBER(have, p->head_size),
                        "a multiple of 8 up to 256", "head_size is %u; multiples of 8 up to 256 are served",
                        p->head_size);
    if (p->head_size_v % 8 != 0 || p->head_size_v > 256)
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size_v", NUMBER(have, p->head_size_v),
                        "0 or a multiple of 8 up to 256",
                        "head_size_v is %u; multiples of 8 up to 256 are served", p->head_size_v);
    if (p->role == ATTN_ROLE_MLA_PREFILL &&
        (p->v_head_dim == 0 || p->v_head_dim % 8 != 0 || p->v_head_dim > 256))
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "v_head_dim", NUMBER(have, p->v_head_dim),
                        "a multiple of 8 up to 256", "v_head_dim is %u; multiples of 8 up to 256 are served",
                        p->v_head_dim);
    gpu_check_limits(p, 1 << 24, r);
}

static void check_numbers(const attn_problem_t *p, attn_reasons_t *r) {
    if (!isfinite(p->scale) || p->scale == 0.0 || fabs(p->scale) > 1e6)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "scale", "not a usable number",
                        "finite, not 0, at most 1e6",
                        "scale must be finite and not 0; 1/sqrt(head_size) is the usual one");
    if (!isfinite(p->logits_soft_cap) || p->logits_soft_cap < 0.0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "logits_soft_cap", "not a usable number",
                        "0 (off) or a finite positive number",
                        "logits_soft_cap must be 0 or finite and positive");
    if (p->mask < ATTN_MASK_CAUSAL || p->mask > ATTN_MASK_PER_REQUEST)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "mask", "not a mask", "causal, full or per_request",
                        "mask %u is not one; 0 is invalid on purpose", p->mask);
    if (p->role == ATTN_ROLE_ENCODER_DECODER && p->mask != ATTN_MASK_FULL)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "mask", "not full", "full",
                        "cross attention sees every encoder key: mask must be full");
    uint64_t f = attn_problem_features(p);
    char have[32];
    if ((f & ATTN_F_CONTIGUOUS_KV) != 0 && attn_role_has_cache(p->role))
        attn_add_reason(r, ATTN_REASON_FEATURE, "contiguous_kv", attn_role_name(p->role),
                        "a role without a cache",
                        "keys and values of the call take the place of a cache only where the role has none");
    if (p->role != ATTN_ROLE_DECODER && (p->chunk_size != 0 || (f & ATTN_F_CHUNK_LOOKBACK) != 0))
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_size", NUMBER(have, p->chunk_size), "0",
                        "chunked local attention is for role decoder; the role is %s",
                        attn_role_name(p->role));
    if (p->chunk_size != 0 && (p->sliding_window != 0 || (f & ATTN_F_CHUNK_LOOKBACK) != 0))
        attn_add_reason(
            r, ATTN_REASON_COMBINATION, "chunk_size", NUMBER(have, p->chunk_size), "0 with a window",
            "chunked local attention together with a sliding window or chunk lookback is not served");
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 && p->sliding_window != 0 && p->sliding_window <= p->chunk_lookback)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_lookback", NUMBER(have, p->chunk_lookback),
                        "less than sliding_window",
                        "sliding_window %u over %u chunks leaves chunks of 0 tokens", p->sliding_window,
                        p->chunk_lookback + 1);
}

static void check_dtypes(const attn_problem_t *p, attn_reasons_t *r) {
    uint32_t kv = p->kv_cache_dtype,
             same = p->dtype == ATTN_DTYPE_FLOAT16 ? ATTN_KV_FLOAT16 : ATTN_KV_BFLOAT16;
    if (kv != 0 && kv != ATTN_KV_AUTO && kv != same && kv != ATTN_KV_FP8_E4M3)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv),
                        "auto, the dtype, or fp8_e4m3",
                        "a %s cache with dtype %s is not served; take auto or fp8_e4m3", attn_kv_name(kv),
                        attn_dtype_name(p->dtype));
    if (kv == ATTN_KV_FP8_E4M3 && !attn_role_has_cache(p->role))
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv), "auto",
                        "role %s has no cache that could be quantised", attn_role_name(p->role));
    if (p->query_dtype != 0 && p->query_dtype != p->dtype &&
        (p->query_dtype != ATTN_DTYPE_FP8_E4M3 || kv != ATTN_KV_FP8_E4M3))
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the dtype, or fp8_e4m3 with an fp8_e4m3 cache",
                        "query_dtype %s with a %s cache is not served", attn_dtype_name(p->query_dtype),
                        attn_kv_name(kv));
    if (p->out_dtype != 0 && p->out_dtype != p->dtype)
        attn_add_reason(r, ATTN_REASON_OUT_DTYPE, "out_dtype", attn_dtype_name(p->out_dtype),
                        attn_dtype_name(p->dtype), "the output has the dtype of the query");
}

int flash_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    check_sizes(&p, reasons);
    check_numbers(&p, reasons);
    check_dtypes(&p, reasons);
    return ATTN_OK;
}
