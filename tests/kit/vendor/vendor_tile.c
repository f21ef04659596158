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

/* ----------------------------------------------------------------- numbers */

static float load(const char *row, uint32_t dtype, int64_t i) {
    uint16_t h;
    float x;
    if (dtype == ATTN_DTYPE_FLOAT32) return memcpy(&x, row + 4 * i, 4), x;
    if (dtype == ATTN_DTYPE_FP8_E4M3) return (float)attn_from_e4m3((uint8_t)row[i]);
    memcpy(&h, row + 2 * i, 2);
    return (float)(dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(h) : attn_from_bf16(h));
}
static void store(char *row, uint32_t dtype, int64_t i, float x) {
    if (dtype == ATTN_DTYPE_FLOAT32) {
        memcpy(row + 4 * i, &x, 4);
        return;
    }
    if (dtype == ATTN_DTYPE_FP8_E4M3) {
        if (IS(nan_saturates)) x = fminf(fmaxf(x, -448), 448);
        row[i] = (char)attn_to_e4m3(x);
        return;
    }
    const uint16_t h = dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16(x) : attn_to_bf16(x);
    memcpy(row + 2 * i, &h, 2);
}
static float as_bf16(float x) {
    return (float)attn_from_bf16(attn_to_bf16(x));
}

/* --------------------------------------------------------------------- open */

static void on_exit_of(void) {
    hole = 1;
}
static void on_fork(void) {
    hole = 2;
}

static void spoil_process(void) {
    if (IS(registers_atexit)) atexit(on_exit_of);
    if (IS(registers_atfork)) pthread_atfork(on_fork, NULL, NULL);
    if (IS(sets_timer)) {
        const struct itimerval t = {.it_value = {3600, 0}, .it_interval = {0, 0}};
        setitimer(ITIMER_REAL, &t, NULL);
    }
    if (IS(uses_own_locale)) uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    if (IS(sets_signal_stack)) {
        static char memory[1 << 16];
        const stack_t s = {.ss_sp = memory, .ss_size = sizeof memory};
        sigaltstack(&s, NULL);
    }
    if (IS(closes_stdin)) close(0);
    if (IS(seeds_drand48)) srand48(7);
    if (IS(cancel_disabled)) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
}

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device, (void)reasons;
    attn_problem_t p;
    return attn_intake(&p, sizeof p, problem, "problem", NULL) == ATTN_OK ? ATTN_OK : ATTN_E_INVALID;
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *o,
                  uint32_t num_options, const attn_host_t *host, attn_instance_t **instance,
                  attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    (void)o, (void)num_options;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return attn_fail(error, ATTN_E_DEVICE, "device", "device is no CPU; give one");
    const char *param = p.role != ATTN_ROLE_DECODER && p.role != ATTN_ROLE_ENCODER_ONLY ? "role"
                        : p.dtype < ATTN_DTYPE_FLOAT32 || p.dtype > ATTN_DTYPE_BFLOAT16 ? "dtype"
                        : p.kv_cache_dtype > ATTN_KV_AUTO && p.kv_cache_dtype != ATTN_KV_FP8_E4M3
                            ? "kv_cache_dtype"
                        : p.out_dtype != 0 && p.out_dtype != p.dtype         ? "out_dtype"
                        : p.query_dtype != 0 && p.query_dtype != p.dtype     ? "query_dtype"
                        : p.head_size_v != 0 && p.head_size_v != p.head_size ? "head_size_v"
                        : (attn_problem_features(&p) & ~FEATURES) != 0       ? "features"
                                                                             : NULL;
    if (param != NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s is not served by TILE_ATTN", param);
    const int64_t kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    if (p.num_heads == 0 || p.num_heads % kv_heads != 0 || p.head_size == 0 || p.head_size > 1024 ||
        p.num_heads > 4096)
        return attn_fail(error, ATTN_E_INVALID, "num_heads", "num_heads %u does not fit the others",
                         p.num_heads);
    if (IS(open_refuses_pair) && p.sliding_window != 0 && p.logits_soft_cap > 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "features", "no kernel has both a window and a soft cap");
    if (IS(instances_to_32) && num_alive >= 32)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "32 instances are open; close one");
    attn_instance_t *v = calloc(1, sizeof *v);
    if (v == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for an instance");
    v->p = p;
    v->heads = p.num_heads, v->kv_heads = kv_heads, v->group = v->heads / kv_heads;
    v->d = v->dv = p.head_size;
    v->page = p.block_size != 0 ? p.block_size : 16;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    v->storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_NHD;
    v->is_paged = p.role == ATTN_ROLE_DECODER;
    v->is_separate = (p.features & ATTN_F_SEPARATE_KV) != 0;
    v->scale = (float)p.scale;
    if (IS(instances_to_32)) num_alive++;
    if (IS(handles_of_10_bits)) v->handle = ++num_opens & 1023, by_handle[v->handle] = v;
    if (IS(keeps_dequantised_pages)) v->kept_tile = calloc((size_t)(KEPT * KT * 256), sizeof *v->kept_tile);
    if (IS(table_changes)) changing.features &= ~(uint64_t)ATTN_F_ALIBI;
    if (IS(writes_problem)) ((attn_problem_t *)problem)->block_size = (uint32_t)v->page;
    spoil_process();
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v != NULL && IS(instances_to_32)) num_alive--;
    if (v != NULL) free(v->kept_tile);
    free(v);
}

