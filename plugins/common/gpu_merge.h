/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of attn_merge.h on CUDA devices, for a plugin to give as its extension ATTN_MERGE_EXTENSION.
 * Compiled into each plugin that does, which links the kernels of kernels/cuda/merge. */
#ifndef ATTN_GPU_MERGE_H
#define ATTN_GPU_MERGE_H

#include <attn/attn_merge.h>
#include <attn/attn_plugin.h>

extern const attn_merge_table_t gpu_merge_table;

/* Two of its functions, in gpu_peers.c. */
int gpu_peers_query(const attn_peers_t *peers, const DLTensor *query, int64_t num_tokens, void *stream,
                    attn_error_t *error);
int gpu_peers_join(const attn_peers_t *peers, int64_t num_tokens, const DLTensor *sinks,
                   const DLTensor *output, const DLTensor *lse, void *stream, attn_error_t *error);

/* get_extension of a backend without others. */
const void *gpu_merge_extension(attn_instance_t *instance, const char *id);

#endif
