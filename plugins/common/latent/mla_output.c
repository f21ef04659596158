/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the output and its scales, and the 16-bit output in the workspace where the caller's is
 * quantised. */
#include "../output_scales.h"
#include "mla_instance.h"

int mla_output_is_quantised(const attn_instance_t *in) {
    return output_is_quantised(attn_problem_features(&in->problem));
}

int mla_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                     attn_error_t *error) {
    const int is_fp8 = mla_output_is_quantised(in);
    int status =
        gpu_check_rows(a->output, "output", is_fp8 ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : in->problem.dtype,
                       in->heads, in->value, tokens, is_fp8 ? 8 : 16, error);
    return status == ATTN_OK && tokens > 0
               ? gpu_check_output_scales(a, attn_problem_features(&in->problem),
                                         (int64_t)in->heads * in->value, tokens, error)
               : status;
}

void mla_output_begin(const attn_instance_t *in, const attn_space_t *s, mla_output_view *view) {
    view->shape[0] = in->limits.max_tokens, view->shape[1] = in->heads, view->shape[2] = in->value;
    view->strides[0] = (int64_t)in->heads * in->value, view->strides[1] = in->value, view->strides[2] = 1;
    view->t = (DLTensor){.data = (char *)s->workspace + in->output_at,
                         .device = {kDLCUDA, in->device_id},
                         .ndim = 3,
                         .dtype = attn_dl_dtype(in->problem.dtype),
                         .shape = view->shape,
                         .strides = view->strides};
}

int mla_output_finish(const attn_instance_t *in, const attn_forward_t *a, const mla_output_view *view,
                      int64_t tokens, const mla_counts *counts, void *stream) {
    const DLTensor *scales = a->output_block_scale;
    const quantise_params p = {.num_tokens = counts ? &counts->num_tokens : NULL,
                               .num_reqs = counts ? &counts->num_reqs : NULL,
                               .starts = counts ? &counts->starts : NULL,
                               .in = view->t.data,
                               .out = attn_data(a->output),
                               .out_token = a->output->strides[0],
                               .out_head = a->output->strides[1],
                               .scale = a->output_scale ? attn_data(a->output_scale) : NULL,
                               .block_scale = scales ? attn_data(scales) : NULL,
                               .block_token = scales ? scales->strides[0] : 0,
                               .block_group = scales ? scales->strides[1] : 0,
                               .tokens = tokens,
                               .num_heads = in->heads,
                               .size = in->value,
                               .group = scales ? (int32_t)output_group(a, (int64_t)in->heads * in->value) : 0,
                               .dtype = in->dtype};
    return in->backend->device->quantise(in, &p, stream);
}
