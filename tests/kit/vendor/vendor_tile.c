/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vendor_tile.c: a third vendor's plugin, of yet another build: rows of query tokens and heads of a group are
 * packed into tiles, keys are widened into tiles of their own, and a tile's maxima are raised lazily. Plans
 * list the tiles. -DFAULT=F_NAME plants one fault of vendor_tile_faults.h; without it nothing is wrong.
 * tests/kit/kit_vendor.sh builds all.
 */
#define _GNU_SOURCE
#include <attn/attn_plugin_util.h>

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    F_NONE,
#define X(NAME, GROUP, TEXT) F_##NAME,
#include "vendor_tile_faults.h"
#undef X
};
#ifndef FAULT
#define FAULT F_NONE
#endif
#define IS(NAME) (FAULT == F_##NAME)

enum { QT = 16, KT = 32, MAGIC = 0x54494c45, KEPT = 64 /* of a fault */ };
#define FEATURES                                                                                             \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_LSE | ATTN_F_NON_CAUSAL | \
     ATTN_F_PER_HEAD_SCALES | ATTN_F_BLOCK_STRIDE | ATTN_F_SEPARATE_KV | ATTN_F_BATCH_INVARIANT)

struct attn_instance {
    attn_problem_t p;
    int64_t heads, kv_heads, group, d, dv, page, max_reqs, max_tokens, max_len;
    uint32_t storage, layout;
    int is_paged, is_separate;
    float scale;
    /* what only faults use */
    int64_t kept_id[KEPT], longest;
    float *kept_tile;
    attn_kv_update_t late;
    int num_late, is_built, handle;
    const int32_t *seen_table;
    int32_t seen_pages[KEPT], seen_reqs, num_updates;
};

typedef struct request {
    int32_t first, count, len, pad;
} request_t;
typedef struct tile {
    int32_t request, row;
} tile_t;
typedef struct plan {
    uint64_t magic;
    int32_t num_reqs, num_tiles, num_tokens, spare;
    const int32_t *table;
    int64_t table_stride;
} plan_t;

static volatile int hole;
static float long_scratch[64];
static attn_capabilities_t changing;
static int num_forwards, num_alive, num_opens, num_inside;
static struct attn_instance *by_handle[4096];

#include "vendor_tile_open.h"
#include "vendor_tile_cache.h"
#include "vendor_tile_kernel.h"
#include "vendor_tile_forward.h"

/* ------------------------------------------------------------------- tables */

static const attn_range_t sizes[] = {{8, 256, 8}};
static attn_capabilities_t changing = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3),
    .features = FEATURES,
    .device_types = ATTN_BIT(kDLCPU),
    .head_sizes = sizes,
    .num_head_sizes = 1,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .preferred_block_size = 16,
};
static const attn_backend_ops_t ops = {
    .struct_size = sizeof(attn_backend_ops_t),
    .supports_combination = supports,
    .open = v_open,
    .close = v_close,
    .kv_cache_shape = v_shape,
    .space_needed = v_space,
    .build_metadata = v_build,
    .update_block_table = v_table,
    .update_kv_cache = v_update,
    .forward = v_forward,
};
static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "TILE_ATTN",
    .doc = "Rows of a group in tiles.",
    .capabilities = &changing,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "vendor_tile",
    .version = "1.0",
    .vendor = "tests",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .backends = backends,
};
