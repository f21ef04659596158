/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_sizes.c: the part of group numerics about counts: requests, heads, head groups, head sizes at the
 * ends of the table's ranges, pages, tokens of a batch; and about members of a batch that are optional. Many
 * and small, so that a plain kernel does them in no time.
 */
#include "../run/check_children.h"
#include "../run/check_engine.h"

#include <math.h>

static void many_requests(check_t *c) {
    static const int counts[] = {33, 65, 129, 257};
    kit_case_t k;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (!check_start_without(c, &k)) return;
        k.problem.max_num_seqs = 300; /* one problem for all of them */
        for (int r = 0; r < counts[i]; r++)
            kit_case_add(&k, 1 + r % 3, 3 + r % 37);
        check_run(c, c->backend, &k, NULL);
    }
    if (!check_start_without(c, &k)) return; /* and limits of 0: 256 requests, 8192 tokens, 131072 keys */
    k.problem.max_num_seqs = k.problem.max_num_batched_tokens = 0;
    k.problem.max_model_len = 0;
    for (int r = 0; r < 255; r++)
        kit_case_add(&k, 1 + r % 3, 3 + r % 37);
    kit_case_add(&k, 1, attn_role_has_cache(k.problem.role) ? 9000 : 1);
    check_run(c, c->backend, &k, NULL);
    if (!check_start_without(c, &k) || k.problem.role != ATTN_ROLE_DECODER) return;
    k.problem.features |= c->can.features & ATTN_F_SINK; /* and the terms of the scores, to the last one */
    if (c->can.features & ATTN_F_SLIDING_WINDOW) k.problem.sliding_window = 11;
    if (c->can.features & ATTN_F_SOFT_CAP) k.problem.logits_soft_cap = 1;
    k.problem.max_num_seqs = 300;
    for (int r = 0; r < 140; r++)
        kit_case_add(&k, 1 + r % 2, 3 + r % 60);
    if (check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
}

/* Those of a request's rows that begin at `first`, beside the same as a chunk; 0: the check has failed. */
static int compare_chunk(check_t *c, const kit_case_t *k, const kit_inputs_t *in, const kit_result_t *got,
                         int32_t first, int32_t count) {
    kit_case_t chunk = *k;
    kit_result_t want, part = *got;
    chunk.num_reqs = 0;
    kit_case_add(&chunk, count, first + count);
    kit_inputs_t *its = kit_inputs_make(&chunk);
    if (its == NULL) return check_fail(c, "no memory");
    const kit_sizes_t z = kit_sizes(&k->problem);
    const int64_t keys = first + count;
    memcpy(its->query, in->query + first * z.query, (size_t)(count * z.query) * sizeof *in->query);
    memcpy(its->key, in->key, (size_t)(keys * z.key) * sizeof *in->key);
    memcpy(its->value, in->value, (size_t)(keys * z.value) * sizeof *in->value);
    if (kit_run_oracle(&kit_oracle, &chunk, its, &want) != ATTN_OK) return check_fail(c, "the oracle failed");
    part.out += first * z.output;
    part.num_out = count * z.output;
    if (part.lse != NULL) part.lse += first, part.num_lse = count;
    const kit_difference_t d = kit_compare(&chunk, &part, &want);
    if (!d.is_close) check_fail(c, "tokens from %d on: %.600s", first, d.text);
    kit_result_free(&want);
    kit_inputs_free(its);
    return d.is_close;
}

/* A request of more tokens than 16 bits count, of one head. The oracle looks at every key of every token, so
 * it computes some of them alone; 0: the check has failed. */
static int one_long_request(check_t *c, kit_case_t *k) {
    enum { TOKENS = 66000, COUNT = 100, FEWER = 4000, MOST_S = 20 };
    static const int32_t first[] = {0, 32768 - COUNT / 2, 65536 - COUNT / 2, TOKENS - COUNT};
    struct timespec start;
    kit_result_t got;
    kit_case_t fewer = *k;
    kit_case_add(&fewer, FEWER, FEWER);
    kit_inputs_t *its = kit_inputs_make(&fewer);
    if (its == NULL) return check_fail(c, "no memory");
    clock_gettime(CLOCK_MONOTONIC, &start);
    const int ran = check_run_alone(c, c->backend, &fewer, its, c->memory, &got);
    kit_inputs_free(its);
    if (!ran) return 0;
    kit_result_free(&got);
    if (check_seconds_since(&start) * TOKENS * TOKENS / FEWER / FEWER > MOST_S) {
        c->report->num_left_out++; /* a kernel that looks at every key of every token */
        return 1;
    }
    kit_case_add(k, TOKENS, TOKENS);
    if (!check_is_served(c, k)) return 1;
    kit_inputs_t *in = kit_inputs_make(k);
    if (in == NULL) return check_fail(c, "no memory");
    check_running(c, k);
    if (!check_run_alone(c, c->backend, k, in, c->memory, &got)) return 0;
    for (size_t i = 0; i < sizeof first / sizeof first[0] && !c->report->is_failed; i++)
        compare_chunk(c, k, in, &got, first[i], COUNT);
    c->report->num_cases++;
    kit_result_free(&got);
    kit_inputs_free(in);
    return !c->report->is_failed;
}

