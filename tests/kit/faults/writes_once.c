/* SPDX-License-Identifier: Apache-2.0 */
/* Only the first forward of a process writes its output. Caught by: numerics */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    static int calls;
    return calls++ == 0 ? simple_forward(self, args, space, stream, error) : ATTN_OK;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
