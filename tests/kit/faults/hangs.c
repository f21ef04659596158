/* SPDX-License-Identifier: Apache-2.0 */
/* forward never returns. Caught by: manners */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    static volatile int forever = 1;
    while (forever) {
    }
    return simple_forward(self, args, space, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
