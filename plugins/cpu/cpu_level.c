/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels of one level. Compiled once per level, with CPU_LEVEL and that level's instruction flags;
 * exports one constant table and nothing else. */
#include "cpu_kernels.h"
#include "cpu_mask.h"
#include "cpu_simd.h"
#include "cpu_rows.h"
#include "cpu_int4_row.h"
#include "cpu_turbo_row.h"
#include "cpu_float8.h"
#include "cpu_int8_row.h"
#include "cpu_nvfp4_row.h"
#include "cpu_ds_row.h"
#include "cpu_packed_row.h"
#if CPU_X86 >= 3
#include "cpu_simd_amx.h"
#include "cpu_simd_bf16.h"
#include "cpu_simd_e4m3.h"
#elif CPU_LEVEL == 6
#include "cpu_simd_sve_bf16.h"
#elif CPU_BF16_DOT
#include "cpu_simd_neon_bf16.h"
#endif
#include "cpu_rowdot.h"

/* Register blocks: MR x NR accumulators, NR vectors of B and one of A must fit; the Q panel (L x D) should
 * stay below 32 KiB, so f32 takes few lanes. */
#define ln_exp2_f32 v_exp2
#define LN_BF16     0
#define LN_AMX      0
#define LN_QK_CALLS (LN_BK / LN_MR)
#if CPU_X86 >= 2
#define LN_MR 12
#define LN_NR 2
#define LN_BK 192
#elif CPU_LEVEL != 0
#define LN_MR 6
#define LN_NR (CPU_LEVEL == 6 ? 4 : 2)
#define LN_BK 192
#else
#define LN_MR 4
#define LN_NR 2
#define LN_BK 96
#endif
#include "cpu_lanes_kernel.h"

#if CPU_BF16_DOT
#define ln_exp2_bf16 v_exp2_short
#define LN_BF16      1
#define LN_AMX       0
#define LN_QK_CALLS  (LN_BK / LN_MR)
#define LN_MR        6
#define LN_NR        (CPU_LEVEL == 5 ? 2 : 4)
#define LN_BK        96
#include "cpu_lanes_kernel.h"
#endif
#if CPU_X86 >= 3

#define ln_exp2_amx v_exp2_short
#define LN_BF16     1
#define LN_AMX      1
#define LN_QK_CALLS (LN_BK / 16)
#define LN_MR       16
#define LN_NR       4
#define LN_BK       192
#include "cpu_lanes_kernel.h"
#endif

#include "cpu_cache_row.h"
#include "cpu_project.h"

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)

