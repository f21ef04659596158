/* SPDX-License-Identifier: Apache-2.0 */
/* Feature bits that it does not know are ignored. Caught by: structs */
#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.features &= SIMPLE_FEATURES;
    return simple_open(&p, device, options, num_options, host, instance, error);
}
#define BAD_OPEN bad_open

#include "bad_plugin.h"
