/* SPDX-License-Identifier: Apache-2.0 */
/* kit_edges_bad.c: the reference plugin with one mistake, -DMISTAKE=name, for tests/kit/kit_edges.sh:
 * mistakes at the edges of a contract, in tensors, formats, roles and batches that the plain case of the kit
 * does not have. -DREFERENCE="path" is the plugin that does the work. */
#define BAD_NAME "BAD_EDGES"
#include "over_reference.h"

#include <math.h>
#include <stdlib.h>

enum mistakes {
    NOTHING,
    READS_ENVIRONMENT,
    COUNTS_CALLS, /* in a static variable */
    FOLLOWS_STREAM,
    FLUSHES_AFTER_FP8, /* MXCSR, left so by a write to an fp8 cache */
    WRITES_INSTANCE,   /* *instance, where open fails */
    OLD_TABLE_OFFSET,  /* byte_offset of the table of update_block_table */
    SLOPES_OFFSET,     /* byte_offset of alibi_slopes */
    TABLE_UNBUILT,     /* update_block_table of any metadata */
    SLOPES_OF_ANY_TYPE,
    ENCODER_WITHOUT_VALUES,
    ENCODER_WITH_FEW_KEYS,
    ENCODER_ROWS_32,     /* strides of keys of the call in 30 bits */
    HEADS_PACKED,        /* heads of a page at their packed distance */
    COUNT_DECIDES,       /* another kernel above 64 requests */
    LOSES_NAN_IN_INT8,   /* of a key's row */
    LOSES_SMALL_IN_INT8, /* values below 1e-2 */
    SIZES_ADDED,         /* head sizes in a fingerprint */
    PAGE_WITHOUT_SCALES,
    OFFSET_IN_ELEMENTS,
    ROWS_PACKED,         /* rows of a page at their packed distance */
    LOSES_LAST_PIECE,    /* writes behind the workspace above 800 keys */
    COUNTS_LONE_CALLS,   /* in a static variable, where there is one head */
    BOUND_DECIDES,       /* another kernel by max_seq_len */
    WRITES_BEFORE_CHECK, /* rows of a forward that is refused */
    FOLLOWS_DEVICE,      /* in supports_combination, where there may be none */
    /* no mistakes: what a plugin may do otherwise than the others, and the kit has to allow */
    THREE_AXES,      /* block, head, and all that a page has of a head */
    TRUSTS_THE_CORE, /* which checked the entries of key_start_loc */
    LATENT_ALONE     /* no other role, nor supports_combination */
};

static attn_problem_t problem; /* of the last open */
static int32_t num_reqs;       /* of the last build */
static int64_t bound, longest; /* likewise */
static int num_calls;

static int is_int8(void) {
    return problem.kv_cache_dtype == ATTN_KV_INT8_PER_TOKEN_HEAD;
}

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, options, num_options, host, i, error);
    if (MISTAKE == WRITES_INSTANCE) *i = NULL;
    if (MISTAKE == READS_ENVIRONMENT && getenv("EDGES_THREADS") != NULL) return ATTN_E_INVALID;
    if (MISTAKE != NOTHING && MISTAKE != READS_ENVIRONMENT) problem = *args;
    attn_problem_t p = *args;
    if (MISTAKE == THREE_AXES) p.kv_layout = ATTN_LAYOUT_HND;
    return target->ops->open(&p, device, options, num_options, host, i, error);
}

/* A cache of three axes as the one of four that it is, if it is one. */
static const DLTensor *with_tokens(const DLTensor *t, DLTensor *to, int64_t numbers[8]) {
    if (MISTAKE != THREE_AXES || t == NULL || t->ndim != 3) return t;
    const int64_t page = problem.block_size, *shape = t->shape, *strides = t->strides;
    *to = *t;
    to->ndim = 4;
    to->shape = numbers, to->strides = numbers + 4;
    numbers[0] = shape[0], numbers[1] = shape[1], numbers[2] = page, numbers[3] = shape[2] / page;
    numbers[4] = strides[0], numbers[5] = strides[1], numbers[6] = shape[2] / page, numbers[7] = 1;
    return to;
}

