/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a tile in the Hopper prefill kernel of 16-bit products: sums, sink, LSE, and rows of the result
 * in 16-byte pieces, from registers or through the shared memory of Q. */
#ifndef PREFILL_SM90_STORE_CUH
#define PREFILL_SM90_STORE_CUH

#include "../ptx/ptx_sm90_bulk_store.cuh"
#include "../ptx/ptx_sm90.cuh"
#include "far_rows.cuh"

#include <type_traits>

namespace attn_cuda {

/* A thread's two rows of the result (second_of) from the registers of four neighbours, each of which stores
 * 16 bytes of every 64; where an earlier result lies there, the sum of the two by their weights (semantics
 * 6.5). */
template <int DT, class T>
ATTN_DEV void write_rows(const flash_sm90_params &P, const tile_info &t, const float (&o)[T::DV / 2], int row,
                         int head, int q, float b0, float b1, float l0, float l1, float r0, float r1) {
    constexpr int DV = T::DV;
    const flash_params &p = P.p;
    const second_row second = second_of<T>(P);
    const int rows[2] = {row, row + second.token};
    const int64_t to_second = second.at(p.out_token, p.out_head);
    float factor[2] = {r0, r1}, old[2] = {0.f, 0.f};
    if (T::DIRECT && P.more.old_lse) {
        const float part[2] = {natural_lse(b0, l0), natural_lse(b1, l1)};
        merged m[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *lse = P.more.old_lse + head * P.more.old_lse_head + t.q0 + rows[i];
            m[i] = merge_weights(is_row(rows[i], t.q_len) ? *lse : -INFINITY, part[i]);
            factor[i] *= m[i].part, old[i] = m[i].old;
        }
        __syncwarp(); /* all have read, and p.lse may be old_lse */
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (p.lse && q == 0 && is_row(rows[i], t.q_len))
                p.lse[(int64_t)(t.q0 + rows[i]) * p.lse_token + (int64_t)head * p.lse_head] = m[i].lse;
    } else if (p.lse && q == 0)
        write_lse(p, t.q0, t.q_len, head, t.piece, row, second, b0, b1, l0, l1);
    uint16_t *to = (uint16_t *)p.out + t.piece * p.out_piece + (int64_t)(t.q0 + row) * p.out_token +
                   (int64_t)head * p.out_head + q * 8;
#pragma unroll
    for (int c = 0; c < DV / 32 * 32; c += 32)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *x = o + c / 2 + 2 * i, f = factor[i];
            uint4 y =
                transpose_quad(make_uint4(pack2<DT>(x[0] * f, x[1] * f), pack2<DT>(x[4] * f, x[5] * f),
                                          pack2<DT>(x[8] * f, x[9] * f), pack2<DT>(x[12] * f, x[13] * f)),
                               q);
            if (!is_row(rows[i], t.q_len) || c + q * 8 >= p.head_size_v) continue;
            uint4 *at = (uint4 *)(to + i * to_second + c);
            if (old[i] != 0.f) y = add_scaled<DT>(y, *at, old[i]);
            *at = y;
        }
    if constexpr (DV % 32 != 0) { /* one or two blocks of 8 are left: quarters are blocks and rows */
        static_assert(DV % 32 <= 16 && !T::DIRECT, "no more than two blocks, and no earlier result");
        const float *x = o + DV / 32 * 16;
        uint4 y = make_uint4(pack2<DT>(x[0] * r0, x[1] * r0), pack2<DT>(x[2] * r1, x[3] * r1), 0, 0);
        if constexpr (DV % 32 == 16)
            y.z = pack2<DT>(x[4] * r0, x[5] * r0), y.w = pack2<DT>(x[6] * r1, x[7] * r1);
        y = transpose_quad(y, q);
        const int column = DV / 32 * 32 + (q >> 1) * 8;
        if (is_row(row + 8 * (q & 1), t.q_len) && column < p.head_size_v)
            *(uint4 *)(to - q * 8 + 8 * (q & 1) * p.out_token + column) = y;
    }
}

/* A piece's rows, two a thread, as they are, for the merge: four neighbours store 32 bytes of a row. */
template <class T>
ATTN_DEV void write_part(const flash_params &p, const tile_info &t, const float (&o)[T::DV / 2], int row,
                         second_row second, int head, int q, float r0, float r1) {
    float *to = part_row(p, t.piece, t.q0 + row, head) + 2 * q;
#pragma unroll
    for (int i = 0; i < T::DV / 8; i++) {
        if (8 * i >= p.head_size_v) break;
        if (is_row(row, t.q_len)) *(float2 *)(to + 8 * i) = make_float2(o[4 * i] * r0, o[4 * i + 1] * r0);
        if (is_row(row + second.token, t.q_len))
            *(float2 *)(to + second.at(p.out_token, p.out_head) + 8 * i) =
                make_float2(o[4 * i + 2] * r1, o[4 * i + 3] * r1);
    }
}

