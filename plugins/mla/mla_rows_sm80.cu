/* SPDX-License-Identifier: Apache-2.0 */
/* The small kernels of MLA, by rows: cache write (semantics 3.5, 3.11), weights, zeros. */
#include "../common/ptx_sm80.cuh"
#include "mla_launch.h"

#include <cuda_runtime.h>
#include <float.h>

using namespace attn_cuda;

/* Address of a slot's row, NULL where nothing is to be written. */
ATTN_DEV char *slot_row(const mla_write_params &p, int64_t t) {
    int64_t slot = __ldg(p.slots + t);
    if (slot < 0 || slot >= p.num_slots_total) return nullptr;
    int64_t page = slot / p.page_size;
    return (char *)p.cache + page * p.cache_page + (slot - page * p.page_size) * p.cache_row;
}

/* One thread 8 values: 16 bytes in, 16 or 8 bytes out. */
template <int DT, bool E4M3>
__global__ void __launch_bounds__(256) write_kernel(const __grid_constant__ mla_write_params p) {
    const int units = (p.latent_rank + MLA_ROPE) / 8;
    const float scale = E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < p.num_tokens * units;
         i += (int64_t)gridDim.x * 256) {
        int64_t t = i / units;
        int c = (int)(i - t * units) * 8;
        char *row = slot_row(p, t);
        if (row == nullptr) continue;
        const uint16_t *src = c < p.latent_rank
                                  ? (const uint16_t *)p.kv_c + t * p.kv_c_row + c
                                  : (const uint16_t *)p.k_pe + t * p.k_pe_row + c - p.latent_rank;
        uint4 x = __ldcs((const uint4 *)src);
        if constexpr (E4M3) {
            const uint32_t *w = &x.x;
            uint32_t r[2];
            for (int j = 0; j < 2; j++) {
                float2 a = unpack2<DT>(w[2 * j]), b = unpack2<DT>(w[2 * j + 1]);
                r[j] = f32x2_to_e4m3x2(__fdiv_rn(a.x, scale), __fdiv_rn(a.y, scale)) |
                       f32x2_to_e4m3x2(__fdiv_rn(b.x, scale), __fdiv_rn(b.y, scale)) << 16;
            }
            *(uint2 *)(row + c) = make_uint2(r[0], r[1]);
        } else
            *(uint4 *)(row + c * 2) = x;
    }
}

/* 656-byte rows: four warps take 128 latent values each, the fifth the rope. */
template <int DT>
__global__ void __launch_bounds__(160) write_ds_kernel(const __grid_constant__ mla_write_params p) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int64_t t = blockIdx.x;
    char *row = slot_row(p, t);
    if (row == nullptr) return;
    if (warp == 4) {
        uint32_t x = __ldg((const uint32_t *)((const uint16_t *)p.k_pe + t * p.k_pe_row) + lane);
        float2 f = unpack2<DT>(x);
        ((uint32_t *)(row + MLA_DS_ROPE_AT))[lane] = DT == DT_BF16 ? x : pack2<DT_BF16>(f.x, f.y);
        return;
    }
    uint2 x = __ldg((const uint2 *)((const uint16_t *)p.kv_c + t * p.kv_c_row + warp * 128) + lane);
    float2 a = unpack2<DT>(x.x), b = unpack2<DT>(x.y);
    float v[4] = {fabsf(a.x), fabsf(a.y), fabsf(b.x), fabsf(b.y)}, top = 0.f;
    for (int i = 0; i < 4; i++)
        top = v[i] <= top ? top : v[i]; /* NaN wins */
    for (int d = 16; d; d >>= 1) {
        float other = __shfl_xor_sync(~0u, top, d);
        top = other <= top ? top : other;
    }
    float scale = __fdiv_rn(top, 448.f);
    scale = scale < FLT_MIN ? FLT_MIN : scale;
    ((uint32_t *)(row + warp * 128))[lane] = f32x2_to_e4m3x2(__fdiv_rn(a.x, scale), __fdiv_rn(a.y, scale)) |
                                             f32x2_to_e4m3x2(__fdiv_rn(b.x, scale), __fdiv_rn(b.y, scale))
                                                 << 16;
    if (lane == 0) ((float *)(row + MLA_DS_SCALES_AT))[warp] = scale;
}

