/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fake.c: a plugin for the tests of groups and layers. FAKE_PLAIN computes attention over a float32
 * cache in the simplest way, knows none of the families that the core can rewrite, and remembers what it was
 * given. FAKE_NOOP does nothing, FAKE_BAD what its option says.
 */
#include "layer_fake.h"

#include <attn/attn_merge.h>
#include <attn/attn_plan.h>
#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>

enum {
    MODE_OK,
    MODE_OPEN_FAILS,
    MODE_NO_INSTANCE,
    MODE_NAN,
    MODE_OVERRUN,
    MODE_WRONG,
    MODE_BAD_SHAPE,
    MODE_SPACE_FAILS,
    MODE_READ_WORKSPACE,
    MODE_TOUCH_PADDING,
    MODE_FAILS,
    MODE_DS_MLA
};

struct attn_instance {
    struct fake_log log;
    attn_problem_t p;
    int mode;
};

struct metadata {
    int32_t num_reqs, num_tokens;
    const int32_t *starts, *lens, *table;
    int64_t columns;
};

static int open_instance(const attn_problem_t *problem, const attn_device_t *device,
                         const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                         attn_instance_t **instance, attn_error_t *error) {
    int mode = num_options > 1 ? (int)options[1].i : 0;
    (void)device;
    if (mode == MODE_OPEN_FAILS)
        return attn_fail(error, ATTN_E_DEVICE, "device", "the fake device is on strike");
    if (mode == MODE_NO_INSTANCE) return ATTN_OK;
    attn_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory");
    in->p = in->log.problem = *problem;
    in->mode = mode;
    in->log.opens++;
    in->log.splits = num_options > 0 ? options[0].i : -1;
    in->log.plan = host->get_extension(host->ctx, ATTN_PLAN_EXTENSION);
    in->log.merge = host->get_extension(host->ctx, ATTN_MERGE_EXTENSION);
    in->log.unknown_extension = host->get_extension(host->ctx, "attn.ext.nothing/9");
    host->log(host->ctx, ATTN_LOG_INFO, "fake opened");
    *instance = in;
    return ATTN_OK;
}

static void close_instance(attn_instance_t *in) {
    free(in);
}

static int cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error) {
    if (attn_role_is_mla(in->p.role)) {
        attn_zero(shape, sizeof *shape);
        shape->struct_size = sizeof *shape;
        shape->ndim = 3;
        shape->shape[0] = num_blocks, shape->shape[1] = in->p.block_size, shape->shape[2] = in->p.head_size;
        shape->axes[0] = ATTN_AXIS_BLOCK, shape->axes[1] = ATTN_AXIS_TOKEN,
        shape->axes[2] = ATTN_AXIS_CONTENT;
        shape->dtype = attn_dl_dtype(attn_kv_storage(in->p.kv_cache_dtype, in->p.dtype));
        shape->block_size = in->p.block_size;
        shape->fingerprint = 77;
        if (in->mode == MODE_DS_MLA) shape->shape[2] = 656, shape->dtype = attn_dl_dtype(ATTN_DTYPE_UINT8);
        shape->page_bytes = shape->shape[1] * shape->shape[2] * (shape->dtype.bits / 8);
        return ATTN_OK;
    }
    int code = attn_dense_cache_shape(&in->p, ATTN_LAYOUT_NHD, in->p.block_size, num_blocks, shape, error);
    if (in->mode == MODE_BAD_SHAPE) shape->ndim = 0;
    return code;
}

/* Pages of the same size whose bytes mean something else. */
static int other_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error) {
    const int code = cache_shape(in, num_blocks, shape, error);
    shape->fingerprint ^= 1;
    return code;
}

static int space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error) {
    if (in->mode == MODE_SPACE_FAILS) return attn_fail(error, ATTN_E_INTERNAL, "", "no idea");
    needed->alignment = 64;
    needed->metadata_bytes = sizeof(struct metadata);
    needed->workspace_bytes = 64;
    needed->host_bytes = 0;
    needed->weight_bytes = attn_problem_projects(&in->p) ? 16 : 0;
    return ATTN_OK;
}

