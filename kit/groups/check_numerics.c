/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_numerics.c: group numerics. Every advertised role, type and feature against the oracle on random
 * cases, then the places where kernels break: borders of pages, windows and splits, ties, extremes, rows
 * without a key.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"

#include <math.h>

enum { CASES_EACH = 8, MAX_TRIES = 600 };

/* Random cases within `can` until CASES_EACH of them satisfied the filter. */
static void random_cases(check_t *c, const attn_capabilities_t *can, uint64_t features, int max_len) {
    int found = 0;
    kit_case_t k;
    /* a backend of latent roles alone, without supports_combination: a case of no role would be run */
    if (!check_start(c, &k)) return;
    for (uint64_t i = 0; i < MAX_TRIES && found < CASES_EACH && !c->report->is_failed; i++) {
        kit_case_random(&k, can, c->seed * 1000003 + i + ((uint64_t)c->arg << 32), max_len);
        if ((attn_problem_features(&k.problem) & features) != features) continue;
        if (check_work(&k) > MAX_WORK || !check_is_served(c, &k)) continue;
        check_run(c, c->backend, &k, NULL);
        found++;
    }
    if (found == 0) check_skip(c, "the kit found no case that the backend serves");
}

static void role(check_t *c) {
    attn_capabilities_t can = c->can;
    can.roles = ATTN_BIT(c->arg);
    random_cases(c, &can, 0, 200);
}
static void dtype(check_t *c) {
    attn_capabilities_t can = c->can;
    can.dtypes = ATTN_BIT(c->arg);
    random_cases(c, &can, 0, 200);
}
static void cache_dtype(check_t *c) {
    attn_capabilities_t can = c->can;
    can.kv_cache_dtypes = ATTN_BIT(c->arg);
    can.roles &= ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER);
    random_cases(c, &can, 0, 200);
}
/* The formats that a feature goes with. */
static uint64_t formats_with(uint64_t feature) {
    uint64_t set = 0;
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++)
        if (attn_kv_format(kv)->features & feature) set |= ATTN_BIT(kv);
    return set;
}
static void feature(check_t *c) {
    attn_capabilities_t can = c->can;
    uint64_t wanted = UINT64_C(1) << (c->arg & 63);
    if (c->arg >= 64) wanted = ATTN_F_SLIDING_WINDOW | ATTN_F_NON_CAUSAL;
    if (can.roles & ATTN_BIT(ATTN_ROLE_DECODER)) can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    if (wanted == ATTN_F_PER_HEAD_SCALES || wanted == ATTN_F_QUANT_QUERY)
        can.kv_cache_dtypes &= formats_with(wanted);
    random_cases(c, &can, wanted, 200);
    for (uint32_t kv = 1; wanted == ATTN_F_PER_HEAD_SCALES && kv < ATTN_KV_COUNT_; kv++) {
        kit_case_t k; /* one scale for all heads is allowed with the feature, too */
        if (!(can.kv_cache_dtypes & ATTN_BIT(kv)) || !check_plain_case(c, &k)) continue;
        k.problem.kv_cache_dtype = kv;
        k.problem.features |= wanted;
        check_fit_size(c, &k);
        check_run(c, c->backend, &k, NULL);
    }
}

/* ---------------------------------------------------------------- borders */

/* The plain case without its requests; 0 and a skip if there is none. */
static int start(check_t *c, kit_case_t *k, uint32_t needed_role) {
    if (!check_start(c, k)) return 0;
    if (needed_role != 0 && k->problem.role != needed_role) {
        check_skip(c, "not a %s backend", attn_role_name(needed_role));
        return 0;
    }
    k->num_reqs = 0;
    return 1;
}