static int shape_bad(attn_instance_t *i, int64_t num_blocks, attn_kv_cache_shape_t *args,
                     attn_error_t *error) {
    PASS_ON(kv_cache_shape, i, num_blocks, args, error);
    const int status = target->ops->kv_cache_shape(i, num_blocks, args, error);
    if (status != ATTN_OK || args->ndim != 4) return status;
    if (MISTAKE == SIZES_ADDED) {
        const int64_t key[] = {problem.kv_cache_dtype, args->shape[1], args->shape[2], args->shape[3],
                               args->kv_layout, problem.dtype};
        args->fingerprint = attn_fingerprint64(0, key, sizeof key);
    }
    if (MISTAKE == PAGE_WITHOUT_SCALES && is_int8()) {
        args->page_bytes -= 8 * args->shape[1] * args->shape[2];
        args->total_bytes = args->page_bytes * args->shape[0];
    }
    if (MISTAKE == THREE_AXES) {
        args->ndim = 3;
        args->shape[2] *= args->shape[3];
        args->byte_strides[2] = args->byte_strides[3];
        args->axes[2] = ATTN_AXIS_CONTENT;
        for (uint32_t j = 0; j < 3; j++)
            args->stride_order[j] = args->stride_order_layers[j + 1] = j;
        args->stride_order_layers[0] = 1, args->stride_order_layers[1] = 0;
        args->stride_order_layers[2] = 2, args->stride_order_layers[3] = 3;
    }
    if (MISTAKE == OFFSET_IN_ELEMENTS) args->v_offset /= args->dtype.bits / 8;
    return status;
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    if (MISTAKE == COUNT_DECIDES) num_reqs = args->num_reqs;
    if (MISTAKE == BOUND_DECIDES) bound = args->max_seq_len;
    if (MISTAKE == LOSES_LAST_PIECE) longest = 0;
    if (MISTAKE == LOSES_LAST_PIECE && args->seq_lens_host != NULL)
        for (int32_t r = 0; r < args->num_reqs; r++)
            if (args->seq_lens_host[r] > longest) longest = args->seq_lens_host[r];
    const int status = target->ops->build_metadata(i, args, space, stream, error);
    if (MISTAKE == TRUSTS_THE_CORE && args->key_start_loc_host != NULL && status == ATTN_E_INVALID)
        return ATTN_OK;
    return status;
}

static int table(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(update_block_table, i, args, space, stream, error);
    attn_batch_t b = *args;
    DLTensor t;
    if (MISTAKE == OLD_TABLE_OFFSET && b.block_table != NULL) {
        t = *b.block_table;
        t.byte_offset = 0;
        b.block_table = &t;
    }
    const int status = target->ops->update_block_table(i, &b, space, stream, error);
    return MISTAKE == TABLE_UNBUILT && status == ATTN_E_STATE ? ATTN_OK : status;
}

/* A copy of a cache tensor whose heads lie one behind the other, if they are those of a page. */
static const DLTensor *packed(const DLTensor *t, DLTensor *to, int64_t *strides) {
    if (t == NULL || t->strides == NULL) return t;
    const int is_head = MISTAKE == HEADS_PACKED && t->ndim == 4 && t->strides[1] >= t->strides[0],
              is_row = MISTAKE == ROWS_PACKED && t->ndim == 3 && t->strides[1] > t->shape[2];
    if (!is_head && !is_row) return t;
    *to = *t;
    memcpy(strides, t->strides, (size_t)t->ndim * sizeof *strides);
    strides[1] = is_head ? t->shape[2] * t->strides[2] : t->shape[2];
    to->strides = strides;
    return to;
}

/* A dense copy of rows of float32 in which numbers were lost. */
static const DLTensor *lossy(const DLTensor *t, DLTensor *to, int64_t strides[3], int is_small) {
    *to = *t;
    strides[2] = 1, strides[1] = t->shape[2], strides[0] = t->shape[1] * t->shape[2];
    float *data = calloc((size_t)(t->shape[0] * strides[0] + 1), sizeof *data);
    if (data == NULL) return t;
    for (int64_t i = 0; i < t->shape[0] * strides[0]; i++) {
        const float x = ((const float *)attn_data(t))[i / strides[0] * t->strides[0] +
                                                      i / strides[1] % t->shape[1] * t->strides[1] +
                                                      i % strides[1]];
        data[i] = is_small ? (fabsf(x) < 1e-2f ? 0 : x) : isnan(x) ? 0 : x;
    }
    to->data = data;
    to->byte_offset = 0;
    to->strides = strides;
    return to;
}

static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    attn_kv_update_t a = *args;
    DLTensor t, rows;
    int64_t strides[8], row_strides[3];
    a.kv_cache = with_tokens(packed(a.kv_cache, &t, strides), &t, strides);
    const DLTensor **member = MISTAKE == LOSES_NAN_IN_INT8 ? &a.key : &a.value;
    const int is_lossy =
        (MISTAKE == LOSES_NAN_IN_INT8 || MISTAKE == LOSES_SMALL_IN_INT8) && is_int8() && *member != NULL &&
        (*member)->ndim == 3 && (*member)->dtype.bits == 32 && (*member)->strides != NULL;
    if (is_lossy) *member = lossy(*member, &rows, row_strides, MISTAKE == LOSES_SMALL_IN_INT8);
    const int status = target->ops->update_kv_cache(i, &a, stream, error);
    if (is_lossy && *member == &rows) free(rows.data);
