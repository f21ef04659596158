/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_instance.h: what the parts of the reference backend share: the instance (one problem with its defaults
 * filled in), the metadata buffer, and the operations.
 */
#ifndef ATTN_REFERENCE_INSTANCE_H
#define ATTN_REFERENCE_INSTANCE_H

#include "../common/call_check.h"

/* Query tokens that share one decoding of a K and a V row. Small, so that the workspace stays small. */
enum { REF_TILE_TOKENS = 16 };

struct attn_instance {
    attn_problem_t p; /* as given */
    uint64_t features;
    uint32_t out_dtype, query_dtype; /* of the tensors */
    int is_fp8_query;                /* latent attention: the absorbed query becomes e4m3 (semantics 7.4) */
    uint32_t kv;                     /* ATTN_KV_*, never 0 */
    uint32_t storage;                /* ATTN_DTYPE_* of a cache element */
    uint32_t heads, kv_heads, group;
    uint32_t d, dv;    /* of a key and a value row; latent attention: L + R and L */
    uint32_t out_size; /* of an output row: Dv; latent attention: V, or L */
    uint32_t block_size;
    uint32_t max_seqs, max_tokens, max_spans;
    int64_t max_len;
    int has_cache, is_separate;
    uint64_t metadata_bytes, workspace_bytes;
};

/* Start of the metadata buffer; the arrays follow it, at these byte offsets. Only the block table stays where
 * it is: its address and row stride are kept, because it can be far larger than everything else. */
typedef struct ref_metadata {
    uint64_t magic; /* REF_METADATA_MAGIC: build_metadata ran */
    uint64_t bytes;
    int32_t num_reqs, num_tokens;
    int32_t num_key_rows; /* of key and value, without a cache */
    int32_t common_prefix_len, num_spans;
    /* lengths on the device (semantics 1.6), read in forward: the arrays here have bounds; else NULL */
    const int32_t *device_starts, *device_lens;
    int64_t device_starts_stride, device_lens_stride; /* elements */
    const char *block_table;
    int64_t block_table_stride; /* bytes */
    int64_t block_table_width;
    uint64_t query_start_at; /* int32 [B + 1] */
    uint64_t key_start_at;   /* int32 [B + 1]: first rows in key and value */
    uint64_t seq_lens_at;    /* int32 [B] */
    uint64_t causal_at;      /* int32 [B] */
    uint64_t rswa_at;        /* int32 [B] */
    uint64_t spans_at;       /* int32 [B, num_spans, 2] */
} ref_metadata_t;

#define REF_METADATA_MAGIC UINT64_C(0x6174614465527441)

static inline const int32_t *ref_metadata_ints(const ref_metadata_t *m, uint64_t at) {
    return (const int32_t *)(const void *)((const char *)m + at);
}

/* Appends every reason against a problem that the capability table cannot say. */
int ref_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);

int ref_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *options,
             uint32_t num_options, const attn_host_t *host, attn_instance_t **instance, attn_error_t *error);
void ref_close(attn_instance_t *instance);
int ref_kv_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error);
int ref_space_needed(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error);
int ref_build_metadata(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error);
int ref_update_block_table(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error);
int ref_update_kv_cache(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error);
/* ATTN_F_FP8_ATTENTION (semantics 7.6): the three scales of a call, given or measured; *a then refers to them
 * as tensors over `scales`. And a row as the products see it. */
typedef struct ref_fp8_scales {
    float value[3];
    int64_t shape, stride;
    DLTensor tensor[3];
} ref_fp8_scales_t;
int ref_fp8_begin(const attn_instance_t *instance, attn_forward_t *a, int64_t tokens, int64_t key_rows,
                  ref_fp8_scales_t *scales, attn_error_t *error);
void ref_fp8_row(double *row, int64_t n, const DLTensor *scale);
/* One scale of a whole tensor, a positive number; NULL is 1. */
int ref_fp8_check_scale(const DLTensor *scale, const char *name, attn_error_t *error);
int ref_fp8_prepare(const attn_instance_t *instance, const attn_weights_t *weights, attn_error_t *error);

int ref_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                void *stream, attn_error_t *error);

/* Doubles of scratch that forward takes for this instance, and bytes of metadata for the limits of its
 * problem. */
uint64_t ref_workspace_doubles(const attn_instance_t *instance);
uint64_t ref_metadata_bytes(uint64_t num_reqs, uint64_t num_spans);
/* The metadata with the lengths that the device has now, in `room` of metadata_bytes; *now is the metadata
 * itself where it has no such. */
int ref_read_lengths(const ref_metadata_t *metadata, void *room, const ref_metadata_t **now,
                     attn_error_t *error);

/* The cache of keys and values as tensors. */
call_cache_t ref_cache_of(const attn_instance_t *instance);
/* The buffers are there, large enough and aligned. */
int ref_check_buffer(const void *buffer, uint64_t have, uint64_t need, const char *name, attn_error_t *error);

#endif
