/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper sparse attention: the two math warpgroups. The output of 64 rows x 512 columns is half of the
 * register file, so the left warpgroup holds columns 0 to 255 and the right one 256 to 511; the left computes
 * the scores of even key blocks, the right those of odd ones (the order of FlashMLA's "new kernel deep dive",
 * 2025-04-22), or the left all. Each multiplies its own P from registers and its partner's from shared
 * memory, where it takes the place of the block's rope columns, which nobody needs after the scores. While
 * one does softmax, the other has products to run. The reference of the exponent follows the maximum only
 * when that grows by more than 2^8, so that the output is rarely rescaled. */
#ifndef SPARSE_ATTEND_SM90_MATH_CUH
#define SPARSE_ATTEND_SM90_MATH_CUH

#include "sparse_attend_sm90_tiles.cuh"

namespace attn_cuda {

/* SIDE 0: left, even blocks. SIDE 1: right, odd blocks. BOTH: both make scores, else the left alone. */
template <int DT, int SIDE, bool BOTH>
struct sparse_math {
    static constexpr int N = 128; /* columns of an instruction, see mla90_add_own */
    const mla_attend_params &p;
    const sparse_smem &sm;
    const int lane, warp, row; /* row: this thread's first row of the tile; the second is 8 further */
    const float c;             /* scale to base 2, without its sign */
    float o[128];
    mla90_state st;

    ATTN_DEV sparse_math(const mla_attend_params &params, const sparse_smem &smem)
        : p(params), sm(smem), lane(threadIdx.x & 31), warp(__shfl_sync(~0u, (int)threadIdx.x >> 5 & 3, 0)),
          row(warp * 16 + (lane >> 2)), c(fabsf(params.scale) * 1.4426950408889634f) {}

    ATTN_DEV void release(uint32_t bar) const {
        if (lane == 0) mbar_arrive(bar);
    }

    /* Q K^T of a buffer, half after half as they arrive. */
    ATTN_DEV void scores(float (&s)[32], int buffer, int phase) const {
        mbar_sleep(sm.full(buffer, 0), phase);
        fence_proxy_async();
        mla90_scores<DT, 0, 4>(s, sm.q(), sm.k(buffer));
        mbar_sleep(sm.full(buffer, 1), phase);
        fence_proxy_async();
        wgmma_pin(s);
        mla90_scores<DT, 4, MLA90_SLABS>(s, sm.q(), sm.k(buffer));
        wgmma_wait<0>();
        wgmma_pin(s);
    }

