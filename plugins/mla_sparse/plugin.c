/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the plugin mla_sparse: FLASHMLA_SPARSE. */
#include "../common/descriptor.h"
#include "../mla/mla_table.h"
#include "indexer_instance.h"

const attn_capabilities_t mla_capabilities = {
    MLA_TABLE,
    .roles = ATTN_BIT(ATTN_ROLE_MLA_SPARSE),
    .features = MLA_TABLE_FEATURES | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP,
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3),
    .kv_cache_dtypes = MLA_TABLE_KV | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_DS_MLA),
};
const char mla_backend_name[] = "FLASHMLA_SPARSE";
const mla_sparse_ops *const mla_backend_sparse = &mla_sparse_functions;
const mla_prefill_ops *const mla_backend_prefill = NULL;

static const attn_backend_ops_t sparse_ops = {
    MLA_TABLE_OPS,
    .get_extension = indexer_get_extension,
};

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = mla_backend_name,
    .doc = "latent attention over the tokens that an indexer selected, 16-bit and 656-byte caches",
    .capabilities = &mla_capabilities,
    .ops = &sparse_ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,       .name = "mla_sparse",   .num_backends = 1, .num_options = MLA_NUM_OPTIONS,
    .backends = backends, .options = mla_options,
};
