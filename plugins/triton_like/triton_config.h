/* SPDX-License-Identifier: Apache-2.0 */
/* From a problem and an architecture to the constants that its kernels are compiled with: a pure function, so
 * that the same code is made with and without the device. */
#ifndef TRITON_CONFIG_H
#define TRITON_CONFIG_H

#include <attn/attn_plugin_util.h>

#include <stddef.h>

/* Element types, as in the kernels. */
enum {
    TRITON_F16 = 1,
    TRITON_BF16 = 2,
    TRITON_E4M3 = 3,
    TRITON_E5M2 = 4,
    TRITON_F32 = 5,
    TRITON_I8 = 6,
    TRITON_BYTES = 7,
    TRITON_E2M1 = 8 /* two in a byte, e4m3 scales of groups apart (semantics 3.6) */
};
/* Rows of codes of fewer bits: what their words mean (triton_packed.cuh). */
enum { TRITON_INT4 = 1, TRITON_K8V4 = 2, TRITON_C4V4 = 3, TRITON_C3V4 = 4, TRITON_C3V3 = 5 };
enum { TRITON_MAX_PIECES = 256, TRITON_MACROS_SIZE = 2688 };

typedef struct triton_config {
    int cc;                   /* 90: sm_90 */
    int q, out, kv, v, model; /* kv: of K, and of V where v is not another one */
    int d, dv, group, page;   /* page 0: no cache */
    int token_head;
    int k_apart;    /* scales of K lie apart from its rows, and queries are rounded to int8 (semantics 3.8) */
    int v_channels; /* V has scales of channels */
    int packed;     /* TRITON_INT4 and so on, else 0; token_head is set then, too */
    int causal;     /* 0, 1, 2: per request */
    int window, chunk, lookback, lookback_chunk, rswa; /* 0 and lookback -1: off */
    int spans, span_clamp, alibi, qq_bias, sinks, rel_bias;
    int device_lengths; /* decode reads lengths where prefill does, its items have bounds of them */
    int out_group;      /* group scales of the output: attention writes `out` to the workspace */
    double scale, cap;
    int rope, pairs; /* of a rope alone: values of a row that rotate, and how they pair (ATTN_ROPE_*) */
    int joint;       /* K, V and their scales are one row of bytes, read as such by decode */
    int q_vec, kv_vec, kv_align, out_vec,
        /* bytes that rows of Q, of K and V, of the cache, of the output, of new K and V are aligned to */
        new_vec;
    int exact;        /* FFMA kernels: float32, or head sizes above 256 */
    int wgmma, early; /* prefill by wgmma: compute capability 9.0; copies between its two products */
    int warps, m_tiles, keys, ctas; /* prefill; keys: of a tile */
    int copiers, ring; /* prefill by wgmma: warps that only copy (0: all do), stages of K and V */
    int swizzle;       /* decode: the ring is lines of 128 bytes, swizzled */
    int has_decode, decode_warps, n_tiles, decode_ctas;
    int decode_blocks; /* CTAs of decode that take the query tokens of a request, before they are a prompt */
    int is_invariant;  /* a request's bits do not depend on its batch: one decode kernel for all */
    int dense;  /* the rows of a head and a page are one piece, and so are their scales: HND, scales apart */
    int tight;  /* decode: joint rows that are one piece in HND, and rings that have room for no more */
    int eights; /* the cache writer has eight lanes a row, not 32 */
    int stages; /* decode: blocks of 16 tokens in a warp's ring */
    /* what launching needs */
    int prefill_rows, prefill_threads, prefill_smem, decode_rows, decode_threads, decode_smem;
} triton_config_t;

/* Shared memory of one block and of one multiprocessor of a compute capability. */
int triton_smem_of_block(int cc);
int triton_smem_of_sm(int cc);
/* The layout of pages (ATTN_LAYOUT_*): the problem's, else the one whose bytes move best. */
uint32_t triton_layout(const attn_problem_t *problem);
/* Zero on success; -1: no tile fits the shared memory of that architecture. The problem was checked
 * before. */
int triton_configure(const attn_problem_t *problem, int cc, triton_config_t *config);
/* Decode once more, for requests whose rows are more than an n-tile: of codes that are widened before they
 * are multiplied, which 16 rows then share. Zero on success; -1: there is none. */
int triton_config_wide(const triton_config_t *config, triton_config_t *wide);
/* Whether prefill's tiles may be pieces of their keys: where no mask looks at distances
 * (triton_tile_rows.cuh). */
int triton_config_cuts(const triton_config_t *config);
/* Keys that such pieces are multiples of: whole pages and blocks of keys. */
int triton_config_grain(const triton_config_t *config);
/* The macros as "-DTL_D=128\n-DTL_.." in text; returns the length, or -1 if it does not fit. */
int triton_config_macros(const triton_config_t *config, char *text, size_t size);

#endif
