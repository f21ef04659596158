/* SPDX-License-Identifier: Apache-2.0 */
/* The 2D kernel: one CTA computes a block of query rows of one request against all keys they see. mma.sync m16n8k16 with
 * FlashAttention-2's loop (arXiv 2307.08691): V(j) loads while S = Q K^T runs, K(j+1) while O += P V runs. Rows are packed
 * (row = token * group + head), so that the query heads of one KV head share its keys.
 *
 * 8-bit caches become f16 on their way to shared memory, which is exact; inline scales of K go to the columns of S, those
 * of V to the columns of P. Macros beyond triton_rows.cuh: TL_WARPS, TL_MT (m-tiles a warp), TL_BN, TL_CTAS. */
#ifndef TRITON_PREFILL_CUH
#define TRITON_PREFILL_CUH

#include "triton_rows.cuh"

namespace attn_cuda {
namespace prefill {

constexpr int MMA = TL_KV == DT_BF16 ? DT_BF16 : DT_F16, EB = element_bytes(TL_KV), QB = element_bytes(TL_Q);
constexpr int OB = element_bytes(TL_OUT), THREADS = TL_WARPS * 32, MT = TL_MT, BM = TL_WARPS * 16 * MT, BN = TL_BN;
constexpr int DP = (TL_D + 15) / 16 * 16, DVP = (TL_DV + 15) / 16 * 16;
constexpr int KRS = DP * 2 + 16, VRS = DVP * 2 + 16; /* an odd number of 16-byte units: no bank conflicts */
constexpr int ORS = DVP * OB + 16, QRS = KRS > ORS ? KRS : ORS;
constexpr int K_AT = BM * QRS, V_AT = K_AT + BN * KRS, SCALES_AT = V_AT + BN * VRS;
constexpr int ROWS_AT = SCALES_AT + (TL_TOKEN_HEAD ? 2 * BN * 4 : 0), SMEM = ROWS_AT + BM * 8 + 16;
static_assert(SMEM == TL_PREFILL_SMEM, "triton_config.c knows the same size");
/* The scale joins the exponent where nothing else touches the score; it must be positive for the maximum to stay one. */
constexpr bool FOLD = TL_SCALE > 0.f && TL_CAP == 0.f && TL_ALIBI == 0 && !TL_QQ && EB == 2 && TL_Q != DT_E4M3;
/* The running maximum may lag by 2^LAZY: fewer rescales. With inline scales P is up to 64 times v_scale, so not there. */
constexpr float LAZY = TL_TOKEN_HEAD ? 0.f : 8.f, V_SHIFT = TL_TOKEN_HEAD ? 64.f : 1.f;

/* Eight elements of a row as 16 bytes of the 16-bit type. Columns from `left` on are zeros, and nothing is read of them. */
ATTN_DEV void load_chunk(uint32_t dst, const uint8_t *src, bool ok, int left) {
    if constexpr (EB == 2) {
        if constexpr (TL_KVEC == 16)
            cp_async_zfill<16>(dst, src, ok && left > 0);
        else if constexpr (TL_KVEC >= 4) {
#pragma unroll
            for (int b = 0; b < 16; b += TL_KVEC)
                cp_async_zfill<TL_KVEC>(dst + b, src + b, ok && b / 2 < left);
        } else {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t a = ok && 2 * i < left ? ((const uint16_t *)src)[2 * i] : 0;
                uint32_t b = ok && 2 * i + 1 < left ? ((const uint16_t *)src)[2 * i + 1] : 0;
                w[i] = a | b << 16;
            }
            st_shared_v4(dst, make_uint4(w[0], w[1], w[2], w[3]));
        }
    } else {
        uint2 x = make_uint2(0, 0);
        if constexpr (TL_KVEC >= 8) {
            if (ok && left > 0)
                x = __ldg((const uint2 *)src);
        } else if constexpr (TL_KVEC == 4) {
            if (ok && left > 0)
                x.x = __ldg((const uint32_t *)src);
            if (ok && left > 4)
                x.y = __ldg((const uint32_t *)(src + 4));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x.x |= (ok && i < left ? (uint32_t)src[i] : 0) << (8 * i);
                x.y |= (ok && i + 4 < left ? (uint32_t)src[i + 4] : 0) << (8 * i);
            }
        }
        st_shared_v4(dst, make_uint4(codes_to_f16x2<TL_KV, 0>(x.x), codes_to_f16x2<TL_KV, 1>(x.x),
                                     codes_to_f16x2<TL_KV, 0>(x.y), codes_to_f16x2<TL_KV, 1>(x.y)));
    }
}

