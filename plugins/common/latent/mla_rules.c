/* SPDX-License-Identifier: Apache-2.0 */
/* What every backend of latent attention on a GPU refuses alike. */
#include "../output_scales.h"
#include "../problem_rules.h"
#include "mla_instance.h"

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->num_heads == 0 || p->num_heads > 1024)
        attn_add_reason(r, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads), "1 to 1024",
                        "num_heads is %u; 1 to 1024 are served", p->num_heads);
    const struct {
        const char *name;
        uint32_t size;
    } sizes[] = {{"qk_nope_head_dim", p->qk_nope_head_dim}, {"v_head_dim", p->v_head_dim}};
    for (int i = 0; i < 2 && attn_problem_projects(p); i++)
        if (sizes[i].size == 0 || sizes[i].size % 8 != 0 || sizes[i].size > 512)
            attn_add_reason(r, ATTN_REASON_MLA, sizes[i].name, NUMBER(have, sizes[i].size),
                            "a multiple of 8 up to 512", "%s is %u; multiples of 8 up to 512 are served",
                            sizes[i].name, sizes[i].size);
    if (p->head_size_v != 0)
        attn_add_reason(r, ATTN_REASON_HEAD_SIZE, "head_size_v", NUMBER(have, p->head_size_v), "0",
                        "head_size_v is %u; the value is the latent: give 0", p->head_size_v);
    gpu_check_limits(p, 1 << 20, r);
}

static void check_kinds(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->topk > (1u << 20))
        attn_add_reason(r, ATTN_REASON_SPARSE, "topk", NUMBER(have, p->topk), "at most 1048576",
                        "topk is %u; at most 1048576 is served", p->topk);
    uint32_t kv = p->kv_cache_dtype,
             other = p->dtype == ATTN_DTYPE_FLOAT16 ? ATTN_KV_BFLOAT16 : ATTN_KV_FLOAT16;
    int is_sparse = p->role == ATTN_ROLE_MLA_SPARSE;
    if (kv == other)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv),
                        is_sparse ? "auto, the dtype, fp8_ds_mla or fp8" : "auto, the dtype, or fp8_e4m3",
                        "a %s cache with dtype %s is not served", attn_kv_name(kv),
                        attn_dtype_name(p->dtype));
    if (is_sparse && (kv == ATTN_KV_FP8_DS_MLA || kv == ATTN_KV_FP8_E4M3) && p->kv_lora_rank != 512)
        attn_add_reason(r, ATTN_REASON_KV_CACHE_DTYPE, "kv_cache_dtype", attn_kv_name(kv), "kv_lora_rank 512",
                        "fp8_ds_mla rows hold 512 latent values; kv_lora_rank is %u", p->kv_lora_rank);
    if ((p->features & ATTN_F_DEVICE_LENGTHS) != 0 && output_has_groups(p->features))
        attn_add_reason(
            r, ATTN_REASON_COMBINATION, (p->features & ATTN_F_OUT_NVFP4) != 0 ? "out_nvfp4" : "out_fp8_group",
            "with device_lengths", "one of the two",
            "group scales are made of all rows that the host counts; device_lengths excludes them");
    const int is_plain_query = p->query_dtype == 0 || p->query_dtype == p->dtype;
    if (!is_plain_query && is_sparse)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        attn_dtype_name(p->dtype), "role %s attends with queries in the dtype of the model",
                        attn_role_name(p->role));
    else if (!is_plain_query && kv != ATTN_KV_FP8_E4M3)
        attn_add_reason(r, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        "the dtype, or fp8_e4m3 with an fp8_e4m3 cache",
                        "query_dtype %s with a %s cache is not served", attn_dtype_name(p->query_dtype),
                        attn_kv_name(kv != 0 ? kv : (uint32_t)ATTN_KV_AUTO));
}

void mla_check_problem(const attn_problem_t *p, attn_reasons_t *reasons) {
    problem_add_rules(p, attn_problem_features(p), reasons);
    check_sizes(p, reasons);
    check_kinds(p, reasons);
}
