/* SPDX-License-Identifier: Apache-2.0 */
/* The segmented 3D kernel (semantics 6.6): few query rows against a long cache, limited by how fast memory is
 * read.
 *
 * Transposed products, S^T = K Q^T and O^T = V^T P^T by mma.sync m16n8k16, so that 16 keys fill the M side
 * and eight query rows an n-tile. A warp is the unit of work: it owns every TL_DWARPS-th block of 16 keys of
 * the segment and a private ring of STAGES blocks in shared memory, filled by its own cp.async groups; the
 * loop has no barrier wider than the warp. The warps' (m, l, O) meet once at the end; of the CTAs that share
 * a request, the last to finish puts the segments together.
 *
 * 8-bit codes become f16 in registers. The k order of a fragment is then a permutation inside each 32
 * columns; Q is loaded in the same order and O stored through the inverse.
 *
 * K, V and their inline scales are one row of bytes (TL_JOINT), aligned to 8. It is copied as the 16-byte
 * units that hold it, lines of 128 bytes whole, so that it begins somewhere in the first line of its row of
 * the ring, and read by words instead of ldmatrix: four tokens by four columns a thread are transposed by
 * PRMT. K and V apart would fetch a fifth more from the second-level cache, whose sectors have 32 bytes, and
 * that is the limit.
 *
 * Grid: x = KV heads (fastest, so that the heads of one token are read together) times row blocks, y = items.
 * Macros beyond triton_rows.cuh: TL_DWARPS, TL_NT (n-tiles of 8 rows), TL_DCTAS, TL_SWIZZLE. */
#ifndef TRITON_DECODE_CUH
#define TRITON_DECODE_CUH

#include "decode_sm80_tile.cuh"
#include "triton_reduce.cuh"

