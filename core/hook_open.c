/* SPDX-License-Identifier: Apache-2.0 */
/* hook_open.c: which hooks the configuration asks for. Without any, the backend's own operations are called. */
#include "group.h"

int attni_hooks_open(attn_group_t *group, attn_error_t *error) {
    (void)group, (void)error;
    return ATTN_OK;
}
