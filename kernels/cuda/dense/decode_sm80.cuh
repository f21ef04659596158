/* SPDX-License-Identifier: Apache-2.0 */
/* Decode: few query rows against a long paged cache, limited by how fast memory is read. sm_80 and later.
 *
 * Transposed products with mma.sync.m16n8k16: S^T = K Q^T and O^T = V^T P^T, so that 16 keys fill the M side
 * and up to NT * 8 query rows the N side. A warp is the unit of work: it owns every num_warps-th block of
 * 16 keys of the CTA's piece and a private ring of STAGES blocks in shared memory, filled by its own cp.async
 * groups; inside the loop there is no barrier wider than the warp. The warps' (m, l, O) meet once at the end.
 *
 * An e4m3 cache becomes f16 exactly, and the products run in f16 with an unquantised Q. The k order of a
 * fragment is then a permutation inside each 32 columns; Q is loaded in the same order and O stored through
 * the inverse.
 *
 * Pieces of a request merge in this kernel too: the CTA that ends last does it (decode_sm80_merge.cuh).
 *
 * Grid: x = KV heads (fastest, so that the heads of one token are read together) times row blocks, y =
 * items. */
#ifndef DECODE_SM80_CUH
#define DECODE_SM80_CUH

#include "decode_sm80_tile.cuh"
#include "decode_sm80_query.cuh"
#include "flash_launch.h"
#include "flash_rows.cuh"
#include "page_id.cuh"

#include <type_traits>

