/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_peers.c: memory that all ranks of a group load and store, in which batches are exchanged (semantics
 * 8.6): whether there is any, what lies where, and what its kernels say when a rank does not
 * come. */
#include "device/merge_kind.h"
#include "group/ranks.h"

#include <stdio.h>

/* A packed message is twice as long as it is and saves some microseconds, which is as much as a link takes
 * for so many bytes, of all ranks'. */
enum { MOST_PACKED_BYTES = 512 << 10 };

static int is_plain_float(uint32_t dtype) {
    return dtype == ATTN_DTYPE_FLOAT32 || dtype == ATTN_DTYPE_FLOAT16 || dtype == ATTN_DTYPE_BFLOAT16;
}

int attni_ranks_can_peers(const attn_group_t *g, const attn_comm_t *comm, uint32_t join) {
    const struct attni_ranks *k = g->ranks;
    if (!k->is_device || comm->peers == NULL || join != ATTN_JOIN_ALL_TO_ALL || k->world > ATTN_PEERS_MAX)
        return 0;
    const attn_merge_table_t *merge = attni_merge_kind(attni_device_of(g).device_type);
    return merge != NULL && merge->peers_query != NULL && is_plain_float(g->problem.dtype) &&
           is_plain_float(k->partial) && is_plain_float(g->problem.out_dtype) && k->value_size % 8 == 0 &&
           k->query_size * (int64_t)attn_dtype_size(g->problem.dtype) % 16 == 0;
}

static uint64_t place(uint64_t *end, uint64_t bytes) {
    const uint64_t at = *end;
    *end += (bytes + 255) / 256 * 256;
    return at;
}

int attni_ranks_open_peers(attn_group_t *g, const attn_comm_t *comm, attn_error_t *error) {
    struct attni_ranks *k = g->ranks;
    const uint64_t heads = (uint64_t)k->world * (uint64_t)k->heads,
                   row = heads * (uint64_t)k->query_size * attn_dtype_size(g->problem.dtype);
    const uint64_t tokens = g->problem.max_num_batched_tokens;
    uint64_t bytes = ATTN_PEERS_CONTROL_BYTES;
    k->peers = (attn_peers_t){.struct_size = sizeof k->peers,
                              .world = k->world,
                              .rank = k->rank,
                              .dtype = g->problem.dtype,
                              .partial_dtype = k->partial,
                              .num_heads = (int32_t)k->heads,
                              .num_kv_heads = (int32_t)k->kv_heads,
                              .query_size = (int32_t)k->query_size,
                              .value_size = (int32_t)k->value_size,
                              .lse_columns = (int32_t)tokens,
                              .device_id = k->device_id,
                              .parts = 1,
                              .limit_ms = comm->limit_ms,
                              .of_rank = k->peer_memory};
    k->peers.query_at = place(&bytes, tokens * row);
    k->peers.output_at =
        place(&bytes, tokens * heads * (uint64_t)k->value_size * attn_dtype_size(k->partial));
    k->peers.lse_at = place(&bytes, 4 * heads * tokens);
    k->peers.places_at = place(&bytes, 8 * tokens);
    k->peers.packed_bytes = MOST_PACKED_BYTES / (uint64_t)k->world / 256 * 256;
    k->peers.packed_at = place(&bytes, 2 * (uint64_t)k->world * k->peers.packed_bytes);
    attn_error_t own = {.struct_size = sizeof own};
    const int code = comm->peers(comm->ctx, bytes, k->peer_memory, &own);
    if (code == ATTN_E_UNSUPPORTED) return ATTN_OK;
    if (code != ATTN_OK) return attn_fail(error, code, own.param, "%s", own.text);
    k->peer_tokens = (int64_t)tokens;
    return ATTN_OK;
}

int attni_ranks_check_peers(struct attni_ranks *k, void *stream, attn_error_t *error) {
    attn_peers_failed_t failed = 0;
    attn_error_t why = {.struct_size = sizeof why};
    char ranks[64] = "";
    if (k->peer_tokens == 0) return ATTN_OK;
    int code =
        k->kind->copy_from(k->device_id, &failed, k->peer_memory[k->rank], sizeof failed, stream, error);
    if (code != ATTN_OK || failed == 0) return code;
    for (int32_t r = 0; r < k->world; r++)
        if ((failed >> r & 1) != 0)
            snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), " %d", (int)r);
    code = attn_fail(
        &why, ATTN_E_STATE, "comm",
        "a layer waited %llu ms for ranks%s of %d, which did not come; close the groups of all ranks",
        (unsigned long long)k->peers.limit_ms, ranks, (int)k->world);
    attni_word_say(&k->late, ATTNI_WORD_BATCH, code, &why);
    return ATTN_OK;
}
