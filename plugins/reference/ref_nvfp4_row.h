/* SPDX-License-Identifier: Apache-2.0 */
/* ref_nvfp4_row.h: rows of nvfp4 (semantics 3.6): size / 2 bytes of e2m1 codes, and apart from them size / 16
 * e4m3 scales. */
#ifndef ATTN_REFERENCE_NVFP4_ROW_H
#define ATTN_REFERENCE_NVFP4_ROW_H

#include <stdint.h>

enum { REF_NVFP4_GROUP = 16 }; /* values that share a scale */

/* out[0..size): the values, scale being that of the tensor. */
void ref_nvfp4_load(const char *codes, const char *scales, int64_t size, double scale, double *out);

/* x: a row of dtype. */
void ref_nvfp4_store(char *codes, char *scales, int64_t size, float scale, const void *x, uint32_t dtype);

#endif
