/* SPDX-License-Identifier: Apache-2.0 */
/* oracle.c: the reference backend, linked into the kit, so that a plugin can be judged without finding
 * another one. */
#include "check_engine.h"

#include "../../plugins/reference/ref_capabilities.h"

const attn_backend_t kit_oracle = {
    .struct_size = sizeof(attn_backend_t),
    .name = "ORACLE",
    .doc = "the reference backend inside the kit",
    .capabilities = &ref_capabilities,
    .ops = &ref_ops,
};
