/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_tables.h: part of vendor_split.c: what it says of itself. */

#ifndef VENDOR_DTYPES
#define VENDOR_DTYPES                                                                                        \
    (ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16))
#endif

static const attn_range_t sizes[] = {{8, 256, 8}};
static const attn_block_size_t pages[] = {{8, 1}};
static const attn_capabilities_t capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |
             (IS(claims_cross) ? ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) : 0),
    .dtypes = VENDOR_DTYPES,
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_E5M2) |
                       (IS(claims_int8) ? ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD) : 0),
    .features = FEATURES,
    .device_types = ATTN_BIT(kDLCPU),
    .head_sizes = sizes,
    .num_head_sizes = 1,
    .block_sizes = pages,
    .num_block_sizes = 1,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .preferred_block_size = 16,
    .max_group = 32,
};
static const attn_backend_ops_t ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = supports,
    .open = v_open,
    .close = v_close,
    .kv_cache_shape = v_shape,
    .space_needed = v_space,
    .build_metadata = v_build,
    .update_block_table = v_table,
    .update_kv_cache = v_update,
    .forward = v_forward,
};
static const attn_option_spec_t options[OPTIONS] = {
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_INT,
     .name = "splits",
     .doc = "Splits of a row; 0 lets the plan choose.",
     .default_value = "0",
     .min_int = 0,
     .max_int = MAX_SPLITS},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_STRING,
     .name = "path",
     .doc = "Not used.",
     .default_value = ""},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_BOOL,
     .name = "exact",
     .doc = "Not used.",
     .default_value = "no"},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_ENUM,
     .name = "cache",
     .doc = "Not used.",
     .default_value = "auto",
     .choices = "auto small large"},
};
static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "SPLIT_ATTN",
    .doc = "Keys in splits.",
    .capabilities = &capabilities,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "vendor_split",
    .version = "1.0",
    .vendor = "tests",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .num_options = OPTIONS,
    .backends = backends,
    .options = options,
};
