/* SPDX-License-Identifier: Apache-2.0 */
/* What moves and quantises around the index logits: new keys into the cache, cached keys into one piece,
 * queries to fp8, and -inf outside the ranges. Rows of 128 values: 8 lanes take 16 each, so that a store has
 * 16 bytes. */
#include "../ptx/launch.cuh"
#include "../ptx/ptx_sm80.cuh"
#include "indexer_params.h"

namespace attn_cuda {

template <int DTYPE>
constexpr int half_type = DTYPE == INDEXER_F16 ? (int)DT_F16 : (int)DT_BF16;

template <int DTYPE>
ATTN_DEV void load16(float (&x)[16], const void *at) {
    if constexpr (DTYPE == INDEXER_F32) {
        const float4 *src = (const float4 *)at;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 v = __ldg(src + i);
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
    } else {
        const uint4 *src = (const uint4 *)at;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 v = __ldg(src + i);
            const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 f = unpack2<half_type<DTYPE>>(word[j]);
                x[8 * i + 2 * j] = f.x, x[8 * i + 2 * j + 1] = f.y;
            }
        }
    }
}

template <int DTYPE>
ATTN_DEV float load1(const void *at, int64_t i) {
    if constexpr (DTYPE == INDEXER_F32)
        return __ldg((const float *)at + i);
    else
        return unpack2<half_type<DTYPE>>(__ldg((const uint16_t *)at + i)).x;
}

/* max(largest magnitude, floor) / 448, perhaps rounded up to a power of two; the 8 lanes of a row agree on
 * it. */
