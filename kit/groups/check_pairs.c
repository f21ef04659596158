/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_pairs.c: the part of group numerics about what is right alone and wrong together. Kernels are
 * compiled for an element type, a cache format and sizes: each type and format with every usual head size,
 * group and page. Features meet in one formula: each with each other, and each over contexts beyond 65536
 * keys, where positions of 16 bits wrap.
 */
#include "../run/check_engine.h"

#include <math.h>

/* ----------------------------------------------------- types, formats, sizes */

static void run_sizes(check_t *c, uint32_t kv) {
    static const uint32_t sizes[] = {64, 128, 96, 256, 80, 32, 192, 112, 160, 200, 144, 16, 40};
    static const uint32_t groups[] = {4, 8, 1, 7, 2, 5, 3, 6, 16, 12, 10, 32, 9};
    static const uint32_t pages[] = {16, 32, 64, 8, 128, 48, 256, 24, 1, 16, 32, 64, 128};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    for (int i = 0; i < SIZES && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        k.problem.dtype = c->arg;
        k.problem.kv_cache_dtype = kv;
        k.problem.head_size = check_head_size(c, sizes[i]);
        k.problem.scale = 1 / sqrt((double)k.problem.head_size);
        const uint32_t group = c->can.max_group != 0 && groups[i] > c->can.max_group ? 1 : groups[i];
        k.problem.num_kv_heads = group > 8 ? 1 : 2;
        k.problem.num_heads = k.problem.num_kv_heads * group;
        if (k.problem.block_size != 0) k.problem.block_size = check_block_size(c, pages[i]);
        check_fit_size(c, &k);
        kit_case_add(&k, 1, 70);
        kit_case_add(&k, 6, 17);
        kit_case_add(&k, 17, 33);
        check_run(c, c->backend, &k, NULL);
    }
}

static void sizes_of_type(check_t *c) {
    const uint64_t formats = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER));
    run_sizes(c, 0);
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    for (uint32_t kv = ATTN_KV_AUTO + 1; kv < ATTN_KV_COUNT_ && !c->report->is_failed; kv++)
        if (formats & ATTN_BIT(kv)) run_sizes(c, kv);
}

/* Scales of one element, of one for each KV head, and none, of caches and of quantised queries beside
 * them. */
static void kinds_of_scales(check_t *c) {
    static const uint32_t flags[] = {KIT_PER_HEAD, 0, KIT_NO_SCALES};
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++)
        for (int i = 0; i < 6 && !c->report->is_failed; i++) {
            kit_case_t k;
            if (!check_start_without(c, &k)) return;
            if (!(c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER)) & ATTN_BIT(kv)) ||
                (kv != ATTN_KV_FP8_E4M3 && kv != ATTN_KV_FP8_E5M2) || k.problem.role != ATTN_ROLE_DECODER)
                continue;
            const uint64_t with =
                (i % 3 == 0 ? ATTN_F_PER_HEAD_SCALES : 0) | (i >= 3 ? ATTN_F_QUANT_QUERY : 0);
            if ((c->can.features & attn_kv_format(kv)->features & with) != with) continue;
            k.problem.kv_cache_dtype = kv;
            k.problem.features |= with & ATTN_F_PER_HEAD_SCALES;
            if (i >= 3) k.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
            k.flags |= flags[i % 3];
            if (i >= 3) k.amplitude = 4; /* tolerances with fp8 queries are wide */
            k.problem.num_heads = 6;
            k.problem.num_kv_heads = c->can.max_group == 1 ? 6 : 3;
            check_fit_size(c, &k);
            if (i == 1 && (c->can.features & ATTN_F_DIFF_KV)) /* where V begins is counted in its elements */
                k.problem.head_size_v =
                    c->can.num_head_sizes_v != 0 ? c->can.head_sizes_v[0].min : check_head_size(c, 64);
            kit_case_add(&k, 1, 1);
            const int32_t padded = k.padded_tokens;
            k.padded_tokens = 0;
            if (i < 2) check_run(c, c->backend, &k, NULL); /* an update of one row */
            k.padded_tokens = padded;
            kit_case_add(&k, 1, 50);
            kit_case_add(&k, 7, 40);
            check_run(c, c->backend, &k, NULL);
        }
    if (c->report->num_cases == 0) check_skip(c, "no cache format with scales of the call is served");
}

/* -------------------------------------------------------------------- features */

