/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys a query row sees, and where a token of K or V lies: shared by all flash kernels so that masks
 * and addresses mean the same everywhere. */
#ifndef FLASH_ROWS_CUH
#define FLASH_ROWS_CUH

#include "../ptx/lse_merge.cuh"
#include "flash_params.h"

namespace attn_cuda {

struct seq_view {
    int q0;     /* first row of q */
    int q_len;  /* query tokens */
    int kv_len; /* keys */
    int causal;
    int first; /* keys before it belong to another pass */
};

/* Second half of a flash_item or flash_tile. */
ATTN_DEV seq_view view_of(int4 x, int first) {
    return seq_view{x.x, x.y, x.z, x.w, first};
}

/* Keys lo <= k < hi of query token i (semantics 2.2, 2.3): bottom-right causal, window counted from the
 * query. A window (w, 0) is read as (w, w) by requests without causality, as upstream symmetrises it. */
ATTN_DEV void visible_keys(const flash_params &p, const seq_view &s, int i, int &lo, int &hi) {
    int pos = s.kv_len - s.q_len + i;
    lo = s.first;
    hi = s.causal ? pos + 1 : s.kv_len;
    if (p.window_left >= 0) lo = max(lo, pos - p.window_left);
    if (p.chunk > 0) { /* semantics 2.4, 2.5 */
        lo = max(lo, (pos / p.chunk - p.lookback) * p.chunk);
        hi = pos + 1;
    }
    if (p.window_right >= 0 && !s.causal) {
        int64_t right = (int64_t)pos + p.window_right + 1;
        hi = right < hi ? (int)right : hi;
    }
    hi = max(0, min(hi, s.kv_len));
}

/* Token index to page and offset; page sizes are any multiple of 16, mostly powers of two. */
struct pager {
    int size, shift;
    ATTN_DEV explicit pager(int page_size) {
        size = page_size;
        shift = (page_size & (page_size - 1)) == 0 ? 31 - __clz(page_size) : -1;
    }
    ATTN_DEV int page(int token) const { return shift >= 0 ? token >> shift : token / size; }
    ATTN_DEV int offset(int token) const { return shift >= 0 ? token & (size - 1) : token % size; }
};

/* From dot products to scores in base-2 units (semantics 2.9: scale, soft cap, then ALiBi on k - q). The
 * branches are outside the loops over a tile's elements; `rel(i)` is the key position minus the query
 * position. */
struct score_features {
    float scale_log2, cap_log2, scale_over_cap;
    ATTN_DEV score_features(const flash_params &p, float kscale) {
        bool cap = p.soft_cap > 0.f;
        scale_log2 = p.scale * kscale * LOG2E;
        cap_log2 = cap ? p.soft_cap * LOG2E : 0.f;
        scale_over_cap = cap ? p.scale * kscale / p.soft_cap : 0.f;
    }
    template <int N>
    ATTN_DEV void apply(float (&s)[N]) const {
        if (cap_log2 != 0.f) {
#pragma unroll
            for (int i = 0; i < N; i++)
                s[i] = cap_log2 * tanh_f32(s[i] * scale_over_cap);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                s[i] *= scale_log2;
        }
    }
};

/* What turns the products of a KV head's quantised tensors into their values (semantics 2.9). */
ATTN_DEV float qk_scale(const flash_params &p, int kv_head) {
    const float k = p.k_scale ? __ldg(p.k_scale + kv_head * p.scale_stride) : 1.f;
    return p.q_scale ? k * __ldg(p.q_scale + kv_head * p.q_scale_stride) : k;
}

/* With parts_are_f32, a row of a piece's result. */
ATTN_DEV float *part_row(const flash_params &p, int piece, int row, int head) {
    return (float *)p.out + piece * p.out_piece + (int64_t)row * p.out_token + (int64_t)head * p.out_head;
}

/* 16-bit output of two neighbours. */
ATTN_DEV uint32_t pack2_as(int dtype, float lo, float hi) {
    return dtype == DT_BF16 ? pack2<DT_BF16>(lo, hi) : pack2<DT_F16>(lo, hi);
}

} /* namespace attn_cuda */
#endif