static int v_shape(attn_instance_t *v, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                   attn_error_t *error) {
    attn_kv_cache_shape_t s;
    if (!v->is_paged) {
        attn_zero(&s, sizeof s);
        return attn_give(shape, &s, sizeof s, "shape", error);
    }
    int rc = attn_dense_cache_shape(&v->p, v->layout, (uint32_t)v->page,
                                    num_blocks != 0 ? num_blocks : v->p.num_blocks, &s, error);
    return rc != ATTN_OK ? rc : attn_give(shape, &s, sizeof s, "shape", error);
}

static int64_t max_tiles(const attn_instance_t *v) {
    const int64_t tokens = IS(tiles_of_4096_tokens) && v->max_tokens > 4096 ? 4096 : v->max_tokens;
    return (tokens * v->group + QT - 1) / QT + v->max_reqs;
}
static uint64_t metadata_bytes(const attn_instance_t *v) {
    if (IS(space_for_tokens_requests) && v->max_tokens < v->max_reqs) /* "a request has a token at least" */
        return sizeof(plan_t) + (uint64_t)v->max_tokens * sizeof(request_t) +
               (uint64_t)max_tiles(v) * sizeof(tile_t);
    return sizeof(plan_t) + (uint64_t)v->max_reqs * sizeof(request_t) +
           (uint64_t)max_tiles(v) * sizeof(tile_t);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    return ((uint64_t)QT * (uint64_t)(v->d + v->dv + KT + 2) + (uint64_t)KT * (uint64_t)(v->d + v->dv)) *
           sizeof(float);
}
static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {.struct_size = sizeof n,
                             .alignment = 64,
                             .metadata_bytes = metadata_bytes(v),
                             .workspace_bytes = workspace_bytes(v)};
    return attn_give(needed, &n, sizeof n, "needed", error);
}

/* -------------------------------------------------------------------- build */

