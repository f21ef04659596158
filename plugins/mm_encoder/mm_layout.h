/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of a problem are copied before the kernels run, at what width, and where in the workspace: pure
 * functions of the problem. */
#ifndef MM_LAYOUT_H
#define MM_LAYOUT_H

#include <attn/attn_types.h>

typedef struct mm_layout {
    uint32_t head_size; /* of the rows that the kernels read */
    int packs;          /* rows go through the workspace: fp8, or a head size that kernels do not take */
    uint64_t q_at, k_at, v_at, out_at; /* byte offsets */
    uint64_t bytes;                    /* of all of it; 0 where nothing is copied */
} mm_layout_t;

/* Rows of as many tokens and keys as a batch may have, 16-bit elements. fp8 rows are padded to a multiple of
 * 16 (semantics 7.6), others to one of 8. */
void mm_layout_of(const attn_problem_t *problem, mm_layout_t *layout);

/* The problem that the kernels are opened with: padded head size; instead of fp8 the float16 that holds its
 * codes. */
attn_problem_t mm_inner_problem(const attn_problem_t *problem);

#endif
