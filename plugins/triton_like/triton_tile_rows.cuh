/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the 2D kernels, and their blocks of query rows: which part of which request, and its queries in
 * shared memory.
 *
 * Rows are packed (row = token * group + head), so that the query heads of one KV head share its keys. A
 * thread holds of each 16 rows and 8 keys what an accumulator of mma.m16n8 and of wgmma holds: s[4 * j + 2 *
 * e + i] is row g + 8 * e, key 8 * j + 2 * q + i. 8-bit caches become f16 on their way to shared memory,
 * which is exact; inline scales of K go to the columns of S, those of V to the columns of P. Macros beyond
 * triton_rows.cuh: TL_WARPS, which compute; TL_COPIERS, the warps before them that only copy (0: all copy);
 * TL_BN. */
#ifndef TRITON_TILE_ROWS_CUH
#define TRITON_TILE_ROWS_CUH

#include "triton_packed_widen.cuh"
#include "triton_rows.cuh"
#include "triton_value_unit.cuh"

namespace attn_cuda {
namespace prefill {

constexpr int MMA = TL_KV == DT_BF16 ? DT_BF16 : DT_F16, V_MMA = TL_V == DT_BF16 ? DT_BF16 : DT_F16;
constexpr int EB = element_bytes(TL_KV), VB = element_bytes(TL_V), QB = element_bytes(TL_Q);
constexpr int OB = element_bytes(TL_OUT), THREADS = (TL_COPIERS ? TL_COPIERS : TL_WARPS) * 32; /* that copy */
constexpr int BN = TL_BN;
constexpr int DP = (TL_D + 15) / 16 * 16, DVP = (TL_DV + 15) / 16 * 16;
constexpr int ORS = DVP * OB + 16; /* a row of the result in shared memory */
/* A soft cap bounds the scores: where P has the range of float32 (bf16), it needs no maximum. */
constexpr bool FIXED =
    TL_CAP > 0.f && TL_CAP <= 55.f && TL_ALIBI == 0 && !TL_REL && !TL_QQ && V_MMA == DT_BF16;
constexpr float FIRST_MAX = FIXED ? 0.f : NO_MAX;
/* Rows of K and of V without scales of their own, which copiers widen. */
constexpr bool BYTES_APART = TL_COPIERS && !TL_JOINT && !TL_K_APART;
/* Scale or soft cap join the exponent where nothing else touches the score; growing, so that the maximum
 * stays one. */
constexpr bool UNTOUCHED = TL_SCALE > 0.f && TL_ALIBI == 0 && !TL_REL && !TL_QQ,
               SIMPLE = UNTOUCHED && (EB == 2 || BYTES_APART) && TL_Q != DT_E4M3;
constexpr bool FOLD_QUERY = UNTOUCHED && TL_K_APART && TL_CAP == 0.f; /* a rounded query's scale, too */
constexpr bool FOLD = (SIMPLE && TL_CAP == 0.f) || FOLD_QUERY,
               FOLD_CAP = SIMPLE && TL_CAP > 0.f && !FIXED && !TL_COPIERS;
constexpr bool FOLD_SIGN = FOLD && HAS_KV_SCALE; /* a negative scale of K turns the queries instead */
/* The running maximum may lag by 2^LAZY: fewer rescales. Scales of packed rows stay below 2^7, and it fits.
 * Those of rows of 8 bits are V_SHIFT times as large, which is a float for all of them, and need no unit up
 * to V_MOST, where small weights keep their bits from V_LEAST on. */
constexpr float LAZY = TL_TOKEN_HEAD && !(TL_PACKED && TL_COPIERS) ? 0.f : 8.f,
                V_SHIFT = !TL_TOKEN_HEAD || TL_PACKED ? 1.f
                          : TL_V == DT_I8             ? 64.f
                                                      : 256.f,
                V_MOST = 32768.f, V_LEAST = 0.125f;
/* Terms of a tile's keys: scales of K, of V, and (TL_PACKED) what is added to the values of a row. */
constexpr int TERMS = TL_PACKED ? 3 : TL_TOKEN_HEAD ? 2 : TL_K_APART;
/* The rule's factor is in the scales of keys that copiers write. */
constexpr bool FACTOR_COPIED = TL_JOINT && TL_COPIERS && TL_CAP == 0.f;
constexpr int Q_SCALES = TL_K_APART ? 4 : 0;             /* bytes of the scale of a rounded query */
constexpr float KEY_SCALE = FOLD_QUERY ? 0x1p-24f : 1.f; /* the largest sum times such a scale is a float */

/* Where 16 bytes of column c of row r lie. Rows PERIOD apart lie PERIOD * STEP bytes apart. */
template <int BYTES>
struct padded_rows {
    static constexpr int PERIOD = 1, STEP = BYTES;
    static ATTN_DEV uint32_t at(int r, int c) { return r * BYTES + c * 16; }
};
template <int ROWS>
struct swizzled_rows { /* chunks of 64 columns, each [ROWS][128 bytes] with the 128-byte swizzle */
    static constexpr int PERIOD = 8, STEP = 128;
    static ATTN_DEV uint32_t at(int r, int c) {
        return (c >> 3) * (ROWS * 128) + r * 128 + (((c & 7) ^ (r & 7)) << 4);
    }
};

/* ---------------------------------------------------------------- the block of rows */

struct block_view {
    seq_view sv;
    int seq, head, row0, rows, context;
    key_walk walk;
    int all_lo, all_hi; /* keys that every row of this warp sees */
};

/* What each row sees, into `seen`; what all of a warp's and what any rows see. Without spans both ends grow
 * with the row. extent: with spans, least lo, greatest hi, greatest lo, least hi. False: nothing to do. */
template <int BM, int WARP_ROWS>
ATTN_DEV bool view_block(const triton_params_t &p, int2 *seen, int *extent, block_view &b) {
    const int entry = blockIdx.x / p.num_kv_heads,
              warp_row = max((int)(threadIdx.x >> 5) - TL_COPIERS, 0) * WARP_ROWS;
    if (entry >= p.counts->num_tiles) return false;
    const int2 tile = *(const int2 *)(p.tiles + entry);
    b.head = blockIdx.x % p.num_kv_heads, b.seq = tile.x, b.row0 = tile.y * BM;
    b.sv = view_seq(p, b.seq);
    b.rows = b.sv.q_len * TL_GROUP, b.context = b.sv.kv_len - b.sv.q_len;
    if (b.row0 >= b.rows) return false;
    if (TL_SPANS && threadIdx.x == 0) extent[0] = extent[3] = 0x7fffffff, extent[1] = extent[2] = 0;
    if (TL_SPANS) __syncthreads();
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        int2 s = row_keys(b.sv, min(b.rows - 1, b.row0 + r) / TL_GROUP);
        seen[r] = s;
        if (TL_SPANS) {
            atomicMin(&extent[0], s.x), atomicMax(&extent[1], s.y);
            atomicMax(&extent[2], s.x), atomicMin(&extent[3], s.y);
        }
    }
    if constexpr (TL_SPANS) {
        __syncthreads();
        b.walk.lo = extent[0], b.walk.hi = extent[1], b.all_lo = extent[2], b.all_hi = extent[3];
    } else {
        b.walk.lo = row_keys(b.sv, b.row0 / TL_GROUP).x;
        b.walk.hi = row_keys(b.sv, min(b.rows - 1, b.row0 + BM - 1) / TL_GROUP).y;
        b.all_lo = row_keys(b.sv, min(b.rows - 1, b.row0 + warp_row + WARP_ROWS - 1) / TL_GROUP).x;
        b.all_hi = row_keys(b.sv, min(b.rows - 1, b.row0 + warp_row) / TL_GROUP).y;
    }
    if constexpr (TL_COPIERS) b.all_hi = __shfl_sync(~0u, b.all_hi, 0); /* so that it needs no register */
    b.walk.prefix = min(b.sv.prefix, b.walk.hi);
    b.walk.start<BN>();
    return true;
}

ATTN_DEV void st_shared_v2(uint32_t a, uint2 x) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(x.x), "r"(x.y) : "memory");
}