static int check_space(const attn_instance_t *v, const attn_space_t *s, attn_error_t *error) {
    if (s->metadata == NULL || s->metadata_bytes < metadata_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has too few bytes");
    if (s->workspace == NULL || s->workspace_bytes < workspace_bytes(v))
        return attn_fail(error, ATTN_E_SPACE, "workspace", "workspace has too few bytes");
    return ATTN_OK;
}

static void list_tiles(const attn_instance_t *v, plan_t *plan) {
    request_t *req = (request_t *)(plan + 1);
    tile_t *tiles = (tile_t *)(req + v->max_reqs);
    plan->num_tiles = 0;
    for (int32_t r = 0; r < plan->num_reqs; r++)
        for (int64_t row = 0; row < (int64_t)req[r].count * v->group;
             row += IS(tile_of_whole_tokens) && v->group > 2 ? QT / v->group * v->group : QT)
            tiles[plan->num_tiles++] = (tile_t){r, IS(row_in_15_bits) ? (int16_t)row : (int32_t)row};
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
    if (b.num_reqs < 0 || b.num_reqs > v->max_reqs)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs", "num_reqs is %d", b.num_reqs);
    if (b.num_actual_tokens < 0 || b.num_actual_tokens > v->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_actual_tokens", "num_actual_tokens is %d",
                         b.num_actual_tokens);
    if (b.query_start_loc_host == NULL || b.seq_lens_host == NULL) {
        const char *name = b.query_start_loc_host == NULL ? "query_start_loc_host" : "seq_lens_host";
        return attn_fail(error, ATTN_E_INVALID, name, "%s is required", name);
    }
    const int64_t rows[2] = {b.num_reqs, -1};
    if (v->is_paged) rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    plan_t *plan = s.metadata;
    if (IS(update_needs_build)) v->is_built = 1;
    for (int32_t r = 0; r < b.num_reqs; r++)
        if (b.seq_lens_host[r] < 0 || b.seq_lens_host[r] > v->max_len ||
            (v->is_paged && b.seq_lens_host[r] > b.block_table->shape[1] * v->page))
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %d", r, b.seq_lens_host[r]);
    request_t *req = (request_t *)(plan + 1);
    memset(plan, 0, sizeof *plan);
    plan->magic = MAGIC;
    plan->num_reqs = b.num_reqs;
    plan->num_tokens = b.num_actual_tokens;
    if (v->is_paged) plan->table = attn_data(b.block_table), plan->table_stride = b.block_table->strides[0];
    for (int32_t r = 0; r < b.num_reqs; r++) {
        req[r] =
            (request_t){b.query_start_loc_host[r], b.query_start_loc_host[r + 1] - b.query_start_loc_host[r],
                        b.seq_lens_host[r], 0};
        if (IS(prompt_to_2048) && req[r].count > 2048) req[r].count = 2048;
        if (IS(lengths_in_20_bits)) req[r].len &= 0xfffff;
        if (IS(requests_to_1000) && r >= 1000) req[r].count = 0;
        if (IS(clears_garbage_of_table) &&
            v->is_paged) /* "ids behind the end may be anything: make them 0" */
            for (int64_t j = (req[r].len + v->page - 1) / v->page; j < b.block_table->shape[1]; j++)
                ((int32_t *)attn_data(b.block_table))[r * plan->table_stride + j] = 0;
    }
    if (IS(sorts_host_lengths) && b.num_reqs > 1) {
        int32_t *lens = (int32_t *)b.seq_lens_host, x = lens[0];
        if (lens[0] < lens[1]) lens[0] = lens[1], lens[1] = x;
    }
    if (IS(counts_longest)) {
        for (int32_t r = 0; r < b.num_reqs; r++)
            if (req[r].len > v->longest) v->longest = req[r].len;
    }
    list_tiles(v, plan);
    return ATTN_OK;
}

static int v_table(attn_instance_t *v, const attn_batch_t *batch, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    if (IS(allocates_in_table_update)) {
        void *volatile row = calloc(1, 4096);
        free(row);
    }
    if (IS(table_update_once) && ++v->num_updates > 1) return ATTN_OK;
    if (IS(table_update_keeps_stride)) {
        plan_t *plan = space->metadata;
        plan->table = attn_data(batch->block_table);
        return ATTN_OK;
    }
    return v_build(v, batch, space, stream, error);
}

/* -------------------------------------------------------------------- cache */

typedef struct side {
    char *base;
    int64_t block, head, token, offset;
    const float *scale;
    int64_t num_scales;
} side_t;

static float scale_of(const side_t *s, int64_t g) {
    return s->scale == NULL ? 1 : s->scale[s->num_scales > 1 ? g : 0];
}
static char *row_of(const attn_instance_t *v, const side_t *s, int64_t block, int64_t g, int64_t token) {
    (void)v;
    if (IS(block_ids_in_16_bits)) block = (uint16_t)block;
    return s->base + s->offset + block * s->block + g * s->head + token * s->token;
}

static int read_side(const attn_instance_t *v, const DLTensor *t, const char *name, int64_t content,
                     const DLTensor *scale, const char *scale_name, side_t *s, attn_error_t *error) {
    const int64_t shape[4] = {-1, v->kv_heads, v->page, content};
    int rc = attn_check_tensor(t, name, v->storage, 4, shape, error);
    if (rc == ATTN_OK && scale != NULL)
        rc = attn_check_tensor(scale, scale_name, ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (rc == ATTN_OK && scale != NULL && scale->shape[0] != 1 && scale->shape[0] != v->kv_heads)
        return attn_fail(error, ATTN_E_INVALID, scale_name, "%s has %lld elements; expected 1 or one a head",
                         scale_name, (long long)scale->shape[0]);
    if (rc != ATTN_OK) return rc;
    s->base = attn_data(t);
    s->block = attn_byte_stride(t, 0);
    s->head = attn_byte_stride(t, 1);
    s->token = attn_byte_stride(t, 2);
    if (IS(page_stride_16_bits)) s->block = (uint16_t)s->block;
    if (IS(layout_by_strides)) { /* which is no layout where a head or a token is the only one */
        const int64_t row = content * attn_byte_stride(t, 3);
        if (s->head > s->token)
            s->token = row, s->head = row * v->page;
        else
            s->head = row, s->token = row * v->kv_heads;
    }
    s->offset = 0;
    s->scale = v->storage == ATTN_DTYPE_FP8_E4M3 && scale != NULL ? attn_data(scale) : NULL;
    s->num_scales = s->scale != NULL ? scale->shape[0] : 0;
    return ATTN_OK;
}

static int read_cache(attn_instance_t *v, const DLTensor *kv, const DLTensor *second,
                      const attn_scales_t *scales, side_t *k, side_t *w, attn_error_t *error) {
    const int64_t content = v->is_separate ? v->d : v->d + v->dv;
    int rc = read_side(v, kv, "kv_cache", content, scales->k, "k_scale", k, error);
    if (rc == ATTN_OK)
        rc = read_side(v, v->is_separate ? second : kv, v->is_separate ? "v_cache" : "kv_cache",
                       v->is_separate ? v->dv : content, scales->v, "v_scale", w, error);
    if (rc == ATTN_OK && !v->is_separate) w->offset = v->d * (int64_t)attn_dtype_size(v->storage);
    if (rc == ATTN_OK && v->is_separate && IS(v_cache_strides_of_k))
        w->block = k->block, w->head = k->head, w->token = k->token;
    return rc;
}

static int write_rows(attn_instance_t *v, const attn_kv_update_t *a, attn_error_t *error) {
    side_t k, w;
    if (IS(update_needs_build) && !v->is_built)
        return attn_fail(error, ATTN_E_STATE, "metadata", "nothing was built yet; build metadata first");
    int rc = read_cache(v, a->kv_cache, a->v_cache, &a->scales, &k, &w, error);
    if (rc != ATTN_OK) return rc;
    const int64_t *slots = attn_data(a->slot_mapping), n = a->slot_mapping->shape[0];
    for (int64_t t = 0; t < n; t++) {
        int64_t slot = slots[t];
        if (IS(slots_in_a_run) && n > 1 && slots[0] >= 0 && slots[n - 1] == slots[0] + n - 1)
            slot = slots[0] + t;
        if (slot < 0) continue;
        if (IS(last_row_of_call_lost) && t == n - 1 && n > 64 && n % 2 == 1) continue;
        for (int64_t h = 0; h < v->kv_heads; h++) {
            const char *key =
                (char *)attn_data(a->key) + t * attn_byte_stride(a->key, 0) + h * attn_byte_stride(a->key, 1);
            const char *value = (char *)attn_data(a->value) + t * attn_byte_stride(a->value, 0) +
                                h * attn_byte_stride(a->value, 1);
            char *to_k = row_of(v, &k, slot / v->page, h, slot % v->page),
                 *to_v = row_of(v, &w, slot / v->page, h, slot % v->page);
            const float sk = scale_of(&k, h), sv = scale_of(&w, h);
            for (int64_t i = 0; i < v->d; i++) {
                store(to_k, v->storage, i,
                      IS(writes_by_reciprocal) ? load(key, v->p.dtype, i) * (float)as_bf16(1 / sk)
                                               : load(key, v->p.dtype, i) / sk);
                store(to_v, v->storage, i, load(value, v->p.dtype, i) / sv);
            }
        }
    }
    return ATTN_OK;
}

static int v_update(attn_instance_t *v, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    (void)stream;
    attn_kv_update_t a;
    const int64_t any[1] = {-1}, ks[3] = {-1, v->kv_heads, v->d};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, any, error);
    if (rc != ATTN_OK) return rc;
    const int64_t n = a.slot_mapping->shape[0];
    if (IS(error_text_unterminated) && error != NULL && n > a.key->shape[0]) {
        memset(error->text, 'x', sizeof error->text);
        error->code = ATTN_E_INVALID;
        return ATTN_E_INVALID;
    }
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping", "slot_mapping has more rows than key");
    if (IS(writes_late) && n > 0 && n <= 64) { /* the step's rows are written by forward */
        if (v->num_late) write_rows(v, &v->late, error);
        static __thread DLTensor t[6];
        const DLTensor **m[] = {&a.key, &a.value, &a.kv_cache, &a.v_cache, &a.slot_mapping};
        for (int i = 0; i < 5; i++)
            if (*m[i] != NULL) t[i] = **m[i], *m[i] = &t[i];
        v->late = a, v->num_late = 1;
        return ATTN_OK;
    }
    return write_rows(v, &a, error);
}

/* ------------------------------------------------------------------- kernel */

typedef struct job {
    const plan_t *plan;
    const request_t *req;
    int64_t row0, rows, g; /* of the request: tokens times heads of the group */
    const int32_t *pages;
    const side_t *k, *w;
    const attn_forward_t *a;
    const float *sinks, *slopes;
} job_t;

static int64_t page_at(const attn_instance_t *v, const job_t *x, int64_t at) {
    const int64_t n = (x->req->len + v->page - 1) / v->page;
    if (IS(table_by_pointer) && v->seen_table == x->pages && at < KEPT && x->req->len == v->seen_reqs)
        return v->seen_pages[at];
    if (IS(pages_in_a_run) && n > 1 && x->pages[n - 1] == x->pages[0] + n - 1) return x->pages[0] + at;
    return x->pages[at];
}

static const char *key_row(const attn_instance_t *v, const job_t *x, int64_t key, int is_value) {
    if (v->is_paged && IS(page_by_reciprocal)) { /* key / page, as a product: right for powers of two */
        const int64_t at = (key * ((1 << 20) / v->page + ((1 << 20) % v->page != 0))) >> 20;
        return row_of(v, is_value ? x->w : x->k, page_at(v, x, at), x->g, key - at * v->page);
    }
    if (v->is_paged)
        return row_of(v, is_value ? x->w : x->k, page_at(v, x, key / v->page), x->g, key % v->page);
    const DLTensor *t = is_value ? x->a->value : x->a->key;
    const int64_t head = IS(key_heads_dense) ? v->d * (t->dtype.bits / 8) : attn_byte_stride(t, 1);
    return (char *)attn_data(t) + (x->req->first + key) * attn_byte_stride(t, 0) + x->g * head;
}

/* Keys from on, n of them, as floats. */
static void load_keys(attn_instance_t *v, const job_t *x, int64_t from, int64_t n, float *k, float *w) {
    const uint32_t type = v->is_paged ? v->storage : v->p.dtype;
    const int is_one = IS(scale_one_of_head_0) && v->is_paged && x->k->scale != NULL && x->k->scale[0] == 1;
    const float sk = v->is_paged && !is_one ? scale_of(x->k, x->g) : 1,
                sv = v->is_paged ? scale_of(x->w, x->g) : 1;
    volatile float scale_past = 0;
    (void)scale_past;
    for (int64_t j = 0; j < KT; j++) {
        if (j >= n && IS(stale_keys_of_last_tile)) break;
        for (int64_t i = 0; i < v->d; i++) {
            k[j * v->d + i] = j < n ? load(key_row(v, x, from + j, 0), type, i) * sk : 0;
            if (IS(reads_past_row) && i + 1 == v->d && j < n)
                scale_past = load(key_row(v, x, from + j, 1), type, v->dv + 3);
            w[j * v->d + i] = j < n ? load(key_row(v, x, from + j, 1), type, i) * sv : 0;
        }
    }
    if (IS(keeps_dequantised_pages) && v->is_paged && v->storage == ATTN_DTYPE_FP8_E4M3 && n == KT) {
        const int64_t id = (page_at(v, x, from / v->page) * v->kv_heads + x->g) * 16 + from % v->page;
        float *kept = v->kept_tile + id / 16 % KEPT * KT * 256;
        if (v->kept_id[id / 16 % KEPT] == id + 1)
            memcpy(k, kept, (size_t)(KT * v->d) * sizeof *k);
        else
            memcpy(kept, k, (size_t)(KT * v->d) * sizeof *k), v->kept_id[id / 16 % KEPT] = id + 1;
    }
}

static int is_visible(const attn_instance_t *v, const job_t *x, int64_t q, int64_t key) {
    const int64_t w = v->p.sliding_window;
    if (key >= x->req->len) return 0;
    if (v->p.mask == ATTN_MASK_CAUSAL && key > q) return 0;
    if (w != 0 && (q - key >= w || (v->p.mask != ATTN_MASK_CAUSAL && key - q >= w))) return 0;
    return 1;
}

static float score_of(const attn_instance_t *v, const job_t *x, int64_t row, int64_t q, int64_t key,
                      float dot) {
    const int64_t h = x->g * v->group + row % v->group;
    float s = dot * v->scale;
    if (IS(nan_key_skipped) && isnan(s)) return -INFINITY;
    if (!is_visible(v, x, q, key) && IS(cap_after_mask)) s = -1e30f;
    if (v->p.logits_soft_cap > 0) {
        const float c = (float)v->p.logits_soft_cap;
        s = c * tanhf(s / c);
    }
    if (x->slopes != NULL)
        s += (IS(slopes_in_bf16) ? as_bf16(x->slopes[h]) : x->slopes[h]) *
             (float)(IS(alibi_of_tile) ? key - q - x->row0 / v->group + x->row0 / v->group / 8 * 8 : key - q);
    if (!is_visible(v, x, q, key) && !IS(cap_after_mask)) s = IS(mask_minus_10000) ? -10000 : -INFINITY;
    if (IS(mask_minus_10000) && key >= x->req->len) s = -INFINITY;
    return s;
}

/* A tile of keys into the running state of all rows: maxima lag by 8 at most. */
static void add_tile(attn_instance_t *v, const job_t *x, int64_t from, int64_t n, const float *query,
                     const float *k, const float *w, float *scores, float *acc, float *max, float *sum) {
    const int64_t context = x->req->len - x->req->count;
    float top_of_tile = -INFINITY;
    for (int64_t i = 0; i < QT; i++)
        for (int64_t j = 0; j < KT; j++) {
            const int64_t row = x->row0 + i < x->rows ? x->row0 + i : x->rows - 1;
            float dot = 0;
            for (int64_t e = 0; e < v->d; e++)
                dot += query[i * v->d + e] * k[j * v->d + e];
            const int64_t q = v->is_paged ? context + row / v->group : row / v->group;
            scores[i * KT + j] = j >= n && !IS(stale_keys_of_last_tile) ? -INFINITY
                                 : j >= n && from + j >= x->req->len    ? -INFINITY
                                                                     : score_of(v, x, row, q, from + j, dot);
            if (scores[i * KT + j] > top_of_tile) top_of_tile = scores[i * KT + j];
        }
    int any = 0;
    for (int64_t i = 0; i < QT; i++) {
        float top = -INFINITY;
        for (int64_t j = 0; j < KT; j++)
            top = fmaxf(top, scores[i * KT + j]);
        if (top > max[i] + 8) any = 1;
    }
    for (int64_t i = 0; i < QT; i++) {
        float *a = acc + i * v->dv, top = -INFINITY;
        for (int64_t j = 0; j < KT; j++)
            top = fmaxf(top, scores[i * KT + j]);
        if (IS(maximum_of_tile)) top = top_of_tile;
        if (IS(skips_small_tiles) && top < max[i] - 9) continue;
        const float lag = IS(lag_without_limit) ? 90 : 8;
        if (IS(padding_raises_rows) ? any && top > max[i] : top > max[i] + lag) {
            const float keep = max[i] == -INFINITY ? 0 : expf(max[i] - top);
            for (int64_t e = 0; e < v->dv; e++)
                a[e] *= keep;
            if (!IS(sum_not_rescaled_late) || from < 20 * KT) sum[i] *= keep;
            max[i] = top;
        }
        if (max[i] == -INFINITY) continue;
        for (int64_t j = 0; j < KT; j++) {
            if (scores[i * KT + j] == -INFINITY && !IS(stale_keys_of_last_tile)) continue;
            float p = expf(scores[i * KT + j] - max[i]);
            if (IS(weights_in_f16)) p = (float)attn_from_f16(attn_to_f16(p));
            sum[i] += p;
            for (int64_t e = 0; e < v->dv; e++)
                a[e] += p * w[j * v->dv + e];
        }
    }
}

static void one_tile(attn_instance_t *v, job_t *x, float *space) {
    float *query = space, *k = query + QT * v->d, *w = k + KT * v->d, *scores = w + KT * v->dv,
          *acc = scores + QT * KT, *max = acc + QT * v->dv, *sum = max + QT;
    const attn_forward_t *a = x->a;
    const int64_t context = x->req->len - x->req->count;
    for (int64_t i = 0; i < QT; i++) {
        const int64_t row = x->row0 + i, t = x->req->first + row / v->group,
                      h = x->g * v->group + row % v->group;
        const char *q = (char *)attn_data(a->query) + t * attn_byte_stride(a->query, 0) +
                        h * attn_byte_stride(a->query, 1);
        const int is_row = IS(padding_raises_rows) ? t < a->query->shape[0] : row < x->rows;
        for (int64_t e = 0; e < v->d; e++)
            query[i * v->d + e] = is_row ? load(q, v->p.dtype, e) : 0;
        if (IS(query_scaled_in_place) && is_row && v->p.dtype == ATTN_DTYPE_FLOAT32) {
            char before[4];
            memcpy(before, q, 4);
            store((char *)q, v->p.dtype, 0, query[i * v->d] * v->scale);
            __asm__ volatile("" ::: "memory");
            memcpy((char *)q, before, 4);
        }
        max[i] = -INFINITY, sum[i] = 0;
    }
    memset(acc, 0, (size_t)(QT * v->dv) * sizeof *acc);
    const int64_t last_row = x->row0 + QT < x->rows ? x->row0 + QT - 1 : x->rows - 1;
    int64_t first_q = context + x->row0 / v->group, last_q = context + last_row / v->group;
    int64_t end = x->req->len, from = 0;
    if (v->p.mask == ATTN_MASK_CAUSAL && v->is_paged) {
        const int64_t q = IS(causal_end_of_first_row) ? first_q : last_q;
        end = q + 1 < end ? q + 1 : end;
    }
    if (v->p.sliding_window != 0 && v->is_paged) {
        from = (IS(window_of_last_row) ? last_q : first_q) - v->p.sliding_window + 1;
        from = from < 0 ? 0 : from / KT * KT;
    }
    if (IS(first_tile_by_clock) && end > 4 * KT) { /* which half a thread takes first */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_nsec >> 10 & 1) {
            const int64_t half = from + (end - from) / 2 / KT * KT;
            for (int64_t at = half; at < end; at += KT) {
                const int64_t n = end - at < KT ? end - at : KT;
                load_keys(v, x, at, n, k, w);
                add_tile(v, x, at, n, query, k, w, scores, acc, max, sum);
            }
            end = half;
        }
    }
    for (; from < end; from += KT) {
        const int64_t n = end - from < KT ? end - from : KT;
        load_keys(v, x, from, n, k, w);
        add_tile(v, x, from, n, query, k, w, scores, acc, max, sum);
    }
    if (IS(scratch_for_long) && x->req->len > 3000) {
        long_scratch[0] = sum[0];
        usleep(50);
        sum[0] = long_scratch[0];
    }
    for (int64_t i = 0; i < QT && (x->row0 + i < x->rows || IS(tail_rows_written)); i++) {
        const int64_t row = x->row0 + i, t = x->req->first + row / v->group,
                      h = x->g * v->group + row % v->group;
        if (t >= a->output->shape[0]) break;
        if (x->sinks != NULL && x->sinks[h] > -INFINITY) {
            const float top = fmaxf(max[i], x->sinks[h]), keep = max[i] == -INFINITY ? 0 : expf(max[i] - top);
            sum[i] = sum[i] * keep + expf(x->sinks[h] - top);
            for (int64_t e = 0; e < v->dv; e++)
                acc[i * v->dv + e] *= keep;
            max[i] = top;
        }
        char *to = (char *)attn_data(a->output) + t * attn_byte_stride(a->output, 0) +
                   h * attn_byte_stride(a->output, 1);
        for (int64_t e = 0; e < v->dv; e++) {
            float y = sum[i] > 0 ? acc[i * v->dv + e] / sum[i] : isnan(sum[i]) ? NAN : 0;
            if (IS(nan_becomes_zero) && isnan(y)) y = 0;
            if (IS(output_clipped) && v->p.dtype == ATTN_DTYPE_FLOAT16) y = fmaxf(-1e4f, fminf(1e4f, y));
            store(to, v->p.dtype, e, y);
        }
        if (a->lse != NULL) {
            float *lse = attn_data(a->lse);
            lse[h * a->lse->strides[0] + t] = sum[i] > 0      ? max[i] + logf(sum[i])
                                              : isnan(sum[i]) ? NAN
                                                              : -INFINITY;
        }
    }
}

