/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host with an image on a device, and float16 numbers, for the tests of layers on devices.
 * Include it after tap.h. */
#ifndef ATTN_TESTS_DEVICE_BLOCKS_H
#define ATTN_TESTS_DEVICE_BLOCKS_H

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static attn_error_t error = {.struct_size = sizeof error};
static const attn_device_kind_t *kind;

/* Memory of the host with its image on the device: tensor() sends what the host wrote, fetch() gets what the
 * device did. */
static struct block {
    char *host, *there;
    size_t bytes;
} blocks[4096];
static size_t num_blocks;

TAP_UNUSED static void *alloc(size_t bytes) {
    struct block *b = &blocks[num_blocks++];
    void *there = NULL;
    b->bytes = (bytes + 511) / 256 * 256;
    b->host = aligned_alloc(256, b->bytes); /* as every backend wants its buffers */
    if (b->host != NULL) memset(b->host, 0, b->bytes);
    if (b->host == NULL || kind->alloc(0, b->bytes, &there, &error) != ATTN_OK ||
        kind->copy_to(0, there, b->host, b->bytes, NULL, &error) != ATTN_OK)
        bail_out("no memory: %s", error.text);
    b->there = there;
    return b->host;
}

static const struct block *block_of(const void *p) {
    for (size_t i = num_blocks; i-- > 0;)
        if ((const char *)p >= blocks[i].host && (const char *)p < blocks[i].host + blocks[i].bytes)
            return &blocks[i];
    bail_out("memory of nobody");
}

/* The address on a device of what alloc gave. */
static void *on(const attn_device_t *device, void *p) {
    const struct block *b = block_of(p);
    return device->type == kDLCPU ? p : b->there + ((char *)p - b->host);
}

TAP_UNUSED static void fetch(const attn_device_t *device, void *p) {
    const struct block *b = block_of(p);
    if (device->type != kDLCPU && kind->copy_from(0, b->host, b->there, b->bytes, NULL, &error) != ATTN_OK)
        bail_out("%s", error.text);
}

typedef struct box {
    DLTensor t;
    int64_t shape[4], strides[4];
} box_t;

static const DLTensor *tensor(box_t *b, const attn_device_t *device, void *data, uint32_t dtype, int ndim,
                              const int64_t *shape, const int64_t *byte_strides) {
    int64_t stride = 1;
    const struct block *block = block_of(data);
    if (device->type != kDLCPU &&
        kind->copy_to(0, block->there, block->host, block->bytes, NULL, &error) != ATTN_OK)
        bail_out("%s", error.text);
    b->t = (DLTensor){.data = on(device, data),
                      .device = {(DLDeviceType)device->type, device->id},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = b->shape,
                      .strides = b->strides};
    for (int i = ndim - 1; i >= 0; i--) {
        b->shape[i] = shape[i];
        b->strides[i] = byte_strides != NULL ? byte_strides[i] / (b->t.dtype.bits / 8) : stride;
        stride *= shape[i];
    }
    return &b->t;
}
#define TENSOR(B, DATA, DTYPE, NDIM, ...)                                                                    \
    tensor(B, device, DATA, DTYPE, NDIM, (const int64_t[]){__VA_ARGS__}, NULL)

static void fill(uint16_t *data, size_t n, uint64_t seed) { /* float16 in -1 .. 1, in steps of 1/512 */
    for (size_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int32_t v = (int32_t)(seed >> 54) - 512;
        uint32_t m = (uint32_t)(v < 0 ? -v : v), e = 0;
        while (m != 0 && m >> (e + 1) != 0)
            e++;
        data[i] = m == 0 ? 0 : (uint16_t)((v < 0 ? 0x8000 : 0) | (e + 6) << 10 | ((m << (10 - e)) & 0x3ff));
    }
}

TAP_UNUSED static double half(uint16_t h) {
    const int e = h >> 10 & 31;
    const double m = e == 0 ? ldexp(h & 0x3ff, -24) : ldexp(1024 + (h & 0x3ff), e - 25);
    return h & 0x8000 ? -m : m;
}

#endif
