/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of transposed decode tiles share: scores S^T and output O^T have the query rows as
 * columns, and the softmax of a column goes down the 64 keys that a warpgroup holds. */
#ifndef MLA_DECODE_SM90_COLUMNS_CUH
#define MLA_DECODE_SM90_COLUMNS_CUH

#include "../ptx/ptx_sm90.cuh"
#include "kernels/cuda/ptx/wgmma_sm90.cuh"

#include "mla_live.cuh"
#include "mla_tile_sm90.cuh"

namespace attn_cuda {

ATTN_DEV void stmatrix_x4_trans(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}
/* Whether any of the threads says so; a barrier as well. */
ATTN_DEV bool named_any(int id, int threads, bool mine) {
    int any;
    asm volatile("{.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\n"
                 "selp.s32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"((int)mine), "r"(id), "r"(threads)
                 : "memory");
    return any != 0;
}

/* What a warpgroup holds of N columns. Column t of a thread is row row_of(t) of its rows; element at(t) of a
 * fragment holds it for key, or value column, warp * 16 + lane / 4, the element two further for the one eight
 * more. MT: what is multiplied. */
template <int MT, int N>
struct mla_columns {
    static constexpr int C = N / 4;
    float (*const exchange)[N]; /* [4]: of a warp, maxima, at the end sums */
    const uint32_t p_slab;      /* P, [row][key] */
    const int barrier_id;       /* and the next one */
    const int tid, warp, lane, group;
    float o[8][N / 2], top[C], sum[C];
    bool deep; /* a row is: its blocks go the way of those that raise a top */

    ATTN_DEV mla_columns(float (*exchange_)[N], uint32_t p_slab_, int barrier_id_)
        : exchange(exchange_), p_slab(p_slab_), barrier_id(barrier_id_), tid(threadIdx.x & 127),
          warp(tid >> 5), lane(tid & 31), group(lane >> 2) {}
    ATTN_DEV int row_of(int t) const { return (t >> 1) * 8 + (lane & 3) * 2 + (t & 1); }
    static ATTN_DEV constexpr int at(int t) { return 4 * (t >> 1) + (t & 1); }
    ATTN_DEV void barrier() const { named_barrier(barrier_id, 128); }

    ATTN_DEV void start(int rows) {
        deep = false;
#pragma unroll
        for (int t = 0; t < C; t++) {
            top[t] = row_of(t) < rows ? MLA90_NO_MAX : MLA90_NO_ROW; /* rows that do not exist get P = 0 */
            sum[t] = 0.f;
        }
#pragma unroll
        for (int d = 0; d < 8; d++)
#pragma unroll
            for (int j = 0; j < N / 2; j++)
                o[d][j] = 0.f;
    }

    /* A score passed its top by more than 8 (log2 units): new tops, and everything before on their scale. */
    ATTN_DEV void raise(const float (&s)[N / 2], float scale) {
#pragma unroll
        for (int t = 0; t < C; t++) {
            float most = fmaxf(s[at(t)], s[at(t) + 2]);
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            if (group == 0) exchange[warp][row_of(t)] = most;
        }
        barrier();
        deep = false;
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = row_of(t);
            const float most = __fmul_rn(
                fmaxf(fmaxf(exchange[0][r], exchange[1][r]), fmaxf(exchange[2][r], exchange[3][r])), scale);
            const float to = most - top[t] > 8.f ? most : top[t], f = ex2(top[t] - to);
            top[t] = to, sum[t] *= f, deep |= is_deep(to);
#pragma unroll
            for (int d = 0; d < 8; d++)
                o[d][at(t)] *= f, o[d][at(t) + 2] *= f;
        }
    }

    /* P of a block into shared memory, [row][key]. */
    ATTN_DEV void softmax(float (&s)[N / 2], float scale) {
        bool rises = false;
#pragma unroll
        for (int t = 0; t < C; t++)
            rises |= fmaxf(s[at(t)], s[at(t) + 2]) * scale > top[t] + 8.f;
        auto weigh = [&](auto exponent) {
#pragma unroll
            for (int t = 0; t < C; t++) {
                float &a = s[at(t)], &b = s[at(t) + 2];
                a = ex2(exponent(a, top[t])), b = ex2(exponent(b, top[t]));
                sum[t] += a + b;
            }
        };
        if (named_any(barrier_id + 1, 128, rises || deep)) {
            raise(s, scale);
            weigh([&](float x, float m) { return __fmul_rn(x, scale) - m; });
        } else
            weigh([&](float x, float m) { return fmaf(x, scale, -m); });
        const int matrix = lane >> 3, r = (matrix >> 1) * 8 + (lane & 7), chunk = warp * 2 + (matrix & 1);
        const uint32_t to = p_slab + r * 128 + ((chunk ^ (r & 7)) << 4);
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float *x = s + 8 * j;
            stmatrix_x4_trans(to + j * 2048, pack2<MT>(x[0], x[1]), pack2<MT>(x[2], x[3]),
                              pack2<MT>(x[4], x[5]), pack2<MT>(x[6], x[7]));
        }
    }

    /* The largest number of column t among o[FROM] .. o[TO - 1] of the warp. */
    template <int FROM, int TO>
    ATTN_DEV float largest(int t) const {
        float most = 0.f;
#pragma unroll
        for (int d = FROM; d < TO; d++)
            most = fmaxf(most, fmaxf(fabsf(o[d][at(t)]), fabsf(o[d][at(t) + 2])));
#pragma unroll
        for (int d = 4; d < 32; d *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
        return most;
    }
    /* The sums of whole columns; thread t of a quad's rows. */
    ATTN_DEV void add_up() {
#pragma unroll
        for (int t = 0; t < C; t++) {
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                sum[t] += __shfl_xor_sync(~0u, sum[t], d);
            if (group == 0) exchange[warp][row_of(t)] = sum[t];
        }
        barrier();
#pragma unroll
        for (int t = 0; t < C; t++) {
            const int r = row_of(t);
            sum[t] = (exchange[0][r] + exchange[1][r]) + (exchange[2][r] + exchange[3][r]);
        }
    }
};

} /* namespace attn_cuda */
#endif