static void level_tiling(const struct cpu_attn *a, size_t l2_bytes, struct cpu_tiling *out) {
    size_t lanes = 0;
    const uint32_t vnni = CPU_X86 == 0 ? 0 : CPU_X86 == 1 ? CPU_BIT_AVXVNNI : CPU_BIT_AVX512VNNI;
    out->vnni = (cpu_bits() & vnni) != 0;
    out->vbmi = CPU_X86 >= 2 && (cpu_bits() & CPU_BIT_AVX512VBMI) != 0;
    /* Measured: with 2 MiB of L2 (Sapphire Rapids) decode gains a tenth, with 1 MiB (Cascade Lake) it loses
     * 6%. */
    out->far = l2_bytes >= 2u << 20 || (cpu_bits() & CPU_BIT_PREFETCH_L2) != 0;
    out->into_l2 = cpu_dtype_size(a->kv_dtype) > 1 && (cpu_bits() & CPU_BIT_PREFETCH_L2) != 0;
    out->bf16_dot = CPU_BF16_DOT && cpu_bf16_serves(a);
    out->amx = CPU_X86 >= 3 && out->bf16_dot && (cpu_bits() & CPU_BIT_AMX_BF16) != 0;
    out->dots = out->fast_bf16 = 0;
#if CPU_BF16_DOT
    const int fast = CPU_X86 == 0 || (cpu_bits() & CPU_BIT_FAST_BF16) != 0;
    out->dots = fast && !out->amx && rd_dots_serve(a, out->vbmi);
    out->fast_bf16 = fast && CPU_X86 >= 3 && (cpu_bits() & CPU_BIT_AMX_BF16) == 0;
#endif
    for (int ns = 32; ns >= 1; ns /= 2) {
#if CPU_BF16_DOT
        struct ln_state_bf16 sb;
        if (out->bf16_dot) {
            lanes = ln_carve_bf16(&sb, a, ns, NULL);
#if CPU_X86 >= 3
            struct ln_state_amx sa;
            if (out->amx) lanes = ln_carve_amx(&sa, a, ns, NULL);
#endif
            out->rows_per_item = ns * ln_L_bf16;
        } else
#endif
        {
            struct ln_state_f32 sf;
            lanes = ln_carve_f32(&sf, a, ns, NULL);
            out->rows_per_item = ns * ln_L_f32;
        }
        out->num_sub = ns;
        if (lanes <= l2_bytes + l2_bytes / 8) break;
    }
    /* Row-dot items hold q and O of all their heads; a quarter of L2 keeps them beside the streamed tiles. */
    struct rd_state st;
    const int G = a->num_q_heads / a->num_kv_heads;
    const int rows = G > CPU_ROWDOT_MAX ? CPU_ROWDOT_MAX : CPU_ROWDOT_MAX / G * G;
    int heads = a->num_kv_heads;
    while (heads > 1 && rd_carve(&st, a, heads, rows, out, NULL) > l2_bytes / 2)
        heads = (heads + 1) / 2;
    out->heads_per_item = heads;
    size_t dots = rd_carve(&st, a, heads, rows, out, NULL),
           row = ((size_t)a->head_size + a->head_size_v + 256) * 8;
    /* Fewer rows take more where tiles serve them alone. */
    const size_t few = rd_carve(&st, a, heads, cpu_min(rows, RD_TILE_ROWS), out, NULL);
    if (dots < few) dots = few;
    out->scratch_bytes = lanes > dots ? lanes : dots;
    if (out->scratch_bytes < row) out->scratch_bytes = row;
    out->scratch_bytes = (out->scratch_bytes + 63) / 64 * 64 + (size_t)a->topk * sizeof(int64_t);
}

static void level_item(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_seq *seq,
                       const struct cpu_item *item, char *scratch, float *parts) {
    struct cpu_seq own;
    if (a->topk) {
        int64_t *rows = (int64_t *)(void *)(scratch + t->scratch_bytes - (size_t)a->topk * sizeof *rows);
        select_rows(a, seq, rows);
        own = *seq;
        own.selected = rows;
        seq = &own;
    }
    if (item->rowdot) rd_item(a, seq, item, t, scratch, parts);
#if CPU_X86 >= 3
    else if (t->amx)
        ln_item_amx(a, seq, item, scratch, parts);
#endif
#if CPU_BF16_DOT
    else if (t->bf16_dot)
        ln_item_bf16(a, seq, item, scratch, parts);
#endif
    else
        ln_item_f32(a, seq, item, scratch, parts);
}

static void level_index(const struct cpu_index *x, int32_t row0, int rows, int32_t column, int n,
                        const char *const *keys, const float *scales, char *scratch) {
#if CPU_X86 >= 3
    if (x->amx)
        ln_index_amx(x, row0, rows, column, n, keys, scales, scratch);
    else
        ln_index_bf16(x, row0, rows, column, n, keys, scales, scratch);
#elif CPU_BF16_DOT
    ln_index_bf16(x, row0, rows, column, n, keys, scales, scratch);
#else
    ln_index_f32(x, row0, rows, column, n, keys, scales, scratch);
#endif
}
static size_t level_index_bytes(int heads, int rows) {
#if CPU_X86 >= 3
    const size_t amx = ln_index_bytes_amx(heads, rows), dots = ln_index_bytes_bf16(heads, rows);
    return amx > dots ? amx : dots;
#elif CPU_BF16_DOT
    return ln_index_bytes_bf16(heads, rows);
#else
    return ln_index_bytes_f32(heads, rows);
#endif
}

