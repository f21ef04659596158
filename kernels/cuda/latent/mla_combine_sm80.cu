/* SPDX-License-Identifier: Apache-2.0 */
/* The merge of pieces in f32. */
#include "mla_combine.cuh"
#include "mla_launch.h"

using namespace attn_cuda;

/* The pieces from `row` on. */
struct part_f32 {
    enum { POWERS = 1, AHEAD = 8 };
    using four = float4;
    static constexpr bool REORDERS = false;
    struct eight {
        float4 low, high;
    };
    const mla_attend_params &p;
    const int64_t row;
    ATTN_DEV part_f32(const mla_attend_params &params, int64_t row0) : p(params), row(row0) {}
    ATTN_DEV float lse(int64_t i) const { return p.part_lse[row + i]; }
    ATTN_DEV float2 mark(int64_t i, int) const { return make_float2(1.f, lse(i)); }
    static ATTN_DEV int mark_of(int) { return 0; }
    static ATTN_DEV bool reorders(const mla_attend_params &) { return false; }
    static ATTN_DEV int column_at(int place, bool) { return place; }
    ATTN_DEV four load_four(int64_t i, int column) const {
        return __ldcs((const float4 *)(p.part_out + (row + i) * p.latent_rank + column));
    }
    ATTN_DEV eight load_eight(int64_t i, int column) const {
        return {load_four(i, column), load_four(i, column + 4)};
    }
    static ATTN_DEV float4 widen(four x) { return x; }
    static ATTN_DEV void add(float (&acc)[8], float w, const eight &x) {
        acc[0] += w * x.low.x, acc[1] += w * x.low.y, acc[2] += w * x.low.z, acc[3] += w * x.low.w;
        acc[4] += w * x.high.x, acc[5] += w * x.high.y, acc[6] += w * x.high.z, acc[7] += w * x.high.w;
    }
};

extern "C" int mla_combine(const mla_attend_params *p, int num_splits, int is_early, void *stream) {
    return p->dtype == DT_BF16
               ? combine<DT_BF16, part_f32>(p, num_splits, is_early != 0, (cudaStream_t)stream)
               : combine<DT_F16, part_f32>(p, num_splits, is_early != 0, (cudaStream_t)stream);
}
