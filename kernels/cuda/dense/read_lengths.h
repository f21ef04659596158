/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths on the device for the prefill kernels, which read those of their tiles: a pass over the list before
 * them. */
#ifndef READ_LENGTHS_H
#define READ_LENGTHS_H

#include "flash_params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* First row, query tokens and keys of all tiles that params->counts has, at most max_tiles: as
 * params->q_start and, of paged keys, params->k_start say them now. Tiles beyond a request's tokens have no
 * rows then. Returns a cudaError_t as int; params NULL: prepare only. */
int flash_read_lengths(const flash_params *params, flash_tile *tiles, int max_tiles, void *stream);

#ifdef __cplusplus
}
#endif
#endif
