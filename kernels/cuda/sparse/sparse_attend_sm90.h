/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the Hopper kernels of sparse attention: compute capability 9.0, latent rank 512. */
#ifndef SPARSE_ATTEND_SM90_H
#define SPARSE_ATTEND_SM90_H

#include "../latent/mla_params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of shared memory that a block needs. */
int sparse_attend_sm90_smem(void);
/* Attends params->slice on `ctas` blocks (one a multiprocessor), tile_rows / 64 for each part of the plan.
 * num_items 0: only prepares the kernel, which must happen before any capture. Returns a cudaError_t. */
int sparse_attend_sm90(const mla_attend_params *params, int num_items, int ctas, void *stream);
/* It is one of these, by params->dtype and cache_kind. */
int sparse_attend_sm90_bf16(const mla_attend_params *params, int num_items, int ctas, void *stream);
int sparse_attend_sm90_f16(const mla_attend_params *params, int num_items, int ctas, void *stream);
/* The same over 656-byte rows. */
int sparse_attend_sm90_ds_bf16(const mla_attend_params *params, int num_items, int ctas, void *stream);
int sparse_attend_sm90_ds_f16(const mla_attend_params *params, int num_items, int ctas, void *stream);

#ifdef __cplusplus
}
#endif
#endif
