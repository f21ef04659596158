/* SPDX-License-Identifier: Apache-2.0 */
/* Members that it does not know are ignored. Caught by: structs */
#include "bad.h"

static int bad_intake(void *dst, size_t known, const void *src, const char *name, attn_error_t *error) {
    char copy[4096];
    uint32_t size;
    if (src == NULL) return attn_intake(dst, known, src, name, error);
    memcpy(&size, src, sizeof size);
    if (size <= known || size > sizeof copy) return attn_intake(dst, known, src, name, error);
    memcpy(copy, src, known);
    size = (uint32_t)known;
    memcpy(copy, &size, sizeof size);
    return attn_intake(dst, known, copy, name, error);
}
#define attn_intake bad_intake

#include "bad_plugin.h"