namespace attn_cuda {
namespace decode {

constexpr int MMA = TL_KV == DT_BF16 ? DT_BF16 : DT_F16, EB = element_bytes(TL_KV), QB = element_bytes(TL_Q);
constexpr bool CODES = EB == 1;
constexpr int DP = CODES ? (TL_D + 31) / 32 * 32 : (TL_D + 15) / 16 * 16;
constexpr int DVP = CODES ? (TL_DV + 31) / 32 * 32 : (TL_DV + 15) / 16 * 16;
constexpr int odd16(int bytes) {
    return (bytes / 16) % 2 ? bytes : bytes + 16;
} /* ldmatrix without bank conflicts */
constexpr int JOINT_RS = (128 + TL_D + DVP + 127) / 128 * 128,
              STAGES = 3; /* at most 120 bytes before K; scales: 8 */
constexpr int KRS = TL_JOINT ? JOINT_RS : TL_SWIZZLE ? ((DP + DVP) * EB + 127) / 128 * 128 : odd16(DP * EB);
constexpr int VRS = TL_JOINT || TL_SWIZZLE ? KRS : odd16(DVP * EB);
/* V after K: in a row of the ring, else in a block of 16 tokens */
constexpr int V_AT = TL_JOINT ? TL_D + 4 : TL_SWIZZLE ? 0 : 16 * KRS, V_UNIT = TL_SWIZZLE ? DP * EB / 16 : 0;
constexpr int SCALES_AT = TL_SWIZZLE ? 16 * KRS : 16 * (KRS + VRS);
constexpr int BLOCK = TL_JOINT ? 16 * JOINT_RS : SCALES_AT + (TL_TOKEN_HEAD ? 128 : 0), RING = STAGES * BLOCK;
constexpr int ROWS = TL_NT * 8, ORS = DVP + 4, NT = TL_NT, WARPS = TL_DWARPS, QSTEP = DP / 16, MT = DVP / 16;
constexpr int EXCHANGE = WARPS * ROWS * ORS * 4, SMEM = WARPS * RING > EXCHANGE ? WARPS *RING : EXCHANGE;
static_assert(SMEM == TL_DECODE_SMEM, "triton_config.c knows the same size");
static_assert(SMEM >= 2 * WARPS * TL_MAX_PIECES * 4, "merging takes the ring's memory");
constexpr float LAZY = TL_TOKEN_HEAD ? 0.f : 8.f, V_SHIFT = TL_TOKEN_HEAD ? 64.f : 1.f;

/* Where the 16 bytes of column c of ring row r lie. TL_SWIZZLE: a row is K, then V of one token in whole
 * lines of 128 bytes, with the 128-byte swizzle. ldmatrix has no bank conflicts either way, but a line of
 * memory that lands in two lines of shared memory costs a second request to the L2 (measured: 92 instead of
 * 97% of the read rate). */
template <int RS>
ATTN_DEV uint32_t ring_unit(int r, int c) {
    return TL_SWIZZLE ? r * RS + (c >> 3) * 128 + (((c ^ r) & 7) << 4) : r * RS + c * 16;
}

/* TL_JOINT: what the swizzle changes in an address of ring row r, whose offset in a line is that of its
 * address in memory. Eight rows, and every other row of eight, lie in different banks. */
ATTN_DEV uint32_t joint_flip(int r) {
    return ((r ^ (r & 7) >> 2) & 3) << 5 | (r >> 2 & 1) << 4;
}

/* 16 rows of SIZE bytes to the ring, from column C0 on. Rows that are not wanted arrive as zeros: what lies
 * there may be NaN, and 0 * NaN would reach the output. The padding columns were zeroed once and stay so. */
template <int SIZE, int RS, int C0>
ATTN_DEV void load_block(uint32_t dst, const uint8_t *src, int64_t stride, bool all, int tok,
                         const key_walk &walk, int lane) {
    constexpr int UNIT = TL_JOINT ? 16 : TL_KVEC, CPR = (SIZE + UNIT - 1) / UNIT, TOTAL = 16 * CPR;
    auto row = [&](int r) { /* 15 rows of TL_JOINT are less than 4 GB: triton_tensors.c */
                            return TL_JOINT ? (const uint8_t *)(((uintptr_t)src +
                                                                 (uint64_t)(uint32_t)r * (uint32_t)stride) &
                                                                ~(uintptr_t)15)
                                            : src + r * stride;
    };
    auto to = [&](int r, int c) -> uint32_t {
        if constexpr (TL_JOINT)
            return r * RS + ((((uint32_t)(uintptr_t)row(r) & 127) + c * 16) ^ joint_flip(r));
        return TL_SWIZZLE ? ring_unit<RS>(r, C0 + c) : r * RS + c * UNIT;
    };
    if (all) {
#pragma unroll
        for (int u = 0; u < (TOTAL + 31) / 32; u++) {
            int i = u * 32 + lane, r, c;
            if constexpr (32 % CPR == 0)
                r = u * (32 / CPR) + lane / CPR, c = lane % CPR;
            else
                r = i / CPR, c = i % CPR;
            if (TOTAL % 32 == 0 || i < TOTAL) cp_async<UNIT>(dst + to(r, c), row(r) + c * UNIT);
        }
    } else {
#pragma unroll 2
        for (int i = lane; i < TOTAL; i += 32) {
            int r = i / CPR, c = i % CPR;
            bool ok = walk.wanted(tok + r);
            cp_async_zfill<UNIT>(dst + to(r, c), row(ok ? r : 0) + c * UNIT, ok);
        }
    }
}

ATTN_DEV uint32_t ld_shared(uint32_t a) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(a) : "memory");
    return x;
}

} /* namespace decode */

