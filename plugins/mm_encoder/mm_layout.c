/* SPDX-License-Identifier: Apache-2.0 */
/* mm_layout.c: the layout of copied rows. */
#include "mm_layout.h"

enum { DEFAULT_TOKENS = 8192, ALIGNMENT = 256, ELEMENT = 2 };

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t begin = *at;
    *at = round_up(begin + bytes, ALIGNMENT);
    return begin;
}

void mm_layout_of(const attn_problem_t *p, mm_layout_t *l) {
    int is_fp8 = (p->features & ATTN_F_FP8_ATTENTION) != 0;
    uint64_t tokens = p->max_num_batched_tokens != 0 ? p->max_num_batched_tokens : DEFAULT_TOKENS;
    uint64_t keys = p->max_num_batched_keys != 0 ? p->max_num_batched_keys : tokens;
    uint64_t kv_heads = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads;
    *l = (mm_layout_t){.head_size = (uint32_t)round_up(p->head_size, is_fp8 ? 16 : 8)};
    l->packs = is_fp8 || l->head_size != p->head_size;
    if (!l->packs) return;
    uint64_t row = (uint64_t)l->head_size * ELEMENT;
    l->q_at = take(&l->bytes, tokens * p->num_heads * row);
    l->k_at = take(&l->bytes, keys * kv_heads * row);
    l->v_at = take(&l->bytes, keys * kv_heads * row);
    l->out_at = take(&l->bytes, tokens * p->num_heads * row);
}

attn_problem_t mm_inner_problem(const attn_problem_t *problem) {
    mm_layout_t l;
    mm_layout_of(problem, &l);
    attn_problem_t inner = *problem;
    inner.features &= ~ATTN_F_FP8_ATTENTION;
    inner.head_size = l.head_size;
    inner.head_size_v = 0;
    inner.query_dtype = inner.out_dtype = 0; /* the core spells them out, and the dtype may change below */
    if ((problem->features & ATTN_F_FP8_ATTENTION) != 0) inner.dtype = ATTN_DTYPE_FLOAT16;
    return inner;
}
