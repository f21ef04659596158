/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vendor_split.c: a second vendor's plugin, of another build than vendor_attn.c: the keys of a row in splits
 * that are merged by their log-sum-exp, plans with one item for each request, K and V in one tensor or two,
 * masks of every kind, e4m3 queries and outputs, keys of the call. -DFAULT=F_NAME plants one fault of
 * vendor_split_faults.h; without it nothing is wrong. tests/kit/kit_vendor.sh builds all.
 */
#define _GNU_SOURCE
#include <attn/attn_plugin_util.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    F_NONE,
#define X(NAME, GROUP, TEXT) F_##NAME,
#include "vendor_split_faults.h"
#undef X
};
#ifndef FAULT
#define FAULT F_NONE
#endif
#define IS(NAME) (FAULT == F_##NAME)

enum { MAX_SPLITS = 8, LEAST_SPLIT = 64, TILE = 32, MAGIC = 0x53504c54 };
enum { OPTION_SPLITS, OPTION_PATH, OPTION_EXACT, OPTION_CACHE, OPTIONS };
#define FEATURES                                                                                             \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_LSE | \
     ATTN_F_NON_CAUSAL | ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_CHUNKED_LOCAL | ATTN_F_MM_PREFIX | ATTN_F_RSWA | \
     ATTN_F_DIFF_KV | ATTN_F_PER_HEAD_SCALES | ATTN_F_QUANT_QUERY | ATTN_F_OUT_FP8_STATIC |                  \
     ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_OUT_NVFP4 | ATTN_F_WRITE_IN_FORWARD |            \
     ATTN_F_SEPARATE_KV | ATTN_F_BLOCK_STRIDE | ATTN_F_BATCH_INVARIANT |                                     \
     (IS(claims_chunk_lookback) ? ATTN_F_CHUNK_LOOKBACK : 0) | (IS(claims_qq_bias) ? ATTN_F_QQ_BIAS : 0) |   \
     (IS(claims_span_clamp) ? ATTN_F_MM_PREFIX_CLAMP : 0))

struct attn_instance {
    attn_problem_t p;
    int64_t heads, kv_heads, group, d, dv, page, max_reqs, max_tokens, max_len;
    uint32_t storage, query_dtype, out_dtype, layout;
    int is_paged, is_separate, is_in_forward, splits;
    float scale;
    /* what only faults use */
    const void *last_cache;
    float kept_scale[2], kept_sinks[64], kept_slopes[64];
    int has_kept, kept_splits, num_builds;
    void *last_plan;
    int32_t most_reqs;
    char *leak;
    float *row; /* of a token, all heads */
    const attn_problem_t *kept_problem;
    const char *kept_text;
    const attn_option_value_t *kept_option;
    const attn_host_t *host;
    int64_t kept_blocks, built_tokens, num_updates;
};

typedef struct item {
    int32_t first, count, len, is_causal, prefix, spare;
} item_t;
typedef struct plan {
    uint64_t magic;
    int32_t num_reqs, num_tokens, cursor, num_spans;
    const int32_t *table, *spans;
    int64_t table_stride, span_stride, longest;
} plan_t;

static volatile int hole;
static _Thread_local float of_this_thread;
static int counter;
static float exp_table[1024];
static volatile int has_exp_table;
static float head_scratch[64][512];

#include "vendor_split_numbers.h"
#include "vendor_split_open.h"
#include "vendor_split_build.h"
#include "vendor_split_cache.h"
#include "vendor_split_attend.h"
#include "vendor_split_output.h"
#include "vendor_split_forward.h"
#include "vendor_split_tables.h"
