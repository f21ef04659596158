/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the mm_encoder plugin: MM_ENCODER_ATTN, attention of image, video and sound encoders. */
#include "../common/descriptor.h"
#include "kernels/cuda/dense/flash_kernels.h"
#include "mm_instance.h"

static const attn_range_t head_sizes[] = {{1, 256, 1}};
static const attn_range_t inner_head_sizes[] = {{8, 256, 8}};
static const attn_range_t compute_capabilities[] = {{80, 129, 1}};

#define MM_INNER_FEATURES                                                                                    \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_LSE | ATTN_F_BATCH_INVARIANT | ATTN_F_CAPTURE |        \
     ATTN_F_CONTIGUOUS_KV | ATTN_F_KEY_LENGTHS)

#define MM_COMMON                                                                                            \
    .struct_size = sizeof(attn_capabilities_t), .graph_support = ATTN_GRAPH_ALWAYS,                          \
    .roles = ATTN_BIT(ATTN_ROLE_MM_ENCODER),                                                                 \
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),                                  \
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO), .device_types = ATTN_BIT(kDLCUDA),                            \
    .compute_capabilities = compute_capabilities, .num_compute_capabilities = 1,                             \
    .query_len_support = ATTN_QUERY_LEN_VARLEN

const attn_capabilities_t mm_capabilities = {MM_COMMON, .head_sizes = head_sizes, .num_head_sizes = 1,
                                             .features = MM_INNER_FEATURES | ATTN_F_FP8_ATTENTION};

/* The backend inside: rows of a head size that kernels take. Keys are 16-bit rows of the values' size, and
 * nothing decodes. */
static const attn_capabilities_t inner_capabilities = {MM_COMMON, .head_sizes = inner_head_sizes,
                                                       .num_head_sizes = 1, .preferred_block_size = 16,
                                                       .features = MM_INNER_FEATURES};
#define NONE(type, dk, dv, paged)    0
#define ENCODER(type, dk, dv, paged) ((type) != FLASH_E4M3 && (dk) == (dv) && !(paged))
static const flash_kernels inner_kernels = FLASH_KERNELS(NONE, ENCODER);
const flash_backend mm_inner_backend = {
    .name = "MM_ENCODER_ATTN", .capabilities = &inner_capabilities, .kernels = &inner_kernels};

static const attn_backend_ops_t ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = mm_supports,
    .open = mm_open,
    .close = mm_close,
    .kv_cache_shape = mm_kv_cache_shape,
    .space_needed = mm_space_needed,
    .build_metadata = mm_build_metadata,
    .forward = mm_forward,
    .prepare_weights = mm_prepare_weights,
};

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "MM_ENCODER_ATTN",
    .doc = "encoders of images, video and sound: flash's kernels for every head size up to 256, fp8 with "
           "static or "
           "dynamic scales",
    .capabilities = &mm_capabilities,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&backend};

static const attn_option_spec_t options[] = {
    [FLASH_OPTION_ARCH] = OPTION_ARCH,
};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,   .name = "mm_encoder", .num_backends = 1,
    .num_options = 1, .backends = backends, .options = options,
};
