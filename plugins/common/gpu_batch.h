/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins with CUDA check of every batch alike, beyond batch_check.h: where its tensors lie, and its buffers. */
#ifndef ATTN_GPU_BATCH_H
#define ATTN_GPU_BATCH_H

#include "batch_check.h"

/* batch_check_table, and the table lies on a CUDA device. */
int gpu_check_block_table(const batch_limits_t *limits, const attn_batch_t *batch, attn_error_t *error);
/* metadata and host are as large as space_needed said. */
int gpu_check_space(const attn_space_t *space, uint64_t metadata_bytes, uint64_t host_bytes,
                    attn_error_t *error);
/* A tensor lies on a CUDA device. */
int gpu_check_tensor_device(const DLTensor *tensor, const char *name, attn_error_t *error);

#endif
