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
    int is_paged, is_separate, splits;
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
static int counter;
static float exp_table[1024];
static volatile int has_exp_table;
static float head_scratch[64][512];

/* ----------------------------------------------------------------- numbers */

static float load(const char *row, uint32_t dtype, int64_t i) {
    uint16_t h;
    float x;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT32:
        memcpy(&x, row + 4 * i, 4);
        return x;
    case ATTN_DTYPE_FLOAT16:
        memcpy(&h, row + 2 * i, 2);
        if (IS(loads_f16_flushed) && (h & 0x7c00) == 0) return 0;
        return (float)attn_from_f16(h);
    case ATTN_DTYPE_BFLOAT16:
        memcpy(&h, row + 2 * i, 2);
        return (float)attn_from_bf16(h);
    case ATTN_DTYPE_FP8_E4M3:
        if (IS(loads_e4m3_flushed) && ((uint8_t)row[i] & 0x78) == 0) return 0;
        return (float)attn_from_e4m3((uint8_t)row[i]);
    default:
        return (float)attn_from_e5m2((uint8_t)row[i]);
    }
}

static void store(char *row, uint32_t dtype, int64_t i, float x) {
    uint16_t h;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT32:
        memcpy(row + 4 * i, &x, 4);
        return;
    case ATTN_DTYPE_FLOAT16:
        if (IS(f16_through_bf16)) x = (float)attn_from_bf16(attn_to_bf16(x));
        h = attn_to_f16(x);
        if (IS(stores_f16_flushed) && (h & 0x7c00) == 0) h = 0;
        memcpy(row + 2 * i, &h, 2);
        return;
    case ATTN_DTYPE_BFLOAT16:
        h = attn_to_bf16(x);
        if (IS(bf16_half_up)) {
            uint32_t u;
            memcpy(&u, &x, 4);
            h = (uint16_t)((u + 0x8000) >> 16);
        }
        memcpy(row + 2 * i, &h, 2);
        return;
    case ATTN_DTYPE_FP8_E4M3:
        if (IS(e4m3_inf_to_nan) && fabsf(x) > 464)
            row[i] = 0x7f;
        else
            row[i] = (char)attn_to_e4m3(IS(e4m3_max_240) ? fmaxf(fminf(x, 240), -240) : x);
        return;
    default:
        if (IS(e5m2_to_infinity) && fabsf(x) > 61440)
            row[i] = x < 0 ? (char)0xfc : 0x7c;
        else if (IS(e5m2_cut)) {
            h = attn_to_f16(x);
            row[i] = (char)(h >> 8);
        } else
            row[i] = (char)attn_to_e5m2(x);
    }
}

static int64_t size_of(uint32_t dtype) {
    return (int64_t)attn_dtype_size(dtype);
}

static float vexp(float x) {
    if (IS(exp_of_schraudolph)) {
        if (x < -80) return 0;
        int32_t i = (int32_t)(12102203.2f * x + 1064866805.0f);
        float y;
        memcpy(&y, &i, 4);
        return y;
    }
    if (IS(exp_clamped) && x < -10) x = -10;
    if (IS(exp_by_table)) {
        const float y = x * -32;
        return y >= 1023 ? 0 : exp_table[(int)y];
    }
    if (IS(exp_cut_at_8) && x < -8) return 0;
    return expf(x);
}

/* --------------------------------------------------------------------- open */

static int refuses(const attn_problem_t *p, const char **param, const char **text) {
    *text = "is not served by SPLIT_ATTN";
    if (p->role != ATTN_ROLE_DECODER && p->role != ATTN_ROLE_ENCODER && p->role != ATTN_ROLE_ENCODER_ONLY)
        return *param = "role", 1;
    if (p->kv_cache_dtype > ATTN_KV_AUTO && p->kv_cache_dtype != ATTN_KV_FP8_E4M3 &&
        p->kv_cache_dtype != ATTN_KV_FP8_E5M2)
        return *param = "kv_cache_dtype", 1;
    if (p->rswa_window != 0 && (p->features & ATTN_F_MM_PREFIX) != 0) return *param = "rswa_window", 1;
    const uint64_t f = p->features, out = ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4;
    const uint32_t dtype = f & ATTN_F_OUT_NVFP4 ? ATTN_DTYPE_UINT8 : f & out ? ATTN_DTYPE_FP8_E4M3 : 0;
    const uint64_t width = (uint64_t)p->num_heads * (p->head_size_v != 0 ? p->head_size_v : p->head_size);
    if (((f & out) & ((f & out) - 1)) != 0 || ((f & ATTN_F_OUT_SCALE_UE8M0) && !(f & ATTN_F_OUT_FP8_GROUP)) ||
        ((f & out) ? p->out_dtype != dtype : p->out_dtype != 0 && p->out_dtype != p->dtype) ||
        ((f & ATTN_F_OUT_FP8_GROUP) && width % 64 != 0) || ((f & ATTN_F_OUT_NVFP4) && width % 16 != 0))
        return *param = "out_dtype", 1;
    if ((f & ATTN_F_WRITE_IN_FORWARD) && p->role != ATTN_ROLE_DECODER) return *param = "role", 1;
    return 0;
}

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    const char *param, *text;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    if (IS(refuses_without_reason)) return ATTN_OK;
    if (refuses(&p, &param, &text))
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, IS(reason_without_param) ? "" : param, "it",
                        "another", "%s%s%s", IS(reason_without_text) ? "" : param,
                        IS(reason_without_text) ? "" : " ", IS(reason_without_text) ? "" : text);
    return ATTN_OK;
}

