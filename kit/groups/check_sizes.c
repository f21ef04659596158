/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sizes.c: the part of group numerics about counts: requests, heads, head groups, head sizes at the
 * ends of the table's ranges, pages, tokens of a batch; and about members of a batch that are optional. Many
 * and small, so that a plain kernel does them in no time.
 */
#include "../run/check_engine.h"

#include <math.h>

static int start(check_t *c, kit_case_t *k) {
    if (!check_plain_case(c, k)) {
        check_skip(c, "the kit has no cases for its roles");
        return 0;
    }
    k->num_reqs = 0;
    return 1;
}

static void many_requests(check_t *c) {
    static const int counts[] = {33, 65, 129, 257};
    kit_case_t k;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (!start(c, &k)) return;
        k.problem.max_num_seqs = 300; /* one problem for all of them */
        for (int r = 0; r < counts[i]; r++)
            kit_case_add(&k, 1 + r % 3, 3 + r % 37);
        check_run(c, c->backend, &k, NULL);
    }
    if (!start(c, &k)) return; /* and limits of 0: 256 requests, 8192 tokens, 131072 keys */
    k.problem.max_num_seqs = k.problem.max_num_batched_tokens = 0;
    k.problem.max_model_len = 0;
    for (int r = 0; r < 255; r++)
        kit_case_add(&k, 1 + r % 3, 3 + r % 37);
    kit_case_add(&k, 1, attn_role_has_cache(k.problem.role) ? 9000 : 1);
    check_run(c, c->backend, &k, NULL);
}

/* More query tokens than 16 bits count, each with few keys. */
static void many_tokens(check_t *c) {
    kit_case_t k;
    if (!start(c, &k)) return;
    k.problem.head_size = check_head_size(c, 8);
    k.problem.num_heads = k.problem.num_kv_heads = 1;
    k.problem.max_num_seqs = 300;
    k.problem.max_num_batched_tokens = 70000;
    if (c->can.roles & ATTN_BIT(ATTN_ROLE_ENCODER_DECODER)) {
        k.problem.role = ATTN_ROLE_ENCODER_DECODER;
        k.problem.mask = ATTN_MASK_FULL;
        for (int r = 0; r < 256; r++)
            kit_case_add(&k, 260, 1 + r % 5);
    } else if (k.problem.role == ATTN_ROLE_DECODER && (c->can.features & ATTN_F_SLIDING_WINDOW)) {
        k.problem.sliding_window = 3;
        for (int r = 0; r < 300; r++)
            kit_case_add(&k, 225, 225);
    } else {
        check_skip(c, "neither cross attention nor a window, which would keep such a batch small");
        return;
    }
    check_run(c, c->backend, &k, NULL);
}

static void many_heads(check_t *c) {
    static const uint32_t heads[][2] = {{65, 65}, {96, 96}, {128, 8}, {72, 6}, {12, 1},    {24, 2},  {32, 1},
                                        {128, 1}, {64, 2},  {7, 7},   {14, 2}, {160, 160}, {256, 16}};
    kit_case_t k;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        if (!start(c, &k)) return;
        if (c->can.max_group != 0 && heads[i][0] / heads[i][1] > c->can.max_group) continue;
        k.problem.num_heads = heads[i][0];
        k.problem.num_kv_heads = heads[i][1];
        kit_case_add(&k, 1, 33);
        kit_case_add(&k, 5, 21);
        check_run(c, c->backend, &k, NULL);
    }
}

static void run_head_size(check_t *c, uint32_t d, uint32_t dv) {
    kit_case_t k;
    if (!start(c, &k) || d > 1024 || dv > 1024) return;
    k.problem.head_size = d;
    k.problem.head_size_v = dv;
    k.problem.scale = 1 / sqrt((double)d);
    kit_case_add(&k, 1, 37);
    kit_case_add(&k, 4, 19);
    check_run(c, c->backend, &k, NULL);
}

/* The first, second and last size of each range, which must also run. */
static void ends_of_head_sizes(check_t *c) {
    for (uint32_t i = 0; i < c->can.num_head_sizes && i < 16; i++) {
        const attn_range_t *r = &c->can.head_sizes[i];
        const uint32_t step = r->step != 0 ? r->step : 1;
        run_head_size(c, r->min, 0);
        if (r->max > r->min) run_head_size(c, r->min + step, 0);
        if (r->max > r->min) run_head_size(c, r->min + (r->max - r->min) / step * step, 0);
    }
    if (c->can.num_head_sizes == 0) {
        run_head_size(c, 1, 0);
        run_head_size(c, 2, 0);
        run_head_size(c, 512, 0);
    }
    if (c->can.features & ATTN_F_DIFF_KV) {
        const uint32_t d = check_head_size(c, 64);
        run_head_size(c, d,
                      c->can.num_head_sizes_v != 0 ? c->can.head_sizes_v[0].min : check_head_size(c, 32));
        run_head_size(c, d,
                      c->can.num_head_sizes_v != 0 ? c->can.head_sizes_v[0].max : check_head_size(c, 128));
    }
}

