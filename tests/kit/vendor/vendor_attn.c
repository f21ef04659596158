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

/* -------------------------------------------------------------------- open */

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    if (IS(refuses_spelled_kv_heads) && p.num_kv_heads == p.num_heads) sink_hole++;
    if (p.role == ATTN_ROLE_ENCODER_DECODER &&
        (p.sliding_window != 0 || (p.features & (ATTN_F_ALIBI | ATTN_F_REL_BIAS))))
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "role", "encoder_decoder", "decoder",
                        "cross attention has no positions");
    return ATTN_OK;
}

static int refuse(attn_error_t *error, int code, const char *param, const char *text) {
    return attn_fail(error, code, param, "%s: %s", param, text);
}

static int read_problem(attn_instance_t *v, const attn_problem_t *q, attn_error_t *error) {
    attn_problem_t p = *q;
    if (p.out_dtype != 0 && (p.out_dtype != p.dtype || IS(refuses_spelled_out_dtype)))
        return refuse(error, ATTN_E_UNSUPPORTED, "out_dtype", "must be the dtype");
    if (p.query_dtype != 0 && (p.query_dtype != p.dtype || IS(refuses_spelled_query_dtype)))
        return refuse(error, ATTN_E_UNSUPPORTED, "query_dtype", "must be the dtype");
    if (IS(refuses_spelled_kv_heads) && p.num_kv_heads == p.num_heads)
        return refuse(error, ATTN_E_UNSUPPORTED, "num_kv_heads", "give 0");
    if (IS(refuses_spelled_head_size_v) && p.head_size_v != 0)
        return refuse(error, ATTN_E_UNSUPPORTED, "head_size_v", "give 0");
    if (IS(refuses_world_size_one) && p.dcp_world_size != 0)
        return refuse(error, ATTN_E_UNSUPPORTED, "dcp_world_size", "not served");
    if (p.role != ATTN_ROLE_DECODER && p.role != ATTN_ROLE_ENCODER_DECODER)
        return refuse(error, ATTN_E_UNSUPPORTED, "role", "decoder or encoder_decoder");
    if (p.dtype < ATTN_DTYPE_FLOAT32 || p.dtype > ATTN_DTYPE_BFLOAT16)
        return refuse(error, ATTN_E_UNSUPPORTED, "dtype", "float32, float16 or bfloat16");
    if (p.kv_cache_dtype != 0 && p.kv_cache_dtype != ATTN_KV_AUTO && p.kv_cache_dtype != ATTN_KV_FP8_E4M3)
        return refuse(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "auto or fp8_e4m3");
    if (IS(refuses_spelled_auto) && p.kv_cache_dtype == ATTN_KV_AUTO)
        return refuse(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "give 0");
    if (attn_problem_features(&p) & ~FEATURES)
        return refuse(error, ATTN_E_UNSUPPORTED, "features", "not served");
    if (p.num_kv_heads == 0) p.num_kv_heads = IS(default_kv_heads_one) ? 1 : p.num_heads;
    if (p.head_size_v == 0 || IS(claims_diff_kv)) p.head_size_v = p.head_size;
    if (p.num_heads == 0 || p.head_size == 0 || p.num_heads % p.num_kv_heads != 0 || p.head_size > 4096 ||
        p.num_heads > 4096)
        return refuse(error, ATTN_E_INVALID, "num_heads", "heads and sizes must be there and divide");
    if (IS(heads_to_64) && p.num_heads > 64) p.num_heads = 64;
    v->num_heads = p.num_heads;
    v->num_kv_heads = p.num_kv_heads;
    v->head_size = p.head_size;
    v->head_size_v = p.head_size_v;
    v->page = p.block_size != 0 ? p.block_size : IS(default_page_zero) ? 0 : 16;
    if (IS(page_power_of_two)) {
        uint32_t n = 1;
        while (n < v->page)
            n *= 2;
        v->page = n;
    }
    v->window = p.sliding_window;
    v->dtype = p.dtype;
    v->storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_NHD;
    v->role = p.role;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : IS(default_seqs_64) ? 8 : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens
                    : IS(default_tokens_small)    ? 16
                                                  : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : IS(default_len_small) ? 32 : 131072;
    v->num_blocks = p.num_blocks;
    v->scale = (float)(IS(scale_from_head_size) ? 1 / sqrt(p.head_size)
                       : IS(ignores_scale_sign) ? fabs(p.scale)
                                                : p.scale);
    v->cap = (float)p.logits_soft_cap;
    v->is_causal = p.mask == ATTN_MASK_CAUSAL && p.role == ATTN_ROLE_DECODER;
    v->has_sink = (p.features & ATTN_F_SINK) != 0;
    v->has_alibi = (p.features & ATTN_F_ALIBI) != 0;
    v->has_rel_bias = (p.features & ATTN_F_REL_BIAS) != 0;
    v->problem = p;
    return ATTN_OK;
}

