/* SPDX-License-Identifier: Apache-2.0 */
/* Values are read back with the scale of the keys. Caught by: numerics, kv_cache_dtype fp8_e4m3 */
#include "bad.h"
#include "bad_kernel.h"

static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_forward_t a;
    if (attn_intake(&a, sizeof a, args, "args", NULL) != ATTN_OK)
        return simple_forward(self, args, space, stream, error);
    a.scales.v = a.scales.k;
    return simple_forward(self, &a, space, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
