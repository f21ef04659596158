/* SPDX-License-Identifier: Apache-2.0 */
/* What the host offers to plugins by id. */
#include "context.h"

const void *attni_host_extension(void *ctx, const char *id) {
    (void)ctx, (void)id;
    return NULL;
}
