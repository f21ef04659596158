/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability table of TRITON_ATTN cannot say, as a list of reasons. */
#include "triton_instance.h"

#include <math.h>

#define NUMBER(BUFFER, VALUE) (snprintf(BUFFER, sizeof BUFFER, "%lld", (long long)(VALUE)), BUFFER)

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32], want[96];
    const struct {
        const char *name;
        int64_t have, low, high;
        int code;
    } ranges[] = {
        {"num_heads", p->num_heads, 1, 65535, ATTN_REASON_HEAD_COUNT},
        {"head_size", p->head_size, 32, 512, ATTN_REASON_HEAD_SIZE},
        {"head_size_v", p->head_size_v ? p->head_size_v : p->head_size, 32, 512, ATTN_REASON_HEAD_SIZE},
        {"max_num_seqs", p->max_num_seqs, 0, 65535, ATTN_REASON_LIMIT},
        {"max_num_batched_tokens", p->max_num_batched_tokens, 0, 1 << 24, ATTN_REASON_LIMIT},
        {"max_model_len", p->max_model_len, 0, INT32_MAX - 65536, ATTN_REASON_LIMIT},
        {"num_blocks", p->num_blocks, 0, INT32_MAX, ATTN_REASON_LIMIT},
        {"max_mm_ranges", p->max_mm_ranges, 0, 4096, ATTN_REASON_LIMIT}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].have < ranges[i].low || ranges[i].have > ranges[i].high) {
            snprintf(want, sizeof want, "%lld to %lld", (long long)ranges[i].low, (long long)ranges[i].high);
            attn_add_reason(r, ranges[i].code, ranges[i].name, NUMBER(have, ranges[i].have), want,
                            "%s is %lld; %s are served", ranges[i].name, (long long)ranges[i].have, want);
        }
    if (p->num_kv_heads != 0 && p->num_heads % p->num_kv_heads != 0) {
        snprintf(want, sizeof want, "a divisor of num_heads (%u)", p->num_heads);
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_kv_heads", NUMBER(have, p->num_kv_heads), want,
                        "num_kv_heads %u does not divide num_heads %u", p->num_kv_heads, p->num_heads);
    }
    if (attn_role_has_cache(p->role) && p->block_size % 16 != 0)
        attn_add_reason(r, ATTN_REASON_BLOCK_SIZE, "block_size", NUMBER(have, p->block_size),
                        "a multiple of 16", "block_size is %u; multiples of 16 are served", p->block_size);
}

static void check_numbers(const attn_problem_t *p, attn_reasons_t *r) {
    if (!isfinite(p->scale) || p->scale == 0.0 || fabs(p->scale) > 1e6)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "scale", "not a usable number",
                        "finite, not 0, at most 1e6",
                        "scale must be finite and not 0; 1/sqrt(head_size) is the usual one");
    if (!isfinite(p->logits_soft_cap) || p->logits_soft_cap < 0.0 || p->logits_soft_cap > 1e30)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "logits_soft_cap", "not a usable number",
                        "0 (off) or a finite positive number",
                        "logits_soft_cap must be 0 or finite and positive");
}

static void check_masks(const attn_problem_t *p, uint64_t f, attn_reasons_t *r) {
    char have[32];
    int is_decoder = p->role == ATTN_ROLE_DECODER;
    if (p->mask < ATTN_MASK_CAUSAL || p->mask > ATTN_MASK_PER_REQUEST)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "mask", NUMBER(have, p->mask),
                        "causal, full or per_request", "mask %u is not one; 0 is invalid on purpose",
                        p->mask);
    if (p->role == ATTN_ROLE_ENCODER_DECODER && p->mask != ATTN_MASK_FULL)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "mask", NUMBER(have, p->mask), "full",
                        "cross attention sees every encoder key: mask must be full");
    if (!is_decoder && (p->chunk_size != 0 || p->rswa_window != 0 ||
                        (f & (ATTN_F_MM_PREFIX | ATTN_F_QQ_BIAS | ATTN_F_CHUNK_LOOKBACK)) != 0))
        attn_add_reason(r, ATTN_REASON_COMBINATION,
                        p->chunk_size    ? "chunk_size"
                        : p->rswa_window ? "rswa_window"
                                         : "features",
                        attn_role_name(p->role), "decoder",
                        "chunks, R-SWA, spans and query-query bias are for role decoder; the role is %s",
                        attn_role_name(p->role));
    if (p->rswa_window != 0 && (p->sliding_window != 0 || p->chunk_size != 0))
        attn_add_reason(r, ATTN_REASON_COMBINATION, "rswa_window", NUMBER(have, p->rswa_window),
                        "0 with a sliding_window or chunks",
                        "R-SWA replaces windows and chunks; give one of them");
    if (p->chunk_size != 0 && (p->sliding_window != 0 || (f & ATTN_F_MM_PREFIX) != 0))
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_size", NUMBER(have, p->chunk_size),
                        "0 with a window or spans",
                        "chunked local attention together with a window or spans is not served");
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 && p->sliding_window != 0 && p->sliding_window <= p->chunk_lookback)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_lookback", NUMBER(have, p->chunk_lookback),
                        "less than sliding_window",
                        "sliding_window %u over %u chunks leaves chunks of 0 tokens", p->sliding_window,
                        p->chunk_lookback + 1);
    if ((f & ATTN_F_CONTIGUOUS_KV) != 0 && attn_role_has_cache(p->role))
        attn_add_reason(r, ATTN_REASON_FEATURE, "contiguous_kv", attn_role_name(p->role),
                        "a role without a cache", "role %s reads its cache, not the call's key and value",
                        attn_role_name(p->role));
    if ((f & ATTN_F_ALIBI) != 0 && (f & ATTN_F_ALIBI_SQRT) != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "features", "alibi and alibi_sqrt", "one of the two",
                        "ALiBi is linear or of the square root, not both");
}