/* More query tokens than 16 bits count, each with few keys. */
static void many_tokens(check_t *c) {
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    k.problem.head_size = check_head_size(c, 8);
    k.problem.num_heads = k.problem.num_kv_heads = 1;
    k.problem.max_num_seqs = 300;
    k.problem.max_num_batched_tokens = 70000;
    if (c->can.roles & ATTN_BIT(ATTN_ROLE_ENCODER_DECODER)) {
        k.problem.role = ATTN_ROLE_ENCODER_DECODER;
        k.problem.mask = ATTN_MASK_FULL;
        kit_case_add(&k, 66000, 3); /* a request alone has as many */
        if (!check_run(c, c->backend, &k, NULL)) return;
        k.num_reqs = 0;
        for (int r = 0; r < 256; r++)
            kit_case_add(&k, 260, 1 + r % 5);
    } else if (k.problem.role == ATTN_ROLE_DECODER && (c->can.features & ATTN_F_SLIDING_WINDOW)) {
        k.problem.sliding_window = 3;
        k.problem.max_model_len = 70000;
        if (!one_long_request(c, &k)) return;
        k.num_reqs = 0;
        for (int r = 0; r < 300; r++)
            kit_case_add(&k, 225, 225);
    } else {
        check_skip(c, "neither cross attention nor a window, which would keep such a batch small");
        return;
    }
    check_run(c, c->backend, &k, NULL);
}

/* One request whose own tokens are many: a prompt that no step cut. */
static void long_prompt(check_t *c) {
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    k.problem.head_size = check_head_size(c, 8);
    k.problem.scale = 1 / sqrt((double)k.problem.head_size);
    k.problem.num_heads = k.problem.num_kv_heads = 1;
    k.problem.max_num_batched_tokens = 8192;
    k.problem.max_model_len = 8192;
    const int has_window = (c->can.features & ATTN_F_SLIDING_WINDOW) != 0;
    kit_case_add(&k, 2300, 2300); /* without one each row has all its keys */
    check_run(c, c->backend, &k, NULL);
    if (!has_window) return;
    k.num_reqs = 0;
    k.problem.sliding_window = 3;
    /* tokens times heads of a group, which kernels take for rows, beyond 16 bits */
    k.problem.num_heads = c->can.max_group == 0 || c->can.max_group >= 16 ? 16 : c->can.max_group;
    kit_case_add(&k, 4200, 4200);
    check_run(c, c->backend, &k, NULL);
}

/* More requests than 1000. */
static void a_thousand_requests(check_t *c) {
    static kit_case_t k;
    if (!check_start_without(c, &k)) return;
    k.problem.head_size = check_head_size(c, 16);
    k.problem.num_heads = k.problem.num_kv_heads = 1;
    k.problem.max_num_seqs = KIT_MAX_REQS;
    for (int r = 0; r < KIT_MAX_REQS; r++)
        kit_case_add(&k, 1, 1 + r % 9);
    check_run(c, c->backend, &k, NULL);
}

/* A context of more keys than 20 bits count: one page again and again, and behind all a page with a key
 * that has half of the weight. */
static void million_keys(check_t *c) {
    enum { KEYS = (1 << 20) + 40 };
    kit_case_t k;
    if (!check_start_without(c, &k)) return;
    if (k.problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "not a decoder backend");
        return;
    }
    k.problem.head_size = check_head_size(c, 8);
    k.problem.scale = 1 / sqrt((double)k.problem.head_size);
    k.problem.num_heads = k.problem.num_kv_heads = 1;
    k.problem.max_model_len = 1 << 21;
    kit_case_add(&k, 1, KEYS);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses such lengths");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    const int64_t page = k.problem.block_size, d = k.problem.head_size, pages = (KEYS + page - 1) / page;
    for (int64_t i = page; i < (pages - 1) * page; i++) {
        memcpy(in->key + i * d, in->key + i % page * d, (size_t)d * sizeof *in->key);
        memcpy(in->value + i * d, in->value + i % page * d, (size_t)d * sizeof *in->value);
    }
    for (int64_t i = 0; i < pages; i++)
        in->block_table[i] = i == pages - 1 ? 2 : 1;
    in->num_blocks = 4;
    double square = 0;
    for (int64_t i = 0; i < d; i++)
        square += (double)in->query[i] * in->query[i];
    for (int64_t i = 0; i < d; i++) {
        in->key[(KEYS - 1) * d + i] =
            kit_round(k.problem.dtype, (double)in->query[i] * log(KEYS) / (square * k.problem.scale));
        in->value[(KEYS - 1) * d + i] = 3;
    }
    check_run(c, c->backend, &k, in);
    kit_inputs_free(in);
}

