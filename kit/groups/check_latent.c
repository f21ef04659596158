/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_latent.c: group numerics for the roles of latent attention (semantics 7.4, 7.11, 9.2): compositions
 * of a batch, cache formats, page borders, head counts, fp8 queries, quantised outputs, against the oracle,
 * with kv_b_proj and with queries that come absorbed. Sizes are those that the table allows.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* In the argument of a check, beside the role: queries come absorbed, all keys are visible, the type is
 * float16. */
enum { ABSORBED = 256, FULL = 512, HALF = 1024, ROLE = 255 };

/* A case without requests, 0 and a skip where the table has no sizes for it. */
static int start(check_t *c, kit_case_t *k, uint64_t seed) {
    if (check_latent_case(c, k, c->arg & ROLE, c->seed + seed)) {
        if (c->arg & ABSORBED) kit_case_set_latent(k);
        if (c->arg & FULL) k->problem.mask = ATTN_MASK_FULL;
        if (c->arg & HALF) k->problem.dtype = ATTN_DTYPE_FLOAT16;
        return 1;
    }
    check_skip(c, "the kit has no sizes of latent attention that the table takes");
    return 0;
}

/* A role without a cache has no context. */
static void add(kit_case_t *k, int32_t query, int32_t context) {
    kit_case_add(k, query, attn_role_has_cache(k->problem.role) ? query + context : query);
}

/* 1 if the backend serves the case. */
static int run(check_t *c, const kit_case_t *k) {
    if (!check_is_served(c, k)) return 0;
    check_run(c, c->backend, k, NULL);
    return 1;
}

static void finish(check_t *c, int found) {
    if (found == 0) check_skip(c, "the kit found no case that the backend serves");
}

static void compositions(check_t *c) {
    static const int32_t batches[][4][2] = {{{1, 0}},
                                            {{1, 300}, {1, 0}, {1, 62}, {1, 63}},
                                            {{3, 200}, {3, 5}, {3, 61}},
                                            {{1, 90}, {40, 100}, {70, 0}, {0, 30}},
                                            {{130, 200}, {5, 0}},
                                            {{2, 30}, {0, 20}, {1, 9}, {1, 40}}};
    kit_case_t k;
    int found = 0;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0] && !c->report->is_failed; i++) {
        if (!start(c, &k, i)) return;
        for (int r = 0; r < 4 && batches[i][r][0] + batches[i][r][1] > 0; r++)
            add(&k, batches[i][r][0], batches[i][r][1]);
        found += run(c, &k);
    }
    finish(c, found);
}

static void head_counts(check_t *c) {
    static const uint32_t heads[] = {1, 3, 16, 65};
    kit_case_t k;
    int found = 0;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && !c->report->is_failed; i++) {
        if (!start(c, &k, i)) return;
        k.problem.num_heads = heads[i];
        add(&k, 1, 70), add(&k, 9, 33);
        found += run(c, &k);
    }
    finish(c, found);
}

static void page_borders(check_t *c) {
    static const uint32_t wanted[] = {16, 64, 128};
    kit_case_t k;
    int found = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && !c->report->is_failed; i++) {
        if (!start(c, &k, i)) return;
        k.problem.block_size = check_block_size(c, wanted[i]);
        const int32_t bs = (int32_t)k.problem.block_size;
        for (int32_t context = bs - 2; context <= bs + 1; context++)
            add(&k, 1, context), add(&k, 2, 2 * context);
        found += run(c, &k);
    }
    finish(c, found);
}

static void cache_formats(check_t *c) {
    kit_case_t k;
    int found = 0;
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_ && !c->report->is_failed; kv++) {
        if (!(c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(c->arg & ROLE)) & ATTN_BIT(kv))) continue;
        if (!start(c, &k, kv)) return;
        if (kv == ATTN_KV_FP8_DS_MLA) k.problem.kv_lora_rank = 512, k.problem.head_size = 576;
        k.problem.kv_cache_dtype = kv;
        add(&k, 1, 130), add(&k, 20, 45);
        found += run(c, &k);
    }
    finish(c, found);
}

