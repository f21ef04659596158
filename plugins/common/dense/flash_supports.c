/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability tables of FLASH_ATTN cannot say, as a list of reasons. */
#include "../gpu_arch.h"
#include "../problem_rules.h"
#include "flash_instance.h"

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->num_heads == 0 || p->num_heads > 65535)
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads), "1 to 65535",
                        "num_heads is %u; 1 to 65535 are served", p->num_heads);
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

static void check_chunks(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->chunk_size != 0 &&
        (p->sliding_window != 0 || (attn_problem_features(p) & ATTN_F_CHUNK_LOOKBACK) != 0))
        attn_add_reason(
            r, ATTN_REASON_COMBINATION, "chunk_size", NUMBER(have, p->chunk_size), "0 with a window",
            "chunked local attention together with a sliding window or chunk lookback is not served");
}

static void check_dtypes(const attn_problem_t *p, attn_reasons_t *r) {
    uint32_t kv = p->kv_cache_dtype,
             other = p->dtype == ATTN_DTYPE_FLOAT16 ? ATTN_KV_BFLOAT16 : ATTN_KV_FLOAT16;
    if (kv == other)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv),
                        "auto, the dtype, or fp8_e4m3",
                        "a %s cache with dtype %s is not served; take auto or fp8_e4m3", attn_kv_name(kv),
                        attn_dtype_name(p->dtype));
    if (kv == ATTN_KV_FP8_E4M3 && p->role == ATTN_ROLE_MLA_PREFILL)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv), "auto",
                        "role %s has no cache that could be quantised", attn_role_name(p->role));
    if (p->query_dtype != 0 && p->query_dtype != p->dtype && kv != ATTN_KV_FP8_E4M3)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the dtype, or fp8_e4m3 with an fp8_e4m3 cache",
                        "query_dtype %s with a %s cache is not served", attn_dtype_name(p->query_dtype),
                        attn_kv_name(kv));
}

int flash_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    attn_problem_t p;
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    problem_add_rules(&p, attn_problem_features(&p), reasons);
    check_sizes(&p, reasons);
    check_chunks(&p, reasons);
    check_dtypes(&p, reasons);
    gpu_check_arch(device, reasons);
    return ATTN_OK;
}
