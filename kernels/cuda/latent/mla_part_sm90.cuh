/* SPDX-License-Identifier: Apache-2.0 */
/* How the decode kernels of Hopper leave a piece of a cut tile in the workspace: a row takes the 2 KiB of 512
 * floats, but is 512 results in float16 over a power of two, so half the bytes go through memory, and what is
 * lost is less than the rounding of a 16-bit P. Behind them, at 1024 bytes, lie the powers: of each half of
 * the columns, of each four chunks of 16 of it by turns, and beside each the logarithm (base 2) of the
 * weights' sum. So whole sectors of 32 bytes are written: one with a gap is fetched from memory before it is
 * read. Tiles of more than 16 rows over 16-bit caches leave each 32 columns as the lanes of a quad hold them,
 * eight a lane: nothing is exchanged for what only the merge reads. */
#ifndef MLA_PART_SM90_CUH
#define MLA_PART_SM90_CUH

#include "../ptx/ptx_sm80.cuh"
#include "mla_params.h"

namespace attn_cuda {

struct mla_part {
    uint16_t *const values;
    ATTN_DEV mla_part(const mla_attend_params &p, int64_t slot_row)
        : values((uint16_t *)(p.part_out + slot_row * 512)) {}
    /* [half * 4 + chunk % 4]: power and logarithm */
    ATTN_DEV float2 *marks() const { return (float2 *)(values + 512); }
    ATTN_DEV void set_mark(int which, float power, float lse) const {
        marks()[which] = make_float2(power, lse);
    }
    static ATTN_DEV bool is_by_quads(const mla_attend_params &p) {
        return p.cache_kind == MLA_CACHE_16 && (p.tile_rows > MLA_TILE_ROWS || p.slice->most_rows > 16);
    }
    /* The column of what lies at `place`, which is even, and so that of the next. */
    static ATTN_DEV int column_at(int place, bool is_by_quads) {
        return is_by_quads ? (place & ~31) + ((place & 6) << 2) + (place >> 2 & 6) : place;
    }
    /* The power of two that values of at most `most` are divided by, as bits. */
    static ATTN_DEV uint32_t power(float most) {
        return min(max(__float_as_uint(most) & 0x7f800000u, 1u << 23), 253u << 23);
    }
    static ATTN_DEV float inverse(uint32_t power) { return __uint_as_float((254u << 23) - power); }
};

/* By one thread: the logarithm of the weights (base 2) of a row whose keys are not cut. */
ATTN_DEV void mla90_store_lse(const mla_attend_params &p, const mla_item &it, int row, float lse) {
    if (it.slot < 0 && p.lse)
        p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
            lse * 0.6931471805599453f;
}

} /* namespace attn_cuda */
#endif