extern "C" __global__ void __launch_bounds__(TL_DWARPS * 32, TL_DCTAS)
    tl_decode(const __grid_constant__ triton_params_t p) {
    using namespace decode;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ float row_m[WARPS][ROWS], row_l[WARPS][ROWS], row_f[WARPS][ROWS], row_inv[ROWS];
    __shared__ int is_last;

    /* counts, item and table address in one round trip; an item past the count is unused memory of the same
     * list */
    const int num_items = p.counts->num_items;
    const int4 item = *(const int4 *)(p.items + blockIdx.y),
               lengths = ((const int4 *)(p.items + blockIdx.y))[1];
    const int32_t *const tables = p.counts->block_table;
    const int64_t table_stride = p.counts->table_stride;
    if ((int)blockIdx.y >= num_items) return;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q = lane & 3;
    const int head = blockIdx.x % p.num_kv_heads, row0 = blockIdx.x / p.num_kv_heads * ROWS;
    const int seq = item.x, slot = item.w;
    const seq_view sv = view_seq(p, seq, lengths.x, lengths.y, lengths.z);
    const int rows = sv.q_len * TL_GROUP, context = sv.kv_len - sv.q_len;
    if (row0 >= rows) return;

    /* This CTA's keys: the union of what its rows see, cut into segments of a multiple of 64. */
    key_walk walk;
    const int last = min(rows - 1, row0 + ROWS - 1);
    int2 all = row_keys(sv, row0 / TL_GROUP); /* what all rows see */
    walk.lo = all.x, walk.hi = all.y;
    for (int t = row0 / TL_GROUP + 1; t <= last / TL_GROUP; t++) {
        int2 s = row_keys(sv, t);
        walk.lo = min(walk.lo, s.x), walk.hi = max(walk.hi, s.y), all.x = max(all.x, s.x),
        all.y = min(all.y, s.y);
    }
    walk.prefix = min(sv.prefix, walk.hi);
    walk.start<16>();
    /* R-SWA: the keys between prefix and window do not count, so that segments stay equal */
    const int low_end =
        TL_RSWA > 0 && walk.prefix > 0 ? min((walk.prefix + 15) & ~15, walk.lo & ~15) : walk.begin;
    const int gap = TL_RSWA > 0 && walk.prefix > 0 ? (walk.lo & ~15) - low_end : 0;
    int per = walk.hi - walk.begin - gap;
    if (item.z > 1) per = ((per + item.z - 1) / item.z + 63) & ~63;
    const int t0 = walk.begin + item.y * per,
              t1 = min(walk.hi - gap, t0 + per); /* before the gap is put back */
    const int nb = t1 > t0 ? (t1 - t0 + 15) >> 4 : 0;
    auto token_of = [&](int b) { /* first token of block b of this segment */
                                 int t = t0 + b * 16;
                                 return TL_RSWA > 0 && t >= low_end ? t + gap : t;
    };
    const int segment_end = TL_RSWA > 0 && t1 > low_end ? t1 + gap : t1;
    walk.hi = min(walk.hi, segment_end);

    /* Loader. Lane i keeps the page of the warp's i-th next block; the next 32 are fetched one round
     * ahead. */
    const int32_t *table = tables + (int64_t)seq * table_stride;
    const int64_t first = TL_PAGE > 0 ? 0 : sv.q0;
    const uint8_t *kbase = (const uint8_t *)p.k + (first * p.k_token + (int64_t)head * p.k_head) * EB;
    const uint8_t *vbase = (const uint8_t *)p.v + (first * p.v_token + (int64_t)head * p.v_head) * EB;
    const uint32_t ring = smem_addr(smem) + warp * RING;
    if (DP != TL_D || DVP != TL_DV) {
        for (int i = lane; i < RING / 16; i += 32)
            st_shared_v4(ring + i * 16, make_uint4(0, 0, 0, 0));
        __syncwarp();
    }
    auto page_at = [&](int i) { /* i counts this warp's blocks */
                                int b = warp + i * WARPS;
                                return TL_PAGE > 0 && b < nb ? __ldg(table + page_of(token_of(b))) : 0;
    };
    int ids = page_at(lane), ids_next = page_at(32 + lane), li = 0, lstage = 0;
    uint32_t shifts = 0; /* TL_JOINT, eight bits a stage: address of the block's first row modulo 128 */
    auto load = [&]() {
        int b = warp + li * WARPS;
        if (b < nb) {
            int tok = token_of(b), page = __shfl_sync(~0u, ids, li & 31), off = in_page(tok);
            const uint8_t *ks = kbase + ((TL_PAGE > 0 ? page * p.k_page : 0) + off * p.k_token) * EB;
            const uint8_t *vs = vbase + ((TL_PAGE > 0 ? page * p.v_page : 0) + off * p.v_token) * EB;
            uint32_t dk = ring + lstage * BLOCK;
            bool whole = tok + 16 <= walk.hi && (tok >= walk.lo || (TL_RSWA > 0 && tok + 16 <= walk.prefix));
            if constexpr (TL_JOINT) {
                load_block<TL_D + TL_DV + 16, KRS, 0>(dk, ks, p.k_token, whole, tok, walk, lane);
                shifts = (shifts & ~(255u << 8 * lstage)) | ((uint32_t)(uintptr_t)ks & 127) << 8 * lstage;
            } else {
                load_block<TL_D * EB, KRS, 0>(dk, ks, p.k_token * EB, whole, tok, walk, lane);
                load_block<TL_DV * EB, VRS, V_UNIT>(dk + V_AT, vs, p.v_token * EB, whole, tok, walk, lane);
            }
            if constexpr (TL_TOKEN_HEAD && !TL_JOINT) {
                int r = lane & 15;
                bool ok = walk.wanted(tok + r);
                const uint8_t *at = lane < 16 ? ks + r * p.k_token + TL_D : vs + r * p.v_token + TL_DV;
                cp_async_zfill<4>(dk + SCALES_AT + lane * 4, ok ? at : ks, ok);
            }
        }
        li++;
        if ((li & 31) == 0) {
            ids = ids_next;
            ids_next = page_at(li + 32 + lane);
        }
        lstage = lstage + 1 == STAGES ? 0 : lstage + 1;
        cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        load();

    /* Q^T fragments, and what each of the thread's 2 * NT query rows sees. */
    uint32_t qf[NT][2 * QSTEP];
    int2 see[NT][2];
    int pos[NT][2];
    float slope[NT][2];
    const float *bias[NT][2], *rel_row[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int row = row0 + n * 8 + g;
        const uint8_t *qp = (const uint8_t *)p.q + ((int64_t)(sv.q0 + row / TL_GROUP) * p.q_token +
                                                    (int64_t)(head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                                       QB;
#pragma unroll
        for (int s = 0; s < QSTEP; s++) {
            int d0 = CODES ? 32 * (s >> 1) + 16 * (s & 1) + 4 * q : 16 * s + 2 * q,
                d1 = CODES ? d0 + 2 : d0 + 8;
            qf[n][2 * s] = row < rows ? query_pair<MMA>(qp, d0) : 0;
            qf[n][2 * s + 1] = row < rows ? query_pair<MMA>(qp, d1) : 0;
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = row0 + n * 8 + 2 * q + e, tok = min(r, rows - 1) / TL_GROUP;
            see[n][e] = r < rows ? row_keys(sv, tok) : make_int2(0, 0);
            pos[n][e] = context + tok;
            slope[n][e] =
                TL_ALIBI && r < rows ? __ldg(p.alibi + head * TL_GROUP + r % TL_GROUP) * LOG2E : 0.f;
            rel_row[n][e] = rel_bias_row(p, head * TL_GROUP + min(r, rows - 1) % TL_GROUP);
            bias[n][e] = TL_QQ ? p.qq_bias + (int64_t)(sv.q0 + tok) * p.qq_row : nullptr;
        }
    }
    const score_rule rule(p, head);
    float o[NT][MT][4], m[NT][2], l[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        m[n][0] = m[n][1] = NO_MAX, l[n][0] = l[n][1] = 0.f;
#pragma unroll
        for (int j = 0; j < MT; j++)
            o[n][j][0] = o[n][j][1] = o[n][j][2] = o[n][j][3] = 0.f;
    }
    const int lr = lane & 15, lc = lane >> 4;                             /* K: rows 0 to 15, column half */
    const int vr = (lane & 7) + ((lane >> 4) << 3), vc = (lane >> 3) & 1; /* V: tokens 0-7, 0-7, 8-15, 8-15 */
    int cstage = 0;
#pragma unroll 1
    for (int b = warp; b < nb; b += WARPS) {
        cp_async_wait<STAGES - 2>();
        __syncwarp();
        const uint32_t sk = ring + cstage * BLOCK, svm = TL_JOINT ? 0 : sk + V_AT;
        float ks[2] = {1.f, 1.f}, vs[2] = {1.f, 1.f};
        uint32_t k_at[2] = {0, 0},
                 v_at[4] = {0, 0, 0,
                            0}; /* first byte of rows g, g + 8 of K; 2q, 2q + 1, 2q + 8, 2q + 9 of V */
        const uint32_t k_flip = joint_flip(g), v_flip[2] = {joint_flip(2 * q), joint_flip(2 * q + 1)};
        if constexpr (TL_JOINT) {
            const uint32_t low = shifts >> 8 * cstage & 127;
            auto row_at = [&](int r) { return sk + r * JOINT_RS + ((low + r * (uint32_t)p.k_token) & 127); };
#pragma unroll
            for (int i = 0; i < 2; i++) {
                k_at[i] = row_at(g + 8 * i);
                ks[i] = __uint_as_float(ld_shared((k_at[i] + TL_D) ^ k_flip));
                vs[i] = __uint_as_float(ld_shared((k_at[i] + V_AT + TL_DV) ^ k_flip)) * V_SHIFT;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                v_at[i] = row_at(2 * q + (i & 1) + (i >> 1) * 8) + V_AT;
        } else if (TL_TOKEN_HEAD) {
            const float *sc = (const float *)(smem + warp * RING + cstage * BLOCK + SCALES_AT);
            ks[0] = sc[g], ks[1] = sc[g + 8], vs[0] = sc[16 + g] * V_SHIFT, vs[1] = sc[24 + g] * V_SHIFT;
        }
        load();
        float s[NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
        if constexpr (CODES) {
#pragma unroll
            for (int st = 0; st < DP / 32; st++) {
                uint32_t r[4];
                if constexpr (TL_JOINT) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        r[i] = 2 * st + (i >> 1) < TL_D / 16
                                   ? ld_shared((k_at[i & 1] + (2 * st + (i >> 1)) * 16 + 4 * q) ^ k_flip)
                                   : 0;
                } else
                    ldmatrix_x4(r, sk + ring_unit<KRS>(lr, 2 * st + lc));
                uint32_t a0[4] = {codes_to_f16x2<TL_KV, 0>(r[0]), codes_to_f16x2<TL_KV, 0>(r[1]),
                                  codes_to_f16x2<TL_KV, 1>(r[0]), codes_to_f16x2<TL_KV, 1>(r[1])};
                uint32_t a1[4] = {codes_to_f16x2<TL_KV, 0>(r[2]), codes_to_f16x2<TL_KV, 0>(r[3]),
                                  codes_to_f16x2<TL_KV, 1>(r[2]), codes_to_f16x2<TL_KV, 1>(r[3])};
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mma_16816<MMA>(s[n], a0, qf[n][4 * st], qf[n][4 * st + 1]);
                    mma_16816<MMA>(s[n], a1, qf[n][4 * st + 2], qf[n][4 * st + 3]);
                }
            }
        } else {
            add_scores<MMA, QSTEP>(s, qf, [&](int i) { return sk + ring_unit<KRS>(lr, 2 * i + lc); });
        }
        const int tok0 = token_of(b), tok = tok0 + g;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = rule.apply<false>(TL_TOKEN_HEAD ? s[n][i] * ks[i >> 1] : s[n][i]);
                if (TL_ALIBI != 0)
                    s[n][i] +=
                        alibi_term<false>(slope[n][i & 1], (float)(tok + (i >> 1) * 8 - pos[n][i & 1]));
                if constexpr (TL_REL)
                    s[n][i] += rel_bias_term(p, rel_row[n][i & 1], tok + (i >> 1) * 8 - pos[n][i & 1]);
                if constexpr (TL_QQ) {
                    int rel = tok + (i >> 1) * 8 - context;
                    if (rel >= 0 && rel < p.qq_width) s[n][i] += __ldg(bias[n][i & 1] + rel) * LOG2E;
                }
            }
        if (tok0 < all.x || tok0 + 16 > all.y || tok0 + 16 > walk.hi) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int k = tok + (i >> 1) * 8;
                    if (k >= walk.hi || !is_visible(k, see[n][i & 1], walk.prefix)) s[n][i] = -INFINITY;
                }
        }
        raise_max(s, m, l, o, LAZY);
        uint32_t pb[NT][2];
        weigh<MMA, TL_TOKEN_HEAD != 0>(s, m, vs, l, pb);
        if constexpr (CODES) {
#pragma unroll
            for (int x = 0; x < DVP / 32; x++) {
                uint32_t r[4], low[4], high[4];
                if constexpr (TL_JOINT) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        r[i] = ld_shared((v_at[i] + (8 * x + g) * 4) ^ v_flip[i & 1]);
#pragma unroll
                    for (int i = 0; i < 2;
                         i++) { /* columns 4g and 4g + 1 to rows g and g + 8, the next two likewise */
                        uint32_t y = prmt(r[2 * i], r[2 * i + 1], 0x5140),
                                 z = prmt(r[2 * i], r[2 * i + 1], 0x7362);
                        low[2 * i] = codes_to_f16x2<TL_KV, 0>(y),
                                low[2 * i + 1] = codes_to_f16x2<TL_KV, 1>(y);
                        high[2 * i] = codes_to_f16x2<TL_KV, 0>(z),
                                 high[2 * i + 1] = codes_to_f16x2<TL_KV, 1>(z);
                    }
                } else {
                    ldmatrix_x4_trans(r, svm + ring_unit<VRS>(vr, V_UNIT + 2 * x + vc));
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        uint32_t y = prmt(r[i], r[i], 0x3120); /* pair the two tokens of one column */
                        low[i] = codes_to_f16x2<TL_KV, 0>(y);
                        high[i] = codes_to_f16x2<TL_KV, 1>(y);
                    }
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mma_16816<MMA>(o[n][2 * x], low, pb[n][0], pb[n][1]);
                    mma_16816<MMA>(o[n][2 * x + 1], high, pb[n][0], pb[n][1]);
                }
            }
        } else {
            add_values<MMA>(o, pb, [&](int i) { return svm + ring_unit<VRS>(vr, V_UNIT + 2 * i + vc); });
        }
        __syncwarp();
        cstage = cstage + 1 == STAGES ? 0 : cstage + 1;
    }
    cp_async_wait<0>();

    /* Merge of the warps through the ring's memory. */
    sum_lanes(l);
    __syncthreads();
    float *so = (float *)smem;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (g == 0)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                row_m[warp][n * 8 + 2 * q + e] = m[n][e];
                row_l[warp][n * 8 + 2 * q + e] = l[n][e];
            }
        float *r0 = so + (warp * ROWS + n * 8 + 2 * q) * ORS, *r1 = r0 + ORS;