/* Usual numbers, and queries that saturate under a softmax scale which keeps scores small. */
static void fp8_query(check_t *c) {
    kit_case_t k;
    int found = 0;
    for (int i = 0; i < 3 && !c->report->is_failed; i++) {
        if (!start(c, &k, (uint64_t)i)) return;
        k.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
        k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
        k.problem.block_size = check_block_size(c, i == 1 ? 16 : 64);
        if (i == 2) k.amplitude = 12, k.problem.scale = 0x1p-14;
        add(&k, 1, 90), add(&k, 3, 61), add(&k, 20, 45), add(&k, 1, 0);
        found += run(c, &k);
    }
    finish(c, found);
}

static void fp8_output(check_t *c) {
    kit_case_t k;
    int found = 0;
    const uint64_t features[] = {ATTN_F_OUT_FP8_STATIC, ATTN_F_OUT_FP8_GROUP,
                                 ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0, ATTN_F_OUT_NVFP4};
    for (int i = 0; i < 4 && !c->report->is_failed; i++) {
        const uint32_t out = i == 3 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3;
        if ((c->can.features & features[i]) != features[i] || !(c->can.out_dtypes & ATTN_BIT(out))) continue;
        if (!start(c, &k, (uint64_t)i)) return;
        k.problem.out_dtype = out;
        k.problem.features |= features[i];
        add(&k, 1, 40), add(&k, 17, 30);
        found += run(c, &k);
    }
    finish(c, found);
}

/* Weights as checkpoints of fp8 have them (semantics 7.4). The shape of a tensor is no feature, so a
 * backend may refuse them, by name. */
static void block_weights(check_t *c) {
    kit_case_t k;
    int found = 0;
    for (int i = 0; i < 3 && !c->report->is_failed; i++) {
        if (!start(c, &k, (uint64_t)i)) return;
        k.flags |= KIT_BLOCK_WEIGHTS;
        if (i == 1) k.problem.num_heads = 3;
        if (k.problem.kv_lora_rank == 128 && i != 1 &&
            check_head_size(c, 264) == 264) /* a block, and a part */
            k.problem.kv_lora_rank = 200, k.problem.head_size = 264;
        add(&k, 1, 70), add(&k, i == 2 ? 70 : 9, 33);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        kit_result_t first;
        const int status = in != NULL ? kit_run(c->backend, &k, in, c->memory, &first) : ATTN_E_NO_MEMORY;
        const int is_refused = in != NULL && (status == ATTN_E_UNSUPPORTED || status == ATTN_E_INVALID) &&
                               strncmp(first.error.param, "kv_b_proj", 9) == 0;
        if (in != NULL) kit_result_free(&first);
        kit_inputs_free(in);
        if (is_refused) {
            check_skip(c, "it refuses kv_b_proj_scale of blocks by name");
            return;
        }
        found += run(c, &k);
    }
    finish(c, found);
}

/* Equal scores far from zero. One channel, a rotary one, makes them with a large scale, so that no order of
 * sums matters and a cache of 8 bits holds its keys. */
