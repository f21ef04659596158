/* SPDX-License-Identifier: Apache-2.0 */
/* The profiling run leaves the output as it was. Caught by: memory, profiling run */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    if (space == NULL) return ATTN_OK;
    return simple_forward(self, args, space, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
