/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the Hopper decode kernel: the common ones, the tensor map of the cache, and the part lists by
 * which its persistent CTAs find their work. */
#ifndef MLA_DECODE_SM90_H
#define MLA_DECODE_SM90_H

#include "mla_params.h"

#include <cuda.h>

typedef struct mla_decode_sm90_params {
    CUtensorMap keys;    /* {columns, tokens of a page, pages}, boxes of 128 bytes x box_rows */
    CUtensorMap rope;    /* the same of an e4m3 cache, boxes of 64 columns */
    CUtensorMap queries; /* {columns, rows} of the absorbed latents, boxes of 64 x 64 */
    mla_attend_params p;
    int32_t ctas;     /* that share an item, 64 rows each */
    int32_t box_rows; /* keys of one box: 16, 32 or 64, a divisor of the page */
} mla_decode_sm90_params;

#ifdef __cplusplus
extern "C" {
#endif
/* How many clusters of two CTAs the current device runs at once. */
int mla_decode_sm90_clusters(int *count);
/* `parts` parts of `ctas` (1 or 2) CTAs each, a CTA 64 rows of a tile. params NULL: prepares only. A
 * cudaError_t as int. */
int mla_decode_sm90_bf16(const mla_decode_sm90_params *params, int ctas, int parts, void *stream);
int mla_decode_sm90_f16(const mla_decode_sm90_params *params, int ctas, int parts, void *stream);

/* Caches of e4m3; dtype as in the parameters. params NULL: prepares only. */
int mla_decode_sm90_e4m3(const mla_decode_sm90_params *params, int dtype, int ctas, int parts, void *stream);

/* The pieces of cut tiles, after one of the above. */
int mla_decode_sm90_merge(const mla_attend_params *params, int num_splits, void *stream);

/* Before any capture: finds cuTensorMapEncodeTiled and prepares the kernel. */
int mla_decode_sm90_load(void **encode_tiled, int dtype, int cache_kind, int ctas);
/* The kernel on a slice, with what _load found. */
int mla_decode_sm90_run(void *encode_tiled, const mla_attend_params *params, int ctas, int parts,
                        void *stream);

/* What a plugin calls of these, as a table that it may lack. */
typedef struct mla_decode_sm90_kernels {
    int (*clusters)(int *count);
    int (*load)(void **encode_tiled, int dtype, int cache_kind, int ctas);
    int (*run)(void *encode_tiled, const mla_attend_params *params, int ctas, int parts, void *stream);
    int (*merge)(const mla_attend_params *params, int num_splits, void *stream);
} mla_decode_sm90_kernels;
extern const mla_decode_sm90_kernels mla_decode_sm90_all;
#ifdef __cplusplus
}
#endif
#endif
