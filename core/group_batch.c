/* SPDX-License-Identifier: Apache-2.0 */
/* group_batch.c: once per step: check the batch, rewrite it where the layer family wants that, and let the backend plan. */
#include "group.h"
#include "metadata_owner.h"
#include "plan_arith.h"
#include "space_check.h"
#include "tensor_place.h"

/* The part of space->host behind the backend's share is the core's. */
static void *core_room(const attn_group_t *g, const attn_space_t *space) {
    uint64_t share = (g->inner_needed.host_bytes + 63) / 64 * 64;
    return (char *)space->host + share;
}

static int check_place(const attn_group_t *g, const attn_batch_t *b, attn_error_t *error) {
    static const struct attni_placed list[] = {
        ATTNI_PLACED(attn_batch_t, query_start_loc),  ATTNI_PLACED(attn_batch_t, seq_lens),
        ATTNI_PLACED(attn_batch_t, block_table),      ATTNI_PLACED(attn_batch_t, slot_mapping),
        ATTNI_PLACED(attn_batch_t, positions),        ATTNI_PLACED(attn_batch_t, causal),
        ATTNI_PLACED(attn_batch_t, mm_prefix_ranges), ATTNI_PLACED(attn_batch_t, rswa_prefix_lens),
        ATTNI_PLACED(attn_batch_t, encoder_seq_lens), ATTNI_PLACED(attn_batch_t, dcp_local_seq_lens)};
    return attni_place_check(g, b, list, sizeof list / sizeof list[0], error);
}

static int take_batch(attn_group_t *g, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                      attn_batch_t *b, attn_space_t *s, attn_error_t *error) {
    int code = attni_group_check(g, error);
    if (code == ATTN_OK) code = attn_intake(b, sizeof *b, batch, "batch", error);
    if (code == ATTN_OK) code = attni_space_take(s, space, error);
    if (code == ATTN_OK) code = attni_space_check(g, s, error);
    if (code == ATTN_OK) code = attni_host_space_check(g, s, error);
    if (code == ATTN_OK) code = attni_check_batch(&g->problem, b, 0, error);
    if (code == ATTN_OK) code = check_place(g, b, error);
    if (code != ATTN_OK) return code;
    code = attni_wrap_batch(g, b, core_room(g, s), s, stream, error);
    if (code == ATTN_OK && attni_wrap_bytes(&g->wrap) > 0) s->host_bytes = g->inner_needed.host_bytes;
    return code;
}

int attn_group_build_metadata(attn_group_t *group, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int code = take_batch(group, batch, space, stream, &b, &s, error);
    if (code != ATTN_OK) return code;
    code = group->stage.ops.build_metadata(group->stage.instance, &b, &s, stream, error);
    if (code == ATTN_OK) group->built_tokens = b.num_actual_tokens;
    if (code == ATTN_OK) group->built_flags = b.flags;
    if (code == ATTN_OK) attni_metadata_note(group, s.metadata);
    return code;
}

int attn_group_update_block_table(attn_group_t *group, const attn_batch_t *batch, const attn_space_t *space,
                                  void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int code = take_batch(group, batch, space, stream, &b, &s, error);
    if (code != ATTN_OK) return code;
    const attn_backend_ops_t *ops = &group->stage.ops;
    /* A backend without the short way plans anew, which gives the same metadata. */
    code = (ops->update_block_table != NULL ? ops->update_block_table : ops->build_metadata)(
        group->stage.instance, &b, &s, stream, error);
    if (code == ATTN_OK) attni_metadata_note(group, s.metadata);
    return code;
}
