/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the decode kernel: rows of its caches, of the ring of each warp and of what the warps exchange,
 * for the macros of triton_rows.cuh and TL_DWARPS, TL_NT (n-tiles of 8 rows), TL_DCTAS, TL_SWIZZLE,
 * TL_STAGES, TL_TIGHT. */
#ifndef TRITON_DECODE_LAYOUT_CUH
#define TRITON_DECODE_LAYOUT_CUH

#include "decode_sm80_tile.cuh"
#include "triton_packed_copy.cuh"
#include "triton_reduce.cuh"
#include "triton_value_unit.cuh"

namespace attn_cuda {
namespace decode {

constexpr int MMA = TL_KV == DT_BF16 ? DT_BF16 : DT_F16, V_MMA = TL_V == DT_BF16 ? DT_BF16 : DT_F16;
constexpr int EB = element_bytes(TL_KV), VB = element_bytes(TL_V), QB = element_bytes(TL_Q);
constexpr bool PACKED = TL_PACKED != 0, CODES = EB == 1 && !PACKED, V_CODES = VB == 1 && !PACKED;
/* int8 values enter the tensor core as the subnormal f16 whose bits code + 128 are, two instructions a pair;
 * one product more sums P times 128 in the same unit, which is taken back at the end. */
constexpr bool V_BIASED = V_CODES && TL_V == DT_I8;
constexpr int K_ROW = TL_FP4 ? TL_D / 2 : TL_D * EB, V_ROW = TL_FP4 ? TL_DV / 2 : TL_DV * VB;
constexpr int DP = CODES ? (TL_D + 31) / 32 * 32 : (TL_D + 15) / 16 * 16;
constexpr int DVP = PACKED ? packed::M_TILES * 16 : V_CODES ? (TL_DV + 31) / 32 * 32 : (TL_DV + 15) / 16 * 16;
constexpr int odd16(int bytes) {
    return (bytes / 16) % 2 ? bytes : bytes + 16;
} /* ldmatrix without bank conflicts */
constexpr int JOINT_RS = (128 + TL_D + DVP + 127) / 128 * 128,
              STAGES = TL_STAGES; /* at most 120 bytes before K; scales: 8 */
/* TL_DENSE: scales of a block as pieces of 16 bytes; bytes of a token's scales. Room in the ring: of fp4
 * lanes without a piece copy another's, behind all others, which costs less than a branch. */
constexpr int SCALE_PIECES = TL_FP4 ? (TL_D + TL_DV) / 16 : 4, SCALE_ROW = TL_FP4 ? TL_D / 16 : 4,
              SCALE_ROOM = !TL_FP4                          ? K_SCALED ? 128 : 0
                           : TL_DENSE && TL_D + TL_DV < 512 ? 512
                                                            : TL_D + TL_DV;
static_assert(!TL_DENSE || !TL_FP4 || TL_D == TL_DV && SCALE_PIECES <= 32,
              "as many scales of K and V; one copy");
/* Offsets of rows, a byte a stage. */
template <int BYTES>
struct shifts_of {
    using type = uint32_t;
};
template <>
struct shifts_of<8> {
    using type = unsigned long long;
};
using shifts_t = shifts_of<(STAGES > 4 ? 8 : 4)>::type;
static_assert(STAGES <= 8, "a byte for each");
/* PACKED: the 16-byte units that hold a row, of K and V or (apart) of one of them, wherever it begins */
constexpr int PART = packed::K_BYTES + (TL_JOINT ? packed::V_BYTES : 0);
constexpr int SHIFT = TL_JOINT && packed::IS_INT4 ? 8 : 16 - packed::ALIGN; /* bytes before a row at most */
constexpr int K_UNITS = (PART + SHIFT + 15) / 16, V_UNITS = (packed::V_BYTES + SHIFT + 15) / 16;
constexpr int KRS = PACKED       ? (K_UNITS | 1) * 16
                    : TL_JOINT   ? JOINT_RS
                    : TL_SWIZZLE ? ((TL_FP4 ? K_ROW + V_ROW : DP * EB + DVP * VB) + 127) / 128 * 128
                                 : odd16(DP * EB);
constexpr int VRS = PACKED && !TL_JOINT ? (V_UNITS | 1) * 16 : TL_JOINT || TL_SWIZZLE ? KRS : odd16(DVP * VB);
/* TL_JOINT: a row's bytes; packed rows, and others of multiples of eight, can be copied as one piece. */
constexpr int JOINT_ROW = PACKED ? PART : TL_D + TL_DV + 8;
constexpr bool CAN_BE_PIECE = TL_JOINT && (PACKED || JOINT_ROW % 8 == 0);
/* V after K: in a row of the ring, else in a block of 16 tokens */
constexpr int V_AT = PACKED && TL_JOINT ? packed::K_BYTES
                     : TL_JOINT         ? TL_D + 4
                     : TL_SWIZZLE       ? 0
                                        : 16 * KRS,
              V_UNIT = TL_SWIZZLE ? (TL_FP4 ? K_ROW : DP * EB) / 16 : 0;
constexpr int SCALES_AT = TL_SWIZZLE ? 16 * KRS : 16 * (KRS + VRS);
constexpr int BLOCK = PACKED     ? 16 * (TL_JOINT ? KRS : KRS + VRS)
                      : TL_JOINT ? 16 * JOINT_RS
                                 : SCALES_AT + SCALE_ROOM,
              PIECE_BLOCK = TL_TIGHT ? 16 * JOINT_ROW : BLOCK,
              RING = !TL_TIGHT || STAGES * PIECE_BLOCK > 2 * BLOCK ? STAGES *PIECE_BLOCK : 2 * BLOCK;
/* TL_TIGHT: the ring has STAGES blocks of rows that are one piece, and fewer of others. */
constexpr int block_bytes(bool is_piece) {
    return is_piece ? PIECE_BLOCK : BLOCK;
}
constexpr int stages_of(bool is_piece) {
    return !TL_TIGHT || is_piece ? STAGES : RING / BLOCK;
}
constexpr int ROWS = TL_NT * 8, ORS = DVP + 4, NT = TL_NT, WARPS = TL_DWARPS, MT = DVP / 16;
constexpr int Q_WORDS = PACKED ? packed::Q_WORDS : DP / 8, QSTEP = Q_WORDS / 2;
/* O, and of packed rows and biased values one tile more: what their values have in common */
constexpr int SUM = PACKED || V_BIASED ? MT : MT - 1, TILES = SUM + 1;
constexpr int EXCHANGE = WARPS * ROWS * ORS * 4, RINGS = WARPS * RING > EXCHANGE ? WARPS *RING : EXCHANGE;
/* PACKED, behind the rings: rotated queries (f16), the table of centroids. What lies between a short row's
 * end and the columns of its last lane is read, and not used. */
constexpr int QRS = TL_D + 8, TABLE_AT = RINGS + ROWS * QRS * 2,
              SMEM = PACKED ? TABLE_AT + packed::TABLE_BYTES : RINGS;
static_assert(SMEM == TL_DECODE_SMEM, "triton_config.c knows the same size");
static_assert(SMEM >= 2 * WARPS * TL_MAX_PIECES * 4, "merging takes the ring's memory");
constexpr float LAZY = 8.f; /* beside scales from 2^6 to 2^7 weights up to 2^8 fit f16 */

} /* namespace decode */
} /* namespace attn_cuda */
#endif
