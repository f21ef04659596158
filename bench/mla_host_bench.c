/* SPDX-License-Identifier: Apache-2.0 */
/* The host time of FLASHMLA and FLASHMLA_SPARSE themselves: their own code of open, build_metadata and
 * forward over a CUDA runtime and launchers that do nothing, so that what is left is everything but the
 * driver. Needs no GPU. Usage: mla_host_bench */
#include "../tests/gpu/plan_host.h"
#include "host_bench.h"
#include "kernels/cuda/dense/prefill_sm90.h"
#include "kernels/cuda/latent/mla_decode_sm90.h"
#include "kernels/cuda/output/quantise_rows.h"
#include "plugins/mla/mla_prefill.h"
#include "kernels/cuda/latent/mla_prefill_params.h"

/* Both descriptors' parts. */
static const attn_range_t sizes[] = {{576, 576, 0}};
static const attn_capabilities_t capabilities = {.struct_size = sizeof(attn_capabilities_t),
                                                 .roles =
                                                     ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE),
                                                 .dtypes = ATTN_BIT(ATTN_DTYPE_BFLOAT16),
                                                 .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO),
                                                 .device_types = ATTN_BIT(kDLCUDA),
                                                 .head_sizes = sizes,
                                                 .num_head_sizes = 1,
                                                 .features = ATTN_F_WEIGHTS,
                                                 .preferred_block_size = 64};
static int attend_sparse(const mla_attend_params *p, int items, int ctas, void *stream) {
    (void)items, (void)ctas, (void)stream;
    return launch(p);
}
size_t mla_attend_smem(int latent_rank, int stages) {
    (void)latent_rank, (void)stages;
    return 1024;
}
#define LAUNCHER(NAME, TYPE)                                                                                 \
    int NAME(const TYPE *p, void *stream) {                                                                  \
        (void)stream;                                                                                        \
        return launch(p);                                                                                    \
    }
LAUNCHER(mla_project, mla_project_params)
LAUNCHER(mla_write_cache, mla_write_params)
LAUNCHER(mla_gather, mla_gather_params)
LAUNCHER(mla_spread_rope, mla_spread_params)
LAUNCHER(mla_merge, mla_merge_params)
LAUNCHER(quantise_rows, quantise_params)
LAUNCHER(mla_copy_rows, mla_copy_params)
#define COUNTED(NAME, TYPE)                                                                                  \
    int NAME(const TYPE *p, int count, void *stream) {                                                       \
        (void)stream, (void)count;                                                                           \
        return launch(p);                                                                                    \
    }
COUNTED(mla_attend_bf16, mla_attend_params)
COUNTED(mla_attend_f16, mla_attend_params)
COUNTED(merge, mla_attend_params)
int mla_combine(const mla_attend_params *p, int num_splits, int is_early, void *stream) {
    (void)num_splits, (void)is_early, (void)stream;
    return launch(p);
}
int mla_copy_weights(void *dst, const void *src, int64_t rows, int width, int64_t src_row, int dtype,
                     int is_e4m3, mla_weight_scale scale, void *stream) {
    (void)src, (void)rows, (void)width, (void)src_row, (void)dtype, (void)is_e4m3, (void)scale, (void)stream;
    return launch(dst);
}
int mla_zero_rows(void *out, int64_t rows, int heads, int size, int64_t token, int64_t head, void *stream) {
    (void)rows, (void)heads, (void)size, (void)token, (void)head, (void)stream;
    return launch(out);
}
static int clusters(int *count) {
    *count = 66;
    return 0;
}
static int load(void **encode_tiled, int dtype, int cache_kind, int ctas) {
    (void)encode_tiled, (void)dtype, (void)cache_kind, (void)ctas;
    return 0;
}
static int run(void *encode_tiled, const mla_attend_params *p, int ctas, int parts, void *stream) {
    (void)encode_tiled, (void)ctas, (void)parts, (void)stream;
    return launch(p);
}
static const mla_decode_sm90_kernels decode = {
    .clusters = clusters, .load = load, .run = run, .merge = merge};
static const mla_kernels kernels = {.decode = &decode, .sparse = attend_sparse};
static const mla_backend backend = {.name = "FLASHMLA",
                                    .capabilities = &capabilities,
                                    .device = &mla_cuda,
                                    .supports = mla_supports,
                                    .kernels = &kernels,
                                    .prefill = &mla_prefill_functions};
