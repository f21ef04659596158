/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_write.c: the part of group numerics about rows that forward itself writes (semantics 3.11). Attention
 * alone does not tell where they went: a backend that takes the step's rows from the call and stores them
 * elsewhere, or never, gives right numbers once. So the cache is compared, byte for byte, with one that
 * update_kv_cache wrote.
 */
#include "../case/case_run.h"
#include "../run/check_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fresh pages, pages begun before, several tokens, requests without one. */
static void add_requests(kit_case_t *k, int is_mixed) {
    const int32_t bs = (int32_t)k->problem.block_size;
    k->num_reqs = 0;
    kit_case_add(k, 1, 3 * bs), kit_case_add(k, 1, 3 * bs + 1), kit_case_add(k, 1, 1);
    if (is_mixed) kit_case_add(k, 40, 40), kit_case_add(k, 0, 0), kit_case_add(k, 7, bs + 9);
}

static int start(check_t *c, kit_case_t *k) {
    if (!check_start_without(c, k)) return 0;
    if (k->problem.role != ATTN_ROLE_DECODER) return check_skip(c, "not a decoder backend"), 0;
    k->problem.features |= ATTN_F_WRITE_IN_FORWARD;
    return 1;
}

/* In the strides that a case has, with skipped slots behind; then with static scales. */
static void numbers(check_t *c) {
    static const uint32_t layouts[] = {0, KIT_STRIDED, KIT_HEADS_FIRST};
    kit_case_t k;
    if (!start(c, &k)) return;
    for (int i = 0; i < 3 && !c->report->is_failed; i++) {
        k.flags = layouts[i];
        add_requests(&k, i != 0);
        k.padded_tokens = i == 2 ? 3 : 0;
        check_run(c, c->backend, &k, NULL);
    }
    if (!(c->can.kv_cache_dtypes & ATTN_BIT(ATTN_KV_FP8_E4M3)) || c->report->is_failed) return;
    k.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3; /* its scales go along */
    check_fit_size(c, &k);
    if (check_is_served(c, &k)) check_run(c, c->backend, &k, NULL);
}

/* The step of k on a backend up to the end of forward, or without it to that of update_kv_cache; both have to
 * be closed. */
static int write_once(check_t *c, kit_run_t *x, const kit_case_t *k, const kit_inputs_t *in, int by_forward,
                      kit_result_t *result) {
    int status = kit_run_open(x, c->backend, k, in, c->memory, result);
    if (status == ATTN_OK) status = kit_run_fill(x);
    if (status == ATTN_OK) status = kit_run_update(x);
    if (status == ATTN_OK && by_forward) status = kit_run_outputs(x);
    if (status == ATTN_OK && by_forward) status = kit_run_build(x);
    if (status == ATTN_OK && by_forward) status = kit_run_forward(x);
    if (status == ATTN_OK && c->memory->sync(c->memory->ctx) != 0) status = ATTN_E_DEVICE;
    if (status == ATTN_OK && kit_tensor_fetch(&x->all, x->cache)) status = ATTN_E_NO_MEMORY;
    if (status != ATTN_OK) check_fail(c, "%s: %d, %s", result->operation, status, result->error.text);
    return status;
}

/* The first byte that differs, as a place in the cache. */
static void compare_caches(check_t *c, const kit_run_t *x, const kit_tensor_t *got, const kit_tensor_t *want,
                           const char *whose) {
    const size_t front = (size_t)((char *)want->t.data - (char *)want->raw) + want->t.byte_offset;
    if (got->bytes != want->bytes || c->report->is_failed) return;
    for (size_t i = 0; i < want->bytes; i++) {
        if (got->host[i] == want->host[i]) continue;
        const int64_t at = (int64_t)i - (int64_t)front;
        check_fail(c, "byte %lld of page %lld of the cache is 0x%02x after forward; %s 0x%02x there",
                   (long long)(at % x->shape.page_bytes), (long long)(at / x->shape.page_bytes), got->host[i],
                   whose, want->host[i]);
        return;
    }
}

