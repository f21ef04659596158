/* SPDX-License-Identifier: Apache-2.0 */
/* Members behind struct_size are read. Caught by: structs */
#include "bad.h"

static int bad_intake(void *dst, size_t known, const void *src, const char *name, attn_error_t *error) {
    uint32_t size;
    int rc = attn_intake(dst, known, src, name, error);
    if (src == NULL) return rc;
    memcpy(&size, src, sizeof size);
    if (rc == ATTN_OK && size < known) memcpy(dst, src, known);
    return rc;
}
#define attn_intake bad_intake

#include "bad_plugin.h"
