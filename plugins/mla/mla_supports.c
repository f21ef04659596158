/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability tables of the MLA backends cannot say, as a list of reasons. */
#include "mla_instance.h"

#include <math.h>

#define NUMBER(BUFFER, VALUE) (snprintf(BUFFER, sizeof BUFFER, "%lld", (long long)(VALUE)), BUFFER)

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32], want[96];
    if (p->num_heads == 0 || p->num_heads > 1024)
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads), "1 to 1024",
                        "num_heads is %u; 1 to 1024 are served", p->num_heads);
    if (p->num_kv_heads > 1)
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_kv_heads", NUMBER(have, p->num_kv_heads), "0 or 1",
                        "num_kv_heads is %u; latent attention has one", p->num_kv_heads);
    if (p->kv_lora_rank != 512 && p->kv_lora_rank != 256)
        attn_add_reason(r, ATTN_REASON_MLA, "kv_lora_rank", NUMBER(have, p->kv_lora_rank), "512 or 256",
                        "kv_lora_rank is %u; 512 and 256 are served", p->kv_lora_rank);
    if (p->qk_rope_head_dim != MLA_ROPE)
        attn_add_reason(r, ATTN_REASON_MLA, "qk_rope_head_dim", NUMBER(have, p->qk_rope_head_dim), "64",
                        "qk_rope_head_dim is %u; 64 is served", p->qk_rope_head_dim);
    const struct {
        const char *name;
        uint32_t size;
    } sizes[] = {{"qk_nope_head_dim", p->qk_nope_head_dim}, {"v_head_dim", p->v_head_dim}};
    for (int i = 0; i < 2; i++)
        if (sizes[i].size == 0 || sizes[i].size % 8 != 0 || sizes[i].size > 512)
            attn_add_reason(r, ATTN_REASON_MLA, sizes[i].name, NUMBER(have, sizes[i].size),
                            "a multiple of 8 up to 512", "%s is %u; multiples of 8 up to 512 are served",
                            sizes[i].name, sizes[i].size);
    uint32_t latent = p->kv_lora_rank + p->qk_rope_head_dim;
    if (p->head_size != latent) {
        snprintf(want, sizeof want, "kv_lora_rank + qk_rope_head_dim = %u", latent);
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size", NUMBER(have, p->head_size), want,
                        "head_size is %u; role %s wants %u", p->head_size, attn_role_name(p->role), latent);
    }
    if (p->head_size_v != 0)
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size_v", NUMBER(have, p->head_size_v), "0",
                        "head_size_v is %u; the value is the latent: give 0", p->head_size_v);
    gpu_check_limits(p, 1 << 20, r);
}

static void check_kinds(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->mask != ATTN_MASK_CAUSAL)
        attn_add_reason(r, ATTN_REASON_NON_CAUSAL, "mask", NUMBER(have, p->mask), "causal",
                        "role %s is causal", attn_role_name(p->role));
    if (!isfinite(p->scale) || p->scale == 0.0 || fabs(p->scale) > 1e6)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "scale", "not a usable number",
                        "finite, not 0, at most 1e6",
                        "scale must be finite and not 0; 1/sqrt(nope + rope) is the usual one");
    if ((p->role == ATTN_ROLE_MLA_SPARSE) != (p->topk != 0) || p->topk > (1u << 20))
        attn_add_reason(r, ATTN_REASON_SPARSE, "topk", NUMBER(have, p->topk), "given with mla_sparse alone",
                        "topk is %u with role %s", p->topk, attn_role_name(p->role));
    uint32_t kv = p->kv_cache_dtype,
             same = p->dtype == ATTN_DTYPE_FLOAT16 ? ATTN_KV_FLOAT16 : ATTN_KV_BFLOAT16;
    int is_sparse = p->role == ATTN_ROLE_MLA_SPARSE;
    if (kv != 0 && kv != ATTN_KV_AUTO && kv != same && kv != ATTN_KV_FP8_E4M3 &&
        !(is_sparse && kv == ATTN_KV_FP8_DS_MLA))
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv),
                        is_sparse ? "auto, the dtype, fp8_ds_mla or fp8" : "auto, the dtype, or fp8_e4m3",
                        "a %s cache with dtype %s is not served", attn_kv_name(kv),
                        attn_dtype_name(p->dtype));
    if (is_sparse && (kv == ATTN_KV_FP8_DS_MLA || kv == ATTN_KV_FP8_E4M3) && p->kv_lora_rank != 512)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv), "kv_lora_rank 512",
                        "fp8_ds_mla rows hold 512 latent values; kv_lora_rank is %u", p->kv_lora_rank);
    const uint64_t f = attn_problem_features(p),
                   quantised = f & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP);
    const uint32_t out = p->out_dtype != 0 ? p->out_dtype : p->dtype;
    if (out != (quantised ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : p->dtype) || (quantised & (quantised - 1)) != 0)
        attn_add_reason(r, ATTN_REASON_OUT_DTYPE, "out_dtype", attn_dtype_name(p->out_dtype),
                        "the dtype, or fp8_e4m3 with out_fp8_static or out_fp8_group",
                        "the output has the dtype of the query, or is fp8_e4m3 with one kind of scales");
    if ((f & ATTN_F_OUT_FP8_GROUP) != 0 && (uint64_t)p->num_heads * p->v_head_dim % 64 != 0)
        attn_add_reason(r, ATTN_REASON_OUT_DTYPE, "out_fp8_group", "a row that is no multiple of 64",
                        "num_heads * v_head_dim a multiple of 64",
                        "group scales cover 64 or 128 values of a row");
    const int is_plain_query = p->query_dtype == 0 || p->query_dtype == p->dtype;
    if (!is_plain_query && is_sparse)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        attn_dtype_name(p->dtype), "%s attends with queries in the dtype of the model",
                        mla_backend_name);
    else if (!is_plain_query && (p->query_dtype != ATTN_DTYPE_FP8_E4M3 || kv != ATTN_KV_FP8_E4M3))
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the dtype, or fp8_e4m3 with an fp8_e4m3 cache",
                        "query_dtype %s with a %s cache is not served", attn_dtype_name(p->query_dtype),
                        attn_kv_name(kv != 0 ? kv : (uint32_t)ATTN_KV_AUTO));
}

int mla_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    check_sizes(&p, reasons);
    check_kinds(&p, reasons);
    return ATTN_OK;
}