/* A warp's 16 rows of a tile: b in base-2 units and el, maximum and sum of the thread's two rows. DIRECTLY
 * from registers, or through `rows_of_q`, the warpgroup's own rows of Q, which `empty` gives back (or of
 * memory for the result, T::OB). */
template <int DT, class T, bool DIRECTLY>
ATTN_DEV void store_tile(const flash_sm90_params &P, const tile_info &t, const float (&o)[T::DV / 2],
                         uint32_t rows_of_q, uint32_t empty, int w, int tid, float b0, float b1, float el0,
                         float el1) {
    constexpr int BM = T::BM, DV = T::DV;
    constexpr bool WIDENED = T::WIDENED;
    const flash_params &p = P.p;
    const int lane = tid & 31, wr = tid >> 5, g = lane >> 2, q = lane & 3;
    const warp_rows mine = rows_of_warp<T>(P, t, w, wr);
    const int first_row = mine.row, row = first_row + g, q0 = t.q0, q_len = t.q_len, head = mine.head,
              piece = t.piece;
    const second_row second = second_of<T>(P);
    float r0, r1;
    finish_rows(p, head, min(head + second.head, p.num_q_heads - 1), b0, b1, el0, el1, r0, r1);
    if constexpr (WIDENED) {
        const float vscale = p.v_scale ? __ldg(p.v_scale + head / p.group * p.scale_stride) : 1.f;
        r0 *= vscale, r1 *= vscale;
    }
    r0 = el0 > 0.f ? r0 / el0 : 0.f;
    r1 = el1 > 0.f ? r1 / el1 : 0.f;
    if constexpr (T::PARTS) {
        if (p.parts_are_f32) {
            if (p.lse && q == 0) write_lse(p, q0, q_len, head, piece, row, second, b0, b1, el0, el1);
            write_part<T>(p, t, o, row, second, head, q, r0, r1);
            if (!DIRECTLY) {
                named_barrier(2 + w, 128); /* every warp's QK of the tile is behind it */
                if (tid == 0) mbar_arrive(empty);
            }
            return;
        }
    }
    if constexpr (T::OB > 0) { /* whole rows of 16 by the copy engine */
        if (__any_sync(~0u, P.o_boxes && piece == 0 && second.token > 0 && first_row >= 0 &&
                                first_row + 16 <= q_len)) {
            if (p.lse && q == 0) write_lse(p, q0, q_len, head, piece, row, second, b0, b1, el0, el1);
            const uint32_t so = rows_of_q + wr * 16 * 128;
            if (lane == 0) bulk_store_wait_read(); /* the tile before */
            __syncwarp();
#pragma unroll
            for (int i = 0; i < DV / 16; i++) {
                const int ch = 2 * i + (lane >> 4), rw = lane & 15;
                const float *x = o + 8 * i;
                stmatrix_x4(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4),
                            pack2<DT>(x[0] * r0, x[1] * r0), pack2<DT>(x[2] * r1, x[3] * r1),
                            pack2<DT>(x[4] * r0, x[5] * r0), pack2<DT>(x[6] * r1, x[7] * r1));
            }
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) {
#pragma unroll
                for (int c = 0; c < T::VC; c++)
                    tma_store_3d(so + c * (BM * 128), &P.o_map, c * 64, q0 + first_row, head);
                bulk_store_commit();
            }
            return;
        }
    }
    if constexpr (DIRECTLY) {
        write_rows<DT, T>(P, t, o, row, head, q, b0, b1, el0, el1, r0, r1);
        return;
    }
    if (p.lse && q == 0) write_lse(p, q0, q_len, head, piece, row, second, b0, b1, el0, el1);
    /* O through this warpgroup's own rows of Q: every warp's QK of the tile is behind this barrier */
    named_barrier(2 + w, 128);
    auto pair = [&](float x, float y) { return WIDENED ? pack2_as(p.out_dtype, x, y) : pack2<DT>(x, y); };
    const uint32_t so = rows_of_q + wr * 16 * 128;