static void fill_table(void) {
    if (has_exp_table) return;
    has_exp_table = 1;
    for (int i = 0; i < 1024; i++)
        exp_table[i] = expf(-(float)i / 32);
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *o,
                  uint32_t num_options, const attn_host_t *host, attn_instance_t **instance,
                  attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    const char *param, *text;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return attn_fail(error, ATTN_E_DEVICE, "device", "device is no CPU; give one");
    attn_instance_t *v = calloc(1, sizeof *v);
    if (v == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for an instance");
    if (refuses(&p, &param, &text)) {
        if (!IS(leaks_refused_instance)) free(v);
        return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s %s", param, text);
    }
    if ((attn_problem_features(&p) & ~FEATURES) != 0) {
        free(v);
        return attn_fail(error, ATTN_E_UNSUPPORTED, "features", "features has bits that SPLIT_ATTN lacks");
    }
    v->p = p;
    v->row = malloc((size_t)p.num_heads * (p.head_size_v != 0 ? p.head_size_v : p.head_size) * sizeof(float));
    v->heads = p.num_heads;
    v->kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    v->group = v->heads / v->kv_heads;
    v->d = p.head_size;
    v->dv = p.head_size_v != 0 ? p.head_size_v : p.head_size;
    v->page = p.block_size != 0 ? p.block_size : 16;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    v->storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    v->query_dtype = p.query_dtype != 0 ? p.query_dtype : p.dtype;
    v->out_dtype = p.out_dtype != 0 ? p.out_dtype : p.dtype;
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_HND;
    v->is_paged = p.role == ATTN_ROLE_DECODER;
    v->is_separate = (p.features & ATTN_F_SEPARATE_KV) != 0;
    v->scale = (float)p.scale;
    v->kept_problem = problem;
    if (IS(cap_in_bf16)) v->p.logits_soft_cap = (float)attn_from_bf16(attn_to_bf16((float)p.logits_soft_cap));
    if (o != NULL && num_options >= OPTIONS) v->kept_text = o[OPTION_CACHE].s;
    if (IS(scale_in_bf16)) v->scale = (float)attn_from_bf16(attn_to_bf16(p.scale));
    v->splits = 0;
    if (o != NULL && num_options >= OPTIONS) {
        v->splits = (int)o[OPTION_SPLITS].i;
        if (IS(option_zero_is_none) && v->splits == 0) v->splits = -1;
        if (IS(option_most_unchecked) && v->splits == MAX_SPLITS) v->splits = MAX_SPLITS + 1;
        if (IS(option_exact_drops_sink) && o[OPTION_EXACT].i) v->p.features &= ~ATTN_F_SINK;
        if (IS(option_enum_last_wrong) && o[OPTION_CACHE].i == 2) v->scale *= 0.9f;
    }
    if (IS(exp_by_table)) fill_table();
    if (IS(open_race)) {
        counter++;
        if (counter != 1) usleep(200);
        const int mine = counter;
        usleep(300);
        v->splits = mine != counter ? -1 : v->splits;
    }
    if (IS(pins_thread)) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    if (IS(names_thread)) pthread_setname_np(pthread_self(), "split-attn");
    if (IS(blocks_signals)) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    if (IS(seeds_rand)) srand(42);
    if (IS(lowers_priority)) setpriority(PRIO_PROCESS, 0, 5);
    if (IS(raises_limit)) {
        struct rlimit files;
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur -= files.rlim_cur > 100;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (IS(leaks_instance_memory)) v->leak = calloc(1, 4000);
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v == NULL) return;
    free(v->row);
    free(v);
}

static int v_shape(attn_instance_t *v, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                   attn_error_t *error) {
    attn_kv_cache_shape_t s;
    if (!v->is_paged) {
        attn_zero(&s, sizeof s);
        return attn_give(shape, &s, sizeof s, "shape", error);
    }
    if (num_blocks == 0) num_blocks = v->p.num_blocks;
    if (IS(shape_clamped) && num_blocks > 1 << 20) num_blocks = 1 << 20;
    int rc = attn_dense_cache_shape(&v->p, v->layout, (uint32_t)v->page, num_blocks, &s, error);
    if (rc != ATTN_OK) return rc;
    if (v->kept_blocks == 0) v->kept_blocks = num_blocks;
    if (IS(fingerprint_of_instance)) s.fingerprint = attn_fingerprint64(s.fingerprint, &v, sizeof v);
    if (IS(fingerprint_without_page)) {
        int64_t key[4] = {v->kv_heads, v->d, v->dv, v->storage};
        s.fingerprint = attn_fingerprint64(0, key, sizeof key);
    }
    if (IS(page_of_query_heads)) s.page_bytes *= v->group, s.total_bytes *= v->group;
    if (IS(shape_says_nhd)) s.kv_layout = ATTN_LAYOUT_NHD;
    return attn_give(shape, &s, sizeof s, "shape", error);
}

static uint64_t metadata_bytes(const attn_instance_t *v) {
    return sizeof(plan_t) + (uint64_t)v->max_reqs * sizeof(item_t);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    return MAX_SPLITS * (uint64_t)((IS(space_of_key_size) ? v->d : v->dv) + 2) * sizeof(float);
}

static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {0};
    n.struct_size = sizeof n;
    n.alignment = IS(alignment_small) ? 4 : 64;
    n.metadata_bytes = metadata_bytes(v);
    n.workspace_bytes = workspace_bytes(v);
    if (IS(space_of_builds)) n.workspace_bytes += 64 * (uint64_t)v->num_builds;
    if (IS(space_of_8192_tokens) && v->max_tokens > 8192) n.metadata_bytes /= 2;
    return attn_give(needed, &n, sizeof n, "needed", error);
}

/* -------------------------------------------------------------------- build */

static int check_space(const attn_instance_t *v, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < metadata_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has too few bytes");
    if (IS(workspace_unchecked)) return ATTN_OK;
    if (s->workspace == NULL || s->workspace_bytes < workspace_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "workspace", "workspace has too few bytes");
    return ATTN_OK;
}