ATTN_DEV float row_scale(const float (&x)[16], float floor, bool power_of_two) {
    float largest = floor;
#pragma unroll
    for (int i = 0; i < 16; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    for (int i = 1; i < 8; i *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
    const float scale = __fdiv_rn(largest, 448.f);
    const uint32_t u = __float_as_uint(scale);
    return power_of_two && (u & 0x7fffff) != 0 ? __uint_as_float((u + 0x800000) & 0xff800000u) : scale;
}

ATTN_DEV uint4 quantize16(const float (&x)[16], float scale) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = f32x2_to_e4m3x2(__fdiv_rn(x[4 * i], scale), __fdiv_rn(x[4 * i + 1], scale)) |
                  f32x2_to_e4m3x2(__fdiv_rn(x[4 * i + 2], scale), __fdiv_rn(x[4 * i + 3], scale)) << 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

template <int DTYPE>
__global__ void __launch_bounds__(256) write_keys_kernel(const indexer_write_params p) {
    const int row = blockIdx.x * 32 + ((int)threadIdx.x >> 3), part = threadIdx.x & 7;
    constexpr int SIZE = DTYPE == INDEXER_F32 ? 4 : 2;
    const int64_t slot = row < p.num_rows ? __ldg(p.slots + row) : -1;
    const bool ok = slot >= 0 && slot < (int64_t)p.cache.num_pages * p.cache.page_size;
    float x[16] = {};
    if (ok) load16<DTYPE>(x, (const char *)p.key + (row * p.key_row + part * 16) * SIZE);
    const float scale = row_scale(x, 1e-4f, p.power_of_two != 0);
    if (!ok) return;
    const int64_t page = slot / p.cache.page_size;
    const int token = (int)(slot - page * p.cache.page_size);
    uint8_t *at = p.cache.data + page * p.cache.page_bytes;
    *(uint4 *)(at + token * INDEXER_DIM + part * 16) = quantize16(x, scale);
    if (part == 0) *(float *)(at + p.cache.page_size * INDEXER_DIM + token * 4) = scale;
}

__global__ void __launch_bounds__(256) gather_keys_kernel(const indexer_gather_params p) {
    const int key = blockIdx.x * 32 + ((int)threadIdx.x >> 3), part = threadIdx.x & 7;
    if (key >= min(p.num_keys, __ldg(p.prefix + p.num_reqs))) return;
    int lo = 0, hi = p.num_reqs - 1; /* the last request that begins at or before the key */
    while (lo < hi) {
        const int mid = (lo + hi + 1) / 2;
        if (__ldg(p.prefix + mid) <= key)
            lo = mid;
        else
            hi = mid - 1;
    }
    const int token = key - __ldg(p.prefix + lo), entry = token / p.cache.page_size,
              in_page = token % p.cache.page_size;
    const int page = entry < p.table_width ? __ldg(p.table + lo * p.table_row + entry) : -1;
    if ((uint32_t)page >= (uint32_t)p.cache.num_pages) return;
    const uint8_t *at = p.cache.data + page * p.cache.page_bytes;
    *(uint4 *)(p.keys + key * p.key_row + part * 16) =
        __ldg((const uint4 *)(at + in_page * INDEXER_DIM + part * 16));
    if (part == 0) p.scales[key] = __ldg((const float *)(at + p.cache.page_size * INDEXER_DIM) + in_page);
}

template <int DTYPE, int WEIGHTS>
__global__ void __launch_bounds__(256) quantize_queries_kernel(const indexer_quantize_params p) {
    const int64_t item = (int64_t)blockIdx.x * 32 + (threadIdx.x >> 3);
    const int part = threadIdx.x & 7, row = (int)(item / p.num_heads),
              head = (int)(item - (int64_t)row * p.num_heads);
    constexpr int SIZE = DTYPE == INDEXER_F32 ? 4 : 2;
    const bool ok = row < p.num_rows;
    float x[16] = {};
    if (ok)
        load16<DTYPE>(x,
                      (const char *)p.query + (row * p.query_row + head * p.query_head + part * 16) * SIZE);
    const float scale = row_scale(x, 1e-10f, true);
    if (!ok) return;
    *(uint4 *)(p.quantized + row * p.quantized_row + head * p.quantized_head + part * 16) =
        quantize16(x, scale);
    if (part == 0)
        p.out_weights[row * p.out_row + head] =
            load1<WEIGHTS>(p.weights, row * p.weights_row + head) * scale * p.weight_scale;
}

__global__ void __launch_bounds__(256) clean_logits_kernel(const indexer_logits_params p, int num_columns) {
    const int row = blockIdx.x;
    int lo = p.starts ? max(__ldg(p.starts + row), 0) : 0, hi = min(__ldg(p.ends + row), p.num_keys);
    if (lo >= hi) lo = hi = 0;
    float *out = p.logits + row * p.logits_row;
    for (int i = blockIdx.y * 256 + (int)threadIdx.x; i < num_columns; i += (int)gridDim.y * 256)
        if (i < lo || i >= hi) out[i] = -INFINITY;
}

template <int DTYPE>
int launch_quantize(const indexer_quantize_params &p, unsigned blocks, cudaStream_t stream) {
    if (p.weights_dtype == INDEXER_F32)
        return attn_cuda::launch_kernel(quantize_queries_kernel<DTYPE, INDEXER_F32>, blocks, 256, 0, stream,
                                        p);
    return attn_cuda::launch_kernel(quantize_queries_kernel<DTYPE, DTYPE>, blocks, 256, 0, stream, p);
}

} /* namespace attn_cuda */

using namespace attn_cuda;

extern "C" int indexer_write_keys(const indexer_write_params *p, void *stream) {
    const unsigned blocks = ((unsigned)p->num_rows + 31) / 32;
    const cudaStream_t s = (cudaStream_t)stream;
    if (p->dtype == INDEXER_F32)
        return attn_cuda::launch_kernel(write_keys_kernel<INDEXER_F32>, blocks, 256, 0, s, *p);
    if (p->dtype == INDEXER_F16)
        return attn_cuda::launch_kernel(write_keys_kernel<INDEXER_F16>, blocks, 256, 0, s, *p);
    return attn_cuda::launch_kernel(write_keys_kernel<INDEXER_BF16>, blocks, 256, 0, s, *p);
}

extern "C" int indexer_gather_keys(const indexer_gather_params *p, void *stream) {
    return attn_cuda::launch_kernel(gather_keys_kernel, ((unsigned)p->num_keys + 31) / 32, 256, 0, stream,
                                    *p);
}

extern "C" int indexer_quantize_queries(const indexer_quantize_params *p, void *stream) {
    const unsigned blocks = (unsigned)(((int64_t)p->num_rows * p->num_heads + 31) / 32);
    const cudaStream_t s = (cudaStream_t)stream;
    if (p->dtype == INDEXER_F32) return launch_quantize<INDEXER_F32>(*p, blocks, s);
    if (p->dtype == INDEXER_F16) return launch_quantize<INDEXER_F16>(*p, blocks, s);
    return launch_quantize<INDEXER_BF16>(*p, blocks, s);
}

extern "C" int indexer_clean_logits(const indexer_logits_params *p, int32_t num_columns, void *stream) {
    const unsigned blocks = ((unsigned)num_columns + 2047) / 2048;
    return attn_cuda::launch_kernel(clean_logits_kernel,
                                    dim3((unsigned)p->num_rows, blocks < 64 ? blocks : 64), 256, 0, stream,
                                    *p, num_columns);
}