#if defined(__x86_64__)
    if (MISTAKE == FLUSHES_AFTER_FP8 && problem.kv_cache_dtype == ATTN_KV_FP8_E4M3)
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
    return status;
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    attn_forward_t a = *args;
    DLTensor t, slopes, keys;
    int64_t strides[8], key_strides[3];
    if (MISTAKE == FOLLOWS_STREAM && stream != NULL && *(volatile char *)stream == 'x') return ATTN_E_DEVICE;
    if (MISTAKE == COUNTS_CALLS) num_calls++;
    if (MISTAKE == COUNTS_LONE_CALLS && a.query != NULL && a.query->ndim == 3 && a.query->shape[1] == 1)
        num_calls++;
    if (MISTAKE == LOSES_LAST_PIECE && space != NULL && space->workspace != NULL && longest > 800)
        ((volatile char *)space->workspace)[space->workspace_bytes] = 0;
    if (MISTAKE == SLOPES_OF_ANY_TYPE && a.alibi_slopes != NULL && a.alibi_slopes->dtype.code != kDLFloat)
        return ATTN_OK;
    if (MISTAKE == ENCODER_WITHOUT_VALUES && a.kv_cache == NULL && a.query != NULL && a.value == NULL &&
        space != NULL)
        return ATTN_OK;
    if (MISTAKE == SLOPES_OFFSET && a.alibi_slopes != NULL) {
        slopes = *a.alibi_slopes;
        slopes.byte_offset = 0;
        a.alibi_slopes = &slopes;
    }
    if (MISTAKE == ENCODER_ROWS_32 && a.kv_cache == NULL && a.key != NULL && a.key->ndim == 3) {
        keys = *a.key;
        memcpy(key_strides, a.key->strides, sizeof key_strides);
        key_strides[0] &= 0x3fffffff;
        keys.strides = key_strides;
        a.key = &keys;
    }
    a.kv_cache = with_tokens(packed(a.kv_cache, &t, strides), &t, strides);
    const int status = target->ops->forward(i, &a, space, stream, error);
    if (MISTAKE == WRITES_BEFORE_CHECK && status != ATTN_OK && args->slot_mapping != NULL) {
        attn_kv_update_t u = {.struct_size = sizeof u, .key = args->key, .value = args->value,
                              .kv_cache = args->kv_cache, .v_cache = args->v_cache,
                              .slot_mapping = args->slot_mapping, .scales = args->scales};
        target->ops->update_kv_cache(i, &u, stream, NULL);
    }
    if (MISTAKE == BOUND_DECIDES && status == ATTN_OK && bound > 0 && a.output->dtype.bits == 32)
        ((float *)attn_data(a.output))[0] *= 1.000001f;
    if (MISTAKE == ENCODER_WITH_FEW_KEYS && args->kv_cache == NULL && a.key != NULL && a.value != NULL &&
        a.key->shape[0] < a.value->shape[0])
        return ATTN_OK;
    if (MISTAKE == COUNT_DECIDES && status == ATTN_OK && num_reqs > 64 && a.output->dtype.bits == 32)
        ((float *)attn_data(a.output))[0] *= 1.000001f;
    return status;
}

static int supports(const attn_problem_t *p, const attn_device_t *device, attn_reasons_t *reasons) {
    if (MISTAKE == FOLLOWS_DEVICE && device->type != kDLCPU) return ATTN_E_DEVICE;
    return target->ops->supports_combination(p, device, reasons);
}

static void put_mistakes(void) {
    ops.open = open_bad;
    ops.kv_cache_shape = shape_bad;
    ops.build_metadata = build;
    ops.update_block_table = table;
    ops.update_kv_cache = update;
    ops.forward = forward;
    if (MISTAKE == FOLLOWS_DEVICE) ops.supports_combination = supports;
    if (MISTAKE == THREE_AXES) {
        can.required_layout = ATTN_LAYOUT_HND;
        can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    }
    if (MISTAKE == LATENT_ALONE) {
        can.roles = ATTN_BIT(ATTN_ROLE_MLA);
        can.features = ATTN_F_LATENT | ATTN_F_LSE | ATTN_F_NON_CAUSAL;
        ops.supports_combination = NULL;
    }
}