namespace attn_cuda {

template <int KV, int DK, int DV, int NT>
struct decode_traits {
    static constexpr int EB = KV == DT_E4M3 ? 1 : 2;
    static constexpr int MMA = KV == DT_E4M3 ? DT_F16 : KV;
    /* a row of the ring: K, then V of one token, as packed caches have it, in whole 128-byte lines (see
     * ring_unit) */
    static constexpr int RS = DECODE_SM80_ROW(DK, DV, EB);
    static constexpr int STAGES = DECODE_SM80_STAGES;
    static constexpr int BLOCK = 16 * RS, RING = DECODE_SM80_RING(DK, DV, EB);
    static constexpr int ORS = DECODE_SM80_OUT_ROW(DV); /* floats per row of the final exchange */
    /* Where they receive from their cluster: behind the ring, or in it, behind what the warps exchange, when
     * all are done with it. Later, but a second CTA has room beside many rows. */
    static constexpr bool INBOX_IN_RING = NT > 2;
    static constexpr bool SHARED_QUERY = DECODE_SM80_Q_SMEM(DK, NT) > 0;
    using query =
        std::conditional_t<SHARED_QUERY, shared_query<KV, NT, DK / 16>, held_query<KV, NT, DK / 16>>;
    static constexpr int ROWS = NT * 8, SM_WARPS = DECODE_SM80_SM_WARPS(DK, DV, EB, NT);
};

/* Offset of 16-byte unit c of ring row r: the 128-byte swizzle. ldmatrix meets no bank conflict, and a
 * 128-byte line from memory lands in one line of shared memory: with padded rows instead the copy unit splits
 * every line in two, and the L2 is asked half as much again (measured: 91 instead of 97 % of the read
 * rate). */
template <int RS>
ATTN_DEV uint32_t ring_unit(int r, int c) {
    return r * RS + (c >> 3) * 128 + (((c ^ r) & 7) << 4);
}

/* 16 whole rows of row_bytes, at most ROW_BYTES, from global to the ring, from unit C0 of its rows on. */
template <int ROW_BYTES, int RS, int C0>
ATTN_DEV void load_rows(uint64_t policy, uint32_t dst, const uint8_t *src, int64_t stride, int row_bytes,
                        int lane) {
    constexpr int CPR = ROW_BYTES / 16;
    if constexpr (CPR % 32 == 0) {
        const uint8_t *s = src + lane * 16;
#pragma unroll
        for (int u = 0; u < 16; u++)
#pragma unroll
            for (int c = 0; c < CPR / 32; c++)
                if (c * 512 + lane * 16 < row_bytes)
                    cp_async16_by(policy, dst + ring_unit<RS>(u, C0 + c * 32 + lane),
                                  s + (int64_t)u * stride + c * 512);
    } else if constexpr (32 % CPR == 0) {
        constexpr int RPI = 32 / CPR;
        int c = lane % CPR, r = lane / CPR;
        const uint8_t *s = src + r * stride + c * 16;
        if (c * 16 < row_bytes)
#pragma unroll
            for (int u = 0; u < 16 / RPI; u++)
                cp_async16_by(policy, dst + ring_unit<RS>(u * RPI + r, C0 + c),
                              s + (int64_t)(u * RPI) * stride);
    } else {
#pragma unroll
        for (int u = 0; u < (16 * CPR + 31) / 32; u++) {
            int i = u * 32 + lane, r = i / CPR, c = i % CPR;
            if ((16 * CPR % 32 == 0 || i < 16 * CPR) && c * 16 < row_bytes)
                cp_async16_by(policy, dst + ring_unit<RS>(r, C0 + c), src + r * stride + c * 16);
        }
    }
}

/* The same with rows outside [lo, hi) as zeros, and where there are such rows columns beyond row_bytes too:
 * what lies there may be NaN, and 0 * NaN would reach the output. */
template <int ROW_BYTES, int RS, int C0>
ATTN_DEV void load_block(uint64_t policy, uint32_t dst, const uint8_t *src, int64_t stride, int row_bytes,
                         bool by8, int lo, int hi, int lane) {
    constexpr int CPR = ROW_BYTES / 16;
    if (lo <= 0 && hi >= 16 && !by8) {
        load_rows<ROW_BYTES, RS, C0>(policy, dst, src, stride, row_bytes, lane);
    } else if (!by8) {
#pragma unroll 1
        for (int i = lane; i < 16 * CPR; i += 32) {
            int r = i / CPR, c = i % CPR;
            bool ok = r >= lo && r < hi && c * 16 < row_bytes;
            cp_async_zfill<16>(dst + ring_unit<RS>(r, C0 + c), ok ? src + r * stride + c * 16 : src, ok);
        }
    } else { /* 8-bit rows whose size or stride is an odd multiple of 8 bytes */
#pragma unroll 1
        for (int i = lane; i < 16 * CPR * 2; i += 32) {
            int r = i / (CPR * 2), c = i % (CPR * 2);
            bool ok = r >= lo && r < hi && c * 8 < row_bytes;
            cp_async_zfill<8>(dst + ring_unit<RS>(r, C0 + (c >> 1)) + (c & 1) * 8,
                              ok ? src + r * stride + c * 8 : src, ok);
        }
    }
}

/* Keys [lo, hi) that a query row sees, the position of its token, and the slope of its head. */
struct decode_row {
    int lo, hi, pos;
    float slope;
};

ATTN_DEV decode_row decode_row_of(const flash_params &p, const seq_view &sv, int head, int row, int rows) {
    const int t = token_of(p, sv, row);
    const bool is_there = row < rows;
    decode_row r;
    visible_keys(p, sv, is_there ? t : 0, r.lo, r.hi);
    if (!is_there) r.hi = 0;
    r.pos = sv.kv_len - sv.q_len + t;
    r.slope = is_there && p.alibi ? __ldg(p.alibi + head * p.group + row - t * p.group) * LOG2E : 0.f;
    return r;
}

template <int KV, int DK, int DV, int NT>
__global__ void __launch_bounds__(32 * DECODE_WARPS, decode_traits<KV, DK, DV, NT>::SM_WARPS / DECODE_WARPS)
    decode_kernel(const __grid_constant__ flash_params p) {
    using T = decode_traits<KV, DK, DV, NT>;
    constexpr int MMA = T::MMA, EB = T::EB, ROWS = T::ROWS, STAGES = T::STAGES;
    constexpr int QSTEP = DK / 16, MT = DV / 16;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ row_exchange<ROWS> exchange;

    /* At once where there is no item: captured steps have a thousand such CTAs. Others need not wait for the
     * counts (flash_params). */
    if ((int)blockIdx.y >= p.listed_items && (int)blockIdx.y >= __ldg(&p.counts->num_items)) return;
    const int4 item4 = __ldg((const int4 *)p.items + 2 * blockIdx.y),
               item_view = __ldg((const int4 *)p.items + 2 * blockIdx.y + 1);
    const int32_t *const tables = p.counts->block_table;
    const int64_t table_stride = p.counts->block_table_stride;
    /* Beside prefill, where all have items, one CTA ends after that launch: who waits for this one waits for
     * both. */
    const bool ends_last = p.beside && blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, nwarp = blockDim.x >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int rblock = p.num_kv_heads == 1 ? (int)blockIdx.x : (int)__umulhi(blockIdx.x, p.heads_inverse);
    const int head = blockIdx.x - rblock * p.num_kv_heads;
    const int seq = item4.x + p.seq_offset;
    const bool paged = p.page_size > 0;
    seq_view sv = view_of(item_view, p.first_key);
    if (paged && p.k_start) { /* lengths are on the device, the item's are bounds: pieces may stay empty */
        sv.q0 = __ldg(p.q_start + seq);
        sv.q_len = __ldg(p.q_start + seq + 1) - sv.q0;
        sv.kv_len = __ldg(p.k_start + seq);
    }
    const int rows = sv.q_len * p.group, row0 = rblock * ROWS;
    if (row0 >= rows) {
        if (ends_last) pdl_wait();
        return;
    }
    const int width = item4.z > 1 ? cluster_width() : 1;
#if __CUDA_ARCH__ >= 900
    if (width > 1 && !T::INBOX_IN_RING) cluster_arrive_relaxed();
#endif

    /* This CTA's keys: the union of what its rows see, cut into pieces of a multiple of 64. */
    int lo_first = sv.first, hi_first = max(sv.kv_len, 0), lo_last = lo_first, hi_last = hi_first;
    if (sv.q_len > 1 || !p.sees_all) {
        visible_keys(p, sv, token_of(p, sv, row0), lo_first, hi_first);
        visible_keys(p, sv, token_of(p, sv, min(rows - 1, row0 + ROWS - 1)), lo_last, hi_last);
    }
    const int begin = lo_first & ~15, pieces = item4.z;
    int per = hi_last - begin;
    if (pieces > 1) { /* mostly a power of two */
        per += pieces - 1;
        per = (((pieces & (pieces - 1)) == 0 ? per >> (31 - __clz(pieces)) : per / pieces) + 63) & ~63;
    }
    const int t0 = begin + item4.y * per, t1 = min(hi_last, t0 + per);
    const int nb = t1 > t0 ? (t1 - t0 + 15) >> 4 : 0;

    /* Loader. Lane i keeps the page of the warp's i-th next block, its entry in the table; the next 32 are
     * fetched one round ahead. */
    const int32_t *table = tables + (int64_t)seq * table_stride;
    auto entry_of = [&](int i) {
        const int b = warp + i * nwarp, t = t0 + b * 16;
        const int at = p.page_shift >= 0 ? t >> p.page_shift : t / p.page_size;
        return paged && b < nb ? __ldg(table + at) : 0;
    };
    int ids = entry_of(lane), ids_next = 0, li = 0, lstage = 0;

    /* Q^T fragments, asked for before the keys: both wait for memory at the same time. */
    auto query_at = [&](int n) {
        const int row = row0 + n * 8 + g, t = token_of(p, sv, row);
        return (int64_t)(sv.q0 + t) * p.q_token + (int64_t)(head * p.group + row - t * p.group) * p.q_head;
    };
    auto is_query = [&](int n) { return row0 + n * 8 + g < rows; };
    typename T::query query;
    if constexpr (T::SHARED_QUERY)
        query.load(p, query_at, is_query, q, warp, nwarp);
    else
        query.load(p, query_at, is_query, q);

    const uint64_t policy = read_once_policy();
    const int k0 = paged ? 0 : __ldg(p.k_start + seq); /* contiguous keys are no decoder's */
    const uint8_t *kbase = (const uint8_t *)p.k + (int64_t)head * p.k_head * EB;
    const uint32_t ring = smem_addr(smem) + warp * T::RING;
    const int kbytes = p.head_size * EB, vbytes = p.head_size_v * EB;
    const bool by8 = EB == 1 && p.by8;
    auto load = [&]() {
        int b = warp + li * nwarp;
        if (b < nb) {
            int tok = t0 + b * 16, page = page_id(p, __shfl_sync(~0u, ids, li & 31));
            int off = !paged ? k0 + tok : p.page_shift >= 0 ? tok & (p.page_size - 1) : tok % p.page_size;
            const uint8_t *ks = kbase + ((int64_t)page * p.k_page + (int64_t)off * p.k_token) * EB;
            uint32_t dst = ring + lstage * T::BLOCK;
            int lo = lo_first - tok, hi = t1 - tok;
            if (p.is_joined && lo <= 0 && hi >= 16)
                load_rows<(DK + DV) * EB, T::RS, 0>(policy, dst, ks, p.k_token * EB, (DK + DV) * EB, lane);
            else {
                const uint8_t *vs =
                    (const uint8_t *)p.v +
                    ((int64_t)off * p.v_token + (int64_t)page * p.v_page + (int64_t)head * p.v_head) * EB;
                load_block<DK * EB, T::RS, 0>(policy, dst, ks, p.k_token * EB, kbytes, by8, lo, hi, lane);
                load_block<DV * EB, T::RS, DK * EB / 16>(policy, dst, vs, p.v_token * EB, vbytes, by8, lo, hi,
                                                         lane);
            }
        }
        li++;
        if ((li & 31) == 0) {
            ids = ids_next;
            ids_next = entry_of(li + 32 + lane);
        }
        lstage = lstage + 1 == STAGES ? 0 : lstage + 1;
        cp_async_commit();
    };
    /* columns beyond the rows stay zeros: 0 * NaN would reach the output */
    if (kbytes < DK * EB || vbytes < DV * EB) {
        for (int i = lane; i < T::RING / 16; i += 32)
            st_shared_v4(ring + i * 16, make_uint4(0, 0, 0, 0));
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        load();
    ids_next = entry_of(32 + lane);

    /* What each of the thread's 2 * NT query rows sees; many of them are looked at where they are wanted. */
    constexpr int HELD = NT <= 2 ? NT : 1;
    decode_row held[HELD][2];
    auto row_of = [&](int n, int e) { return decode_row_of(p, sv, head, row0 + n * 8 + 2 * q + e, rows); };
    if constexpr (NT <= 2)
#pragma unroll
        for (int n = 0; n < NT; n++)
            held[n][0] = row_of(n, 0), held[n][1] = row_of(n, 1);
    auto seen_by = [&](int n, int e) {
        if constexpr (NT <= 2)
            return held[n][e];
        else
            return row_of(n, e);
    };
    if constexpr (T::SHARED_QUERY) {
        query.base = smem_addr(smem) + max(nwarp * T::RING, nwarp * ROWS * T::ORS * 4) + lane * 16;
        query.store(p, warp, nwarp);
        const int step = T::query::OWN * nwarp; /* all of them, but of fewer than four warps */
#pragma unroll 1
        for (int i = warp + step; i < T::query::QUADS; i += step) {
            query.load(p, query_at, is_query, q, i, nwarp);
            query.store(p, i, nwarp);
        }
        __syncthreads();
    } else
        query.widen(p);
    const score_features features(p, KV == DT_E4M3 ? qk_scale(p, head) : 1.f);

    float o[NT][MT][4], m[NT][2], l[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        m[n][0] = m[n][1] = NO_MAX;
        l[n][0] = l[n][1] = 0.f;
#pragma unroll
        for (int j = 0; j < MT; j++)
            o[n][j][0] = o[n][j][1] = o[n][j][2] = o[n][j][3] = 0.f;
    }
    const int lr = lane & 15, lc = lane >> 4; /* ldmatrix: K rows 0-15, column half */
    const int vr = (lane & 7) + ((lane >> 4) << 3), vc = (lane >> 3) & 1; /* V: tokens 0-7, 0-7, 8-15, 8-15 */
    int cstage = 0;
#pragma unroll 1
    for (int b = warp; b < nb; b += nwarp) {
        cp_async_wait<STAGES - 2>();
        __syncwarp();
        const uint32_t sk = ring + cstage * T::BLOCK;
        load();
        float s[NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
        if constexpr (KV == DT_E4M3) {
#pragma unroll
            for (int st = 0; st < DK / 32; st++) {
                uint32_t r[4];
                ldmatrix_x4(r, sk + ring_unit<T::RS>(lr, 2 * st + lc));
                uint32_t a0[4] = {e4m3x2_to_f16x2<0>(r[0]), e4m3x2_to_f16x2<0>(r[1]),
                                  e4m3x2_to_f16x2<1>(r[0]), e4m3x2_to_f16x2<1>(r[1])};
                uint32_t a1[4] = {e4m3x2_to_f16x2<0>(r[2]), e4m3x2_to_f16x2<0>(r[3]),
                                  e4m3x2_to_f16x2<1>(r[2]), e4m3x2_to_f16x2<1>(r[3])};
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const query_quad x = query.at(n, st);
                    mma_16816<MMA>(s[n], a0, x.x[0], x.x[1]);
                    mma_16816<MMA>(s[n], a1, x.x[2], x.x[3]);
                }
            }
        } else if constexpr (T::SHARED_QUERY) {
#pragma unroll
            for (int st = 0; st < DK / 32; st++) {
                uint32_t a0[4], a1[4];
                ldmatrix_x4(a0, sk + ring_unit<T::RS>(lr, 4 * st + lc));
                ldmatrix_x4(a1, sk + ring_unit<T::RS>(lr, 4 * st + 2 + lc));
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const query_quad x = query.at(n, st);
                    mma_16816<MMA>(s[n], a0, x.x[0], x.x[1]);
                    mma_16816<MMA>(s[n], a1, x.x[2], x.x[3]);
                }
            }
        } else {
            add_scores<MMA, QSTEP>(s, query.f, [&](int i) { return sk + ring_unit<T::RS>(lr, 2 * i + lc); });
        }
        const int tok0 = t0 + b * 16, tok = tok0 + g;
#pragma unroll
        for (int n = 0; n < NT; n++)
            features.apply(s[n]);
        if (p.alibi) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const decode_row r = seen_by(n, e);
                    s[n][e] = fmaf(r.slope, (float)(tok - r.pos), s[n][e]);
                    s[n][2 + e] = fmaf(r.slope, (float)(tok + 8 - r.pos), s[n][2 + e]);
                }
        }
        if (tok0 < lo_last || tok0 + 16 > hi_first || tok0 + 16 > t1) {
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const decode_row r = seen_by(n, e);
                    if (tok < r.lo || tok >= r.hi || tok >= t1) s[n][e] = -INFINITY;
                    if (tok + 8 < r.lo || tok + 8 >= r.hi || tok + 8 >= t1) s[n][2 + e] = -INFINITY;
                }
        }
        raise_max(s, m, l, o, 8.f);
        uint32_t pb[NT][2];
        weigh<MMA, false>(s, m, {1.f, 1.f}, l, pb);
        if constexpr (KV == DT_E4M3) {
#pragma unroll
            for (int x = 0; x < DV / 32; x++) {
                uint32_t r[4], lo4[4], hi4[4];
                ldmatrix_x4_trans(r, sk + ring_unit<T::RS>(vr, DK * EB / 16 + 2 * x + vc));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t y = prmt(r[i], r[i], 0x3120); /* pair the two tokens of one column */
                    lo4[i] = e4m3x2_to_f16x2<0>(y);
                    hi4[i] = e4m3x2_to_f16x2<1>(y);
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mma_16816<MMA>(o[n][2 * x], lo4, pb[n][0], pb[n][1]);
                    mma_16816<MMA>(o[n][2 * x + 1], hi4, pb[n][0], pb[n][1]);
                }
            }
        } else {
            add_values<MMA>(o, pb,
                            [&](int i) { return sk + ring_unit<T::RS>(vr, DK * EB / 16 + 2 * i + vc); });
        }
        __syncwarp();
        cstage = cstage + 1 == STAGES ? 0 : cstage + 1;
    }
    cp_async_wait<0>();

    /* Merge of the warps through the ring's memory. */
    sum_lanes(l);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (width > 1 && T::INBOX_IN_RING) cluster_arrive();