ATTN_DEV int64_t shuffle64(int64_t x, int from) {
    uint32_t low = __shfl_sync(~0u, (uint32_t)x, from), high = __shfl_sync(~0u, (uint32_t)(x >> 32), from);
    return (int64_t)((uint64_t)high << 32 | low);
}

/* BN rows of keys or values. Lane i's `group` is the byte offset of the tile's i-th group of 16 tokens, which lie in one
 * page. What is not wanted becomes zeros and is not read: cp.async of size 0 does not touch its address. */
template <int D, int DPAD, int RS>
ATTN_DEV void load_tile(uint32_t dst, const uint8_t *base, int64_t token_bytes, int64_t group, int tok0, const key_walk &walk) {
    constexpr int CPR = DPAD / 8, TOTAL = BN * CPR, ROWS = THREADS / CPR;
    if constexpr (THREADS % CPR == 0 && ROWS <= 16 && 16 % ROWS == 0) { /* each thread stays in its column */
        const int c = threadIdx.x % CPR, r0 = threadIdx.x / CPR;
        const uint8_t *src = base + c * 8 * EB + r0 * token_bytes;
        int64_t at = 0;
#pragma unroll
        for (int r = 0; r < BN; r += ROWS) {
            if (r % 16 == 0)
                at = shuffle64(group, r / 16);
            load_chunk(dst + (r0 + r) * RS + c * 16, src + at + (r % 16) * token_bytes, walk.wanted(tok0 + r0 + r), D - c * 8);
        }
    } else {
#pragma unroll
        for (int u = 0; u < (TOTAL + THREADS - 1) / THREADS; u++) {
            int i = u * THREADS + threadIdx.x, r = i / CPR, c = i % CPR;
            int64_t at = shuffle64(group, (r >> 4) & 31);
            if (TOTAL % THREADS == 0 || i < TOTAL)
                load_chunk(dst + r * RS + c * 16, base + c * 8 * EB + at + (r & 15) * token_bytes, walk.wanted(tok0 + r),
                           D - c * 8);
        }
    }
}

ATTN_DEV void load_scales(float *to, const uint8_t *base, int64_t token_bytes, int64_t group, int tok0, const key_walk &walk,
                          float factor) {
    int r = threadIdx.x;
    int64_t at = shuffle64(group, (r >> 4) & 31);
    if (r < BN)
        to[r] = walk.wanted(tok0 + r) ? load_scale(base + at + (r & 15) * token_bytes) * factor : 0.f;
}

} /* namespace prefill */

