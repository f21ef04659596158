/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of cuBLASLt that are called, from a library that is opened at run time. */
#ifndef MLA_BLAS_CALLS_H
#define MLA_BLAS_CALLS_H

#include <cublasLt.h>

typedef struct mla_blas_calls {
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtMatmul) matmul;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    __typeof__(&cublasLtMatmulAlgoConfigGetAttribute) choice_get;
    __typeof__(&cublasLtMatmulDescInit_internal) matmul_init;
    __typeof__(&cublasLtMatmulDescSetAttribute) matmul_set;
    __typeof__(&cublasLtMatrixLayoutInit_internal) layout_init;
    __typeof__(&cublasLtMatrixLayoutSetAttribute) layout_set;
    __typeof__(&cublasLtMatmulPreferenceInit_internal) preference_init;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
} mla_blas_calls;

/* NULL, or why not: a static text. */
const char *mla_blas_load(mla_blas_calls *calls);

#endif
