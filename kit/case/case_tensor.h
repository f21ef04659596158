/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_tensor.h: tensors of a running case on any device, each between canaries: every byte of an allocation
 * that is not an element of the tensor must keep the poison it got.
 */
#ifndef ATTN_KIT_CASE_TENSOR_H
#define ATTN_KIT_CASE_TENSOR_H

#include "attn_case.h"

enum { KIT_CANARY = 0xc7, KIT_TENSOR_DIMS = 5, KIT_MAX_TENSORS = 40 };

typedef struct kit_tensor {
    DLTensor t; /* first: a kit_tensor_t pointer is passed as the tensor */
    int64_t shape[KIT_TENSOR_DIMS], strides[KIT_TENSOR_DIMS];
    void *raw;           /* device allocation */
    unsigned char *host; /* image of it */
    size_t bytes;
    const char *name;
    uint32_t dtype; /* ATTN_DTYPE_* */
} kit_tensor_t;

/* All tensors of one run; freed together. */
typedef struct kit_tensors {
    const kit_memory_t *memory;
    kit_tensor_t list[KIT_MAX_TENSORS];
    int count;
    int failed; /* an allocation or a copy failed */
} kit_tensors_t;

/* A tensor of ndim sizes; strides NULL: dense, else in elements; lead: bytes between the front canary and
 * element 0, given to the backend as byte_offset. Everything is poisoned; NULL on failure. */
kit_tensor_t *kit_tensor_make(kit_tensors_t *all, const char *name, uint32_t dtype, int ndim,
                              const int64_t *shape, const int64_t *strides, size_t lead);
/* Host address of element (i, j, 0 ..). */
unsigned char *kit_tensor_at(kit_tensor_t *t, int64_t i, int64_t j);
/* Copies rows of float into elements (i, j, :) of a 3-D tensor, for the first n rows i. */
void kit_tensor_fill(kit_tensor_t *t, const float *values, int64_t n);
/* The image to the device, and back. 0 on success. */
int kit_tensor_send(kit_tensors_t *all, kit_tensor_t *t);
int kit_tensor_fetch(kit_tensors_t *all, kit_tensor_t *t);
/* The canary's byte into all of the image and of the device's memory. */
int kit_tensor_poison(kit_tensors_t *all, kit_tensor_t *t);
/* kit_tensor_damage outside of all elements of a dense tensor of bytes, by its two canaries alone: the image
 * between them stays as it was. */
int64_t kit_tensor_canaries(kit_tensors_t *all, kit_tensor_t *t);
/* The byte offset of the first changed byte that is not in the first `rows` entries of dimension `axis`, or
 * -1. */
int64_t kit_tensor_damage(const kit_tensor_t *t, int axis, int64_t rows);
void kit_tensors_free(kit_tensors_t *all);

/* Element conversions of a row. */
void kit_store_floats(void *out, uint32_t dtype, const float *in, int64_t n);
void kit_load_doubles(const void *in, uint32_t dtype, double *out, int64_t n);

#endif