extern "C" __global__ void __launch_bounds__(TL_WARPS * 32, TL_CTAS) tl_prefill(const __grid_constant__ triton_params_t p) {
    using namespace prefill;
    extern __shared__ __align__(128) uint8_t smem[];
    const uint32_t sq = smem_addr(smem), sk = sq + K_AT, svm = sq + V_AT;
    float *const k_scales = (float *)(smem + SCALES_AT), *const v_scales = k_scales + BN;
    int2 *const seen = (int2 *)(smem + ROWS_AT);
    int *const extent = (int *)(smem + ROWS_AT + BM * 8); /* with spans: least lo, greatest hi, greatest lo, least hi */

    const int entry = blockIdx.x / p.num_kv_heads, head = blockIdx.x % p.num_kv_heads;
    if (entry >= p.counts->num_tiles)
        return;
    const int2 tile = *(const int2 *)(p.tiles + entry);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q = lane & 3;
    const int seq = tile.x, row0 = tile.y * BM;
    const seq_view sv = view_seq(p, seq);
    const int rows = sv.q_len * TL_GROUP;
    if (row0 >= rows)
        return;
    const int context = sv.kv_len - sv.q_len;

    /* What each row sees; what all and what any of them see. Without spans both ends grow with the row. */
    if (TL_SPANS && tid == 0)
        extent[0] = extent[3] = 0x7fffffff, extent[1] = extent[2] = 0;
    if (TL_SPANS)
        __syncthreads();
    for (int r = tid; r < BM; r += THREADS) {
        int2 s = row_keys(sv, min(rows - 1, row0 + r) / TL_GROUP);
        seen[r] = s;
        if (TL_SPANS) {
            atomicMin(&extent[0], s.x), atomicMax(&extent[1], s.y);
            atomicMax(&extent[2], s.x), atomicMin(&extent[3], s.y);
        }
    }
    key_walk walk;
    int all_lo, all_hi; /* keys that every row of this warp sees */
    if constexpr (TL_SPANS) {
        __syncthreads();
        walk.lo = extent[0], walk.hi = extent[1], all_lo = extent[2], all_hi = extent[3];
    } else {
        walk.lo = row_keys(sv, row0 / TL_GROUP).x;
        walk.hi = row_keys(sv, min(rows - 1, row0 + BM - 1) / TL_GROUP).y;
        all_lo = row_keys(sv, min(rows - 1, row0 + warp * MT * 16 + MT * 16 - 1) / TL_GROUP).x;
        all_hi = row_keys(sv, min(rows - 1, row0 + warp * MT * 16) / TL_GROUP).y;
    }
    walk.prefix = min(sv.prefix, walk.hi);
    walk.start<BN>();

    const int32_t *table = p.counts->block_table + (int64_t)seq * p.counts->table_stride;
    const int64_t first = TL_PAGE > 0 ? 0 : sv.q0;
    const uint8_t *kbase = (const uint8_t *)p.k + (first * p.k_token + (int64_t)head * p.k_head) * EB;
    const uint8_t *vbase = (const uint8_t *)p.v + (first * p.v_token + (int64_t)head * p.v_head) * EB;
    const int64_t k_token = p.k_token * EB, v_token = p.v_token * EB;
    int64_t k_group, v_group; /* see load_tile */
    auto find_groups = [&](int tok0) {
        int tok = tok0 + 16 * lane;
        k_group = v_group = 0;
        if (lane < BN / 16 && tok < walk.hi && (tok + 16 > walk.lo || (TL_RSWA > 0 && tok < walk.prefix))) {
            int page = TL_PAGE > 0 ? __ldg(table + page_of(tok)) : 0, off = in_page(tok);
            k_group = (page * p.k_page + off * p.k_token) * EB;
            v_group = (page * p.v_page + off * p.v_token) * EB;
        }
    };

#pragma unroll 4
    for (int i = tid; i < BM * (DP / 8); i += THREADS) {
        int r = i / (DP / 8), c = i % (DP / 8), row = row0 + r;
        bool ok = row < rows;
        const uint8_t *src = (const uint8_t *)p.q + ((int64_t)(sv.q0 + row / TL_GROUP) * p.q_token +
                                                     (int64_t)(head * TL_GROUP + row % TL_GROUP) * p.q_head) * QB;
        if constexpr (TL_Q == MMA && TL_QVEC == 16) {
            ok = ok && c * 8 < TL_D;
            cp_async_zfill<16>(sq + r * KRS + c * 16, ok ? src + c * 16 : (const uint8_t *)p.q, ok);
        } else {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = ok ? query_pair<MMA>(src, c * 8 + 2 * k) : 0;
            st_shared_v4(sq + r * KRS + c * 16, make_uint4(w[0], w[1], w[2], w[3]));
        }
    }

    auto row_of = [&](int t, int e) { return min(rows - 1, row0 + (warp * MT + t) * 16 + g + 8 * e); };
    float m[MT][2], l[MT][2], o[MT][DVP / 8][4];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        m[t][0] = m[t][1] = NO_MAX, l[t][0] = l[t][1] = 0.f;
#pragma unroll
        for (int j = 0; j < DVP / 8; j++)
            o[t][j][0] = o[t][j][1] = o[t][j][2] = o[t][j][3] = 0.f;
    }
    const score_rule rule(p, head);

    find_groups(walk.begin);
    if (walk.begin < walk.hi) {
        load_tile<TL_D, DP, KRS>(sk, kbase, k_token, k_group, walk.begin, walk);
        if (TL_TOKEN_HEAD)
            load_scales(k_scales, kbase + TL_D, k_token, k_group, walk.begin, walk, 1.f);
    }
    cp_async_commit();
    /* ldmatrix: A and V take rows lane & 15, K rows 0-7, 0-7, 8-15, 8-15 */
    const uint32_t q_at = sq + (warp * MT * 16 + (lane & 15)) * KRS + (lane >> 4) * 16;
    const uint32_t k_at = sk + ((lane & 7) + ((lane >> 4) << 3)) * KRS + ((lane >> 3) & 1) * 16;
    const uint32_t v_at = svm + (lane & 15) * VRS + (lane >> 4) * 16;
