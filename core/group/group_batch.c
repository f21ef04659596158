/* SPDX-License-Identifier: Apache-2.0 */
/* group_batch.c: once per step: check the batch, rewrite it where the layer family wants that, and let the
 * backend plan. */
#include "group/group.h"
#include "group/metadata_owner.h"
#include "group/ranks.h"
#include "plan/check_batch.h"
#include "group/space_check.h"
#include "group/tensor_place.h"

/* The part of space->host behind the backend's share is the core's. */
static void *core_room(const attn_group_t *g, const attn_space_t *space) {
    uint64_t share = (g->inner_needed.host_bytes + 63) / 64 * 64;
    return (char *)space->host + share;
}

static int check_place(const attn_group_t *g, const attn_batch_t *b, attn_error_t *error) {
    static const struct attni_placed list[] = {ATTNI_PLACED(attn_batch_t, query_start_loc),
                                               ATTNI_PLACED(attn_batch_t, seq_lens),
                                               ATTNI_PLACED(attn_batch_t, block_table),
                                               ATTNI_PLACED(attn_batch_t, slot_mapping),
                                               ATTNI_PLACED(attn_batch_t, causal),
                                               ATTNI_PLACED(attn_batch_t, mm_prefix_ranges),
                                               ATTNI_PLACED(attn_batch_t, rswa_prefix_lens),
                                               ATTNI_PLACED(attn_batch_t, encoder_seq_lens),
                                               ATTNI_PLACED(attn_batch_t, dcp_local_seq_lens)};
    return attni_place_check(g, b, list, sizeof list / sizeof list[0], error);
}

static int check_call(attn_group_t *g, const attn_batch_t *batch, const attn_space_t *space, attn_batch_t *b,
                      attn_space_t *s, attn_error_t *error) {
    int code = attn_intake(b, sizeof *b, batch, "batch", error);
    if (code == ATTN_OK) code = attni_space_intake(s, space, error);
    if (code == ATTN_OK) code = attni_space_check(g, s, error);
    if (code == ATTN_OK) code = attni_host_space_check(g, s, error);
    if (code == ATTN_OK) code = attni_check_batch(&g->problem, b, 0, error);
    if (code == ATTN_OK) code = check_place(g, b, error);
    if (code == ATTN_OK && g->ranks != NULL) code = attni_ranks_check_local(g, b, error);
    return code;
}

static int rewrite_batch(attn_group_t *g, attn_batch_t *b, attn_space_t *s, void *stream,
                         attn_error_t *error) {
    int code = ATTN_OK;
    if (g->ranks != NULL)
        code = attni_ranks_cut(g, b, core_room(g, s), s, stream, error);
    else
        code = attni_wrap_batch(g, b, core_room(g, s), s, stream, error);
    if (g->ranks != NULL || attni_wrap_bytes(&g->wrap) > 0) s->host_bytes = g->inner_needed.host_bytes;
    return code;
}

/* The rewritten batch to the backend, by one of its two functions. */
static int plan(const attn_group_t *g, attni_ranks_plan *function, const attn_batch_t *b,
                const attn_space_t *s, void *stream, attn_error_t *error) {
    return g->ranks != NULL ? attni_ranks_build(g, function, b, s, stream, error)
                            : function(g->stage.instance, b, s, stream, error);
}

/* Afterwards *group is the one of two whose backend the batch belongs to. */
static int read_batch(attn_group_t **group, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_batch_t *b, attn_space_t *s, uint32_t *seen, attn_error_t *error) {
    attn_group_t *g = *group;
    int code = attni_group_check(g, error);
    if (code != ATTN_OK) return code;
    attn_error_t own = {.struct_size = sizeof own};
    if (error == NULL) error = &own;
    code = check_call(g, batch, space, b, s, error);
    if (g->ranks != NULL) code = attni_ranks_agree(g, b, code, stream, error);
    if (code != ATTN_OK) return code;
    *seen = attni_metadata_batch(b);
    if (g->prefill != NULL && attni_phase_of(g, b) == ATTN_PHASE_PREFILL) *group = g = g->prefill;
    return rewrite_batch(g, b, s, stream, error);
}

/* Layers ask the group that they were made in. */
static void note_built(attn_group_t *asked, attn_group_t *g, const attn_batch_t *b, const void *metadata) {
    asked->built_tokens = g->built_tokens = b->num_actual_tokens;
    asked->built_flags = g->built_flags = b->flags;
    if (asked->prefill != NULL) attni_phase_note(g, metadata);
}

int attn_group_build_metadata(attn_group_t *group, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    uint32_t seen;
    attn_group_t *const asked = group;
    int code = read_batch(&group, batch, space, stream, &b, &s, &seen, error);
    if (code != ATTN_OK) return code;
    code = plan(group, group->stage.ops.build_metadata, &b, &s, stream, error);
    if (code == ATTN_OK) note_built(asked, group, &b, s.metadata);
    if (code == ATTN_OK) attni_metadata_note(group, s.metadata, seen);
    return code;
}

int attn_group_update_block_table(attn_group_t *group, const attn_batch_t *batch, const attn_space_t *space,
                                  void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    uint32_t seen;
    attn_group_t *const asked = group;
    int code = read_batch(&group, batch, space, stream, &b, &s, &seen, error);
    if (code != ATTN_OK) return code;
    const attn_backend_ops_t *ops = &group->stage.ops;
    int is_known;
    code = attni_metadata_check_batch(group, s.metadata, seen, &is_known, error);
    if (code != ATTN_OK) return code;
    /* Without the short way, or where the built batch is not known any more: planned anew, which gives the
     * same metadata. */
    const int is_short = ops->update_block_table != NULL && is_known;
    code = plan(group, is_short ? ops->update_block_table : ops->build_metadata, &b, &s, stream, error);
    if (code == ATTN_OK && !is_short) note_built(asked, group, &b, s.metadata);
    if (code == ATTN_OK) attni_metadata_note(group, s.metadata, seen);
    return code;
}
