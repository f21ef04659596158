/* SPDX-License-Identifier: Apache-2.0 */
/* forward takes memory from the heap. Caught by: memory, no allocation */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    void *volatile scratch = malloc(1000);
    int rc = simple_forward(self, args, space, stream, error);
    free(scratch);
    return rc;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
