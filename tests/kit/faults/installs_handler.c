/* SPDX-License-Identifier: Apache-2.0 */
/* open installs a signal handler. Caught by: manners */
#include <signal.h>

#include "bad.h"
#include "bad_kernel.h"

static void bad_handler(int number) {
    (void)number;
}
static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    signal(SIGINT, bad_handler);
    return simple_open(problem, device, options, num_options, host, instance, error);
}
#define BAD_OPEN bad_open

#include "bad_plugin.h"
