/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of TRITON_MLA, what its table cannot say, and compiling ahead of time. */
#include "latent_backend.h"

#define MLA_TABLE_OWN_SIZES
#include "../common/latent/mla_table.h"
#include "../common/problem_rules.h"

#include <attn/draft/attn_compile.h>

static const attn_range_t latent_sizes[] = {{32, 1280, 16}};
static const attn_range_t latent_capabilities[] = {{75, 75, 1}, {80, 129, 1}};

static const attn_capabilities_t capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_ALWAYS,
    .roles = ATTN_BIT(ATTN_ROLE_MLA),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .kv_cache_dtypes = MLA_TABLE_KV | ATTN_BIT(ATTN_KV_FP8_E4M3),
    .features = MLA_TABLE_FEATURES | ATTN_F_NON_CAUSAL, /* with ATTN_F_LATENT, semantics 7.11 */
    .device_types = ATTN_BIT(kDLCUDA),
    .head_sizes = latent_sizes,
    .num_head_sizes = 1,
    .block_sizes = mla_block_sizes,
    .num_block_sizes = 1,
    .compute_capabilities = latent_capabilities,
    .num_compute_capabilities = 2,
    .preferred_block_size = 64,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .spec_as_decode = 1,
};

int latent_arch_of(const attn_option_value_t *options, uint32_t num_options) {
    static const int archs[] = {0, 75, 80, 86, 89};
    return num_options > TRITON_OPTION_ARCH ? archs[options[TRITON_OPTION_ARCH].i] : 0;
}

static int page_of(const attn_problem_t *p) {
    return (int)(p->block_size ? p->block_size : capabilities.preferred_block_size);
}

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32];
    if (p->kv_lora_rank < 16 || p->kv_lora_rank > 1024 || p->kv_lora_rank % 16 != 0)
        attn_add_reason(r, ATTN_REASON_MLA, "kv_lora_rank", NUMBER(have, p->kv_lora_rank),
                        "a multiple of 16 up to 1024",
                        "kv_lora_rank is %u; multiples of 16 up to 1024 are served", p->kv_lora_rank);
    if (p->qk_rope_head_dim < 16 || p->qk_rope_head_dim > 256 || p->qk_rope_head_dim % 16 != 0)
        attn_add_reason(r, ATTN_REASON_MLA, "qk_rope_head_dim", NUMBER(have, p->qk_rope_head_dim),
                        "a multiple of 16 up to 256",
                        "qk_rope_head_dim is %u; multiples of 16 up to 256 are served", p->qk_rope_head_dim);
}

static void check_device(const attn_problem_t *p, const attn_device_t *device, attn_reasons_t *r) {
    const int is_known = device != NULL && device->compute_capability >= LATENT_LEAST_CC;
    const int cc = is_known ? device->compute_capability : 86; /* one with little memory */
    latent_config config;
    if (cc == 75 && p->dtype == ATTN_DTYPE_BFLOAT16)
        attn_add_reason(r, ATTN_REASON_DTYPE, "dtype", "bfloat16", "float16",
                        "tensor cores of sm_75 have no bfloat16; float16 is served there");
    if (r->count == 0 && latent_configure(p, page_of(p), cc, &config) != 0)
        attn_add_reason(r, ATTN_REASON_MLA, "kv_lora_rank", "too large", "smaller sizes",
                        "kv_lora_rank %u and qk_rope_head_dim %u do not fit the %d bytes of shared memory of "
                        "sm_%d",
                        p->kv_lora_rank, p->qk_rope_head_dim, triton_smem_of_block(cc), cc);
}

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    attn_problem_t p;
    attn_device_t dev;
    attn_reasons_t uncounted = {.struct_size = sizeof uncounted};
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status == ATTN_OK && device != NULL)
        status = attn_intake_known(&dev, sizeof dev, device, "device", NULL);
    if (status != ATTN_OK) return status;
    if (reasons == NULL) reasons = &uncounted;
    mla_check_problem(&p, reasons);
    check_sizes(&p, reasons);
    check_device(&p, device != NULL ? &dev : NULL, reasons);
    return ATTN_OK;
}

static const mla_backend shared = {
    .name = "TRITON_MLA", .capabilities = &capabilities, .device = &latent_device, .supports = supports};

static int open_backend(const attn_problem_t *problem, const attn_device_t *device,
                        const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                        attn_instance_t **instance, attn_error_t *error) {
    return mla_open(&shared, problem, device, options, num_options, host, instance, error);
}

static int compile(const attn_problem_t *problem, const attn_device_t *device,
                   const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                   attn_compile_report_t *report, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t dev;
    latent_config config;
    triton_code_t code;
    const triton_toolchain_t tools = triton_toolchain_of(options, num_options, host);
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK && (dev.type != (int)kDLCUDA || dev.compute_capability < LATENT_LEAST_CC))
        status = attn_fail(error, ATTN_E_UNSUPPORTED, "device",
                           "TRITON_MLA compiles for sm_75 and later; compute capability %d of device type %d "
                           "was given",
                           (int)dev.compute_capability, (int)dev.type);
    if (status == ATTN_OK) status = problem_check(&p, &dev, &capabilities, shared.name, supports, error);
    if (status == ATTN_OK && latent_configure(&p, page_of(&p), dev.compute_capability, &config) != 0)
        status = attn_fail(error, ATTN_E_UNSUPPORTED, "kv_lora_rank",
                           "rank %u and rope %u do not fit the shared memory of sm_%d", p.kv_lora_rank,
                           p.qk_rope_head_dim, (int)dev.compute_capability);
    if (status == ATTN_OK) status = latent_make_code(&config, &tools, &code, error);
    return status == ATTN_OK ? triton_give_report(report, &code, error) : status;
}

static const attn_compile_extension_t compile_extension = {.struct_size = sizeof(attn_compile_extension_t),
                                                           .compile = compile};

static const void *get_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    return id != NULL && strcmp(id, ATTN_COMPILE_EXTENSION) == 0 ? &compile_extension : NULL;
}

static const attn_backend_ops_t ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = supports,
    .open = open_backend,
    .close = mla_close,
    .kv_cache_shape = mla_kv_cache_shape,
    .space_needed = mla_space_needed,
    .build_metadata = mla_build_metadata,
    .update_block_table = mla_update_block_table,
    .update_kv_cache = mla_update_kv_cache,
    .forward = mla_forward,
    .prepare_weights = mla_prepare_weights,
    .get_extension = get_extension,
};

const attn_backend_t latent_backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "TRITON_MLA",
    .doc = "latent attention compiled by NVRTC for the problem at hand: any rank and rope, every GPU from "
           "sm_75",
    .capabilities = &capabilities,
    .ops = &ops,
};