int flash_has_more(const flash_prefill_config *c) {
    return c != NULL;
}
int flash_runtime_init(flash_runtime *r, const flash_kernels *k, int num_sms, int needs_tensor_maps) {
    (void)needs_tensor_maps;
    r->kernels = k;
    r->num_sms = num_sms;
    return 0;
}
int flash_run_prefill(const flash_params *p, const flash_shape *s, const flash_prefill_config *c, int tiles,
                      const flash_runtime *r, void *stream) {
    (void)s, (void)c, (void)tiles, (void)r, (void)stream;
    return launch(p);
}
int flash_run_prefill_more(const flash_params *p, const flash_prefill_more *m, const flash_shape *s,
                           const flash_prefill_config *c, int tiles, const flash_runtime *r, void *stream) {
    (void)m;
    return flash_run_prefill(p, s, c, tiles, r, stream);
}

static int build(void) {
    return mla_build_metadata(in, &batch, &space, NULL, &error);
}
static int call_forward(void) {
    return mla_forward(in, &forward, &space, NULL, &error);
}

static void bench(const char *name, uint32_t role, uint32_t heads) {
    enum { LATENT = 512, NOPE = 128, VALUE = 128, TOPK = 2048 };
    const attn_problem_t problem = {.struct_size = sizeof problem,
                                    .role = role,
                                    .mask = ATTN_MASK_CAUSAL,
                                    .dtype = ATTN_DTYPE_BFLOAT16,
                                    .num_heads = heads,
                                    .num_kv_heads = 1,
                                    .head_size = LATENT + MLA_ROPE,
                                    .kv_lora_rank = LATENT,
                                    .qk_rope_head_dim = MLA_ROPE,
                                    .qk_nope_head_dim = NOPE,
                                    .v_head_dim = VALUE,
                                    .topk = role == ATTN_ROLE_MLA_SPARSE ? TOPK : 0,
                                    .block_size = HB_PAGE,
                                    .scale = 0.07,
                                    .max_num_seqs = HB_REQS,
                                    .max_num_batched_tokens = HB_TOKENS,
                                    .max_model_len = HB_KEYS};
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA, .compute_capability = 90};
    need(mla_open(&backend, &problem, &device, NULL, 0, &plan_host, &in, &error));
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    need(mla_space_needed(in, &needed, &error));
    space = hb_space_of(&needed);
    int64_t table_shape[2] = {HB_REQS, HB_KEYS / HB_PAGE},
            cache_shape[3] = {1 << 20, HB_PAGE, LATENT + MLA_ROPE},
            query_shape[3] = {HB_TOKENS, heads, NOPE + MLA_ROPE}, output_shape[3] = {HB_TOKENS, heads, VALUE},
            topk_shape[2] = {HB_TOKENS, TOPK}, strides[5][4];
    void *data = space.workspace;
    table = tensor_of(data, ATTN_DTYPE_INT32, 2, table_shape, strides[0]);
    DLTensor cache = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, cache_shape, strides[1]),
             query = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, query_shape, strides[2]),
             output = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, output_shape, strides[3]),
             topk = tensor_of(data, ATTN_DTYPE_INT32, 2, topk_shape, strides[4]);
    forward = (attn_forward_t){.struct_size = sizeof forward,
                               .query = &query,
                               .kv_cache = &cache,
                               .output = &output,
                               .topk_indices = problem.topk != 0 ? &topk : NULL,
                               .weight_space = data,
                               .weight_space_bytes = needed.weight_bytes};
    hb_head(name);
    for (int kind = 0; kind < HB_NUM_BATCHES; kind++)
        hb_row("build_metadata", kind, prepare, build);
    for (int kind = 0; kind < HB_NUM_BATCHES; kind++)
        hb_row("forward", kind, prepare, call_forward);
    mla_close(in);
    free(space.host);
}

int main(void) {
    bench("FLASHMLA, 16 heads, ns by requests", ATTN_ROLE_MLA, 16);
    bench("FLASHMLA, 128 heads, ns by requests", ATTN_ROLE_MLA, 128);
    bench("FLASHMLA_SPARSE, 128 heads, ns by requests", ATTN_ROLE_MLA_SPARSE, 128);
    return launches == 0;
}
