/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_open.c: what a group over ranks is opened with and how much room its exchanges take. */
#include "base/arith.h"
#include "group/ranks.h"
#include "problem/ranks_problem.h"

#include <stdlib.h>

static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

int attni_ranks_open(const struct attni_backend *backend, const attn_device_t *device,
                     const attn_problem_t *p, struct attni_ranks **ranks, attn_problem_t *inner,
                     attn_error_t *error) {
    char text[160];
    const char *param = attni_ranks_refusal(p, text, sizeof text);
    if (param != NULL) return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s", text);
    if (device->type != kDLCPU)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dcp_world_size",
                         "dcp_world_size is %u; context parallelism runs on CPUs only", p->dcp_world_size);
    struct attni_ranks *k = calloc(1, sizeof *k);
    if (k == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a group over ranks");
    attni_ranks_inner(p, backend->capabilities.features, backend->capabilities.out_dtypes, inner);
    const int is_mla = attn_role_is_mla(p->role);
    k->world = (int32_t)p->dcp_world_size;
    k->rank = (int32_t)p->dcp_rank;
    k->interleave = (int32_t)p->cp_interleave;
    k->partial = inner->out_dtype;
    k->heads = p->num_heads;
    k->kv_heads = p->num_kv_heads;
    k->query_size = is_mla ? p->qk_nope_head_dim + p->qk_rope_head_dim : p->head_size;
    k->value_size = is_mla ? p->v_head_dim : p->head_size_v;
    k->max_pieces = p->max_num_batched_tokens;
    k->columns = attni_cdiv(inner->max_model_len, p->block_size);
    k->words = calloc((size_t)k->world, sizeof *k->words);
    k->states = calloc((size_t)k->world, sizeof *k->states);
    k->merged = calloc((size_t)k->world, sizeof *k->merged);
    k->lses = calloc((size_t)k->world, sizeof *k->lses);
    k->list_entries = 3 * (int64_t)p->max_num_seqs + 1;
    k->lists = calloc((size_t)(k->world + 1) * (size_t)k->list_entries, sizeof *k->lists);
    if (k->words == NULL || k->states == NULL || k->merged == NULL || k->lses == NULL || k->lists == NULL) {
        attni_ranks_close(k);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for %u ranks", p->dcp_world_size);
    }
    *ranks = k;
    return ATTN_OK;
}

void attni_ranks_close(struct attni_ranks *k) {
    if (k == NULL) return;
    free(k->words);
    free(k->states);
    free(k->merged);
    free((void *)k->lses);
    free(k->lists);
    free(k);
}

/* Messages of each exchange; the regions hold the largest of those that use them (ranks_forward.c). */
void attni_ranks_needed(attn_group_t *g) {
    struct attni_ranks *k = g->ranks;
    const uint64_t tokens = g->problem.max_num_batched_tokens, n = (uint64_t)k->world,
                   word = sizeof(struct attni_word), size = attn_dtype_size(k->partial);
    const uint64_t rows = tokens * (uint64_t)k->heads, results = rows * (uint64_t)k->value_size * size;
    const uint64_t query = round64(word + rows * (uint64_t)k->query_size * attn_dtype_size(g->problem.dtype)),
                   result = round64(word + round64(results) + 4 * rows), lse = round64(word + 4 * n * rows);
    k->send_bytes = round64(n * (result > results ? result : results));
    if (k->send_bytes < query) k->send_bytes = query;
    if (k->send_bytes < lse) k->send_bytes = lse;
    k->recv_bytes = n * (query > result ? query : result);
    if (k->recv_bytes < n * lse) k->recv_bytes = n * lse;
    k->query_bytes = round64(n * rows * (uint64_t)k->query_size * attn_dtype_size(g->problem.dtype));
    k->partial_bytes = round64(n * results);
    k->lse_bytes = round64(4 * n * rows);
    k->workspace_at = (g->inner_needed.workspace_bytes + 255) / 256 * 256;
    g->needed.workspace_bytes = k->workspace_at + k->send_bytes + k->recv_bytes + k->query_bytes +
                                k->partial_bytes + 2 * k->lse_bytes;
    g->needed.metadata_bytes =
        attni_wrap_device_offset(g) + round64(sizeof(struct attni_ranks_meta) + tokens);
    if (g->needed.alignment < 64) g->needed.alignment = 64;
}
