/* SPDX-License-Identifier: Apache-2.0 */
/* What plugins check of every batch alike: its lengths against themselves and the limits, its block table, its buffers. */
#ifndef ATTN_GPU_BATCH_H
#define ATTN_GPU_BATCH_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

typedef struct gpu_batch_limits {
    int32_t max_seqs, max_tokens;
    int64_t max_model_len;
    int32_t has_cache;        /* 0: seq_lens are the query lengths */
    int32_t seq_counts_query; /* 1: a seq_len cannot be less than its query length */
    int32_t page_size;
} gpu_batch_limits;

int gpu_check_lengths(const gpu_batch_limits *limits, const attn_batch_t *batch, attn_error_t *error);
/* With a cache and requests: a CUDA int32 table with a row for each request, wide enough for those with queries. */
int gpu_check_block_table(const gpu_batch_limits *limits, const attn_batch_t *batch, attn_error_t *error);
/* metadata and host are as large as space_needed said. */
int gpu_check_space(const attn_space_t *space, uint64_t metadata_bytes, uint64_t host_bytes,
                    attn_error_t *error);
/* A tensor lies on a CUDA device. */
int gpu_check_tensor_device(const DLTensor *tensor, const char *name, attn_error_t *error);

#endif
