/* SPDX-License-Identifier: Apache-2.0 */
/* close frees nothing. Caught by: leaks */
#include "bad.h"
#include "bad_kernel.h"

static void bad_close(attn_instance_t *self) {
    (void)self;
}
#define BAD_CLOSE bad_close

#include "bad_plugin.h"