static void remember(attn_instance_t *in, const attn_batch_t *b, const struct metadata *m) {
    struct fake_log *log = &in->log;
    log->num_reqs = b->num_reqs;
    log->max_query_len = b->max_query_len;
    log->max_seq_len = b->max_seq_len;
    log->common_prefix_len = b->common_prefix_len;
    log->has_encoder_lens = b->encoder_seq_lens_host != NULL || b->encoder_seq_lens != NULL;
    log->table_columns = (int)m->columns;
    for (int r = 0; r < b->num_reqs && r < FAKE_MAX - 1; r++) {
        log->starts[r + 1] = m->starts[r + 1];
        log->lens[r] = m->lens[r];
    }
    for (int64_t i = 0; m->table != NULL && i < b->num_reqs * m->columns && i < FAKE_MAX; i++)
        log->table[i] = m->table[i];
}

static int plan_batch(attn_instance_t *in, const attn_batch_t *b, const attn_space_t *space) {
    struct metadata m = {
        b->num_reqs, b->num_actual_tokens, b->query_start_loc_host, b->seq_lens_host, NULL, 0};
    /* The tensors must say what the host arrays say. */
    if (b->query_start_loc != NULL) m.starts = (const int32_t *)attn_data(b->query_start_loc);
    if (b->seq_lens != NULL) m.lens = (const int32_t *)attn_data(b->seq_lens);
    if (b->block_table != NULL) {
        m.table = (const int32_t *)attn_data(b->block_table);
        m.columns = b->block_table->strides[0];
    }
    memcpy(space->metadata, &m, sizeof m);
    remember(in, b, &m);
    return ATTN_OK;
}

static int build_metadata(attn_instance_t *in, const attn_batch_t *b, const attn_space_t *space, void *stream,
                          attn_error_t *error) {
    (void)stream, (void)error;
    in->log.builds++;
    return plan_batch(in, b, space);
}

static int update_block_table(attn_instance_t *in, const attn_batch_t *b, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    (void)stream, (void)error;
    in->log.table_updates++;
    return plan_batch(in, b, space);
}

static float number(const DLTensor *t) {
    return t != NULL ? *(const float *)attn_data(t) : 1;
}

static void remember_scales(attn_instance_t *in, const attn_scales_t *s) {
    in->log.q_scale = number(s->q);
    in->log.k_scale = number(s->k);
    in->log.v_scale = number(s->v);
}

static float *element(const DLTensor *t, int64_t i, int64_t j, int64_t k) {
    return (float *)((char *)attn_data(t) + i * attn_byte_stride(t, 0) + j * attn_byte_stride(t, 1) + k * 4);
}

/* Row of one token and head in the dense cache [nb, Hkv, bs, D + Dv]. */
static float *cache_row(const attn_instance_t *in, const DLTensor *cache, int64_t slot, int64_t head) {
    int64_t bs = in->p.block_size;
    return (float *)((char *)attn_data(cache) + slot / bs * attn_byte_stride(cache, 0) +
                     head * attn_byte_stride(cache, 1) + slot % bs * attn_byte_stride(cache, 2));
}

static int update_kv_cache(attn_instance_t *in, const attn_kv_update_t *a, void *stream,
                           attn_error_t *error) {
    (void)stream, (void)error;
    const int64_t *slot = (const int64_t *)attn_data(a->slot_mapping);
    in->log.cache_updates++;
    in->log.update_count = a->slot_mapping->shape[0];
    remember_scales(in, &a->scales);
    for (int64_t i = 0; i < a->slot_mapping->shape[0]; i++) {
        if (i < FAKE_MAX) in->log.update_slots[i] = slot[i];
        if (slot[i] < 0 || in->p.dtype != ATTN_DTYPE_FLOAT32 || attn_role_is_mla(in->p.role)) continue;
        if (attn_kv_storage(in->p.kv_cache_dtype, in->p.dtype) != ATTN_DTYPE_FLOAT32) continue;
        for (uint32_t h = 0; h < in->p.num_kv_heads; h++) {
            float *row = cache_row(in, a->kv_cache, slot[i], h);
            memcpy(row, element(a->key, i, h, 0), in->p.head_size * 4);
            memcpy(row + in->p.head_size, element(a->value, i, h, 0), in->p.head_size_v * 4);
        }
    }
    return ATTN_OK;
}

