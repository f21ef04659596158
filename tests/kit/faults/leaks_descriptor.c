/* SPDX-License-Identifier: Apache-2.0 */
/* open leaves a file open. Caught by: leaks */
#include <fcntl.h>

#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    int rc = simple_open(problem, device, options, num_options, host, instance, error);
    return rc == ATTN_OK && open("/dev/null", O_RDONLY) < 0 ? ATTN_E_IO : rc;
}
#define BAD_OPEN bad_open

#include "bad_plugin.h"
