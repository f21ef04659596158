/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_own.c: the part of group numerics about what each request, or each head, has of its own where there
 * are many: masks, prefixes and spans of requests beyond a word of bits, sinks, slopes and biases of heads
 * beyond 64; the lists of a batch given as tensors alone, with gaps; slopes as large as models have them, far
 * from the first key.
 */
#include "../run/check_engine.h"

#include <math.h>
#include <string.h>

/* Each request has another mask, prefix or spans than those 32, 64 and 128 before it. */
static void ask_for_own(kit_case_t *k, uint64_t feature) {
    attn_problem_t *p = &k->problem;
    if (feature == ATTN_F_PER_REQUEST_CAUSAL) p->mask = ATTN_MASK_PER_REQUEST;
    if (feature == ATTN_F_RSWA) p->rswa_window = 3;
    if (feature == ATTN_F_MM_PREFIX) p->features |= feature, p->max_mm_ranges = k->num_spans = 2;
    for (int r = 0; r < k->num_reqs; r++) {
        const int32_t own = r % 7 + r / 32 % 5, len = k->seq_lens[r];
        k->causal[r] = (uint8_t)((r + r / 32 + r / 128) % 2);
        k->rswa_prefix_lens[r] = own < len ? own : len;
        k->spans[r][0][0] = k->spans[r][0][1] = 0;
        k->spans[r][1][0] = own < len ? own : 0;
        k->spans[r][1][1] = len > 2 ? len - 1 - r % 2 : 0;
        if (k->spans[r][1][1] < k->spans[r][1][0]) k->spans[r][1][1] = k->spans[r][1][0];
    }
}

static const uint64_t of_requests[] = {ATTN_F_PER_REQUEST_CAUSAL, ATTN_F_RSWA, ATTN_F_MM_PREFIX};

static void many_requests(check_t *c) {
    static const int counts[] = {70, 270};
    for (int i = 0; i < 2 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        k.problem.max_num_seqs = 300;
        for (int r = 0; r < counts[i]; r++)
            kit_case_add(&k, 1 + r % 3, 3 + r % 37);
        ask_for_own(&k, of_requests[c->arg]);
        if (i == 1 &&
            k.num_spans != 0) /* as many as a limit of 0 means, in metadata for just these requests */
            k.problem.max_num_seqs = (uint32_t)counts[i], k.problem.max_mm_ranges = 0, k.num_spans = 8;
        check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses it");
}

/* The lists as tensors alone, without their mirrors on the host; rows of spans may have gaps. */
static void tensors_alone(check_t *c) {
    static const uint32_t flags[] = {KIT_BARE_BATCH, KIT_BARE_BATCH | KIT_STRIDED};
    for (int i = 0; i < 2 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        k.flags |= flags[i];
        kit_case_add(&k, 4, 30);
        kit_case_add(&k, 1, 41);
        kit_case_add(&k, 2, 60);
        kit_case_add(&k, 9, 25);
        kit_case_add(&k, 7, 50);
        ask_for_own(&k, of_requests[c->arg]);
        check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses it");
}

static const uint64_t of_heads[] = {ATTN_F_SINK, ATTN_F_ALIBI, ATTN_F_ALIBI_SQRT, ATTN_F_REL_BIAS};

/* Every term that has a number for each head, over more heads than 64, 128 and 256, and over large groups. */
static void many_heads(check_t *c) {
    static const uint32_t heads[][2] = {{96, 96}, {140, 7}, {272, 16}, {72, 2}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_decoder(c, &k)) return;
        if (c->can.max_group != 0 && heads[i][0] / heads[i][1] > c->can.max_group) continue;
        k.problem.num_heads = heads[i][0];
        k.problem.num_kv_heads = heads[i][1];
        k.problem.features |= of_heads[c->arg];
        k.problem.head_size = check_head_size(c, 16);
        k.problem.scale = 1 / sqrt((double)k.problem.head_size);
        kit_case_add(&k, 1, 33);
        kit_case_add(&k, 5, 21);
        check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses it");
}

/* Positions of 70000 times slopes of models lose their fraction in float32; their difference does not. */
static void far_slopes(check_t *c) {
    kit_case_t k;
    if (!check_start_decoder(c, &k)) return;
    check_few_heads(c, &k);
    k.problem.max_model_len = 131072;
    k.problem.features |= ATTN_F_ALIBI;
    kit_case_add(&k, 1, 70000);
    kit_case_add(&k, 3, 66000);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses the plain case with it");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    for (uint32_t h = 0; h < k.problem.num_heads; h++)
        in->alibi_slopes[h] = h % 2 == 0 ? 0.7071f : 0.3536f;
    check_run(c, c->backend, &k, in);
    kit_inputs_free(in);
}

void check_own_list(check_list_t *list, const check_t *c) {
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    for (uint32_t i = 0; i < sizeof of_requests / sizeof of_requests[0]; i++) {
        unsigned bit = 0;
        while ((of_requests[i] >> bit & 1) == 0)
            bit++;
        if (!(c->can.features & of_requests[i])) continue;
        check_add(list, "numerics", 1, many_requests, i, "%s of many requests", attn_feature_name(bit));
        check_add(list, "numerics", 1, tensors_alone, i, "%s without a list on the host",
                  attn_feature_name(bit));
    }
    for (uint32_t i = 0; i < sizeof of_heads / sizeof of_heads[0]; i++) {
        unsigned bit = 0;
        while ((of_heads[i] >> bit & 1) == 0)
            bit++;
        if (c->can.features & of_heads[i])
            check_add(list, "numerics", 1, many_heads, i, "%s of many heads", attn_feature_name(bit));
    }
    if (c->can.features & ATTN_F_ALIBI)
        check_add(list, "numerics", 1, far_slopes, 0, "slopes of models over 70000 keys");
}
