/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_neutral.c: the part of group numerics about values that change nothing where one head has them: a
 * slope of 0, a scale of 1. A kernel that looks at one head alone takes the way without them for all.
 * Likewise sizes whose arithmetic is usually done for powers of two: long contexts in other pages, and more
 * requests than tokens.
 */
#include "../run/check_engine.h"

#include <math.h>

/* Slopes of which the first, the last or all but one are 0. */
static void slopes(check_t *c) {
    static const uint64_t kinds[] = {ATTN_F_ALIBI, ATTN_F_ALIBI_SQRT};
    for (int i = 0; i < 6 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if ((c->can.features & kinds[i % 2]) == 0) continue;
        k.problem.features |= kinds[i % 2];
        k.problem.num_heads = 6;
        k.problem.num_kv_heads = c->can.max_group == 1 ? 6 : 2;
        kit_case_add(&k, 1, 90);
        kit_case_add(&k, 9, 40);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        for (uint32_t h = 0; h < 6; h++)
            if (i < 2 ? h == 0 : i < 4 ? h == 5 : h != 3) in->alibi_slopes[h] = 0;
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses the plain case with it");
}

/* A scale of 1 for the first head, or the last, of a cache with one for each. */
static void scales(check_t *c) {
    static const uint32_t formats[] = {ATTN_KV_FP8_E4M3, ATTN_KV_FP8_E5M2};
    for (int i = 0; i < 4 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if (!(c->can.kv_cache_dtypes & ATTN_BIT(formats[i / 2]))) continue;
        k.problem.kv_cache_dtype = formats[i / 2];
        k.problem.features |= ATTN_F_PER_HEAD_SCALES;
        k.flags |= KIT_PER_HEAD;
        k.problem.num_heads = 6;
        k.problem.num_kv_heads = c->can.max_group == 1 ? 6 : 3;
        check_fit_size(c, &k);
        kit_case_add(&k, 1, 50);
        kit_case_add(&k, 7, 40);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const int64_t one = i % 2 == 0 ? 0 : in->num_scales - 1;
        in->k_scale[one] = in->v_scale[one] = 1;
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "no cache format with a scale for each head is served");
}

/* 70000 keys in pages whose number is no power of two. */
static void odd_pages(check_t *c) {
    static const uint32_t pages[] = {48, 24, 80, 112, 528};
    for (int i = 0; i < 5 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if (check_block_size(c, pages[i]) != pages[i]) continue;
        k.problem.block_size = pages[i];
        if (c->can.dtypes & ATTN_BIT(ATTN_DTYPE_FLOAT32)) k.problem.dtype = ATTN_DTYPE_FLOAT32;
        k.problem.head_size = check_head_size(c, 16);
        k.problem.scale = 1 / sqrt((double)k.problem.head_size);
        k.problem.num_heads = k.problem.num_kv_heads = 1;
        k.problem.max_model_len = 131072;
        kit_case_add(&k, 1, i == 0 ? 131072 : 70000);
        check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "its pages are powers of two");
}

/* Requests without a query token beside a few that have one: more than max_num_batched_tokens. */
static void more_requests_than_tokens(check_t *c) {
    kit_case_t k;
    if (!check_start_decoder(c, &k)) return;
    k.padded_tokens = 0;
    k.problem.max_num_seqs = 300;
    k.problem.max_num_batched_tokens = 4;
    for (int r = 0; r < 300; r++)
        kit_case_add(&k, r == 5 ? 3 : r == 290, 5 + r % 7);
    check_run(c, c->backend, &k, NULL);
}

void check_neutral_list(check_list_t *list, const check_t *c) {
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    if (c->can.features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT))
        check_add(list, "numerics", 1, slopes, 0, "slopes of 0 for some heads");
    if (c->can.features & ATTN_F_PER_HEAD_SCALES)
        check_add(list, "numerics", 1, scales, 0, "scales of 1 for some heads");
    check_add(list, "numerics", 1, odd_pages, 0, "long contexts in pages of other sizes");
    check_add(list, "numerics", 1, more_requests_than_tokens, 0, "more requests than tokens");
}