/* A mask or a term of the scores. pages: of the cache; far: positions near the end of long contexts. */
static int ask(const check_t *c, kit_case_t *k, uint64_t feature, int32_t from) {
    attn_problem_t *p = &k->problem;
    const int is_far = from > 0;
    p->features |= feature & ~(ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_RSWA | ATTN_F_NON_CAUSAL |
                               ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_DIFF_KV | ATTN_F_QUANT_QUERY);
    if (feature == ATTN_F_SLIDING_WINDOW) p->sliding_window = is_far ? 40000 : 11;
    if (feature == ATTN_F_SOFT_CAP) p->logits_soft_cap = 2;
    if (feature == ATTN_F_CHUNKED_LOCAL)
        p->chunk_size = p->block_size * (is_far ? (uint32_t)from / p->block_size : 2);
    if (feature == ATTN_F_CHUNK_LOOKBACK) p->sliding_window = is_far ? 39000 : 12, p->chunk_lookback = 2;
    if (feature == ATTN_F_RSWA) p->rswa_window = 9;
    if (feature == ATTN_F_DIFF_KV)
        p->head_size_v = c->can.num_head_sizes_v != 0 ? c->can.head_sizes_v[0].min : check_head_size(c, 64);
    if (feature == ATTN_F_MM_PREFIX && is_far && (c->can.features & ATTN_F_SLIDING_WINDOW))
        p->sliding_window = 9; /* else a span is nothing among so many keys */
    if (feature == ATTN_F_NON_CAUSAL) p->mask = ATTN_MASK_FULL;
    if (feature == ATTN_F_PER_REQUEST_CAUSAL) p->mask = ATTN_MASK_PER_REQUEST;
    if (feature & (ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP)) p->max_mm_ranges = k->num_spans = 2;
    if (feature == ATTN_F_MM_PREFIX_CLAMP) p->features |= ATTN_F_MM_PREFIX, p->sliding_window = 4;
    for (int r = 0; r < k->num_reqs; r++) {
        const int32_t context = k->seq_lens[r] - k->query_lens[r];
        k->causal[r] = (uint8_t)(r % 2);
        k->rswa_prefix_lens[r] = is_far ? from : 3 + r;
        if (k->num_spans == 0) continue;
        /* the second reaches from keys of before over some of the step's tokens, and over the last key */
        k->spans[r][0][0] = 1, k->spans[r][0][1] = 4;
        k->spans[r][1][0] = context > 20 ? context - 20 : 0;
        k->spans[r][1][1] = context + k->query_lens[r] / 2;
    }
    return (p->features & ATTN_F_ALIBI) == 0 || (p->features & ATTN_F_ALIBI_SQRT) == 0;
}

static const uint64_t asked[] = {
    ATTN_F_SLIDING_WINDOW, ATTN_F_SOFT_CAP, ATTN_F_ALIBI, ATTN_F_ALIBI_SQRT, ATTN_F_SINK, ATTN_F_MM_PREFIX,
    ATTN_F_MM_PREFIX_CLAMP, ATTN_F_CHUNKED_LOCAL, ATTN_F_RSWA, ATTN_F_NON_CAUSAL, ATTN_F_SEPARATE_KV,
    ATTN_F_DIFF_KV, ATTN_F_PER_REQUEST_CAUSAL,
    /* from here on of CPUs alone, as elsewhere each pair may be compiled */
    ATTN_F_QQ_BIAS, ATTN_F_REL_BIAS, ATTN_F_CHUNK_LOOKBACK, ATTN_F_DEVICE_LENGTHS, ATTN_F_WRITE_IN_FORWARD};
enum { ASKED = sizeof asked / sizeof asked[0], ASKED_EVERYWHERE = ASKED - 5 };

/* What no problem has together (semantics 2.4, 2.8). */
static int exclude_each_other(uint64_t both) {
    const uint64_t masks =
        ATTN_F_SLIDING_WINDOW | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL;
    const uint64_t alone[] = {ATTN_F_CHUNKED_LOCAL, ATTN_F_RSWA};
    for (int i = 0; i < 2; i++)
        if ((both & alone[i]) && (both & (masks | alone[1 - i]))) return 1;
    if ((both & ATTN_F_CHUNK_LOOKBACK) &&
        (both & (ATTN_F_CHUNKED_LOCAL | ATTN_F_RSWA | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL)))
        return 1;
    return (both & ATTN_F_NON_CAUSAL) && (both & ATTN_F_PER_REQUEST_CAUSAL);
}

/* Feature arg with each other one that the table has, and the plain one. */
static void pairs_of_feature(check_t *c) {
    for (int other = -1; other < (int)c->arg && !c->report->is_failed; other++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        if (other >= 0 &&
            (!(c->can.features & asked[other]) || exclude_each_other(asked[c->arg] | asked[other])))
            continue;
        kit_case_add(&k, 1, 50);
        kit_case_add(&k, 7, 40);
        kit_case_add(&k, 20, 20);
        kit_case_add(&k, 3, 90);
        if (!ask(c, &k, asked[c->arg], 0) || (other >= 0 && !ask(c, &k, asked[other], 0))) continue;
        check_run(c, c->backend, &k, NULL);
        if (asked[c->arg] != ATTN_F_SEPARATE_KV && asked[c->arg] != ATTN_F_DIFF_KV) continue;
        for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND; layout++)
            if (c->can.required_layout == 0 || c->can.required_layout == layout) {
                k.problem.kv_layout = layout;
                check_run(c, c->backend, &k, NULL);
            }
    }
}