#pragma unroll 1
    for (int k0 = walk.begin, k1; k0 < walk.hi; k0 = k1) {
        k1 = walk.next<BN>(k0);
        cp_async_wait<0>();
        __syncthreads();
        load_tile<TL_DV, DVP, VRS>(svm, vbase, v_token, v_group, k0, walk);
        if (TL_TOKEN_HEAD)
            load_scales(v_scales, vbase + TL_DV, v_token, v_group, k0, walk, V_SHIFT);
        cp_async_commit();
        float s[MT][BN / 8][4];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                s[t][j][0] = s[t][j][1] = s[t][j][2] = s[t][j][3] = 0.f;
        /* fragments one step ahead of the products that use them: two warps a scheduler do not hide ldmatrix */
        uint32_t a[2][MT][4], kb[2][4];
        auto load_a = [&](int st) {
#pragma unroll
            for (int t = 0; t < MT; t++)
                ldmatrix_x4(a[st & 1][t], q_at + t * 16 * KRS + st * 32);
        };
        load_a(0);
        ldmatrix_x4(kb[0], k_at);
#pragma unroll
        for (int st = 0; st < DP / 16; st++) {
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                constexpr int J = BN / 16;
                const int n = st * J + j;
                if (n + 1 < DP / 16 * J)
                    ldmatrix_x4(kb[(n + 1) & 1], k_at + (n + 1) % J * 16 * KRS + (n + 1) / J * 32);
                if (j == 0 && st + 1 < DP / 16)
                    load_a(st + 1);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma<MMA>(s[t][2 * j], a[st & 1][t], kb[n & 1][0], kb[n & 1][1]);
                    mma<MMA>(s[t][2 * j + 1], a[st & 1][t], kb[n & 1][2], kb[n & 1][3]);
                }
            }
        }
        find_groups(k1);
        const bool partial = k0 < all_lo || k0 + BN > all_hi;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            if constexpr (!FOLD) {
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
                    float2 ks = make_float2(1.f, 1.f);
                    if (TL_TOKEN_HEAD)
                        ks = *(const float2 *)(k_scales + j * 8 + 2 * q);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[t][j][i] = rule.apply<false>(TL_TOKEN_HEAD ? s[t][j][i] * (i & 1 ? ks.y : ks.x) : s[t][j][i]);
                }
            }
            if constexpr (TL_ALIBI != 0) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int row = row_of(t, e);
                    float rel = (float)(k0 + 2 * q - (context + row / TL_GROUP));
                    float slope = __ldg(p.alibi + head * TL_GROUP + row % TL_GROUP) * LOG2E;
