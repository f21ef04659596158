/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c: the descriptor of the reference plugin: one backend, REFERENCE, on CPUs, with every feature. */
#include "../common/descriptor.h"
#include "indexer_reference.h"
#include "ref_capabilities.h"
#include "ref_mla.h"

const attn_capabilities_t ref_capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |
             ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) | ATTN_BIT(ATTN_ROLE_MM_ENCODER) | ATTN_BIT(ATTN_ROLE_MLA) |
             ATTN_BIT(ATTN_ROLE_MLA_PREFILL) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT64) | ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) |
                  ATTN_BIT(ATTN_DTYPE_BFLOAT16) | ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16) |
                       ATTN_BIT(ATTN_KV_FLOAT32) | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_E5M2) |
                       ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_FP8_PER_TOKEN_HEAD) |
                       ATTN_BIT(ATTN_KV_INT4_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_NVFP4) |
                       ATTN_BIT(ATTN_KV_FP8_DS_MLA) | ATTN_BIT(ATTN_KV_TURBOQUANT_K8V4) |
                       ATTN_BIT(ATTN_KV_TURBOQUANT_4BIT_NC) | ATTN_BIT(ATTN_KV_TURBOQUANT_K3V4_NC) |
                       ATTN_BIT(ATTN_KV_TURBOQUANT_3BIT_NC) | ATTN_BIT(ATTN_KV_INT8_STATIC_V) |
                       ATTN_BIT(ATTN_KV_INT8_K_ONLY),
    .features = ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_SINK |
                ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_CHUNKED_LOCAL | ATTN_F_CHUNK_LOOKBACK |
                ATTN_F_RSWA | ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_QQ_BIAS |
                ATTN_F_DIFF_KV | ATTN_F_LSE | ATTN_F_PER_HEAD_SCALES | ATTN_F_QUANT_QUERY |
                ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4 | ATTN_F_OUT_SCALE_UE8M0 |
                ATTN_F_WRITE_IN_FORWARD | ATTN_F_SEPARATE_KV | ATTN_F_CASCADE | ATTN_F_BATCH_INVARIANT |
                ATTN_F_KV_CONNECTOR | ATTN_F_BLOCK_STRIDE | ATTN_F_WEIGHTS | ATTN_F_CONTIGUOUS_KV |
                ATTN_F_FP8_ATTENTION | ATTN_F_LATENT | ATTN_F_REL_BIAS | ATTN_F_KEY_LENGTHS |
                ATTN_F_DEVICE_LENGTHS,
    .device_types = ATTN_BIT(kDLCPU),
    .preferred_block_size = 16,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
};

const attn_backend_ops_t ref_ops = {
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
    .get_extension = ref_get_extension,
};

static const attn_backend_t ref_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "REFERENCE",
    .doc = "plain C in double precision with every feature: the oracle, not for speed",
    .capabilities = &ref_capabilities,
    .ops = &ref_ops,
};

static const attn_backend_t *const ref_backends[] = {&ref_backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,
    .name = "reference",
    .num_backends = 1,
    .backends = ref_backends,
};
