/* SPDX-License-Identifier: Apache-2.0 */
/* What an instance of MM_ENCODER_ATTN holds: an instance over the dense kernels, and the copies around it. */
#ifndef MM_INSTANCE_H
#define MM_INSTANCE_H

#include "mm_layout.h"
#include "kernels/cuda/dense/pack_rows.h"

#include "../common/dense/flash_instance.h"

/* attn_instance_t is the struct of plugins/common/dense here; ours is handed to the host under that name. */
typedef struct mm_instance {
    attn_problem_t problem;
    attn_instance_t *inner;
    mm_layout_t layout;
    attn_space_needed_t inner_needed;
    attn_space_needed_t needed;
    uint64_t count_at;  /* in metadata: int32 [2], tokens of the batch and rows of keys */
    uint64_t header_at; /* in the host buffer */
    uint64_t rows_at;   /* in the workspace: mm_layout_t's offsets begin there */
    uint32_t heads, kv_heads;
    int device_id, num_sms, is_fp8;
} mm_instance_t;

static inline mm_instance_t *mm_of(attn_instance_t *instance) {
    return (mm_instance_t *)(void *)instance;
}

/* In the host buffer behind flash's part. */
typedef struct mm_host_header {
    uint64_t magic;
    int32_t count[2]; /* tokens, rows of keys */
    uint32_t flags;   /* of the batch */
} mm_host_header_t;
#define MM_MAGIC UINT64_C(0x31726564636e656d)

extern const attn_capabilities_t mm_capabilities;
extern const flash_backend mm_inner_backend;

int mm_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);
int mm_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *options,
            uint32_t num_options, const attn_host_t *host, attn_instance_t **instance, attn_error_t *error);
void mm_close(attn_instance_t *instance);
int mm_kv_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                      attn_error_t *error);
int mm_space_needed(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error);
int mm_build_metadata(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error);
int mm_prepare_weights(attn_instance_t *instance, const attn_weights_t *weights, void *stream,
                       attn_error_t *error);
int mm_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space, void *stream,
               attn_error_t *error);

/* The arguments of a call with copies: tensors as rows, scales or state. */
typedef struct mm_call {
    mm_pack_params_t pack;
    mm_rows_t out;
} mm_call_t;
int mm_read_call(const mm_instance_t *in, const attn_forward_t *args, const mm_host_header_t *header,
                 mm_call_t *call, attn_error_t *error);
int mm_read_output(const mm_instance_t *in, const DLTensor *output, int64_t tokens, mm_rows_t *rows,
                   attn_error_t *error);

#endif
