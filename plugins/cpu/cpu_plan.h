/* SPDX-License-Identifier: Apache-2.0 */
/* The work list of a batch: made on the host once per step, walked by every layer's forward. */
#ifndef CPU_PLAN_H
#define CPU_PLAN_H

#include "cpu_kernels.h"

/* Limits that sizes are computed for. */
struct cpu_limits {
    int32_t max_seqs, max_tokens;
    int threads;
    int batch_invariant; /* a request's splits depend on its own lengths alone */
};

/* Items and merges that may run at the same time: [item0, item1) write the partial slots that the merges
 * read. */
struct cpu_wave {
    int32_t item0, item1, merge0, merge1;
    int64_t merge_rows; /* sum over the merges */
};

/* Lives in the metadata buffer; arrays follow it in the same buffer. */
struct cpu_plan {
    int32_t num_seqs, num_items, num_merges, num_waves;
    int32_t threads; /* 1 where the work is too short for a region */
    int32_t reserved;
    struct cpu_seq *seqs;
    struct cpu_item *items;
    struct cpu_merge *merges;
    struct cpu_wave *waves;
    int32_t *spans; /* mask.spans of the requests point here */
    int64_t span_capacity;
    int64_t item_capacity, merge_capacity, wave_capacity, slots;
};

/* Sizes from here on were cut: they are more than can be counted, or had. */
#define CPU_PLAN_BOUND (INT64_C(1) << 58)

/* Bytes of a plan for these limits, with room for max_spans spans in all. CPU_PLAN_BOUND or more: too many.
 * [pure] */
size_t cpu_plan_bytes(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_limits *lim,
                      int64_t max_spans);

/* Partial slots that the workspace has room for. [pure] */
int64_t cpu_plan_slots(const struct cpu_attn *a, const struct cpu_limits *lim);

/* Lays the arrays out in mem (cpu_plan_bytes, 64-byte aligned). The caller then fills seqs and num_seqs. */
struct cpu_plan *cpu_plan_init(void *mem, const struct cpu_attn *a, const struct cpu_tiling *t,
                               const struct cpu_limits *lim, int64_t max_spans);

/* Makes items, merges and waves from plan->seqs. */
void cpu_plan_build(struct cpu_plan *plan, const struct cpu_kernels *k, const struct cpu_attn *a,
                    const struct cpu_tiling *t, const struct cpu_limits *lim);

/* Runs a plan; workspace = threads * scratch_bytes, then the slots. threads 0: as planned. */
void cpu_plan_run(const struct cpu_plan *plan, const struct cpu_kernels *k, const struct cpu_attn *a,
                  const struct cpu_tiling *t, const struct cpu_limits *lim, void *workspace, int threads);

/* Bytes of that workspace. [pure] */
size_t cpu_plan_workspace(const struct cpu_attn *a, const struct cpu_tiling *t, const struct cpu_limits *lim);

#endif
