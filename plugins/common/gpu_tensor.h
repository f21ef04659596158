/* SPDX-License-Identifier: Apache-2.0 */
/* call_check.h on a GPU: the same checks, and that a tensor lies there and is aligned as kernels load it. */
#ifndef ATTN_GPU_TENSOR_H
#define ATTN_GPU_TENSOR_H

#include "call_check.h"

/* A tensor lies on a CUDA device. */
int gpu_check_tensor_device(const DLTensor *tensor, const char *name, attn_error_t *error);
/* The address of a tensor with rows, and every stride of a dimension longer than 1, is a multiple of bytes, a
 * power of two. */
int gpu_check_alignment(const DLTensor *t, const char *name, int bytes, attn_error_t *error);
/* [rows or more, heads, size], on the device and aligned unless it has no row. */
int gpu_check_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                   int64_t rows, int align, attn_error_t *error);
/* The same of key and value without a cache, where batches have rows of their own for them. */
int gpu_check_key_rows(const DLTensor *t, const char *name, uint32_t dtype, int64_t heads, int64_t size,
                       int64_t rows, int align, attn_error_t *error);
int gpu_check_vector(const DLTensor *t, const char *name, const char *feature, int is_wanted, int64_t heads,
                     attn_error_t *error);
int gpu_check_lse(const DLTensor *t, int64_t heads, int64_t tokens, attn_error_t *error);
/* int64, at most `most` of them. */
int gpu_check_slots(const DLTensor *t, int64_t most, attn_error_t *error);
/* *stride keeps whether the scales of a call are one for each head; -1 before the first. */
int gpu_check_scale(const DLTensor *t, const char *name, int64_t heads, int *stride, attn_error_t *error);

/* Which of output_scale and output_block_scale is given, as the features say (semantics 7.7), and what it is:
 * for tokens of width = heads * size values. */
int gpu_check_output_scales(const attn_forward_t *a, uint64_t features, int64_t width, int64_t tokens,
                            attn_error_t *error);

/* A cache whose shape is checked: on the device, aligned, and of no more blocks than 32-bit ids name. */
int gpu_check_pages(const DLTensor *t, const char *name, int align, attn_error_t *error);
/* Addresses, and strides in elements, of K and V in a packed cache or in a pair of caches. Of whole pages
 * (semantics 3.6, 3.8) all strides are bytes, and scales has those of K and of V, zeros where there are none.
 */
typedef struct gpu_scales_view {
    void *at;
    int64_t page, head, token;
} gpu_scales_view;
typedef struct gpu_cache_view {
    void *k, *v;
    int64_t pages;
    int64_t k_page, k_head, k_token, v_page, v_head, v_token;
    gpu_scales_view scales[2];
} gpu_cache_view;
int gpu_view_cache(const call_cache_t *c, int align, const DLTensor *kv_cache, const DLTensor *v_cache,
                   gpu_cache_view *view, attn_error_t *error);

#endif
