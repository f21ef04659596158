/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the output and its scales, and quantised outputs: the 16-bit output in the workspace, and the
 * kernel that makes e4m3 of its rows. */
#include "../output_scales.h"
#include "flash_instance.h"

int flash_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                       attn_error_t *error) {
    const int is_fp8 = output_is_quantised(in->features), heads = (int)in->problem.num_heads;
    const int status =
        gpu_check_rows(a->output, "output", is_fp8 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : in->problem.dtype, heads,
                       in->dv, tokens, is_fp8 ? 8 : 16, error);
    if (status != ATTN_OK) return status;
    return gpu_check_output_scales(a, in->features, (int64_t)heads * in->dv, tokens, error);
}

const DLTensor *flash_output_begin(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                                   flash_output_view *view) {
    if (!output_is_quantised(in->features)) return a->output;
    const int64_t heads = in->problem.num_heads;
    *view = (flash_output_view){.shape = {in->limits.max_tokens, heads, in->dv},
                                .strides = {heads * in->dv, in->dv, 1}};
    view->t = (DLTensor){.data = (char *)s->workspace + in->output_at,
                         .device = {kDLCUDA, in->device_id},
                         .ndim = 3,
                         .dtype = attn_dl_dtype(in->problem.dtype),
                         .shape = view->shape,
                         .strides = view->strides};
    return &view->t;
}

static quantise_params params_of(const attn_instance_t *in, const DLTensor *output) {
    return (quantise_params){.out = attn_data(output),
                             .out_token = output->strides[0],
                             .out_head = output->strides[1],
                             .num_heads = (int32_t)in->problem.num_heads,
                             .size = in->dv,
                             .dtype = in->out_dtype};
}

int flash_output_finish(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                        int64_t tokens, void *stream) {
    if (!output_is_quantised(in->features)) return 0;
    const DLTensor *scales = a->output_block_scale;
    const flash_step *step = (const flash_step *)(const void *)((const char *)s->metadata + in->step_at);
    quantise_params p = params_of(in, a->output);
    p.num_tokens = &step->num_tokens, p.num_reqs = &step->num_reqs, p.starts = &step->starts;
    p.in = (const char *)s->workspace + in->output_at;
    p.tokens = tokens;
    if (scales == NULL) {
        p.scale = attn_data(a->output_scale);
    } else {
        p.block_scale = attn_data(scales);
        p.block_token = scales->strides[0], p.block_group = scales->strides[1];
        p.group = (int32_t)output_group(a, (int64_t)in->problem.num_heads * in->dv);
    }
    return in->backend->quantise(&p, stream);
}

int flash_output_zero(const attn_instance_t *in, const DLTensor *output, void *stream) {
    if (!output_is_quantised(in->features))
        return flash_zero_rows(attn_data(output), output->shape[0], (int)in->problem.num_heads, in->dv,
                               output->strides[0], output->strides[1], stream);
    quantise_params p = params_of(in, output);
    p.tokens = output->shape[0];
    return in->backend->quantise(&p, stream);
}
