/* SPDX-License-Identifier: Apache-2.0 */
/* reserved.h: members that a newer header may have given a meaning. What they request is refused, as the
 * unknown tail of a longer struct is, since a member that is not read would be a wrong number in somebody's
 * model. */
#ifndef ATTNI_RESERVED_H
#define ATTNI_RESERVED_H

#include <attn/attn_plugin_util.h>

static inline int attni_reserved_check(const char *type, uint32_t first, const uint64_t *more, size_t count,
                                       attn_error_t *error) {
    uint64_t used = first;
    for (size_t i = 0; i < count; i++)
        used |= more[i];
    if (used == 0) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_TOO_NEW, "reserved",
        "a reserved member of %s is not zero; start from a zeroed struct, or update libattn if the "
        "member has a name in your headers",
        type);
}

/* ARGS: a struct with reserved0 and an array reserved. */
#define ATTNI_RESERVED(TYPE, ARGS, ERROR)                                                                    \
    attni_reserved_check(#TYPE, (ARGS)->reserved0, (ARGS)->reserved,                                         \
                         sizeof(ARGS)->reserved / sizeof(ARGS)->reserved[0], ERROR)

#endif