static void page_borders(check_t *c) {
    static const uint32_t wanted[] = {16, 32, 128};
    kit_case_t k;
    uint32_t last = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!start(c, &k, ATTN_ROLE_DECODER)) return;
        int32_t bs = (int32_t)(k.problem.block_size = check_block_size(c, wanted[i]));
        if (k.problem.block_size == last) continue;
        last = k.problem.block_size;
        const int32_t lens[] = {1, bs - 1, bs, bs + 1, 2 * bs - 1, 2 * bs, 2 * bs + 1, 3 * bs};
        for (size_t j = 0; j < sizeof lens / sizeof lens[0]; j++)
            if (lens[j] > 0) kit_case_add(&k, 1, lens[j]);
        check_run(c, c->backend, &k, NULL);
        k.num_reqs = 0;
        for (size_t j = 0; j < sizeof lens / sizeof lens[0]; j++)
            if (lens[j] > 2) kit_case_add(&k, lens[j] / 2 + 1, lens[j]);
        check_run(c, c->backend, &k, NULL);
    }
}

/* Windows of one token, around the page, around the sequence, longer than it. */
static void window_edges(check_t *c) {
    static const int32_t lens[] = {1, 15, 16, 17, 33, 64, 70};
    static const uint32_t windows[] = {1, 2, 15, 16, 17, 32, 63, 64, 65, 1000, 0x7fffffff};
    kit_case_t k;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        if (!start(c, &k, 0)) return;
        k.problem.sliding_window = windows[i];
        for (size_t j = 0; j < sizeof lens / sizeof lens[0]; j++)
            kit_case_add(&k, j % 2 ? (lens[j] + 1) / 2 : 1, lens[j]);
        check_run(c, c->backend, &k, NULL);
    }
}

/* Lengths where kernels change from one split, tile or warp to two. */
static void split_borders(check_t *c) {
    static const int32_t bases[] = {64, 128, 256, 512, 1024, 2048};
    kit_case_t k;
    for (int shift = -1; shift <= 1; shift++) {
        if (!start(c, &k, ATTN_ROLE_DECODER)) return;
        for (size_t j = 0; j < sizeof bases / sizeof bases[0]; j++)
            kit_case_add(&k, j == 1 ? 3 : 1, bases[j] + shift);
        check_run(c, c->backend, &k, NULL);
    }
    for (int shift = -1; shift <= 1; shift++) { /* queries around the tile sizes */
        if (!start(c, &k, 0)) return;
        for (size_t j = 0; j < 3; j++)
            kit_case_add(&k, bases[j] + shift, bases[j] + shift + 40);
        check_run(c, c->backend, &k, NULL);
    }
}

/* Compositions that engines send (semantics 10.4), the smaller ones. */
static void compositions(check_t *c) {
    static const struct {
        int n;
        int32_t seq[8], query[8];
    } sets[] = {
        {2, {32, 40}, {1, 1}},
        {2, {32, 40}, {8, 8}},
        {4, {32, 40, 48, 56}, {1, 1, 5, 5}},
        {8, {128, 256, 512, 1024, 128, 256, 512, 1024}, {1, 1, 1, 1, 1, 1, 1, 1}},
        {4, {256, 512, 1024, 2048}, {16, 16, 16, 16}},
        {6, {512, 1024, 2048, 512, 1024, 2048}, {1, 1, 1, 7, 7, 7}},
        {1, {1024}, {1}},
        {1, {1024}, {64}},
        {3, {1328, 18, 463}, {1, 5, 129}},
        {5, {40, 100, 33, 64, 200}, {9, 1, 30, 1, 2}}, /* prompts first */
        /* as many tokens as requests, or a multiple, but not as many each */
        {4, {30, 44, 20, 17}, {2, 0, 1, 1}},
        {3, {40, 20, 25}, {0, 0, 3}},
        {4, {40, 33, 50, 21}, {1, 3, 2, 2}},
        {4, {40, 33, 50, 21}, {4, 4, 1, 7}},
        {8, {40, 33, 29, 50, 21, 19, 35, 17}, {1, 1, 1, 1, 1, 1, 0, 2}},
        {3, {40, 33, 29}, {1, 1, 0}}, /* decodes, padded */
    };
    kit_case_t k;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (!start(c, &k, ATTN_ROLE_DECODER)) return;
        for (int r = 0; r < sets[i].n; r++)
            kit_case_add(&k, sets[i].query[r], sets[i].seq[r]);
        check_run(c, c->backend, &k, NULL);
    }
}

