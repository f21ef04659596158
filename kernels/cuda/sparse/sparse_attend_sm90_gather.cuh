/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper sparse attention: the gathering warpgroups. They pack a list before its first block. A warp
 * brings eight of the 64 keys of a block; lanes 0 to 7 find their addresses, index and block table entry each
 * a block ahead. 16-bit rows go to shared memory by cp.async; rows of 656 bytes (semantics 3.5) come into
 * registers ahead of their use and are widened on the way, but for rope values that the output's type can
 * take as they are, which are copied. */
#ifndef SPARSE_ATTEND_SM90_GATHER_CUH
#define SPARSE_ATTEND_SM90_GATHER_CUH

#include "ds_values.cuh"
#include "sparse_attend_sm90_tiles.cuh"

namespace attn_cuda {

ATTN_DEV void cp_async_row16(uint32_t dst, const void *src, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
/* The same under an L2 policy. dst must not be known to be uniform but for an offset of the lane: of such an
 * address the assembler of CUDA 13.0 makes an illegal instruction (tests/plugins/kernel_code.sh). */
ATTN_DEV void cp_async_row16_by(uint64_t policy, uint32_t dst, const void *src, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(dst),
                 "l"(src), "r"(valid ? 16 : 0), "l"(policy)
                 : "memory");
}
/* Arrives once all earlier cp.async of this thread have landed. */
ATTN_DEV void cp_async_arrive(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
/* 16 bytes that are read once. */
ATTN_DEV uint4 ld_stream_v4(const void *p) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}
/* The row of a key that is not there: loads need no condition, which would make the compiler move registers
 * that are still on their way. */
__device__ const uint4 sparse_no_row[MLA_DS_ROW / 16] = {};

/* Where the keys of an item lie, for one of the eight rows of this warp in every block (semantics 9.3). */
struct sparse_rows {
    const mla_attend_params &p;
    const int32_t *list, *table;
    int width, key, end;   /* key: of the block whose index is loaded next */
    int index, next, page; /* of the coming block; index of the one after */

    ATTN_DEV sparse_rows(const mla_attend_params &params, const int32_t *keys, const mla_item &it, int row)
        : p(params), list(keys),
          table(params.counts->block_table + it.request * params.counts->block_table_stride),
          width((int)params.counts->block_table_width), key(it.k_begin + row),
          end(row < MLA_TILE_KEYS ? it.k_end : 0) {
        index = fetch_index();
        next = fetch_index();
        page = fetch_page(index);
    }
    ATTN_DEV int fetch_index() { /* may be written by this CTA, so not through the path for constants */
        int x = -1;
        if (key < end) asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(list + key) : "memory");
        key += MLA_TILE_KEYS;
        return x;
    }
    ATTN_DEV int fetch_page(int i) const {
        int at = (int)((unsigned)i / (unsigned)p.page_size);
        return i >= 0 && at < width ? __ldg(table + at) : -1;
    }
    /* The row of the coming block, NULL if there is none. */
    ATTN_DEV const char *take() {
        const char *a = nullptr;
        if (page >= 0 && page < p.num_pages)
            a = (const char *)p.cache + page * p.cache_page +
                (int64_t)((unsigned)index % (unsigned)p.page_size) * p.cache_row;
        index = next;
        page = fetch_page(index);
        next = fetch_index();
        return a;
    }
};

ATTN_DEV const char *row_of_lane(const char *a, int lane) {
    return (const char *)__shfl_sync(~0u, (unsigned long long)a, lane);
}

template <int DT, bool DS>
struct sparse_gather {
    const mla_attend_params &p;
    const sparse_smem &sm;
    const int lane, warp;
    /* Rope values of 656-byte rows are bfloat16 (semantics 3.5): copied where the output is. */
    static constexpr bool ROPE_COPIES = DS && DT == DT_BF16;
    static constexpr int LOADS = ROPE_COPIES ? 8 : 10; /* of eight 656-byte rows */
    static constexpr int LIST_LOADS = 8;               /* of a thread, in flight */

    ATTN_DEV sparse_gather(const mla_attend_params &params, const sparse_smem &smem)
        : p(params), sm(smem), lane(threadIdx.x & 31), warp(__shfl_sync(~0u, (int)threadIdx.x >> 5 & 7, 0)) {}

