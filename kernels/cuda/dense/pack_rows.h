/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between the engine's rows and dense rows of a padded head size. With fp8 the dense rows are float16:
 * K and V hold e4m3 codes, Q codes times both scales of the product, the output still wants V's scale.
 * Launchers return a cudaError_t as int. */
#ifndef PACK_ROWS_H
#define PACK_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Dynamic scales of Q, K and V, zeroed at first: each measured call stores its largest magnitudes in entry
 * calls % history. */
enum { PACK_FP8_HISTORY = 16 };
typedef struct pack_fp8_state {
    float amax[3][PACK_FP8_HISTORY];
    float scale[3]; /* of the last call */
    uint32_t calls;
} pack_fp8_state;

/* Rows [tokens, heads, d] with strides in elements; the last dimension is dense. */
typedef struct mm_rows {
    void *data;
    int64_t token, head;
    int32_t heads;
    int32_t is_aligned; /* address and strides are multiples of 16 bytes, and d of 8 */
} mm_rows_t;

typedef struct mm_pack_params {
    mm_rows_t from[3];        /* Q, K, V */
    void *to[3];              /* [tokens, heads, padded], dense */
    const int32_t *rows;      /* device [2]: rows of this batch, of Q and the output, of K and V */
    pack_fp8_state *state;    /* dynamic scales; NULL: the ones below */
    const float *scale_at[3]; /* device; NULL: the value */
    float scale[3];
    int32_t d, padded;
    int32_t is_bf16, is_fp8;
} mm_pack_params_t;

/* amax of this call and the scales that follow, into params->state. */
int mm_measure(const mm_pack_params_t *params, int num_sms, void *stream);
int mm_pack(const mm_pack_params_t *params, int num_sms, void *stream);
/* Rows of the head size d; from NULL: zeros. params->rows NULL: max_tokens of them. */
int mm_unpack(const mm_pack_params_t *params, const void *from, const mm_rows_t *to, int64_t max_tokens,
              int num_sms, void *stream);
/* Loads the kernels, which must happen before any capture. */
int mm_pack_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
