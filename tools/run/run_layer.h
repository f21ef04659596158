/* SPDX-License-Identifier: Apache-2.0 */
/* run_layer.h: runs one layer's tensors through a backend the way an engine does: pages in random order,
 * prefill in chunks, then decode token by token; without a cache in one call. */
#ifndef ATTN_TOOLS_RUN_LAYER_H
#define ATTN_TOOLS_RUN_LAYER_H

#include <attn/attn.h>

#include "run/calibrate.h"

typedef struct run_options {
    const char *backend; /* NULL: selected */
    const attn_device_t *device;
    uint32_t kv_cache_dtype; /* 0: as the problem says */
    uint32_t block_size;     /* 0: likewise */
    int32_t chunk;           /* prefill tokens of a request in one step */
    int32_t decode;          /* last tokens of a request, one at a time */
    uint64_t seed;           /* of the page order */
    int wants_lse;           /* 1: the result has it; the backend must serve the feature lse */
    /* where a cache with static scales of V's channels has them from; NULL: from the layer's own values */
    const attn_calibration_t *calibration;
} run_options_t;

typedef struct run_result {
    attn_selection_t *selection; /* NULL on early failure */
    attn_problem_t problem;      /* as opened */
    char backend[128];           /* as describe_group_backends says it */
    float *output;               /* [T, Hq, Dv] */
    float *lse;                  /* [T, Hq], or NULL: not asked for */
    size_t count;                /* of floats in output */
    int32_t steps;
    int64_t num_blocks, page_bytes;
    double seconds_plan, seconds_update, seconds_forward;
} run_result_t;

/* The result's selection is also filled on failure. Free it in any case. */
int run_layer(attn_context_t *context, const run_input_t *input, const run_options_t *options,
              run_result_t *result, attn_error_t *error);
void run_result_free(run_result_t *result);

typedef struct run_difference {
    double max_abs, relative_rms;
    int is_close; /* every |got - want| <= atol + rtol * |want| */
} run_difference_t;
/* |got - want| <= tol + tol * |want|: rounding of the output's type; a cache of 8 bits or less is quantised
 * by each backend itself and may differ by one code (semantics 10.2). The model's own numbers were rounded
 * once more. */
double run_tolerance(const attn_problem_t *problem, int to_model);
run_difference_t run_compare(const float *got, const float *want, size_t count, double atol, double rtol);

#endif
