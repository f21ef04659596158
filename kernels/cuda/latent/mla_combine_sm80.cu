/* SPDX-License-Identifier: Apache-2.0 */
/* The merge of pieces in f32. */
#include "mla_combine.cuh"
#include "mla_launch.h"

using namespace attn_cuda;

/* Columns 4c .. 4c + 4 of a row in the pieces from `row` on. */
struct part_f32 {
    using raw = float4;
    const mla_attend_params &p;
    const int64_t row;
    const int c;
    ATTN_DEV part_f32(const mla_attend_params &params, int64_t row0, int column)
        : p(params), row(row0), c(column) {}
    ATTN_DEV float lse(int64_t i) const { return p.part_lse[row + i]; }
    ATTN_DEV raw load(int64_t i) const {
        return __ldcs((const float4 *)(p.part_out + (row + i) * p.latent_rank) + c);
    }
    static ATTN_DEV float4 widen(raw x) { return x; }
};

extern "C" int mla_combine(const mla_attend_params *p, int num_splits, int is_early, void *stream) {
    return p->dtype == DT_BF16
               ? combine<DT_BF16, part_f32>(p, num_splits, is_early != 0, (cudaStream_t)stream)
               : combine<DT_F16, part_f32>(p, num_splits, is_early != 0, (cudaStream_t)stream);
}
