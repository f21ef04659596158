/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the flash plugin: FLASH_ATTN, and FLASH_ATTN_DIFFKV for values of another size than
 * keys. */
#include "../common/descriptor.h"
#include "../common/dense/flash_instance.h"
#include "../common/gpu_merge.h"

static const attn_range_t head_sizes[] = {{8, 256, 8}};
static const attn_block_size_t block_sizes[] = {{16, 1}};
/* machine code for 8.0 and 9.0, PTX for the rest, which the driver compiles at the first open */
static const attn_range_t compute_capabilities[] = {{80, 129, 1}};

#define FLASH_FEATURES                                                                                       \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_ALIBI | ATTN_F_SINK | ATTN_F_CHUNKED_LOCAL |           \
     ATTN_F_CHUNK_LOOKBACK | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_LSE |                    \
     ATTN_F_PER_HEAD_SCALES | ATTN_F_SEPARATE_KV | ATTN_F_BATCH_INVARIANT | ATTN_F_CAPTURE |                 \
     ATTN_F_KV_CONNECTOR | ATTN_F_CONTIGUOUS_KV | ATTN_F_BLOCK_STRIDE | ATTN_F_CASCADE |                     \
     ATTN_F_QUANT_QUERY | ATTN_F_KEY_LENGTHS | ATTN_F_DEVICE_LENGTHS | ATTN_F_OUT_FP8_STATIC |               \
     ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4 | ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_WRITE_IN_FORWARD)

#define FLASH_COMMON                                                                                         \
    .struct_size = sizeof(attn_capabilities_t), .graph_support = ATTN_GRAPH_ALWAYS,                          \
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |  \
             ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) | ATTN_BIT(ATTN_ROLE_MM_ENCODER) |                          \
             ATTN_BIT(ATTN_ROLE_MLA_PREFILL),                                                                \
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),                                  \
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),                                \
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16) |     \
                       ATTN_BIT(ATTN_KV_FP8_E4M3),                                                           \
    .device_types = ATTN_BIT(kDLCUDA), .head_sizes = head_sizes, .num_head_sizes = 1,                        \
    .block_sizes = block_sizes, .num_block_sizes = 1, .compute_capabilities = compute_capabilities,          \
    .num_compute_capabilities = 1, .preferred_block_size = 16, .query_len_support = ATTN_QUERY_LEN_VARLEN,   \
    .spec_as_decode = 1

static const attn_capabilities_t flash_capabilities = {FLASH_COMMON, .features = FLASH_FEATURES};
static const attn_capabilities_t flash_diffkv_capabilities = {
    FLASH_COMMON, .features = FLASH_FEATURES | ATTN_F_DIFF_KV, .head_sizes_v = head_sizes,
    .num_head_sizes_v = 1};

/* Of both backends: the core has checked a problem against the table of the one it opens. */
static const flash_backend shared = {.name = "FLASH_ATTN",
                                     .capabilities = &flash_diffkv_capabilities,
                                     .kernels = &flash_all_kernels,
                                     .quantise = quantise_rows};

static int open_backend(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    return flash_open(&shared, problem, device, options, num_options, host, instance, error);
}

static const attn_backend_ops_t ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = flash_supports,
    .open = open_backend,
    .close = flash_close,
    .kv_cache_shape = flash_kv_cache_shape,
    .space_needed = flash_space_needed,
    .build_metadata = flash_build_metadata,
    .update_block_table = flash_update_block_table,
    .update_kv_cache = flash_update_kv_cache,
    .forward = flash_forward,
    .get_extension = gpu_merge_extension,
};

static const attn_backend_t dense_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "FLASH_ATTN",
    .doc =
        "kernels compiled ahead of time: Hopper by TMA and wgmma, every other GPU from sm_80 on by mma.sync",
    .capabilities = &flash_capabilities,
    .ops = &ops,
};
static const attn_backend_t diffkv_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "FLASH_ATTN_DIFFKV",
    .doc = "FLASH_ATTN for values whose head size differs from the keys'",
    .capabilities = &flash_diffkv_capabilities,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&dense_backend, &diffkv_backend};

static const attn_option_spec_t options[FLASH_NUM_OPTIONS] = {
    [FLASH_OPTION_ARCH] = OPTION_ARCH,
    [FLASH_OPTION_NUM_SPLITS] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_INT,
         .name = "num_splits",
         .doc = "pieces into which decode cuts the keys of a request; 0 lets the planner choose",
         .default_value = "0",
         .min_int = 0,
         .max_int = FLASH_MAX_PIECES},
};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,       .name = "flash",    .num_backends = 2, .num_options = FLASH_NUM_OPTIONS,
    .backends = backends, .options = options,
};
