/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a narrow tile over e4m3 latents whose scores lie beyond what the loop can tell apart, computed
 * anew: what far_rows.cuh does for prompts, and by the same sign, the state that a row ends with. */
#ifndef MLA_FAR_ROWS_CUH
#define MLA_FAR_ROWS_CUH

#include "mla_live.cuh"
#include "mla_part_sm90.cuh"

namespace attn_cuda {

/* b, l: a row's maximum in base-2 units and its sum, which is NaN too where a result of it is no number. */
ATTN_DEV bool mla_is_far(float b, float l) {
    return !(fabsf(fmaf(l, 0.f, b)) <= DEEP || (b == LOWEST && l == 0.f)); /* the latter: sees nothing */
}

/* One row of an item, by a warp, from its keys to where the item's results go. DT: type of queries, which
 * become float16 as everywhere (saturated). */
template <int DT>
ATTN_DEV void mla_far_row(const mla_attend_params &p, const mla_item &it, int row, int64_t slot_row) {
    const float k_scale = p.k_scale ? __ldg(p.k_scale) : 1.f;
    const int lane = threadIdx.x & 31, token = row / p.num_heads;
    const int lo = __shfl_sync(~0u, it.k_begin, 0),
              hi = __shfl_sync(~0u, min(it.k_end, it.base + token + 1), 0);
    const int32_t *table = p.counts->block_table + it.request * p.counts->block_table_stride;
    const uint16_t *latent = (const uint16_t *)p.absorbed + (row - p.slice_row0) * p.absorbed_row,
                   *rope = (const uint16_t *)p.query + token * p.q_token +
                           (row - token * p.num_heads) * p.q_head + p.nope;
    const double c = (double)p.scale * k_scale * (p.q_scale ? __ldg(p.q_scale) : 1.f);
    auto key_at = [&](int key) {
        const int page = key / p.page_size;
        return max(min(__ldg(table + page), (int)p.num_pages - 1), 0) * p.cache_page +
               (key - page * p.page_size) * p.cache_row;
    };
    auto score = [&](int64_t at) {
        double s = 0;
#pragma unroll 1
        for (int d = 0; d < 576; d += 8) {
            const uint4 x = *(const uint4 *)(d < 512 ? latent + d : rope + d - 512);
            const uint2 y = __ldg((const uint2 *)((const uint8_t *)p.cache + at + d));
            const uint32_t q[4] = {x.x, x.y, x.z, x.w};
            const uint32_t k[4] = {e4m3x2_to_f16x2<0>(y.x), e4m3x2_to_f16x2<1>(y.x), e4m3x2_to_f16x2<0>(y.y),
                                   e4m3x2_to_f16x2<1>(y.y)};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 a = unpack2<DT_F16>(pack2_limited(unpack2<DT>(q[i]))), b = unpack2<DT_F16>(k[i]);
                s = fma((double)a.x, (double)b.x, s), s = fma((double)a.y, (double)b.y, s);
            }
        }
        return s * c;
    };
    double top = -INFINITY;
    bool is_number = true;
#pragma unroll 1
    for (int k = lo; k < hi && is_number; k += 32) {
        const double s = score(key_at(min(k + lane, hi - 1)));
        top = fmax(top, s);
        is_number = !__any_sync(~0u, !(s < INFINITY));
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        top = fmax(top, __shfl_xor_sync(~0u, top, i));
    if (top == -INFINITY) top = 0; /* all are hidden: weights of 0 */

    float o[16], l = 0.f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        o[i] = 0.f;
#pragma unroll 1
    for (int k = lo; k < hi && is_number; k += 32) {
        const int count = min(32, hi - k);
        const long long at = key_at(min(k + lane, hi - 1));
        const float weight = lane < count ? ex2((float)((score(at) - top) * 1.4426950408889634)) : 0.f;
        float part[16]; /* sums of sums: a long one of equal terms would drift */
        l += weight;
#pragma unroll
        for (int i = 0; i < 16; i++)
            part[i] = 0.f;
#pragma unroll 1
        for (int j = 0; j < count; j++) {
            const float w = __shfl_sync(~0u, weight, j);
            const uint8_t *from = (const uint8_t *)p.cache + __shfl_sync(~0u, at, j) + 2 * lane;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 x =
                    unpack2<DT_F16>(e4m3x2_to_f16x2<0>(__ldg((const uint16_t *)(from + 64 * i))));
                part[2 * i] = fmaf(w, x.x, part[2 * i]), part[2 * i + 1] = fmaf(w, x.y, part[2 * i + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            o[i] += part[i];
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        l += __shfl_xor_sync(~0u, l, i);
    const float f = !is_number ? NAN : l > 0.f ? k_scale * rcp_approx(l) : 0.f;
    const float lse = !is_number ? NAN
                      : l > 0.f  ? (float)(top * 1.4426950408889634 + (double)lg2(l))
                                 : -INFINITY;
    __syncwarp(); /* its queries have been read: the result may lie in their place */
    if (lane == 0) mla90_store_lse(p, it, row, lse);
    if (__any_sync(~0u, it.slot >= 0)) {
        const mla_part part(p, slot_row);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *x = o + 8 * half, most = 0.f;
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] *= f, most = fmaxf(most, fabsf(x[i]));
#pragma unroll
            for (int i = 1; i < 8; i *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
            const uint32_t power = mla_part::power(most);
            const float inverse = mla_part::inverse(power);
            if ((lane & 7) == 0) part.set_mark(4 * half + (lane >> 3), __uint_as_float(power), lse);
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint32_t *)(part.values + 256 * half + 64 * i + 2 * lane) =
                    pack2<DT_F16>(x[2 * i] * inverse, x[2 * i + 1] * inverse);
        }
    } else {
        uint16_t *to = (uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * 512 + 2 * lane;
#pragma unroll
        for (int i = 0; i < 8; i++)
            *(uint32_t *)(to + 64 * i) = pack2<DT>(o[2 * i] * f, o[2 * i + 1] * f);
    }
}

} /* namespace attn_cuda */
#endif
