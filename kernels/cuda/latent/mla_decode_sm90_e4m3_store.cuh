/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over e4m3 caches on Hopper: how a warpgroup that holds half of the value columns leaves them. Short
 * code: it runs once for an item, and is fetched while it runs. */
#ifndef MLA_DECODE_SM90_E4M3_STORE_CUH
#define MLA_DECODE_SM90_E4M3_STORE_CUH

#include "mla_decode_sm90_columns.cuh"
#include "mla_part_sm90.cuh"

namespace attn_cuda {

/* o: 4 x 64 columns of N rows, as mla_columns has them, but element at(t) + 2 of a fragment is the column
 * after that of at(t). out: the first row's 512 columns, of 16 bits; PIECE: rows are those of mla_part, in
 * float16, and lse their logarithms in shared memory. */
template <int T, bool PIECE, int N>
ATTN_DEV void mla90_store_columns(const float (*o)[N / 2], uint8_t *out, int half, int rows, uint32_t far,
                                  const float *lse) {
    constexpr int ROW = PIECE ? 2048 : 1024;
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, group = lane >> 2;
    uint8_t *const mine = out + half * 512 + warp * 32 + group * 4;
#pragma unroll
    for (int t = 0; t < N / 4; t++) {
        const int r = (t >> 1) * 8 + (lane & 3) * 2 + (t & 1), at = 4 * (t >> 1) + (t & 1);
        float f = 1.f;
        if (PIECE) {
            float most = 0.f;
#pragma unroll
            for (int d = 0; d < 4; d++)
                most = fmaxf(most, fmaxf(fabsf(o[d][at]), fabsf(o[d][at + 2])));
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            const uint32_t power = mla_part::power(most);
            f = mla_part::inverse(power);
            if (group == 0 && r < rows && !(far >> r & 1))
                ((float2 *)(out + r * ROW + 1024))[4 * half + warp] =
                    make_float2(__uint_as_float(power), lse[r]);
        }
        if (r < rows && !(far >> r & 1))
#pragma unroll
            for (int d = 0; d < 4; d++)
                *(uint32_t *)(mine + r * ROW + d * 128) = pack2<T>(o[d][at] * f, o[d][at + 2] * f);
    }
}

/* The same, where the item wants it: a piece, or the result. rows of the item from first_row on; slot_row0:
 * that row among the pieces; lse: in shared memory, of the item's rows; far: bits of rows that are left out,
 * of the first 32. */
template <int DT, int N>
ATTN_DEV void mla90_store_item(const mla_attend_params &p, const mla_item &it, const float (*o)[N / 2],
                               int half, int first_row, int rows, int64_t slot_row0, const float *lse,
                               uint32_t far = 0) {
    if (it.slot >= 0)
        mla90_store_columns<DT_F16, true, N>(o, (uint8_t *)mla_part(p, slot_row0).values, half, rows, far,
                                             lse);
    else
        mla90_store_columns<DT, false, N>(o, (uint8_t *)p.latent + (int64_t)(first_row - p.slice_row0) * 1024,
                                          half, rows, far, lse);
}

} /* namespace attn_cuda */
#endif