#pragma unroll
                    for (int j = 0; j < BN / 8; j++) {
                        s[t][j][2 * e] += alibi_term<false>(slope, rel + (float)(j * 8));
                        s[t][j][2 * e + 1] += alibi_term<false>(slope, rel + (float)(j * 8 + 1));
                    }
                }
            }
            if constexpr (TL_QQ) {
                if (k0 + BN > context && k0 < context + p.qq_width) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const float *bias = p.qq_bias + (int64_t)(sv.q0 + row_of(t, e) / TL_GROUP) * p.qq_row;
#pragma unroll
                        for (int j = 0; j < BN / 8; j++)
#pragma unroll
                            for (int i = 0; i < 2; i++) {
                                int rel = k0 + j * 8 + 2 * q + i - context;
                                if (rel >= 0 && rel < p.qq_width)
                                    s[t][j][2 * e + i] += __ldg(bias + rel) * LOG2E;
                            }
                    }
                }
            }
            if (partial) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int2 see = seen[(warp * MT + t) * 16 + g + 8 * e];
#pragma unroll
                    for (int j = 0; j < BN / 8; j++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if (!is_visible(k0 + j * 8 + 2 * q + i, see, walk.prefix))
                                s[t][j][2 * e + i] = -INFINITY;
                }
            }
            float mx[2] = {NO_MAX, NO_MAX};
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                mx[0] = fmaxf(mx[0], fmaxf(s[t][j][0], s[t][j][1]));
                mx[1] = fmaxf(mx[1], fmaxf(s[t][j][2], s[t][j][3]));
            }
            if (FOLD)
                mx[0] *= rule.factor, mx[1] *= rule.factor;
            if (__any_sync(~0u, mx[0] > m[t][0] + LAZY || mx[1] > m[t][1] + LAZY)) {
                float f[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    mx[e] = fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 1));
                    mx[e] = fmaxf(fmaxf(mx[e], __shfl_xor_sync(~0u, mx[e], 2)), m[t][e]);
                    f[e] = ex2(m[t][e] - mx[e]);
                    m[t][e] = mx[e];
                    l[t][e] *= f[e];
                }
#pragma unroll
                for (int j = 0; j < DVP / 8; j++) {
                    o[t][j][0] *= f[0];
                    o[t][j][1] *= f[0];
                    o[t][j][2] *= f[1];
                    o[t][j][3] *= f[1];
                }
            }
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[t][j][i] = ex2(FOLD ? fmaf(s[t][j][i], rule.factor, -m[t][i >> 1]) : s[t][j][i] - m[t][i >> 1]);
                    l[t][i >> 1] += s[t][j][i];
                }
        }
        cp_async_wait<0>();
        __syncthreads();
        if (k1 < walk.hi) {
            load_tile<TL_D, DP, KRS>(sk, kbase, k_token, k_group, k1, walk);
            if (TL_TOKEN_HEAD)
                load_scales(k_scales, kbase + TL_D, k_token, k_group, k1, walk, 1.f);
        }
        cp_async_commit();
        uint32_t vb[2][4];
        ldmatrix_x4_trans(vb[0], v_at);
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            uint32_t pa[MT][4];
            float2 v0 = make_float2(1.f, 1.f), v1 = v0;
            if (TL_TOKEN_HEAD) {
                v0 = *(const float2 *)(v_scales + j * 16 + 2 * q);
                v1 = *(const float2 *)(v_scales + j * 16 + 8 + 2 * q);
            }
#pragma unroll
            for (int t = 0; t < MT; t++) {
                const float *x = s[t][2 * j], *y = s[t][2 * j + 1];
                pa[t][0] = TL_TOKEN_HEAD ? pack2<MMA>(x[0] * v0.x, x[1] * v0.y) : pack2<MMA>(x[0], x[1]);
                pa[t][1] = TL_TOKEN_HEAD ? pack2<MMA>(x[2] * v0.x, x[3] * v0.y) : pack2<MMA>(x[2], x[3]);
                pa[t][2] = TL_TOKEN_HEAD ? pack2<MMA>(y[0] * v1.x, y[1] * v1.y) : pack2<MMA>(y[0], y[1]);
                pa[t][3] = TL_TOKEN_HEAD ? pack2<MMA>(y[2] * v1.x, y[3] * v1.y) : pack2<MMA>(y[2], y[3]);
            }
