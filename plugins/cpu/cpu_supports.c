/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability table of CPU_ATTN cannot say, as a list of reasons. */
#include "../common/problem_rules.h"
#include "cpu_instance.h"

static void check_sizes(const attn_problem_t *p, attn_reasons_t *reasons) {
    char have[32];
    if (p->num_heads == 0 || p->num_heads > 4096)
        attn_add_reason(reasons, ATTN_REASON_HEAD_COUNT, "num_heads", NUMBER(have, p->num_heads), "1 to 4096",
                        "num_heads is %u; 1 to 4096 are served", p->num_heads);
    if (p->block_size > 65536)
        attn_add_reason(reasons, ATTN_REASON_BLOCK_SIZE, "block_size", NUMBER(have, p->block_size),
                        "1 to 65536", "block_size is %u; at most 65536 is served", p->block_size);
    if (p->max_model_len < 0 || p->max_model_len > INT32_MAX - 65536)
        attn_add_reason(reasons, ATTN_REASON_LIMIT, "max_model_len", "out of range", "0 to 2147418111",
                        "max_model_len is %lld; lengths are 32-bit", (long long)p->max_model_len);
    if (p->num_blocks < 0 || p->num_blocks > INT32_MAX)
        attn_add_reason(reasons, ATTN_REASON_LIMIT, "num_blocks", "out of range", "0 to 2147483647",
                        "num_blocks is %lld; block ids are 32-bit", (long long)p->num_blocks);
}

static void check_chunks(const attn_problem_t *p, uint64_t f, attn_reasons_t *reasons) {
    char have[32];
    if (p->rswa_window != 0 && p->chunk_size != 0)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "rswa_window", NUMBER(have, p->rswa_window),
                        "0 with chunk_size", "R-SWA replaces chunks; give one of the two");
    if ((f & ATTN_F_CHUNK_LOOKBACK) != 0 && p->chunk_size != 0)
        attn_add_reason(
            reasons, ATTN_REASON_COMBINATION, "chunk_lookback", "with chunk_size", "one of the two",
            "chunk lookback (chunks from sliding_window) and chunk_size are two kinds of chunks; give one");
}

/* Latent attention reads its cache alone, and has no mask but the bound. */
static void check_latent(const attn_problem_t *p, uint64_t f, attn_reasons_t *reasons) {
    char have[32];
    if (p->kv_lora_rank == 0 || p->qk_rope_head_dim == 0)
        attn_add_reason(reasons, ATTN_REASON_MLA, p->kv_lora_rank == 0 ? "kv_lora_rank" : "qk_rope_head_dim",
                        "0", "above 0", "latent rows have kv_lora_rank and qk_rope_head_dim values, not 0");
    if (p->head_size_v != 0)
        attn_add_reason(reasons, ATTN_REASON_HEAD_SIZE, "head_size_v", NUMBER(have, p->head_size_v), "0",
                        "head_size_v is %u; the value of latent attention is the latent", p->head_size_v);
    if ((f & ATTN_F_CASCADE) != 0)
        attn_add_reason(reasons, ATTN_REASON_FEATURE, "cascade", "asked for", "not asked for",
                        "latent attention has no cascade");
}

/* Selected keys are offsets in a thread's scratch. */
static void check_sparse(const attn_problem_t *p, attn_reasons_t *reasons) {
    char have[32];
    if (p->topk > CPU_MAX_TOPK)
        attn_add_reason(reasons, ATTN_REASON_SPARSE, "topk", NUMBER(have, p->topk), "at most 131072",
                        "topk is %u; at most %d is served", p->topk, CPU_MAX_TOPK);
    problem_add_ds_mla(p, reasons);
}

int cpu_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    const int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    const uint64_t features = attn_problem_features(&p);
    problem_add_rules(&p, features, reasons);
    check_sizes(&p, reasons);
    if (attn_role_is_mla(p.role)) check_latent(&p, features, reasons);
    if (p.role == ATTN_ROLE_MLA_SPARSE) check_sparse(&p, reasons);
    check_chunks(&p, features, reasons);
    return ATTN_OK;
}