static int read_options(attn_instance_t *v, const attn_option_value_t *o, uint32_t n, attn_error_t *error) {
    v->tile = TILE;
    if (o == NULL || n <= OPTION_FACTOR) return ATTN_OK;
    v->tile = (uint32_t)o[OPTION_TILE].i;
    if (IS(option_low_bound) && v->tile == 1) v->tile = 0;
    if (v->tile > TILE && !IS(option_high_bound)) v->tile = TILE;
    if (IS(option_choice) && o[OPTION_MODE].i == 2)
        return refuse(error, ATTN_E_INTERNAL, "", "no such kernel");
    if (IS(option_choice_wrong) && o[OPTION_MODE].i == 1) v->scale *= 1.02f;
    if (IS(option_yes) && o[OPTION_LOG].i) v->is_causal = 0;
    if (IS(option_double) && o[OPTION_FACTOR].d < 0.5) v->scale *= 0.5f;
    if ((o[OPTION_LOG].i || IS(log_wrong_ctx)) && v->host != NULL && v->host->log != NULL)
        v->host->log(IS(log_wrong_ctx) ? v : v->host->ctx, ATTN_LOG_INFO, "vendor: open");
    return ATTN_OK;
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device,
                  const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                  attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    attn_host_t h;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (IS(ignores_tail) && rc == ATTN_E_TOO_NEW) memcpy(&p, problem, sizeof p), rc = ATTN_OK;
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc == ATTN_OK && host != NULL) rc = attn_intake_known(&h, sizeof h, host, "host", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return refuse(error, ATTN_E_DEVICE, "device", "the CPU only");
    if (IS(one_instance_only) && last_instance != NULL)
        return refuse(error, ATTN_E_STATE, "", "already open");
    attn_instance_t *v = calloc(1, sizeof *v);
    if (v == NULL) return refuse(error, ATTN_E_NO_MEMORY, "", "no memory");
    v->host = host;
    if (IS(log_newline) && host != NULL) host->log(host->ctx, ATTN_LOG_INFO, "vendor\nopen");
    if (IS(log_bad_level) && host != NULL) host->log(host->ctx, 9, "vendor open");
    rc = read_problem(v, &p, error);
    if (rc == ATTN_OK) rc = read_options(v, options, num_options, error);
    if (rc != ATTN_OK) {
        if (!IS(leaks_on_refusal)) free(v);
        if (IS(writes_instance_on_failure)) *instance = v;
        return rc;
    }
    v->owner = pthread_self();
    if (IS(reads_environment)) sink_hole = getenv("VENDOR_TUNE") != NULL;
    if (IS(sets_environment)) setenv("VENDOR_OPEN", "1", 1);
    if (IS(leaks_mapping))
        v->leak = malloc(1 << 18), v->leak = v->leak != NULL ? memset(v->leak, 1, 1 << 18) : NULL;
    if (IS(leaks_descriptor)) sink_hole = open("/dev/null", O_RDONLY);
    if (IS(thread_left)) {
        static int started;
        pthread_t t;
        if (!started++) pthread_create(&t, NULL, sleeper, NULL);
    }
    if (IS(lazy_shared_buffer) && lazy_buffer == NULL) lazy_buffer = malloc(4096);
    if (IS(thread_local_state)) thread_mark = 1;
    if (IS(counts_opens)) counter++;
    if (IS(one_instance_only) || IS(uses_last_instance)) last_instance = v;
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v == NULL && !IS(close_null)) return;
    if (IS(close_null)) sink_hole = (int)v->page;
    if (IS(lazy_shared_buffer)) free(lazy_buffer), lazy_buffer = NULL;
    if (last_instance == v && v != NULL) last_instance = NULL;
    free(v);
}

/* ----------------------------------------------------------------- how big */

