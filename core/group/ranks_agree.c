/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_agree.c: what the ranks of a group compare: their problems when they meet, their batches in every
 * step. Each says so with its own error, if it has one, so that no rank waits for another that has
 * refused. */
#include "base/arith.h"
#include "base/need.h"
#include "base/reserved.h"
#include "group/ranks.h"

#include <stdio.h>
#include <stdlib.h>

void attni_word_say(struct attni_word *w, uint32_t what, int code, const attn_error_t *error) {
    memset(w, 0, sizeof *w);
    w->what = what;
    w->code = code;
    if (code == ATTN_OK || error == NULL) return;
    snprintf(w->param, sizeof w->param, "%.*s", (int)sizeof w->param - 1, error->param);
    snprintf(w->text, sizeof w->text, "%.*s", (int)sizeof w->text - 1, error->text);
}

int attni_words_check(const struct attni_ranks *k, uint32_t what, const void *words, uint64_t step, int code,
                      attn_error_t *error) {
    if (code != ATTN_OK) return code; /* its own error stays as it is */
    for (int32_t r = 0; r < k->world; r++) {
        const struct attni_word *w =
            (const struct attni_word *)(const void *)((const char *)words + r * step);
        if (w->what != what)
            return attn_fail(
                error, ATTN_E_STATE, "comm",
                "rank %d is at another call than rank %d; every rank must make the same calls in the "
                "same order",
                (int)r, (int)k->rank);
        if (w->code != ATTN_OK)
            return attn_fail(error, w->code, w->param, "rank %d of %d: %s", (int)r, (int)k->world, w->text);
    }
    return ATTN_OK;
}

int attni_ranks_gather(const struct attni_ranks *k, const attn_comm_t *comm, const void *send, void *recv,
                       uint64_t bytes, void *stream, attn_error_t *error) {
    if (!k->is_device) return comm->all_gather(comm->ctx, send, recv, bytes, NULL, error);
    char *there = k->exchange + k->exchange_bytes;
    void *previous = NULL;
    int code = k->kind->copy_to(k->device_id, k->exchange, send, (size_t)bytes, stream, error);
    if (code == ATTN_OK) code = attni_ranks_enter(k, &previous, error);
    if (code != ATTN_OK) return code;
    code = comm->all_gather(comm->ctx, k->exchange, there, bytes, stream, error);
    if (code == ATTN_OK) code = comm->wait(comm->ctx, stream, error);
    attni_ranks_leave(k, previous);
    return code != ATTN_OK ? code
                           : k->kind->copy_from(k->device_id, recv, there, (size_t)bytes * (size_t)k->world,
                                                stream, error);
}

/* ------------------------------------------------------------------ batches */

static uint64_t hash_list(const int32_t *list, int64_t n) {
    return attn_fingerprint64(0, list, (size_t)n * sizeof *list);
}

/* starts, lens and masks of the batch in one list. */
static void write_lists(const struct attni_ranks *k, const attn_batch_t *b, int32_t *list) {
    const int64_t n = b->num_reqs;
    memset(list, 0, (size_t)k->list_entries * sizeof *list);
    memcpy(list, b->query_start_loc_host, (size_t)(n + 1) * sizeof *list);
    if (n > 0) memcpy(list + n + 1, b->seq_lens_host, (size_t)n * sizeof *list);
    for (int64_t i = 0; i < n && b->causal_host != NULL; i++)
        list[2 * n + 1 + i] = b->causal_host[i];
}