/* K and V of key number k of request r: from the cache, or from the call. */
static void key_of(const attn_instance_t *in, const attn_forward_t *a, const struct metadata *m, int r,
                   int64_t k, uint32_t head, const float **key, const float **value) {
    if (a->kv_cache != NULL) {
        int64_t bs = in->p.block_size, slot = (int64_t)m->table[r * m->columns + k / bs] * bs + k % bs;
        *key = cache_row(in, a->kv_cache, slot, head);
        *value = *key + in->p.head_size;
    } else {
        *key = element(a->key, m->starts[r] + k, head, 0);
        *value = element(a->value, m->starts[r] + k, head, 0);
    }
}

static void attend(const attn_instance_t *in, const attn_forward_t *a, const struct metadata *m, int r,
                   int32_t t, uint32_t h) {
    const attn_problem_t *p = &in->p;
    int64_t len = m->lens[r], position = len - (m->starts[r + 1] - t),
            visible = p->mask == ATTN_MASK_CAUSAL ? position + 1 : len;
    double sum = 0, top = -INFINITY, acc[64] = {0};
    const float *q = element(a->query, t, h, 0), *key, *value;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t k = 0; k < visible; k++) {
            double s = 0;
            key_of(in, a, m, r, k, h / (p->num_heads / p->num_kv_heads), &key, &value);
            for (uint32_t d = 0; d < p->head_size; d++)
                s += (double)q[d] * key[d];
            s *= p->scale;
            if (pass == 0) {
                top = s > top ? s : top;
                continue;
            }
            sum += exp(s - top);
            for (uint32_t d = 0; d < p->head_size_v && d < 64; d++)
                acc[d] += exp(s - top) * value[d];
        }
    }
    float *out = element(a->output, t, h, 0);
    for (uint32_t d = 0; d < p->head_size_v && d < 64; d++)
        out[d] = sum > 0 ? (float)(acc[d] / sum) : 0;
    if (in->mode == MODE_NAN) out[0] = NAN;
    if (in->mode == MODE_WRONG) out[0] += 0.5f;
    if (a->lse != NULL) *element(a->lse, h, t, 0) = sum > 0 ? (float)(top + log(sum)) : -INFINITY;
}

static int forward(attn_instance_t *in, const attn_forward_t *a, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    struct metadata m;
    (void)stream, (void)error;
    if (space == NULL) {
        in->log.profiling_runs++;
        for (int64_t t = 0; t < a->output->shape[0]; t++)
            for (int64_t h = 0; h < a->output->shape[1]; h++)
                memset((char *)attn_data(a->output) + t * attn_byte_stride(a->output, 0) +
                           h * attn_byte_stride(a->output, 1),
                       0, (size_t)a->output->shape[2] * a->output->dtype.bits / 8);
        return ATTN_OK;
    }
    memcpy(&m, space->metadata, sizeof m);
    in->log.forwards++;
    in->log.sinks = a->sinks;
    in->log.slopes = a->alibi_slopes;
    in->log.rel_bias = a->rel_bias;
    in->log.weight_space = a->weight_space;
    in->log.slots = a->slot_mapping;
    remember_scales(in, &a->scales);
    if (in->mode == MODE_FAILS) return attn_fail(error, ATTN_E_DEVICE, "", "the fake kernel is on strike");
    if (in->mode == MODE_TOUCH_PADDING && a->output->shape[0] > m.num_tokens)
        *element(a->output, m.num_tokens, 0, 0) = 1;
    if (in->mode == MODE_OVERRUN) ((char *)space->workspace)[64] = 1;
    if (in->mode == MODE_READ_WORKSPACE) *(float *)attn_data(a->output) = *(const float *)space->workspace;
    if (in->p.dtype != ATTN_DTYPE_FLOAT32 || attn_role_is_mla(in->p.role) || in->mode == MODE_READ_WORKSPACE)
        return ATTN_OK;
    if (attn_kv_storage(in->p.kv_cache_dtype, in->p.dtype) != ATTN_DTYPE_FLOAT32) return ATTN_OK;
    for (int r = 0; r < m.num_reqs; r++)
        for (int32_t t = m.starts[r]; t < m.starts[r + 1]; t++)
            for (uint32_t h = 0; h < in->p.num_heads; h++)
                attend(in, a, &m, r, t, h);
    return ATTN_OK;
}

