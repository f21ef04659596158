/* SPDX-License-Identifier: Apache-2.0 */
/* After one refused call the instance refuses everything. Caught by: errors */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    static _Thread_local int is_dead;
    if (is_dead) return attn_fail(error, ATTN_E_STATE, "instance", "an earlier call failed");
    int rc = simple_forward(self, args, space, stream, error);
    is_dead = rc != ATTN_OK;
    return rc;
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
