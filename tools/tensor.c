/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c: tensors, number formats, random numbers. */
#include "tensor.h"

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

static float from_f16(uint16_t h) {
    uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
    float magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                      : exponent == 0 ? ldexpf((float)fraction, -24)
                                      : ldexpf((float)(fraction | 1024), (int)exponent - 25);
    return (h >> 15) != 0 ? -magnitude : magnitude;
}

/* Rounds by the position of the last kept bit, which also makes the subnormals right. */
static uint16_t to_f16(float value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float a = fabsf(value);
    if (isnan(value)) return sign | 0x7e00;
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a == 0) return sign;
    int exponent;
    frexpf(a, &exponent); /* a = m * 2^exponent, m in [0.5, 1) */
    int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    uint32_t steps = (uint32_t)nearbyintf(ldexpf(a, -unit));
    if (unit == -24) return (uint16_t)(sign | steps);
    if (steps == 2048) {
        steps = 1024;
        unit++;
    }
    return (uint16_t)(sign | (uint32_t)(unit + 25) << 10 | (steps & 1023));
}

float tensor_load(const void *data, uint32_t dtype, size_t i) {
    float value;
    uint32_t bits;
    uint16_t half;
    if (dtype == ATTN_DTYPE_FLOAT32) {
        memcpy(&value, (const char *)data + i * 4, 4);
        return value;
    }
    memcpy(&half, (const char *)data + i * 2, 2);
    if (dtype == ATTN_DTYPE_FLOAT16) return from_f16(half);
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, 4);
    return value;
}

void tensor_store(void *data, uint32_t dtype, size_t i, float value) {
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &value, 4);
    if (dtype == ATTN_DTYPE_FLOAT32) {
        memcpy((char *)data + i * 4, &value, 4);
        return;
    }
    if (dtype == ATTN_DTYPE_FLOAT16)
        half = to_f16(value);
    else if (isnan(value))
        half = (uint16_t)(bits >> 16 | 0x40);
    else
        half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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
