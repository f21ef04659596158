/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of tiles and bytes of shared memory as constant expressions, which the kernels and the choice of
 * kernels share. dk and dv: head sizes of a class; element_bytes: of cached keys and values. */
#ifndef DENSE_TILES_H
#define DENSE_TILES_H

#define DENSE_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Decode: each warp has a ring of 3 stages of 16 rows, K and V of a token in whole lines of 128 bytes, where
 * in the end row_tiles * 8 rows of the result are exchanged. */
#define DECODE_SM80_STAGES                     3
#define DECODE_SM80_ROW(dk, dv, element_bytes) ((((dk) + (dv)) * (element_bytes) + 127) / 128 * 128)
#define DECODE_SM80_RING(dk, dv, element_bytes)                                                              \
    (DECODE_SM80_STAGES * 16 * DECODE_SM80_ROW(dk, dv, element_bytes))
#define DECODE_SM80_OUT_ROW(dv) ((dv) + 4) /* floats */
#define DECODE_SM80_WARP_SMEM(dk, dv, element_bytes, row_tiles)                                              \
    DENSE_MAX(DECODE_SM80_RING(dk, dv, element_bytes), (row_tiles)*8 * DECODE_SM80_OUT_ROW(dv) * 4)
/* Of a CTA: its query rows, where they are more than registers hold beside their results. */
#define DECODE_SM80_Q_SMEM(dk, row_tiles) ((row_tiles) > 2 && (dk) > 64 ? (row_tiles)*8 * (dk)*2 : 0)
/* Warps of an SM by their registers: 128 of a thread, or all. */
#define DECODE_SM80_SM_WARPS(dk, dv, element_bytes, row_tiles)                                               \
    ((row_tiles) <= ((dk) + (dv) <= 128 ? 2 : 1) && ((dk) + (dv)) * (element_bytes) <= 256 ? 16 : 8)
/* Of 8 query rows each, whose Q and O fit a thread's registers. */
#define DECODE_SM80_ROW_TILES(dk, dv) ((dk) + (dv) <= 256 ? 4 : 2)
#define DECODE_SM80_MOST_ROW_TILES    4

/* Portable prefill: 64 rows a warp tile, two of which halve the reads of K and V from shared memory; keys as
 * registers and 99 KB allow; rows are an odd number of 16-byte units apart. */
#define PREFILL_SM80_WARP_TILES(dk) ((dk) <= 128 ? 2 : 1)
#define PREFILL_SM80_ROWS(dk)       (64 * PREFILL_SM80_WARP_TILES(dk))
#define PREFILL_SM80_KEYS(dk)       ((dk) <= 96 || (dk) == 192 ? 64 : 32)
#define PREFILL_SM80_ROW_BYTES(d)   ((d)*2 + 16)
#define PREFILL_SM80_SMEM(dk, dv)                                                                            \
    (PREFILL_SM80_ROWS(dk) * PREFILL_SM80_ROW_BYTES(dk) +                                                    \
     PREFILL_SM80_KEYS(dk) * (PREFILL_SM80_ROW_BYTES(dk) + PREFILL_SM80_ROW_BYTES(dv)))

/* Hopper prefill, chunks of 64 columns of 128 bytes. Without features Q is held as fragments in registers
 * where O, S, P and Q find room there, so that the loop reads keys alone from shared memory. Three warpgroups
 * then have one buffer of Q and a third stage of keys; two have another kernel for short tiles, with memory
 * for the result. */
#define PREFILL_SM90_HOLDS_Q(dk, dv, warpgroups, block_keys)                                                 \
    ((dk) == (dv) && (dv) / 2 + (block_keys) / 2 + (block_keys) / 4 + 4 * (((dk) + 15) / 16) <=              \
                         ((warpgroups) == 3 ? 132 : 192))
#define PREFILL_SM90_HAS_SHORT(dk, dv, warpgroups, block_keys)                                               \
    ((warpgroups) == 2 && PREFILL_SM90_HOLDS_Q(dk, dv, warpgroups, block_keys))
