/* SPDX-License-Identifier: Apache-2.0 */
/* forward keeps 64 bytes each time, fewer than a GPU's driver keeps of a run. Caught by: leaks, whole runs */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    void *volatile lost = malloc(64);
    return lost == NULL ? ATTN_E_NO_MEMORY : simple_forward(self, args, space, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
