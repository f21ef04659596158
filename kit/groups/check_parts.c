/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_parts.c: the part of group numerics about what a batch may have beside its tokens, in large: as many
 * spans as a request may have, a common prefix of many pages, keys of the call by the thousand, lengths on
 * the device beyond 16 bits, windows and biases wider than a tile.
 */
#include "../run/check_engine.h"

#include <math.h>

enum { SPANS, PREFIX, KEYS, ENCODER, DEVICE_LENGTHS, WINDOW, LOOKBACK, LENGTHS, BIAS, NUM_PARTS };
static const struct {
    uint64_t feature;
    const char *name;
} parts[NUM_PARTS] = {{ATTN_F_MM_PREFIX, "ten spans a request"},
                      {ATTN_F_CASCADE, "a common prefix of 70 pages"},
                      {ATTN_F_KEY_LENGTHS, "thousands of keys of the call"},
                      {0, "thousands of tokens of an encoder"},
                      {ATTN_F_DEVICE_LENGTHS, "70000 keys by lengths on the device"},
                      {ATTN_F_SLIDING_WINDOW, "windows of 700 to 5000 keys"},
                      {ATTN_F_CHUNK_LOOKBACK, "lookback over thousands of keys"},
                      {0, "contexts of many lengths"},
                      {ATTN_F_QQ_BIAS, "biases over 150 keys of a step"}};

static uint32_t encoder_role(const check_t *c) {
    return c->can.roles & ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) ? ATTN_ROLE_ENCODER_ONLY
           : c->can.roles & ATTN_BIT(ATTN_ROLE_ENCODER)    ? ATTN_ROLE_ENCODER
           : c->can.roles & ATTN_BIT(ATTN_ROLE_MM_ENCODER) ? ATTN_ROLE_MM_ENCODER
                                                           : 0;
}

static void run(check_t *c, const kit_case_t *k) {
    if (check_is_served(c, k)) check_run(c, c->backend, k, NULL);
}

static void large_part(check_t *c) {
    static kit_case_t k;
    if (!check_start_without(c, &k)) return;
    attn_problem_t *p = &k.problem;
    const uint32_t role = p->role, dtype = p->dtype;
    if (c->arg == KEYS || c->arg == ENCODER) kit_case_start(&k, encoder_role(c), c->seed);
    p->dtype = dtype;
    if ((c->arg != KEYS && c->arg != ENCODER && role != ATTN_ROLE_DECODER) || p->role == 0) {
        check_skip(c, "no such role");
        return;
    }
    check_few_heads(c, &k);
    p->head_size = check_head_size(c, 16), p->head_size_v = 0;
    p->scale = 1 / sqrt((double)p->head_size);
    p->max_model_len = 1 << 17;
    p->max_num_batched_tokens = p->max_num_batched_keys = 0;
    if (c->arg != WINDOW && c->arg != LOOKBACK) p->features |= parts[c->arg].feature;
    const int32_t page = (int32_t)p->block_size;
    switch (c->arg) {
    case SPANS:
        p->max_mm_ranges = 10;
        k.num_spans = 10;
        for (int r = 0; r < 3; r++) {
            kit_case_add(&k, r == 1 ? 1 : 200 + r, 200 + r);
            for (int s = 0; s < 10; s++)
                k.spans[r][s][0] = 20 * s + 3 + r, k.spans[r][s][1] = 20 * s + 15;
        }
        run(c, &k);
        break;
    case PREFIX:
        for (int pages = 20; pages <= 70; pages += 50) {
            k.num_reqs = 0;
            k.common_prefix_len = pages * page;
            kit_case_add(&k, 1, pages * page + 1);
            kit_case_add(&k, 3, pages * page + 90);
            run(c, &k);
        }
        break;
    case KEYS:
        p->mask = ATTN_MASK_FULL;
        kit_case_add(&k, 3, 2100);
        kit_case_add(&k, 2, 4700);
        run(c, &k);
        break;
    case ENCODER:
        if (c->can.features & ATTN_F_SLIDING_WINDOW) p->sliding_window = 9; /* else each row has all keys */
        kit_case_add(&k, p->sliding_window != 0 ? 5000 : 2300, p->sliding_window != 0 ? 5000 : 2300);
        run(c, &k);
        break;
    case DEVICE_LENGTHS:
        kit_case_add(&k, 1, 70000);
        kit_case_add(&k, 2, 5);
        run(c, &k);
        break;
    case WINDOW:
        for (uint32_t w = 700; w <= 5000; w += 4300) {
            p->sliding_window = w;
            k.num_reqs = 0;
            kit_case_add(&k, 1, 6000);
            kit_case_add(&k, 40, 5900);
            run(c, &k);
        }
        break;
    case LOOKBACK:
        p->features |= ATTN_F_CHUNK_LOOKBACK;
        p->sliding_window = 1200;
        p->chunk_lookback = 2;
        kit_case_add(&k, 1, 6000);
        kit_case_add(&k, 40, 5900);
        run(c, &k);
        break;
    case LENGTHS: /* whose parts, however a backend cuts, end anywhere, and some have no key */
        p->num_heads = p->num_kv_heads = 1;
        p->head_size = check_head_size(c, 8);
        p->scale = 1 / sqrt((double)p->head_size);
        p->max_num_seqs = 64;
        for (int r = 0; r < 64; r++)
            kit_case_add(&k, 1, 200 + 71 * r + r * r);
        run(c, &k);
        for (int i = 0; i < 28 && !c->report->is_failed; i++) {
            k.num_reqs = 0; /* alone, each 15 % longer than the last */
            kit_case_add(&k, 1 + i % 3, (int32_t)(300 * pow(1.15, i)));
            run(c, &k);
        }
        break;
    default:
        kit_case_add(&k, 150, 400);
        kit_case_add(&k, 70, 70);
        run(c, &k);
    }
    if (c->report->num_cases == 0) check_skip(c, "the kit found no case that the backend serves");
}

void check_parts_list(check_list_t *list, const check_t *c) {
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if ((c->can.roles & ~latent) == 0) return;
    for (uint32_t i = 0; i < NUM_PARTS; i++)
        if ((c->can.features & parts[i].feature) == parts[i].feature &&
            (i == KEYS || i == ENCODER ? encoder_role(c) != 0
                                       : (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)) != 0))
            check_add(list, "numerics", 1, large_part, i, "%s", parts[i].name);
}