extern "C" int mla_write_cache(const mla_write_params *p, void *stream) {
    cudaStream_t s = (cudaStream_t)stream;
    if (p->cache_kind == MLA_CACHE_DS) {
        if (p->dtype == DT_BF16)
            write_ds_kernel<DT_BF16><<<(unsigned)p->num_tokens, 160, 0, s>>>(*p);
        else
            write_ds_kernel<DT_F16><<<(unsigned)p->num_tokens, 160, 0, s>>>(*p);
        return (int)cudaGetLastError();
    }
    int64_t blocks = (p->num_tokens * ((p->latent_rank + MLA_ROPE) / 8) + 255) / 256;
    unsigned grid = (unsigned)(blocks < 65536 ? blocks : 65536);
    if (p->cache_kind == MLA_CACHE_16)
        write_kernel<DT_BF16, false><<<grid, 256, 0, s>>>(*p);
    else if (p->dtype == DT_BF16)
        write_kernel<DT_BF16, true><<<grid, 256, 0, s>>>(*p);
    else
        write_kernel<DT_F16, true><<<grid, 256, 0, s>>>(*p);
    return (int)cudaGetLastError();
}

/* Element by element: it runs once, after loading. */
template <int DT>
__global__ void weights_kernel(uint16_t *dst, const void *src, int64_t rows, int width, int64_t src_row,
                               int is_e4m3, const float *scale) {
    const float f = is_e4m3 && scale ? __ldg(scale) : 1.f;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < rows * width;
         i += (int64_t)gridDim.x * 256) {
        int64_t at = i / width * src_row + i % width;
        if (is_e4m3) {
            float x = unpack2<DT_F16>(e4m3x2_to_f16x2<0>(((const uint8_t *)src)[at])).x * f;
            dst[i] = (uint16_t)pack2<DT>(x, 0.f);
        } else
            dst[i] = ((const uint16_t *)src)[at];
    }
}

extern "C" int mla_copy_weights(void *dst, const void *src, int64_t rows, int width, int64_t src_row,
                                int dtype, int is_e4m3, const float *scale, void *stream) {
    if (dtype == DT_BF16)
        weights_kernel<DT_BF16><<<2048, 256, 0, (cudaStream_t)stream>>>((uint16_t *)dst, src, rows, width,
                                                                        src_row, is_e4m3, scale);
    else
        weights_kernel<DT_F16><<<2048, 256, 0, (cudaStream_t)stream>>>((uint16_t *)dst, src, rows, width,
                                                                       src_row, is_e4m3, scale);
    return (int)cudaGetLastError();
}

__global__ void zero_kernel(uint16_t *out, int64_t rows, int heads, int size, int64_t token, int64_t head) {
    int64_t n = rows * heads * size;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        int64_t t = i / (heads * size);
        int rest = (int)(i - t * heads * size);
        out[t * token + rest / size * head + rest % size] = 0;
    }
}

extern "C" int mla_zero_rows(void *out, int64_t rows, int heads, int size, int64_t token, int64_t head,
                             void *stream) {
    zero_kernel<<<1024, 256, 0, (cudaStream_t)stream>>>((uint16_t *)out, rows, heads, size, token, head);
    return (int)cudaGetLastError();
}

/* Queries, `stages` tiles of keys, P. */
extern "C" size_t mla_attend_smem(int latent_rank, int stages) {
    return (size_t)(1 + stages) * MLA_TILE_ROWS * (size_t)(latent_rank + MLA_ROPE) * 2 + MLA_TILE_ROWS * 128;
}
