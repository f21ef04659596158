/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of a call against what the group said it needs. */
#ifndef ATTNI_SPACE_CHECK_H
#define ATTNI_SPACE_CHECK_H

#include "group/group.h"
#include "base/reserved.h"

#include <attn/attn_plugin_util.h>

static inline int attni_space_intake(attn_space_t *taken, const attn_space_t *space, attn_error_t *error) {
    int code = attn_intake(taken, sizeof *taken, space, "space", error);
    return code != ATTN_OK ? code : attni_reserved_check("attn_space_t", taken->reserved0, NULL, 0, error);
}

/* `owner`: the struct that the buffer is a member of; `needed` bytes at a multiple of `alignment` (0:
 * anywhere). */
static inline int attni_buffer_check(const void *data, uint64_t bytes, uint64_t needed, uint32_t alignment,
                                     const char *owner, const char *name, attn_error_t *error) {
    if (needed == 0) return ATTN_OK;
    if (data == NULL || bytes < needed)
        return attn_fail(error, ATTN_E_SPACE, name,
                         "%s.%s has %llu bytes; this group needs %llu (attn_group_space_needed)", owner, name,
                         data != NULL ? (unsigned long long)bytes : 0ULL, (unsigned long long)needed);
    if (alignment != 0 && (uintptr_t)data % alignment != 0)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s.%s is at %p; this group needs a multiple of %u (attn_group_space_needed)", owner,
                         name, data, alignment);
    return ATTN_OK;
}

/* What forward uses: metadata and workspace. */
static inline int attni_space_check(const attn_group_t *g, const attn_space_t *s, attn_error_t *error) {
    const attn_space_needed_t *n = &g->needed;
    int code = attni_buffer_check(s->metadata, s->metadata_bytes, n->metadata_bytes, n->alignment, "space",
                                  "metadata", error);
    return code != ATTN_OK ? code
                           : attni_buffer_check(s->workspace, s->workspace_bytes, n->workspace_bytes,
                                                n->alignment, "space", "workspace", error);
}

/* Engines take it from malloc. */
enum { ATTNI_HOST_ALIGNMENT = 16 };
static inline int attni_host_space_check(const attn_group_t *g, const attn_space_t *s, attn_error_t *error) {
    const uint32_t most = ATTNI_HOST_ALIGNMENT, own = g->needed.alignment;
    return attni_buffer_check(s->host, s->host_bytes, g->needed.host_bytes, own < most ? own : most, "space",
                              "host", error);
}

#endif