static int prepare_weights(attn_instance_t *in, const attn_weights_t *w, void *stream, attn_error_t *error) {
    (void)w, (void)stream, (void)error;
    in->log.weight_runs++;
    return ATTN_OK;
}

static const void *get_extension(attn_instance_t *in, const char *id) {
    return in != NULL && strcmp(id, FAKE_LOG) == 0 ? &in->log : NULL;
}

static int noop_build(attn_instance_t *in, const attn_batch_t *b, const attn_space_t *s, void *stream,
                      attn_error_t *error) {
    (void)in, (void)b, (void)s, (void)stream, (void)error;
    return ATTN_OK;
}

static int noop_update(attn_instance_t *in, const attn_kv_update_t *a, void *stream, attn_error_t *error) {
    (void)in, (void)a, (void)stream, (void)error;
    return ATTN_OK;
}

static int noop_forward(attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s, void *stream,
                        attn_error_t *error) {
    (void)in, (void)a, (void)s, (void)stream, (void)error;
    return ATTN_OK;
}

static const attn_block_size_t any_multiple[] = {{4, 1}};

#define CAPABILITIES                                                                                         \
    .struct_size = sizeof(attn_capabilities_t), .graph_support = ATTN_GRAPH_NEVER,                           \
    .roles = ATTN_BIT(ATTN_ROLE_DECODER) | ATTN_BIT(ATTN_ROLE_ENCODER) | ATTN_BIT(ATTN_ROLE_ENCODER_ONLY) |  \
             ATTN_BIT(ATTN_ROLE_ENCODER_DECODER) | ATTN_BIT(ATTN_ROLE_MLA) |                                 \
             ATTN_BIT(ATTN_ROLE_MLA_SPARSE) | ATTN_BIT(ATTN_ROLE_MM_ENCODER),                                \
    .dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_BFLOAT16),                                  \
    .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FLOAT32) | ATTN_BIT(ATTN_KV_BFLOAT16) |     \
                       ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_FP8_E5M2) |                             \
                       ATTN_BIT(ATTN_KV_INT8_PER_TOKEN_HEAD) | ATTN_BIT(ATTN_KV_FP8_DS_MLA) |                \
                       ATTN_BIT(ATTN_KV_INT8_STATIC_V),                                                      \
    .block_sizes = any_multiple, .num_block_sizes = 1, .preferred_block_size = 4
#define FEATURES                                                                                             \
    (ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_REL_BIAS | ATTN_F_LSE | ATTN_F_PER_HEAD_SCALES |                    \
     ATTN_F_WRITE_IN_FORWARD | ATTN_F_QUANT_QUERY | ATTN_F_CASCADE | ATTN_F_DIFF_KV | ATTN_F_MM_PREFIX |     \
     ATTN_F_RSWA | ATTN_F_CAPTURE | ATTN_F_SEPARATE_KV | ATTN_F_SLIDING_WINDOW | ATTN_F_CHUNK_LOOKBACK |     \
     ATTN_F_PER_REQUEST_CAUSAL | ATTN_F_CONTIGUOUS_KV | ATTN_F_WEIGHTS | ATTN_F_LATENT | ATTN_F_NON_CAUSAL)
#define ON_CPU  .features = FEATURES, .device_types = ATTN_BIT(kDLCPU)
#define ON_CUDA .device_types = ATTN_BIT(kDLCUDA)

static const attn_capabilities_t plain_capabilities = {CAPABILITIES, ON_CPU};
static const attn_capabilities_t includes_capabilities = {CAPABILITIES, ON_CPU, .forward_writes_cache = 1};
static const attn_capabilities_t ordered_capabilities = {CAPABILITIES, ON_CPU, .reorder_threshold = 3};
static const attn_range_t head_64[] = {{64, 64, 1}};
static const attn_capabilities_t narrow_capabilities = {CAPABILITIES, ON_CPU, .head_sizes = head_64,
                                                        .num_head_sizes = 1};
static const attn_capabilities_t cuda_capabilities = {CAPABILITIES, ON_CUDA, .features = FEATURES};
static const attn_capabilities_t cuda_sink_capabilities = {
    CAPABILITIES, ON_CUDA, .features = FEATURES | ATTN_F_STATIC_SINK | ATTN_F_CHUNKED_LOCAL};

