/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the numbers of CPU tensors, for scales made from activations and for the hooks. */
#ifndef ATTNI_TENSOR_VALUES_H
#define ATTNI_TENSOR_VALUES_H

#include <attn/attn_types.h>

/* One element as float: float16, bfloat16, float32, float64, both fp8 types, int8 and uint8; other types read
 * as 0. */
float attni_value(DLDataType type, const void *element);

/* Whether attni_value knows the type as a floating point type. */
int attni_is_floating(DLDataType type);

/* Calls visit with every row (last dimension) of rows 0 .. rows-1 of the first dimension, -1: all. Stops at
 * the first answer that is not 0 and returns it. Tensors of one dimension are one row. */
typedef int (*attni_row_visit)(void *user, const DLTensor *t, const char *row, int64_t index);
int attni_each_row(const DLTensor *t, int64_t rows, attni_row_visit visit, void *user);

/* Largest finite magnitude in the first `rows` of dimension 0 (-1: all). */
float attni_largest(const DLTensor *t, int64_t rows);

#endif