/* Feature arg where a table of instances is likely to lack a row: another element type, a cache of 8 bits,
 * the largest heads and groups, prompts longer than a tile, nothing but decodes; and with every other term of
 * the scores. */
static void kernels_of_feature(check_t *c) {
    static const uint32_t types[] = {ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FLOAT32};
    static const uint64_t terms[] = {ATTN_F_SLIDING_WINDOW, ATTN_F_SOFT_CAP, ATTN_F_SINK, ATTN_F_ALIBI};
    for (int kind = 0; kind < 5 && !c->report->is_failed; kind++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        const int is_all = kind == 3, is_decode = kind == 4;
        uint64_t have = asked[c->arg];
        if (k.problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        if (c->can.dtypes & ATTN_BIT(types[kind < 3 ? kind : 1]))
            k.problem.dtype = types[kind < 3 ? kind : 1];
        if (kind == 0) {
            const uint32_t group = c->can.max_group != 0 && c->can.max_group < 16 ? c->can.max_group : 16;
            k.problem.head_size = check_head_size(c, 256);
            k.problem.num_kv_heads = 1, k.problem.num_heads = group;
        }
        if (kind == 1 && (c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)))
            k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
        k.problem.scale = 1 / sqrt((double)k.problem.head_size);
        check_fit_size(c, &k);
        for (int r = 0; is_decode && r < 16; r++)
            kit_case_add(&k, 1, r < 4 ? 30 : 20 + 3 * r);
        if (!is_decode) {
            kit_case_add(&k, 1, 70);
            kit_case_add(&k, 150, 170);
            kit_case_add(&k, 5, 90);
        }
        if (!ask(c, &k, have, 0)) continue;
        for (int i = 0; is_all && i < 4; i++) {
            if ((c->can.features & terms[i]) == 0 || (have & terms[i]) ||
                exclude_each_other(have | terms[i]) ||
                ((have | terms[i]) & ATTN_F_ALIBI && (have & ATTN_F_ALIBI_SQRT)))
                continue;
            ask(c, &k, terms[i], 0);
            have |= terms[i];
        }
        if (is_all && have == asked[c->arg]) continue;
        if (check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
    }
    /* and over each cache format; on a device each may be compiled */
    const uint64_t formats = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER));
    for (uint32_t kv = ATTN_KV_AUTO + 1; kv < ATTN_KV_COUNT_ && c->memory->kind == NULL; kv++) {
        kit_case_t k;
        if (!(formats & ATTN_BIT(kv)) || c->report->is_failed || !check_start_without(c, &k)) continue;
        k.problem.kv_cache_dtype = kv;
        check_fit_size(c, &k);
        kit_case_add(&k, 1, 50);
        kit_case_add(&k, 5, 30);
        if (ask(c, &k, asked[c->arg], 0) && check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
    }
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses all that the kit asks for");
}

/* A context of 70000 keys with one query token, and one of two tokens beside it. */
static void far_feature(check_t *c) {
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    if (k.problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "not a decoder backend");
        return;
    }
    check_few_heads(c, &k);
    k.problem.max_model_len = 131072;
    kit_case_add(&k, 1, 70000);
    kit_case_add(&k, 3, 66000);
    ask(c, &k, asked[c->arg], 65920);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses the plain case with it");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    for (uint32_t h = 0; h < k.problem.num_heads && in->alibi_slopes != NULL; h++)
        in->alibi_slopes[h] = asked[c->arg] == ATTN_F_ALIBI ? 2e-5f : 4e-3f;
    for (uint32_t h = 0; h < k.problem.num_heads && asked[c->arg] == ATTN_F_SINK; h++)
        in->sinks[h] = 11; /* about ln of the other terms */
    check_run(c, c->backend, &k, in);
    kit_inputs_free(in);
}

void check_pairs_list(check_list_t *list, const check_t *c) {
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++)
        if (c->can.dtypes & ATTN_BIT(d))
            check_add(list, "numerics", 1, sizes_of_type, d,
                      "%s with every cache format, size, group and page", attn_dtype_name(d));
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    check_add(list, "numerics", 1, kinds_of_scales, 0, "scales of every kind");
    for (uint32_t i = 0; i < ASKED; i++) {
        unsigned bit = 0;
        while ((asked[i] >> bit & 1) == 0)
            bit++;
        if (!(c->can.features & asked[i])) continue;
        if (i >= ASKED_EVERYWHERE && !(c->can.device_types & ATTN_BIT(kDLCPU))) continue;
        check_add(list, "numerics", 1, pairs_of_feature, i, "%s with each other feature",
                  attn_feature_name(bit));
        check_add(list, "numerics", 1, kernels_of_feature, i, "%s in kernels of every kind",
                  attn_feature_name(bit));
        if (!(asked[i] & (ATTN_F_SEPARATE_KV | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_DEVICE_LENGTHS |
                          ATTN_F_WRITE_IN_FORWARD)))
            check_add(list, "numerics", 1, far_feature, i, "%s over 70000 keys", attn_feature_name(bit));
    }
}