static int v_shape(attn_instance_t *v, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                   attn_error_t *error) {
    attn_kv_cache_shape_t s;
    if (num_blocks == 0 || IS(shape_of_problem)) num_blocks = v->num_blocks;
    int rc = attn_dense_cache_shape(&v->problem, v->layout, v->page, num_blocks, &s, error);
    if (rc != ATTN_OK) return rc;
    if (IS(total_in_32_bits)) s.total_bytes = (int32_t)((uint32_t)s.page_bytes * (uint32_t)num_blocks);
    if (IS(page_of_keys_only)) s.page_bytes /= 2, s.total_bytes /= 2;
    if (IS(page_twice)) s.page_bytes *= 2, s.total_bytes *= 2;
    if (IS(stride_of_layers)) s.stride_order_layers[0] = s.stride_order_layers[1];
    if (IS(stride_order_wrong)) s.stride_order[1] = s.stride_order[2];
    if (IS(strides_of_other_layout) && v->layout == ATTN_LAYOUT_NHD) {
        int64_t t = s.byte_strides[1];
        s.byte_strides[1] = s.byte_strides[2], s.byte_strides[2] = t;
    }
    if (IS(fingerprint_forgets_heads)) s.fingerprint = attn_fingerprint64(1, &v->head_size, 4);
    if (IS(fingerprint_has_scale)) s.fingerprint = attn_fingerprint64(s.fingerprint, &v->scale, 4);
    if (IS(fingerprint_has_blocks)) s.fingerprint = attn_fingerprint64(s.fingerprint, &num_blocks, 8);
    if (IS(shape_without_heads)) s.num_kv_heads = v->num_heads;
    if (IS(v_offset_in_elements)) s.v_offset = v->head_size;
    return attn_give(shape, &s, sizeof s, "shape", error);
}

static uint64_t metadata_bytes(const attn_instance_t *v) {
    if (IS(space_for_32_requests)) return sizeof(head_t) + 32 * sizeof(record_t);
    return sizeof(head_t) + (uint64_t)v->max_reqs * sizeof(record_t);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    if (IS(space_of_one_page)) return (uint64_t)v->page * 4;
    return (uint64_t)(v->head_size_v + TILE) * sizeof(float);
}

static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {0};
    n.struct_size = sizeof n;
    n.alignment = IS(alignment_odd) ? 24 : 16;
    n.metadata_bytes = metadata_bytes(v);
    n.workspace_bytes = workspace_bytes(v);
    if (IS(space_grows)) n.metadata_bytes += 64u * (unsigned)counter++;
    return attn_give(needed, &n, sizeof n, "needed", error);
}

/* ------------------------------------------------------------------- a batch */

static int v_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc != ATTN_OK) return rc;
    if (s.metadata == NULL ||
        (IS(space_exactly) ? s.metadata_bytes != metadata_bytes(v) : s.metadata_bytes < metadata_bytes(v)))
        return refuse(error, IS(space_code) ? ATTN_E_INVALID : ATTN_E_SPACE, "metadata", "too small");
    if (b.num_reqs < 0 || b.num_reqs > (int32_t)v->max_reqs || (IS(requests_to_32) && b.num_reqs > 32))
        return refuse(error, ATTN_E_INVALID, "num_reqs", "outside the limits");
    if (b.num_actual_tokens < 0 || b.num_actual_tokens > (int32_t)v->max_tokens)
        return refuse(error, ATTN_E_INVALID, "num_actual_tokens", "outside the limits");
    if (b.query_start_loc_host == NULL)
        return refuse(error, ATTN_E_INVALID, "query_start_loc_host", "required");
    if (b.seq_lens_host == NULL) return refuse(error, ATTN_E_INVALID, "seq_lens_host", "required");
    if (IS(needs_host_table) && b.block_table_host == NULL && b.num_reqs > 0)
        return refuse(error, ATTN_E_INVALID, "block_table_host", "required");
    if (IS(owner_thread) && !pthread_equal(v->owner, pthread_self()))
        return refuse(error, ATTN_E_STATE, "thread", "another one opened it");
    if (IS(thread_local_state) && !thread_mark)
        return refuse(error, ATTN_E_STATE, "thread", "not initialised");
    int64_t rows[2] = {b.num_reqs, -1};
    rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        int64_t n = b.seq_lens_host[r];
        if (n < 0 || n > v->max_len || n > b.block_table->shape[1] * (int64_t)v->page)
            return refuse(error, ATTN_E_INVALID, "seq_lens", "outside the limits or the table");
        if (IS(scans_whole_table))
            for (int64_t j = 0; j < b.block_table->shape[1]; j++)
                if (((const int32_t *)attn_data(b.block_table))[r * b.block_table->strides[0] + j] > 1 << 24)
                    return refuse(error, ATTN_E_INVALID, "block_table", "a page id is too large");
    }
    head_t *m = s.metadata;
    record_t *rec = (record_t *)(m + 1);
    if (IS(builds_once) && m->magic == MAGIC && m->num_reqs == (uint32_t)b.num_reqs) return ATTN_OK;
    m->magic = MAGIC;
    m->num_reqs = (uint32_t)b.num_reqs;
    m->num_tokens = b.num_actual_tokens;
    m->table = attn_data(b.block_table);
    m->table_stride = IS(table_dense) ? b.block_table->shape[1] : b.block_table->strides[0];
    if (IS(table_host_stride) && b.block_table_host != NULL) m->table_stride = b.block_table_host_stride;
    if (IS(keeps_host_table) && b.block_table_host != NULL)
        m->table = b.block_table_host, m->table_stride = b.block_table_host_stride;
    if (IS(table_offset)) m->table = b.block_table->data;
    m->builder = v;
    const int n =
        IS(remembers_batch_size) && v->last_reqs > 0 && v->last_reqs < b.num_reqs ? v->last_reqs : b.num_reqs;
    if (IS(remembers_batch_size)) m->num_reqs = (uint32_t)n;
    for (int r = 0; r < n; r++) {
        rec[r].first = b.query_start_loc_host[r];
        rec[r].count = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        rec[r].seq_len = b.seq_lens_host[r];
        rec[r].pad = 0;
        if (IS(trusts_max_seq_len) && b.max_seq_len != 0) rec[r].seq_len = (int32_t)b.max_seq_len;
        if (IS(max_query_one) && b.max_query_len != 0 && rec[r].count > 1) rec[r].count = 1;
        if (IS(length_in_15_bits)) rec[r].seq_len = (int16_t)rec[r].seq_len;
        if (IS(length_in_16_bits)) rec[r].seq_len = (uint16_t)rec[r].seq_len;
        if (IS(length_to_4096) && rec[r].seq_len > 4096) rec[r].seq_len = 4096;
        if (IS(length_to_131071) && rec[r].seq_len > 131071) rec[r].seq_len = 131071;
        if (IS(token_in_16_bits)) rec[r].first = (uint16_t)rec[r].first;
    }
    if (IS(remembers_batch_size) && v->last_reqs == 0) v->last_reqs = b.num_reqs;
    if (IS(remembers_first_table) && v->first_table[0] == 0)
        for (int j = 0; j < 64 && b.num_reqs > 0 && j * (int)v->page < rec[0].seq_len; j++)
            v->first_table[j] = m->table[j];
    if (IS(allocates_in_build)) {
        void *volatile list = calloc(1, 64 + (size_t)b.num_reqs);
        free(list);
    }
    if (IS(workspace_from_build) && s.workspace != NULL) *(float *)s.workspace = v->scale;
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    if (IS(table_update_nothing)) return ATTN_OK;
    if (IS(table_update_pointer_only)) {
        head_t *m = space->metadata;
        m->table = attn_data(batch->block_table);
        m->table_stride = 1;
        return ATTN_OK;
    }
    return v_build(v, batch, space, stream, error);
}

