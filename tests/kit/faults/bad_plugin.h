/* SPDX-License-Identifier: Apache-2.0 */
/* bad_plugin.h: exports the example plugin with the operations and tables that the file before it
 * replaced. */
#include "bad_kernel.h"

#ifndef BAD_SUPPORTS
#define BAD_SUPPORTS simple_supports_combination
#endif
#ifndef BAD_OPEN
#define BAD_OPEN simple_open
#endif
#ifndef BAD_CLOSE
#define BAD_CLOSE simple_close
#endif
#ifndef BAD_SHAPE
#define BAD_SHAPE simple_kv_cache_shape
#endif
#ifndef BAD_SPACE
#define BAD_SPACE simple_space_needed
#endif
#ifndef BAD_BUILD
#define BAD_BUILD simple_build_metadata
#endif
#ifndef BAD_UPDATE
#define BAD_UPDATE simple_update_kv_cache
#endif
#ifndef BAD_FORWARD
#define BAD_FORWARD simple_forward
#endif
#ifndef BAD_FEATURES
#define BAD_FEATURES SIMPLE_FEATURES
#endif
#ifndef BAD_KV_DTYPES
#define BAD_KV_DTYPES (ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3))
#endif
#ifndef BAD_NAME
#define BAD_NAME "BAD_ATTN"
#endif

/* With BAD_ON_GPU the table says CUDA: the kit's memory there is managed, which the host reads as well. */
#ifdef BAD_ON_GPU
#define BAD_DEVICE kDLCUDA
static int open_anywhere(const attn_problem_t *problem, const attn_device_t *device,
                         const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                         attn_instance_t **instance, attn_error_t *error) {
    attn_device_t d;
    int rc = attn_intake_known(&d, sizeof d, device, "device", error);
    d.type = kDLCPU;
    return rc != ATTN_OK ? rc : BAD_OPEN(problem, &d, options, num_options, host, instance, error);
}
#else
#define BAD_DEVICE    kDLCPU
#define open_anywhere BAD_OPEN
#endif

static const attn_capabilities_t bad_capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .kv_cache_dtypes = BAD_KV_DTYPES,
    .features = BAD_FEATURES,
    .device_types = ATTN_BIT(BAD_DEVICE),
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
};
static const attn_backend_ops_t bad_ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = BAD_SUPPORTS,
    .open = open_anywhere,
    .close = BAD_CLOSE,
    .kv_cache_shape = BAD_SHAPE,
    .space_needed = BAD_SPACE,
    .build_metadata = BAD_BUILD,
    .update_kv_cache = BAD_UPDATE,
    .forward = BAD_FORWARD,
};
static const attn_backend_t bad_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = BAD_NAME,
    .doc = "Wrong in one way.",
    .capabilities = &bad_capabilities,
    .ops = &bad_ops,
};
static const attn_backend_t *const bad_backends[] = {&bad_backend};

__attribute__((visibility("default"))) extern const attn_plugin_t attn_plugin_v1;
const attn_plugin_t attn_plugin_v1 = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "bad",
    .version = "1.0",
    .vendor = "tests",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .backends = bad_backends,
};
