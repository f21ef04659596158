/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel attends for an instance, and its calls. */
#include "kernels/cuda/latent/mla_decode_sm90.h"
#include "mla_instance.h"

int mla_choose_kernel(attn_instance_t *in, attn_error_t *error) {
    mla_config_input input = {.compute_capability = in->compute_capability,
                              .num_sms = in->num_sms,
                              .heads = in->heads,
                              .latent = in->latent,
                              .value = in->value,
                              .cache_kind = in->cache_kind,
                              .is_sparse = in->problem.topk != 0,
                              .scale = in->problem.scale,
                              .portable = in->portable};
    gpu_device_guard guard;
    int status = gpu_enter(in->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    const mla_decode_sm90_kernels *decode = in->backend->kernels->decode;
    int e = decode != NULL && in->compute_capability == 90 && !in->portable
                ? decode->clusters(&input.clusters)
                : 0;
    in->config = mla_config_choose(&input);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "preparing the kernels of Hopper") : ATTN_OK;
}

int mla_attend(const attn_instance_t *in, const mla_attend_params *params, int num_items, void *stream) {
    if (in->config.kernel == MLA_KERNEL_SM90)
        return in->backend->kernels->decode->run(in->encode_tiled, params, in->config.ctas, in->config.parts,
                                                 stream);
    if (in->config.kernel == MLA_KERNEL_SPARSE_SM90)
        return in->backend->kernels->sparse(params, num_items, in->config.parts * in->config.ctas, stream);
    return in->dtype == MLA_BF16 ? mla_attend_bf16(params, num_items, stream)
                                 : mla_attend_f16(params, num_items, stream);
}

int mla_merge_pieces(const attn_instance_t *in, const mla_attend_params *params, int num_splits,
                     void *stream) {
    return in->config.kernel == MLA_KERNEL_SM90
               ? in->backend->kernels->decode->merge(params, num_splits, stream)
               : mla_combine(params, num_splits, in->compute_capability >= 90, stream);
}

int mla_load_kernel(attn_instance_t *in) {
    mla_attend_params prepare = {
        .latent_rank = in->latent, .stages = in->stages, .dtype = in->dtype, .cache_kind = in->cache_kind};
    if (in->config.kernel == MLA_KERNEL_SM90)
        return in->backend->kernels->decode->load(&in->encode_tiled, in->dtype, in->cache_kind,
                                                  in->config.ctas);
    const int e = mla_attend(in, &prepare, 0, NULL);
    prepare.cache_kind = MLA_CACHE_16; /* that of a copy */
    return e || in->widen_pages == 0 ? e : mla_attend(in, &prepare, 0, NULL);
}
