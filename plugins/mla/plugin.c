/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the plugin mla: FLASHMLA. */
#include "mla_prefill.h"

#ifndef ATTN_BUILD_ID
#define ATTN_BUILD_ID ""
#endif

static const attn_range_t head_sizes[] = {{320, 320, 0}, {576, 576, 0}};
static const attn_block_size_t block_sizes[] = {{16, 1}};
/* GPUs with 160 KiB of shared memory for a block; machine code for 8.0 and 9.0, PTX for the rest */
static const attn_range_t compute_capabilities[] = {{80, 80, 1}, {87, 87, 1}, {90, 90, 1}, {100, 110, 1}};

const attn_capabilities_t mla_capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_ALWAYS,
    .roles = ATTN_BIT(ATTN_ROLE_MLA),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16) |
                       ATTN_BIT(ATTN_KV_FP8_E4M3),
    .features = ATTN_F_LSE | ATTN_F_BATCH_INVARIANT | ATTN_F_CAPTURE | ATTN_F_KV_CONNECTOR |
                ATTN_F_BLOCK_STRIDE | ATTN_F_WEIGHTS | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP,
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3),
    .device_types = ATTN_BIT(kDLCUDA),
    .head_sizes = head_sizes,
    .num_head_sizes = 2,
    .block_sizes = block_sizes,
    .num_block_sizes = 1,
    .compute_capabilities = compute_capabilities,
    .num_compute_capabilities = 4,
    .preferred_block_size = 64,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .reorder_threshold = 128, /* semantics 4.6 */
    .spec_as_decode = 1,
};
const char mla_backend_name[] = "FLASHMLA";
const mla_sparse_ops *const mla_backend_sparse = NULL;
const mla_prefill_ops *const mla_backend_prefill = &mla_prefill_functions;

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = mla_backend_name,
    .doc = "latent attention over every token in the absorbed form, any mix of prefill and decode",
    .capabilities = &mla_capabilities,
    .ops = &mla_ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "mla",
    .version = "0.1.0",
    .vendor = "libattn",
    .license = "Apache-2.0",
    .build_id = ATTN_BUILD_ID,
    .num_backends = 1,
    .num_options = MLA_NUM_DENSE_OPTIONS,
    .backends = backends,
    .options = mla_options,
};
