/* SPDX-License-Identifier: Apache-2.0 */
/* run_input.h: one attention layer's tensors, from an activations file (examples/data/README.md says the
 * format). */
#ifndef ATTN_TOOLS_RUN_INPUT_H
#define ATTN_TOOLS_RUN_INPUT_H

#include "tensor/safetensors.h"

enum { RUN_MAX_REQS = 1024 };

typedef struct run_input {
    int64_t number;         /* of the layer in the file */
    const char *name;       /* of the module in the model, or "" */
    const char *model;      /* or "" */
    attn_problem_t problem; /* as the file says */
    int32_t num_reqs;
    int32_t q_start[RUN_MAX_REQS + 1]; /* token offsets of the requests */
    int32_t k_start[RUN_MAX_REQS + 1]; /* the same for keys; differs in cross attention only */
    const st_tensor_t *query, *key, *value;
    const st_tensor_t *output;         /* the model's own, or NULL */
    const st_tensor_t *sinks, *slopes, *rel_bias; /* or NULL */
    const st_tensor_t *weights;        /* kv_b_proj of latent attention, else NULL */
    const st_tensor_t *topk;           /* selected tokens of sparse latent attention, else NULL */
    st_tensor_t
        converted[5]; /* query, key, value, output, weights after run_input_convert; their data is owned */
} run_input_t;

/* Numbers of the layers in the file; how many, or a negative ATTN_E_*. */
int run_input_layers(const st_file_t *file, const char *path, int64_t *numbers, int capacity,
                     attn_error_t *error);
/* Reads and checks one layer. */
int run_input_read(const st_file_t *file, const char *path, int64_t number, run_input_t *input,
                   attn_error_t *error);

/* Rounds the tensors to another float dtype; the problem follows. */
int run_input_convert(run_input_t *input, uint32_t dtype, attn_error_t *error);
/* Frees what run_input_convert made. */
void run_input_free(run_input_t *input);

#endif
