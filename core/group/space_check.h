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

/* `owner`: the struct that the buffer is a member of; `needed` bytes, in the group's alignment. */
static inline int attni_buffer_check(const attn_group_t *g, const void *data, uint64_t bytes, uint64_t needed,
                                     const char *owner, const char *name, attn_error_t *error) {
    if (needed == 0) return ATTN_OK;
    if (data == NULL || bytes < needed)
        return attn_fail(error, ATTN_E_SPACE, name,
                         "%s.%s has %llu bytes; this group needs %llu (attn_group_space_needed)", owner, name,
                         data != NULL ? (unsigned long long)bytes : 0ULL, (unsigned long long)needed);
    if (g->needed.alignment != 0 && (uintptr_t)data % g->needed.alignment != 0)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s.%s is at %p; this group needs a multiple of %u (attn_group_space_needed)", owner,
                         name, data, g->needed.alignment);
    return ATTN_OK;
}

/* What forward uses: metadata and workspace. */
static inline int attni_space_check(const attn_group_t *g, const attn_space_t *s, attn_error_t *error) {
    int code = attni_buffer_check(g, s->metadata, s->metadata_bytes, g->needed.metadata_bytes, "space",
                                  "metadata", error);
    return code != ATTN_OK ? code
                           : attni_buffer_check(g, s->workspace, s->workspace_bytes,
                                                g->needed.workspace_bytes, "space", "workspace", error);
}

static inline int attni_host_space_check(const attn_group_t *g, const attn_space_t *s, attn_error_t *error) {
    return attni_buffer_check(g, s->host, s->host_bytes, g->needed.host_bytes, "space", "host", error);
}

#endif
