/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention on any GPU from sm_75 on (semantics 7.4): TM_ROWS rows of one request against tiles of
 * TM_KEYS latent rows, which serve both products. The next tile waits in registers while this one is
 * multiplied, so one buffer is enough and no architecture needs cp.async. Sizes and types are macros
 * (latent_config.c); rows in shared memory are an odd number of 16 bytes long, which ldmatrix reads without
 * conflicts. */
#include "latent_mma.cuh"
#include "lse_merge.cuh"
#include "mla_params.h"

namespace attn_cuda {

constexpr int ROWS = TM_ROWS, KEYS = TM_KEYS, L = TM_LATENT, D = TM_LATENT + TM_ROPE;
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int PITCH = D * 2 + 16;                /* of a query or key */
constexpr int RAW = D * (TM_E4M3 ? 1 : 2) / 16;  /* loads of a key */
constexpr int LANES = THREADS / KEYS;            /* threads of a key */
constexpr int LOADS = (RAW + LANES - 1) / LANES; /* of a thread */
/* A warp makes the scores of UNIT_ROWS x UNIT_KEYS over a part of D: what it loads from shared memory for a
 * product falls from 12 bytes an operation's row and key to 6 as units grow (triton-notes.md). */
constexpr int UNIT_ROWS = ROWS == 64 ? 32 : 16, UNIT_KEYS = ROWS >= 32 && KEYS >= 32 ? 16 : 8;
constexpr int UNITS = ROWS / UNIT_ROWS * (KEYS / UNIT_KEYS);
constexpr int DEPTHS = UNITS < WARPS ? WARPS / UNITS : 1;           /* parts of the sum over D */
constexpr int DEPTH = ((D / 16 + DEPTHS - 1) / DEPTHS + 1) / 2 * 2; /* steps of 16 of a part */
constexpr int COLUMNS = (L / 16 + WARPS - 1) / WARPS;               /* of a warp, in sixteens */
constexpr int S_PITCH = KEYS + 8, P_PITCH = KEYS * 2 + 16;
constexpr int S_AT = (ROWS + KEYS) * PITCH, P_AT = S_AT + DEPTHS * ROWS * S_PITCH * 4,
              ROW_AT = P_AT + ROWS * P_PITCH, VALID_AT = ROW_AT + ROWS * 4, SMEM = VALID_AT + KEYS * 4;
static_assert(SMEM == TM_SMEM, "latent_config.c has the same formula");
static_assert(D % 16 == 0 && L % 16 == 0 && ROWS % 16 == 0 && KEYS % 16 == 0, "whole fragments");

struct key_reader {
    const mla_attend_params &p;
    const mla_item &it;
    const int32_t *table;
    int64_t width;

    /* The row of key k, null if there is none. */
    ATTN_DEV const char *row(int k) const {
        if (k >= it.k_end || k / TM_PAGE >= width) return nullptr;
        const int64_t id = __ldg(table + k / TM_PAGE);
        if (id < 0 || id >= p.num_pages) return nullptr;
        return (const char *)p.cache + id * p.cache_page + (int64_t)(k % TM_PAGE) * p.cache_row;
    }
};

ATTN_DEV void load_key(uint4 (&x)[LOADS], const char *from, int lane) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int c = lane + i * LANES;
        x[i] = from && c < RAW ? __ldg((const uint4 *)from + c) : make_uint4(0, 0, 0, 0);
    }
}

ATTN_DEV void store_key(uint32_t to, const uint4 (&x)[LOADS], int lane) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int c = lane + i * LANES;
        if (c >= RAW) break;
        if constexpr (TM_E4M3) {
            uint4 wide[2];
            widen_e4m3<TM_TYPE>(x[i], wide);
            st_shared_v4(to + c * 32, wide[0]);
            st_shared_v4(to + c * 32 + 16, wide[1]);
        } else
            st_shared_v4(to + c * 16, x[i]);
    }
}

