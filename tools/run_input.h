/* SPDX-License-Identifier: Apache-2.0 */
/* run_input.h: one attention layer's tensors, from an activations file (examples/data/README.md says the format). */
#ifndef ATTN_TOOLS_RUN_INPUT_H
#define ATTN_TOOLS_RUN_INPUT_H

#include "safetensors.h"

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
    const st_tensor_t *sinks, *slopes; /* or NULL */
} run_input_t;

/* Numbers of the layers in the file; how many, or a negative ATTN_E_*. */
int run_input_layers(const st_file_t *file, const char *path, int64_t *numbers, int capacity,
                     attn_error_t *error);
/* Reads and checks one layer. */
int run_input_read(const st_file_t *file, const char *path, int64_t number, run_input_t *input,
                   attn_error_t *error);

#endif
