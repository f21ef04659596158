/* SPDX-License-Identifier: Apache-2.0 */
/* page_bytes of the cache shape forgets V. Caught by: capabilities */
#include "bad.h"
#include "bad_kernel.h"

static int bad_shape(attn_instance_t *self, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                     attn_error_t *error) {
    int rc = simple_kv_cache_shape(self, num_blocks, shape, error);
    shape->page_bytes /= 2;
    return rc;
}
#define BAD_SHAPE bad_shape

#include "bad_plugin.h"
