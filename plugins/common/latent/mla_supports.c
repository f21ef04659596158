/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability tables of FLASHMLA and FLASHMLA_SPARSE cannot say, as a list of reasons. */
#include "../gpu_arch.h"
#include "../problem_rules.h"
#include "mla_instance.h"

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->kv_lora_rank != 512 && p->kv_lora_rank != 256)
        attn_add_reason(r, ATTN_REASON_MLA, "kv_lora_rank", NUMBER(have, p->kv_lora_rank), "512 or 256",
                        "kv_lora_rank is %u; 512 and 256 are served", p->kv_lora_rank);
    if (p->qk_rope_head_dim != MLA_ROPE)
        attn_add_reason(r, ATTN_REASON_MLA, "qk_rope_head_dim", NUMBER(have, p->qk_rope_head_dim), "64",
                        "qk_rope_head_dim is %u; 64 is served", p->qk_rope_head_dim);
}

int mla_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    attn_problem_t p;
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    mla_check_problem(&p, reasons);
    check_sizes(&p, reasons);
    gpu_check_arch(device, reasons);
    return ATTN_OK;
}