static void check_dtypes(const attn_problem_t *p, uint64_t f, const attn_device_t *device,
                         attn_reasons_t *r) {
    if (!attn_role_has_cache(p->role) && attn_kv_is_quantized(p->kv_cache_dtype))
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(p->kv_cache_dtype),
                        "auto", "role %s has no cache that could be quantised", attn_role_name(p->role));
    if (p->query_dtype != 0 && p->query_dtype != p->dtype && p->query_dtype != ATTN_DTYPE_FP8_E4M3)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the problem's dtype or fp8_e4m3", "query_dtype %s is not served with dtype %s",
                        attn_dtype_name(p->query_dtype), attn_dtype_name(p->dtype));
    int is_group = (f & ATTN_F_OUT_FP8_GROUP) != 0, is_fp8 = is_group || (f & ATTN_F_OUT_FP8_STATIC) != 0;
    uint32_t out = p->out_dtype != 0 ? p->out_dtype : p->dtype,
             dv = p->head_size_v ? p->head_size_v : p->head_size;
    if (out != (is_fp8 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : p->dtype))
        attn_add_reason(
            r, ATTN_REASON_OUT_DTYPE, "out_dtype", attn_dtype_name(out),
            is_fp8 ? "fp8_e4m3" : attn_dtype_name(p->dtype),
            "out_dtype is the problem's dtype, or fp8_e4m3 with feature out_fp8_static or out_fp8_group");
    if (is_group && (f & ATTN_F_OUT_FP8_STATIC) != 0)
        attn_add_reason(r, ATTN_REASON_OUT_DTYPE, "out_fp8_group", "with out_fp8_static", "one of the two",
                        "the output is quantised with one static scale or with group scales, not both");
    if (is_group && (uint64_t)p->num_heads * dv % 64 != 0)
        attn_add_reason(r, ATTN_REASON_OUT_DTYPE, "out_fp8_group", "a width that is no multiple of 64",
                        "groups of 64 or 128", "%u heads of %u values do not divide into groups of 64",
                        p->num_heads, dv);
    triton_config_t config;
    int cc = device != NULL && device->compute_capability >= 80 ? device->compute_capability : 80;
    if (r->count == 0 && triton_configure(p, cc, &config) != 0)
        attn_add_reason(r, ATTN_REASON_LIMIT, "head_size", "too large together", "smaller head sizes",
                        "head sizes %d and %d do not fit the %d bytes of shared memory of sm_%d", config.d,
                        config.dv, triton_smem_of_block(cc), cc);
}

int triton_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    attn_problem_t p;
    attn_device_t dev;
    attn_reasons_t uncounted = {.struct_size = sizeof uncounted};
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status == ATTN_OK && device != NULL)
        status = attn_intake_known(&dev, sizeof dev, device, "device", NULL);
    if (status != ATTN_OK) return status;
    if (reasons == NULL) reasons = &uncounted;
    uint64_t f = attn_problem_features(&p);
    check_sizes(&p, reasons);
    check_numbers(&p, reasons);
    check_masks(&p, f, reasons);
    check_dtypes(&p, f, device != NULL ? &dev : NULL, reasons);
    return ATTN_OK;
}

int triton_check_problem(const attn_problem_t *p, const attn_device_t *device, attn_error_t *error) {
    return problem_check(p, device, &triton_capabilities, "TRITON_ATTN", triton_supports, error);
}
