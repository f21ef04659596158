/* SPDX-License-Identifier: Apache-2.0 */
/* The lengths are read through the pointers of a call that has returned.
 * Caught by: memory, nothing of the batch */
#include "bad.h"
#include "bad_kernel.h"

static const int32_t *bad_lens;
static int bad_build(attn_instance_t *self, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    int rc = simple_build_metadata(self, batch, space, stream, error);
    bad_lens = batch != NULL ? batch->seq_lens_host : NULL;
    return rc;
}
#define BAD_BUILD bad_build
static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    simple_plan_t *plan = space != NULL ? space->metadata : NULL;
    if (plan != NULL && plan->magic == SIMPLE_PLAN_MAGIC)
        memcpy((int32_t *)(plan + 1) + plan->num_reqs + 1, bad_lens,
               (size_t)plan->num_reqs * sizeof(int32_t));
    return simple_forward(self, args, space, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
