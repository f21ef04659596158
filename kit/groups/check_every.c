/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_every.c: the part of group capabilities that takes the table at its word, number by number: every
 * head size, page size, group and count of heads that it allows opens. On CPUs alone: elsewhere opening may
 * compile.
 */
#include "../run/check_engine.h"

#include <math.h>

static int opens(check_t *c, kit_case_t *k) {
    attn_instance_t *instance = NULL;
    attn_error_t e = {.struct_size = sizeof e};
    if (!check_is_served(c, k)) return 1;
    c->report->num_cases++;
    k->problem.num_blocks = 8;
    if (check_open(c, &k->problem, &instance, &e) == ATTN_OK) {
        c->backend->ops->close(instance);
        return 1;
    }
    check_running(c, k);
    return check_fail(
        c, "the table allows it and supports_combination has nothing against it, but open says %s: %s",
        e.param, e.text);
}

static void every_number(check_t *c) {
    enum { SIZES, PAGES, GROUPS, HEADS, NUM_KINDS };
    static const uint32_t most[NUM_KINDS] = {512, 512, 64, 160};
    kit_case_t start;
    if (!check_start(c, &start)) return;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        for (uint32_t n = 1; n <= most[kind] && !c->report->is_failed; n++) {
            kit_case_t k = start;
            attn_problem_t *p = &k.problem;
            if (kind == SIZES) {
                if (check_head_size(c, n) != n) continue;
                p->head_size = n, p->head_size_v = 0;
                p->scale = 1 / sqrt((double)n);
            } else if (kind == PAGES) {
                if (!attn_role_has_cache(p->role) || check_block_size(c, n) != n) continue;
                p->block_size = n;
            } else {
                if (kind == GROUPS && c->can.max_group != 0 && n > c->can.max_group) continue;
                p->num_heads = kind == GROUPS ? 2 * n : n;
                p->num_kv_heads = kind == GROUPS ? 2 : n;
            }
            opens(c, &k);
        }
}

/* Room for larger batches is no less: sizes above 4 GiB that begin anew were counted in 32 bits. */
static void wide_sizes(check_t *c) {
    kit_case_t k;
    uint64_t last = 0;
    if (!check_start(c, &k)) return;
    k.problem.num_heads = 64,
    k.problem.num_kv_heads = c->can.max_group == 0 || c->can.max_group >= 8 ? 8 : 64;
    k.problem.head_size = check_head_size(c, 128), k.problem.head_size_v = 0;
    for (int bits = 10; bits <= 24 && !c->report->is_failed; bits++) {
        attn_instance_t *instance = NULL;
        attn_error_t e = {.struct_size = sizeof e};
        attn_space_needed_t n = {.struct_size = sizeof n};
        k.problem.max_num_seqs = k.problem.max_num_batched_tokens = UINT32_C(1) << bits;
        k.problem.features |= c->can.features & ATTN_F_CASCADE;
        if (!check_is_served(c, &k) || check_open(c, &k.problem, &instance, &e) != ATTN_OK) break;
        const int status = c->backend->ops->space_needed(instance, &n, &e);
        const uint64_t bytes = n.metadata_bytes + n.workspace_bytes + n.host_bytes;
        c->backend->ops->close(instance);
        if (status != ATTN_OK) break;
        if (last >= UINT64_C(1) << 30 && bytes < last / 2)
            check_fail(c, "space_needed is %llu bytes for 2^%d requests and tokens and %llu for 2^%d",
                       (unsigned long long)bytes, bits, (unsigned long long)last, bits - 1);
        last = bytes;
        c->report->num_cases++;
    }
}

void check_every_list(check_list_t *list, const check_t *c) {
    const uint64_t latent =
        ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    if (list->role != 0 || (c->can.roles & ~latent) == 0) return;
    check_add(list, "capabilities", CHECK_RUNS_ON_CPU, every_number, 0,
              "every size and count that the table allows opens");
    check_add(list, "capabilities", CHECK_RUNS_ON_CPU, wide_sizes, 0, "room for batches beyond 4 GiB");
}