/* Merge of partial softmaxes (semantics 6.5): weights 2^(m_i - max m). A split without keys has m = SCORE_MIN
 * and l = 0. */
static void level_merge(const struct cpu_attn *a, const struct cpu_seq *seq, const struct cpu_merge *m,
                        int64_t index, char *scratch, const float *parts) {
    const int Dv = a->head_size_v, G = a->num_q_heads / a->num_kv_heads, rows = m->row1 - m->row0;
    const int64_t pf = cpu_part_floats(Dv);
    const float *first = parts + (m->part + index) * pf;
    float *o = (float *)(void *)scratch, top = SCORE_MIN, l = 0;
    for (int s = 0; s < m->splits; s++) {
        const float ms = first[s * m->stride * pf + Dv];
        top = ms > top ? ms : top;
    }
    memset(o, 0, (size_t)(Dv + VW) * sizeof *o);
    for (int s = 0; s < m->splits; s++) {
        const float *p = first + s * m->stride * pf;
        float w[VW];
        v_store(w, v_exp2(v_set1(p[Dv] - top)));
        l += w[0] * p[Dv + 1];
        for (int d = 0; d < Dv; d += VW) /* slots are padded to whole vectors */
            v_store(o + d, v_fma(v_set1(w[0]), v_load(p + d), v_load(o + d)));
    }
    const int row = m->row0 + (int)(index % rows), head = m->head0 + (int)(index / rows);
    finish_row(a, seq->q_start + row / G, head * G + row % G, o, top, l, 1.0f);
}

#if CPU_LEVEL == 0
#define LEVEL_NAME  generic
#define LEVEL_NEEDS 0
#elif CPU_LEVEL == 1
#define LEVEL_NAME  avx2
#define LEVEL_NEEDS (CPU_BIT_AVX2 | CPU_BIT_FMA | CPU_BIT_F16C)
#elif CPU_LEVEL == 4
#define LEVEL_NAME  neon
#define LEVEL_NEEDS CPU_BIT_NEON
#elif CPU_LEVEL == 5
#define LEVEL_NAME  neonbf16
#define LEVEL_NEEDS (CPU_BIT_NEON | CPU_BIT_NEON_BF16)
#elif CPU_LEVEL == 6
#define LEVEL_NAME  sve256
#define LEVEL_NEEDS (CPU_BIT_NEON | CPU_BIT_NEON_BF16 | CPU_BIT_SVE256 | CPU_BIT_SVE_BF16)
#else
#define LEVEL_NEEDS_512                                                                                      \
    (CPU_BIT_AVX2 | CPU_BIT_FMA | CPU_BIT_F16C | CPU_BIT_AVX512F | CPU_BIT_AVX512BW | CPU_BIT_AVX512DQ |     \
     CPU_BIT_AVX512VL)
#if CPU_LEVEL == 2
#define LEVEL_NAME  avx512
#define LEVEL_NEEDS LEVEL_NEEDS_512
#else
#define LEVEL_NAME  avx512bf16
#define LEVEL_NEEDS (LEVEL_NEEDS_512 | CPU_BIT_AVX512BF16)
#endif
#endif
#define STR_(a) #a
#define STR(a)  STR_(a)

const struct cpu_kernels CAT(cpu_kernels_, LEVEL_NAME) = {
    .name = STR(LEVEL_NAME),
    .needs = LEVEL_NEEDS,
    .wants = CPU_X86 >= 3 ? CPU_BIT_FAST_BF16 : 0,
    .bf16_dot = CPU_BF16_DOT,
    .rowdot_max = CPU_ROWDOT_MAX,
    .tiling = level_tiling,
    .item = level_item,
    .merge = level_merge,
    .write_row = level_write_row,
    .write_channels = level_write_channels,
    .absorb = level_absorb,
    .values = level_values,
    .index = level_index,
    .index_bytes = level_index_bytes,
};
