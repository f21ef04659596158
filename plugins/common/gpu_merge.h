/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of attn_merge.h on CUDA devices, for a plugin to give as its extension ATTN_MERGE_EXTENSION.
 * Compiled into each plugin that does, which links the kernels of kernels/cuda/merge. */
#ifndef ATTN_GPU_MERGE_H
#define ATTN_GPU_MERGE_H

#include <attn/attn_merge.h>
#include <attn/attn_plugin.h>

extern const attn_merge_table_t gpu_merge_table;

/* get_extension of a backend without others. */
const void *gpu_merge_extension(attn_instance_t *instance, const char *id);

#endif