    /* Address of chunk `chunk` (16 bytes) of a row in a slab at `slab`. */
    static ATTN_DEV uint32_t at(uint32_t slab, int row, int chunk) {
        return slab + row * 128 + ((chunk ^ (row & 7)) << 4);
    }

    /* The positions that the list of an item's token names, one behind the other in the order of the list, so
     * that those which name none (semantics 9.3, 9.5) cost no time wherever they are: the list itself where
     * they are all at its end, else a copy; a list that is too long for a copy is read up to its last
     * one, and all before that count. found: how many. turn: which counts are free. The first barrier
     * also says that all warps are through with the copy that was there before. */
    ATTN_DEV const int32_t *pack_list(const mla_item &it, int &found, int &turn) const {
        constexpr int CHUNK = SPARSE_GATHER_THREADS * LIST_LOADS, COUNT_BITS = 10;
        static_assert(LIST_LOADS * 32 < 1 << COUNT_BITS, "and positions have 21 bits (mla_supports)");
        const bool packs = p.lists != nullptr;
        const int32_t *topk = p.topk + (int64_t)(it.first_row / p.num_heads) * p.topk_row;
        int32_t *copy = p.lists + (int64_t)blockIdx.x * p.topk_count;
        int end = 0;
        found = 0;
#pragma unroll 1
        for (int base = 0; base < p.topk_count; base += CHUNK) {
            const int k0 = base + warp * LIST_LOADS * 32 + lane;
            int index[LIST_LOADS], mine = 0, last = 0;
#pragma unroll
            for (int j = 0; j < LIST_LOADS; j++)
                index[j] = k0 + j * 32 < p.topk_count ? __ldg(topk + k0 + j * 32) : -1;
#pragma unroll
            for (int j = 0; j < LIST_LOADS; j++) {
                const unsigned there = __ballot_sync(~0u, index[j] >= 0);
                mine += __popc(there);
                if (there) last = k0 - lane + j * 32 + 32 - __clz((int)there);
            }
            if (lane == 0) st_shared_s32(sm.scanned(turn, warp), last << COUNT_BITS | mine);
            named_barrier(SPARSE_SCANNED, SPARSE_GATHER_THREADS);
            const unsigned counted = (unsigned)ld_shared_s32(sm.scanned(turn, lane & 7));
            const int count = (int)(counted & ((1u << COUNT_BITS) - 1));
            int32_t *to = copy + found + __reduce_add_sync(~0u, lane < warp ? count : 0);
            found += __reduce_add_sync(~0u, lane < 8 ? count : 0);
            end = max(end, (int)__reduce_max_sync(~0u, counted >> COUNT_BITS));
            turn ^= 1;
            if (!packs || (found == end && p.topk_count <= CHUNK)) continue;
#pragma unroll
            for (int j = 0; j < LIST_LOADS; j++) {
                const unsigned there = __ballot_sync(~0u, index[j] >= 0);
                if (index[j] >= 0) to[__popc(there & ((1u << lane) - 1))] = index[j];
                to += __popc(there);
            }
        }
        if (!packs) found = end;
        if (found == end) return topk;
        named_barrier(SPARSE_SCANNED, SPARSE_GATHER_THREADS);
        return copy;
    }

