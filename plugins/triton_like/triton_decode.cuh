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
 * Sizes are in triton_decode_layout.cuh. What is one function still compiles to other code if it is cut. */
#ifndef TRITON_DECODE_CUH
#define TRITON_DECODE_CUH

#include "triton_decode_merge.cuh"
#include "triton_decode_products.cuh"
#include "triton_decode_query.cuh"
#include "triton_decode_ring.cuh"

namespace attn_cuda {

extern "C" __global__ void __launch_bounds__(TL_DWARPS * 32, TL_DCTAS)
    tl_decode(const __grid_constant__ triton_params_t p) {
    using namespace decode;
    extern __shared__ __align__(128) uint8_t smem[];

    /* counts, item and table address in one round trip; an item past the count is unused memory of the same
     * list */
    const int num_items = p.counts->num_items;
    const int4 item = *(const int4 *)(p.items + blockIdx.y),
               lengths = ((const int4 *)(p.items + blockIdx.y))[1];
    const int32_t *const tables = p.counts->block_table;
    const int64_t table_stride = p.counts->table_stride;
    pdl_wait(); /* for this step's keys; what is read above was there before the writer started */
    if ((int)blockIdx.y >= num_items) return;
    const int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, q = lane & 3;
    auto uniform = [](int x) { /* so that ptxas knows: the same for all lanes */
                               return __shfl_sync(~0u, x, 0);
    };
    const int warp = uniform(tid >> 5);
    const int head = blockIdx.x % p.num_kv_heads, row0 = blockIdx.x / p.num_kv_heads * ROWS;
    const int seq = item.x, slot = item.w;
    const seq_view sv =
        TL_DEVICE_LENGTHS ? view_seq(p, seq) : view_seq(p, seq, lengths.x, lengths.y, lengths.z);
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
    const int t0 = uniform(walk.begin + item.y * per),
              t1 = uniform(min(walk.hi - gap, t0 + per)); /* before the gap is put back */
    const int nb = t1 > t0 ? (t1 - t0 + 15) >> 4 : 0;
    auto token_of = [&](int b) { /* first token of block b of this segment */
                                 int t = t0 + b * 16;
                                 return TL_RSWA > 0 && t >= low_end ? t + gap : t;
    };
    const int segment_end = TL_RSWA > 0 && t1 > low_end ? t1 + gap : t1;
    walk.hi = uniform(min(walk.hi, segment_end)), walk.lo = uniform(walk.lo);
    all.x = uniform(all.x), all.y = uniform(all.y);
    /* the blocks whose keys are all wanted, and those that all rows see; of R-SWA by token */
    const int2 wanted = make_int2((walk.lo - t0 + 15) >> 4, (walk.hi - t0) >> 4),
               seen = make_int2((all.x - t0 + 15) >> 4, (min(all.y, walk.hi) - t0) >> 4);

    /* Loader. Lane i keeps the page of the warp's i-th next block; the next 32 are fetched one round
     * ahead. */
    const int32_t *table = tables + (int64_t)seq * table_stride;
    const int64_t first = sv.k0;
    const uint8_t *kbase = (const uint8_t *)p.k + (first * p.k_token + (int64_t)head * p.k_head) * EB;
    const uint8_t *vbase = (const uint8_t *)p.v + (first * p.v_token + (int64_t)head * p.v_head) * VB;
    const uint8_t *const scale_base = (const uint8_t *)p.k_rows_scales + (int64_t)head * p.ks_head;
    const uint8_t *const v_scale_base = (const uint8_t *)p.v_rows_scales + (int64_t)head * p.vs_head;
    /* TL_DENSE: this lane's 16 bytes of a block's scales (of K and behind them of V) */
    const int s_lane = lane % SCALE_PIECES;
    const uint8_t *const s_piece =
        TL_FP4 && s_lane >= TL_D / 16 ? v_scale_base + (s_lane - TL_D / 16) * 16 : scale_base + s_lane * 16;
    const uint32_t ring = smem_addr(smem) + warp * RING;
    const int before = LINES && p.k_page % 128 == 0 && (uintptr_t)kbase % 128 == 64 ? 4 : 0;
    if (!PACKED && (DP != TL_D || DVP != TL_DV)) {
        for (int i = lane; i < RING / 16; i += 32)
            st_shared_v4(ring + i * 16, make_uint4(0, 0, 0, 0));
        __syncwarp();
    }
    auto page_at = [&](int i) { /* i counts this warp's blocks */
                                int b = warp + i * WARPS;
                                return TL_PAGE > 0 && b < nb
                                           ? page_id(table + page_of(token_of(b)), p.last_page)
                                           : 0;
    };
    int ids = page_at(lane), ids_next = page_at(32 + lane), li = 0, lstage = 0;
    shifts_t shifts = 0; /* eight bits a stage. TL_JOINT: address of the block's first row modulo 128; PACKED:
                            that of K modulo 16, and of V in the upper four bits */
    /* A block to the ring: one of TL_DENSE whose tokens are all wanted; any other. */
    const uint32_t k_place = TL_DENSE && !LINES ? lane_place<K_ROW, KRS>(lane) : 0,
                   v_place = !TL_DENSE || LINES || V_ROW == K_ROW ? k_place : lane_place<V_ROW, VRS>(lane);
    const uint8_t *k_piece = kbase + lane * 16;
    if (TL_DENSE && !LINES) asm volatile("" : "+l"(k_piece));
    auto load_dense = [&](uint32_t dk, uint32_t page, uint32_t off) {
        uint64_t at = (uint64_t)page * (uint64_t)p.k_page;
        if constexpr (LINES) {
            at += lane * 16;
            asm("" : "+l"(at)); /* once, and not for K and V */
            load_lines(dk, kbase + at - before * 16, before, lane);
        } else {
            const uint8_t *k = k_piece + at + off * K_ROW, *v = k + (vbase - kbase);
            if (V_ROW != K_ROW) v += off * (V_ROW - K_ROW);
            load_pieces<K_ROW, KRS, 0>(dk, k_place, k, lane);
            load_pieces<V_ROW, VRS, V_UNIT>(dk + V_AT, v_place, v, lane);
            if (TL_FP4 || lane < SCALE_PIECES)
                cp_async<16>(dk + SCALES_AT + lane * 16, s_piece + at + off * SCALE_ROW);
        }
    };
    auto load_any = [&](auto variant, uint32_t dk, int tok, int page, int off, bool whole) {
        constexpr bool EVEN = decltype(variant)::EVEN, PIECE = decltype(variant)::PIECE;
        if (TL_DENSE) asm volatile("" : "+r"(page)); /* else addresses of both kinds are computed for all */
        const uint8_t *ks = kbase + ((TL_PAGE > 0 ? page * p.k_page : 0) + off * p.k_token) * EB;
        const uint8_t *vs = vbase + ((TL_PAGE > 0 ? page * p.v_page : 0) + off * p.v_token) * VB;
        if constexpr (PIECE) {
            packed::load_piece<JOINT_ROW>(dk, ks, whole, tok, walk, lane);
        } else if constexpr (PACKED) {
            packed::load_rows<EVEN, PART, K_UNITS, KRS>(dk, ks, kbase, (uint32_t)p.k_token, whole, tok, walk,
                                                        lane);
            if (!TL_JOINT)
                packed::load_rows<EVEN, packed::V_BYTES, V_UNITS, VRS>(
                    dk + V_AT, vs, vbase, (uint32_t)p.v_token, whole, tok, walk, lane);
            if (!EVEN)
                shifts = (shifts & ~((shifts_t)255 << 8 * lstage)) |
                         (shifts_t)((uint32_t)(uintptr_t)ks & 15 | ((uint32_t)(uintptr_t)vs & 15) << 4)
                             << 8 * lstage;
        } else if constexpr (TL_JOINT) {
            load_block<TL_D + TL_DV + 16, KRS, 0>(dk, ks, p.k_token, whole, tok, walk, lane, 0);
            shifts = (shifts & ~((shifts_t)255 << 8 * lstage)) | (shifts_t)((uintptr_t)ks & 127)
                                                                     << 8 * lstage;
        } else {
            load_block<K_ROW, KRS, 0>(dk, ks, p.k_token * EB, whole, tok, walk, lane, before);
            load_block<V_ROW, VRS, V_UNIT>(dk + V_AT, vs, p.v_token * VB, whole, tok, walk, lane,
                                           128 + before);
        }
        if constexpr (TL_TOKEN_HEAD && !TL_JOINT && !PACKED) {
            int r = lane & 15;
            bool ok = walk.wanted(tok + r);
            const uint8_t *at = lane < 16 ? ks + r * p.k_token + TL_D : vs + r * p.v_token + TL_DV;
            cp_async_zfill<4>(dk + SCALES_AT + lane * 4, ok ? at : ks, ok);
        }
        if constexpr (TL_FP4) { /* words of scales: those of K's rows, then of V's */
            constexpr int WORDS = TL_D / 64, TOTAL = 32 * WORDS;
#pragma unroll
            for (int i = 0; i < TOTAL / 32; i++) {
                const int n = i * 32 + lane, r = n / WORDS % 16, c = n % WORDS;
                const bool is_v = n / WORDS >= 16, ok = walk.wanted(tok + r);
                const uint8_t *from = is_v ? v_scale_base + page * p.vs_page + (off + r) * p.vs_token
                                           : scale_base + page * p.ks_page + (off + r) * p.ks_token;
                cp_async_zfill<4>(dk + SCALES_AT + n * 4, ok ? from + c * 4 : scale_base, ok);
            }
        } else if constexpr (TL_K_APART) {
            const uint8_t *at = scale_base + page * p.ks_page + (off + (lane & 15)) * p.ks_token;
            const bool ok = lane < 16 && walk.wanted(tok + lane);
            if (lane < 16)
                cp_async_zfill<4>(dk + SCALES_AT + before * 16 + lane * 4, ok ? at : scale_base, ok);
        }
    };
    auto load = [&](auto variant) {
        constexpr bool PIECE = decltype(variant)::PIECE;
        int b = warp + li * WARPS;
        if (b < nb) {
            int tok = token_of(b), page = __shfl_sync(~0u, ids, li & 31),
                off = TL_PAGE == 16 ? 0 : in_page(tok);
            uint32_t dk = ring + lstage * block_bytes(PIECE);
            const bool whole = TL_RSWA > 0
                                   ? tok + 16 <= walk.hi && (tok >= walk.lo || tok + 16 <= walk.prefix)
                                   : b >= wanted.x && b < wanted.y;
            if (TL_DENSE && whole)
                load_dense(dk, page, off);
            else
                load_any(variant, dk, tok, page, off, whole);
        }
        li++;
        if ((li & 31) == 0) {
            ids = ids_next;
            ids_next = page_at(li + 32 + lane);
        }
        lstage = lstage + 1 == stages_of(PIECE) ? 0 : lstage + 1;
        cp_async_commit();
    };
    using piece_rows = packed::rows_of<true, true, true, true>;
    const bool is_piece = CAN_BE_PIECE && p.k_token == JOINT_ROW && ((uintptr_t)kbase | p.k_page) % 16 == 0;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        if (CAN_BE_PIECE && is_piece)
            load(piece_rows());
        else if (i < stages_of(false) - 1)
            load(packed::any_rows());

    /* Q^T fragments, and what each of the thread's 2 * NT query rows sees. */
    uint32_t qf[NT][Q_WORDS];
#if TL_PACKED
    if constexpr (packed::ROTATED) rotate_queries(p, sv, head, row0, rows, smem);
#endif
    int2 see[NT][2];
    int pos[NT][2];
    float slope[NT][2], q_scale[NT][2];
    const float *bias[NT][2], *rel_row[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        load_query(qf[n], q_scale[n], p, sv, head, row0 + n * 8 + g, rows, n * 8 + g, smem, q);
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
    const score_rule rule(p, head, ROW_UNITS ? 1.f : VALUE_UNIT);
    float by[NT][2]; /* ROW_UNITS: what scores, or the argument of their soft cap, are multiplied by */
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            by[n][e] = (TL_CAP > 0.f ? rule.cap_factor : rule.factor) * q_scale[n][e] *
                       (PACKED ? packed::K_UNIT : VALUE_UNIT);
#if TL_PACKED
    float q_sum[NT][2]; /* int4: sums of the queries as the products have them, for the zero points */
    if constexpr (packed::IS_INT4) sum_queries(q_sum, qf, q);
#endif
    float o[NT][TILES][4], m[NT][2], l[NT][2];
    row_units<NT> units; /* TL_TOKEN_HEAD */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        m[n][0] = m[n][1] = NO_MAX, l[n][0] = l[n][1] = 0.f;
#pragma unroll
        for (int e = 0; e < 2; e++)
            units.start(n, e, row0 + n * 8 + 2 * q + e < rows);
#pragma unroll
        for (int j = 0; j < TILES; j++)
            o[n][j][0] = o[n][j][1] = o[n][j][2] = o[n][j][3] = 0.f;
    }
    const int lr = lane & 15, lc = lane >> 4;                             /* K: rows 0 to 15, column half */
    const int vr = (lane & 7) + ((lane >> 4) << 3), vc = (lane >> 3) & 1; /* V: tokens 0-7, 0-7, 8-15, 8-15 */
    /* LINES: the lower and the upper half of these rows, the first unit of each */
    const uint32_t k_half[2] = {line_unit(before + lr * 8 + lc), line_unit(before + lr * 8 + 4 + lc)},
                   v_half[2] = {line_unit(128 + before + vr * 8 + vc),
                                line_unit(128 + before + vr * 8 + 4 + vc)};
    uint32_t two = 1 + gridDim.z; /* for fp4::pairs; unknown to ptxas */
    asm volatile("" : "+r"(two));
    auto walk_blocks = [&](auto variant) __attribute__((always_inline)) {
        using kind = decltype(variant);
        constexpr bool EVEN = kind::EVEN, PIECE = kind::PIECE;
        /* Of a fragment's 16 keys a lane has number g and number g + 8. PIECE: those are tokens 2 g and
         * 2 g + 1, whose rows lie in different banks. */
        constexpr int NEAR = PIECE ? 2 : 1, FAR = PIECE ? 1 : 8;
        int cstage = 0;
#pragma unroll 1
        for (int b = warp; b < nb; b += WARPS) {
            cp_async_wait<stages_of(PIECE) - 2>();
            __syncwarp();
            const uint32_t sk = ring + cstage * block_bytes(PIECE), svm = TL_JOINT ? 0 : sk + V_AT;
            float ks[2] = {1.f, 1.f}, vs[2] = {1.f, 1.f};
            uint32_t k_at[2] = {0, 0},
                     v_at[4] = {0, 0, 0,
                                0}; /* first byte of rows g, g + 8 of K; 2q, 2q + 1, 2q + 8, 2q + 9 of V */
            const uint32_t k_flip = PIECE ? 0 : joint_flip(g),
                           v_flip[2] = {PIECE ? 0 : joint_flip(2 * q), PIECE ? 0 : joint_flip(2 * q + 1)};
#if TL_PACKED
            uint32_t v_key[2];
            float zero[2] = {0.f, 0.f},
                  low[2] = {0.f, 0.f}; /* PACKED: of keys g, g + 8; what is added to a value */
            if constexpr (PIECE) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    k_at[i] = sk + (2 * g + i) * JOINT_ROW, v_key[i] = k_at[i] + V_AT;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v_at[i] = sk + V_AT + (4 * q + 2 * (i & 1) + (i >> 1)) * JOINT_ROW;
            } else if constexpr (EVEN) { /* all rows begin at the same offset in 16 bytes */
                const uint32_t k = sk + ((uint32_t)(uintptr_t)kbase & 15),
                               v = TL_JOINT ? k + V_AT : svm + ((uint32_t)(uintptr_t)vbase & 15);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    k_at[i] = k + g * KRS + i * 8 * KRS, v_key[i] = v + g * VRS + i * 8 * VRS;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v_at[i] = v + q * 2 * VRS + ((i & 1) + (i >> 1) * 8) * VRS;
            } else {
                const uint32_t shift = (uint32_t)(shifts >> 8 * cstage), vs_at = TL_JOINT ? sk + V_AT : svm;
                auto k_row = [&](int r) { return sk + r * KRS + ((shift + r * (uint32_t)p.k_token) & 15); };
                auto v_row = [&](int r) {
                    return vs_at + r * VRS +
                           ((TL_JOINT ? shift + r * (uint32_t)p.k_token
                                      : (shift >> 4) + r * (uint32_t)p.v_token) &
                            15);
                };
#pragma unroll
                for (int i = 0; i < 2; i++)
                    k_at[i] = k_row(g + 8 * i), v_key[i] = v_row(g + 8 * i);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v_at[i] = v_row(2 * q + (i & 1) + (i >> 1) * 8);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t v = v_key[i] + packed::V_DATA;
                if constexpr (packed::IS_INT4) {
                    const uint32_t x = ld_shared_u32(k_at[i] + packed::K_DATA), y = ld_shared_u32(v);
                    ks[i] = packed::scale_of(x), zero[i] = -(float)(x & 15);
                    vs[i] = packed::scale_of(y), low[i] = -(float)(y & 15) * vs[i];
                } else {
                    if (packed::CENTROIDS) ks[i] = packed::f16_bits(ld_shared_u16(k_at[i] + packed::K_DATA));
                    const bool is_word =
                        packed::V_BITS == 4 &&
                        (i ? kind::template place<1>(true) : kind::template place<0>(true)) == packed::WORD;
                    const uint32_t x = is_word ? ld_shared_u32(v) : ld_shared_u16(v);
                    vs[i] = packed::f16_bits(x);
                    low[i] = packed::f16_bits(is_word ? x >> 16 : ld_shared_u16(v + 2));
                }
            }
#else
            if constexpr (TL_JOINT) {
                const uint32_t low = (uint32_t)(shifts >> 8 * cstage) & 127;
                auto row_at = [&](int r) { /* number r of a fragment */
                                           return PIECE ? sk + (2 * (r & 7) + (r >> 3)) * JOINT_ROW
                                                        : sk + r * JOINT_RS +
                                                              ((low + r * (uint32_t)p.k_token) & 127);
                };
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    k_at[i] = row_at(g + 8 * i);
                    ks[i] = __uint_as_float(ld_shared_u32((k_at[i] + TL_D) ^ k_flip));
                    vs[i] = __uint_as_float(ld_shared_u32((k_at[i] + V_AT + TL_DV) ^ k_flip));
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v_at[i] = row_at(2 * q + (i & 1) + (i >> 1) * 8) + V_AT;
            } else if constexpr (K_SCALED) {
                const float *sc =
                    (const float *)(smem + warp * RING + cstage * BLOCK + SCALES_AT + before * 16);
                ks[0] = sc[g], ks[1] = sc[g + 8];
                if (TL_TOKEN_HEAD) vs[0] = sc[16 + g], vs[1] = sc[24 + g];
            }
#endif
            float s[NT][4];
#pragma unroll
            for (int n = 0; n < NT; n++)
                s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#if TL_PACKED
            {
                float squares[2] = {1.f, 1.f};
                packed::add_scores<kind::template place<0>(false), kind::template place<1>(false)>(
                    s, qf, k_at, q, packed::table_at(smem_addr(smem) + TABLE_AT) + lane * 4, squares);
                if (packed::CENTROIDS) ks[0] *= rsqrt_approx(squares[0]), ks[1] *= rsqrt_approx(squares[1]);
                if constexpr (packed::IS_INT4)
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            s[n][i] = fmaf(zero[i >> 1], q_sum[n][i & 1], s[n][i]);
            }
#else
            if constexpr (TL_FP4) {
                fp4::add_scores<TL_D>(s, qf, sk + SCALES_AT, g, q, two,
                                      [&](int i) { return sk + ring_unit<KRS>(lr, 2 * i + lc); });
            } else if constexpr (TL_K_APART) {
                scores_of_integers(s, qf, sk, k_half, lr, lc);
            } else if constexpr (CODES) {
#pragma unroll
                for (int st = 0; st < DP / 32; st++) {
                    uint32_t r[4];
                    if constexpr (TL_JOINT) {
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            r[i] =
                                2 * st + (i >> 1) < TL_D / 16
                                    ? ld_shared_u32((k_at[i & 1] + (2 * st + (i >> 1)) * 16 + 4 * q) ^ k_flip)
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
#endif
            load(variant); /* while the products of the scores are on their way */
            const int tok0 = token_of(b), tok = tok0 + NEAR * g;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (ROW_UNITS) {
                        s[n][i] *= TL_TOKEN_HEAD ? ks[i >> 1] * by[n][i & 1] : by[n][i & 1];
                        if (TL_CAP > 0.f) s[n][i] = rule.capped<false>(s[n][i]);
                    } else if (PACKED && TL_CAP == 0.f)
                        s[n][i] *= ks[i >> 1] * (packed::K_UNIT * rule.factor);
                    else
                        s[n][i] = rule.apply<false>(TL_K_APART ? s[n][i] * (ks[i >> 1] * q_scale[n][i & 1])
                                                    : TL_TOKEN_HEAD ? s[n][i] * (ks[i >> 1] * packed::K_UNIT)
                                                                    : s[n][i]);
                    if (TL_ALIBI != 0)
                        s[n][i] +=
                            alibi_term<false>(slope[n][i & 1], (float)(tok + (i >> 1) * FAR - pos[n][i & 1]));
                    if constexpr (TL_REL)
                        s[n][i] +=
                            rel_bias_term<true>(p, rel_row[n][i & 1], tok + (i >> 1) * FAR - pos[n][i & 1]);
                    if constexpr (TL_QQ) {
                        int rel = tok + (i >> 1) * FAR - context;
                        if (rel >= 0 && rel < p.qq_width) s[n][i] += base2(__ldg(bias[n][i & 1] + rel));
                    }
                }
            if (TL_RSWA > 0 ? tok0 < all.x || tok0 + 16 > all.y || tok0 + 16 > walk.hi
                            : b < seen.x || b >= seen.y) {
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int k = tok + (i >> 1) * FAR;
                        if (k >= walk.hi || !is_visible(k, see[n][i & 1], walk.prefix)) s[n][i] = -INFINITY;
                    }
            }
            raise_max(s, m, l, o, LAZY);
            uint32_t pb[NT][2];
            if constexpr (TL_TOKEN_HEAD) {
                units.raise(s, vs, o);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    float w[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        w[i] = ex2(__fsub_rn(s[n][i], m[n][i & 1]));
                        l[n][i & 1] += w[i];
                        w[i] *= units.unit[n][i & 1];
#if TL_PACKED
                        o[n][SUM][i] = fmaf(w[i], low[i >> 1], o[n][SUM][i]);
#endif
                        w[i] *= vs[i >> 1];
                    }
                    pb[n][0] = movmatrix_trans(pack2<V_MMA>(w[0], w[1]));
                    pb[n][1] = movmatrix_trans(pack2<V_MMA>(w[2], w[3]));
                }
            } else
                weigh<V_MMA, false>(s, m, vs, l, pb);
#if TL_PACKED
            packed::add_values<kind::template place<0>(true), kind::template place<1>(true)>(o, pb, v_at, g);
#else
            if constexpr (TL_FP4) {
                fp4::add_values<TL_DV>(o, pb, sk + SCALES_AT + TL_D, g, q, two,
                                       [&](int i) { return svm + ring_unit<VRS>(vr, V_UNIT + 2 * i + vc); });
            } else if constexpr (V_CODES) {
                if constexpr (V_BIASED) {
                    const uint32_t bias[4] = {0x00800080u, 0x00800080u, 0x00800080u, 0x00800080u};
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        mma_16816<V_MMA>(o[n][SUM], bias, pb[n][0], pb[n][1]);
                }
#pragma unroll
                for (int x = 0; x < DVP / 32; x++) {
                    uint32_t r[4], low[4], high[4];
                    if constexpr (TL_JOINT) {
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            r[i] = ld_shared_u32((v_at[i] + (8 * x + g) * 4) ^ v_flip[i & 1]);
#pragma unroll
                        for (int i = 0; i < 2;
                             i++) { /* columns 4g and 4g + 1 to rows g and g + 8, the next two likewise */
                            if constexpr (V_BIASED) {
                                const uint32_t y = prmt(r[2 * i], r[2 * i + 1], 0x5410),
                                               z = prmt(r[2 * i], r[2 * i + 1], 0x7632);
                                low[2 * i] = biased_pair<0>(y), low[2 * i + 1] = biased_pair<1>(y);
                                high[2 * i] = biased_pair<0>(z), high[2 * i + 1] = biased_pair<1>(z);
                                continue;
                            }
                            uint32_t y = prmt(r[2 * i], r[2 * i + 1], 0x5140),
                                     z = prmt(r[2 * i], r[2 * i + 1], 0x7362);
                            low[2 * i] = codes_to_f16x2<TL_V, 0>(y),
                                    low[2 * i + 1] = codes_to_f16x2<TL_V, 1>(y);
                            high[2 * i] = codes_to_f16x2<TL_V, 0>(z),
                                     high[2 * i + 1] = codes_to_f16x2<TL_V, 1>(z);
                        }
                    } else {
                        ldmatrix_x4_trans(r, svm + (LINES ? v_half[x >> 1 & 1] ^ (x & 1) << 5
                                                          : ring_unit<VRS>(vr, V_UNIT + 2 * x + vc)));
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            if constexpr (V_BIASED) {
                                low[i] = biased_pair<0>(r[i]), high[i] = biased_pair<1>(r[i]);
                                continue;
                            }
                            uint32_t y = prmt(r[i], r[i], 0x3120); /* pair the two tokens of one column */
                            low[i] = codes_to_f16x2<TL_V, 0>(y);
                            high[i] = codes_to_f16x2<TL_V, 1>(y);
                        }
                    }
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        mma_16816<V_MMA>(o[n][2 * x], low, pb[n][0], pb[n][1]);
                        mma_16816<V_MMA>(o[n][2 * x + 1], high, pb[n][0], pb[n][1]);
                    }
                }
            } else {
                add_values<V_MMA>(o, pb,
                                  [&](int i) { return svm + ring_unit<VRS>(vr, V_UNIT + 2 * i + vc); });
            }
#endif
            __syncwarp();
            cstage = cstage + 1 == stages_of(PIECE) ? 0 : cstage + 1;
        }
    };
    /* Rows of most caches lie multiples of 16 apart; of K and V, both or one begin at a word. */
    if constexpr (PACKED) {
        constexpr bool K_FREE = packed::ALWAYS || packed::K_BITS == 3,
                       V_FREE = packed::ALWAYS || packed::V_BITS == 3;
        constexpr bool V_TOO = K_FREE || packed::K_BYTES % 4 == 0; /* V begins at a word where K does */
        const bool k = K_FREE || (uintptr_t)kbase % 4 == 0,
                   v = V_FREE || ((uintptr_t)vbase % 4 == 0) == V_TOO;
        const int even = (p.k_token | p.k_page | (TL_JOINT ? 0 : p.v_token | p.v_page)) % 16 == 0;
        if (CAN_BE_PIECE && is_piece)
            walk_blocks(piece_rows());
        else if (even && k && v)
            walk_blocks(packed::rows_of<true, true, (V_FREE || V_TOO)>());
        else if (!(K_FREE && V_FREE) && even && (K_FREE || !k) && !v)
            walk_blocks(packed::rows_of<true, K_FREE, !V_TOO>());
        else
            walk_blocks(packed::any_rows());
    } else if (CAN_BE_PIECE && is_piece)
        walk_blocks(piece_rows());
    else
        walk_blocks(packed::any_rows());
    cp_async_wait<0>();

    merge_warps(p, sv, item, {tid, lane, g, q, warp, head, row0, rows, slot}, smem, o, m, l, units);
}

} /* namespace attn_cuda */
#endif