/* By COUNT threads from FIRST on. */
template <int BM, class rows_t, int FIRST = 0, int COUNT = THREADS>
ATTN_DEV void load_queries(const triton_params_t &p, uint32_t sq, const block_view &b, float *scales) {
    const int thread = threadIdx.x - FIRST;
#if TL_PACKED
    if constexpr (packed::ROTATED) { /* a warp a row */
        constexpr int E = (TL_D + 31) / 32;
        const int lane = threadIdx.x & 31;
#pragma unroll 2
        for (int r = thread >> 5; r < BM; r += COUNT / 32) {
            const int row = b.row0 + r;
            const int64_t from = (int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                 (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head + lane * E;
            float x[E];
#pragma unroll
            for (int j = 0; j < E; j++)
                x[j] = row < b.rows ? load_float<TL_Q>(p.q, from + j) : 0.f;
            packed::rotate_query(x, lane);
#pragma unroll
            for (int j = 0; j < E; j++) {
                const int d = lane * E + j;
                st_shared_u16(sq + rows_t::at(r, d >> 3) +
                                  (TL_COPIERS ? packed::query_place(d & 7) : d & 7) * 2,
                              (uint16_t)pack2<MMA>(packed::in_f16(x[j]), 0.f));
            }
        }
        return;
    }
#endif
    if constexpr (
        TL_K_APART) { /* eight lanes a row; codes as int8, or as numbers that the products have exactly */
        constexpr int E = (TL_S8 ? (TL_D + 31) / 32 * 32 : DP) / 8, CHUNKS = (E + 7) / 8;
        constexpr bool WHOLE = TL_QVEC == 16 && QB == 2; /* chunks of 8 values are loaded as such */
        const int l = threadIdx.x & 7;
        uint32_t w[CHUNKS][4], next[CHUNKS][4];
        /* a row ahead */
        auto ask = [&](int r) {
            const int row = b.row0 + r;
            const bool ok = r < BM && row < b.rows;
            const uint8_t *src =
                (const uint8_t *)p.q + ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                        (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                           QB;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                const int d = (l + 8 * i) * 8;
                if constexpr (WHOLE) {
                    const uint4 x =
                        ok && d < TL_D ? __ldg((const uint4 *)(src + d * QB)) : make_uint4(0, 0, 0, 0);
                    next[i][0] = x.x, next[i][1] = x.y, next[i][2] = x.z, next[i][3] = x.w;
                } else
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        next[i][k] = ok ? query_pair<TL_Q>(src, d + 2 * k) : 0;
            }
        };
        ask(thread >> 3);
#pragma unroll 1
        for (int r = thread >> 3; r < BM; r += COUNT / 8) {
            float top = 0.f;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    w[i][k] = next[i][k];
                    const float2 f = unpack2<TL_Q>(w[i][k]);
                    top = min_nan(top, min_nan(-fabsf(f.x), -fabsf(f.y)));
                }
            ask(r + COUNT / 8);
#pragma unroll
            for (int d = 1; d < 8; d <<= 1)
                top = min_nan(top, __shfl_xor_sync(~0u, top, d));
            const float size = divided<127>(-top), scale = size < 1e-6f ? 1e-6f : size;
            if (l == 0) scales[r] = scale;
            auto round = [&](auto code) {
#pragma unroll
                for (int i = 0; i < CHUNKS; i++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float2 f = unpack2<TL_Q>(w[i][k]);
                        const uint32_t x = code(f.x), y = code(f.y);
                        w[i][k] = TL_S8 ? prmt(x, y, 0x0040)
                                        : pack2<MMA>((float)(signed char)x, (float)(signed char)y);
                    }
            };
            if (__all_sync(~0u, plain_quotient::fits(scale))) { /* and so all of the row is finite */
                const plain_quotient by(scale);
                round([&](float x) { return int8_low(by.of(x)); });
            } else {
                const quotient by(scale);
                round([&](float x) { return int8_bits(by.of(x)); });
            }
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                if constexpr (TL_S8) {
                    const uint2 codes =
                        make_uint2(prmt(w[i][0], w[i][1], 0x5410), prmt(w[i][2], w[i][3], 0x5410));
                    if (l + 8 * i < E) st_shared_v2(sq + rows_t::at(r, (l + 8 * i) / 2) + (l & 1) * 8, codes);
                } else if (l + 8 * i < E)
                    st_shared_v4(sq + rows_t::at(r, l + 8 * i),
                                 make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]));
            }
        }
        return;
    }
    constexpr bool PLACED = TL_FP4 && TL_COPIERS; /* column j of eight beside column j + 4, as the keys' */
    const uint32_t turn =
        FOLD_SIGN && p.k_scale && __ldg(p.k_scale + b.head * p.kv_scale_stride) < 0.f ? 0x80008000u : 0;
#pragma unroll 4 /* several loads under way: a converted Q waits for each */
    for (int i = thread; i < BM * (DP / 8); i += COUNT) {
        int r = i / (DP / 8), c = i % (DP / 8), row = b.row0 + r;
        bool ok = row < b.rows;
        const uint8_t *src =
            (const uint8_t *)p.q + ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                    (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                       QB;
        if constexpr (TL_Q == MMA && TL_QVEC == 16 && !PLACED && !FOLD_SIGN) {
            ok = ok && c * 8 < TL_D;
            cp_async_zfill<16>(sq + rows_t::at(r, c), ok ? src + c * 16 : (const uint8_t *)p.q, ok);
        } else {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = ok ? query_pair<MMA>(src, c * 8 + 2 * k) ^ turn : 0;
            if constexpr (PLACED)
                st_shared_v4(sq + rows_t::at(r, c),
                             make_uint4(prmt(w[0], w[2], 0x5410), prmt(w[0], w[2], 0x7632),
                                        prmt(w[1], w[3], 0x5410), prmt(w[1], w[3], 0x7632)));
            else
                st_shared_v4(sq + rows_t::at(r, c), make_uint4(w[0], w[1], w[2], w[3]));
        }
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */

#endif
