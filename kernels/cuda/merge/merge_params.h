/* SPDX-License-Identifier: Apache-2.0 */
/* Merging of attention states and copying of rows: what the kernels see, and their launchers. Types are those
 * of the ABI (ATTN_DTYPE_*): float32, float16, bfloat16, float64, and fp8 to read from. */
#ifndef MERGE_PARAMS_H
#define MERGE_PARAMS_H

#include <stdint.h>

enum { MERGE_MAX_STATES = 64, MERGE_MAX_DIMS = 6 };
enum merge_type {
    MERGE_F32 = 1,
    MERGE_F16 = 2,
    MERGE_BF16 = 3,
    MERGE_F64 = 4,
    MERGE_E4M3 = 5,
    MERGE_E5M2 = 6
};

typedef struct merge_state {
    const void *output; /* NULL: counts in the total alone */
    const float *lse;
    int64_t token, head, lse_head, lse_token; /* strides in elements */
    int32_t type, reserved;
} merge_state;

/* output = sum over states first .. last - 1 of exp(lse_i - total) * output_i; total of all states and the
 * sink. */
typedef struct merge_states_params {
    merge_state states[MERGE_MAX_STATES];
    void *output;
    float *lse; /* NULL: not wanted */
    const float *sinks;
    int64_t token, head, lse_head, lse_token, sink;
    int64_t tokens;
    int32_t heads, size, num_states, first, last;
    int32_t type;
    int32_t width; /* elements of a load: 4, or 1 where something is not aligned to four */
} merge_states_params;

/* to[i..] = from[j..] * scale over dims, strides in bytes; j = i but in the first dimension, which `rows`
 * may choose. */
typedef struct merge_rows_params {
    const void *from;
    void *to;
    const int64_t *rows; /* NULL: none; gather: of from, scatter: of to */
    const float *scale;  /* NULL: 1 */
    int64_t shape[MERGE_MAX_DIMS], from_stride[MERGE_MAX_DIMS], to_stride[MERGE_MAX_DIMS];
    int64_t count;       /* of units: product of shape */
    int64_t indexed;     /* rows of the side that rows chooses of */
    int32_t dims;        /* the last counts units */
    int32_t is_scatter;
    int32_t unit; /* plain: bytes copied at once, 1 to 16; else elements of a unit, 1 or 8, neighbours */
    int32_t is_plain, from_type, to_type;
} merge_rows_params;

#ifdef __cplusplus
extern "C" {
#endif
/* A cudaError_t as int. */
int merge_states_run(const merge_states_params *params, void *stream);
int merge_rows_run(const merge_rows_params *params, void *stream);
#ifdef __cplusplus
}
#endif
#endif
