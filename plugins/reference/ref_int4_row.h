/* SPDX-License-Identifier: Apache-2.0 */
/* ref_int4_row.h: rows of int4_per_token_head (semantics 3.4): size / 2 bytes of codes, then the float32
 * scale whose four lowest bits are the zero point. size is a power of two up to 1024. */
#ifndef ATTN_REFERENCE_INT4_ROW_H
#define ATTN_REFERENCE_INT4_ROW_H

#include <stdint.h>

/* The row as it was before the rotation, with the error of its quantisation. */
void ref_int4_load(const char *row, int64_t size, double *out);

/* x: size values of dtype (ATTN_DTYPE_*). A row with a value that is not finite gets a NaN for a scale. */
void ref_int4_store(char *row, int64_t size, const void *x, uint32_t dtype);

#endif
