/* SPDX-License-Identifier: Apache-2.0 */
/* All instances use the layer that was opened last. Caught by: threads */
#include "bad.h"
#include "bad_kernel.h"

static simple_layer_t bad_layer;
static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    int rc = simple_open(problem, device, options, num_options, host, instance, error);
    if (rc == ATTN_OK) bad_layer = (*instance)->layer;
    return rc;
}
#define BAD_OPEN bad_open
static int bad_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    self->layer.scale = bad_layer.scale;
    return simple_forward(self, args, space, stream, error);
}
#define BAD_FORWARD bad_forward

#include "bad_plugin.h"
