/* SPDX-License-Identifier: Apache-2.0 */
/* How the decode kernels of Hopper leave a piece of a cut tile in the workspace: a row takes the 2 KiB of 512
 * floats, but is 512 results in float16 over a power of two, so half the bytes go through memory, and what is
 * lost is less than the rounding of a 16-bit P. At 1024 bytes lies the logarithm (base 2) of the weights'
 * sum, at 1040 the powers: of each half of the columns, of each four chunks of 16 of it by turns. */
#ifndef MLA_PART_SM90_CUH
#define MLA_PART_SM90_CUH

#include "../ptx/ptx_sm80.cuh"
#include "mla_params.h"

namespace attn_cuda {

struct mla_part {
    uint16_t *const values;
    ATTN_DEV mla_part(const mla_attend_params &p, int64_t slot_row)
        : values((uint16_t *)(p.part_out + slot_row * 512)) {}
    ATTN_DEV float *lse() const { return (float *)(values + 512); }
    ATTN_DEV float *powers() const { return lse() + 4; }
    /* The power of two that values of at most `most` are divided by, as bits. */
    static ATTN_DEV uint32_t power(float most) {
        return min(max(__float_as_uint(most) & 0x7f800000u, 1u << 23), 253u << 23);
    }
    static ATTN_DEV float inverse(uint32_t power) { return __uint_as_float((254u << 23) - power); }
};

/* By one thread: where the logarithm of a row's weights (base 2) goes. */
ATTN_DEV void mla90_store_lse(const mla_attend_params &p, const mla_item &it, int row, int64_t slot_row,
                              float lse) {
    if (it.slot >= 0)
        *mla_part(p, slot_row).lse() = lse;
    else if (p.lse)
        p.lse[(row % p.num_heads) * p.lse_head + (row / p.num_heads) * p.lse_token] =
            lse * 0.6931471805599453f;
}

} /* namespace attn_cuda */
#endif
