/* SPDX-License-Identifier: Apache-2.0 */
/* oracle.c: the reference backend, linked into the kit, so that a plugin can be judged without finding another one. */
#include "check_engine.h"

#include "../plugins/reference/ref_capabilities.h"
#include "../plugins/reference/ref_instance.h"
#include "../plugins/reference/ref_mla.h"

static const attn_backend_ops_t oracle_ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = ref_supports,
    .open = ref_open,
    .close = ref_close,
    .kv_cache_shape = ref_kv_cache_shape,
    .space_needed = ref_space_needed,
    .build_metadata = ref_build_metadata,
    .update_block_table = ref_update_block_table,
    .update_kv_cache = ref_update_kv_cache,
    .forward = ref_forward,
    .prepare_weights = ref_prepare_weights,
};

const attn_backend_t kit_oracle = {
    .struct_size = sizeof(attn_backend_t),
    .name = "ORACLE",
    .doc = "the reference backend inside the kit",
    .capabilities = &ref_capabilities,
    .ops = &oracle_ops,
};
