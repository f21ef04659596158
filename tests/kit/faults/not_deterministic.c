/* SPDX-License-Identifier: Apache-2.0 */
/* The last bit of the output depends on the number of the call. Caught by: determinism */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    static unsigned calls;
    int rc = simple_forward(self, args, space, stream, error);
    if (rc == ATTN_OK && space != NULL && args->output->shape[0] > 0 && calls++ % 2 != 0)
        *(unsigned char *)attn_data(args->output) ^= 1;
    return rc;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
