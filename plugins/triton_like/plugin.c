/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the triton_like plugin: TRITON_ATTN, kernels specialised to the problem when it is
 * opened. */
#include "../common/descriptor.h"
#include "triton_instance.h"

extern const attn_backend_t latent_backend; /* TRITON_MLA, latent_backend.c */

static const attn_range_t head_sizes[] = {{32, 512, 1}};
static const attn_block_size_t block_sizes[] = {{16, 1}};
static const attn_range_t compute_capabilities[] = {{80, 129, 1}};

const attn_capabilities_t triton_capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_ALWAYS,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |
             ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) | ATTN_BIT(ATTN_ROLE_MM_ENCODER),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16) |
                       ATTN_BIT(ATTN_KV_FLOAT32) | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_E5M2) |
                       ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_FP8_PER_TOKEN_HEAD) |
                       ATTN_BIT(ATTN_KV_INT4_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_TURBOQUANT_K8V4) |
                       ATTN_BIT(ATTN_KV_TURBOQUANT_4BIT_NC) | ATTN_BIT(ATTN_KV_TURBOQUANT_K3V4_NC) |
                       ATTN_BIT(ATTN_KV_TURBOQUANT_3BIT_NC) | ATTN_BIT(ATTN_KV_INT8_STATIC_V) |
                       ATTN_BIT(ATTN_KV_INT8_K_ONLY) | ATTN_BIT(ATTN_KV_NVFP4),
    .features = ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_SINK |
                ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_CHUNKED_LOCAL | ATTN_F_CHUNK_LOOKBACK |
                ATTN_F_RSWA | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_QQ_BIAS |
                ATTN_F_DIFF_KV | ATTN_F_LSE | ATTN_F_PER_HEAD_SCALES | ATTN_F_QUANT_QUERY |
                ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_SEPARATE_KV | ATTN_F_BATCH_INVARIANT |
                ATTN_F_CAPTURE | ATTN_F_KV_CONNECTOR | ATTN_F_CONTIGUOUS_KV | ATTN_F_BLOCK_STRIDE |
                ATTN_F_REL_BIAS | ATTN_F_KEY_LENGTHS | ATTN_F_DEVICE_LENGTHS | ATTN_F_OUT_NVFP4 |
                ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_WRITE_IN_FORWARD,
    .device_types = ATTN_BIT(kDLCUDA),
    .head_sizes = head_sizes,
    .num_head_sizes = 1,
    .head_sizes_v = head_sizes,
    .num_head_sizes_v = 1,
    .block_sizes = block_sizes,
    .num_block_sizes = 1,
    .compute_capabilities = compute_capabilities,
    .num_compute_capabilities = 1,
    .preferred_block_size = 16,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .spec_as_decode = 1,
};

static const attn_backend_ops_t ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = triton_supports,
    .open = triton_open,
    .close = triton_close,
    .kv_cache_shape = triton_kv_cache_shape,
    .space_needed = triton_space_needed,
    .build_metadata = triton_build_metadata,
    .update_block_table = triton_update_block_table,
    .update_kv_cache = triton_update_kv_cache,
    .forward = triton_forward,
    .get_extension = triton_get_extension,
};

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "TRITON_ATTN",
    .doc = "kernels compiled by NVRTC for the problem at hand: any head size from 32, every mask, every GPU "
           "from sm_80",
    .capabilities = &triton_capabilities,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&backend, &latent_backend};

static const attn_option_spec_t options[TRITON_NUM_OPTIONS] = {
    [TRITON_OPTION_CACHE_DIR] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_STRING,
         .name = "cache_dir",
         .doc = "folder that keeps compiled kernels: absolute, the caller's, mode 0700; empty: none",
         .default_value = ""},
    [TRITON_OPTION_NVRTC] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_STRING,
         .name = "nvrtc",
         .doc = "path of libnvrtc; empty: that beside the wheel, the dynamic linker's, CUDA's usual places",
         .default_value = ""},
    [TRITON_OPTION_SEGMENTS] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_INT,
         .name = "segments",
         .doc = "segments into which decode cuts the keys of a request; 0 lets the planner choose",
         .default_value = "0",
         .min_int = 0,
         .max_int = TRITON_MAX_PIECES},
    [TRITON_OPTION_ARCH] = {.struct_size = sizeof(attn_option_spec_t),
                            .type = ATTN_OPTION_ENUM,
                            .name = "arch",
                            .doc =
                                "TRITON_MLA's tiles and code: auto is the device's; an older architecture's "
                                "are for testing what it would run",
                            .default_value = "auto",
                            .choices = "auto sm_75 sm_80 sm_86 sm_89"},
};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,       .name = "triton_like", .num_backends = 2, .num_options = TRITON_NUM_OPTIONS,
    .backends = backends, .options = options,
};
