/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the output and its scales, and quantised outputs: the 16-bit output in the workspace, and the
 * kernel that makes e4m3 of its rows. */
#include "../output_scales.h"
#include "flash_instance.h"

int flash_check_output_rows(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                            attn_error_t *error) {
    const int is_quantised = output_is_quantised(in->features);
    const int step = (in->features & ATTN_F_OUT_NVFP4) != 0 ? 4 : is_quantised ? 8 : 16;
    return gpu_check_rows(a->output, "output",
                          is_quantised ? output_storage(in->features) : in->problem.dtype,
                          in->problem.num_heads, attn_output_columns(&in->problem), tokens, step, error);
}

int flash_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                       attn_error_t *error) {
    const int heads = (int)in->problem.num_heads;
    const int status = flash_check_output_rows(in, a, tokens, error);
    if (status != ATTN_OK) return status;
    return gpu_check_output_scales(a, in->features, (int64_t)heads * in->dv, tokens, error);
}

const DLTensor *flash_output_begin(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                                   gpu_output_view *view) {
    if (!output_is_quantised(in->features)) return a->output;
    gpu_output_view_set(view, (char *)s->workspace + in->output_at, in->device_id, in->problem.dtype,
                        in->limits.max_tokens, in->problem.num_heads, in->dv);
    return &view->t;
}

int flash_output_finish(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                        int64_t tokens, void *stream) {
    if (!output_is_quantised(in->features)) return 0;
    const flash_step *step = (const flash_step *)(const void *)((const char *)s->metadata + in->step_at);
    quantise_params p = gpu_output_params(a, in->features, in->problem.num_heads, in->dv, in->out_dtype);
    p.num_tokens = &step->num_tokens, p.num_reqs = &step->num_reqs, p.starts = &step->starts;
    p.in = (const char *)s->workspace + in->output_at;
    p.tokens = tokens;
    return in->backend->quantise(&p, stream);
}

int flash_output_zero(const attn_instance_t *in, const DLTensor *output, void *stream) {
    if (!output_is_quantised(in->features))
        return flash_zero_rows(attn_data(output), output->shape[0], (int)in->problem.num_heads, in->dv,
                               output->strides[0], output->strides[1], stream);
    const attn_forward_t unscaled = {.output = output};
    /* bytes of 0 are zeros of either type */
    quantise_params p = gpu_output_params(&unscaled, 0, in->problem.num_heads, in->dv, in->out_dtype);
    p.tokens = output->shape[0];
    if ((in->features & ATTN_F_OUT_NVFP4) != 0) p.kind = QUANTISE_NVFP4, p.group = 16;
    return in->backend->quantise(&p, stream);
}
