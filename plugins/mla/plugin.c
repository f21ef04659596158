/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of the plugin mla: FLASHMLA. */
#include "../common/descriptor.h"
#include "../common/gpu_merge.h"
#include "kernels/cuda/dense/flash_kernels.h"
#include "kernels/cuda/latent/mla_decode_sm90.h"
#include "mla_prefill.h"
#include "../common/latent/mla_table.h"

static const attn_capabilities_t capabilities = {
    MLA_TABLE,
    .roles = ATTN_BIT(ATTN_ROLE_MLA),
    .kv_cache_dtypes = MLA_TABLE_KV | ATTN_BIT(ATTN_KV_FP8_E4M3),
    .features = MLA_TABLE_FEATURES | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4 |
                ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_QUANT_QUERY |
                ATTN_F_NON_CAUSAL | /* with ATTN_F_LATENT, semantics 7.11 */
                ATTN_F_DEVICE_LENGTHS,
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .reorder_threshold = 128, /* semantics 4.6 */
};
/* The multi-head form has keys and values of 192 and 128 columns, or 256 and 256, in rows. */
#define NONE(type, dk, dv, paged) 0
#define PROJECTED(type, dk, dv, paged)                                                                       \
    ((type) != FLASH_E4M3 && !(paged) && (((dk) == 192 && (dv) == 128) || ((dk) == 256 && (dv) == 256)))
static const flash_kernels dense_kernels = FLASH_KERNELS(NONE, PROJECTED);
static const mla_kernels kernels = {.decode = &mla_decode_sm90_all};
static const mla_backend shared = {.name = "FLASHMLA",
                                   .capabilities = &capabilities,
                                   .device = &mla_cuda,
                                   .supports = mla_supports,
                                   .kernels = &kernels,
                                   .prefill = &mla_prefill_functions,
                                   .dense = &dense_kernels};

static int open_backend(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    return mla_open(&shared, problem, device, options, num_options, host, instance, error);
}

static const attn_backend_ops_t mla_ops = {MLA_TABLE_OPS, .open = open_backend,
                                           .get_extension = gpu_merge_extension};

static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "FLASHMLA",
    .doc = "latent attention over every token: decodes absorbed, prompts over up-projected keys, in any mix",
    .capabilities = &capabilities,
    .ops = &mla_ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    PLUGIN_OF_TREE,       .name = "mla",          .num_backends = 1, .num_options = MLA_NUM_DENSE_OPTIONS,
    .backends = backends, .options = mla_options,
};
