/* SPDX-License-Identifier: Apache-2.0 */
/* The full mask is served as a causal one. Caught by: numerics, feature non_causal */
#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    int rc = simple_open(problem, device, options, num_options, host, instance, error);
    if (rc == ATTN_OK && (*instance)->problem.role == ATTN_ROLE_DECODER) (*instance)->layer.is_causal = 1;
    return rc;
}
#define BAD_OPEN bad_open

#include "bad_plugin.h"
