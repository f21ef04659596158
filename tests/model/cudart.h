/* SPDX-License-Identifier: Apache-2.0 */
/* cudart.h: what the files of the model's CUDA runtime share. */
#ifndef ATTN_TESTS_MODEL_CUDART_H
#define ATTN_TESTS_MODEL_CUDART_H

#include <cuda_runtime_api.h>

enum { NAME_SIZE = 512 };
/* A module with the kernel of this name alone, and its name there, NAME_SIZE bytes; NULL: there is none. */
char *cudart_text(const char *name, char *there);
/* A function of the driver, and a call of it. */
void *cudart_driver(const char *name);
#define DRIVER(name, params, args) (((int(*) params)cudart_driver(name))args)
/* Keeps an error for cudaGetLastError, and returns it. */
cudaError_t cudart_said(int e);

#endif
