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
/* There the rows' units join the exponent, which is exact. */
constexpr bool FOLD_UNIT = ROW_UNITS && FACTOR_COPIED && UNTOUCHED, IN_EXPONENT = FOLD || FOLD_UNIT;
/* Where the registers of a loop have no room for rows' factors, or a soft cap has its own: rows of usual size
 * have a unit of 1, and warps of such rows pass the factors by. */
constexpr bool UNITS_ASIDE = ROW_UNITS && (TL_CAP > 0.f || (!TL_COPIERS && !packed::ROTATED));
constexpr int Q_SCALES = TL_K_APART || ROW_UNITS ? 4 : 0; /* bytes of a row's scale, or factor */
/* ROW_UNITS: the largest magnitudes of rows (row_unit). Scales of keys up to 2^112 multiply sums of them. */
constexpr int MOST = packed::IS_INT4 ? -4 : packed::ROTATED ? 8 : TL_TOKEN_HEAD && !TL_PACKED ? 0 : 14;
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

/* Tiles may be pieces (triton_tile): of pages, where no mask looks at distances; triton_config_cuts says the
 * same. */
constexpr bool CUTS = TL_PAGE > 0 && TL_WINDOW == 0 && TL_CHUNK == 0 && TL_LOOKBACK < 0 && TL_RSWA == 0 &&
                      !TL_SPANS && !TL_DEVICE_LENGTHS;

struct tile_piece {
    int slot, piece, pieces, ticket;
    ATTN_DEV tile_piece(const triton_params_t &p, int entry) {
        const int2 x = *(const int2 *)&p.tiles[entry].slot;
        slot = x.x, piece = x.y & 255, pieces = x.y >> 8 & 255, ticket = (uint32_t)x.y >> 16;
    }
    ATTN_DEV int first(const triton_params_t &p) const { return piece * (int)p.counts->piece_keys; }
    ATTN_DEV int end(const triton_params_t &p) const {
        return piece + 1 < pieces ? (piece + 1) * (int)p.counts->piece_keys : 0x7fffffff;
    }
};

/* Entry and KV head of a CTA, read again: the loops over keys have no register for them. */
ATTN_DEV int2 tile_of_cta(const triton_params_t &p) {
    uint32_t cta;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
    return make_int2(cta / p.num_kv_heads, cta % p.num_kv_heads);
}

struct block_view {
    seq_view sv;
    int seq, head, row0, rows, context;
    int first; /* keys are counted from here on: 0, or a piece's first, which is a page's too */
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
    int end = 0x7fffffff;
    b.first = 0;
    if constexpr (CUTS) {
        const tile_piece cut(p, entry);
        if (cut.pieces > 1) b.first = cut.first(p), end = cut.end(p);
        b.context -= b.first;
    }
    if (TL_SPANS && threadIdx.x == 0) extent[0] = extent[3] = 0x7fffffff, extent[1] = extent[2] = 0;
    if (TL_SPANS) __syncthreads();
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        int2 s = row_keys(b.sv, min(b.rows - 1, b.row0 + r) / TL_GROUP);
        if (CUTS) s.y -= b.first;
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
    if constexpr (CUTS) b.walk.hi = min(b.walk.hi, end) - b.first, b.all_hi -= b.first;
    if constexpr (TL_COPIERS) b.all_hi = __shfl_sync(~0u, b.all_hi, 0); /* so that it needs no register */
    b.walk.prefix = min(b.sv.prefix, b.walk.hi);
    b.walk.start<BN>();
    return true;
}

/* The largest power of two that is not above |x|, of usual size; 1 for 0. */
ATTN_DEV constexpr float power_below(float x) {
    float power = 1.f;
    x = x < 0.f ? -x : x;
    for (int i = 0; i < 120 && x != 0.f && power > x; i++)
        power *= .5f;
    for (int i = 0; i < 120 && power * 2.f <= x; i++)
        power *= 2.f;
    return power;
}

/* The rule of a tile. ROW_UNITS: each row has a factor, with which its products come to where the rule goes
 * on. What the rule keeps then is of usual size, so that neither the products of copied scales nor the powers
 * of a capped score leave float32. */