/* Scores of one unit, over one part of D, unscaled. */
ATTN_DEV void multiply_scores(uint32_t ks, uint32_t qs, float *scores, int unit, int lane) {
    constexpr int R = UNIT_ROWS / 16, N = UNIT_KEYS / 8;
    const int part = unit / UNITS, u = unit % UNITS, r = u / (KEYS / UNIT_KEYS) * UNIT_ROWS,
              k = u % (KEYS / UNIT_KEYS) * UNIT_KEYS;
    const int end = min((part + 1) * DEPTH, D / 16);
    const uint32_t a_at = qs + (r + (lane & 15)) * PITCH + (lane >> 4) * 16;
    float s[R][2][4] = {};
    if constexpr (N == 1) {
        const uint32_t b_at = ks + (k + (lane & 7)) * PITCH + (lane >> 3) * 16;
#pragma unroll 3
        for (int d = part * DEPTH; d < end; d += 2) {
            uint32_t a[4], b[4]; /* what lies behind an odd end is loaded and not used */
            ldmatrix_x4(b, b_at + d * 32);
            ldmatrix_x4(a, a_at + d * 32);
            mma_any<TM_TYPE>(s[0][0], a, b[0], b[1]);
            if (d + 1 < end) {
                ldmatrix_x4(a, a_at + d * 32 + 32);
                mma_any<TM_TYPE>(s[0][1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][0][i] += s[0][1][i];
    } else {
        const uint32_t b_at = ks + (k + (lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 16;
#pragma unroll 2
        for (int d = part * DEPTH; d < end; d++) {
            uint32_t a[R][4], b[4];
            ldmatrix_x4(b, b_at + d * 32);
#pragma unroll
            for (int i = 0; i < R; i++)
                ldmatrix_x4(a[i], a_at + i * 16 * PITCH + d * 32);
#pragma unroll
            for (int i = 0; i < R; i++) {
                mma_any<TM_TYPE>(s[i][0], a[i], b[0], b[1]);
                mma_any<TM_TYPE>(s[i][1], a[i], b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float *to =
                scores + (part * ROWS + r + i * 16 + (lane >> 2)) * S_PITCH + k + n * 8 + (lane & 3) * 2;
            *(float2 *)to = make_float2(s[i][n][0], s[i][n][1]);
            *(float2 *)(to + 8 * S_PITCH) = make_float2(s[i][n][2], s[i][n][3]);
        }
}

} /* namespace attn_cuda */

using namespace attn_cuda;

extern "C" __global__ void __launch_bounds__(THREADS, TM_CTAS)
    tm_attend(const __grid_constant__ mla_attend_params p) {
    extern __shared__ __align__(128) unsigned char smem[];
    if (blockIdx.x >= p.slice->num_items) return;
    const mla_item it = p.items[p.slice->first_item + blockIdx.x];
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const uint32_t ks = smem_addr(smem), qs = ks + KEYS * PITCH, ps = ks + P_AT;
    float *scores = (float *)(smem + S_AT), *row_factor = (float *)(smem + ROW_AT);
    int *valid = (int *)(smem + VALID_AT);

    const key_reader reader{p, it, p.counts->block_table + it.request * p.counts->block_table_stride,
                            p.counts->block_table_width};
    const int key = tid / LANES, part = tid % LANES; /* what this thread loads of a tile */
    const int blocks = (it.num_rows + 15) / 16; /* of rows; what the others would have is not looked at */
    const int tiles = (it.k_end - it.k_begin + KEYS - 1) / KEYS;
    uint4 ahead[LOADS];
    const char *from = tiles > 0 ? reader.row(it.k_begin + key) : nullptr;
    load_key(ahead, from, part);
    const char *next = tiles > 1 ? reader.row(it.k_begin + KEYS + key) : nullptr;
    for (int i = tid; i < ROWS * (D / 8); i += THREADS) {
        const int r = i / (D / 8), c = i % (D / 8), row = it.first_row + r;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (r < it.num_rows)
            x = c < L / 8 ? __ldg((const uint4 *)((const uint16_t *)p.absorbed +
                                                  (int64_t)(row - p.slice_row0) * p.absorbed_row) +
                                  c)
                          : __ldg((const uint4 *)((const uint16_t *)p.query + row / p.num_heads * p.q_token +
                                                  row % p.num_heads * p.q_head + p.nope) +
                                  c - L / 8);
        st_shared_v4(qs + r * PITCH + c * 16, x);
    }

    /* softmax: neighbouring threads share a row */
    constexpr int GROUP = THREADS / ROWS, EACH = KEYS / GROUP > 0 ? KEYS / GROUP : 1;
    const int my_row = tid / GROUP, my_key = tid % GROUP;
    const float k_scale = TM_E4M3 && p.k_scale ? __ldg(p.k_scale) : 1.f, scale = p.scale * k_scale * LOG2E;
    const int limit = min(it.k_end, it.base + (it.first_row + my_row) / p.num_heads + 1);
    float m = NO_MAX, l = 0.f;
    float o[ROWS / 16][COLUMNS][2][4] = {};

    for (int t = 0; t < tiles; t++) {
        const int k0 = it.k_begin + t * KEYS;
        store_key(ks + key * PITCH, ahead, part);
        if (part == 0) valid[key] = from != nullptr;
        __syncthreads();
        from = next;
        load_key(ahead, from, part);
        next = t + 2 < tiles ? reader.row(k0 + 2 * KEYS + key) : nullptr;
        for (int u = warp; u < UNITS * DEPTHS; u += WARPS)
            if (u % UNITS / (KEYS / UNIT_KEYS) * (UNIT_ROWS / 16) < blocks)
                multiply_scores(ks, qs, scores, u, lane);
        __syncthreads();
        float s[EACH], top = NO_MAX;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int c = my_key + j * GROUP;
            float sum = c < KEYS ? scores[my_row * S_PITCH + c] : 0.f;
#pragma unroll
            for (int d = 1; d < DEPTHS; d++)
                if (c < KEYS) sum += scores[(d * ROWS + my_row) * S_PITCH + c];
            s[j] = c < KEYS && k0 + c < limit && valid[c] ? sum * scale : -INFINITY;
            top = fmaxf(top, s[j]);
        }
#pragma unroll
        for (int d = 1; d < GROUP; d *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        const float now = fmaxf(m, top), factor = ex2(m - now);
        m = now, l *= factor;
        if (my_key == 0) row_factor[my_row] = factor;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int c = my_key + j * GROUP;
            const float w = ex2(__fsub_rn(s[j], m));
            l += w;
            if (c < KEYS)
                *(uint16_t *)(smem + P_AT + my_row * P_PITCH + c * 2) = (uint16_t)pack_pair<TM_TYPE>(w, 0.f);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS / 16; r++) {
            if (r >= blocks) break;
            const float f0 = row_factor[r * 16 + (lane >> 2)], f1 = row_factor[r * 16 + (lane >> 2) + 8];
            if (__any_sync(~0u, f0 != 1.f || f1 != 1.f))
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        o[r][c][h][0] *= f0, o[r][c][h][1] *= f0, o[r][c][h][2] *= f1, o[r][c][h][3] *= f1;
        }
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++) {
            uint32_t a[ROWS / 16][4], b[4];
#pragma unroll
            for (int r = 0; r < ROWS / 16; r++)
                ldmatrix_x4(a[r], ps + (r * 16 + (lane & 15)) * P_PITCH + kk * 32 + (lane >> 4) * 16);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const int column = warp * COLUMNS + c;
                if (column >= L / 16) break;
                ldmatrix_x4_trans(b, ks + (kk * 16 + (lane & 15)) * PITCH + column * 32 + (lane >> 4) * 16);
#pragma unroll
                for (int r = 0; r < ROWS / 16; r++) {
                    if (r >= blocks) break;
                    mma_any<TM_TYPE>(o[r][c][0], a[r], b[0], b[1]);
                    mma_any<TM_TYPE>(o[r][c][1], a[r], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int d = 1; d < GROUP; d *= 2)
        l += __shfl_xor_sync(~0u, l, d);
    if (my_key == 0) {
        const int row = it.first_row + my_row;
        /* a sum that is NaN or infinite shows in the row */
        row_factor[my_row] = l == 0.f ? 0.f : k_scale / l;
        const float lse = l == 0.f ? -INFINITY : m + log2f(l);
        if (my_row < it.num_rows && it.slot >= 0) p.part_lse[(int64_t)it.slot * ROWS + my_row] = lse;
        if (my_row < it.num_rows && it.slot < 0 && p.lse)
            p.lse[row % p.num_heads * p.lse_head + row / p.num_heads * p.lse_token] = lse * LN2;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS / 16; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int mine = r * 16 + (lane >> 2) + 8 * e;
            if (mine >= it.num_rows) continue;
            const float f = row_factor[mine];
            const int64_t part_row = ((int64_t)it.slot * ROWS + mine) * L,
                          row = (int64_t)(it.first_row + mine - p.slice_row0) * L;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const int column = warp * COLUMNS + c;
                if (column >= L / 16) break;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int at = column * 16 + h * 8 + (lane & 3) * 2;
                    const float x = o[r][c][h][2 * e] * f, y = o[r][c][h][2 * e + 1] * f;
                    if (it.slot >= 0)
                        *(float2 *)(p.part_out + part_row + at) = make_float2(x, y);
                    else
                        *(uint32_t *)((uint16_t *)p.latent + row + at) = pack_pair<TM_TYPE>(x, y);
                }
            }
        }
}

/* Pieces of cut tiles, in their order (semantics 6.5): a row a CTA, four columns a thread. */
extern "C" __global__ void __launch_bounds__(128) tm_merge(const __grid_constant__ mla_attend_params p) {
    const int n = p.slice->num_splits;
    for (int u = blockIdx.x; u < n * ROWS; u += gridDim.x) {
        const mla_split s = p.splits[p.slice->first_split + u % n];
        const int r = u / n, row = s.first_row + r;
        if (r >= s.num_rows) continue;
        const float *lse = p.part_lse + (int64_t)s.slot * ROWS + r;
        const float *part = p.part_out + ((int64_t)s.slot * ROWS + r) * L;
        float top = -INFINITY, sum = 0.f;
        for (int i = 0; i < s.pieces; i++)
            top = lse[i * ROWS] <= top ? top : lse[i * ROWS]; /* NaN wins */
        const float base = top == -INFINITY ? 0.f : top;
        for (int i = 0; i < s.pieces; i++)
            sum += ex2(lse[i * ROWS] - base);
        const float inverse = sum == 0.f ? 0.f : 1.f / sum;
        for (int c = threadIdx.x * 4; c < L; c += 512) {
            float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
            for (int i = 0; i < s.pieces; i++) {
                const float w = ex2(lse[i * ROWS] - base) * inverse;
                const float4 x = *(const float4 *)(part + (int64_t)i * ROWS * L + c);
                a.x = fmaf(w, x.x, a.x), a.y = fmaf(w, x.y, a.y);
                a.z = fmaf(w, x.z, a.z), a.w = fmaf(w, x.w, a.w);
            }
            *(uint2 *)((uint16_t *)p.latent + (int64_t)(row - p.slice_row0) * L + c) =
                make_uint2(pack_pair<TM_TYPE>(a.x, a.y), pack_pair<TM_TYPE>(a.z, a.w));
        }
        if (threadIdx.x == 0 && p.lse)
            p.lse[row % p.num_heads * p.lse_head + row / p.num_heads * p.lse_token] =
                sum == 0.f ? -INFINITY : (base + log2f(sum)) * LN2;
    }
}