#pragma unroll
    for (int i = 0; i < DV / 16; i++) {
        const int ch = 2 * i + (lane >> 4), rw = lane & 15;
        stmatrix_x4(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4),
                    pair(o[8 * i] * r0, o[8 * i + 1] * r0), pair(o[8 * i + 2] * r1, o[8 * i + 3] * r1),
                    pair(o[8 * i + 4] * r0, o[8 * i + 5] * r0), pair(o[8 * i + 6] * r1, o[8 * i + 7] * r1));
    }
    if constexpr (DV % 16 != 0) {
        constexpr int i = DV / 16, ch = 2 * i;
        const int rw = lane & 15;
        stmatrix_x2(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4),
                    pair(o[8 * i] * r0, o[8 * i + 1] * r0), pair(o[8 * i + 2] * r1, o[8 * i + 3] * r1));
    }
    __syncwarp();
    constexpr int UNITS = 16 * (DV / 8), PASSES = (UNITS + 31) / 32;
    uint4 x[PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int u = i * 32 + lane, rw = u / (DV / 8), ch = u % (DV / 8);
        if (UNITS % 32 == 0 || u < UNITS)
            x[i] = ld_shared_v4(so + (ch >> 3) * (BM * 128) + rw * 128 + (((ch & 7) ^ (rw & 7)) << 4));
    }
    fence_proxy_async();
    named_barrier(2 + w, 128);
    if (tid == 0) mbar_arrive(empty);
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int u = i * 32 + lane, rw = u / (DV / 8), ch = u % (DV / 8);
        const int upper = rw >> 3, r = first_row + (rw & 7) + upper * second.token,
                  h = head + upper * second.head;
        if ((UNITS % 32 == 0 || u < UNITS) && is_row(r, q_len) && ch * 8 < p.head_size_v)
            *(uint4 *)((uint16_t *)p.out + piece * p.out_piece + (int64_t)(q0 + r) * p.out_token +
                       (int64_t)h * p.out_head + ch * 8) = x[i];
    }
}

/* The same from maxima em in raw units of scores, ec: those to base-2 units; then anew the rows that are far
 * from zero. */
template <int DT, class T, bool DIRECTLY>
ATTN_DEV void write_tile(const flash_sm90_params &P, const tile_info &info, float (&o)[T::DV / 2],
                         uint32_t rows_of_q, uint32_t empty, int w, int tid, float em0, float em1, float el0,
                         float el1, float ec) {
    /* The description may be written over once Q's rows are given back. */
    std::conditional_t<DIRECTLY, const tile_info &, const tile_info> t = info;
    const int lane = tid & 31;
    el0 += __shfl_xor_sync(~0u, el0, 1);
    el1 += __shfl_xor_sync(~0u, el1, 1);
    el0 += __shfl_xor_sync(~0u, el0, 2);
    el1 += __shfl_xor_sync(~0u, el1, 2);
    float b0 = em0 == -INFINITY ? NO_MAX : em0 * ec, b1 = em1 == -INFINITY ? NO_MAX : em1 * ec;
    const warp_rows mine = rows_of_warp<T>(P, t, w, tid >> 5);
    const int first_row = mine.row, row = first_row + (lane >> 2);
    bool far0 = is_far(b0, el0, o[0]), far1 = is_far(b1, el1, o[2]);
    const bool any = __any_sync(~0u, far0 || far1);
    if constexpr (T::DIRECT)
        if (any && P.more.old_lse) { /* the earlier result stays, as if they saw nothing */
            far0 = __ballot_sync(~0u, far0) >> (lane & 28) & 15;
            far1 = __ballot_sync(~0u, far1) >> (lane & 28) & 15;
            if (far0) b0 = NO_MAX, el0 = 0.f;
            if (far1) b1 = NO_MAX, el1 = 0.f;
#pragma unroll
            for (int i = 0; i < T::DV / 2; i++)
                if (i & 2 ? far1 : far0) o[i] = 0.f;
        }
    store_tile<DT, T, DIRECTLY>(P, t, o, rows_of_q, empty, w, tid, b0, b1, el0, el1);
    if (any) {
        if (T::OB > 0) bulk_store_wait(); /* whole boxes of rows */
        const far_tile far = {view_of(t),
                              t.seq,
                              t.k0,
                              t.piece,
                              mine.head,
                              second_of<T>(P),
                              T::WIDENED ? P.p.out_dtype : DT,
                              T::DIRECT ? P.more.old_lse : nullptr,
                              P.more.old_lse_head};
        const uint32_t low = __ballot_sync(~0u, far0 && is_row(row, far.view.q_len)),
                       high = __ballot_sync(~0u, far1 && is_row(row + far.second.token, far.view.q_len));
        far_rows<DT, T::WIDENED ? DT_E4M3 : DT, T::DV, T::FEATURE>(P.p, far, first_row, low, high, lane);
    }
}

} /* namespace attn_cuda */
#endif
