/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of every merge by LSE inside a kernel (semantics 6.5, 6.6): pieces of a row's keys, each
 * with its maximum score and its sum of weights in base-2 units, joined under the largest maximum. Where the
 * pieces lie and who waits for them differs from kernel to kernel; this does not. merge_states_sm80.cu, which
 * promises the host's bits, does the same in double. */
#ifndef LSE_MERGE_CUH
#define LSE_MERGE_CUH

#include "ptx_sm80.cuh"

#ifndef INFINITY
#define INFINITY (__int_as_float(0x7f800000))
#endif

namespace attn_cuda {

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
constexpr float NO_MAX = LOWEST; /* maximum of a row without keys: finite, so that no inf - inf appears */

/* Weighted sums of four columns over some keys of a row, the weights' maximum (base 2) and their sum. */
struct row_part {
    float top, sum;
    float4 v;
};

/* The same sums under another maximum. */
ATTN_DEV row_part under_top(const row_part &a, float top) {
    const float f = ex2(a.top - top);
    return row_part{top, a.sum * f, make_float4(a.v.x * f, a.v.y * f, a.v.z * f, a.v.w * f)};
}

/* Adds a piece with maximum `top`, sum of weights `sum` and values v; a.top covers it already. */
ATTN_DEV void add_piece(row_part &a, float top, float sum, float4 v) {
    const float f = ex2(top - a.top);
    a.sum = fmaf(f, sum, a.sum);
    a.v.x = fmaf(f, v.x, a.v.x), a.v.y = fmaf(f, v.y, a.v.y);
    a.v.z = fmaf(f, v.z, a.v.z), a.v.w = fmaf(f, v.w, a.v.w);
}

/* The LSE of a row. top: its maximum in base-2 units, sum: of 2^(score - top); NaN stays. */
ATTN_DEV float natural_lse(float top, float sum) {
    return sum == 0.f ? -INFINITY : (top + lg2(sum)) * LN2;
}

} /* namespace attn_cuda */
#endif