/* A tile of two warpgroups may be two heads that share their keys; where requests have few tokens, a tile may
 * be more of them, of three warpgroups too. */
#define PREFILL_SM90_PAIRS(dk, dv, warpgroups)                                                               \
    ((warpgroups) == 2 && (dk) == (dv) && ((dk) == 128 || (dk) == 256))
#define PREFILL_SM90_PACKS(dk, dv, warpgroups)                                                               \
    (PREFILL_SM90_PAIRS(dk, dv, warpgroups) || ((warpgroups) == 3 && (dk) == 64 && (dv) == 64))
/* Or its warpgroups, of which there are three, have a group's heads each, and tokens one after the other. */
#define PREFILL_SM90_BANDS(dk, dv, warpgroups) ((warpgroups) == 3 && PREFILL_SM90_PACKS(dk, dv, warpgroups))
#define PREFILL_SM90_CHUNKS(d)                 (((d) + 63) / 64)
#define PREFILL_SM90_Q_BUFFERS(holds_q, warpgroups, q_buffers)                                               \
    ((holds_q) && (warpgroups) == 3 ? 1 : (q_buffers))
#define PREFILL_SM90_STAGES(holds_q, warpgroups) ((holds_q) && (warpgroups) == 3 ? 3 : 2)
#define PREFILL_SM90_RESULT(dv, warpgroups)      (64 * (warpgroups)*PREFILL_SM90_CHUNKS(dv) * 128)
#define PREFILL_SM90_SMEM(dk, dv, warpgroups, block_keys, q_buffers, holds_q, is_short)                      \
    (PREFILL_SM90_Q_BUFFERS(holds_q, warpgroups, q_buffers) * 64 * (warpgroups)*PREFILL_SM90_CHUNKS(dk) *    \
         128 +                                                                                               \
     PREFILL_SM90_STAGES(holds_q, warpgroups) * (block_keys) *                                               \
         (PREFILL_SM90_CHUNKS(dk) + PREFILL_SM90_CHUNKS(dv)) * 128 +                                         \
     ((is_short) ? PREFILL_SM90_RESULT(dv, warpgroups) : 0) + 1024 + 512)

/* Keys and values of a request whole in shared memory, beside 64 rows of Q for each warpgroup: as many as
 * leave an SM two CTAs, up to so many blocks of one of the sizes that X is called with. */
#define RESIDENT_SM90_TAIL(d)  ((d) % 64) /* columns behind whole lines of 128 bytes */
#define RESIDENT_SM90_BLOCKS   8
#define RESIDENT_SM90_KEYS(d)  ((d) <= 80 ? 256 : (d) <= 96 ? 224 : 128)
#define RESIDENT_SM90_SIZES(X) X(32) X(64) X(80) X(96) X(112) X(128)
/* Scores and results in a thread's 128 registers. */
#define RESIDENT_SM90_FITS(d, block_keys)       ((d) + (block_keys) <= 192)
#define RESIDENT_SM90_SMEM(d, warpgroups, keys) (((warpgroups)*64 + 2 * (keys)) * (d)*2 + 1024)

/* Prefill over e4m3 keys of one line a row, widened to f16: stages of bytes, as memory allows, beside it. */
#define PREFILL_SM90_BYTE_STAGES(q_buffers) ((q_buffers) == 2 ? 1 : 2)
#define PREFILL_SM90_WIDENED_SMEM(dk, dv, warpgroups, block_keys, q_buffers)                                 \
    (PREFILL_SM90_SMEM(dk, dv, warpgroups, block_keys, q_buffers, 0, 0) +                                    \
     2 * PREFILL_SM90_BYTE_STAGES(q_buffers) * (block_keys)*128)
/* Products of bytes, head size 128: Q, two stages of K, of V and of V transposed in chunks of 128 keys, and
 * O. */
#define PREFILL_SM90_E4M3_SMEM(warpgroups, block_keys, q_buffers)                                            \
    ((q_buffers)*64 * (warpgroups)*128 + 2 * (2 * (block_keys)*128 + (128 + 8) * (block_keys)) +             \
     64 * (warpgroups)*128 * 2 + 1024)

#endif
