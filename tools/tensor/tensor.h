/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h: DLPack tensors with room for their own shape, and numbers between float and the 16-bit
 * formats. */
#ifndef ATTN_TOOLS_TENSOR_H
#define ATTN_TOOLS_TENSOR_H

#include <attn/attn_types.h>

#include "tensor/device_memory.h"

typedef struct tensor {
    DLTensor dl;
    int64_t shape[ATTN_CACHE_MAX_DIMS], strides[ATTN_CACHE_MAX_DIMS];
} tensor_t;

/* A dense tensor over memory that somebody else owns; sizes as int64_t, ndim of them. The pointers in it
 * point into *t, so it must not be copied. */
void tensor_set(tensor_t *t, const device_memory_t *memory, void *data, uint32_t dtype, uint32_t ndim,
                const int64_t *sizes);
#define TENSOR_1D(t, m, p, dtype, a)       tensor_set(t, m, p, dtype, 1, (const int64_t[]){(a)})
#define TENSOR_2D(t, m, p, dtype, a, b)    tensor_set(t, m, p, dtype, 2, (const int64_t[]){(a), (b)})
#define TENSOR_3D(t, m, p, dtype, a, b, c) tensor_set(t, m, p, dtype, 3, (const int64_t[]){(a), (b), (c)})
/* A cache as its shape says. */
void tensor_set_cache(tensor_t *t, const device_memory_t *memory, void *data,
                      const attn_kv_cache_shape_t *shape);

/* Element i of an array that need not be aligned; float32, float16, bfloat16 and e4m3. */
float tensor_load(const void *data, uint32_t dtype, size_t i);
void tensor_store(void *data, uint32_t dtype, size_t i, float value); /* rounds to nearest, ties to even */

/* splitmix64 and a normal number from it (Box and Muller 1958). */
uint64_t random_u64(uint64_t *state);
float random_normal(uint64_t *state);

#endif
