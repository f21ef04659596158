/* SPDX-License-Identifier: Apache-2.0 */
/* Cache write: scatter the new K and V rows to their slots, quantising to e4m3 where the cache holds it
 * (stored = e4m3(x / scale), semantics 3.2). A negative slot, and a slot past the end of the cache, is
 * skipped.
 *
 * One unit is 8 neighbouring elements: a 16-byte load, and a 16- or 8-byte store. A row of threads takes
 * TOKENS tokens, a thread the same unit of K and of V in each: 2 * TOKENS loads are in flight before the
 * first store, beside those of the slots: a row that is skipped is read as well. */
#include "../ptx/launch.cuh"
#include "flash_launch.h"
#include "flash_rows.cuh"

using namespace attn_cuda;

template <int SRC>
ATTN_DEV uint2 quantise8(uint4 x, float inv, float scale, bool exact) {
    const uint32_t *w = &x.x;
    uint32_t r[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 a = unpack2<SRC>(w[2 * i]), b = unpack2<SRC>(w[2 * i + 1]);
        if (exact) { /* the scale is a power of two: the product is the quotient */
            a.x *= inv, a.y *= inv, b.x *= inv, b.y *= inv;
        } else {
            a.x = __fdiv_rn(a.x, scale), a.y = __fdiv_rn(a.y, scale);
            b.x = __fdiv_rn(b.x, scale), b.y = __fdiv_rn(b.y, scale);
        }
        r[i] = f32x2_to_e4m3x2(a.x, a.y) | f32x2_to_e4m3x2(b.x, b.y) << 16;
    }
    return make_uint2(r[0], r[1]);
}

template <int SRC, int DST, int TOKENS>
__global__ void __launch_bounds__(256) write_kernel(const __grid_constant__ flash_write_params p) {
    const int uk = p.num_kv_heads * (p.head_size >> 3), uv = p.num_kv_heads * (p.head_size_v >> 3);
    const int units = max(uk, uv), per = (units + blockDim.x - 1) / blockDim.x;
    const pager pg(p.page_size), of_k(p.head_size >> 3), of_v(p.head_size_v >> 3); /* units of a head */
    for (int64_t t0 = ((int64_t)blockIdx.x * blockDim.y + threadIdx.y) * TOKENS; t0 < p.num_tokens;
         t0 += (int64_t)gridDim.x * blockDim.y * TOKENS) {
        for (int j = 0; j < per; j++) {
            int u = threadIdx.x + j * blockDim.x;
            int hk = of_k.page(u), dk = of_k.offset(u) * 8, hv = of_v.page(u), dv = of_v.offset(u) * 8;
            uint4 k[TOKENS], v[TOKENS];
#pragma unroll
            for (int i = 0; i < TOKENS; i++) {
                if (t0 + i < p.num_tokens && u < uk)
                    k[i] = __ldcs((const uint4 *)((const uint16_t *)p.key + (t0 + i) * p.key_token +
                                                  hk * p.key_head + dk));
                if (t0 + i < p.num_tokens && u < uv)
                    v[i] = __ldcs((const uint4 *)((const uint16_t *)p.value + (t0 + i) * p.value_token +
                                                  hv * p.value_head + dv));
            }
            int64_t slot[TOKENS]; /* after what takes longer, which then need not wait for it */
#pragma unroll
            for (int i = 0; i < TOKENS; i++)
                slot[i] = t0 + i < p.num_tokens ? __ldg(p.slots + t0 + i) : -1;
            float ks = 1.f, vs = 1.f, ki = 1.f, vi = 1.f;
            bool kx = true, vx = true;
            if (DST == DT_E4M3) {
                ks = p.k_scale ? __ldg(p.k_scale + min(hk, p.num_kv_heads - 1) * p.scale_stride) : 1.f;
                vs = p.v_scale ? __ldg(p.v_scale + min(hv, p.num_kv_heads - 1) * p.scale_stride) : 1.f;
                ki = 1.f / ks, vi = 1.f / vs;
                kx = (__float_as_uint(ks) & 0x7fffff) == 0;
                vx = (__float_as_uint(vs) & 0x7fffff) == 0;
            }
#pragma unroll
            for (int i = 0; i < TOKENS; i++) {
                if (slot[i] < 0 || slot[i] >= p.num_slots_total) continue;
                int64_t page = pg.shift >= 0 ? slot[i] >> pg.shift : slot[i] / pg.size;
                int64_t off = slot[i] - page * pg.size;
                int64_t ka = page * p.k_page + off * p.k_token + hk * p.k_head + dk;
                int64_t va = page * p.v_page + off * p.v_token + hv * p.v_head + dv;
                if constexpr (DST == DT_E4M3) {
                    if (u < uk) *(uint2 *)((uint8_t *)p.k_cache + ka) = quantise8<SRC>(k[i], ki, ks, kx);
                    if (u < uv) *(uint2 *)((uint8_t *)p.v_cache + va) = quantise8<SRC>(v[i], vi, vs, vx);
                } else {
                    if (u < uk) *(uint4 *)((uint16_t *)p.k_cache + ka) = k[i];
                    if (u < uv) *(uint4 *)((uint16_t *)p.v_cache + va) = v[i];
                }
            }
        }
    }
}

typedef void (*write_func_t)(const flash_write_params);
static const int TOKENS = 1;

extern "C" int flash_write_cache(const flash_write_params *p, void *stream) {
    static const write_func_t kernels[2][2] = {
        {write_kernel<DT_F16, DT_F16, TOKENS>, write_kernel<DT_F16, DT_E4M3, TOKENS>},
        {write_kernel<DT_BF16, DT_BF16, TOKENS>, write_kernel<DT_BF16, DT_E4M3, TOKENS>}};
    if (!p) {
        cudaFuncAttributes a;
        for (int i = 0; i < 4; i++) {
            int e = (int)cudaFuncGetAttributes(&a, kernels[i >> 1][i & 1]);
            if (e) return e;
        }
        return 0;
    }
    if (p->num_tokens <= 0) return 0;
    write_func_t kernel = kernels[p->dtype == FLASH_BF16][p->kv_dtype == FLASH_E4M3];
    int dim = p->head_size > p->head_size_v ? p->head_size : p->head_size_v;
    int units = p->num_kv_heads * dim / 8;
    int threads = units >= 256 ? 256 : (units + 31) / 32 * 32;
    int rows = 256 / threads, per = rows * TOKENS;
    int64_t blocks = ((int64_t)p->num_tokens + per - 1) / per;
    return attn_cuda::launch_kernel(kernel, (unsigned)(blocks < 16384 ? blocks : 16384),
                                    dim3((unsigned)threads, (unsigned)rows), 0, stream, *p);
}
