/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the MLA kernels. Each returns a cudaError_t as int. Where a launcher may need preparing
 * (shared memory limit, code loading), a count of 0 does that and launches nothing; it must happen before any
 * stream capture. */
#ifndef MLA_LAUNCH_H
#define MLA_LAUNCH_H

#include "mla_params.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

size_t mla_attend_smem(int latent_rank, int stages);
int mla_attend_bf16(const mla_attend_params *params, int num_items, void *stream);
int mla_attend_f16(const mla_attend_params *params, int num_items, void *stream);
/* is_early: the device has compute capability 9.0 or later; blocks may start while the launch before ends. */
int mla_combine(const mla_attend_params *params, int num_splits, int is_early, void *stream);
/* Up to so many tokens, values by this kernel are faster than by cuBLAS, which starts later. params NULL:
 * prepares the kernels. */
enum { MLA_FEW_TOKENS = 16 };
int mla_project(const mla_project_params *params, void *stream);
int mla_write_cache(const mla_write_params *params, void *stream);
/* dst [rows, width] of 16 bits from 16-bit or e4m3 rows. */
int mla_copy_weights(void *dst, const void *src, int64_t rows, int width, int64_t src_row, int dtype,
                     int is_e4m3, mla_weight_scale scale, void *stream);
/* Rows of `width` elements, a multiple of 16, from 16 bits or e4m3 to 16 bits; addresses and strides are
 * multiples of 16 bytes. */
int mla_copy_rows(const mla_copy_params *params, void *stream);
/* out [rows, heads, size] of 16-bit elements, strides in elements. */
int mla_zero_rows(void *out, int64_t rows, int heads, int size, int64_t token, int64_t head, void *stream);

/* The kernels of Hopper that a plugin carries beside those above. NULL: none. */
typedef struct mla_kernels {
    const struct mla_decode_sm90_kernels *decode; /* dense: mla_decode_sm90.h */
    /* Over selected tokens, sparse_attend_sm90.h: params->slice on `ctas` blocks; num_items 0 prepares. */
    int (*sparse)(const mla_attend_params *params, int num_items, int ctas, void *stream);
} mla_kernels;

#ifdef __cplusplus
}
#endif
#endif
