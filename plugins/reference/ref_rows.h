/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_rows.h: reads and writes rows of any element type as double, and the few tensor addresses that all
 * parts of the reference backend share.
 */
#ifndef ATTN_REFERENCE_ROWS_H
#define ATTN_REFERENCE_ROWS_H

#include <attn/attn_plugin_util.h>


/* out[i] = element i of a dense row. dtype is an ATTN_DTYPE_*. */
void ref_load_row(const void *row, uint32_t dtype, int64_t n, double *out);

/* Element i of a dense row = in[i], rounded to nearest even; fp8 saturates, int8 rounds half away and clamps.
 * */
void ref_store_row(void *row, uint32_t dtype, int64_t n, const double *in);

/* Address of element (i, j) of a tensor whose further indices are 0. */
static inline char *ref_at2(const DLTensor *t, int64_t i, int64_t j) {
    return (char *)attn_data(t) + i * attn_byte_stride(t, 0) + j * attn_byte_stride(t, 1);
}

/* Unaligned float32: inline scales of per-token-head rows lie at any byte. */
static inline float ref_read_float(const void *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* A scale tensor of 1 or num_heads values; NULL reads as 1 (semantics 3.2). */
static inline double ref_scale_of(const DLTensor *scale, int64_t head) {
    if (scale == NULL) return 1.0;
    int64_t at = scale->ndim == 0 || scale->shape[0] == 1 ? 0 : head;
    return ref_read_float((const char *)attn_data(scale) + (at != 0 ? at * attn_byte_stride(scale, 0) : 0));
}

#endif
