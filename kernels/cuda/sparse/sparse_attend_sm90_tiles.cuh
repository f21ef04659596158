/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper sparse attention: what its warpgroups share. Queries and two key buffers lie in shared memory as
 * tiles of mla_tile_sm90.cuh. Each buffer is handed over in two halves: slabs 0 to 3, then 4 to 8. */
#ifndef SPARSE_ATTEND_SM90_TILES_CUH
#define SPARSE_ATTEND_SM90_TILES_CUH

#include "../ptx/ptx_sm90.cuh"
#include "../latent/mla_params.h"
#include "kernels/cuda/ptx/wgmma_sm90.cuh"
#include "../latent/mla_tile_sm90.cuh"

namespace attn_cuda {

constexpr int SPARSE_LATENT = 64 * MLA90_VALUE_SLABS;
constexpr int SPARSE_THREADS = 512, SPARSE_GATHER_THREADS = 256;
constexpr int SPARSE_SMALL_AT = 3 * MLA90_TILE;          /* the small things, after the tiles */
constexpr int SPARSE_SCALES_AT = SPARSE_SMALL_AT + 2048; /* 656-byte rows: of two blocks, 128 bytes a warp */
constexpr int SPARSE_SMEM = SPARSE_SCALES_AT + 2 * 8 * 128 + 1024; /* the last for alignment */

/* named barriers */
enum { SPARSE_P0_READY = 1, SPARSE_P1_READY, SPARSE_LEFT_ALONE, SPARSE_ITEM_DONE, SPARSE_SCANNED };

/* Addresses in shared memory, as the 32-bit numbers that the instructions take. */
struct sparse_smem {
    uint32_t base;
    ATTN_DEV explicit sparse_smem(const void *raw) : base((smem_addr(raw) + 1023) & ~1023u) {}
    ATTN_DEV uint32_t q() const { return base; }
    ATTN_DEV uint32_t k(int buffer) const { return base + (1 + buffer) * MLA90_TILE; }
    ATTN_DEV uint32_t full(int buffer, int half) const { /* keys have arrived */
        return base + SPARSE_SMALL_AT + (buffer * 2 + half) * 8;
    }
    ATTN_DEV uint32_t empty(int buffer, int half) const { /* keys have been used */
        return full(buffer, half) + 32;
    }
    ATTN_DEV uint32_t q_full() const { return base + SPARSE_SMALL_AT + 64; }
    ATTN_DEV uint32_t q_empty() const { return base + SPARSE_SMALL_AT + 72; }
    ATTN_DEV uint32_t mask(int buffer) const { /* 64 bits: which keys are there */
        return base + SPARSE_SMALL_AT + 80 + buffer * 8;
    }
    /* Of items by turns: blocks, first_row, num_rows, slot; from q_full until the item after has arrived. */
    ATTN_DEV uint32_t item(int parity) const { return base + SPARSE_SMALL_AT + 96 + parity * 16; }
    ATTN_DEV uint32_t scanned(int parity, int warp) const {
        return base + SPARSE_SMALL_AT + 1664 + (parity * 8 + warp) * 4;
    }
    ATTN_DEV uint32_t scales(int buffer, int warp) const {
        return base + SPARSE_SCALES_AT + (buffer * 8 + warp) * 128;
    }
    ATTN_DEV uint32_t top(int side, int row) const { /* the running maximum after a block of that side */
        return base + SPARSE_SMALL_AT + 128 + (side * 64 + row) * 4;
    }
    ATTN_DEV uint32_t sum(int parity, int side, int row) const {
        return base + SPARSE_SMALL_AT + 640 + ((parity * 2 + side) * 64 + row) * 4;
    }
};

ATTN_DEV void st_shared_s32(uint32_t a, int x) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(a), "r"(x) : "memory");
}
ATTN_DEV int ld_shared_s32(uint32_t a) {
    int x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(a) : "memory");
    return x;
}

ATTN_DEV mla_item load_item(const mla_item *at) {
    static_assert(sizeof(mla_item) == 32, "two loads of 16 bytes");
    union {
        int4 v[2];
        mla_item it;
    } u;
    u.v[0] = __ldg((const int4 *)at);
    u.v[1] = __ldg((const int4 *)at + 1);
    return u.it;
}
/* The items of this CTA. Where a token has more than 64 rows, two neighbours go through the same items
 * together, each with half of the rows, so that the second finds the keys in the L2. Where the plan cuts
 * lists, the parts are of equal work; whole tiles are dealt out in turn, so that tokens that lie together are
 * attended to at the same time. */
struct sparse_turns {
    int first, end, step;
    ATTN_DEV explicit sparse_turns(const mla_attend_params &p) {
        const int ctas = p.tile_rows / MLA_TILE_ROWS, part = (int)blockIdx.x / ctas;
        first = p.slice->first_item, end = first + p.slice->num_items;
        if (p.slice->num_splits > 0)
            first = __ldg(p.parts + part), end = __ldg(p.parts + part + 1), step = 1;
        else
            first += part, step = (int)gridDim.x / ctas;
    }
};
/* Item i as this CTA sees it: its half of the rows; slot: the row of part_out at which they begin, or -1. */
ATTN_DEV mla_item sparse_item(const mla_attend_params &p, int i) {
    mla_item it = load_item(p.items + i);
    const int ctas = p.tile_rows / MLA_TILE_ROWS, at = (int)blockIdx.x % ctas * MLA_TILE_ROWS;
    it.first_row += at;
    it.num_rows = min(it.num_rows - at, (int)MLA_TILE_ROWS);
    if (it.slot >= 0) it.slot = it.slot * p.tile_rows + at;
    return it;
}
/* Where position k of a list of `count` falls among the n of its positions that name a key: pieces of a list
 * get equal shares of them, in whole blocks, wherever the others are. */
ATTN_DEV int sparse_cut(int k, int n, int count) {
    if (k >= count) return n;
    return min(n, ((int)((int64_t)k * n / count) + MLA_TILE_KEYS / 2) & ~(MLA_TILE_KEYS - 1));
}
ATTN_DEV int item_blocks(const mla_item &it) {
    return it.k_end > it.k_begin ? (it.k_end - it.k_begin + MLA_TILE_KEYS - 1) / MLA_TILE_KEYS : 0;
}

} /* namespace attn_cuda */
#endif
