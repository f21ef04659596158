/* SPDX-License-Identifier: Apache-2.0 */
/* space_needed forgets the last entry of query_start_loc. Caught by: memory, exactly space_needed */
#include "bad.h"
#include "bad_kernel.h"

static int bad_space(attn_instance_t *self, attn_space_needed_t *needed, attn_error_t *error) {
    int rc = simple_space_needed(self, needed, error);
    needed->metadata_bytes -= 2 * sizeof(int32_t);
    return rc;
}
#define BAD_SPACE bad_space
static int bad_build(attn_instance_t *self, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    attn_space_t s = *space;
    s.metadata_bytes += 2 * sizeof(int32_t);
    return simple_build_metadata(self, batch, &s, stream, error);
}
#define BAD_BUILD bad_build
static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    if (space == NULL) return simple_forward(self, args, space, stream, error);
    attn_space_t s = *space;
    s.metadata_bytes += 2 * sizeof(int32_t);
    return simple_forward(self, args, &s, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
