/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins with CUDA check alike beyond problem_rules.h and batch_check.h: limits of a problem, where the
 * tensors of a batch lie, and its buffers. */
#ifndef ATTN_GPU_BATCH_H
#define ATTN_GPU_BATCH_H

#include "batch_check.h"
#include "gpu_tensor.h"

/* Reasons for limits that no kernel's 32-bit counts hold, for pages that are not of 16 tokens, and for a
 * scale beyond 1e6. */
void gpu_check_limits(const attn_problem_t *problem, int64_t max_tokens, attn_reasons_t *reasons);

/* batch_check_table, and the table lies on a CUDA device. */
int gpu_check_block_table(const batch_limits_t *limits, const attn_batch_t *batch, attn_error_t *error);
/* batch_check_device_lengths, and the two lists lie on a CUDA device, one entry after the other. */
int gpu_check_device_lengths(const attn_problem_t *problem, const attn_batch_t *batch, attn_error_t *error);
/* metadata and host are as large as space_needed said. */
int gpu_check_space(const attn_space_t *space, uint64_t metadata_bytes, uint64_t host_bytes,
                    attn_error_t *error);

#endif
