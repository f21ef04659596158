/* SPDX-License-Identifier: Apache-2.0 */
/* The up-projection of latents on Hopper: c [rows, columns] = a [rows, k] x b [columns, k] transposed. */
#ifndef MLA_UP_SM90_H
#define MLA_UP_SM90_H

#include <cuda.h>
#include <stdint.h>

enum { MLA_UP_ROWS = 128, MLA_UP_COLUMNS = 256 }; /* of a tile, and of the boxes of the maps */

typedef struct mla_up_params {
    CUtensorMap a_map,
        b_map; /* {k, rows} and {k, columns}: boxes of 64 x MLA_UP_ROWS and 64 x MLA_UP_COLUMNS */
    void *c;
    int64_t c_row;            /* elements */
    int32_t rows, columns, k; /* columns a multiple of 8, k of 64 */
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
