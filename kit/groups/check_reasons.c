/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_reasons.c: the part of group capabilities about what supports_combination says: engines and attn info
 * read the name in a reason, so it is one of the header's, and the text is there.
 */
#include "../run/check_engine.h"

#include <math.h>

static int is_known(const char *name) {
    static const char *const members[] = {"role",
                                          "mask",
                                          "dtype",
                                          "out_dtype",
                                          "query_dtype",
                                          "kv_cache_dtype",
                                          "kv_layout",
                                          "num_heads",
                                          "num_kv_heads",
                                          "head_size",
                                          "head_size_v",
                                          "block_size",
                                          "sliding_window",
                                          "chunk_size",
                                          "chunk_lookback",
                                          "rswa_window",
                                          "static_sink_len",
                                          "scale",
                                          "logits_soft_cap",
                                          "features",
                                          "max_num_seqs",
                                          "max_num_batched_tokens",
                                          "max_model_len",
                                          "num_blocks",
                                          "kv_lora_rank",
                                          "qk_nope_head_dim",
                                          "qk_rope_head_dim",
                                          "v_head_dim",
                                          "topk",
                                          "dcp_world_size",
                                          "dcp_rank",
                                          "cp_interleave",
                                          "max_mm_ranges",
                                          "max_num_batched_keys",
                                          "device",
                                          "device_type",
                                          "compute_capability"};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (strcmp(name, members[i]) == 0) return 1;
    for (unsigned bit = 0; bit < 64; bit++)
        if ((ATTN_F_KNOWN_ >> bit & 1) && strcmp(name, attn_feature_name(bit)) == 0) return 1;
    return 0;
}

static void look_at(check_t *c, const kit_case_t *k) {
    attn_reason_t items[8];
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 8, .items = items};
    attn_device_t device;
    check_device(c, &device);
    memset(items, 0, sizeof items);
    if (c->backend->ops->supports_combination(&k->problem, &device, &reasons) != ATTN_OK) return;
    for (uint32_t i = 0; i < reasons.count && i < 8 && !c->report->is_failed; i++) {
        check_running(c, k);
        c->report->num_cases++;
        if (memchr(items[i].param, 0, sizeof items[i].param) == NULL ||
            memchr(items[i].text, 0, sizeof items[i].text) == NULL)
            check_fail(c, "reason %u: its name or its text has no end", i);
        else if (items[i].code < 1 || items[i].code >= ATTN_REASON_COUNT_)
            check_fail(c, "reason %u has the code %d, which is none of attn_types.h", i, items[i].code);
        else if (items[i].text[0] == '\0')
            check_fail(c, "reason %u, of %s, has no text", i, items[i].param);
        else if (!is_known(items[i].param))
            check_fail(c, "reason %u names '%s', which is no member of attn_problem_t and no feature", i,
                       items[i].param);
    }
}

/* Every role and pair of what is asked for by members, with each cache format and group. */
static void reasons(check_t *c) {
    static const uint64_t bits[] = {0, ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_LSE, ATTN_F_PER_HEAD_SCALES};
    kit_case_t base;
    if (c->backend->ops->supports_combination == NULL) {
        check_skip(c, "no supports_combination");
        return;
    }
    if (!check_start(c, &base)) return;
    for (uint32_t role = 1; role < 32; role++)
        for (int i = 0; i < 5 * 32 && !c->report->is_failed; i++) {
            kit_case_t k = base;
            attn_problem_t *p = &k.problem;
            if (!(c->can.roles >> role & 1) || attn_role_is_mla(role) || role == ATTN_ROLE_MLA_PREFILL)
                continue;
            if (attn_role_is_mla(base.problem.role)) continue;
            p->role = role;
            p->mask = role == ATTN_ROLE_ENCODER_DECODER || i & 1 ? ATTN_MASK_FULL : ATTN_MASK_CAUSAL;
            p->features |= bits[i % 5];
            if (i & 2) p->sliding_window = 16;
            if (i & 4) p->logits_soft_cap = 20;
            if (i & 8 && (c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)) && attn_role_has_cache(role))
                p->kv_cache_dtype = ATTN_KV_FP8_E4M3;
            if (i & 16) p->num_kv_heads = 1, p->head_size_v = p->head_size / 2;
            if (!attn_role_has_cache(role)) p->block_size = 0;
            look_at(c, &k);
        }
    if (c->report->num_cases == 0) check_skip(c, "it has no reason against what was asked");
}

void check_reasons_list(check_list_t *list, const check_t *c) {
    (void)c;
    check_add(list, "capabilities", 1, reasons, 0, "reasons name a member or a feature");
}
