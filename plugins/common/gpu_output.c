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

_Static_assert((int)OUTPUT_FLOATS == (int)QUANTISE_FLOATS && (int)OUTPUT_POWERS == (int)QUANTISE_POWERS &&
                   (int)OUTPUT_EXPONENTS == (int)QUANTISE_EXPONENTS &&
                   (int)OUTPUT_NVFP4 == (int)QUANTISE_NVFP4,
               "the kernel numbers the kinds as the plugins do");

quantise_params gpu_output_params(const attn_forward_t *a, uint64_t features, int64_t heads, int64_t size,
                                  int32_t dtype) {
    const output_groups o = output_groups_of(a, features, heads * size);
    return (quantise_params){.out = attn_data(a->output),
                             .out_token = a->output->strides[0],
                             .out_head = a->output->strides[1],
                             .scale = a->output_scale != NULL ? attn_data(a->output_scale) : NULL,
                             .scales = o.scales,
                             .tile = o.tile,
                             .four = o.four,
                             .row = o.row,
                             .part = o.part,
                             .one = o.one,
                             .num_heads = (int32_t)heads,
                             .size = (int32_t)size,
                             .group = o.size,
                             .dtype = dtype,
                             .kind = o.kind,
                             .pads = o.pads};
}
