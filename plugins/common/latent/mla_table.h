/* SPDX-License-Identifier: Apache-2.0 */
/* What the tables of mla and mla_sparse, capabilities and operations, have in common. Included by their
 * plugin.c alone. */
#ifndef MLA_TABLE_H
#define MLA_TABLE_H

#include "mla_instance.h"

static const attn_block_size_t mla_block_sizes[] = {{16, 1}};
#ifndef MLA_TABLE_OWN_SIZES /* a backend with sizes and devices of its own */
static const attn_range_t mla_head_sizes[] = {{320, 320, 0}, {576, 576, 0}};
/* GPUs with 160 KiB of shared memory for a block; machine code for 8.0 and 9.0, PTX for the rest */
static const attn_range_t mla_compute_capabilities[] = {{80, 80, 1}, {87, 87, 1}, {90, 90, 1}, {100, 110, 1}};
#endif

#define MLA_TABLE_KV (ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_BFLOAT16))
#define MLA_TABLE_FEATURES                                                                                   \
    (ATTN_F_LSE | ATTN_F_BATCH_INVARIANT | ATTN_F_CAPTURE | ATTN_F_KV_CONNECTOR | ATTN_F_BLOCK_STRIDE |      \
     ATTN_F_WEIGHTS | ATTN_F_LATENT)
#define MLA_TABLE                                                                                            \
    .struct_size = sizeof(attn_capabilities_t), .graph_support = ATTN_GRAPH_ALWAYS,                          \
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),                                  \
    .device_types = ATTN_BIT(kDLCUDA), .head_sizes = mla_head_sizes, .num_head_sizes = 2,                    \
    .block_sizes = mla_block_sizes, .num_block_sizes = 1, .compute_capabilities = mla_compute_capabilities,  \
    .num_compute_capabilities = 4, .preferred_block_size = 64, .query_len_support = ATTN_QUERY_LEN_VARLEN,   \
    .spec_as_decode = 1

#define MLA_TABLE_OPS                                                                                        \
    .struct_size = sizeof(attn_backend_ops_t), .supports_combination = mla_supports, .close = mla_close,     \
    .kv_cache_shape = mla_kv_cache_shape, .space_needed = mla_space_needed,                                  \
    .build_metadata = mla_build_metadata, .update_block_table = mla_update_block_table,                      \
    .update_kv_cache = mla_update_kv_cache, .forward = mla_forward, .prepare_weights = mla_prepare_weights

#endif
