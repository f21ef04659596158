/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the plugin mla: FLASHMLA. */
#include "../common/descriptor.h"
#include "mla_prefill.h"
#include "mla_table.h"

const attn_capabilities_t mla_capabilities = {
    MLA_TABLE,
    .roles = ATTN_BIT(ATTN_ROLE_MLA),
    .kv_cache_dtypes = MLA_TABLE_KV | ATTN_BIT(ATTN_KV_FP8_E4M3),
    .features = MLA_TABLE_FEATURES | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_QUANT_QUERY,
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3),
    .reorder_threshold = 128, /* semantics 4.6 */
};
const char mla_backend_name[] = "FLASHMLA";
const mla_sparse_ops *const mla_backend_sparse = NULL;
const mla_prefill_ops *const mla_backend_prefill = &mla_prefill_functions;

static const attn_backend_ops_t mla_ops = {MLA_TABLE_OPS};

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = mla_backend_name,
    .doc = "latent attention over every token: decodes absorbed, prompts over up-projected keys, in any mix",
    .capabilities = &mla_capabilities,
    .ops = &mla_ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,       .name = "mla",          .num_backends = 1, .num_options = MLA_NUM_DENSE_OPTIONS,
    .backends = backends, .options = mla_options,
};