static void head_groups(check_t *c) {
    static const uint32_t groups[][2] = {{1, 1}, {4, 4}, {8, 2}, {5, 1}, {12, 4}, {16, 1}, {6, 3}};
    kit_case_t k;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (!start(c, &k, 0)) return;
        if (c->can.max_group != 0 && groups[i][0] / groups[i][1] > c->can.max_group) continue;
        k.problem.num_heads = groups[i][0];
        k.problem.num_kv_heads = groups[i][1];
        kit_case_add(&k, 1, 33);
        kit_case_add(&k, 7, 21);
        check_run(c, c->backend, &k, NULL);
    }
}

static void head_sizes(check_t *c) {
    static const uint32_t wanted[] = {16, 33, 40, 64, 72, 80, 96, 128, 160, 192, 256};
    kit_case_t k;
    uint32_t last = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!start(c, &k, 0)) return;
        uint32_t d = check_head_size(c, wanted[i]);
        if (d == last) continue;
        last = k.problem.head_size = d;
        k.problem.scale = 1 / sqrt((double)d);
        kit_case_add(&k, 1, 50);
        kit_case_add(&k, 19, 19);
        check_run(c, c->backend, &k, NULL);
    }
}

/* ----------------------------------------------------------------- extremes */

/* Small whole numbers times a power of two: products and sums are exact in float32, so that scores in the
 * thousands can be compared at all. */
static void whole_numbers(kit_case_t *k, kit_inputs_t *in, int most) {
    uint64_t state = k->seed + 77;
    int64_t d = k->problem.head_size,
            kv = k->problem.num_kv_heads != 0 ? k->problem.num_kv_heads : k->problem.num_heads;
    for (int64_t i = 0; i < in->num_tokens * k->problem.num_heads * d; i++)
        in->query[i] = (float)kit_random_in(&state, -most, most);
    for (int64_t i = 0; i < in->num_keys * kv * d; i++)
        in->key[i] = (float)kit_random_in(&state, -most, most);
}

static void extremes(check_t *c) {
    static const double scales[] = {1.0, 0x1p-10, 16.0, -1.0};
    kit_case_t k;
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        if (!start(c, &k, 0)) return;
        k.problem.scale = scales[i];
        kit_case_add(&k, 1, 65);
        kit_case_add(&k, 9, 40);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        whole_numbers(&k, in, 15);
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* Whole numbers in 16 bits, and a scale that is none: a query that is scaled and rounded again is off by more
 * than any tolerance. */
static void scaled_scores(check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT16; d <= ATTN_DTYPE_BFLOAT16; d++) {
        kit_case_t k;
        if (!start(c, &k, 0)) return;
        if (!(c->can.dtypes & ATTN_BIT(d))) continue;
        k.problem.dtype = d;
        k.problem.scale = 0.3;
        kit_case_add(&k, 1, 65);
        kit_case_add(&k, 9, 40);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        whole_numbers(&k, in, 7);
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "no element type of 16 bits");
}

