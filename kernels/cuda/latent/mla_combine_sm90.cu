/* SPDX-License-Identifier: Apache-2.0 */
/* The merge of what the decode kernels of Hopper leave. */
#include "mla_combine.cuh"
#include "mla_decode_sm90.h"
#include "mla_part_sm90.cuh"

using namespace attn_cuda;

/* Columns 4c .. 4c + 4 of a row in the pieces from `row` on. */
struct part_f16 {
    struct raw {
        uint2 values;
        float power;
    };
    const mla_attend_params &p;
    const int64_t row;
    const int c;
    ATTN_DEV part_f16(const mla_attend_params &params, int64_t row0, int column)
        : p(params), row(row0), c(column) {}
    ATTN_DEV float lse(int64_t i) const { return *mla_part(p, row + i).lse(); }
    ATTN_DEV raw load(int64_t i) const {
        const mla_part part(p, row + i);
        return {__ldcs((const uint2 *)part.values + c), part.powers()[(c >> 6) * 4 + (c >> 2 & 3)]};
    }
    static ATTN_DEV float4 widen(raw x) {
        const float2 a = unpack2<DT_F16>(x.values.x), b = unpack2<DT_F16>(x.values.y);
        return make_float4(a.x * x.power, a.y * x.power, b.x * x.power, b.y * x.power);
    }
};

extern "C" int mla_decode_sm90_merge(const mla_attend_params *p, int num_splits, void *stream) {
    return p->dtype == DT_BF16 ? combine<DT_BF16, part_f16>(p, num_splits, true, (cudaStream_t)stream)
                               : combine<DT_F16, part_f16>(p, num_splits, true, (cudaStream_t)stream);
}
