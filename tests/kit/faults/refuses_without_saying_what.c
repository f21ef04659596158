/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses head sizes that it advertises, and not even by name. Caught by: capabilities */
#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    if (problem->head_size > 200) return ATTN_E_UNSUPPORTED;
    return simple_open(problem, device, options, num_options, host, instance, error);
}
#define BAD_OPEN bad_open

#include "bad_plugin.h"
