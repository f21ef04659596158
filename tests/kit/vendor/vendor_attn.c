/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vendor_attn.c: a plugin as a vendor writes one, of another build than examples/plugin: keys in tiles, sums
 * in float32, one record for each request as metadata, options, update_block_table, float32, float16 and
 * bfloat16, pages of auto and fp8. -DFAULT=F_NAME plants one fault of vendor_faults.h; without it nothing is
 * wrong. tests/kit/kit_vendor.sh builds all.
 */
#define _GNU_SOURCE
#include <attn/attn_plugin_util.h>

#include <fenv.h>
#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "vendor_formats.h"

enum {
    F_NONE,
#define X(NAME, GROUP, TEXT) F_##NAME,
#include "vendor_faults.h"
#undef X
};
#ifndef FAULT
#define FAULT F_NONE
#endif
#define IS(NAME) (FAULT == F_##NAME)

enum { TILE = 32, OPTION_TILE = 0, OPTION_MODE = 1, OPTION_LOG = 2, OPTION_FACTOR = 3 };
#define FEATURES                                                                                             \
    (ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_LSE | ATTN_F_NON_CAUSAL | \
     ATTN_F_BLOCK_STRIDE | ATTN_F_PER_HEAD_SCALES | ATTN_F_REL_BIAS |                                        \
     (IS(claims_diff_kv) ? ATTN_F_DIFF_KV : 0))

struct attn_instance {
    uint32_t num_heads, num_kv_heads, head_size, head_size_v, page, window, dtype, storage, layout, role;
    uint32_t max_reqs, max_tokens, tile;
    int64_t max_len, num_blocks;
    float scale, cap;
    int is_causal, has_sink, has_alibi, has_rel_bias;
    attn_problem_t problem;
    const attn_host_t *host;
    /* what only faults use */
    const void *seen_cache, *seen_query;
    int num_forwards, last_reqs;
    pthread_t owner;
    char *leak;
    int32_t first_table[64];
};

/* Metadata: the head, then one record for each request. */
typedef struct record {
    int32_t first, count, seq_len, pad;
} record_t;
typedef struct head {
    uint32_t magic, num_reqs;
    int64_t num_tokens, table_stride;
    const int32_t *table;
    const struct attn_instance *builder;
} head_t;
enum { MAGIC = 0x564e4452 };

/* ------------------------------------------------- state that must not be */

static int counter;
static const void *last_cache;
static float static_acc[1024];
static attn_instance_t *last_instance;
static __thread int thread_mark;
static char *lazy_buffer;
static volatile int sink_hole;

static void *sleeper(void *p) {
    pause();
    return p;
}
static void on_signal(int n) {
    (void)n;
}

__attribute__((constructor)) static void at_load(void) {
    if (IS(load_sets_rounding)) fesetround(FE_UPWARD);
    if (IS(load_sets_locale)) setlocale(LC_ALL, "C.UTF-8");
    if (IS(load_sets_handler)) signal(SIGUSR1, on_signal);
    if (IS(load_starts_thread)) {
        pthread_t t;
        pthread_create(&t, NULL, sleeper, NULL);
    }
    if (IS(load_opens_file)) sink_hole = open("/dev/null", O_RDONLY);
    if (IS(load_prints)) puts("vendor 1.0 loaded");
    if (IS(load_reads_environment)) sink_hole = getenv("VENDOR_DEBUG") != NULL;
    if (IS(load_sets_environment)) setenv("VENDOR_LOADED", "1", 1);
    if (IS(load_changes_folder)) sink_hole = chdir("/");
#if defined(__x86_64__)
    if (IS(load_flushes_denormals)) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}
__attribute__((destructor)) static void at_end(void) {
    if (IS(end_crashes)) abort();
    if (IS(end_prints)) puts("bye"), fflush(stdout);
    if (IS(end_changes_status)) _exit(3);
}

#include "vendor_attn_open.h"
#include "vendor_attn_cache.h"
#include "vendor_attn_kernel.h"

/* ------------------------------------------------------------------- tables */

static const attn_range_t too_many[300] = {[0 ... 299] = {1, 4096, 1}};
static const attn_capabilities_t capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = IS(claims_graphs) ? 9 : ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER_DECODER),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .out_dtypes = 0,
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3) |
                       (IS(claims_e5m2) ? ATTN_BIT(ATTN_KV_FP8_E5M2) : 0),
    .features = FEATURES,
    .device_types = ATTN_BIT(kDLCPU),
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .head_sizes = IS(too_many_ranges) ? too_many : NULL,
    .num_head_sizes = IS(too_many_ranges) ? 300 : 0,
    .preferred_block_size = IS(preferred_page_lies) ? 48 : 16,
    .reserved0 = IS(reserved_in_table) ? 1 : 0,
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
static const attn_option_spec_t options[] = {
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_INT,
     .name = "tile",
     .doc = "Keys in a tile.",
     .default_value = IS(default_out_of_bounds) ? "2000"
                      : IS(default_no_number)   ? "thirty"
                                                : "32",
     .min_int = 1,
     .max_int = 1024},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_ENUM,
     .name = "mode",
     .doc = "Kernel.",
     .default_value = IS(default_no_choice) ? "best" : "auto",
     .choices = "auto exact fast"},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_BOOL,
     .name = "log",
     .doc = "Logs each open.",
     .default_value = "no"},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_DOUBLE,
     .name = "factor",
     .doc = "Not used.",
     .default_value = IS(default_double_out) ? "7" : "1",
     .min_double = 0.25,
     .max_double = 4},
};
static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "VENDOR_ATTN",
    .doc = IS(doc_missing) ? "" : "A vendor's kernel.",
    .capabilities = &capabilities,
    .ops = &ops,
    .reserved = {IS(reserved_in_backend) ? 1 : 0},
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "vendor",
    .version = "1.0",
    .vendor = "tests",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .num_options = 4,
    .backends = backends,
    .options = options,
};
