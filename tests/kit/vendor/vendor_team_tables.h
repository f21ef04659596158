/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_team_tables.h: part of vendor_team.c: what it says of itself. */

static const void *v_extension(attn_instance_t *v, const char *id) {
    static const uint32_t table[2] = {8, 0};
    if (IS(extension_for_any_id)) return table;
    if (IS(extension_needs_instance)) return v->threads > 99 ? table : NULL;
    return strcmp(id, "attn.draft.team/1") == 0 ? table : NULL;
}

static const attn_block_size_t pages[] = {{16, 1}};
static const attn_capabilities_t capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = IS(claims_capture) ? ATTN_GRAPH_ALWAYS : ATTN_GRAPH_NEVER,
    .roles =
        ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16) |
                       ATTN_BIT(ATTN_KV_FLOAT32) | ATTN_BIT(ATTN_KV_FP8_E4M3) |
                       ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD),
    .features = FEATURES,
    .device_types = ATTN_BIT(kDLCPU),
    .block_sizes = pages,
    .num_block_sizes = 1,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .forward_writes_cache = IS(claims_to_write) ? 1 : 0,
    .preferred_block_size = 32,
};
static const attn_backend_ops_t ops = {
    .struct_size = IS(ops_size_of_pointer) ? sizeof(void *) : sizeof(attn_backend_ops_t),
    .supports_combination = v_supports,
    .open = v_open,
    .close = v_close,
    .kv_cache_shape = v_shape,
    .space_needed = v_space,
    .build_metadata = v_build,
    .update_block_table = v_table,
    .update_kv_cache = IS(no_update_op) ? NULL : v_update,
    .forward = v_forward,
    .get_extension = v_extension,
};
static const attn_option_spec_t options[] = {
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_INT,
     .name = "threads",
     .doc = "Threads of a call.",
     .default_value = "2",
     .min_int = 1,
     .max_int = 16},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_INT,
     .name = "threads",
     .doc = "Once more.",
     .default_value = "2",
     .min_int = 1,
     .max_int = 16},
};
static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "TEAM_ATTN",
    .doc = "A team of threads.",
    .capabilities = &capabilities,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "vendor_team",
    .version = "1.0",
    .vendor = "tests",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .num_options = IS(option_twice) ? 2 : 1,
    .backends = backends,
    .options = options,
};
