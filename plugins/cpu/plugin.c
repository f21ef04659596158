/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the cpu plugin: one backend, CPU_ATTN, its capabilities and its options. */
#include "../common/descriptor.h"
#include "cpu_instance.h"

static const attn_range_t head_sizes[] = {{1, 1024, 1}};

const attn_capabilities_t cpu_capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |
             ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) | ATTN_BIT(ATTN_ROLE_MM_ENCODER) | ATTN_BIT(ATTN_ROLE_MLA) |
             ATTN_BIT(ATTN_ROLE_MLA_SPARSE),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) |
                  ATTN_BIT(ATTN_DTYPE_BFLOAT16) | ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16) |
                       ATTN_BIT(ATTN_KV_FLOAT32) | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_E5M2) |
                       ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_FP8_PER_TOKEN_HEAD) |
                       ATTN_BIT(ATTN_KV_INT4_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_NVFP4) |
                       ATTN_BIT(ATTN_KV_TURBOQUANT_K8V4) | ATTN_BIT(ATTN_KV_TURBOQUANT_4BIT_NC) |
                       ATTN_BIT(ATTN_KV_TURBOQUANT_K3V4_NC) | ATTN_BIT(ATTN_KV_TURBOQUANT_3BIT_NC) |
                       ATTN_BIT(ATTN_KV_INT8_STATIC_V) | ATTN_BIT(ATTN_KV_INT8_K_ONLY) |
                       ATTN_BIT(ATTN_KV_FP8_DS_MLA),
    .features = ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_SINK |
                ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_CHUNKED_LOCAL | ATTN_F_CHUNK_LOOKBACK |
                ATTN_F_RSWA | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_QQ_BIAS |
                ATTN_F_DIFF_KV | ATTN_F_LSE | ATTN_F_PER_HEAD_SCALES | ATTN_F_QUANT_QUERY |
                ATTN_F_SEPARATE_KV | ATTN_F_CASCADE | ATTN_F_BATCH_INVARIANT | ATTN_F_KV_CONNECTOR |
                ATTN_F_BLOCK_STRIDE | ATTN_F_LATENT | ATTN_F_WEIGHTS | ATTN_F_REL_BIAS | ATTN_F_KEY_LENGTHS |
                ATTN_F_DEVICE_LENGTHS | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4 |
                ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_WRITE_IN_FORWARD,
    .device_types = ATTN_BIT(kDLCPU),
    .head_sizes = head_sizes,
    .num_head_sizes = 1,
    .head_sizes_v = head_sizes,
    .num_head_sizes_v = 1,
    .preferred_block_size = 16,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .spec_as_decode = 1,
};

const attn_option_spec_t cpu_options[CPU_NUM_OPTIONS] = {
    [CPU_OPTION_LEVEL] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_ENUM,
         .name = "level",
         .doc =
             "instruction set: auto takes the best that this CPU has; naming one that it lacks is an error",
         .default_value = "auto",
         .choices = "auto generic avx2 avx512 avx512bf16 neon neonbf16 sve256"},
    [CPU_OPTION_NUM_THREADS] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_INT,
         .name = "num_threads",
         .doc = "threads of a call; 0 takes what OpenMP would give when the instance is opened",
         .default_value = "0",
         .min_int = 0,
         .max_int = 1024},
};

static const attn_backend_ops_t cpu_ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = cpu_supports,
    .open = cpu_open,
    .close = cpu_close,
    .kv_cache_shape = cpu_kv_cache_shape,
    .space_needed = cpu_space_needed,
    .build_metadata = cpu_build_metadata,
    .update_block_table = cpu_update_block_table,
    .update_kv_cache = cpu_update_kv_cache,
    .forward = cpu_forward,
    .prepare_weights = cpu_prepare_weights,
    .get_extension = cpu_get_extension,
};

static const attn_backend_t cpu_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "CPU_ATTN",
    .doc = "fast attention on CPUs: AVX-512, AVX2 or plain vectors, chosen at run time; OpenMP threads",
    .capabilities = &cpu_capabilities,
    .ops = &cpu_ops,
};

static const attn_backend_t *const cpu_backends[] = {&cpu_backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,           .name = "cpu",          .num_backends = 1, .num_options = CPU_NUM_OPTIONS,
    .backends = cpu_backends, .options = cpu_options,
};
