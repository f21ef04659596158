/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels an instance uses, and the Hopper decode kernel on behalf of one. */
#include "mla_decode_sm90.h"
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
    int e = in->compute_capability == 90 && !in->portable ? mla_decode_sm90_clusters(&input.clusters) : 0;
    in->config = mla_config_choose(&input);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "preparing the kernels of Hopper") : ATTN_OK;
}

int mla_run_decode_sm90(const attn_instance_t *in, const mla_attend_params *params, void *stream) {
    return mla_decode_sm90_run(in->encode_tiled, params, in->config.ctas, in->config.parts, stream);
}

int mla_merge_pieces(const attn_instance_t *in, const mla_attend_params *params, int num_splits,
                     void *stream) {
    return in->config.kernel == MLA_KERNEL_SM90 ? mla_decode_sm90_merge(params, num_splits, stream)
                                                : mla_combine(params, num_splits, stream);
}

int mla_load_decode_sm90(attn_instance_t *in) {
    return mla_decode_sm90_load(&in->encode_tiled, in->dtype, in->cache_kind, in->config.ctas);
}