/* Every score of a row the same: the output is the mean of the visible values. */
static void ties(check_t *c) {
    kit_case_t k;
    for (int is_zero = 0; is_zero < 2; is_zero++) {
        if (!start(c, &k, 0)) return;
        kit_case_add(&k, 1, 50);
        kit_case_add(&k, 20, 33);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        int64_t row = (int64_t)(k.problem.num_kv_heads != 0 ? k.problem.num_kv_heads : k.problem.num_heads) *
                      k.problem.head_size;
        for (int64_t t = 0; t < in->num_keys; t++)
            for (int64_t i = 0; i < row; i++)
                in->key[t * row + i] = is_zero ? 0 : in->key[i];
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* The largest values that the 8-bit format can hold and beyond: they saturate. */
static void saturation(check_t *c) {
    kit_case_t k;
    if (!start(c, &k, ATTN_ROLE_DECODER)) return;
    k.problem.kv_cache_dtype = c->arg;
    /* over scales of 0.02 to 0.05 of the kit: up to 2000, and up to 300000 */
    k.amplitude = c->arg == ATTN_KV_FP8_E4M3 ? 12 : 2500;
    k.problem.scale = c->arg == ATTN_KV_FP8_E4M3 ? 0x1p-12 : 0x1p-26;
    kit_case_add(&k, 1, 40);
    kit_case_add(&k, 6, 30);
    check_run(c, c->backend, &k, NULL);
    kit_inputs_t *in = kit_inputs_make(&k); /* infinity is beyond, too */
    if (in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    in->value[in->key_start[1] * z.kv_heads * z.value + 1] = INFINITY;
    in->value[(in->key_start[1] + 2) * z.kv_heads * z.value] = -INFINITY;
    check_run(c, c->backend, &k, in);
    kit_inputs_free(in);
}

static void empty_rows(check_t *c) {
    attn_capabilities_t can = c->can;
    kit_case_t k;
    if (!(can.roles & ATTN_BIT(ATTN_ROLE_ENCODER_DECODER))) {
        check_skip(c, "only cross attention has rows without a key");
        return;
    }
    if (!start(c, &k, 0)) return;
    k.problem.role = ATTN_ROLE_ENCODER_DECODER;
    k.problem.mask = ATTN_MASK_FULL;
    k.problem.block_size = check_block_size(c, 16);
    kit_case_add(&k, 2, 0);
    kit_case_add(&k, 3, 20);
    kit_case_add(&k, 1, 0);
    check_run(c, c->backend, &k, NULL);
    k.problem.features |= can.features & ATTN_F_SINK; /* then the LSE is the sink */
    if ((can.features & ATTN_F_SINK) && check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
}

static void empty_batches(check_t *c) {
    kit_case_t k;
    if (!start(c, &k, 0)) return;
    check_run(c, c->backend, &k, NULL); /* no request */
    if (k.problem.role == ATTN_ROLE_DECODER) {
        kit_case_add(&k, 0, 20); /* a padded request without a query */
        kit_case_add(&k, 1, 20);
        kit_case_add(&k, 0, 0);
        check_run(c, c->backend, &k, NULL);
        kit_case_add(&k, 0, 0);
        kit_case_add(&k, 0, 0);
        kit_case_add(&k, 3, 9);
        check_run(c, c->backend, &k, NULL);
    }
}

static void soft_caps(check_t *c) {
    /* the last ones are no numbers of 16 bits, and scores reach them */
    static const double caps[][2] = {{1, 0.25}, {30, 0.25}, {50, 0.25}, {0.7, 0.25}, {2.3, 1}, {30.3, 4}};
    kit_case_t k;
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        if (!start(c, &k, 0)) return;
        k.problem.logits_soft_cap = caps[i][0];
        k.problem.scale = caps[i][1];
        kit_case_add(&k, 1, 40);
        kit_case_add(&k, 17, 30);
        check_run(c, c->backend, &k, NULL);
    }
}

static void cascade(check_t *c) {
    kit_case_t k;
    if (!start(c, &k, ATTN_ROLE_DECODER)) return;
    int32_t bs = (int32_t)k.problem.block_size;
    k.problem.features |= ATTN_F_CASCADE;
    for (int blocks = 1; blocks <= 4; blocks += 3) {
        k.num_reqs = 0;
        k.common_prefix_len = blocks * bs;
        kit_case_add(&k, 1, blocks * bs + 1);
        kit_case_add(&k, 3, blocks * bs + 17);
        kit_case_add(&k, 1, blocks * bs + 40);
        check_run(c, c->backend, &k, NULL);
        if (!(c->can.features & ATTN_F_SINK)) continue;
        k.problem.features |= ATTN_F_SINK; /* counts once, in the prefix pass */
        check_run(c, c->backend, &k, NULL);
        k.problem.features &= ~ATTN_F_SINK;
    }
    const kit_case_t plain = k; /* 4 pages of prefix, and what else the two passes may see differently */
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++) {
        k = plain;
        k.problem.dtype = d;
        if ((c->can.dtypes & ATTN_BIT(d)) && d != plain.problem.dtype && check_is_served(c, &k))
            check_run(c, c->backend, &k, NULL);
    }
    k = plain;
    k.problem.logits_soft_cap = 2;
    if ((c->can.features & ATTN_F_SOFT_CAP) && check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
    k = plain;
    k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    check_fit_size(c, &k);
    if ((c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)) && check_is_served(c, &k))
        check_run(c, c->backend, &k, NULL);
}

void check_numerics_list(check_list_t *list, const check_t *c) {
    const attn_capabilities_t *t = &c->can;
    uint64_t drawn = ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT |
                     ATTN_F_SINK | ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_CHUNKED_LOCAL |
                     ATTN_F_CHUNK_LOOKBACK | ATTN_F_RSWA | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL |
                     ATTN_F_QQ_BIAS | ATTN_F_DIFF_KV | ATTN_F_LSE | ATTN_F_PER_HEAD_SCALES |
                     ATTN_F_QUANT_QUERY | ATTN_F_SEPARATE_KV | ATTN_F_REL_BIAS;
    for (uint32_t r = 1; r < ATTN_ROLE_COUNT_; r++)
        if ((t->roles >> r & 1) && !attn_role_is_mla(r))
            check_add(list, "numerics", 1, role, r, "role %s", attn_role_name(r));
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++)
        if (t->dtypes >> d & 1) check_add(list, "numerics", 1, dtype, d, "dtype %s", attn_dtype_name(d));
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_; kv++)
        if (t->kv_cache_dtypes & attn_kv_formats_of(t->roles & ATTN_KV_DENSE_ROLES) & ATTN_BIT(kv))
            check_add(list, "numerics", 1, cache_dtype, kv, "kv_cache_dtype %s", attn_kv_name(kv));
    for (unsigned bit = 0; bit < 64; bit++)
        if (t->features & drawn & UINT64_C(1) << bit)
            check_add(list, "numerics", 1, feature, bit, "feature %s", attn_feature_name(bit));
    if ((t->features & ATTN_F_SLIDING_WINDOW) && (t->features & ATTN_F_NON_CAUSAL))
        check_add(list, "numerics", 1, feature, 64, "a window without the causal mask");
    check_add(list, "numerics", 1, page_borders, 0, "page borders");
    check_add(list, "numerics", 1, split_borders, 0, "split and tile borders");
    check_add(list, "numerics", 1, compositions, 0, "compositions of a batch");
    check_add(list, "numerics", 1, head_groups, 0, "query heads per KV head");
    check_add(list, "numerics", 1, head_sizes, 0, "head sizes");
    check_add(list, "numerics", 1, extremes, 0, "extremes");
    check_add(list, "numerics", 1, scaled_scores, 0, "large scores in 16 bits");
    check_add(list, "numerics", 1, ties, 0, "ties");
    check_add(list, "numerics", 1, empty_rows, 0, "rows without a visible key");
    check_add(list, "numerics", 1, empty_batches, 0, "empty batches and requests");
    if (t->features & ATTN_F_SLIDING_WINDOW) check_add(list, "numerics", 1, window_edges, 0, "window edges");
    if (t->features & ATTN_F_SOFT_CAP) check_add(list, "numerics", 1, soft_caps, 0, "soft caps");
    if (t->kv_cache_dtypes >> ATTN_KV_FP8_E4M3 & 1)
        check_add(list, "numerics", 1, saturation, ATTN_KV_FP8_E4M3, "fp8 saturation");
    if (t->kv_cache_dtypes >> ATTN_KV_FP8_E5M2 & 1)
        check_add(list, "numerics", 1, saturation, ATTN_KV_FP8_E5M2, "fp8 saturation, e5m2");
    if (t->features & ATTN_F_CASCADE)
        check_add(list, "numerics", 1, cascade, 0, "cascade over a common prefix");
    check_outputs_list(list, c);
    check_write_list(list, c);
    check_families_list(list, c);
    check_levels_list(list, c);
    check_limits_list(list, c);
    check_weights_list(list, c);
    check_ends_list(list, c);
    check_nan_list(list, c);
    check_sizes_list(list, c);
    check_parts_list(list, c);
    check_paging_list(list, c);
    check_stored_list(list, c);
    check_pairs_list(list, c);
    check_usual_list(list, c);
    check_neutral_list(list, c);
    check_own_list(list, c);
    check_static_sink_list(list, c);
    check_key_lengths_list(list, c);
    check_device_lengths_list(list, c);
    check_latent_list(list, c);
}