static void many_heads(check_t *c) {
    static const uint32_t heads[][2] = {{65, 65},  {96, 96}, {128, 8}, {72, 6},   {12, 1}, {24, 2},
                                        {32, 1},   {128, 1}, {64, 2},  {7, 7},    {14, 2}, {160, 160},
                                        {256, 16}, {144, 1}, {256, 1}, {300, 300}};
    kit_case_t k;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        if (!check_start_without(c, &k)) return;
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
    if (!check_start_without(c, &k) || d > 1024 || dv > 1024) return;
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

/* Every multiple of 8 that the table lists, and what is next to it; on CPUs alone, as elsewhere each may be
 * compiled. */
static void every_head_size(check_t *c) {
    for (uint32_t d = 1; d <= 520 && !c->report->is_failed; d++)
        if (check_head_size(c, d) == d && (d % 8 == 0 || d % 64 == 33)) run_head_size(c, d, 0);
}

static void pages(check_t *c) {
    /* of 49 and 103, the product with the reciprocal is not 1 */
    static const uint32_t wanted[] = {1, 2, 5, 8, 16, 24, 32, 48, 49, 64, 103, 128, 256, 512, 1024, 4096};
    uint32_t last = 0;
    for (size_t i = 0; i <= sizeof wanted / sizeof wanted[0]; i++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        if (!attn_role_has_cache(k.problem.role)) {
            check_skip(c, "no role with a cache");
            return;
        }
        const uint32_t size = i < sizeof wanted / sizeof wanted[0] ? check_block_size(c, wanted[i]) : last;
        if (size == last) continue;
        last = k.problem.block_size = size;
        k.problem.max_model_len = 16384;
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
        if (!check_start_without(c, &k)) return;
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
        k.num_reqs = 0;
        kit_case_add(&k, 1, 77), kit_case_add(&k, 1, 30);
        check_run(c, c->backend, &k, NULL);
        k.num_reqs = 0;
        kit_case_add(&k, 6, 40);
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
            if (!check_start_without(c, &k)) return;
            k.problem.dtype = d;
            k.problem.out_dtype = out;
            kit_case_add(&k, 1, 40);
            kit_case_add(&k, 9, 30);
            check_run(c, c->backend, &k, NULL);
        }
    if (c->report->num_cases == 0) check_skip(c, "no pair of dtype and out_dtype is served");
}

/* The last pieces of prompts that are served in chunks: many queries behind thousands of keys. */
static void far_chunks(check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16 && !c->report->is_failed; d++) {
        kit_case_t k;
        if (!check_start_without(c, &k)) return;
        if (k.problem.role != ATTN_ROLE_DECODER) {
            check_skip(c, "not a decoder backend");
            return;
        }
        if (!(c->can.dtypes & ATTN_BIT(d))) continue;
        k.problem.dtype = d;
        check_few_heads(c, &k);
        k.problem.max_model_len = 16384;
        kit_case_add(&k, 40, 4400);
        kit_case_add(&k, 17, 9001);
        check_run(c, c->backend, &k, NULL);
    }
}

void check_sizes_list(check_list_t *list, const check_t *c) {
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    check_add(list, "numerics", 1, many_requests, 0, "33 to 257 requests");
    check_add(list, "numerics", 1, a_thousand_requests, 0, "more than 1000 requests");
    check_add(list, "numerics", 1, many_tokens, 0, "66000 tokens in a batch");
    check_add(list, "numerics", 1, long_prompt, 0, "prompts of thousands of tokens");
    check_add(list, "numerics", 1, far_chunks, 0, "chunks of prompts behind thousands of keys");
    check_add(list, "numerics", 1, million_keys, 0, "a context of more than 2^20 keys");
    check_add(list, "numerics", 1, many_heads, 0, "65 to 256 heads, groups of 12 and 32");
    check_add(list, "numerics", 1, ends_of_head_sizes, 0, "head sizes at the ends of the table");
    check_add(list, "numerics", CHECK_RUNS_ON_CPU, every_head_size, 0, "every head size of the table");
    if (c->can.out_dtypes &
        (ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16)))
        check_add(list, "numerics", 1, out_dtypes, 0, "element types of outputs");
    check_add(list, "numerics", 1, pages, 0, "pages of 1 to 4096 tokens");
    check_add(list, "numerics", 1, optional_members, 0, "optional arguments and members: none, or all");
}