static void pages(check_t *c) {
    static const uint32_t wanted[] = {1, 2, 5, 8, 16, 24, 32, 48, 64, 128, 256, 512};
    uint32_t last = 0;
    for (size_t i = 0; i <= sizeof wanted / sizeof wanted[0]; i++) {
        kit_case_t k;
        if (!start(c, &k)) return;
        if (!attn_role_has_cache(k.problem.role)) {
            check_skip(c, "no role with a cache");
            return;
        }
        const uint32_t size = i < sizeof wanted / sizeof wanted[0] ? check_block_size(c, wanted[i]) : last;
        if (size == last) continue;
        last = k.problem.block_size = size;
        kit_case_add(&k, 1, 700);
        kit_case_add(&k, 3, (int32_t)size * 2 + 1);
        check_run(c, c->backend, &k, NULL);
    }
}

/* forward without key and value where there is a cache, without an LSE, batches with every optional member or
 * none, and rows that lie head by head. */
static void optional_members(check_t *c) {
    static const uint32_t flags[] = {KIT_NO_KEY,
                                     KIT_NO_LSE,
                                     KIT_NO_KEY | KIT_NO_LSE,
                                     KIT_BARE_BATCH,
                                     KIT_FULL_BATCH,
                                     KIT_HEADS_FIRST,
                                     KIT_STRIDED,
                                     KIT_HEADS_FIRST | KIT_BARE_BATCH | KIT_NO_KEY};
    kit_case_t k;
    const uint32_t kv = c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3) ? ATTN_KV_FP8_E4M3 : 0;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (!start(c, &k)) return;
        k.flags |= flags[i];
        kit_case_add(&k, 1, 77);
        kit_case_add(&k, 6, 40);
        kit_case_add(&k, 20, 20);
        check_run(c, c->backend, &k, NULL);
    }
    if (attn_role_has_cache(k.problem.role)) { /* decodes, and a padded request without a token */
        k.num_reqs = 0;
        k.flags |= KIT_FULL_BATCH;
        kit_case_add(&k, 1, 77);
        kit_case_add(&k, 0, 20);
        kit_case_add(&k, 1, 30);
        check_run(c, c->backend, &k, NULL);
    }
    if (kv == 0 || !attn_role_has_cache(k.problem.role)) return;
    k.problem.kv_cache_dtype = kv;
    k.flags = KIT_NO_SCALES;
    check_run(c, c->backend, &k, NULL);
}

static void out_dtypes(check_t *c) {
    for (uint32_t out = ATTN_DTYPE_FLOAT32; out <= ATTN_DTYPE_BFLOAT16; out++)
        for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++) {
            kit_case_t k;
            if (!(c->can.out_dtypes & ATTN_BIT(out)) || !(c->can.dtypes & ATTN_BIT(d)) || out == d) continue;
            if (!start(c, &k)) return;
            k.problem.dtype = d;
            k.problem.out_dtype = out;
            kit_case_add(&k, 1, 40);
            kit_case_add(&k, 9, 30);
            check_run(c, c->backend, &k, NULL);
        }
    if (c->report->num_cases == 0) check_skip(c, "no pair of dtype and out_dtype is served");
}

void check_sizes_list(check_list_t *list, const check_t *c) {
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    check_add(list, "numerics", 1, many_requests, 0, "33 to 257 requests");
    check_add(list, "numerics", 1, many_tokens, 0, "66000 tokens in a batch");
    check_add(list, "numerics", 1, many_heads, 0, "65 to 256 heads, groups of 12 and 32");
    check_add(list, "numerics", 1, ends_of_head_sizes, 0, "head sizes at the ends of the table");
    if (c->can.out_dtypes &
        (ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16)))
        check_add(list, "numerics", 1, out_dtypes, 0, "element types of outputs");
    check_add(list, "numerics", 1, pages, 0, "pages of 1 to 512 tokens");
    check_add(list, "numerics", 1, optional_members, 0, "optional arguments and members: none, or all");
}
