/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_output.c: the view of the 16-bit output, and a call's part of the parameters that quantise it. */
#include "gpu_output.h"

#include "output_scales.h"

void gpu_output_view_set(gpu_output_view *view, void *data, int32_t device_id, uint32_t dtype, int64_t tokens,
                         int64_t heads, int64_t size) {
    view->shape[0] = tokens, view->shape[1] = heads, view->shape[2] = size;
    view->strides[0] = heads * size, view->strides[1] = size, view->strides[2] = 1;
    view->t = (DLTensor){.data = data,
                         .device = {kDLCUDA, device_id},
                         .ndim = 3,
                         .dtype = attn_dl_dtype(dtype),
                         .shape = view->shape,
                         .strides = view->strides};
}

quantise_params gpu_output_params(const attn_forward_t *a, int64_t heads, int64_t size, int32_t dtype) {
    const DLTensor *scales = a->output_block_scale;
    return (quantise_params){.out = attn_data(a->output),
                             .out_token = a->output->strides[0],
                             .out_head = a->output->strides[1],
                             .scale = a->output_scale != NULL ? attn_data(a->output_scale) : NULL,
                             .block_scale = scales != NULL ? attn_data(scales) : NULL,
                             .block_token = scales != NULL ? scales->strides[0] : 0,
                             .block_group = scales != NULL ? scales->strides[1] : 0,
                             .num_heads = (int32_t)heads,
                             .size = (int32_t)size,
                             .group = scales != NULL ? (int32_t)output_group(a, heads * size) : 0,
                             .dtype = dtype};
}
