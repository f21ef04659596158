/* SPDX-License-Identifier: Apache-2.0 */
/* ref_turbo_row.h: the K or V part of a TurboQuant slot (semantics 3.7). size: a power of two from 8 to 1024,
 * with 8-bit keys any multiple of 8; bits: 8 (e4m3 keys), 4 or 3. */
#ifndef ATTN_REFERENCE_TURBO_ROW_H
#define ATTN_REFERENCE_TURBO_ROW_H

#include <stdint.h>

/* The row as it was before the rotation, with the error of its quantisation. */
void ref_turbo_load(const char *row, int64_t size, int bits, int is_value, double *out);

/* x: size values of dtype (ATTN_DTYPE_*). A row with a value that is not finite gets NaN for its norm, or for
 * its step and minimum; keys of 8 bits keep theirs. */
void ref_turbo_store(char *row, int64_t size, int bits, int is_value, const void *x, uint32_t dtype);

#endif
