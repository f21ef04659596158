/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_open.c: what a group over ranks is opened with and how much room its exchanges take. */
#include "base/arith.h"
#include "group/ranks.h"
#include "problem/ranks_problem.h"
#include "device/device.h"
#include "device/merge_kind.h"

#include <stdlib.h>

static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

int attni_ranks_open(const struct attni_backend *backend, const attn_device_t *device,
                     const attn_problem_t *p, struct attni_ranks **ranks, attn_problem_t *inner,
                     attn_error_t *error) {
    char text[160];
    const int is_device = device->type != kDLCPU;
    const char *param = attni_ranks_refusal(p, is_device, text, sizeof text);
    if (param != NULL) return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s", text);
    const attn_device_kind_t *kind = attn_device_kind(device->type);
    if (is_device && (kind == NULL || attni_merge_kind(device->type) == NULL))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dcp_world_size",
                         "dcp_world_size is %u, and no loaded plugin joins the results of ranks on %s "
                         "(extension %s; for cuda load flash or mla)",
                         p->dcp_world_size, attni_device_text(device->type, 0, text, sizeof text),
                         ATTN_MERGE_EXTENSION);
    struct attni_ranks *k = calloc(1, sizeof *k);
    if (k == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a group over ranks");
    attni_ranks_inner(p, backend->capabilities.features, backend->capabilities.out_dtypes, inner);
    k->world = (int32_t)p->dcp_world_size;
    k->rank = (int32_t)p->dcp_rank;
    k->interleave = (int32_t)p->cp_interleave;
    k->partial = inner->out_dtype;
    k->is_device = is_device;
    k->kind = kind;
    k->device_id = device->id;
    k->heads = p->num_heads;
    k->kv_heads = p->num_kv_heads;
    k->query_size = attn_query_size(p);
    k->value_size = attn_output_size(p);
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
    attni_ranks_close_parts(k);
    if (k->exchange != NULL) k->kind->free(k->device_id, k->exchange);
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
    k->lse_bytes =
        round64(4 * n * (uint64_t)k->heads * (uint64_t)attni_ranks_lse_columns(k, (int64_t)tokens));
    k->workspace_at = (g->inner_needed.workspace_bytes + 255) / 256 * 256;
    g->needed.workspace_bytes = k->workspace_at + k->send_bytes + k->recv_bytes + k->query_bytes +
                                k->partial_bytes + 2 * k->lse_bytes;
    g->needed.metadata_bytes =
        attni_wrap_device_offset(g) +
        (k->is_device ? attni_ranks_lists_bytes(g) : round64(sizeof(struct attni_ranks_meta) + tokens)) +
        attni_ranks_parts_metadata(g);
    g->needed.host_bytes += attni_ranks_parts_host(g);
    if (g->needed.alignment < 64) g->needed.alignment = 64;
}
