/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_usual.c: the part of group numerics about the sizes that models have, with every term of the scores
 * at once: a table of kernels may lack a term for one head size, in batches of nothing but decodes, over one
 * cache. The terms are large, so that the wide tolerances of 8 bits still tell that one is missing.
 */
#include "../run/check_engine.h"

#include <math.h>

enum { WINDOW = 37 };

static int ask_for_terms(const check_t *c, kit_case_t *k) {
    attn_problem_t *p = &k->problem;
    if ((c->can.features & ATTN_F_SLIDING_WINDOW) != 0) p->sliding_window = WINDOW;
    if (c->can.features & ATTN_F_SOFT_CAP) p->logits_soft_cap = 2;
    p->features |= c->can.features & ATTN_F_SINK;
    p->scale = 4 / sqrt((double)p->head_size);
    return check_is_served(c, k);
}

static void add_requests(kit_case_t *k, int is_decode, int32_t prompt) {
    static const int32_t decodes[] = {600, 30, 70, 1100, 20, 33, 128, 257};
    for (int r = 0; is_decode && r < 8; r++)
        kit_case_add(k, 1, decodes[r]);
    if (is_decode) return;
    kit_case_add(k, prompt, prompt + 17);
    kit_case_add(k, 1, 70);
    kit_case_add(k, 5, 90);
    kit_case_add(k, 3, 520);
    kit_case_add(k, 9, 9);
}

/* A sink that takes about half of what WINDOW keys leave. */
static void run_with_sinks(check_t *c, const kit_case_t *k) {
    kit_inputs_t *in = kit_inputs_make(k);
    if (in == NULL) return;
    for (uint32_t h = 0; h < k->problem.num_heads && (k->problem.features & ATTN_F_SINK); h++)
        in->sinks[h] = 4 + 0.25f * (float)(h % 4);
    check_run(c, c->backend, k, in);
    kit_inputs_free(in);
}

static void usual_sizes(check_t *c) {
    static const uint32_t sizes[] = {128, 64, 96, 256, 80, 192, 112};
    static const uint32_t groups[] = {8, 4, 7, 2, 5, 1, 6};
    static const uint32_t formats[] = {ATTN_KV_AUTO, ATTN_KV_FP8_E4M3};
    const int num_sizes = c->memory->kind == NULL ? 7 : 2; /* a device may compile each */
    for (int i = 0; i < 4 * num_sizes && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        const uint32_t size = sizes[i / 4], group = groups[i / 4];
        if (check_head_size(c, size) != size || !(c->can.kv_cache_dtypes & ATTN_BIT(formats[i % 2])))
            continue;
        k.problem.dtype = c->arg;
        k.problem.head_size = size;
        k.problem.kv_cache_dtype = formats[i % 2];
        k.problem.num_kv_heads = 1;
        k.problem.num_heads = c->can.max_group != 0 && c->can.max_group < group ? c->can.max_group : group;
        k.problem.max_model_len = 2048;
        check_fit_size(c, &k);
        if (size == 192 && (c->can.features & ATTN_F_DIFF_KV)) k.problem.head_size_v = 128;
        add_requests(&k, i / 2 % 2 == 0, i < 4 ? 300 : i < 12 ? 140 : 40);
        if (ask_for_terms(c, &k)) run_with_sinks(c, &k);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses all terms together");
}

/* Cross attention over an encoder's output, which is longer than most prompts. */
static void usual_cross(check_t *c) {
    static const uint32_t sizes[] = {64, 128};
    for (int i = 0; i < 4 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.problem.role = ATTN_ROLE_ENCODER_DECODER;
        k.problem.mask = ATTN_MASK_FULL;
        k.problem.block_size = check_block_size(c, 16);
        k.problem.dtype = c->arg;
        k.problem.head_size = check_head_size(c, sizes[i / 2]);
        k.problem.num_heads = k.problem.num_kv_heads = 2;
        k.problem.max_model_len = 2048;
        kit_case_add(&k, 1, 1500);
        kit_case_add(&k, i % 2 == 0 ? 1 : 12, 70);
        kit_case_add(&k, 1, 9);
        for (int without_window = 0; without_window < 2; without_window++) {
            kit_case_t other = k;
            if (!ask_for_terms(c, &other)) other.problem.sliding_window = 0;
            if (without_window) other.problem.sliding_window = 0;
            if (check_is_served(c, &other)) run_with_sinks(c, &other);
            if (other.problem.sliding_window == 0) break;
        }
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses cross attention with terms");
}

void check_usual_list(check_list_t *list, const check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++)
        if ((c->can.dtypes & ATTN_BIT(d)) && (c->can.roles & ATTN_BIT(ATTN_ROLE_ENCODER_DECODER)))
            check_add(list, "numerics", 1, usual_cross, d, "cross attention with every term, %s",
                      attn_dtype_name(d));
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    if (!(c->can.features & (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK))) return;
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++)
        if (c->can.dtypes & ATTN_BIT(d))
            check_add(list, "numerics", 1, usual_sizes, d, "usual sizes with every term, %s",
                      attn_dtype_name(d));
}