static void score_levels(check_t *c) {
    static const double levels[] = {-1e10, 1e10, -1e30, -1e6, -3e9};
    /* by turns; on a device only the first few may be asked */
    static const uint32_t formats[] = {ATTN_KV_AUTO, ATTN_KV_FP8_E4M3},
                          heads[] = {4, 12, 128, 24, 40, 4, 4, 128, 40, 128};
    int found = 0;
    for (size_t i = 0; i < 2 * (sizeof levels / sizeof levels[0]) && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!start(c, &k, i)) return;
        const uint32_t role = k.problem.role, kv = formats[i % 2];
        const int has_cache = attn_role_has_cache(role), is_small = fabs(levels[i / 2]) < 1e11;
        const uint64_t kept = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(role));
        if (has_cache ? !(kept & ATTN_BIT(kv)) : i % 2 == 1) continue;
        const int is_gpu = c->memory->kind != NULL;
        if ((i % 2 == 1 || k.problem.dtype == ATTN_DTYPE_FLOAT16) && !is_small) continue;
        if (has_cache) k.problem.kv_cache_dtype = kv;
        k.family = KIT_EQUAL_KEYS;
        k.problem.num_heads = heads[i];
        k.problem.scale = 1e6;
        /* new tokens with a cache may be merged with their context, by an LSE that is a multiple of 1024 */
        add(&k, 1, 50), add(&k, is_gpu && has_cache ? 1 : 5, 35), add(&k, 1, 300);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        const kit_sizes_t z = kit_sizes(&k.problem);
        for (int64_t t = 0; t < in->num_tokens * z.heads; t++)
            for (int64_t d = 0; d < z.query; d++)
                in->query[t * z.query + d] =
                    d == z.query - 1 ? kit_round(k.problem.dtype, levels[i / 2] / 2e6) : 0;
        for (int64_t t = 1; t <= in->num_keys * (has_cache ? 1 : z.kv_heads); t++)
            if (has_cache) /* the rotary part of a latent row */
                in->value[t * z.value - 1] = 2;
            else
                in->key[t * z.key - 1] = 2;
        /* a long request may be merged from parts, by an LSE that is a multiple of 1024 here: one value */
        const int64_t row = (has_cache ? 1 : z.kv_heads) * z.key, first = in->key_start[2] * row;
        for (int64_t n = first + row; n < in->num_keys * row; n++)
            in->key[n] = in->key[n - row];
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
        found = 1;
    }
    finish(c, found);
}

static void add_checks(check_list_t *list, const check_t *c, uint32_t arg, const char *name) {
    const uint64_t both = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16);
    check_add(list, "numerics", 1, compositions, arg, "%s: compositions of a batch", name);
    check_add(list, "numerics", 1, score_levels, arg, "%s: scores far from zero", name);
    check_add(list, "numerics", 1, head_counts, arg, "%s: head counts", name);
    if (c->can.features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4))
        check_add(list, "numerics", 1, fp8_output, arg, "%s: quantised output", name);
    if ((c->can.dtypes & both) == both) /* the rest is asked in bfloat16 */
        check_add(list, "numerics", 1, compositions, arg | HALF, "%s: float16", name);
    if (!attn_role_has_cache(arg & ROLE)) return;
    if ((c->can.dtypes & both) == both)
        check_add(list, "numerics", 1, cache_formats, arg | HALF, "%s: cache formats, float16", name);
    if ((arg & ABSORBED) == 0)
        check_add(list, "numerics", 1, block_weights, arg, "%s: weights with a scale for each block", name);
    if ((c->can.features & ATTN_F_QUANT_QUERY) && (c->can.kv_cache_dtypes >> ATTN_KV_FP8_E4M3 & 1))
        check_add(list, "numerics", 1, fp8_query, arg, "%s: fp8 queries", name);
    check_add(list, "numerics", 1, page_borders, arg, "%s: page borders", name);
    check_add(list, "numerics", 1, cache_formats, arg, "%s: cache formats", name);
}

void check_latent_list(check_list_t *list, const check_t *c) {
    for (uint32_t role = ATTN_ROLE_MLA; role <= ATTN_ROLE_MLA_SPARSE; role++) {
        char name[40];
        const int has_cache = attn_role_has_cache(role);
        if (!(c->can.roles >> role & 1)) continue;
        if (!has_cache || (c->can.features & ATTN_F_WEIGHTS)) add_checks(list, c, role, attn_role_name(role));
        if (!has_cache || !(c->can.features & ATTN_F_LATENT)) continue;
        snprintf(name, sizeof name, "%s, latent", attn_role_name(role));
        add_checks(list, c, role | ABSORBED, name);
        if (role == ATTN_ROLE_MLA && (c->can.features & ATTN_F_NON_CAUSAL))
            check_add(list, "numerics", 1, compositions, role | ABSORBED | FULL, "%s: every key visible",
                      name);
    }
}