struct tile_rule : score_rule {
    float row;             /* a row's factor, by its unit */
    bool is_aside = false; /* UNITS_ASIDE: this warp has a row with a factor that is not 1 */
    ATTN_DEV tile_rule(const triton_params_t &p, int head)
        : score_rule(p, head, ROW_UNITS ? 1.f : VALUE_UNIT), row(1.f) {
        if constexpr (UNITS_ASIDE) {
            const float size = fabsf(TL_CAP > 0.f ? cap_factor : factor);
            if (!(size >= 0x1p-20f && size <= 16.f)) row = row_unit::of<0>(size).unit;
            factor = factor / row * VALUE_UNIT, cap_factor = cap_factor / row * VALUE_UNIT;
        } else if constexpr (ROW_UNITS && FACTOR_COPIED) {
            constexpr float POWER = power_below(TL_SCALE);
            row = POWER, factor *= 1.f / POWER;
        } else if constexpr (ROW_UNITS)
            row = (FOLD_SIGN ? fabsf(factor) : factor) * VALUE_UNIT;
    }
    /* Of the row whose largest magnitude is `top`. */
    static ATTN_DEV row_unit unit_of(float top) {
        if (UNITS_ASIDE && (top == 0.f || (top >= 0x1p-8f && top < 0x1p8f))) return {1.f, 1.f};
        return row_unit::of<MOST>(top);
    }
    ATTN_DEV float factor_of(float unit) const { /* in the exponent it meets -INFINITY: not 0 */
        return IN_EXPONENT ? fmaxf(unit * row, 0x1p-126f) : unit * row;
    }
    /* factors: of rows that this thread has a part of, when all are there. */
    ATTN_DEV void look(const float *factors, int rows) {
        bool is_other = false;
        for (int r = 0; r < rows; r += 8)
            is_other = is_other || factors[r] != 1.f;
        is_aside = __any_sync(~0u, is_other);
    }
};

ATTN_DEV void st_shared_v2(uint32_t a, uint2 x) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(x.x), "r"(x.y) : "memory");
}

/* Eight lanes load a row: lane l columns 8 (l + 8 i) to 8 (l + 8 i) + 7. Zeros where it has none. */
template <int CHUNKS>
ATTN_DEV void ask_row(const triton_params_t &p, const block_view &b, int r, bool ok,
                      uint32_t (&w)[CHUNKS][4]) {
    constexpr bool WHOLE = TL_QVEC == 16 && QB == 2; /* chunks of 8 values are loaded as such */
    const int row = b.row0 + r;
    ok = ok && row < b.rows;
    const uint8_t *src = (const uint8_t *)p.q + ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                                 (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                                    QB;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int d = ((threadIdx.x & 7) + 8 * i) * 8;
        if constexpr (WHOLE) {
            const uint4 x = ok && d < TL_D ? __ldg((const uint4 *)(src + d * QB)) : make_uint4(0, 0, 0, 0);
            w[i][0] = x.x, w[i][1] = x.y, w[i][2] = x.z, w[i][3] = x.w;
        } else
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[i][k] = ok ? query_pair<TL_Q>(src, d + 2 * k) : 0;
    }
}

/* Eight values of a query; TL_FP4 with copiers: column j of eight beside column j + 4, as the keys'. */
ATTN_DEV void put_queries(uint32_t to, const uint32_t (&w)[4]) {
    if constexpr (TL_FP4 && TL_COPIERS)
        st_shared_v4(to, make_uint4(prmt(w[0], w[2], 0x5410), prmt(w[0], w[2], 0x7632),
                                    prmt(w[1], w[3], 0x5410), prmt(w[1], w[3], 0x7632)));
    else
        st_shared_v4(to, make_uint4(w[0], w[1], w[2], w[3]));
}