/* The same step written by forward and by update_kv_cache of an instance without the feature. */
static void stored_bits(check_t *c) {
    static const uint32_t layouts[] = {0, KIT_HEADS_FIRST | KIT_PER_HEAD};
    for (int i = 0; i < 2 && !c->report->is_failed; i++) {
        static kit_run_t runs[2];
        kit_result_t results[2];
        kit_case_t k;
        int status = ATTN_OK;
        if (!start(c, &k)) return;
        k.problem.kv_cache_dtype = c->arg;
        check_fit_size(c, &k);
        k.flags =
            layouts[i] & (attn_kv_has_static_scales(c->arg) && (c->can.features & ATTN_F_PER_HEAD_SCALES)
                              ? ~0u
                              : ~(uint32_t)KIT_PER_HEAD);
        if (k.flags & KIT_PER_HEAD) k.problem.features |= ATTN_F_PER_HEAD_SCALES;
        k.padded_tokens = i == 1 ? 3 : 0;
        add_requests(&k, i);
        kit_case_t plain = k;
        plain.problem.features &= ~ATTN_F_WRITE_IN_FORWARD;
        if (!check_is_served(c, &k) || !check_is_served(c, &plain)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        check_running(c, &k);
        status = write_once(c, &runs[0], &plain, in, 0, &results[0]);
        if (status == ATTN_OK) status = write_once(c, &runs[1], &k, in, 1, &results[1]);
        if (status == ATTN_OK && runs[0].shape.fingerprint == runs[1].shape.fingerprint)
            compare_caches(c, &runs[0], runs[1].cache, runs[0].cache, "update_kv_cache writes");
        c->report->num_cases++;
        if (status == ATTN_OK || runs[1].instance != NULL) kit_run_close(&runs[1]);
        kit_run_close(&runs[0]);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the plain case over this cache is not served");
}

/* A row of key and value of the step becomes NaN. */
static void spoil_row(kit_run_t *x, int64_t row) {
    kit_tensor_t *const rows[] = {x->key, x->value};
    float nan[1024];
    for (int i = 0; i < 1024; i++)
        nan[i] = NAN;
    for (int i = 0; i < 2; i++)
        for (int64_t h = 0; h < x->z.kv_heads; h++)
            kit_store_floats(kit_tensor_at(rows[i], row, h), rows[i]->dtype, nan,
                             i == 0 ? x->z.key : x->z.value);
}

/* All rows are in the cache before; forward is told to write some again, to their places: those of every
 * other slot, the first few, none. Rows that it is not to write are NaN in the call: they are neither stored
 * nor attended to. */
static void left_out(check_t *c) {
    for (int i = 0; i < 3 && !c->report->is_failed; i++) {
        static kit_run_t x;
        kit_result_t got;
        kit_case_t k;
        if (!start(c, &k)) return;
        add_requests(&k, 1);
        if (!check_is_served(c, &k)) continue;
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        check_running(c, &k);
        int status = kit_run_open(&x, c->backend, &k, in, c->memory, &got);
        if (status == ATTN_OK) status = kit_run_fill(&x);
        if (status == ATTN_OK) status = kit_run_update(&x);
        attn_kv_update_t all = {.struct_size = sizeof all};
        if (status == ATTN_OK) {
            all.key = &x.key->t, all.value = &x.value->t, all.kv_cache = &x.k_view->t;
            all.slot_mapping = &x.slots->t;
            status = x.ops->update_kv_cache(x.instance, &all, c->memory->stream, &got.error);
        }
        if (status == ATTN_OK) c->memory->sync(c->memory->ctx);
        int64_t *slots = status == ATTN_OK ? (int64_t *)(void *)kit_tensor_at(x.slots, 0, 0) : NULL;
        for (int64_t t = 0; slots != NULL && t < in->num_tokens; t++) {
            if (i == 0 ? t % 2 == 0 : i == 1 && t < 2) continue;
            if (i != 1) slots[t] = -1; /* behind the first few a slot is not the call's to see */
            spoil_row(&x, t);
        }
        if (status == ATTN_OK && i == 1) x.slots->shape[0] = 2;
        if (status == ATTN_OK) {
            kit_tensor_send(&x.all, x.slots), kit_tensor_send(&x.all, x.key);
            status = kit_tensor_send(&x.all, x.value) ? ATTN_E_NO_MEMORY : kit_run_outputs(&x);
        }
        if (status == ATTN_OK) status = kit_run_build(&x);
        if (status == ATTN_OK && i == 2) x.args.slot_mapping = NULL;
        if (status == ATTN_OK) status = kit_run_forward(&x);
        if (status == ATTN_OK) status = kit_run_read(&x);
        if (status != ATTN_OK) check_fail(c, "%s: %d, %s", got.operation, status, got.error.text);
        if (status == ATTN_OK) check_against_oracle(c, &k, in, &got);
        kit_run_close(&x);
        kit_result_free(&got);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the plain case with it is not served");
}

void check_write_list(check_list_t *list, const check_t *c) {
    const attn_capabilities_t *t = &c->can;
    if (!(t->features & ATTN_F_WRITE_IN_FORWARD) || !(t->roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    check_add(list, "numerics", 1, numbers, 0, "a cache that forward writes");
    if (t->forward_writes_cache) return; /* there is no other way to compare with */
    check_add(list, "numerics", 1, left_out, 0, "rows that forward is not to write");
    const uint64_t kept = t->kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER));
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_; kv++)
        if (kept & ATTN_BIT(kv))
            check_add(list, "numerics", 1, stored_bits, kv, "bits that forward writes to a cache of %s",
                      attn_kv_name(kv));
}
