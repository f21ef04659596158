/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a batch lies in the instance, so that a second plan destroys the first.
 * Caught by: memory, two sets */
#include "bad.h"
#include "bad_kernel.h"

static _Alignas(16) char bad_plan[1 << 16];
static int bad_build(attn_instance_t *self, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    int rc = simple_build_metadata(self, batch, space, stream, error);
    if (rc == ATTN_OK && space->metadata_bytes <= sizeof bad_plan)
        memcpy(bad_plan, space->metadata, space->metadata_bytes);
    return rc;
}
#define BAD_BUILD bad_build
static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    if (space == NULL) return simple_forward(self, args, space, stream, error);
    attn_space_t s = *space;
    s.metadata = bad_plan;
    return simple_forward(self, args, &s, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
