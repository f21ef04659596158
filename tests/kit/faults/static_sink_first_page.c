/* SPDX-License-Identifier: Apache-2.0 */
/* Static sink tokens are read from page 0 on, not from page 1. Caught by: numerics, static sink tokens */
#include "bad.h"
#include "bad_kernel.h"

enum { FIRST_PAGE = 0, MAX_REQS = 64, MAX_PAGES = 64 };

static int32_t sink_len, sink_block;

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p = *problem;
    sink_len = (int32_t)p.static_sink_len;
    sink_block = (int32_t)p.block_size;
    p.static_sink_len = 0;
    p.features &= ~(uint64_t)ATTN_F_STATIC_SINK;
    return simple_open(&p, device, options, num_options, host, instance, error);
}

static int bad_build(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                     void *stream, attn_error_t *error) {
    static int32_t table[MAX_REQS][MAX_PAGES], lens[MAX_REQS];
    if (sink_len == 0 || batch->block_table->shape[1] > MAX_PAGES - sink_len / sink_block)
        return simple_build_metadata(instance, batch, space, stream, error);
    attn_batch_t b = *batch;
    DLTensor wide = *batch->block_table, longer = *batch->seq_lens;
    int64_t shape[2] = {wide.shape[0], MAX_PAGES}, strides[2] = {MAX_PAGES, 1},
            pages = sink_len / sink_block;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        lens[r] = b.seq_lens_host[r] + sink_len;
        for (int64_t j = 0; j < pages; j++)
            table[r][j] = (int32_t)j + FIRST_PAGE;
        for (int64_t j = 0; j < wide.shape[1]; j++)
            table[r][pages + j] = b.block_table_host[r * b.block_table_host_stride + j];
    }
    wide.data = table, wide.byte_offset = 0, wide.shape = shape, wide.strides = strides;
    longer.data = lens, longer.byte_offset = 0;
    b.block_table = &wide, b.block_table_host = table[0], b.block_table_host_stride = MAX_PAGES;
    b.seq_lens = &longer, b.seq_lens_host = lens;
    return simple_build_metadata(instance, &b, space, stream, error);
}
#define BAD_OPEN     bad_open
#define BAD_BUILD    bad_build
#define BAD_FEATURES (SIMPLE_FEATURES | ATTN_F_STATIC_SINK)

#include "bad_plugin.h"