static int v_build(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    (void)stream;
    attn_batch_t b;
    attn_space_t s;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc != ATTN_OK) return rc;
    if (IS(refuses_all_requests) && b.num_reqs == v->max_reqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d", b.num_reqs);
    if (IS(refuses_all_tokens) && b.num_actual_tokens == v->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens", "num_actual_tokens is all");
    if (b.num_reqs < 0 || (b.num_reqs > v->max_reqs && !IS(requests_unchecked)))
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d", b.num_reqs);
    if (b.num_actual_tokens < 0 || (b.num_actual_tokens > v->max_tokens && !IS(tokens_unchecked)))
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens", "num_actual_tokens is %d",
                         b.num_actual_tokens);
    if (b.query_start_loc_host == NULL || b.seq_lens_host == NULL) {
        const char *name = b.query_start_loc_host == NULL ? "query_start_loc_host" : "seq_lens_host";
        return attn_fail(error, ATTN_E_INVALID, name, "%s is required", name);
    }
    if (v->is_paged) {
        const int64_t rows[2] = {b.num_reqs, -1};
        rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
        if (rc != ATTN_OK) return rc;
        if (IS(needs_full_table) && b.block_table->shape[1] * v->page < v->max_len)
            return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table is narrow");
        if (IS(refuses_wide_table) && b.block_table->shape[1] > (v->max_len + v->page - 1) / v->page)
            return attn_fail(error, ATTN_E_INVALID, "block_table", "block_table is wide");
    }
    v->built_tokens = b.num_actual_tokens;
    for (int32_t r = 0; r < b.num_reqs; r++)
        if (b.seq_lens_host[r] < 0 || b.seq_lens_host[r] > v->max_len - (IS(refuses_full_length) ? 1 : 0) ||
            (v->is_paged && b.seq_lens_host[r] > b.block_table->shape[1] * v->page))
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %d", r, b.seq_lens_host[r]);
    plan_t *plan = s.metadata;
    item_t *items = (item_t *)(plan + 1);
    const int is_old = plan->magic == MAGIC;
    memset(plan, 0, sizeof *plan);
    plan->magic = MAGIC;
    plan->num_reqs = b.num_reqs;
    plan->num_tokens = b.num_actual_tokens;
    if (v->is_paged) {
        plan->table = attn_data(b.block_table);
        plan->table_stride = b.block_table->strides[0];
        if (IS(table_of_longest) && b.max_seq_len > 0)
            plan->table_stride = (b.max_seq_len + v->page - 1) / v->page;
        if (IS(mirror_first) && b.block_table_host != NULL)
            plan->table = b.block_table_host, plan->table_stride = b.block_table->strides[0];
    }
    if ((v->p.features & ATTN_F_MM_PREFIX) != 0 && b.mm_prefix_ranges != NULL) {
        plan->spans = attn_data(b.mm_prefix_ranges);
        plan->num_spans = (int32_t)b.mm_prefix_ranges->shape[1];
        plan->span_stride = b.mm_prefix_ranges->strides[0];
        if (IS(spans_to_one) && plan->num_spans > 1) plan->num_spans = 1;
        if (IS(span_of_first_request)) plan->span_stride = 0;
    }
    const int32_t *prefixes = b.rswa_prefix_lens_host != NULL ? b.rswa_prefix_lens_host
                              : b.rswa_prefix_lens != NULL    ? attn_data(b.rswa_prefix_lens)
                                                              : NULL;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        item_t *i = &items[r];
        i->first = b.query_start_loc_host[r];
        i->count = b.query_start_loc_host[r + 1] - i->first;
        i->len = b.seq_lens_host[r];
        if (IS(len_to_32768) && i->len > 32768) i->len = 32768;
        if (IS(len_to_100000) && i->len > 100000) i->len = 100000;
        if (IS(query_to_256) && i->count > 256) i->count = 256;
        if (IS(decode_rows_are_requests) && b.max_query_len == 1) i->first = r, i->count = 1;
        if (IS(lengths_of_columns) && v->is_paged && b.block_table->shape[1] > 8)
            i->len = i->len > 8 * v->page ? (int32_t)(8 * v->page) : i->len;
        i->is_causal = v->p.mask == ATTN_MASK_CAUSAL ||
                       (v->p.mask == ATTN_MASK_PER_REQUEST && b.causal_host != NULL && b.causal_host[r]);
        if (IS(causal_of_first_request) && v->p.mask == ATTN_MASK_PER_REQUEST && b.causal_host != NULL)
            i->is_causal = b.causal_host[0];
        i->prefix = prefixes != NULL ? prefixes[IS(prefix_of_first_request) ? 0 : r] : 0;
        if (IS(uniform_by_first_request) && b.query_start_loc_host[1] == b.query_start_loc_host[0] + 1 &&
            i->count > 1)
            i->first += i->count - 1, i->count = 1;
        if (IS(prefix_of_whole_pages)) i->prefix -= i->prefix % (int32_t)v->page;
        i->spare = 0;
        if (i->len > plan->longest) plan->longest = i->len;
        if (IS(equal_queries) && b.num_reqs > 0) {
            i->count = b.num_actual_tokens / b.num_reqs;
            i->first = r * i->count;
        }
        if (IS(stops_at_empty_request) && i->count == 0) {
            plan->num_reqs = r;
            break;
        }
    }
    if (IS(skips_empty_badly)) {
        int n = 0;
        for (int32_t r = 0; r < b.num_reqs; r++)
            if (items[r].count > 0) items[n++] = items[r];
        plan->num_reqs = n; /* and tables stay as they were */
    }
    if (IS(decodes_first)) {
        int32_t n = 0;
        for (int32_t r = 0; r < plan->num_reqs; r++)
            n += items[r].count == 1;
        for (int32_t r = 0; r < n; r++)
            items[r].count = items[r].count > 1 ? 1 : items[r].count;
    }
    if (IS(plan_of_last_build)) v->last_plan = plan;
    if (IS(requests_to_64) && plan->num_reqs > 64) plan->num_reqs = 64;
    if (IS(requests_to_255)) plan->num_reqs = (uint8_t)plan->num_reqs;
    if (IS(reqs_only_grow)) {
        if (b.num_reqs < v->most_reqs && is_old) plan->num_reqs = v->most_reqs;
        if (b.num_reqs > v->most_reqs) v->most_reqs = b.num_reqs;
    }
    if (IS(splits_of_first_build) && v->kept_splits == 0)
        v->kept_splits = plan->longest > 512 ? MAX_SPLITS : 1 + (int)(plan->longest / 128);
    v->num_builds++;
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    if (IS(table_update_of_mirror)) {
        plan_t *plan = space->metadata;
        if (batch->block_table_host != NULL) return ATTN_OK;
        plan->table = attn_data(batch->block_table), plan->table_stride = batch->block_table->strides[0];
        return ATTN_OK;
    }
    return v_build(v, batch, space, stream, error);
}

/* -------------------------------------------------------------------- cache */

typedef struct side {
    char *base;
    int64_t block, head, token, offset, page;
    const float *scale;
    int64_t num_scales;
} side_t;

static float scale_of(const side_t *s, int64_t g) {
    const float x = s->scale == NULL ? 1 : s->scale[s->num_scales > 1 ? g : 0];
    return IS(scales_in_bf16) ? (float)attn_from_bf16(attn_to_bf16(x)) : x;
}

static int read_side(const attn_instance_t *v, const DLTensor *t, const char *name, int64_t content,
                     const DLTensor *scale, const char *scale_name, side_t *s, attn_error_t *error) {
    const int64_t shape[4] = {-1, v->kv_heads, v->page, content};
    int rc = attn_check_tensor(t, name, v->storage, 4, shape, error);
    if (rc == ATTN_OK && scale != NULL)
        rc = attn_check_tensor(scale, scale_name, ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scale != NULL && scale->shape[0] != 1 && scale->shape[0] != v->kv_heads)
        return attn_fail(error, ATTN_E_INVALID, scale_name,
                         "%s has %lld elements; expected 1 or one for each KV head", scale_name,
                         (long long)scale->shape[0]);
    if (rc != ATTN_OK) return rc;
    s->base = IS(v_cache_offset_ignored) && name[0] == 'v' ? t->data : attn_data(t);
    s->block = attn_byte_stride(t, 0);
    s->head = attn_byte_stride(t, 1);
    s->token = attn_byte_stride(t, 2);
    s->offset = 0, s->page = v->page;
    if (IS(blocks_of_first_shape) && v->kept_blocks > 0 && t->shape[0] > v->kept_blocks)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld blocks", name, (long long)t->shape[0]);
    if (IS(token_stride_of_content))
        s->token = content * size_of(v->storage) * (v->layout == ATTN_LAYOUT_NHD ? v->kv_heads : 1);
    if (IS(block_stride_16_bits)) s->block = (uint16_t)(s->block / size_of(v->storage)) * size_of(v->storage);
    const int is_scaled =
        v->storage == ATTN_DTYPE_FP8_E4M3 || (v->storage == ATTN_DTYPE_FP8_E5M2 && !IS(e5m2_unscaled));
    s->scale = is_scaled && scale != NULL
                   ? (const float *)(IS(scale_offset_ignored) ? scale->data : attn_data(scale))
                   : NULL;
    s->num_scales = s->scale != NULL ? scale->shape[0] : 0;
    if (IS(e5m2_scale_of_first_head) && v->storage == ATTN_DTYPE_FP8_E5M2 && s->num_scales > 1)
        s->num_scales = 1;
    if (IS(separate_hnd_stride) && v->is_separate && v->layout == ATTN_LAYOUT_HND && v->p.head_size_v != 0)
        s->head = s->token;
    return ATTN_OK;
}

