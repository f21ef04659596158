/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vendor_team.c: a fourth vendor's plugin, of yet another build: a team of threads takes items of a list that
 * build_metadata wrote, one path for decodes, whose keys are cut into parts, and one for prompts; common
 * prefixes, lengths on the device, caches of other types than the model's, int8 by token and head.
 * -DFAULT=F_NAME plants one fault of vendor_team_faults.h; without it nothing is wrong.
 * tests/kit/kit_vendor.sh builds all.
 */
#define _GNU_SOURCE
#include <attn/attn_plan.h>
#include <attn/attn_plugin_util.h>

#include <assert.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    F_NONE,
#define X(NAME, GROUP, TEXT) F_##NAME,
#include "vendor_team_faults.h"
#undef X
};
#ifndef FAULT
#define FAULT F_NONE
#endif
#define IS(NAME) (FAULT == F_##NAME)

enum { QB = 8, KT = 32, PART = 256, PARTS = 4, MAGIC = 0x5445414d, OPTION_THREADS = 0, OPTIONS = 1 };
#define FEATURES                                                                                             \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_LSE | ATTN_F_NON_CAUSAL | \
     ATTN_F_CHUNK_LOOKBACK | ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP | ATTN_F_QQ_BIAS | ATTN_F_DIFF_KV |   \
     ATTN_F_PER_HEAD_SCALES | ATTN_F_CASCADE | ATTN_F_KEY_LENGTHS | ATTN_F_DEVICE_LENGTHS |                  \
     ATTN_F_BLOCK_STRIDE | (IS(claims_capture) ? ATTN_F_CAPTURE : 0))

struct attn_instance {
    attn_problem_t p;
    int64_t heads, kv_heads, group, d, dv, page, max_reqs, max_tokens, max_len;
    int64_t content, v_at, k_scale_at, v_scale_at; /* of a row of the cache */
    uint32_t storage, layout;
    int is_paged, is_static, threads;
    float scale;
    const attn_host_t *host;
    /* what only faults use */
    const attn_device_t *device;
    int has_run, uses, key_kind, opened_with;
    float *grown;
    int64_t grown_size;
    struct attn_instance *next;
};

typedef struct request {
    int32_t first, count, len, key;
} request_t;
typedef struct item {
    int32_t request, row, rows, from, end, part, parts, slot;
} item_t;
typedef struct plan {
    uint64_t magic;
    int32_t num_reqs, num_items, num_tokens, prefix, num_spans, has_long;
    const int32_t *table, *spans, *starts, *lens;
    int64_t table_stride, span_stride;
    const DLTensor *table_tensor; /* what only faults use */
    const int32_t *host_lens;
    int64_t sum;
} plan_t;

static volatile int hole;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static attn_instance_t *instances;

#include "vendor_team_open.h"
#include "vendor_team_build.h"
#include "vendor_team_cache.h"
#include "vendor_team_attend.h"
#include "vendor_team_forward.h"
#include "vendor_team_tables.h"
