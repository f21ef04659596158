/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_parts.c: parts of a batch over ranks (semantics 8.6). A prompt's queries and results are as much to
 * exchange as a link carries in a good part of the time of attention, and attention needs no link. So tokens
 * are cut into parts, each with the backend's metadata of its own, and a stream beside the caller's has the
 * exchanges (ranks_forward.c). Where depends on the bytes alone, so all ranks cut alike.
 */
#include "base/arith.h"
#include "group/ranks.h"

#include <stdlib.h>

/* Parts of many tokens begin at multiples of so many: tiles of attention stay whole. */
enum { PART_ALIGNMENT = 256 };

/* Attention that keeps every multiprocessor to its end leaves none to exchanges, which then wait for it. It
 * gets 128 of 132: one in SPARE_SHARE is kept from it. */
enum { SPARE_SHARE = 32 };

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

static int32_t parts_of(const struct attni_ranks *k, int64_t tokens) {
    if (k->part_bytes == 0) return 1;
    const uint64_t parts = (uint64_t)tokens * k->query_row / k->part_bytes;
    return parts < 2 || tokens < 2
               ? 1
               : (int32_t)attni_min64((int64_t)parts, attni_min64(tokens, ATTNI_RANKS_PARTS));
}

int32_t attni_ranks_parts(const struct attni_ranks *k, int64_t tokens, uint32_t batch_flags) {
    return k->peer_tokens == 0 || (batch_flags & ATTN_BATCH_CAPTURE) != 0 ? 1 : parts_of(k, tokens);
}

int64_t attni_ranks_part_begin(int64_t tokens, int32_t parts, int32_t i) {
    const int64_t at = tokens * i / parts;
    return i == parts || tokens / parts < 4 * PART_ALIGNMENT ? at : at / PART_ALIGNMENT * PART_ALIGNMENT;
}