#pragma unroll
        for (int j = 0; j < MT; j++) {
            int d0 = TL_JOINT ? 32 * (j >> 1) + 4 * g + 2 * (j & 1)
                     : CODES  ? 32 * (j >> 1) + 2 * g + (j & 1)
                              : 16 * j + g;
            int d1 = d0 + (TL_JOINT ? 1 : CODES ? 16 : 8);
            r0[d0] = o[n][j][0];
            r1[d0] = o[n][j][1];
            r0[d1] = o[n][j][2];
            r1[d1] = o[n][j][3];
        }
    }
    __syncthreads();
    const int nrows = min(ROWS, rows - row0);
    const int64_t part0 = (int64_t)slot * p.max_rows, num_heads = p.num_kv_heads * TL_GROUP;
    if (tid < nrows) {
        int r = tid, row = row0 + r, t = row / TL_GROUP, h = head * TL_GROUP + row % TL_GROUP;
        float mm = NO_MAX, sum = 0.f;
        for (int w = 0; w < WARPS; w++)
            mm = fmaxf(mm, row_m[w][r]);
        float sink = TL_SINKS && slot < 0 ? __ldg(p.sinks + h) * LOG2E : -INFINITY;
        mm = fmaxf(mm, sink); /* the sink only enters the denominator (semantics 2.10) */
        for (int w = 0; w < WARPS; w++) {
            float f = ex2(row_m[w][r] - mm);
            row_f[w][r] = f;
            sum += f * row_l[w][r];
        }
        if (TL_SINKS) sum += ex2(sink - mm);
        row_inv[r] = sum != 0.f ? 1.f / sum : 0.f;
        if (slot >= 0)
            p.part_lse[part0 + t * num_heads + h] = sum != 0.f ? mm + lg2(sum) : -INFINITY;
        else if (p.lse)
            p.lse[(int64_t)(sv.q0 + t) * p.lse_token + (int64_t)h * p.lse_head] =
                sum != 0.f ? (mm + lg2(sum)) * LN2 : -INFINITY;
    }
    __syncthreads();
    float factor = !TL_TOKEN_HEAD && p.v_scale ? __ldg(p.v_scale + head * p.kv_scale_stride) : 1.f / V_SHIFT;
    if (TL_OUT == DT_E4M3 && p.out_scale && slot < 0) factor /= __ldg(p.out_scale);
    for (int i = tid; i < nrows * TL_DV; i += WARPS * 32) {
        int r = i / TL_DV, d = i % TL_DV, row = row0 + r, t = row / TL_GROUP,
            h = head * TL_GROUP + row % TL_GROUP;
        float x = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            x = fmaf(row_f[w][r], so[(w * ROWS + r) * ORS + d], x);
        x *= row_inv[r] * factor;
        if (slot >= 0)
            p.part_out[(part0 + t * num_heads + h) * TL_DV + d] = x;
        else
            store_float<TL_OUT>(p.out, (int64_t)(sv.q0 + t) * p.out_token + (int64_t)h * p.out_head + d, x);
    }
    if (slot < 0) return;
    __threadfence(); /* the partial results before the ticket that says so */
    __syncthreads();
    if (tid == 0) {
        int *ticket = p.tickets + (int64_t)(slot - item.y) * gridDim.x + blockIdx.x;
        is_last = atomicAdd(ticket, 1) == item.z - 1;
        if (is_last) *ticket = 0; /* for the next forward */
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    constexpr int AT_ONCE = ROWS > WARPS ? 2 : 1;
    for (int r = warp; r < nrows; r += AT_ONCE * WARPS) {
        int merged[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = row0 + r + i * WARPS;
            merged[i] = r + i * WARPS < nrows
                            ? row / TL_GROUP * (int)num_heads + head * TL_GROUP + row % TL_GROUP
                            : -1;
        }
        merge_rows(p, sv.q0, slot - item.y, item.z, merged, (float *)smem + warp * AT_ONCE * TL_MAX_PIECES);
    }
}

} /* namespace attn_cuda */
#endif