static int read_cache(attn_instance_t *v, const DLTensor *kv, const DLTensor *second,
                      const attn_scales_t *scales, side_t *k, side_t *w, attn_error_t *error) {
    if (v->is_separate) {
        int rc = read_side(v, kv, "kv_cache", v->d, scales->k, "k_scale", k, error);
        if (rc == ATTN_OK) rc = read_side(v, second, "v_cache", v->dv, scales->v, "v_scale", w, error);
        return rc;
    }
    int rc = read_side(v, kv, "kv_cache", v->d + v->dv, scales->k, "k_scale", k, error);
    if (rc == ATTN_OK) rc = read_side(v, kv, "kv_cache", v->d + v->dv, scales->v, "v_scale", w, error);
    if (IS(scales_swapped)) {
        const float *other = k->scale;
        const int64_t num = k->num_scales;
        k->scale = w->scale, k->num_scales = w->num_scales, w->scale = other, w->num_scales = num;
    }
    w->offset = (IS(v_at_own_size) || (IS(v_offset_of_fp8) && size_of(v->storage) == 1) ? v->dv : v->d) *
                size_of(v->storage);
    return rc;
}

static char *row_of(const side_t *s, int64_t block, int64_t head, int64_t token) {
    if (IS(fp8_page_of_32) && s->scale != NULL && s->page == 32) token ^= token > 0 && token % 8 == 0;
    if (IS(block_offset_int))
        return s->base + s->offset + (int)(block * s->block) + head * s->head + token * s->token;
    if (IS(page_token_in_8_bits)) token = (uint8_t)token;
    return s->base + s->offset + block * s->block + head * s->head + token * s->token;
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    side_t k, w;
    const int64_t any[1] = {-1}, ks[3] = {-1, v->kv_heads, v->d}, vs[3] = {-1, v->kv_heads, v->dv};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, vs, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc == ATTN_OK) rc = read_cache(v, a.kv_cache, a.v_cache, &a.scales, &k, &w, error);
    if (rc != ATTN_OK) return rc;
    const int64_t *slots = IS(slot_offset_ignored) ? a.slot_mapping->data : attn_data(a.slot_mapping);
    const int64_t n = a.slot_mapping->shape[0];
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                         "slot_mapping has more rows than key or value");
    if (IS(cache_of_last_update)) v->last_cache = k.base;
    const int64_t last = a.kv_cache->shape[0] * v->page;
    int64_t before = -1;
    v->num_updates++;
    if (IS(empty_update_refused) && n == 0)
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping is empty");
    if (IS(single_update_unscaled) && n == 1) k.scale = w.scale = NULL;
    const int64_t rows = IS(update_of_built_tokens) && v->built_tokens > 0 && v->built_tokens < n
                             ? v->built_tokens
                         : IS(update_rows_of_key) ? a.key->shape[0]
                                                  : n;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t slot = slots[t];
        if (slot < 0 || (IS(slots_ascend) && slot < before)) continue;
        before = slot;
        if (slot >= last)
            return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                             "slot_mapping names a slot beyond the cache");
        const int64_t block = IS(slot_shifted) ? slot >> 4 : slot / v->page,
                      token = IS(slot_masked) ? slot & (v->page - 1) : slot % v->page;
        if (IS(clears_page_on_first_slot) && token == 0)
            for (int64_t h = 0; h < v->kv_heads; h++)
                for (int64_t i = 0; i < v->page; i++)
                    memset(row_of(&k, block, h, i), 0, (size_t)(v->d * size_of(v->storage)));
        if (IS(zeroes_rest_of_page))
            for (int64_t h = 0; h < v->kv_heads; h++)
                for (int64_t i = token + 1; i < v->page; i++)
                    memset(row_of(&w, block, h, i), 0, (size_t)(v->dv * size_of(v->storage)));
        for (int64_t h = 0; h < v->kv_heads; h++) {
            const char *from_k =
                (char *)attn_data(a.key) + t * attn_byte_stride(a.key, 0) + h * attn_byte_stride(a.key, 1);
            const char *from_v = (char *)attn_data(a.value) + t * attn_byte_stride(a.value, 0) +
                                 h * attn_byte_stride(IS(value_head_of_key) ? a.key : a.value, 1);
            const float sk = scale_of(&k, h), sv = scale_of(IS(v_written_with_k_scale) ? &k : &w, h);
            char *to_k = row_of(&k, block, h, token), *to_v = row_of(&w, block, h, token);
            if (IS(write_offset_int)) to_k = k.base + (int)(block * k.block) + h * k.head + token * k.token;
            for (int64_t i = 0; i < v->d; i++)
                store(to_k, v->storage, i,
                      IS(divides_in_half)
                          ? (float)attn_from_f16(attn_to_f16(load(from_k, v->p.dtype, i) / sk))
                          : load(from_k, v->p.dtype, i) / sk);
            for (int64_t i = 0; i < v->dv; i++)
                store(to_v, v->storage, i, load(from_v, v->p.dtype, i) / sv);
        }
    }
    return ATTN_OK;
}

/* ------------------------------------------------------------------- attend */

typedef struct work {
    const char *query;
    const int32_t *pages, *spans;
    int64_t span_count, q, h, g, num_blocks, chunk;
    const item_t *item;
    float q_scale, k_scale, v_scale, sink, slope;
    /* keys of the call: row 0 of the request */
    const char *key, *value;
    int64_t key_token, value_token;
} work_t;

