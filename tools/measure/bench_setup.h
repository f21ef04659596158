/* SPDX-License-Identifier: Apache-2.0 */
/* bench_setup.h: one workload of `attn bench` with everything that its calls need. */
#ifndef ATTN_TOOLS_BENCH_SETUP_H
#define ATTN_TOOLS_BENCH_SETUP_H

#include "measure/bench_data.h"
#include "measure/bench_run.h"
#include "base/layer_sizes.h"
#include "tensor/tensor.h"

enum { BENCH_MAX_COPIES = 64 };

typedef struct bench {
    const bench_options_t *options;
    bench_row_t *row;
    attn_error_t *error;
    device_memory_t *memory;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    attn_problem_t problem; /* as opened */
    int has_cache;
    layer_sizes_t z;
    int32_t pages;              /* of the longest request */
    int64_t num_rows, num_keys; /* of all requests */
    bench_tables_t tables;
    device_timer_t *timer; /* on a GPU */
    void *stream;
    int next; /* the copy of the cache for the next call */
    int64_t page_bytes;
    int num_copies;
    tensor_t cache[BENCH_MAX_COPIES];
    int32_t *table, *starts, *lens; /* host */
    tensor_t table_t, starts_t, lens_t, query, key, value, output, sinks, slopes, rel_bias, topk, slots;
    tensor_t output_scale, block_scale; /* of quantised outputs, one of them */
    void *stream_buffer; /* for the streaming read; the copies themselves where there are several */
    size_t stream_bytes;
    const char **pieces;
    size_t num_pieces, piece_bytes;
} bench_t;

/* Opens the layer, fills inputs and caches, plans the batch. An ATTN_E_* code with b->error filled on
 * failure; what was made is then still to be given back by bench_setup_end. */
int bench_setup(bench_t *b, attn_context_t *context);
void bench_setup_end(bench_t *b);
int bench_no_memory(const bench_t *b);

#endif
