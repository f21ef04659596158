/* SPDX-License-Identifier: Apache-2.0 */
/* In place of mla_blas.c in a build that found no cublasLt.h. */
#include "mla_blas.h"

#include <stddef.h>

mla_blas *mla_blas_open(const mla_blas_input *input, const char **why) {
    (void)input;
    *why = "this build has no cuBLAS; configure it where cublasLt.h of the CUDA toolkit is installed";
    return NULL;
}

void mla_blas_close(mla_blas *blas) {
    (void)blas;
}

int mla_blas_multiply(const mla_blas *blas, mla_product product, const mla_project_params *p, void *stream) {
    (void)blas, (void)product, (void)p, (void)stream;
    return 1;
}
