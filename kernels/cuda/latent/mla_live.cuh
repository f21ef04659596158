/* SPDX-License-Identifier: Apache-2.0 */
/* Items of a plan for bounds, as the device's lengths make them (semantics 1.6). Rows of such a plan
 * count from the request's first, and every tile has all keys of its request, so that no length within
 * the bounds needs more. What a step lacks becomes an item of one key that no row sees: its result
 * weighs nothing. */
#ifndef MLA_LIVE_CUH
#define MLA_LIVE_CUH

#include "../ptx/ptx_sm80.cuh"
#include "mla_params.h"

namespace attn_cuda {

constexpr int MLA_SEES_NOTHING = -(1 << 30); /* a base */

/* Rows of a request from first_row on, at most num_rows. */
ATTN_DEV int mla_live_rows(const mla_counts *c, int request, int first_row, int num_rows, int heads,
                           int *q0) {
    *q0 = __ldg(c->starts + request);
    const int rows = (__ldg(c->starts + request + 1) - *q0) * heads - first_row;
    return max(0, min(num_rows, rows));
}

ATTN_DEV mla_item mla_item_of(const mla_attend_params &p, int i) {
    mla_item it = p.items[i];
    if (!p.reads_lengths) return it;
    const mla_counts *c = p.counts;
    const int seq = __ldg(c->lens + it.request);
    int q0;
    it.num_rows = mla_live_rows(c, it.request, it.first_row, it.num_rows, p.num_heads, &q0);
    it.first_row += q0 * p.num_heads;
    it.base = c->is_full ? seq : seq - __ldg(c->starts + it.request + 1);
    const int last = (it.first_row + it.num_rows - 1) / p.num_heads;
    it.k_end = min(it.k_end, c->is_full ? seq : it.base + last + 1);
    if (it.num_rows == 0 || it.k_end <= it.k_begin) it.k_begin = 0, it.k_end = 1, it.base = MLA_SEES_NOTHING;
    return it;
}

ATTN_DEV mla_split mla_split_of(const mla_attend_params &p, int i) {
    mla_split s = p.splits[i];
    if (!p.reads_lengths) return s;
    int q0;
    s.num_rows = mla_live_rows(p.counts, s.request, s.first_row, s.num_rows, p.num_heads, &q0);
    s.first_row += q0 * p.num_heads;
    return s;
}

/* Tokens of the step. */
ATTN_DEV int mla_num_tokens(const mla_counts *c) {
    const int planned = __ldg(&c->num_tokens); /* both on their way at once */
    const int32_t *starts = (const int32_t *)__ldg((const unsigned long long *)&c->starts);
    return starts ? __ldg(starts + c->num_reqs) : planned;
}

} /* namespace attn_cuda */
#endif