static const attn_backend_ops_t plain_ops = {.struct_size = sizeof plain_ops,
                                             .open = open_instance,
                                             .close = close_instance,
                                             .kv_cache_shape = cache_shape,
                                             .space_needed = space_needed,
                                             .build_metadata = build_metadata,
                                             .update_block_table = update_block_table,
                                             .update_kv_cache = update_kv_cache,
                                             .forward = forward,
                                             .prepare_weights = prepare_weights,
                                             .get_extension = get_extension};
/* Without the optional operations. */
static const attn_backend_ops_t noop_ops = {.struct_size = sizeof noop_ops,
                                            .open = open_instance,
                                            .close = close_instance,
                                            .kv_cache_shape = cache_shape,
                                            .space_needed = space_needed,
                                            .build_metadata = noop_build,
                                            .update_kv_cache = noop_update,
                                            .forward = noop_forward};
static const attn_backend_ops_t bare_ops = {.struct_size = sizeof bare_ops,
                                            .open = open_instance,
                                            .close = close_instance,
                                            .kv_cache_shape = cache_shape,
                                            .space_needed = space_needed,
                                            .build_metadata = build_metadata,
                                            .forward = forward,
                                            .get_extension = get_extension};

static const attn_backend_ops_t other_ops = {.struct_size = sizeof other_ops,
                                             .open = open_instance,
                                             .close = close_instance,
                                             .kv_cache_shape = other_shape,
                                             .space_needed = space_needed,
                                             .build_metadata = build_metadata,
                                             .update_kv_cache = update_kv_cache,
                                             .forward = forward,
                                             .get_extension = get_extension};

#define BACKEND(VARIABLE, NAME, CAPS, OPS)                                                                   \
    static const attn_backend_t VARIABLE = {.struct_size = sizeof VARIABLE,                                  \
                                            .name = NAME,                                                    \
                                            .doc = "for tests",                                              \
                                            .capabilities = &(CAPS),                                         \
                                            .ops = &(OPS)}
BACKEND(plain, "FAKE_PLAIN", plain_capabilities, plain_ops);
BACKEND(noop, "FAKE_NOOP", plain_capabilities, noop_ops);
BACKEND(bare, "FAKE_BARE", plain_capabilities, bare_ops);
BACKEND(includes, "FAKE_INCLUDES", includes_capabilities, plain_ops);
BACKEND(cuda, "FAKE_CUDA", cuda_capabilities,
        noop_ops); /* never looks at memory, so that any pointer will do */
BACKEND(cuda_sink, "FAKE_CUDA_SINK", cuda_sink_capabilities, noop_ops);
BACKEND(other, "FAKE_OTHER_PAGES", plain_capabilities, other_ops);
BACKEND(ordered, "FAKE_ORDERED", ordered_capabilities, plain_ops);
BACKEND(narrow, "FAKE_NARROW", narrow_capabilities, plain_ops);
static const attn_backend_t *const backends[] = {&plain,     &noop,  &bare,    &includes, &cuda,
                                                 &cuda_sink, &other, &ordered, &narrow};

static const attn_option_spec_t options[] = {
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_INT,
     .name = "splits",
     .doc = "a number",
     .default_value = "3"},
    {.struct_size = sizeof(attn_option_spec_t),
     .type = ATTN_OPTION_ENUM,
     .name = "mode",
     .doc = "how to misbehave",
     .default_value = "ok",
     .choices = "ok open_fails no_instance nan overrun wrong bad_shape space_fails read_workspace "
                "touch_padding fails ds_mla"}};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL;
const attn_plugin_t ATTN_PLUGIN_SYMBOL = {.magic = ATTN_PLUGIN_MAGIC,
                                          .struct_size = sizeof(attn_plugin_t),
                                          .abi_major = ATTN_ABI_MAJOR,
                                          .abi_minor = ATTN_ABI_MINOR,
                                          .name = "layer_fake",
                                          .version = "1",
                                          .vendor = "libattn tests",
                                          .license = "Apache-2.0",
                                          .build_id = "",
                                          .num_backends = sizeof backends / sizeof backends[0],
                                          .num_options = sizeof options / sizeof options[0],
                                          .backends = backends,
                                          .options = options};
