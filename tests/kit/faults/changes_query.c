/* SPDX-License-Identifier: Apache-2.0 */
/* The query is scaled in place. Caught by: memory, inputs are */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    int rc = simple_forward(self, args, space, stream, error);
    if (rc == ATTN_OK && args->query->shape[0] > 0)
        simple_store(attn_data(args->query), self->layer.dtype, 0,
                     simple_load(attn_data(args->query), self->layer.dtype, 0) / 2);
    return rc;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
