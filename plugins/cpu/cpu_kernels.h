/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction-set levels: each object of cpu_level.c exports one constant table, and dispatch is a pure
 * function of the CPU's feature bits. */
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include "cpu_types.h"

/* What a CPU (and its operating system) has; see cpu_bits.c. */
enum {
    CPU_BIT_AVX2 = 1 << 0,
    CPU_BIT_FMA = 1 << 1,
    CPU_BIT_F16C = 1 << 2,
    CPU_BIT_AVX512F = 1 << 3,
    CPU_BIT_AVX512BW = 1 << 4,
    CPU_BIT_AVX512DQ = 1 << 5,
    CPU_BIT_AVX512VL = 1 << 6,
    CPU_BIT_AVX512BF16 = 1 << 7,
    CPU_BIT_FAST_BF16 = 1 << 8,    /* bf16 products give more flops than f32 FMA: on Intel by AMX alone */
    CPU_BIT_AVX512VNNI = 1 << 9,   /* integer dot products of the int8 decode */
    CPU_BIT_AMX_BF16 = 1 << 10,    /* tiles, and the permission to use them */
    CPU_BIT_AVX512VBMI = 1 << 11,  /* byte tables of the e4m3 decode */
    CPU_BIT_AVXVNNI = 1 << 12,     /* the same at the level avx2 */
    CPU_BIT_NEON = 1 << 13,        /* Advanced SIMD of AArch64 */
    CPU_BIT_NEON_BF16 = 1 << 14,   /* its products of bf16 pairs */
    CPU_BIT_PREFETCH_L2 = 1 << 15, /* decode is faster by prefetches into L2: on AMD */
    CPU_BIT_SVE256 = 1 << 16,      /* SVE with vectors of 256 bits */
    CPU_BIT_SVE_BF16 = 1 << 17,    /* its products of bf16 pairs */
    CPU_NUM_BITS = 18
};

struct cpu_kernels {
    const char *name;
    uint32_t needs; /* CPU_BIT_* */
    uint32_t wants; /* without these it runs, but "auto" prefers the next level */
    int bf16_dot;   /* has the bf16 form of the lanes path */
    int rowdot_max; /* up to so many rows per KV head the row-dot path is the faster one */

    /* Tile sizes and scratch per thread for a problem, for at most l2_bytes of cache per core. */
    void (*tiling)(const struct cpu_attn *a, size_t l2_bytes, struct cpu_tiling *out);
    /* One work item; scratch has tiling.scratch_bytes, 64-byte aligned; parts as cpu_item says. */
    void (*item)(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_seq *seq,
                 const struct cpu_item *item, char *scratch, float *parts);
    /* Merges the partial results of rows [index, index + 1) of a merge (row-major over heads, rows). */
    void (*merge)(const struct cpu_attn *a, const struct cpu_seq *seq, const struct cpu_merge *m,
                  int64_t index, char *scratch, const float *parts);
    /* Writes n values of one cache row: dst = quantise(src / scale). row_scale not NULL: the scale is
     * computed per row (semantics 3.4) and stored there. scratch as above. */
    void (*write_row)(enum cpu_dtype from, const char *src, int n, enum cpu_dtype to, float scale, char *dst,
                      char *row_scale, float *scratch);
    /* The same to int8 by a scale for each value. */
    void (*write_channels)(enum cpu_dtype from, const char *src, int n, const float *scale, char *dst,
                           float *scratch);
    /* One head and up to CPU_PROJECT_TOKENS tokens: rows of P + R values at q become L + R floats in rows of
     * ldo, which have room for w_columns; w is the head's W_UK. scratch: tokens * (P + R + CPU_PROJECT_PAD).
     */
    void (*absorb)(const struct cpu_projection *p, int tokens, const char *w, const char *q, int64_t q_token,
                   float *out, int64_t ldo, float *scratch);
    /* The same head's W_UV: rows of L values of y_type become V values of out_type. scratch: tokens *
     * (w_columns + V + CPU_PROJECT_PAD). */
    void (*values)(const struct cpu_projection *p, int tokens, const char *w, const char *y, int64_t y_token,
                   char *out, int64_t out_token, float *scratch);
    /* Logits of rows [row0, row0 + rows) for columns [column, column + n), as far as the rows see them: the
     * keys' values lie at keys[0 .. n), their scales are given. scratch: index_bytes(heads, rows), 64-byte
     * aligned. */
    void (*index)(const struct cpu_index *x, int32_t row0, int rows, int32_t column, int n,
                  const char *const *keys, const float *scales, char *scratch);
    size_t (*index_bytes)(int heads, int rows);
};

extern const struct cpu_kernels cpu_kernels_generic, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_avx512bf16, cpu_kernels_neon, cpu_kernels_neonbf16, cpu_kernels_sve256;

/* Levels of this build, best first, NULL-terminated. */
extern const struct cpu_kernels *const cpu_levels[];

/* What this machine has. Where it has AMX, this asks the kernel for its state, once for the process. */
uint32_t cpu_bits(void);
/* Name of one bit (0 .. CPU_NUM_BITS - 1). */
const char *cpu_bit_name(int bit);

/* The level to use with these bits: the best one for name "auto", else the one of that name. NULL if there is
 * none of that name or it cannot run; then *missing holds the bits it lacks (0: no such level in this build).
 * [pure] */
const struct cpu_kernels *cpu_choose_level(const char *name, uint32_t bits, uint32_t *missing);

/* 1 if the bf16-dot form serves the problem exactly enough: bf16 queries and outputs, keys that bf16 holds
 * exactly. */
static inline int cpu_bf16_serves(const struct cpu_attn *a) {
    return a->q_dtype == CPU_BF16 && a->out_dtype == CPU_BF16 && a->head_size % 2 == 0 &&
           (a->kv_dtype == CPU_BF16 || a->kv_dtype == CPU_E4M3 || a->kv_dtype == CPU_E5M2 ||
            a->kv_dtype == CPU_I8 || a->kv_dtype == CPU_I4 ||
            (a->kv_dtype == CPU_PACKED && a->k_row == CPU_DS)); /* rounded once (semantics 3.5) */
}

#endif
