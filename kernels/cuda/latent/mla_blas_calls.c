/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt of the major version that the build saw: the caller's structs are its. */
#if !defined _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr */
#endif
#include "mla_blas_calls.h"

#include "../../library.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define FILE_NAME  "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

const char *mla_blas_load(mla_blas_calls *c) {
    static const char configured[] = ATTN_CUDA_LIBDIR "/" FILE_NAME;
    static const char *const names[] = {FILE_NAME, configured, NULL};
    static const char *const packages[] = {"nvidia/cu" TEXT(CUBLAS_VER_MAJOR) "/lib/" FILE_NAME,
                                           "nvidia/cublas/lib/" FILE_NAME, NULL};
    const library_function wanted[] = {{"cublasLtCreate", &c->create},
                                       {"cublasLtDestroy", &c->destroy},
                                       {"cublasLtMatmul", &c->matmul},
                                       {"cublasLtMatmulAlgoGetHeuristic", &c->heuristic},
                                       {"cublasLtMatmulAlgoConfigGetAttribute", &c->choice_get},
                                       {"cublasLtMatmulDescInit_internal", &c->matmul_init},
                                       {"cublasLtMatmulDescSetAttribute", &c->matmul_set},
                                       {"cublasLtMatrixLayoutInit_internal", &c->layout_init},
                                       {"cublasLtMatrixLayoutSetAttribute", &c->layout_set},
                                       {"cublasLtMatmulPreferenceInit_internal", &c->preference_init},
                                       {"cublasLtMatmulPreferenceSetAttribute", &c->preference_set}};
    Dl_info self;
    void *library = dladdr(names, &self) != 0 ? library_open_beside(self.dli_fname, packages) : NULL;
    if (library == NULL) library = library_open(names);
    if (library == NULL)
        return FILE_NAME " was not found; put its folder on the path of libraries (pip: nvidia-cublas, CUDA "
                         "repository: libcublas)";
    if (library_symbols(library, wanted, sizeof wanted / sizeof wanted[0]) != NULL)
        return FILE_NAME " lacks a function";
    return NULL;
}
