/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c: tensors, number formats, random numbers. */
#include "tensor/tensor.h"

#include <attn/attn_plugin_util.h>
#include <math.h>

void tensor_set(tensor_t *t, const device_memory_t *memory, void *data, uint32_t dtype, uint32_t ndim,
                const int64_t *sizes) {
    memset(t, 0, sizeof *t);
    t->dl.data = data;
    t->dl.device = device_memory_device(memory);
    t->dl.ndim = (int32_t)ndim;
    t->dl.dtype = attn_dl_dtype(dtype);
    int64_t stride = 1;
    for (uint32_t i = ndim; i-- > 0;) {
        t->shape[i] = sizes[i];
        t->strides[i] = stride;
        stride *= sizes[i];
    }
    t->dl.shape = t->shape;
    t->dl.strides = t->strides;
}

void tensor_set_cache(tensor_t *t, const device_memory_t *memory, void *data,
                      const attn_kv_cache_shape_t *shape) {
    tensor_set(t, memory, data, ATTN_DTYPE_UINT8, shape->ndim, shape->shape);
    t->dl.dtype = shape->dtype;
    for (uint32_t i = 0; i < shape->ndim; i++)
        t->strides[i] = shape->byte_strides[i] / (shape->dtype.bits / 8);
}

float tensor_load(const void *data, uint32_t dtype, size_t i) {
    float value;
    uint16_t half;
    if (dtype == ATTN_DTYPE_FLOAT32) {
        memcpy(&value, (const char *)data + i * 4, 4);
        return value;
    }
    if (dtype == ATTN_DTYPE_FP8_E4M3) return (float)attn_from_e4m3(((const uint8_t *)data)[i]);
    memcpy(&half, (const char *)data + i * 2, 2);
    return (float)(dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(half) : attn_from_bf16(half));
}

void tensor_store(void *data, uint32_t dtype, size_t i, float value) {
    if (dtype == ATTN_DTYPE_FLOAT32) {
        memcpy((char *)data + i * 4, &value, 4);
        return;
    }
    if (dtype == ATTN_DTYPE_FP8_E4M3) {
        ((uint8_t *)data)[i] = attn_to_e4m3((double)value);
        return;
    }
    uint16_t half = dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16((double)value) : attn_to_bf16((double)value);
    memcpy((char *)data + i * 2, &half, 2);
}

uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

float random_normal(uint64_t *state) {
    double u = 1.0 - (double)(random_u64(state) >> 11) * 0x1p-53,
           v = (double)(random_u64(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
