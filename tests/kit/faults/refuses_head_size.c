/* SPDX-License-Identifier: Apache-2.0 */
/* The table says any head size, open takes multiples of 32. Caught by: capabilities */
#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    if (problem->head_size % 32 != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "head_size", "head_size %u is not a multiple of 32",
                         problem->head_size);
    return simple_open(problem, device, options, num_options, host, instance, error);
}
#define BAD_OPEN bad_open

#include "bad_plugin.h"
