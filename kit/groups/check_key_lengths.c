/* SPDX-License-Identifier: Apache-2.0 */
/* check_key_lengths.c: the part of group numerics about keys of the call with lengths of their own (semantics
 * 2.16): more and fewer keys than query tokens, none of either, rows of nobody between requests, and batches
 * that say it wrongly. */
#include "../run/check_engine.h"

#include <math.h>

enum { FULL = 256, ROLE = 255 };

static check_t *current;

/* A case of the role without requests; 0 and a skip where the table has no sizes for it. */
static int start(check_t *c, kit_case_t *k, uint64_t seed) {
    const uint32_t role = c->arg & ROLE;
    if (role == ATTN_ROLE_MLA_PREFILL) {
        if (!check_latent_case(c, k, role, c->seed + seed)) {
            check_skip(c, "the kit has no sizes of latent attention that the table takes");
            return 0;
        }
    } else {
        kit_case_start(k, role, c->seed + seed);
        k->problem.dtype = c->can.dtypes >> ATTN_DTYPE_BFLOAT16 & 1  ? ATTN_DTYPE_BFLOAT16
                           : c->can.dtypes >> ATTN_DTYPE_FLOAT16 & 1 ? ATTN_DTYPE_FLOAT16
                                                                     : ATTN_DTYPE_FLOAT32;
        k->problem.head_size = check_head_size(c, 64);
        k->problem.scale = 1 / sqrt((double)k->problem.head_size);
        if (c->can.max_group == 1) k->problem.num_kv_heads = k->problem.num_heads;
        if (c->can.features & ATTN_F_LSE) k->problem.features |= ATTN_F_LSE;
    }
    k->problem.features |= ATTN_F_KEY_LENGTHS;
    k->problem.mask = c->arg & FULL ? ATTN_MASK_FULL : ATTN_MASK_CAUSAL;
    k->problem.max_num_seqs = 16;
    k->problem.max_num_batched_tokens = 512;
    k->problem.max_num_batched_keys = 1024;
    k->problem.max_model_len = 1024;
    return 1;
}

static void run(check_t *c, kit_case_t *k, const int32_t (*lens)[2], int count, int *found) {
    k->num_reqs = 0;
    for (int r = 0; r < count; r++)
        kit_case_add(k, lens[r][0], lens[r][1]);
    if (c->report->is_failed || !check_is_served(c, k)) return;
    check_run(c, c->backend, k, NULL);
    ++*found;
}

static void key_lengths(check_t *c) {
    static const int32_t batches[][4][2] = {{{5, 37}, {20, 20}, {1, 64}, {2, 1}},
                                            {{40, 7}, {3, 90}, {1, 1}, {17, 16}},
                                            {{6, 0}, {0, 30}, {4, 4}, {0, 0}},
                                            {{130, 300}, {64, 65}, {200, 130}, {1, 500}},
                                            {{9, 0}, {1, 0}, {70, 0}, {0, 0}}};
    kit_case_t k;
    int found = 0;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        if (!start(c, &k, i)) return;
        if (i % 3 == 1) k.flags |= KIT_STRIDED; /* rows of nobody between requests, NaN */
        if (i % 3 == 2) k.flags |= KIT_HEADS_FIRST;
        run(c, &k, batches[i], 4, &found);
        if (i == 3 || k.problem.role == ATTN_ROLE_MLA_PREFILL)
            continue;                  /* which has neither window nor sink */
        k.problem.sliding_window = 24; /* where queries are many, their first see nothing */
        run(c, &k, batches[i], 4, &found);
        k.problem.sliding_window = 0;
        k.problem.features |= ATTN_F_SINK;
        if (c->can.features & ATTN_F_SINK) run(c, &k, batches[i], 4, &found);
    }
    if (found == 0) check_skip(c, "the kit found no case that the backend serves");
}

/* A batch that must be refused, by the name of what is wrong; or may be taken, because the numbers in it are
 * the core's to check. */
static int refuses(attn_instance_t *instance, const attn_batch_t *b, const attn_space_t *space, void *stream,
                   const char *what, const char *param, int may_be_taken) {
    attn_error_t error = {.struct_size = sizeof error};
    const int status = shim_target()->ops->build_metadata(instance, b, space, stream, &error);
    if (status == ATTN_OK && may_be_taken) return 1;
    if (status == ATTN_E_INVALID && strstr(error.param, param) != NULL) return 1;
    return check_fail(current, "build_metadata with %s: %d, parameter '%s'; it must refuse %s", what, status,
                      error.param, param);
}

static int build_bad_first(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error) {
    int32_t starts[KIT_MAX_REQS + 1], lens[KIT_MAX_REQS];
    const int32_t n = batch->num_reqs;
    for (int i = 0; i < 5; i++) {
        static const char *const what[] = {
            "no key_start_loc_host", "a key_start_loc that does not begin with 0", "a falling key_start_loc",
            "more rows than max_num_batched_keys", "more keys than rows"};
        attn_batch_t b = *batch;
        memcpy(starts, batch->key_start_loc_host, ((size_t)n + 1) * sizeof *starts);
        memcpy(lens, batch->seq_lens_host, (size_t)n * sizeof *lens);
        b.key_start_loc_host = i == 0 ? NULL : starts;
        b.seq_lens_host = lens;
        if (i == 1) starts[0] = 1;
        if (i == 2) starts[1] = starts[2] + 1, lens[0] = lens[1] = 0;
        if (i == 3) starts[n] = 1025;
        if (i == 4) lens[n - 1] += 1;
        if (!refuses(instance, &b, space, stream, what[i], i == 4 ? "seq_lens" : "key_start_loc", i > 0))
            return attn_fail(error, ATTN_E_STATE, "batch", "a bad batch was taken");
    }
    return shim_target()->ops->build_metadata(instance, batch, space, stream, error);
}

static void bad_lengths(check_t *c) {
    static const attn_backend_ops_t bad_ops = {.build_metadata = build_bad_first};
    kit_case_t k;
    current = c;
    if (!start(c, &k, 9)) return;
    kit_case_add(&k, 3, 10);
    kit_case_add(&k, 5, 8);
    kit_case_add(&k, 20, 6);
    check_run(c, shim_make(c->backend, &bad_ops), &k, NULL);
}

void check_key_lengths_list(check_list_t *list, const check_t *c) {
    uint32_t last = 0;
    if (!(c->can.features & ATTN_F_KEY_LENGTHS)) return;
    for (uint32_t role = 1; role < ATTN_ROLE_COUNT_; role++) {
        if (!(c->can.roles >> role & 1) || attn_role_has_cache(role)) continue;
        check_add(list, "numerics", 1, key_lengths, role, "%s: keys with lengths of their own",
                  attn_role_name(role));
        check_add(list, "numerics", 1, key_lengths, role | FULL, "%s: all of keys with lengths of their own",
                  attn_role_name(role));
        last = role;
    }
    if (last != 0) check_add(list, "errors", 1, bad_lengths, last, "key lengths that contradict each other");
}