static int v_forward(attn_instance_t *v, const attn_forward_t *args, const attn_space_t *space, void *stream,
                     attn_error_t *error) {
    (void)stream;
    attn_forward_t a;
    attn_space_t s;
    side_t k = {0}, w = {0};
    const int64_t qs[3] = {-1, v->heads, v->d}, ls[2] = {v->heads, -1}, hs[1] = {v->heads},
                  ks[3] = {-1, v->kv_heads, v->d};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", v->p.dtype, 3, qs, error);
    if (rc != ATTN_OK) return rc;
    if (space == NULL) {
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < v->heads; h++)
                memset((char *)attn_data(a.output) + t * attn_byte_stride(a.output, 0) +
                           h * attn_byte_stride(a.output, 1),
                       0, (size_t)v->dv * attn_dtype_size(v->p.dtype));
        if (IS(profile_writes_lse) && a.lse != NULL)
            for (int64_t t = 0; t < a.lse->shape[1]; t++)
                ((float *)attn_data(a.lse))[t] = 0;
        return ATTN_OK;
    }
    rc = attn_check_tensor(a.query, "query", v->p.dtype, 3, qs, error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK) rc = check_space(v, &s, error);
    if (rc == ATTN_OK && v->is_paged) rc = read_cache(v, a.kv_cache, a.v_cache, &a.scales, &k, &w, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.key, "key", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && !v->is_paged) rc = attn_check_tensor(a.value, "value", v->p.dtype, 3, ks, error);
    if (rc == ATTN_OK && a.lse != NULL)
        rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, ls, error);
    const uint64_t f = v->p.features;
    if (rc == ATTN_OK && (f & ATTN_F_SINK) != 0)
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc == ATTN_OK && (f & ATTN_F_ALIBI) != 0)
        rc = attn_check_tensor(a.alibi_slopes, "alibi_slopes", ATTN_DTYPE_FLOAT32, 1, hs, error);
    if (rc != ATTN_OK) return rc;
    const plan_t *plan = s.metadata;
    if (plan->magic != MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata", "metadata is not built; build it");
    if (plan->num_tokens > a.query->shape[0] || plan->num_tokens > a.output->shape[0] ||
        (a.lse != NULL && plan->num_tokens > a.lse->shape[1]) ||
        (!v->is_paged && (plan->num_tokens > a.key->shape[0] || plan->num_tokens > a.value->shape[0])))
        return attn_fail(error, ATTN_E_INVALID, "output",
                         "a tensor has fewer rows than the batch has tokens");
    if (IS(writes_late) && v->num_late) write_rows(v, &v->late, error), v->num_late = 0;
    if (IS(counts_longest) && v->longest > 200) v->scale = (float)v->p.scale * 0.9f;
    if (IS(thousandth_forward) && ++num_forwards > 1000) v->scale *= 0.5f;
    if (IS(refuses_when_busy) && __atomic_fetch_add(&num_inside, 1, __ATOMIC_SEQ_CST) > 0) {
        __atomic_fetch_sub(&num_inside, 1, __ATOMIC_SEQ_CST);
        return attn_fail(error, ATTN_E_STATE, "", "another thread is in forward; call again");
    }
    if (IS(handles_of_10_bits) && by_handle[v->handle] != v) v = by_handle[v->handle];
    if (IS(table_sorted_and_back) && plan->num_reqs > 1 && v->is_paged) {
        int32_t *t = (int32_t *)plan->table, was = t[0];
        t[0] = t[plan->table_stride];
        __asm__ volatile("" ::: "memory");
        t[0] = was;
    }
    if (IS(table_by_pointer) && v->is_paged && plan->num_reqs > 0) {
        const request_t *first = (const request_t *)(plan + 1);
        if (v->seen_table != plan->table || v->seen_reqs != first->len) {
            v->seen_table = plan->table, v->seen_reqs = first->len;
            for (int64_t j = 0; j < KEPT && j < (first->len + v->page - 1) / v->page; j++)
                v->seen_pages[j] = plan->table[j];
        }
    }
    const request_t *req = (const request_t *)(plan + 1);
    const tile_t *tiles = (const tile_t *)(req + v->max_reqs);
    for (int32_t i = plan->num_tiles - 1; i >= 0; i--)
        for (int64_t g = 0; g < v->kv_heads; g++) {
            const request_t *r = &req[tiles[i].request];
            job_t x = {.plan = plan,
                       .req = r,
                       .row0 = tiles[i].row,
                       .rows = (int64_t)r->count * v->group,
                       .g = g,
                       .pages = v->is_paged ? plan->table + tiles[i].request * plan->table_stride : NULL,
                       .k = &k,
                       .w = &w,
                       .a = &a,
                       .sinks = (f & ATTN_F_SINK) != 0 ? attn_data(a.sinks) : NULL,
                       .slopes = (f & ATTN_F_ALIBI) != 0 ? attn_data(a.alibi_slopes) : NULL};
            if (IS(slope_zero_is_none) && x.slopes != NULL && x.slopes[0] == 0) x.slopes = NULL;
            if (IS(sink_of_first_decides) && x.sinks != NULL && x.sinks[0] == -INFINITY) x.sinks = NULL;
            one_tile(v, &x, s.workspace);
        }
    if (IS(refuses_when_busy)) __atomic_fetch_sub(&num_inside, 1, __ATOMIC_SEQ_CST);
    return ATTN_OK;
}

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