#pragma unroll
            for (int d = 0; d < DVP / 16; d++) {
                constexpr int W = DVP / 16;
                const int n = j * W + d;
                if (n + 1 < BN / 16 * W)
                    ldmatrix_x4_trans(vb[(n + 1) & 1], v_at + (n + 1) / W * 16 * VRS + (n + 1) % W * 32);
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    mma<MMA>(o[t][2 * d], pa[t], vb[n & 1][0], vb[n & 1][1]);
                    mma<MMA>(o[t][2 * d + 1], pa[t], vb[n & 1][2], vb[n & 1][3]);
                }
            }
        }
    }
    cp_async_wait<0>();
    __syncthreads(); /* Q's memory takes O; the first copies may still be in flight when no key was visible */

    float factor = !TL_TOKEN_HEAD && p.v_scale ? __ldg(p.v_scale + head * p.kv_scale_stride) : 1.f / V_SHIFT;
    if (TL_OUT == DT_E4M3 && p.out_scale)
        factor /= __ldg(p.out_scale);
#pragma unroll
    for (int t = 0; t < MT; t++) {
        float f[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = l[t][e], mm = m[t][e], rescale = 1.f;
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            int row = row0 + (warp * MT + t) * 16 + g + 8 * e, tok = row / TL_GROUP, h = head * TL_GROUP + row % TL_GROUP;
            if (TL_SINKS && row < rows) { /* denominator only (semantics 2.10) */
                float sink = __ldg(p.sinks + h) * LOG2E, top = fmaxf(mm, sink);
                rescale = ex2(mm - top);
                sum = sum * rescale + ex2(sink - top);
                mm = top;
            }
            f[e] = sum != 0.f ? rescale * factor / sum : 0.f;
            if (p.lse && q == 0 && row < rows)
                p.lse[(int64_t)(sv.q0 + tok) * p.lse_token + (int64_t)h * p.lse_head] =
                    sum != 0.f ? (mm + lg2(sum)) * LN2 : -INFINITY;
        }
        uint8_t *so = smem + ((warp * MT + t) * 16 + g) * ORS + 2 * q * OB;
#pragma unroll
        for (int j = 0; j < DVP / 8; j++) {
            float *x = o[t][j];
            if constexpr (TL_OUT == DT_E4M3) {
                *(uint16_t *)(so + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[0] * f[0], x[1] * f[0]);
                *(uint16_t *)(so + 8 * ORS + j * 8) = (uint16_t)f32x2_to_e4m3x2(x[2] * f[1], x[3] * f[1]);
            } else {
                *(uint32_t *)(so + j * 16) = pack2<TL_OUT == DT_F32 ? DT_F16 : TL_OUT>(x[0] * f[0], x[1] * f[0]);
                *(uint32_t *)(so + 8 * ORS + j * 16) = pack2<TL_OUT == DT_F32 ? DT_F16 : TL_OUT>(x[2] * f[1], x[3] * f[1]);
            }
        }
    }
    __syncwarp();
    constexpr int PIECES = TL_DV * OB / TL_OVEC;
    for (int i = lane; i < MT * 16 * PIECES; i += 32) {
        int r = warp * MT * 16 + i / PIECES, b = i % PIECES * TL_OVEC, row = row0 + r;
        if (row < rows)
            copy_piece<TL_OVEC>((uint8_t *)p.out + ((int64_t)(sv.q0 + row / TL_GROUP) * p.out_token +
                                                    (int64_t)(head * TL_GROUP + row % TL_GROUP) * p.out_head) * OB + b,
                                smem + r * ORS + b);
    }
}

} /* namespace attn_cuda */
#endif
