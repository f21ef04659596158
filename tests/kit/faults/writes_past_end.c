/* SPDX-License-Identifier: Apache-2.0 */
/* One number is written behind the last row of the output. Caught by: memory, nothing is written */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    int rc = simple_forward(self, args, space, stream, error);
    if (rc == ATTN_OK && space != NULL) {
        int64_t rows = ((const simple_plan_t *)space->metadata)->num_tokens;
        simple_store((char *)attn_data(args->output) + rows * attn_byte_stride(args->output, 0),
                     self->layer.dtype, 0, 1);
    }
    return rc;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