/* -------------------------------------------------------------------- cache */

typedef struct pages {
    char *base;
    int64_t block, head, token;
    const float *k, *v;
    int64_t num_k, num_v;
} pages_t;

static int read_cache(const attn_instance_t *v, const DLTensor *t, const attn_scales_t *scales, pages_t *c,
                      attn_error_t *error) {
    const int64_t shape[4] = {-1, v->num_kv_heads, v->page, (int64_t)v->head_size + v->head_size_v};
    int rc = attn_check_tensor(t, "kv_cache", v->storage, 4, IS(unchecked_cache) ? NULL : shape, error);
    if (rc == ATTN_OK && scales->k != NULL)
        rc = attn_check_tensor(scales->k, "k_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scales->v != NULL)
        rc = attn_check_tensor(scales->v, "v_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc != ATTN_OK) return rc;
    const int is_fp8 = v->storage == ATTN_DTYPE_FP8_E4M3;
    c->base = IS(cache_offset) ? t->data : attn_data(t);
    c->block = attn_byte_stride(t, 0);
    c->head = attn_byte_stride(t, 1);
    c->token = attn_byte_stride(t, 2);
    if (IS(block_dense)) c->block = shape[1] * shape[2] * shape[3] * (t->dtype.bits / 8);
    if (IS(layout_nhd_always)) c->head = shape[3] * (t->dtype.bits / 8), c->token = c->head * shape[1];
    const DLTensor *k_scale = is_fp8 && !IS(ignores_k_scale) ? scales->k : NULL;
    const DLTensor *v_scale = is_fp8 ? scales->v : NULL;
    c->k = k_scale != NULL ? attn_data(k_scale) : NULL;
    c->v = v_scale != NULL ? attn_data(v_scale) : NULL;
    c->num_k = k_scale != NULL ? k_scale->shape[0] : 0;
    c->num_v = v_scale != NULL ? v_scale->shape[0] : 0;
    if (IS(scales_required) && is_fp8 && scales->k == NULL)
        return refuse(error, ATTN_E_INVALID, "k_scale", "required");
    if (IS(scales_per_tensor)) c->num_k = c->num_k > 1 ? 1 : c->num_k;
    return ATTN_OK;
}
static float scale_of(const float *s, int64_t n, int64_t h) {
    return s == NULL ? 1 : s[n > 1 ? h : 0];
}
static char *row_of(const attn_instance_t *v, const pages_t *c, int64_t block, int64_t h, int64_t token) {
    (void)v;
    if (IS(offset_in_32_bits))
        return c->base + (int32_t)((uint32_t)block * (uint32_t)c->block) + h * c->head + token * c->token;
    if (IS(offset_unsigned_32))
        return c->base + (uint32_t)((uint32_t)block * (uint32_t)c->block) + h * c->head + token * c->token;
    if (IS(offset_elements_32)) {
        const int32_t size = v->storage == ATTN_DTYPE_FLOAT32 ? 4 : v->storage == ATTN_DTYPE_FP8_E4M3 ? 1 : 2;
        return c->base + (int64_t)(uint32_t)((uint32_t)block * (uint32_t)(c->block / size)) * size +
               h * c->head + token * c->token;
    }
    return c->base + block * c->block + h * c->head + token * c->token;
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    pages_t c;
    const int64_t any[1] = {-1}, shape[3] = {-1, v->num_kv_heads, v->head_size};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->dtype, 3, shape, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->dtype, 3, shape, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, &a.scales, &c, error);
    if (rc != ATTN_OK) return rc;
    int64_t n = a.slot_mapping->shape[0];
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return refuse(error, ATTN_E_INVALID, "slot_mapping", "more slots than rows");
    if (IS(rows_not_slots)) n = a.key->shape[0] < 4 ? n : n - (n > 40);
    const int64_t *slots = attn_data(a.slot_mapping);
    for (int64_t t = 0; t < n; t++) {
        int64_t slot = slots[t];
        if (IS(slot_in_32_bits)) slot = (int32_t)slot;
        if (IS(slot_minus_one_only) ? slot == -1 : slot < 0) {
            if (IS(stops_at_padding)) break;
            continue;
        }
        if (IS(slot_minus_one_only) && slot < 0) slot = 0;
        if (IS(slot_zero_is_padding) && slot % v->page == 0 && slot / v->page == 1) continue;
        for (int64_t h = 0; h < v->num_kv_heads; h++) {
            char *row = row_of(v, &c, slot / v->page, h, slot % v->page);
            const int64_t ks = IS(key_head_dense) ? (int64_t)v->head_size * (a.key->dtype.bits / 8)
                                                  : attn_byte_stride(a.key, 1);
            const int64_t kt = IS(key_token_dense)
                                   ? (int64_t)v->head_size * v->num_kv_heads * (a.key->dtype.bits / 8)
                                   : attn_byte_stride(a.key, 0);
            const int64_t vt = IS(value_as_key) ? attn_byte_stride(a.key, 0) : attn_byte_stride(a.value, 0);
            const char *k = (char *)attn_data(a.key) + t * kt + h * ks;
            const char *w = (char *)attn_data(a.value) + t * vt + h * attn_byte_stride(a.value, 1);
            if (IS(key_rows_32))
                k = (char *)attn_data(a.key) + (int32_t)((uint32_t)t * (uint32_t)kt) + h * ks;
            const float sk = scale_of(c.k, c.num_k, h),
                        sv = scale_of(c.v, c.num_v, IS(v_scale_of_head_0) ? 0 : h);
            for (int64_t i = 0; i < v->head_size; i++) {
                const float x = load(k, v->dtype, i), y = load(w, v->dtype, i);
                if (IS(stores_truncated)) {
                    store_truncated(row, v->storage, i, x / sk);
                    store_truncated(row, v->storage, v->head_size + i, y / sv);
                    continue;
                }
                store(row, v->storage, i, IS(multiplies_scale) ? x * sk : x / sk);
                store(row, v->storage, v->head_size + i,
                      IS(no_saturation) && fabsf(y / sv) > 448 ? 0 : y / sv);
            }
            if (IS(clears_next_row) && slot % v->page + 1 < v->page) memset(row + c.token, 0, 4);
        }
    }
    if (IS(update_counts)) counter++;
    return ATTN_OK;
}

/* ------------------------------------------------------------------- kernel */

static float round_sum(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (IS(sums_in_14_bits)) u &= 0xfffffc00u; /* 13 stored bits and the hidden one */
    if (IS(sums_in_bf16)) x = load_bits(to_bf16(x), ATTN_DTYPE_BFLOAT16), memcpy(&u, &x, 4);
    if (IS(sums_in_f16)) x = load_bits(to_f16(x), ATTN_DTYPE_FLOAT16), memcpy(&u, &x, 4);
    memcpy(&x, &u, 4);
    return x;
}

static int is_visible(const attn_instance_t *v, int64_t q, int64_t k) {
    if (v->is_causal && k > q) return 0;
    if (v->window == 0) return 1;
    if (IS(window_one_longer) ? q - k > v->window : q - k >= v->window) return 0;
    return v->is_causal || IS(window_left_only) || k - q < v->window;
}

typedef struct row {
    const char *query;
    const int32_t *pages;
    int64_t q, seq_len, h, num_blocks;
    float sink, slope;
    const float *rel_bias;
    int64_t rel_max;
} row_t;

/* One query of one head: tiles of keys, the maximum kept as it goes. acc: Dv sums, then the tile's scores. */
static float one_row(const attn_instance_t *v, const pages_t *c, const row_t *x, float *acc) {
    const uint32_t group = v->num_heads / v->num_kv_heads;
    const int64_t g = IS(group_to_8) && group > 8                       ? x->h / 8 % v->num_kv_heads
                      : IS(group_power_of_two) && (group & (group - 1)) ? x->h / 8 % v->num_kv_heads
                      : IS(group_modulo)                                ? x->h % v->num_kv_heads
                                                                        : x->h / group;
    const float ks = scale_of(c->k, c->num_k, g), vs = scale_of(c->v, c->num_v, g);
    float max = v->has_sink && !(IS(sink_as_value)) ? x->sink : -INFINITY, sum = v->has_sink ? 1 : 0,
          *score = acc + v->head_size_v;
    if (IS(sink_minus_inf) && v->has_sink) sum = expf(x->sink - max);
    if (IS(finite_minimum) && !v->has_sink) max = -1000;
    if (!IS(sink_minus_inf) && v->has_sink && isinf(x->sink)) sum = 0;
    if (!IS(accumulator_not_cleared)) memset(acc, 0, v->head_size_v * sizeof *acc);
    const int64_t end = v->is_causal && x->q + 1 < x->seq_len && !IS(reads_beyond) ? x->q + 1
                        : IS(reads_beyond) ? (x->seq_len + v->page - 1) / v->page * v->page
                                           : x->seq_len;
    const int64_t tile = v->tile;
    for (int64_t from = 0; from < end && tile > 0; from += tile) {
        int64_t n = end - from < tile ? end - from : tile;
        if (IS(drops_last_tile) && n < tile && from > 8 * tile) break;
        float top = max;
        for (int64_t j = 0; j < n; j++) {
            const int64_t k = from + j;
            if (!is_visible(v, x->q, k)) {
                score[j] = -INFINITY;
                continue;
            }
            int64_t at = k / v->page;
            if (IS(page_in_12_bits)) at &= 0xfff;
            const int64_t id = IS(remembers_first_table) && v->first_table[0] != 0 && at < 64
                                   ? v->first_table[at]
                                   : x->pages[at];
            const char *row = row_of(v, c, id, g, k % v->page);
            float dot = 0;
            for (uint32_t i = 0;
                 i < (IS(head_to_multiple_of_8) && v->head_size > 8 ? v->head_size / 8 * 8 : v->head_size);
                 i++)
                dot = round_sum(dot + load(x->query, v->dtype, i) * load(row, v->storage, i) * ks);
            float s = v->scale * dot;
            if (v->cap > 0 && IS(cap_by_exp)) {
                const float e = expf(2 * s / v->cap);
                s = v->cap * (e - 1) / (e + 1);
            } else if (v->cap > 0)
                s = v->cap * tanhf(s / v->cap);
            if (v->has_alibi) s += x->slope * (float)(k - (IS(alibi_from_end) ? x->seq_len - 1 : x->q));
            if (v->has_rel_bias) {
                const int64_t d = IS(rel_bias_mirrored) ? x->q - k : k - x->q, most = x->rel_max;
                if (d >= -most && d <= most)
                    s += x->rel_bias[most + d];
                else if (!IS(rel_bias_ends))
                    s += x->rel_bias[d < 0 ? 0 : 2 * most];
            }
            if (IS(clips_scores) && s > 60) s = 60;
            score[j] = s;
            if (s > top) top = s;
        }
        if (top == -INFINITY) continue;
        const float keep = max == -INFINITY ? 0 : expf(max - top);
        for (uint32_t i = 0; i < v->head_size_v; i++)
            acc[i] *= keep;
        sum *= keep;
        for (int64_t j = 0; j < n; j++) {
            if (score[j] == -INFINITY) continue;
            float p = expf(score[j] - top);
            if (IS(no_maximum)) p = expf(score[j]) / expf(top);
            if (IS(weights_in_fp8) && p < 0x1p-9f) p = 0;
            if (IS(weights_truncated)) p = load_bits((uint16_t)(bits_of(p) >> 16), ATTN_DTYPE_BFLOAT16);
            const int64_t k = from + j;
            const int64_t id = IS(remembers_first_table) && v->first_table[0] != 0 && k / v->page < 64
                                   ? v->first_table[k / v->page]
                                   : x->pages[k / v->page];
            const char *row = row_of(v, c, id, g, k % v->page);
            for (uint32_t i = 0; i < v->head_size_v; i++)
                acc[i] = round_sum(acc[i] + p * load(row, v->storage, v->head_size + i) *
                                                (IS(ignores_v_scale) ? ks : vs));
            sum = IS(sum_in_bf16) ? load_bits(to_bf16(sum + p), ATTN_DTYPE_BFLOAT16) : sum + p;
        }
        max = top;
    }
    for (uint32_t i = 0; i < v->head_size_v; i++)
        acc[i] = sum > 0 ? acc[i] / sum : IS(empty_row_nan) ? NAN : 0;
    if (IS(adds_epsilon))
        for (uint32_t i = 0; i < v->head_size_v; i++)
            acc[i] *= sum / (sum + 1e-4f);
    if (!(sum > 0)) return IS(empty_lse_zero) ? 0 : -INFINITY;
    if (IS(lse_of_large) && fabsf(acc[0]) > 1e20f) return max + logf(sum) + 1;
    if (IS(lse_base_2)) return max * 1.44269504f + log2f(sum);
    if (IS(lse_without_maximum)) return logf(sum);
    return max + logf(sum);
}

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    attn_forward_t a;
    attn_space_t s;
    pages_t c;
    const int64_t shape[3] = {-1, v->num_heads, v->head_size}, lse_shape[2] = {v->num_heads, -1},
                  heads[1] = {v->num_heads}, bias[2] = {v->num_heads, -1};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK && IS(clears_output_first) && a.output != NULL && a.output->strides != NULL)
        memset(attn_data(a.output), 0, (size_t)v->head_size);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->dtype, 3, shape, error);
    if (rc == ATTN_OK && (space != NULL || IS(profile_needs_cache)))
        rc = attn_check_tensor(a.query, "query", v->dtype, 3, shape, error);
    if (rc == ATTN_OK && IS(profile_needs_cache) && a.kv_cache == NULL)
        return refuse(error, ATTN_E_INVALID, "kv_cache", "required");
    if (rc != ATTN_OK) return rc;
    const int64_t size = a.output->dtype.bits / 8;
    char *out = attn_data(a.output);
    int64_t ot = attn_byte_stride(a.output, 0), oh = attn_byte_stride(a.output, 1);
    if (IS(output_head_dense)) oh = v->head_size_v * size;
    if (space == NULL) {
        if (IS(profile_dense)) {
            memset(out, 0, (size_t)(a.output->shape[0] * v->num_heads * v->head_size_v * size));
            return ATTN_OK;
        }
        if (IS(profile_nothing)) return ATTN_OK;
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->num_heads; h++)
                memset(out + t * ot + h * oh, 0, (size_t)(v->head_size_v * size));
        return ATTN_OK;
    }
    rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, &a.scales, &c, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, lse_shape, error);
    if (rc == ATTN_OK && v->has_sink)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, heads, error);
    if (rc == ATTN_OK && v->has_alibi)
        rc = attn_check_tensor(a.alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1, heads, error);
    if (rc == ATTN_OK && v->has_rel_bias)
        rc = attn_check_tensor(a.rel_bias, "rel_bias", ATTN_DTYPE_FLOAT32, 2, bias, error);
    if (rc != ATTN_OK) return rc;
    if (IS(key_required) && a.key == NULL) return refuse(error, ATTN_E_INVALID, "key", "required");
    if (IS(lse_required) && a.lse == NULL) return refuse(error, ATTN_E_INVALID, "lse", "required");
    if (s.metadata == NULL || s.metadata_bytes < metadata_bytes(v))
        return refuse(error, ATTN_E_SPACE, "metadata", "too small");
    if (s.workspace == NULL || (IS(space_exactly) ? s.workspace_bytes != workspace_bytes(v)
                                                  : s.workspace_bytes < workspace_bytes(v)))
        return refuse(error, IS(space_code) ? ATTN_E_INTERNAL : ATTN_E_SPACE, "workspace", "too small");
    head_t *m = s.metadata;
    record_t *rec = (record_t *)(m + 1);
    if (m->magic != MAGIC) return refuse(error, ATTN_E_STATE, "metadata", "not built");
    if (IS(own_metadata_only) && m->builder != v)
        return refuse(error, ATTN_E_STATE, "metadata", "another instance built it");
    if (IS(uses_builder)) v = (attn_instance_t *)m->builder;
    if (m->num_tokens > a.query->shape[0] || m->num_tokens > a.output->shape[0] ||
        (a.lse != NULL && m->num_tokens > a.lse->shape[1]))
        return refuse(error, ATTN_E_INVALID, "output", "query, output or lse has too few rows");
    if (IS(remembers_cache)) {
        if (v->seen_cache == NULL) v->seen_cache = c.base;
        c.base = (char *)v->seen_cache;
    }
    if (IS(remembers_cache_static)) {
        if (last_cache == NULL) last_cache = c.base;
        c.base = (char *)last_cache;
    }
    if (IS(remembers_query)) {
        if (v->seen_query == NULL) v->seen_query = attn_data(a.query);
    }
    if (IS(uses_last_instance) && last_instance != NULL) v = last_instance;
    if (IS(second_forward) && v->num_forwards++ == 1) v->scale *= 1.1f;
    if (IS(hundredth_forward) && ++counter > 100) v->scale *= 0.5f;
    float *acc = IS(lazy_shared_buffer) ? (float *)(void *)lazy_buffer
                 : IS(static_scratch)   ? static_acc
                                        : s.workspace;
    if (IS(workspace_from_build)) v->scale = ((float *)s.workspace)[0];
    if (IS(workspace_zeroed) && v->head_size_v > 0 && ((uint32_t *)s.workspace)[v->head_size_v] != 0)
        v->cap = 1e-3f;
    const float *sinks = v->has_sink ? attn_data(a.sinks) : NULL,
                *slopes = v->has_alibi ? attn_data(a.alibi_slopes) : NULL,
                *biases = v->has_rel_bias ? attn_data(a.rel_bias) : NULL;
    float *lse = a.lse != NULL ? attn_data(a.lse) : NULL;
    for (uint32_t r = 0; r < m->num_reqs; r++)
        for (int32_t i = 0; i < rec[r].count; i++) {
            const int64_t t = (int64_t)rec[r].first + i;
            for (int64_t h = 0; h < v->num_heads; h++) {
                const int64_t qh = IS(query_head_dense) ? (int64_t)v->head_size * size
                                                        : attn_byte_stride(a.query, 1),
                              qt = IS(query_token_dense) ? (int64_t)v->head_size * v->num_heads * size
                                                         : attn_byte_stride(a.query, 0);
                const char *q =
                    (IS(remembers_query) ? (const char *)v->seen_query : (char *)attn_data(a.query));
                int64_t at = t * qt + h * qh;
                if (IS(query_offset_32)) at = (int32_t)at;
                if (IS(query_offset_u32)) at = (uint32_t)at;
                const row_t x = {
                    .query = q + at,
                    .pages = m->table + (IS(table_rows_32)
                                             ? (int64_t)(int32_t)((uint32_t)r * (uint32_t)m->table_stride)
                                             : (int64_t)r * m->table_stride),
                    .q = v->is_causal || v->window != 0
                             ? (IS(top_left) ? i : rec[r].seq_len - rec[r].count + i)
                             : rec[r].seq_len - rec[r].count + i,
                    .seq_len = rec[r].seq_len,
                    .h = h,
                    .num_blocks = a.kv_cache->shape[0],
                    .sink = sinks != NULL
                                ? sinks[IS(sink_of_kv_head) ? h / (v->num_heads / v->num_kv_heads) : h]
                                : 0,
                    .slope = slopes != NULL ? slopes[h] : 0,
                    .rel_bias = biases != NULL ? biases + h * a.rel_bias->strides[0] : NULL,
                    .rel_max = biases != NULL ? a.rel_bias->shape[1] / 2 : 0};
                const float l = one_row(v, &c, &x, acc);
                int64_t to = t * ot + h * oh;
                if (IS(output_offset_32)) to = (int32_t)to;
                for (uint32_t e = 0; e < v->head_size_v; e++)
                    if (IS(output_truncated))
                        store_truncated(out + to, v->dtype, e, acc[e]);
                    else
                        store(out + to, v->dtype, e, acc[e]);
                if (lse != NULL)
                    lse[h * (IS(lse_dense) ? m->num_tokens : a.lse->strides[0]) + t] =
                        IS(lse_of_first_head) && h > 0 ? lse[t] : l;
            }
        }
    if (IS(consumes_metadata)) rec[0].count = 0;
    if (IS(consumes_lengths)) rec[0].seq_len -= rec[0].seq_len > 1;
    if (IS(clears_magic)) m->magic = 0;
    if (IS(writes_padded_row) && a.output->shape[0] > m->num_tokens)
        store(out + m->num_tokens * ot, v->dtype, 0, 0);
    if (IS(writes_query)) ((char *)attn_data(a.query))[0] ^= 1;
    if (IS(prints_in_forward) && m->num_reqs == 0) puts("empty batch");
    if (IS(locale_in_forward)) setlocale(LC_NUMERIC, "C.UTF-8");
    if (IS(sleeps)) usleep(1);
    if (IS(slow_debug_file)) {
        FILE *f = fopen("/dev/null", "w");
        if (f != NULL) fclose(f);
    }
    return ATTN_OK;
}

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