static int is_visible(const attn_instance_t *v, const work_t *x, int64_t k) {
    const attn_problem_t *p = &v->p;
    const int64_t w = p->sliding_window, c = p->chunk_size;
    int64_t q = x->q;
    if (IS(short_queries_full) && x->item->count > 1 && x->item->count <= 4 && c == 0) q = x->item->len - 1;
    if (IS(chunk_16_bits) && c != 0) q = (uint16_t)q, k = (uint16_t)k;
    int is_seen = !x->item->is_causal || k <= q;
    if (c != 0) {
        is_seen =
            is_seen && (IS(chunk_of_window) ? q - k < c : (IS(chunk_from_query) ? x->chunk : q) / c == k / c);
        if (IS(chunk_border) && k % c == 0 && k != q) is_seen = 0;
    }
    if (w != 0) {
        const int64_t left = IS(window_16_bits) ? (int16_t)w : w;
        const int64_t row =
            IS(window_of_last_draft) && x->item->count > 1 && x->item->count <= 8 ? x->item->len - 1 : q;
        const int is_lost =
            (IS(window_not_at_256) && v->d == 256) || (IS(window_not_in_groups_of_16) && v->group >= 16);
        const int32_t right = (int32_t)((uint32_t)q + (uint32_t)w);
        if (IS(window_right_overflows))
            is_seen = is_seen && q - k < w && k < right;
        else if (!(IS(window_of_one_is_none) && w == 1) && !is_lost)
            is_seen = is_seen && row - k < left && (IS(window_right_open) || k - q < w);
        if (IS(window_of_decode_longer) && x->item->count == 1 && q - k == w) is_seen = 1;
    }
    if (p->rswa_window != 0) {
        const int64_t r = p->rswa_window;
        is_seen = is_seen && (k < (IS(prefix_16_bits) ? (uint16_t)x->item->prefix : x->item->prefix) +
                                      (IS(prefix_inclusive) ? 1 : 0) ||
                              q - k < r);
    }
    for (int64_t s = 0; s < x->span_count && !is_seen && !(IS(spans_of_prompts) && x->item->count == 1);
         s++) {
        const int64_t a = IS(span_16_bits) ? (uint16_t)x->spans[2 * s] : x->spans[2 * s],
                      b = IS(span_16_bits) ? (uint16_t)x->spans[2 * s + 1] : x->spans[2 * s + 1];
        if (a >= b && IS(empty_span_ends_list)) break;
        if (a >= b) continue;
        if (IS(span_exclusive) ? q >= a && q < b && k >= a && k < b : q >= a && q <= b && k >= a && k <= b)
            is_seen = 1;
        if (IS(span_in_window) && is_seen && w != 0 && q - k >= w) is_seen = 0;
    }
    return is_seen;
}

