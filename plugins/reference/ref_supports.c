/* SPDX-License-Identifier: Apache-2.0 */
/* ref_supports.c: what the capability table of the reference backend cannot say, as a list of reasons. */
#include "../common/problem_rules.h"
#include "ref_instance.h"

/* Above these the products of sizes in this backend could leave 64 bits. */
enum { MAX_HEADS = 65536, MAX_HEAD_SIZE = 65536 };

static void check_sizes(const attn_problem_t *p, attn_reasons_t *reasons) {
    char have[32];
    if (p->num_heads == 0 || p->num_heads > MAX_HEADS)
        attn_add_reason(reasons, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads),
                        "1 to 65536", "num_heads is %u; 1 to %d are served", p->num_heads, MAX_HEADS);
    if (p->head_size == 0 || p->head_size > MAX_HEAD_SIZE)
        attn_add_reason(reasons, ATTN_REASON_HEAD_SIZE, "head_size", NUMBER(have, p->head_size), "1 to 65536",
                        "head_size is %u; 1 to %d are served", p->head_size, MAX_HEAD_SIZE);
    if (p->head_size_v > MAX_HEAD_SIZE)
        attn_add_reason(reasons, ATTN_REASON_HEAD_SIZE, "head_size_v", NUMBER(have, p->head_size_v),
                        "0 to 65536", "head_size_v is %u; at most %d is served", p->head_size_v,
                        MAX_HEAD_SIZE);
    if (p->max_model_len < 0 || p->max_model_len > INT32_MAX)
        attn_add_reason(reasons, ATTN_REASON_LIMIT, "max_model_len", "out of range", "0 to 2147483647",
                        "max_model_len is %lld; lengths are 32-bit", (long long)p->max_model_len);
    if (p->num_blocks < 0 || p->num_blocks > INT32_MAX)
        attn_add_reason(reasons, ATTN_REASON_LIMIT, "num_blocks", "out of range", "0 to 2147483647",
                        "num_blocks is %lld; block ids are 32-bit", (long long)p->num_blocks);
}

/* The MLA roles: sizes that belong together, and what latent caches do not have. */
static void check_mla(const attn_problem_t *p, attn_reasons_t *reasons) {
    int is_latent = p->role == ATTN_ROLE_MLA || p->role == ATTN_ROLE_MLA_SPARSE;
    const struct {
        const char *name;
        uint32_t have;
    } sizes[] = {{"kv_lora_rank", p->kv_lora_rank},
                 {"qk_rope_head_dim", p->qk_rope_head_dim},
                 {"qk_nope_head_dim", p->qk_nope_head_dim},
                 {"v_head_dim", p->v_head_dim}};
    const int is_absorbed = is_latent && !attn_problem_projects(p); /* by the caller: no nope and value */
    char have[32];
    for (int i = 0; i < (is_absorbed ? 2 : 4); i++)
        if (sizes[i].have == 0 || sizes[i].have > MAX_HEAD_SIZE)
            attn_add_reason(reasons, ATTN_REASON_MLA, sizes[i].name, NUMBER(have, sizes[i].have),
                            "1 to 65536", "%s is %u; role %s needs it", sizes[i].name, sizes[i].have,
                            attn_role_name(p->role));
    int is_fp8_query = p->query_dtype != 0 && p->query_dtype != p->dtype; /* semantics 7.4 */
    if (is_fp8_query && !is_absorbed && (!is_latent || p->kv_cache_dtype != ATTN_KV_FP8_E4M3))
        attn_add_reason(reasons, ATTN_REASON_DTYPE, "query_dtype", attn_dtype_name(p->query_dtype),
                        is_latent ? "the dtype, or fp8_e4m3 with an fp8_e4m3 cache" : "the dtype",
                        "role %s has no %s queries%s", attn_role_name(p->role),
                        attn_dtype_name(p->query_dtype), is_latent ? " with such a cache" : "");
}

int ref_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    uint64_t f = attn_problem_features(&p);
    problem_add_rules(&p, f, reasons);
    check_sizes(&p, reasons);
    if ((f & ATTN_F_FP8_ATTENTION) != 0 && p.role != ATTN_ROLE_MM_ENCODER)
        attn_add_reason(reasons, ATTN_REASON_FEATURE, "fp8_attention", attn_role_name(p.role), "mm_encoder",
                        "fp8_attention is for role mm_encoder; the role is %s", attn_role_name(p.role));
    if (attn_role_is_mla(p.role)) check_mla(&p, reasons);
    problem_add_ds_mla(&p, reasons);
    return ATTN_OK;
}
