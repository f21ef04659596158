/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are taken as dense. Caught by: offsets, with gaps */
#include "bad.h"

static int64_t bad_byte_stride(const DLTensor *t, int i) {
    int64_t stride = t->dtype.bits / 8;
    for (int j = t->ndim - 1; j > i; j--)
        stride *= t->shape[j];
    return t->ndim == 4 ? attn_byte_stride(t, i) : stride;
}
#define attn_byte_stride(t, i) bad_byte_stride(t, i)

#include "bad_plugin.h"