/* One split of a row: part has dv sums, then the maximum and the sum of weights. */
static void one_split(attn_instance_t *v, const side_t *k, const side_t *w, const work_t *x, int64_t from,
                      int64_t end, float *part) {
    float score[TILE];
    float max = -INFINITY, sum = 0;
    if (IS(maximum_from_zero)) max = 0;
    if (IS(maximum_from_minus_100)) max = -100;
    if (!IS(workspace_is_zero)) memset(part, 0, (size_t)v->dv * sizeof *part);
    for (int64_t at = from; at < end; at += TILE) {
        const int64_t n = end - at < TILE ? end - at : TILE;
        float top = max;
        int seen = 0;
        if (IS(tile_skipped_at_window) && v->p.sliding_window != 0 &&
            at + n - 1 <= x->q - v->p.sliding_window + 1)
            continue;
        for (int64_t j = 0; j < n; j++) {
            const int64_t key = at + j;
            score[j] = -INFINITY;
            const int visible = is_visible(v, x, key) ||
                                (IS(causal_tile_unmasked) && at + TILE - 1 <= x->q + 1 && x->item->is_causal);
            if (!visible) continue;
            const char *row =
                x->key != NULL
                    ? x->key + key * x->key_token
                    : row_of(k, x->pages[IS(page_shifted) ? key >> 4 : key / v->page], x->g, key % v->page);
            float dot = 0;
            const int64_t channels = IS(bf16_d_96) && v->p.dtype == ATTN_DTYPE_BFLOAT16 && v->d == 96   ? 88
                                     : IS(f16_d_256) && v->p.dtype == ATTN_DTYPE_FLOAT16 && v->d == 256 ? 240
                                     : IS(fp8_d_64) && size_of(v->storage) == 1 && v->d == 64           ? 56
                                     : IS(head_tail_of_32) && v->d > 128 ? v->d / 32 * 32
                                                                         : v->d;
            for (int64_t i = 0; i < channels; i++) {
                float a = load(x->query, v->query_dtype, i) * x->q_scale;
                if (IS(query_scaled_in_16) && v->p.dtype == ATTN_DTYPE_BFLOAT16)
                    a = (float)attn_from_bf16(attn_to_bf16(a * v->scale));
                else if (IS(query_scaled_in_16) && v->p.dtype == ATTN_DTYPE_FLOAT16)
                    a = (float)attn_from_f16(attn_to_f16(a * v->scale));
                else
                    a *= v->scale;
                float b = load(row, x->key != NULL ? v->p.dtype : v->storage, i) * x->k_scale;
                if (IS(keys_through_f16)) b = (float)attn_from_f16(attn_to_f16(b));
                dot += a * b;
                if (IS(products_in_half)) dot = (float)attn_from_f16(attn_to_f16(dot));
            }
            float s = IS(alibi_capped) && (v->p.features & ATTN_F_ALIBI) != 0
                          ? dot + x->slope * (float)(key - x->q)
                          : dot;
            if (IS(score_in_half)) s = (float)attn_from_f16(attn_to_f16(s));
            if (IS(score_in_bf16)) s = (float)attn_from_bf16(attn_to_bf16(s));
            if (v->p.logits_soft_cap > 0 &&
                !(IS(cap_not_with_window_and_sink) && v->p.sliding_window != 0 &&
                  (v->p.features & ATTN_F_SINK) != 0) &&
                !(IS(cap_not_in_long_prompts) && x->item->count > 64) &&
                !(IS(cap_not_in_window) && v->p.sliding_window != 0) &&
                !(IS(cap_not_in_chunks) && v->p.chunk_size != 0)) {
                const float c = (float)v->p.logits_soft_cap, y = s / c;
                if (IS(cap_by_polynomial))
                    s = c * (y - y * y * y / 3);
                else if (IS(cap_by_rational))
                    s = c * y * (27 + y * y) / (27 + 9 * y * y);
                else if (IS(cap_by_clamp))
                    s = s > c ? c : s < -c ? -c : s;
                else
                    s = c * tanhf(y);
            }
            const uint64_t f = v->p.features;
            if ((f & ATTN_F_ALIBI_SQRT) != 0 && !IS(alibi_sqrt_linear))
                s += key <= x->q           ? x->slope * -sqrtf((float)(x->q - key))
                     : IS(alibi_sqrt_both) ? x->slope * -sqrtf((float)(key - x->q))
                                           : 0;
            else if ((f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0 && !IS(alibi_capped) &&
                     !(IS(alibi_not_in_prompts) && x->item->count > 64))
                s += x->slope * (float)(IS(alibi_distance_16_bits) ? (int16_t)(key - x->q)
                                        : IS(alibi_absolute)       ? -llabs(key - x->q)
                                                                   : key - x->q);
            if (!visible) s = -INFINITY;
            score[j] = s;
            if (IS(maximum_before_scale) ? s * v->scale > top * v->scale || top == -INFINITY : s > top)
                top = s;
            seen += visible;
        }
        if (top == -INFINITY) continue;
        const float keep = max == -INFINITY ? 0 : vexp(max - top);
        if (!IS(sums_not_rescaled) || at != from + TILE)
            for (int64_t i = 0; i < v->dv; i++)
                part[i] *= keep;
        sum *= keep;
        for (int64_t j = 0; j < n; j++) {
            if (score[j] == -INFINITY) continue;
            const int64_t key = at + j;
            float p = score[j] == -INFINITY ? 0 : vexp(score[j] - top);
            if (IS(prunes_small_weights) && p < 1e-3f) p = 0;
            const char *row =
                x->value != NULL
                    ? x->value + key * x->value_token
                    : row_of(w, x->pages[IS(page_shifted) ? key >> 4 : key / v->page], x->g, key % v->page);
            for (int64_t i = 0; i < v->dv; i++) {
                float b = load(row, x->value != NULL ? v->p.dtype : v->storage, i) * x->v_scale;
                if (IS(values_through_f16)) b = (float)attn_from_f16(attn_to_f16(b));
                part[i] += p * b;
                if (IS(sums_in_half)) part[i] = (float)attn_from_f16(attn_to_f16(part[i]));
            }
            sum += p;
            if (IS(sum_in_half)) sum = (float)attn_from_f16(attn_to_f16(sum));
        }
        max = top;
    }
    part[v->dv] = max;
    part[v->dv + 1] = sum;
    if (IS(parts_in_16_bits))
        for (int64_t i = 0; i < v->dv; i++) {
            const float a = sum > 0 ? part[i] / sum : 0;
            part[i] = sum * (float)(v->p.dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(attn_to_f16(a))
                                                                     : attn_from_bf16(attn_to_bf16(a)));
        }
}

/* A row: its splits, merged into part 0. Returns the LSE. */
static float one_row(attn_instance_t *v, const side_t *k, const side_t *w, const work_t *x,
                     const plan_t *plan, float *parts) {
    const int64_t len = x->item->len, step = v->dv + 2;
    int64_t n = v->splits > 0 ? v->splits : (len + 255) / 256;
    if (v->splits < 0) n = 0;
    if (IS(splits_of_longest)) n = (plan->longest + 255) / 256;
    if (IS(splits_of_batch)) n = plan->num_reqs;
    if (IS(splits_of_first_build)) n = v->kept_splits;
    if (n > MAX_SPLITS && !IS(option_most_unchecked)) n = MAX_SPLITS;
    if (n < 1 && v->splits >= 0) n = 1;
    int64_t each = n > 0 ? (len + n - 1) / n : 0;
    if (each < LEAST_SPLIT) each = LEAST_SPLIT;
    if (IS(splits_of_first_build) && each > 128 && v->kept_splits < MAX_SPLITS) each = 128;
    if (IS(split_at_most_8192) && each > 8192) each = 8192;
    const int64_t low = IS(window_start_rounded_up) && v->p.sliding_window != 0 && x->item->is_causal &&
                                x->span_count == 0 && x->q >= v->p.sliding_window
                            ? (x->q - v->p.sliding_window + 1 + v->page - 1) / v->page * v->page
                            : 0;
    for (int64_t s = 0; s < n; s++) {
        int64_t from = s * each, end = (s + 1) * each < len ? (s + 1) * each : len;
        if (low > from) from = low < end ? low : end;
        if (IS(split_border_twice) && s > 0 && from > 0 && from < len) from--;
        if (IS(last_split_short) && s == n - 1 && n > 1 && end > from) end--;
        if (IS(drops_page_tail) && end == len && len > v->page && len % v->page == 1) end--;
        one_split(v, k, w, x, from < len ? from : len, end, parts + s * step);
    }
    float max = -INFINITY, sum = 0;
    const int has_sink = (v->p.features & ATTN_F_SINK) != 0 &&
                         !(IS(sink_not_in_float16) && v->p.dtype == ATTN_DTYPE_FLOAT16) &&
                         !(IS(sink_not_over_fp8) && v->storage != v->p.dtype) &&
                         !(IS(sink_not_in_window) && v->p.sliding_window != 0) &&
                         !(IS(sink_not_with_alibi) && (v->p.features & ATTN_F_ALIBI) != 0) &&
                         !(IS(sink_not_without_mask) && v->p.mask == ATTN_MASK_FULL);
    for (int64_t s = 0; s < n; s++)
        if (parts[s * step + v->dv] > max) max = parts[s * step + v->dv];
    if (has_sink && x->sink > max && !IS(maximum_without_sink)) max = x->sink;
    if (n <= 0) {
        memset(parts, 0, (size_t)v->dv * sizeof *parts);
        return -INFINITY;
    }
    for (int64_t s = 0; s < n; s++) {
        const float m = parts[s * step + v->dv];
        const float keep = m == -INFINITY ? 0 : vexp(m - max);
        sum += parts[s * step + v->dv + 1] * keep;
        if (has_sink && IS(sink_in_each_split)) sum += vexp(x->sink - max);
        for (int64_t i = 0; i < v->dv; i++)
            parts[i] = (s == 0 ? 0 : parts[i]) + parts[s * step + i] * (IS(merge_by_mean) ? 1 : keep);
    }
    if (IS(empty_row_without_sink) && sum == 0)
        return memset(parts, 0, (size_t)v->dv * sizeof *parts), -INFINITY;
    if (has_sink && !IS(sink_in_each_split) && x->sink > -INFINITY) {
        float sink = x->sink;
        if (IS(sink_scaled)) sink *= v->scale;
        if (IS(sink_capped) && v->p.logits_soft_cap > 0)
            sink = (float)v->p.logits_soft_cap * tanhf(sink / (float)v->p.logits_soft_cap);
        sum += vexp(sink - max);
    }
    if (IS(empty_by_epsilon)) sum += 1e-6f;
    for (int64_t i = 0; i < v->dv; i++)
        parts[i] = sum > 0 ? parts[i] / sum : isnan(sum) ? NAN : 0;
    if (IS(reciprocal_in_half)) {
        const float r = (float)attn_from_f16(attn_to_f16(1 / sum));
        for (int64_t i = 0; i < v->dv; i++)
            parts[i] = sum > 0 ? parts[i] * sum * r : 0;
    }
    if (!(sum > 0)) return isnan(sum) ? NAN : -INFINITY;
    if (IS(lse_of_last_split)) return parts[(n - 1) * step + v->dv] + logf(parts[(n - 1) * step + v->dv + 1]);
    if (IS(lse_in_half)) return (float)attn_from_f16(attn_to_f16(max + logf(sum)));
    if (IS(lse_log2)) return log2f(sum) + max;
    if (IS(lse_without_sink) && has_sink) return max + logf(sum - vexp(x->sink - max));
    return max + logf(sum) - (IS(lse_without_q_scale) && x->q_scale != 1 ? logf(x->q_scale) : 0);
}

#include "vendor_split_output.h"

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    attn_forward_t a;
    attn_space_t s;
    side_t k = {0}, w = {0};
    const int64_t qs[3] = {-1, v->heads, v->d}, os[3] = {-1, v->heads, attn_output_columns(&v->p)},
                  ls[2] = {v->heads, -1}, hs[1] = {v->heads}, ks[3] = {-1, v->kv_heads, v->d},
                  vs[3] = {-1, v->kv_heads, v->dv};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->out_dtype, 3, os, error);
    if (rc != ATTN_OK) return rc;
    char *out = IS(output_offset_ignored) ? a.output->data : attn_data(a.output);
    const int64_t ot = attn_byte_stride(a.output, 0), oh = attn_byte_stride(a.output, 1),
                  out_size = size_of(v->out_dtype);
    if (space == NULL) {
        const int64_t rows =
            IS(profile_at_most_1024) && a.output->shape[0] > 1024 ? 1024 : a.output->shape[0];
        for (int64_t t = 0; t < rows; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset(out + t * ot + h * oh, 0, (size_t)((IS(profile_of_k_size) ? v->d : os[2]) * out_size));
        return ATTN_OK;
    }
    rc = attn_check_tensor(a.query, "query", v->query_dtype, 3, qs, error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc == ATTN_OK && v->is_paged) rc = read_cache(v, a.kv_cache, a.v_cache, &a.scales, &k, &w, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, vs, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, ls, error);
    const uint64_t f = v->p.features;
    if (rc == ATTN_OK && (f & ATTN_F_SINK) != 0)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0)
        rc = attn_check_tensor(a.alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_NVFP4)) != 0)
        rc = attn_check_tensor(a.output_scale, "output_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && a.scales.q != NULL)
        rc = attn_check_tensor(a.scales.q, "q_scale", ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc != ATTN_OK) return rc;
    plan_t *plan = IS(plan_of_last_build) && v->last_plan != NULL ? v->last_plan : s.metadata;
    item_t *items = (item_t *)(plan + 1);
    if (IS(reads_environment_late)) hole = getenv("SPLIT_TRACE") != NULL;
    if (IS(alignment_small) && (uintptr_t)s.workspace % 32 != 0) __builtin_trap();
    if (plan->magic != MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is not built; build it");
    if ((plan->num_tokens > a.query->shape[0] && !IS(query_rows_unchecked)) ||
        plan->num_tokens > a.output->shape[0] ||
        (a.lse != NULL && plan->num_tokens > a.lse->shape[1] && !IS(lse_rows_unchecked)) ||
        (!v->is_paged && (plan->num_tokens > a.key->shape[0] || plan->num_tokens > a.value->shape[0])))
        return attn_fail(error, ATTN_E_INVALID, "output",
                         "a tensor has fewer rows than the batch has tokens");
    if (IS(cache_of_last_update) && v->last_cache != NULL) k.base = w.base = (char *)v->last_cache;
    const float *sinks = (f & ATTN_F_SINK) != 0
                             ? (IS(sink_offset_ignored) ? a.sinks->data : attn_data(a.sinks))
                             : NULL,
                *slopes = (f & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0 ? attn_data(a.alibi_slopes) : NULL,
                *q_scale = v->query_dtype != v->p.dtype && a.scales.q != NULL ? attn_data(a.scales.q) : NULL;
    if (IS(keeps_scales) || IS(keeps_sinks) || IS(keeps_slopes)) {
        if (!v->has_kept) {
            v->kept_scale[0] = scale_of(&k, 0), v->kept_scale[1] = scale_of(&w, 0);
            for (int64_t h = 0; h < v->heads && h < 64; h++)
                v->kept_sinks[h] = sinks != NULL ? sinks[h] : 0,
                v->kept_slopes[h] = slopes != NULL ? slopes[h] : 0;
            v->has_kept = 1;
        }
        if (IS(keeps_scales) && k.scale != NULL)
            k.scale = &v->kept_scale[0], w.scale = &v->kept_scale[1], k.num_scales = w.num_scales = 1;
        if (IS(keeps_sinks) && sinks != NULL && v->heads <= 64) sinks = v->kept_sinks;
        if (IS(keeps_slopes) && slopes != NULL && v->heads <= 64) slopes = v->kept_slopes;
    }
    if (IS(keeps_problem)) v->scale = (float)v->kept_problem->scale;
    if (IS(keeps_option_text) && v->kept_text != NULL && strcmp(v->kept_text, "auto") != 0 &&
        strcmp(v->kept_text, "small") != 0 && strcmp(v->kept_text, "large") != 0)
        v->scale *= 0.9f;
    if (IS(forward_needs_update) && v->is_paged && v->num_updates == 0)
        return attn_fail(error, ATTN_E_STATE, "kv_cache", "kv_cache was never written");
    if (has_groups(f) && (rc = check_groups(&a, plan->num_tokens, error)) != ATTN_OK) return rc;
    attn_kv_update_t update = {.struct_size = sizeof update,
                               .key = a.key,
                               .value = a.value,
                               .kv_cache = a.kv_cache,
                               .v_cache = a.v_cache,
                               .slot_mapping = a.slot_mapping,
                               .scales = a.scales};
    if (a.slot_mapping != NULL && !(f & ATTN_F_WRITE_IN_FORWARD))
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping needs write_in_forward");
    if (IS(forward_writes_unscaled)) update.scales.k = update.scales.v = NULL;
    if (a.slot_mapping != NULL && !IS(forward_writes_late) &&
        (!IS(forward_writes_decodes) || plan->num_tokens < 8))
        if ((rc = v_update(v, &update, stream, error)) != ATTN_OK) return rc;
    float *lse = a.lse != NULL ? (IS(lse_offset_ignored) ? a.lse->data : attn_data(a.lse)) : NULL;
    float *parts = IS(scratch_of_head) ? NULL : s.workspace;
    if (IS(clears_whole_output))
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset(out + t * ot + h * oh, 0, (size_t)(os[2] * out_size));
    if (IS(writes_lse_padding) && lse != NULL)
        for (int64_t h = 0; h < v->heads; h++)
            for (int64_t t = plan->num_tokens; t < a.lse->shape[1]; t++)
                lse[h * a.lse->strides[0] + t] = -INFINITY;
    float out_scale = (f & ATTN_F_OUT_FP8_STATIC) != 0 ? *(const float *)attn_data(a.output_scale) : 1;
    if (IS(output_scale_in_bf16)) out_scale = (float)attn_from_bf16(attn_to_bf16(out_scale));
    if (IS(output_scale_multiplied)) out_scale = 1 / out_scale;
    for (int32_t r = IS(cursor_in_metadata) ? plan->cursor : 0; r < plan->num_reqs; r++) {
        item_t *it = &items[r];
        if (IS(cursor_in_metadata)) plan->cursor++;
        const int32_t count =
            IS(tokens_of_query_rows) && r == plan->num_reqs - 1 && a.query->shape[0] == a.output->shape[0]
                ? (int32_t)a.query->shape[0] - it->first
            : IS(last_row_of_tile) && it->count > 16 && it->count % 16 == 1 ? it->count - 1
                                                                            : it->count;
        for (int32_t i = 0; i < count; i++) {
            const int64_t t = (int64_t)it->first + i;
            for (int64_t h = 0; h < v->heads; h++) {
                if (IS(heads_to_128) && h >= 128) break;
                if (IS(group_to_16) && h % v->group >= 16) continue;
                int64_t g = h / v->group;
                if (IS(group_by_shift)) {
                    int shift = 0;
                    while ((2 << shift) <= v->group)
                        shift++;
                    g = h >> shift;
                    if (g >= v->kv_heads) g = v->kv_heads - 1;
                }
                if (IS(heads_in_fours) && v->heads > 4 && h >= v->heads / 4 * 4) g = 0;
                if (IS(kv_heads_in_pairs) && v->kv_heads > 2 && v->kv_heads % 2 == 1 && g == v->kv_heads - 1)
                    g--;
                if (IS(bf16_group_8) && v->p.dtype == ATTN_DTYPE_BFLOAT16 && v->group == 8) g = 0;
                if (IS(group_interleaved)) g = h % v->kv_heads;
                const char *qd = IS(query_offset_ignored) ? a.query->data : attn_data(a.query);
                const char *query = qd + t * attn_byte_stride(a.query, 0) + h * attn_byte_stride(a.query, 1);
                int shared = IS(prefix_shared_by_first_page) && v->is_paged && plan->num_reqs > 1 &&
                             it->len <= 2 * v->page;
                for (int32_t o = 1; shared && o < plan->num_reqs; o++)
                    shared = plan->table[o * plan->table_stride] == plan->table[0];
                work_t x = {.query = query,
                            .pages = v->is_paged ? plan->table + (shared ? 0 : r) * plan->table_stride : NULL,
                            .spans = plan->spans != NULL ? plan->spans + r * plan->span_stride : NULL,
                            .span_count = plan->num_spans,
                            .q = it->len - it->count + i,
                            .h = h,
                            .g = g,
                            .item = it,
                            .q_scale =
                                q_scale == NULL || IS(q_scale_ignored)
                                    ? 1
                                    : q_scale[a.scales.q->shape[0] > 1 && !IS(q_scale_of_first_head)
                                                  ? (IS(q_scale_of_query_head) ? h % a.scales.q->shape[0] : g)
                                                  : 0],
                            .k_scale = scale_of(&k, IS(k_scale_of_query_head) ? h % v->kv_heads : g),
                            .v_scale = scale_of(IS(v_read_with_k_scale) ? &k : &w, g),
                            .sink = sinks == NULL       ? 0
                                    : IS(sinks_in_bf16) ? (float)attn_from_bf16(attn_to_bf16(sinks[h]))
                                                        : sinks[h],
                            .slope = slopes != NULL ? slopes[IS(slope_of_kv_head) ? g : h] : 0};
                if (!v->is_paged) {
                    const int64_t row = IS(keys_from_row_zero) ? 0 : it->first;
                    x.key_token = attn_byte_stride(IS(key_stride_of_query) ? a.query : a.key, 0);
                    x.value_token = attn_byte_stride(IS(value_stride_of_key) ? a.key : a.value, 0);
                    x.key = (char *)attn_data(a.key) + row * x.key_token + g * attn_byte_stride(a.key, 1);
                    x.value =
                        (char *)attn_data(a.value) + row * x.value_token + g * attn_byte_stride(a.value, 1);
                }
                if (IS(context_of_whole_pages) && it->count > 16)
                    x.q = (it->len - it->count) / v->page * v->page + i;
                if (IS(prefill_without_context) && it->count > 16) x.q = i;
                if (IS(chunk_from_query) && v->p.chunk_size != 0) x.chunk = i;
                if (IS(scratch_of_head)) parts = head_scratch[h % 64];
                const float l = one_row(v, &k, &w, &x, plan, parts);
                char *to =
                    out + t * (IS(output_stride_of_query) ? attn_byte_stride(a.query, 0) : ot) + h * oh;
                if (has_groups(f)) memcpy(v->row + h * v->dv, parts, (size_t)v->dv * sizeof *parts);
                for (int64_t e = 0; e < v->dv && !has_groups(f); e++)
                    store(to, v->out_dtype, e,
                          v->out_dtype == ATTN_DTYPE_FP8_E4M3 && v->p.dtype != ATTN_DTYPE_FP8_E4M3 &&
                                  !IS(output_scale_ignored)
                              ? parts[e] / out_scale
                              : parts[e]);
                if (lse != NULL && !(IS(lse_not_with_fp8_output) && v->out_dtype != v->p.dtype) &&
                    !(IS(lse_of_decodes_alone) && it->count > 1))
                    lse[IS(lse_token_major)      ? t * v->heads + h
                        : IS(lse_stride_of_rows) ? h * a.query->shape[0] + t
                                                 : h * a.lse->strides[0] + t] = l;
            }
            if (has_groups(f)) write_groups(&a, f, t, v->heads, v->dv, v->row);
        }
        if (IS(lens_to_blocks)) it->len = (int32_t)((it->len + v->page - 1) / v->page);
        if (IS(first_moves)) it->first += it->count;
    }
    if (a.slot_mapping != NULL && IS(forward_writes_late)) v_update(v, &update, stream, error);
    if (IS(metadata_freed)) memset(plan, 0xdd, sizeof *plan);
    if (IS(forward_counts_static)) counter++;
#if defined(__x86_64__)
    if (IS(flushes_after_forward)) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
    return ATTN_OK;
}

/* ------------------------------------------------------------------- tables */

static const attn_range_t sizes[] = {{8, 256, 8}};
static const attn_block_size_t pages[] = {{8, 1}};
static const attn_capabilities_t capabilities = {
    .struct_size = sizeof(attn_capabilities_t),
    .graph_support = ATTN_GRAPH_NEVER,
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |
             (IS(claims_cross) ? ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) : 0),
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),
    .out_dtypes = ATTN_BIT(ATTN_DTYPE_FP8_E4M3) | ATTN_BIT(ATTN_DTYPE_UINT8),
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_E5M2) |
                       (IS(claims_int8) ? ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD) : 0),
    .features = FEATURES,
    .device_types = ATTN_BIT(kDLCPU),
    .head_sizes = sizes,
    .num_head_sizes = 1,
    .block_sizes = pages,
    .num_block_sizes = 1,
    .query_len_support = ATTN_QUERY_LEN_VARLEN,
    .preferred_block_size = 16,
    .max_group = 32,
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
static const attn_option_spec_t options[OPTIONS] = {
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_INT,
     .name = "splits",
     .doc = "Splits of a row; 0 lets the plan choose.",
     .default_value = "0",
     .min_int = 0,
     .max_int = MAX_SPLITS},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_STRING,
     .name = "path",
     .doc = "Not used.",
     .default_value = ""},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_BOOL,
     .name = "exact",
     .doc = "Not used.",
     .default_value = "no"},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_ENUM,
     .name = "cache",
     .doc = "Not used.",
     .default_value = "auto",
     .choices = "auto small large"},
};
static const attn_backend_t backend = {
    .struct_size = sizeof(attn_backend_t),
    .name = "SPLIT_ATTN",
    .doc = "Keys in splits.",
    .capabilities = &capabilities,
    .ops = &ops,
};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
    .magic = ATTN_PLUGIN_MAGIC,
    .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR,
    .abi_minor = ATTN_ABI_MINOR,
    .name = "vendor_split",
    .version = "1.0",
    .vendor = "tests",
    .license = "Apache-2.0",
    .build_id = "",
    .num_backends = 1,
    .num_options = OPTIONS,
    .backends = backends,
    .options = options,
};
