/* SPDX-License-Identifier: Apache-2.0 */
/* The table lists ALiBi, open takes it, forward ignores it. Caught by: numerics, feature alibi */
#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    p.features &= ~(uint64_t)ATTN_F_ALIBI;
    return simple_open(&p, device, options, num_options, host, instance, error);
}
#define BAD_OPEN     bad_open
#define BAD_FEATURES (SIMPLE_FEATURES | ATTN_F_ALIBI)

#include "bad_plugin.h"