    /* Scores become P, for this side's own product in registers and for the partner in shared memory; returns
     * the factors of what was added before. */
    ATTN_DEV float2 softmax(float (&s)[32], uint32_t (&pr)[16], int buffer, int barrier) {
        uint32_t lo, hi;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(lo), "=r"(hi)
                     : "r"(sm.mask(buffer))
                     : "memory");
        if (p.scale < 0.f) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                s[i] = -s[i];
        }
        if ((lo & hi) != ~0u) {
            lo >>= (lane & 3) * 2, hi >>= (lane & 3) * 2;
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!((i < 16 ? lo : hi) >> ((i & 15) >> 2) * 8 + (i & 1) & 1)) s[i] = -INFINITY;
        }
        const float2 f = mla90_softmax<DT>(s, st, c, pr);
        mla90_store_p(sm.k(buffer) + MLA90_VALUE_SLABS * MLA90_SLAB, pr);
        if ((lane & 3) == 0) {
            st_shared_f32(sm.top(buffer, row), st.top[0]);
            st_shared_f32(sm.top(buffer, row + 8), st.top[1]);
        }
        fence_proxy_async();
        named_arrive(barrier, 256);
        return f;
    }

    /* O += P V with this side's columns of a block whose P is its own. */
    ATTN_DEV void own_values(const uint32_t (&pr)[16], float2 f, int buffer) {
        mla90_rescale(o, st, f);
        wgmma_pin(o);
        mla90_add_own<DT, N>(o, pr, sm.k(buffer), SIDE);
    }
    /* The same of the partner's block, by the reference that the partner has chosen. */
    ATTN_DEV void partner_values(int buffer) {
        const uint32_t keys = sm.k(buffer);
        mla90_rescale(
            o, st,
            mla90_follow(st, ld_shared_f32(sm.top(buffer, row)), ld_shared_f32(sm.top(buffer, row + 8))));
        wgmma_pin(o);
        mla90_add_other<DT, N>(o, keys + MLA90_VALUE_SLABS * MLA90_SLAB, keys, SIDE);
    }
    ATTN_DEV void finish(uint32_t bar) {
        wgmma_wait<0>();
        wgmma_pin(o);
        release(bar);
    }

    /* Both sides make scores. Two blocks of keys; has_odd: the second is there. last: no scores of this item
     * follow. */
    ATTN_DEV void pair_of_blocks(bool has_odd, bool last, const int (&phase)[2]) {
        float s[32];
        float2 f;
        uint32_t pr[16];
        if constexpr (SIDE == 0) {
            scores(s, 0, phase[0]);
            if (last) release(sm.q_empty());
            named_barrier(SPARSE_LEFT_ALONE, 128); /* all warps are through with the rope columns */
            f = softmax(s, pr, 0, SPARSE_P0_READY);
            own_values(pr, f, 0);
            finish(sm.empty(0, 0));
            if (has_odd) {
                named_barrier(SPARSE_P1_READY, 256);
                partner_values(1);
                finish(sm.empty(1, 0));
            }
        } else {
            if (has_odd) scores(s, 1, phase[1]);
            if (last) release(sm.q_empty());
            named_barrier(SPARSE_P0_READY, 256);
            partner_values(0);
            if (has_odd) f = softmax(s, pr, 1, SPARSE_P1_READY); /* under the product */
            finish(sm.empty(0, 1));
            if (has_odd) {
                own_values(pr, f, 1);
                finish(sm.empty(1, 1));
            }
        }
    }
    ATTN_DEV void both_sides(int blocks, int (&phase)[2]) {
#pragma unroll 1
        for (int b = 0; b < blocks; b += 2) {
            pair_of_blocks(b + 1 < blocks, b + 2 >= blocks, phase);
            phase[0] ^= 1;
            if (b + 1 < blocks) phase[1] ^= 1;
        }
    }

    /* The left side makes all scores, so that the right one leaves registers to the gathering warps. */
    ATTN_DEV void left_side(int blocks, int (&phase)[2]) {
#pragma unroll 1
        for (int b = 0; b < blocks; b++) {
            const int buffer = b & 1;
            if constexpr (SIDE == 0) {
                float s[32];
                uint32_t pr[16];
                scores(s, buffer, buffer ? phase[1] : phase[0]);
                if (b + 1 == blocks) release(sm.q_empty());
                named_barrier(SPARSE_LEFT_ALONE, 128);
                const float2 f = softmax(s, pr, buffer, SPARSE_P0_READY + buffer);
                own_values(pr, f, buffer);
            } else {
                named_barrier(SPARSE_P0_READY + buffer, 256);
                partner_values(buffer);
            }
            finish(sm.empty(buffer, SIDE));
            if (buffer)
                phase[1] ^= 1;
            else
                phase[0] ^= 1;
        }
    }

    /* 4 x 4 numbers of a row's four lanes change places: what lane i had as x[j] lane j has as x[i]. */
    ATTN_DEV void transpose(uint32_t (&x)[4]) const {
#pragma unroll
        for (int by = 1; by <= 2; by *= 2) {
            const bool upper = lane & by;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j & by) continue;
                const uint32_t got = __shfl_xor_sync(~0u, upper ? x[j] : x[j + by], by);
                x[j] = upper ? got : x[j];
                x[j + by] = upper ? x[j + by] : got;
            }
        }
    }
    /* 16 rows x 256 columns of a warp as 16-bit numbers, 32 columns of eight rows at a time; by a policy, as
     * queries are read. */
    ATTN_DEV void store_latent(int first_row, int num_rows, const float (&inv)[2]) const {
        uint16_t *out = (uint16_t *)p.latent + (int64_t)(first_row + row - p.slice_row0) * SPARSE_LATENT +
                        SIDE * 256 + (lane & 3) * 8;
        const uint64_t policy = read_once_policy();
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t x[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float *from = o + 4 * (4 * t + j) + 2 * e;
                    x[j] = pack2<DT>(from[0] * inv[e], from[1] * inv[e]);
                }
                transpose(x);
                if (row + 8 * e < num_rows)
                    st_global_v4_by(policy, out + e * 8 * SPARSE_LATENT + t * 32,
                                    make_uint4(x[0], x[1], x[2], x[3]));
            }
    }
    ATTN_DEV void store_part(int slot, int num_rows, const float (&inv)[2]) const {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (row + 8 * e >= num_rows) continue;
            float *out =
                p.part_out + ((int64_t)slot + row + 8 * e) * SPARSE_LATENT + SIDE * 256 + (lane & 3) * 2;
#pragma unroll
            for (int i = 0; i < 32; i++)
                *(float2 *)(out + i * 8) =
                    make_float2(o[4 * i + 2 * e] * inv[e], o[4 * i + 2 * e + 1] * inv[e]);
        }
    }

    ATTN_DEV void end_of_item(int parity) {
        const uint4 item = ld_shared_v4(sm.item(parity));
        const int first_row = (int)item.y, num_rows = (int)item.z, slot = (int)item.w;
        float inv[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            st.sum[e] += __shfl_xor_sync(~0u, st.sum[e], 1);
            st.sum[e] += __shfl_xor_sync(~0u, st.sum[e], 2);
            if ((lane & 3) == 0) st_shared_f32(sm.sum(parity, SIDE, row + 8 * e), st.sum[e]);
        }
        named_barrier_apart(SPARSE_ITEM_DONE, 256);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = row + 8 * e, global = first_row + r;
            const float sum = st.sum[e] + ld_shared_f32(sm.sum(parity, SIDE ^ 1, r));
            inv[e] = sum == 0.f ? 0.f : 1.f / sum; /* NaN stays NaN */
            if (SIDE != 0 || (lane & 3) != 0 || r >= num_rows) continue;
            const float lse = sum == 0.f ? -INFINITY : st.top[e] + lg2(sum);
            if (slot >= 0)
                p.part_lse[slot + r] = lse;
            else if (p.lse)
                p.lse[(global % p.num_heads) * p.lse_head + (global / p.num_heads) * p.lse_token] =
                    lse * 0.6931471805599453f;
        }
        if (slot >= 0)
            store_part(slot, num_rows, inv);
        else
            store_latent(first_row, num_rows, inv);
    }

    ATTN_DEV void run() {
        const sparse_turns turns(p);
        int phase[2] = {0, 0}, parity = 0;
#pragma unroll 1
        for (int i = turns.first; i < turns.end; i += turns.step) {
            st = {{MLA90_NO_MAX, MLA90_NO_MAX}, {0.f, 0.f}};
#pragma unroll
            for (int j = 0; j < 128; j++)
                o[j] = 0.f;
            mbar_sleep(sm.q_full(), parity);
            fence_proxy_async();
            const int blocks = ld_shared_s32(sm.item(parity));
            if (!BOTH && SIDE == 1) release(sm.q_empty()); /* which has no use for Q */
            if constexpr (BOTH)
                both_sides(blocks, phase);
            else
                left_side(blocks, phase);
            if (blocks == 0 && (BOTH || SIDE == 0)) release(sm.q_empty());
            end_of_item(parity);
            parity ^= 1;
        }
    }
};

} /* namespace attn_cuda */
#endif
