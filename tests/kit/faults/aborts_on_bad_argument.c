/* SPDX-License-Identifier: Apache-2.0 */
/* A bad argument ends the process. Caught by: errors */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    int rc = simple_forward(self, args, space, stream, error);
    if (rc != ATTN_OK) abort();
    return rc;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