/* All ranks know that lists differ; here is which entry, the same on every rank. */
static int name_difference(const struct attni_ranks *k, const attn_batch_t *b, void *stream,
                           attn_error_t *error) {
    static const char *const names[] = {"query_start_loc_host", "seq_lens_host", "causal_host"};
    const int64_t n = b->num_reqs;
    int32_t *all = k->lists + k->list_entries;
    write_lists(k, b, k->lists);
    int code = attni_ranks_gather(k, &k->comm, k->lists, all, (uint64_t)k->list_entries * sizeof *all, stream,
                                  error);
    if (code != ATTN_OK) return code;
    for (int64_t i = 0; i < 3 * n + 1; i++)
        for (int32_t r = 1; r < k->world; r++) {
            const int32_t a = all[i], x = all[r * k->list_entries + i];
            if (a == x) continue;
            const int which = i > 2 * n ? 2 : i > n ? 1 : 0;
            const int64_t at = which == 2 ? i - 2 * n - 1 : which == 1 ? i - n - 1 : i;
            return attn_fail(
                error, ATTN_E_INVALID, names[which],
                "%s[%lld] is %d on rank 0 and %d on rank %d; the ranks must build the same batch",
                names[which], (long long)at, (int)a, (int)x, (int)r);
        }
    return attn_fail(error, ATTN_E_INTERNAL, "batch", "the batches of the ranks differ");
}

static int count_differs(const char *name, int32_t a, int32_t x, int32_t rank, attn_error_t *error) {
    return attn_fail(error, ATTN_E_INVALID, name,
                     "%s is %d on rank 0 and %d on rank %d; the ranks must build the same batch", name,
                     (int)a, (int)x, (int)rank);
}

int attni_ranks_agree(const attn_group_t *g, const attn_batch_t *b, int code, void *stream,
                      attn_error_t *error) {
    struct attni_ranks *k = g->ranks;
    attn_error_t own = {.struct_size = sizeof own};
    if (error == NULL) error = &own;
    if (!k->is_joined)
        return attn_fail(
            error, ATTN_E_STATE, "group",
            "the group has dcp_world_size %d and no communicator; call attn_group_set_comm first",
            (int)k->world);
    const int waited = attni_ranks_check_peers(k, stream, code == ATTN_OK ? error : NULL);
    if (code == ATTN_OK) code = waited;
    attni_word_say(&k->own, ATTNI_WORD_BATCH, code, error);
    if (code == ATTN_OK) {
        k->own.num_reqs = b->num_reqs;
        k->own.tokens = b->num_actual_tokens;
        k->own.starts = hash_list(b->query_start_loc_host, b->num_reqs + 1);
        k->own.lens = hash_list(b->seq_lens_host, b->num_reqs);
        if (b->causal_host != NULL)
            k->own.causal = attn_fingerprint64(0, b->causal_host, (size_t)b->num_reqs);
    }
    k->own.ran = k->ran;
    if (code == ATTN_OK && k->late.code != ATTN_OK) k->own = k->late; /* all hear of it, this rank too */
    memset(&k->late, 0, sizeof k->late);
    k->ran = 0;
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    int sent = attni_ranks_gather(k, &k->comm, &k->own, k->words, sizeof k->own, stream, &comm_error);
    if (sent != ATTN_OK)
        return code != ATTN_OK ? code : attn_fail(error, sent, comm_error.param, "%s", comm_error.text);
    code = attni_words_check(k, ATTNI_WORD_BATCH, k->words, sizeof *k->words, code, error);
    if (code != ATTN_OK) return code;
    const struct attni_word *w = k->words;
    int differ = 0;
    for (int32_t r = 1; r < k->world; r++) {
        if (w[r].num_reqs != w->num_reqs)
            return count_differs("num_reqs", w->num_reqs, w[r].num_reqs, r, error);
        if (w[r].tokens != w->tokens)
            return count_differs("num_actual_tokens", w->tokens, w[r].tokens, r, error);
        differ |= w[r].starts != w->starts || w[r].lens != w->lens || w[r].causal != w->causal;
    }
    for (int32_t r = 1; r < k->world; r++)
        if (w[r].ran != w->ran)
            return attn_fail(
                error, ATTN_E_STATE, "layer",
                "rank %d ran other layers since the last batch than rank 0, or in another order; "
                "run the layers in one order on every rank",
                (int)r);
    return differ ? name_difference(k, b, stream, error) : ATTN_OK;
}