    /* By a policy: read once, they leave the L2 to keys, which many tokens of a prompt want. */
    ATTN_DEV void queries(const mla_item &it, int parity) const {
        const int chunk = lane & 7;
        const uint64_t policy = read_once_policy();
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int r = warp * 8 + (lane >> 3) + 4 * j, row = it.first_row + (r < it.num_rows ? r : 0);
            const uint32_t to = __shfl_sync(~0u, at(sm.q(), r, chunk), lane); /* not uniform, see above */
            const uint16_t *latent =
                (const uint16_t *)p.absorbed + (row - p.slice_row0) * p.absorbed_row + chunk * 8;
            const uint16_t *rope = (const uint16_t *)p.query + (row / p.num_heads) * p.q_token +
                                   (row % p.num_heads) * p.q_head + p.nope + chunk * 8;
#pragma unroll
            for (int s = 0; s < 9; s++)
                cp_async_row16_by(policy, to + s * MLA90_SLAB, s < 8 ? latent + s * 64 : rope,
                                  r < it.num_rows);
        }
        cp_async_arrive(sm.q_full());
        if (threadIdx.x == SPARSE_THREADS - 1) {
            st_shared_v4(sm.item(parity),
                         make_uint4(item_blocks(it), it.first_row, it.num_rows, (unsigned)it.slot));
            mbar_arrive(sm.q_full());
        }
    }

    /* Bit i: the warp's row i is there; a: of lanes 0 to 7 their rows. */
    static ATTN_DEV unsigned rows_there(const char *a) {
        return __ballot_sync(~0u, a != nullptr) & 255u;
    }
    ATTN_DEV void write_mask(int buffer, unsigned bits) const {
        if (lane == 0)
            asm volatile("st.shared.u8 [%0], %1;" ::"r"(sm.mask(buffer) + warp), "r"(bits) : "memory");
    }

    /* 16-bit rows: eight lanes bring 128 bytes of a row. */
    ATTN_DEV void item16(sparse_rows &rows, int blocks, int (&phase)[2]) const {
        const int chunk = lane & 7, r = warp * 8 + (lane >> 3);
#pragma unroll 1
        for (int b = 0; b < blocks; b++) {
            const int buffer = b & 1, ph = buffer ? phase[1] : phase[0];
            const char *a = rows.take();
            const char *ra = row_of_lane(a, lane >> 3), *rb = row_of_lane(a, (lane >> 3) + 4);
            const char *sa = (ra ? ra : (const char *)p.cache) + chunk * 16;
            const char *sb = (rb ? rb : (const char *)p.cache) + chunk * 16;
            const uint32_t da = at(sm.k(buffer), r, chunk), db = at(sm.k(buffer), r + 4, chunk);
            mbar_sleep(sm.empty(buffer, 0), ph ^ 1);
            write_mask(buffer, rows_there(a));
#pragma unroll
            for (int s = 0; s < 4; s++) {
                cp_async_row16(da + s * MLA90_SLAB, sa + s * 128, ra);
                cp_async_row16(db + s * MLA90_SLAB, sb + s * 128, rb);
            }
            cp_async_arrive(sm.full(buffer, 0));
            if (lane == 0) mbar_arrive(sm.full(buffer, 0)); /* for the mask */
            mbar_sleep(sm.empty(buffer, 1), ph ^ 1);
#pragma unroll
            for (int s = 4; s < 9; s++) {
                cp_async_row16(da + s * MLA90_SLAB, sa + s * 128, ra);
                cp_async_row16(db + s * MLA90_SLAB, sb + s * 128, rb);
            }
            cp_async_arrive(sm.full(buffer, 1));
            if (buffer)
                phase[1] ^= 1;
            else
                phase[0] ^= 1;
        }
    }

    /* Loads bring eight 656-byte rows: four times 128 latent values and the rope, of rows 0 to 3 and 4 to 7.
     * In a load, a quarter of a warp holds four chunks of two neighbouring rows, so that the stores meet all
     * banks. The scales go to shared memory a block ahead. */
    static ATTN_DEV uint4 fetch(int u, const char *row, int chunk) {
        return ld_stream_v4(row + chunk * 16 + (u < 8 ? (u >> 1) * 128 : MLA_DS_ROPE_AT));
    }
    /* row: of lanes 0 to 7 their rows. */
    ATTN_DEV void fetch_scales(const char *row, int buffer) const {
        if (lane < 8) cp_async<16>(sm.scales(buffer, warp) + lane * 16, row + MLA_DS_SCALES_AT);
        cp_async_commit();
    }
    ATTN_DEV void copy_rope(const char *row, int buffer) const {
        const int chunk = lane & 7, r = warp * 8 + (lane >> 3);
        const uint32_t slab = sm.k(buffer) + 8 * MLA90_SLAB;
#pragma unroll
        for (int j = 0; j < 8; j += 4)
            cp_async<16>(at(slab, r + j, chunk),
                         row_of_lane(row, (lane >> 3) + j) + MLA_DS_ROPE_AT + chunk * 16);
        cp_async_arrive(sm.full(buffer, 1));
    }
    /* 16 e4m3 bytes times the tile's scale, rounded once (semantics 3.5); rope values as they are. */
    static ATTN_DEV void widen(uint4 data, int u, float scale, uint32_t k, int row, int chunk) {
        if (u >= 8) {
            st_shared_v4(at(k + 8 * MLA90_SLAB, row, chunk), ds_rope<DT>(data));
            return;
        }
        uint32_t v[8];
        ds_latents<DT>(data, scale, v);
        const uint32_t slab = k + ((u >> 1) * 2 + (chunk >> 2)) * MLA90_SLAB;
        st_shared_v4(at(slab, row, 2 * (chunk & 3)), make_uint4(v[0], v[1], v[2], v[3]));
        st_shared_v4(at(slab, row, 2 * (chunk & 3) + 1), make_uint4(v[4], v[5], v[6], v[7]));
    }
    /* The readers, not the writers, fence against the other proxy: here a fence would wait for the loads in
     * flight. */
    ATTN_DEV void arrive_written(uint32_t bar) const {
        __syncwarp();
        if (lane == 0) mbar_arrive(bar);
    }
    ATTN_DEV void item_ds(sparse_rows &rows, int blocks, int (&phase)[2]) const {
        const int chunk = (lane & 3) + (lane >> 3 & 1) * 4, sub = (lane >> 4) * 2 + (lane >> 2 & 1);
        const int r = warp * 8 + sub;
        if (blocks == 0) return;
        uint4 ring[LOADS];
        unsigned there = 0;
        const char *ra = nullptr, *rb = nullptr, *mine = nullptr;
        auto next_rows = [&](int buffer) {
            const char *a = rows.take();
            there = rows_there(a);
            mine = a ? a : (const char *)sparse_no_row;
            fetch_scales(mine, buffer);
            ra = row_of_lane(mine, sub), rb = row_of_lane(mine, sub + 4);
        };
        next_rows(0);
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            ring[u] = fetch(u, u & 1 ? rb : ra, chunk);
#pragma unroll 1
        for (int b = 0; b < blocks; b++) {
            const int buffer = b & 1, ph = buffer ? phase[1] : phase[0];
            const uint32_t k = sm.k(buffer), scales = sm.scales(buffer, warp) + sub * 16;
            /* Both halves at once: a wait in between would be one for all loads in flight, the newest too. */
            mbar_sleep(sm.empty(buffer, 0), ph ^ 1);
            mbar_sleep(sm.empty(buffer, 1), ph ^ 1);
            write_mask(buffer, there);
            cp_async_wait<0>();
            __syncwarp();
            if constexpr (ROPE_COPIES) copy_rope(mine, buffer);
            next_rows(buffer ^ 1); /* behind the last block: none is there */
            float scale = ld_shared_f32(scales);
#pragma unroll
            for (int u = 0; u < LOADS; u++) {
                if (u == 4) arrive_written(sm.full(buffer, 0));
                const float now = scale;
                if (u < 7) scale = ld_shared_f32(scales + (u + 1 & 1) * 64 + (u + 1 >> 1) * 4);
                widen(ring[u], u, now, k, r + 4 * (u & 1), chunk);
                ring[u] = fetch(u, u & 1 ? rb : ra, chunk);
            }
            arrive_written(sm.full(buffer, 1));
            if (buffer)
                phase[1] ^= 1;
            else
                phase[0] ^= 1;
        }
        cp_async_wait<0>();
    }

    ATTN_DEV void run() const {
        const sparse_turns turns(p);
        int phase[2] = {0, 0}, parity = 0, turn = 0;
#pragma unroll 1
        for (int i = turns.first; i < turns.end; i += turns.step) {
            mla_item it = sparse_item(p, i);
            int found;
            const int32_t *list = pack_list(it, found, turn);
            it.k_begin = sparse_cut(it.k_begin, found, p.topk_count);
            it.k_end = sparse_cut(it.k_end, found, p.topk_count);
            /* its first trips to memory while the item before is at work */
            sparse_rows rows(p, list, it, lane < 8 ? warp * 8 + lane : MLA_TILE_KEYS);
            mbar_sleep(sm.q_empty(), parity ^ 1);
            if (i == turns.first) pdl_wait();
            queries(it, parity);
            if constexpr (DS)
                item_ds(rows, item_blocks(it), phase);
            else
                item16(rows, item_blocks(it), phase);
            parity ^= 1;
        }
    }
};

} /* namespace attn_cuda */
#endif
