/* SPDX-License-Identifier: Apache-2.0 */
/* What the backends of layer_fake.c saw, for the tests; reached as extension FAKE_LOG of an instance. */
#ifndef ATTN_TESTS_LAYER_FAKE_H
#define ATTN_TESTS_LAYER_FAKE_H

#include <attn/attn_plugin.h>

#define FAKE_LOG "test.fake_log/0"
#define FAKE_MAX 256

struct fake_log {
    int opens, closes, builds, table_updates, cache_updates, forwards, profiling_runs, weight_runs;
    attn_problem_t problem;                       /* of the last open */
    int64_t splits;                               /* its option */
    const void *plan, *merge, *unknown_extension; /* what the host has by these ids */
    /* the last batch */
    int32_t num_reqs, max_query_len;
    int64_t max_seq_len;
    int32_t starts[FAKE_MAX], lens[FAKE_MAX], table[FAKE_MAX];
    int32_t common_prefix_len;
    int table_columns;
    int has_encoder_lens;
    /* the last calls */
    float q_scale, k_scale, v_scale; /* 1 if not given */
    const void *sinks, *slopes, *rel_bias, *weight_space, *slots;
    int64_t update_slots[FAKE_MAX], update_count;
};

#endif
