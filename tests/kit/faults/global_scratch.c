/* SPDX-License-Identifier: Apache-2.0 */
/* The scratch row is one for all instances, so that threads write into each other. Caught by: threads */
#include "bad.h"
#include "bad_kernel.h"

static _Alignas(16) char bad_scratch[1 << 16];
static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    if (space == NULL) return simple_forward(self, args, space, stream, error);
    attn_space_t s = *space;
    if (s.workspace_bytes <= sizeof bad_scratch) s.workspace = bad_scratch;
    return simple_forward(self, args, &s, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