#endif
    float *so = (float *)smem;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (g == 0)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                exchange.row[warp][n * 8 + 2 * q + e] = make_float2(m[n][e], l[n][e]);
            }
        float *r0 = so + (warp * ROWS + n * 8 + 2 * q) * T::ORS, *r1 = r0 + T::ORS;
#pragma unroll
        for (int j = 0; j < MT; j++) {
            int d0 = KV == DT_E4M3 ? 32 * (j >> 1) + 2 * g + (j & 1) : 16 * j + g;
            int d1 = KV == DT_E4M3 ? d0 + 16 : d0 + 8;
            r0[d0] = o[n][j][0];
            r1[d0] = o[n][j][1];
            r0[d1] = o[n][j][2];
            r1[d1] = o[n][j][3];
        }
    }
    __syncthreads();
    const decode_place place = {head, row0, min(ROWS, rows - row0), item4.y, item4.z, item4.w};
    const int out_bytes = nwarp * ROWS * T::ORS * 4;
    uint8_t *behind = smem + (T::INBOX_IN_RING ? out_bytes : max(nwarp * T::RING, out_bytes));
    merge_and_store<ROWS, DV>(p, sv, place, width, so, exchange, *(cluster_inbox<ROWS, DV> *)behind);
    if (ends_last) pdl_wait();
}

