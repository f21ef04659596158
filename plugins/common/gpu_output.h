/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7) on a GPU: the 16-bit output that attention writes into the workspace, and
 * what the kernel that quantises its rows takes of a call. */
#ifndef ATTN_GPU_OUTPUT_H
#define ATTN_GPU_OUTPUT_H

#include "kernels/cuda/output/quantise_rows.h"

#include <attn/attn_plugin.h>

typedef struct gpu_output_view {
    DLTensor t;
    int64_t shape[3], strides[3];
} gpu_output_view;

/* Dense [tokens, heads, size] at data. */
void gpu_output_view_set(gpu_output_view *view, void *data, int32_t device_id, uint32_t dtype, int64_t tokens,
                         int64_t heads, int64_t size);

/* The output of the call and its scales, where it has some; the rest, rows to be read among it, is the
 * caller's. dtype: as quantise_params has it. [pure] */
quantise_params gpu_output_params(const attn_forward_t *a, uint64_t features, int64_t heads, int64_t size,
                                  int32_t dtype);

#endif
