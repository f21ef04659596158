/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the plugin mla_sparse: FLASHMLA_SPARSE. */
#include "../common/descriptor.h"
#include "kernels/cuda/sparse/sparse_attend_sm90.h"
#include "../common/latent/mla_table.h"
#include "indexer_instance.h"
#include "widen.h"

static const attn_capabilities_t capabilities = {
    MLA_TABLE,
    .roles = ATTN_BIT(ATTN_ROLE_MLA_SPARSE),
    .features = MLA_TABLE_FEATURES | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4 |
                ATTN_F_OUT_SCALE_UE8M0,
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .kv_cache_dtypes = MLA_TABLE_KV | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_DS_MLA),
};
static const mla_kernels kernels = {.sparse = sparse_attend_sm90};
static const mla_backend shared = {.name = "FLASHMLA_SPARSE",
                                   .capabilities = &capabilities,
                                   .device = &mla_cuda,
                                   .supports = mla_supports,
                                   .kernels = &kernels,
                                   .widen = &widen_ops};

static int open_backend(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    return mla_open(&shared, problem, device, options, num_options, host, instance, error);
}

static const attn_backend_ops_t sparse_ops = {
    MLA_TABLE_OPS,
    .open = open_backend,
    .get_extension = indexer_get_extension,
};

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "FLASHMLA_SPARSE",
    .doc = "latent attention over the tokens that an indexer selected, 16-bit and 656-byte caches",
    .capabilities = &capabilities,
    .ops = &sparse_ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,       .name = "mla_sparse",
    .num_backends = 1,    .num_options = MLA_NUM_SPARSE_OPTIONS,
    .backends = backends, .options = mla_sparse_options,
};
