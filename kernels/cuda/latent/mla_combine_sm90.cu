/* SPDX-License-Identifier: Apache-2.0 */
/* The merge of what the decode kernels of Hopper leave. */
#include "mla_combine.cuh"
#include "mla_decode_sm90.h"
#include "mla_part_sm90.cuh"

using namespace attn_cuda;

/* The pieces from `row` on. */
struct part_f16 {
    enum { POWERS = 8, AHEAD = 16 };
    using four = uint2;
    using eight = uint4;
    static constexpr bool REORDERS = true;
    const mla_attend_params &p;
    const int64_t row;
    ATTN_DEV part_f16(const mla_attend_params &params, int64_t row0) : p(params), row(row0) {}
    ATTN_DEV float lse(int64_t i) const { return mla_part(p, row + i).marks()->y; }
    ATTN_DEV float2 mark(int64_t i, int which) const { return mla_part(p, row + i).marks()[which]; }
    static ATTN_DEV int mark_of(int place) { return (place >> 8) * 4 + (place >> 4 & 3); }
    static ATTN_DEV bool reorders(const mla_attend_params &p) { return mla_part::is_by_quads(p); }
    static ATTN_DEV int column_at(int place, bool reorders) { return mla_part::column_at(place, reorders); }
    ATTN_DEV four load_four(int64_t i, int place) const {
        return __ldcs((const uint2 *)(mla_part(p, row + i).values + place));
    }
    ATTN_DEV eight load_eight(int64_t i, int place) const {
        return __ldcs((const uint4 *)(mla_part(p, row + i).values + place));
    }
    static ATTN_DEV float4 widen(four x) {
        const float2 a = unpack2<DT_F16>(x.x), b = unpack2<DT_F16>(x.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    static ATTN_DEV void add(float (&acc)[8], float w, const eight &x) {
        const uint32_t *pairs = &x.x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = unpack2<DT_F16>(pairs[i]);
            acc[2 * i] += w * v.x, acc[2 * i + 1] += w * v.y;
        }
    }
};

extern "C" int mla_decode_sm90_merge(const mla_attend_params *p, int num_splits, void *stream) {
    return p->dtype == DT_BF16 ? combine<DT_BF16, part_f16>(p, num_splits, true, (cudaStream_t)stream)
                               : combine<DT_F16, part_f16>(p, num_splits, true, (cudaStream_t)stream);
}