static uint64_t more(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Another instance, for a device with fewer multiprocessors. Which of the two has more to keep is not
 * known. */
static int open_beside(attn_group_t *g, attn_error_t *error) {
    struct attni_ranks *k = g->ranks;
    attn_device_t device = g->device;
    attn_space_needed_t needed = {.struct_size = sizeof needed}, *all = &g->inner_needed;
    const int32_t spare = device.num_sms / SPARE_SHARE;
    if (spare == 0) return ATTN_OK;
    device.num_sms -= spare;
    int code = attni_group_open_instance(g, &device, &k->beside, error);
    if (code == ATTN_OK) code = g->stage.ops.space_needed(k->beside, &needed, error);
    if (code != ATTN_OK) return code;
    all->metadata_bytes = more(all->metadata_bytes, needed.metadata_bytes);
    all->workspace_bytes = more(all->workspace_bytes, needed.workspace_bytes);
    all->host_bytes = more(all->host_bytes, needed.host_bytes);
    all->alignment = (uint32_t)more(all->alignment, needed.alignment);
    return ATTN_OK;
}

int attni_ranks_open_parts(attn_group_t *g, attn_error_t *error) {
    struct attni_ranks *k = g->ranks;
    const attn_device_kind_t *kind = k->kind;
    const char *bytes = attni_config_get(&g->context->config, "attn", "rank_part_bytes");
    k->most_parts = 1;
    k->query_row = (uint64_t)(k->heads * k->query_size) * attn_dtype_size(g->problem.dtype);
    if (!k->is_device || k->is_hooked || kind->stream_wait == NULL) return ATTN_OK;
    k->part_bytes = bytes != NULL ? strtoull(bytes, NULL, 10) : 0;
    k->most_parts = parts_of(k, g->problem.max_num_batched_tokens);
    if (k->most_parts == 1) return ATTN_OK;
    int code = (kind->stream_create_first != NULL ? kind->stream_create_first
                                                  : kind->stream_create)(k->device_id, &k->side, error);
    if (code == ATTN_OK) code = open_beside(g, error);
    if (code == ATTN_OK) code = kind->event_create(k->device_id, &k->passed, error);
    for (int32_t i = 0; i < k->most_parts && code == ATTN_OK; i++)
        code = kind->event_create(k->device_id, &k->gathered[i], error);
    return code;
}

void attni_ranks_close_parts(struct attni_ranks *k) {
    if (k->passed != NULL) k->kind->event_destroy(k->device_id, k->passed);
    for (int i = 0; i < ATTNI_RANKS_PARTS; i++)
        if (k->gathered[i] != NULL) k->kind->event_destroy(k->device_id, k->gathered[i]);
    if (k->side != NULL) k->kind->stream_destroy(k->device_id, k->side);
}

/* Behind all else that a group over ranks has in the metadata and in host memory. */
static uint64_t metadata_at(const attn_group_t *g) {
    return round_up(attni_wrap_device_offset(g) + attni_ranks_lists_bytes(g), 256);
}
static uint64_t host_at(const attn_group_t *g) {
    return round_up(round_up(g->inner_needed.host_bytes, 64) + attni_ranks_host_bytes(g), 256);
}
uint64_t attni_ranks_parts_metadata(const attn_group_t *g) {
    const uint64_t more = (uint64_t)g->ranks->most_parts - 1;
    return more == 0 ? 0 : 256 + more * round_up(g->inner_needed.metadata_bytes, 256);
}
uint64_t attni_ranks_parts_host(const attn_group_t *g) {
    const uint64_t more = (uint64_t)g->ranks->most_parts - 1;
    return more == 0 ? 0 : 256 + more * round_up(g->inner_needed.host_bytes, 256);
}

attn_space_t attni_ranks_part_space(const attn_group_t *g, const attn_space_t *space, int32_t part) {
    attn_space_t s = *space;
    if (part == 0) return s;
    const uint64_t before = (uint64_t)part - 1;
    s.metadata = (char *)s.metadata + metadata_at(g) + before * round_up(g->inner_needed.metadata_bytes, 256);
    s.metadata_bytes = g->inner_needed.metadata_bytes;
    s.host = (char *)s.host + host_at(g) + before * round_up(g->inner_needed.host_bytes, 256);
    s.host_bytes = g->inner_needed.host_bytes;
    return s;
}

int attni_ranks_build(const attn_group_t *g, attni_ranks_plan *plan, const attn_batch_t *b,
                      const attn_space_t *space, void *stream, attn_error_t *error) {
    const struct attni_ranks *k = g->ranks;
    const int32_t tokens = b->num_actual_tokens, parts = attni_ranks_parts(k, tokens, b->flags);
    int code = ATTN_OK;
    if (parts == 1) return plan(g->stage.instance, b, space, stream, error);
    for (int32_t i = 0; i < parts && code == ATTN_OK; i++) {
        const struct attni_ranks_part *p = &k->parts[i];
        const int64_t begin = attni_ranks_part_begin(tokens, parts, i),
                      end = attni_ranks_part_begin(tokens, parts, i + 1);
        const attn_space_t s = attni_ranks_part_space(g, space, i);
        attn_batch_t part = *b;
        DLTensor table = *b->block_table;
        int64_t shape[2] = {p[1].first_piece - p->first_piece, table.shape[1]};
        part.num_reqs = (int32_t)shape[0];
        part.num_actual_tokens = (int32_t)(end - begin);
        part.max_query_len = p->longest_query;
        part.max_seq_len = p->longest_seq;
        part.query_start_loc_host += p->first_piece + i; /* each part's has one entry more than pieces */
        part.seq_lens_host += p->first_piece;
        if (part.causal_host != NULL) part.causal_host += p->first_piece;
        part.slot_mapping = NULL;
        table.byte_offset += (uint64_t)(p->first_piece * table.strides[0]) * sizeof(int32_t);
        table.shape = shape;
        part.block_table = &table;
        code = plan(attni_ranks_instance(g, parts), &part, &s, stream, error);
    }
    return code;
}