template <int KV, int DK, int DV, int NT>
int launch_decode(const flash_params *p, const flash_decode_config *c, int num_items, void *stream) {
    using T = decode_traits<KV, DK, DV, NT>;
    auto kernel = decode_kernel<KV, DK, DV, NT>;
    int bytes = c->warps * DECODE_SM80_WARP_SMEM(DK, DV, T::EB, NT) + DECODE_SM80_Q_SMEM(DK, NT);
    const int out_bytes = c->warps * T::ROWS * T::ORS * 4,
              with_inbox = (T::INBOX_IN_RING ? out_bytes : bytes) + (int)sizeof(cluster_inbox<T::ROWS, DV>),
              cluster_bytes = with_inbox > bytes ? with_inbox : bytes;
    /* at open, outside any capture: the same limit by every instance, since others may be running */
    if (!p) {
        /* all of them alike, so that one begins beside another, and beside those of peers_sm80.cu */
        const int e = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                cudaSharedmemCarveoutMaxShared);
        if (e != cudaSuccess) return e;
        if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, cluster_bytes) ==
            cudaSuccess)
            return cudaSuccess;
        (void)cudaGetLastError(); /* no room for clusters on this device */
        return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    if (c->cluster > 1) bytes = cluster_bytes;
    const int row_blocks = (p->max_rows / p->num_kv_heads + T::ROWS - 1) / T::ROWS;
    cudaLaunchConfig_t l = {};
    l.gridDim = dim3((unsigned)(p->num_kv_heads * row_blocks), (unsigned)num_items);
    l.blockDim = dim3((unsigned)c->warps * 32);
    l.dynamicSmemBytes = (size_t)bytes;
    l.stream = (cudaStream_t)stream;
    cudaLaunchAttribute a[2];
    l.attrs = a;
    if (c->cluster > 1) {
        a[l.numAttrs].id = cudaLaunchAttributeClusterDimension;
        a[l.numAttrs].val.clusterDim.x = a[l.numAttrs].val.clusterDim.z = 1;
        a[l.numAttrs++].val.clusterDim.y = (unsigned)c->cluster;
    }
    if (p->beside) {
        a[l.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a[l.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    flash_params x = *p;
    x.group_inverse = (uint32_t)(((1ull << 32) + (unsigned)p->group - 1) / (unsigned)p->group);
    x.heads_inverse = (uint32_t)(((1ull << 32) + (unsigned)p->num_kv_heads - 1) / (unsigned)p->num_kv_heads);
    x.sees_all = p->window_left < 0 && p->window_right < 0 && p->chunk == 0;
    for (x.page_shift = 0; 1ll << x.page_shift < p->page_size; x.page_shift++)
        ;
    if (p->page_size > 0 && 1ll << x.page_shift != p->page_size) x.page_shift = -1;
    const int64_t kbytes = p->head_size * T::EB, vbytes = p->head_size_v * T::EB;
    x.by8 = T::EB == 1 && (((p->k_token | p->k_head | p->k_page | p->v_token | p->v_head | p->v_page |
                             kbytes | vbytes | (int64_t)(uintptr_t)p->k | (int64_t)(uintptr_t)p->v) &
                            8) != 0);
    x.is_joined = !x.by8 && kbytes == DK * T::EB && vbytes == DV * T::EB &&
                  (const char *)p->v - (const char *)p->k == kbytes && p->k_page == p->v_page &&
                  p->k_token == p->v_token && (p->num_kv_heads == 1 || p->k_head == p->v_head);
    return (int)cudaLaunchKernelEx(&l, kernel, x);
}

template <int KV, int DK, int DV>
int launch_of_tiles(const flash_params *p, const flash_decode_config *c, int num_items, void *stream) {
    constexpr int MOST = DECODE_SM80_ROW_TILES(DK, DV);
    static_assert(MOST <= DECODE_SM80_MOST_ROW_TILES, "an instance for each number of row tiles");
    switch (c->row_tiles) {
    case 1:
        return launch_decode<KV, DK, DV, 1>(p, c, num_items, stream);
    case 2:
        return launch_decode<KV, DK, DV, 2>(p, c, num_items, stream);
    case 3:
        if constexpr (MOST >= 3) return launch_decode<KV, DK, DV, 3>(p, c, num_items, stream);
        break;
    case 4:
        if constexpr (MOST >= 4) return launch_decode<KV, DK, DV, 4>(p, c, num_items, stream);
        break;
    }
    return (int)cudaErrorInvalidDeviceFunction;
}

#define INSTANCE(TYPE, CLASS)                                                                                \
    extern "C" int flash_decode_##TYPE##_##CLASS(const flash_params *p, const flash_decode_config *c,        \
                                                 int num_items, void *stream) {                              \
        using namespace attn_cuda;                                                                           \
        [[maybe_unused]] constexpr flash_class k = flash_class_##CLASS;                                      \
        return launch_of_tiles<FLASH_TYPE_##TYPE, k.dk, k.dv>(p, c, num_items, stream);                      \
    }

} /* namespace attn_cuda */
#endif
