/* SPDX-License-Identifier: Apache-2.0 */
/* cuTensorMapEncodeTiled, asked of the runtime, so that nothing of ours links to the driver. */
#ifndef TENSOR_MAP_H
#define TENSOR_MAP_H

#include <cuda.h>
#include <cuda_runtime_api.h>

typedef CUresult (*tensor_map_encode_t)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                        const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                        const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The function, as tensor_map_encode_t. A cudaError_t as int. */
static inline int tensor_map_find(void **encode_tiled) {
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", encode_tiled, 12000,
                                                     cudaEnableDefault, &found);
    return e != cudaSuccess                       ? (int)e
           : found != cudaDriverEntryPointSuccess ? (int)cudaErrorCallRequiresNewerDriver
                                                  : 0;
}

#endif
