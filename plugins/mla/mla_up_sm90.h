/* SPDX-License-Identifier: Apache-2.0 */
/* The up-projection of latents on Hopper: c [rows, columns] = a [rows, k] x b [columns, k] transposed. */
#ifndef MLA_UP_SM90_H
#define MLA_UP_SM90_H

#include <cuda.h>
#include <stdint.h>

enum { MLA_UP_ROWS = 128, MLA_UP_COLUMNS = 256 }; /* of a tile, and of the boxes of the maps */

/* Boxes of 64 columns: of the latents and weights as many rows as a tile has, of the result 64. */
typedef struct mla_up_params {
    CUtensorMap a_map, b_map, c_map; /* {k, rows}, {k, columns}, {columns, rows} */
    int32_t rows, columns, k;        /* columns a multiple of 8, k of 64 */
} mla_up_params;

#ifdef __cplusplus
extern "C" {
#endif
/* ctas: how many run at once. params NULL: prepare only. Returns a cudaError_t as int. */
int mla_up_sm90_bf16(const mla_up_params *params, int ctas, void *stream);
int mla_up_sm90_f16(const mla_up_params *params, int ctas, void *stream);
#ifdef __cplusplus
}
#endif
#endif
