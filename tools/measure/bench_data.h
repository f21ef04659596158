/* SPDX-License-Identifier: Apache-2.0 */
/* bench_data.h: random inputs of any length that can be had again one by one, and the double reference over
 * some rows. */
#ifndef ATTN_TOOLS_BENCH_DATA_H
#define ATTN_TOOLS_BENCH_DATA_H

#include "measure/bench_work.h"

#include "tensor/device_memory.h"

#include <attn/attn_plugin_util.h>

enum { BENCH_QUERY, BENCH_KEY, BENCH_VALUE, BENCH_SINK, BENCH_WEIGHT, BENCH_NUM_TENSORS };

/* Of the tensor query: with projections the backend rounds it itself (semantics 7.4). */
static inline uint32_t bench_query_dtype(const attn_problem_t *p) {
    return p->query_dtype != 0 && !attn_problem_projects(p) ? p->query_dtype : p->dtype;
}

/* Element i of a tensor, rounded to dtype: standard normal numbers (queries twice as large, weights 1/25)
 * from a fixed table. */
float bench_value(int tensor, uint32_t dtype, int64_t i);
void bench_fill(int tensor, uint32_t dtype, int64_t first, int64_t count, void *data);
/* The same straight into device memory, of which the tables take some: they are copied there once, and from
 * there as often as it takes. 0 on success. */
typedef struct bench_tables {
    uint32_t dtype, query_dtype;
    void *data[BENCH_NUM_TENSORS];
} bench_tables_t;
int bench_fill_device(bench_tables_t *tables, device_memory_t *memory, int tensor, int64_t first,
                      int64_t count, void *to);
/* Entry j of the list of selected tokens of query token i: all that it sees where they are few enough, else
 * topk of them at even distances; -1 behind the last. */
int32_t bench_selected(const bench_row_t *row, int64_t i, int64_t j);
/* The usual slopes of ALiBi, 2^(-8 (h + 1) / H) (Press, Smith, Lewis 2022). */
float bench_slope(int64_t head, int64_t num_heads);
/* A table of relative bias, of T5's usual reach; rel within +-BENCH_REL_MAX. */
enum { BENCH_REL_MAX = 128 };
float bench_rel_bias(int64_t head, int64_t rel);

/* Of static fp8 outputs: no normal value saturates. */
/* The scale of a quantised output's tensor, and the values of one of its scales of groups. [pure] */
static inline float bench_output_scale(const attn_problem_t *p) {
    return (p->features & ATTN_F_OUT_NVFP4) != 0 ? 0x1p-8F : 0x1p-6F;
}
static inline int64_t bench_output_group(const attn_problem_t *p) {
    if ((p->features & ATTN_F_OUT_NVFP4) != 0) return 16;
    return (int64_t)p->num_heads * attn_output_size(p) % 128 == 0 ? 128 : 64;
}

/* Largest error of some outputs against double. output: [T, Hq, Dv] of dtype on the host. -1: the problem
 * has a feature that is not computed here. */
double bench_error(const bench_row_t *row, const void *output, uint32_t dtype);

#endif
