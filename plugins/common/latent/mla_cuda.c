/* SPDX-License-Identifier: Apache-2.0 */
/* mla_cuda: the device of the plugins with compiled kernels, through the CUDA runtime; projections by cuBLAS
 * where that is there. */
#include "kernels/cuda/latent/mla_launch.h"
#include "mla_instance.h"

#include <stdio.h>

static int find(attn_instance_t *in, const attn_device_t *device, const attn_option_value_t *options,
                uint32_t num_options, attn_error_t *error) {
    gpu_device d;
    in->prefill_choice = in->backend->prefill != NULL && num_options > MLA_OPTION_PREFILL
                             ? (int)options[MLA_OPTION_PREFILL].i
                             : MLA_PREFILL_AUTO;
    in->portable = num_options > MLA_OPTION_ARCH && options[MLA_OPTION_ARCH].i == 1;
    int status = gpu_find_device(device, in->backend->name, &d, error);
    if (status != ATTN_OK) return status;
    in->device_id = d.id, in->num_sms = d.num_sms;
    in->compute_capability = d.major * 10 + d.minor;
    if (!d.has_sm90a) in->portable = 1;
    const size_t fixed = 2048; /* static shared memory of the kernel, rounded up */
    in->stages = mla_attend_smem(in->latent, 2) + fixed <= (size_t)d.smem_optin ? 2 : 1;
    const size_t wanted = mla_attend_smem(in->latent, in->stages) + fixed;
    if (d.major < 8 || wanted > (size_t)d.smem_optin)
        return attn_fail(
            error, ATTN_E_DEVICE, "device",
            "compute capability %d.%d with %d bytes of shared memory for a block; 8.0 and %zu bytes are "
            "needed",
            d.major, d.minor, d.smem_optin, wanted);
    return ATTN_OK;
}

/* How cuBLAS multiplies depends on the number of tokens, so not with batch invariance. */
static int open_blas(attn_instance_t *in, int choice, const attn_host_t *host, attn_error_t *error) {
    const int is_invariant = (attn_problem_features(&in->problem) & ATTN_F_BATCH_INVARIANT) != 0;
    mla_blas_input input = {.heads = in->heads,
                            .latent = in->latent,
                            .nope = in->nope,
                            .value = in->value,
                            .dtype = in->dtype,
                            .is_sm90 = in->compute_capability == 90,
                            .max_tokens = in->plan.slice_tokens,
                            .up_rows = in->up_rows,
                            .up_elements = in->up_elements};
    const char *why = "results of batch-invariant layers may not depend on the number of tokens";
    if (choice == MLA_PROJECTIONS_OWN || !in->projects) return ATTN_OK;
    if (!is_invariant) in->blas = mla_blas_open(&input, &why);
    if (in->blas != NULL || (is_invariant && choice == MLA_PROJECTIONS_AUTO)) return ATTN_OK;
    if (choice == MLA_PROJECTIONS_CUBLAS)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "projections",
                         "projections by cuBLAS were requested, but %s; set option projections to auto", why);
    if (host != NULL && host->log != NULL) {
        char line[256];
        snprintf(line, sizeof line, "%s multiplies by a slower kernel of its own instead of cuBLAS: %s",
                 in->backend->name, why);
        host->log(host->ctx, ATTN_LOG_INFO, line);
    }
    return ATTN_OK;
}

static int load(attn_instance_t *in, const attn_option_value_t *options, uint32_t num_options,
                const attn_host_t *host, attn_error_t *error) {
    const int projections =
        num_options > MLA_OPTION_PROJECTIONS ? (int)options[MLA_OPTION_PROJECTIONS].i : MLA_PROJECTIONS_AUTO;
    int e = mla_load_kernel(in);
    if (!e) e = mla_project(NULL, NULL);
    return e ? gpu_fail(error, e, "loading the kernels") : open_blas(in, projections, host, error);
}

static void close_device(attn_instance_t *in) {
    mla_blas_close(in->blas);
}

static int enter(const attn_instance_t *in, gpu_device_guard *guard, attn_error_t *error) {
    return gpu_enter(in->device_id, guard, error);
}
static void leave(const attn_instance_t *in, const gpu_device_guard *guard) {
    (void)in;
    gpu_leave(guard);
}
static int fail(const attn_instance_t *in, attn_error_t *error, int code, const char *what) {
    (void)in;
    return gpu_fail(error, code, what);
}
static int copy(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
                attn_error_t *error) {
    return gpu_copy_to_device(in->device_id, to, from, bytes, stream, error);
}

int mla_multiply(const attn_instance_t *in, mla_product product, const mla_project_params *p, void *stream) {
    const int64_t rows = (int64_t)p->tokens * p->num_heads;
    /* cuBLAS writes the rows of all tokens: into the workspace it may, into the output only where they
     * are exact; and values of few tokens are a matter of starting early (mla_launch.h) */
    const int is_own = product == MLA_ABSORB
                           ? p->rope != NULL || rows <= in->config.own_rows
                           : product == MLA_VALUES && (in->plan.is_bound || p->tokens <= MLA_FEW_TOKENS);
    if (in->blas != NULL && !is_own && mla_blas_multiply(in->blas, product, p, stream) == 0) return 0;
    return mla_project(p, stream);
}

static int write_cache(const attn_instance_t *in, const mla_write_params *p, void *stream) {
    (void)in;
    return mla_write_cache(p, stream);
}
static int copy_weights(const attn_instance_t *in, void *to, const void *from, int64_t rows, int64_t from_row,
                        int is_e4m3, const mla_weight_scale *scale, void *stream) {
    return mla_copy_weights(to, from, rows, in->latent, from_row, in->dtype, is_e4m3, *scale, stream);
}
static int copy_rows(const attn_instance_t *in, const mla_copy_params *p, void *stream) {
    (void)in;
    return mla_copy_rows(p, stream);
}
static int zero_rows(const attn_instance_t *in, void *out, int64_t rows, int size, int64_t token,
                     int64_t head, void *stream) {
    return mla_zero_rows(out, rows, in->heads, size, token, head, stream);
}
static int quantise(const attn_instance_t *in, const quantise_params *p, void *stream) {
    (void)in;
    return quantise_rows(p, stream);
}

const mla_device_ops mla_cuda = {.find = find,
                                 .choose = mla_choose_kernel,
                                 .load = load,
                                 .close = close_device,
                                 .enter = enter,
                                 .leave = leave,
                                 .fail = fail,
                                 .copy = copy,
                                 .attend = mla_attend,
                                 .merge = mla_merge_pieces,
                                 .multiply = mla_multiply,
                                 .write_cache = write_cache,
                                 .copy_weights = copy_weights,
                                 .copy_rows = copy_rows,
                                 .zero_rows = zero_rows,
                                 .quantise = quantise};