/* By COUNT threads from FIRST on. scales: of TL_K_APART, or the rows' factors. */
template <int BM, class rows_t, int FIRST = 0, int COUNT = THREADS>
ATTN_DEV void load_queries(const triton_params_t &p, uint32_t sq, const block_view &b, const tile_rule &rule,
                           float *scales) {
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
            const float unit = rotate_row(x, lane, [](float top) { return tile_rule::unit_of(top); });
            if (lane == 0) scales[r] = rule.factor_of(unit);
#pragma unroll
            for (int j = 0; j < E; j++) {
                const int d = lane * E + j;
                st_shared_u16(sq + rows_t::at(r, d >> 3) +
                                  (TL_COPIERS ? packed::query_place(d & 7) : d & 7) * 2,
                              (uint16_t)pack2<MMA>(x[j], 0.f));
            }
        }
        return;
    }
#endif
    if constexpr (
        TL_K_APART) { /* eight lanes a row; codes as int8, or as numbers that the products have exactly */
        constexpr int E = (TL_S8 ? (TL_D + 31) / 32 * 32 : DP) / 8, CHUNKS = (E + 7) / 8;
        const int l = threadIdx.x & 7;
        uint32_t w[CHUNKS][4], next[CHUNKS][4];
        ask_row(p, b, thread >> 3, true, next);
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
            ask_row(p, b, r + COUNT / 8, r + COUNT / 8 < BM, next); /* a row ahead */
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
    const uint32_t turn =
        FOLD_SIGN && p.k_scale && __ldg(p.k_scale + b.head * p.kv_scale_stride) < 0.f ? 0x80008000u : 0;
    if constexpr (ROW_UNITS) { /* eight lanes a row, four rows under way */
        constexpr int CHUNKS = (DP / 8 + 7) / 8, STEP = COUNT / 8;
        static_assert(BM % (4 * STEP) == 0, "all lanes take part in shuffles");
        const int l = threadIdx.x & 7;
#pragma unroll 1
        for (int r0 = thread >> 3; r0 < BM; r0 += 4 * STEP) {
            uint32_t w[4][CHUNKS][4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                ask_row(p, b, r0 + j * STEP, true, w[j]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int r = r0 + j * STEP;
                float top = 0.f;
#pragma unroll
                for (int i = 0; i < CHUNKS; i++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float2 f = unpack2<DT_BF16>(w[j][i][k]);
                        top = fmaxf(top, fmaxf(fabsf(f.x), fabsf(f.y)));
                    }
#pragma unroll
                for (int d = 1; d < 8; d <<= 1)
                    top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
                const row_unit u = tile_rule::unit_of(top);
                if (l == 0) scales[r] = rule.factor_of(u.unit);
#pragma unroll
                for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float2 f = unpack2<DT_BF16>(w[j][i][k]);
                        w[j][i][k] = pack2<DT_F16>(f.x * u.inverse, f.y * u.inverse) ^ turn;
                    }
                    if (l + 8 * i < DP / 8) put_queries(sq + rows_t::at(r, l + 8 * i), w[j][i]);
                }
            }
        }
        return;
    }
#pragma unroll 4 /* several loads under way: a converted Q waits for each */
    for (int i = thread; i < BM * (DP / 8); i += COUNT) {
        int r = i / (DP / 8), c = i % (DP / 8), row = b.row0 + r;
        bool ok = row < b.rows;
        const uint8_t *src =
            (const uint8_t *)p.q + ((int64_t)(b.sv.q0 + row / TL_GROUP) * p.q_token +
                                    (int64_t)(b.head * TL_GROUP + row % TL_GROUP) * p.q_head) *
                                       QB;
        if constexpr (TL_Q == MMA && TL_QVEC == 16 && !(TL_FP4 && TL_COPIERS) && !FOLD_SIGN) {
            ok = ok && c * 8 < TL_D;
            cp_async_zfill<16>(sq + rows_t::at(r, c), ok ? src + c * 16 : (const uint8_t *)p.q, ok);
        } else {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = ok ? query_pair<MMA>(src, c * 8 + 2 * k) ^ turn : 0;
            put_queries(sq + rows_t::at(r, c), w);
        }
    }
}

} /* namespace prefill */
} /* namespace attn_cuda */

#endif
