/* SPDX-License-Identifier: Apache-2.0 */
/* kit_limits_bad.c: the reference plugin with one mistake, -DMISTAKE=name, for tests/kit/kit_limits.sh:
 * mistakes at the ends of types, and of what a table, an option or a feature allows. It has one option,
 * pieces, of 1 to 64. -DREFERENCE="path" is the plugin that does the work. */
#define BAD_NAME "BAD_LIMITS"
#include "over_reference.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

enum mistakes {
    NOTHING,
    LOSES_FULL_NAN,      /* values of 0x7fffffff, on their way to bfloat16 */
    SATURATES_HALF,      /* values beyond 65504, likewise to float16 */
    EMPTY_ROW_NAN,       /* a row that sees no key */
    WIDE_OUTPUT_ROUNDED, /* float32 outputs, to bfloat16 */
    WINDOW_IN_31_BITS,
    LENGTH_IN_31_BITS,
    LOWEST_IS_1E30,     /* scores below count as hidden */
    CAP_LOSES_NAN,      /* in the query, where there is a soft cap */
    CAP_FLUSHES,        /* leaves MXCSR so, where there is one */
    SCALES_UNSAID,      /* offsets of the scales of int8 rows */
    SCALES_OVER_VALUES, /* the same */
    QUERY_ALLOCATES,    /* supports_combination */
    FEATURE_UNNAMED,    /* the parameter of a refusal */
    WRITES_NO_VALUES,   /* forward with slots */
    OPTION_TOO_FAR,     /* 64 pieces of more than 16384 keys */
    OPTION_TOO_STEEP,   /* 64 pieces and scores above 1000 */
    OPTION_LEAVES_MASK, /* 64 pieces: the process's umask */
    /* no mistake */
    FIVE_AXES /* block, head, token, K or V, content */
};

static attn_problem_t problem; /* of the last open */
static int64_t pieces, longest;

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, NULL, 0, host, i, error);
    attn_problem_t p = *args;
    problem = p;
    pieces = num_options == 1 ? options[0].i : 1;
    if (MISTAKE == WINDOW_IN_31_BITS && p.sliding_window > 0x7fffffff) p.sliding_window = 1;
    if (MISTAKE == LENGTH_IN_31_BITS && p.max_model_len > 0x7fffffff) p.max_model_len = 4096;
    if (MISTAKE == OPTION_LEAVES_MASK && pieces == 64) umask(0);
    const int status = target->ops->open(&p, device, NULL, 0, host, i, error);
    if (MISTAKE == FEATURE_UNNAMED && status != ATTN_OK && error != NULL) error->param[0] = '\0';
    return status;
}

static int supports(const attn_problem_t *args, const attn_device_t *device, attn_reasons_t *reasons) {
    PASS_ON(supports_combination, args, device, reasons);
    attn_problem_t p = *args;
    if (MISTAKE == LENGTH_IN_31_BITS && p.max_model_len > 0x7fffffff) p.max_model_len = 4096;
    if (MISTAKE == QUERY_ALLOCATES) {
        void *volatile list = malloc(64);
        free(list);
    }
    return target->ops->supports_combination(&p, device, reasons);
}

static int space_bad(attn_instance_t *i, attn_space_needed_t *args, attn_error_t *error) {
    PASS_ON(space_needed, i, args, error);
    const int status = target->ops->space_needed(i, args, error);
    if (MISTAKE == LENGTH_IN_31_BITS && status == ATTN_OK && problem.max_model_len <= 0x7fffffff)
        args->workspace_bytes += (uint64_t)problem.max_model_len / 4096;
    return status;
}

static int shape_bad(attn_instance_t *i, int64_t num_blocks, attn_kv_cache_shape_t *args,
                     attn_error_t *error) {
    PASS_ON(kv_cache_shape, i, num_blocks, args, error);
    const int status = target->ops->kv_cache_shape(i, num_blocks, args, error);
    if (status != ATTN_OK || args->ndim != 4) return status;
    if (MISTAKE == SCALES_UNSAID) args->k_scale_offset = args->v_scale_offset = -1;
    if (MISTAKE == SCALES_OVER_VALUES && args->k_scale_offset > 0) args->k_scale_offset -= 4;
    if (MISTAKE == FIVE_AXES) {
        args->ndim = 5;
        args->shape[4] = args->shape[3] / 2, args->shape[3] = 2;
        args->byte_strides[4] = args->byte_strides[3];
        args->byte_strides[3] = args->shape[4] * args->byte_strides[4];
        args->axes[4] = ATTN_AXIS_CONTENT, args->axes[3] = ATTN_AXIS_KV;
        args->stride_order[4] = 4;
        args->stride_order_layers[5] = 5;
    }
    return status;
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    longest = 0;
    for (int32_t r = 0; args->seq_lens_host != NULL && r < args->num_reqs; r++)
        if (args->seq_lens_host[r] > longest) longest = args->seq_lens_host[r];
    return target->ops->build_metadata(i, args, space, stream, error);
}

/* A cache of five axes as the one of four that it is, if it is one. */
static const DLTensor *of_four(const DLTensor *t, DLTensor *to, int64_t numbers[8]) {
    if (MISTAKE != FIVE_AXES || t == NULL || t->ndim != 5 || t->strides == NULL) return t;
    *to = *t;
    to->ndim = 4;
    to->shape = numbers, to->strides = numbers + 4;
    for (int j = 0; j < 3; j++)
        numbers[j] = t->shape[j], numbers[4 + j] = t->strides[j];
    numbers[3] = t->shape[3] * t->shape[4], numbers[7] = 1;
    return to;
}

/* A dense copy of rows of float32 in which numbers were lost. */
static const DLTensor *lossy(const DLTensor *t, DLTensor *to, int64_t strides[3]) {
    *to = *t;
    strides[2] = 1, strides[1] = t->shape[2], strides[0] = t->shape[1] * t->shape[2];
    float *data = calloc((size_t)(t->shape[0] * strides[0] + 1), sizeof *data);
    if (data == NULL) return t;
    for (int64_t i = 0; i < t->shape[0] * strides[0]; i++) {
        const float *x = (const float *)attn_data(t) + i / strides[0] * t->strides[0] +
                         i / strides[1] % t->shape[1] * t->strides[1] + i % strides[1];
        uint32_t bits;
        memcpy(&bits, x, sizeof bits);
        const int is_lost = MISTAKE == LOSES_FULL_NAN  ? (bits & 0x7fffffff) == 0x7fffffff
                            : MISTAKE == CAP_LOSES_NAN ? isnan(*x)
                                                       : 0;
        data[i] = is_lost ? 0 : MISTAKE == SATURATES_HALF ? fminf(fmaxf(*x, -65504), 65504) : *x;
    }
    to->data = data;
    to->byte_offset = 0;
    to->strides = strides;
    return to;
}
static int is_rows_of_floats(const DLTensor *t) {
    return t != NULL && t->ndim == 3 && t->dtype.bits == 32 && t->strides != NULL && t->data != NULL;
}

static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    attn_kv_update_t a = *args;
    DLTensor rows, cache;
    int64_t strides[3], numbers[8];
    const uint32_t kv = MISTAKE == LOSES_FULL_NAN   ? ATTN_KV_BFLOAT16
                        : MISTAKE == SATURATES_HALF ? ATTN_KV_FLOAT16
                                                    : 0;
    const int is_lossy = kv != 0 && problem.kv_cache_dtype == kv && is_rows_of_floats(a.value);
    if (is_lossy) a.value = lossy(a.value, &rows, strides);
    a.kv_cache = of_four(a.kv_cache, &cache, numbers);
    const int status = target->ops->update_kv_cache(i, &a, stream, error);
    if (is_lossy && a.value == &rows) free(rows.data);
    return status;
}

/* What a mistake makes of the rows of an output of float32; lse may be NULL. */
static void spoil(const DLTensor *output, const DLTensor *lse) {
    for (int64_t t = 0; t < output->shape[0]; t++)
        for (int64_t h = 0; h < output->shape[1]; h++) {
            float *row = (float *)attn_data(output) + t * output->strides[0] + h * output->strides[1];
            const float l = lse != NULL && t < lse->shape[1]
                                ? ((const float *)attn_data(lse))[h * lse->strides[0] + t]
                                : 0;
            for (int64_t e = 0; e < output->shape[2]; e++) {
                if (MISTAKE == EMPTY_ROW_NAN && l == -INFINITY) row[e] = NAN;
                if (MISTAKE == LOWEST_IS_1E30 && l < -1e31f && l > -INFINITY) row[e] = 0;
                if (MISTAKE == OPTION_TOO_STEEP && pieces == 64 && l > 1000) row[e] = NAN;
                if (MISTAKE == WIDE_OUTPUT_ROUNDED && problem.dtype == ATTN_DTYPE_BFLOAT16)
                    row[e] = (float)attn_from_bf16(attn_to_bf16((double)row[e]));
            }
        }
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    attn_forward_t a = *args;
    DLTensor rows, cache;
    int64_t strides[3], numbers[8];
    if (MISTAKE == WRITES_NO_VALUES && a.slot_mapping != NULL && a.value == NULL) return ATTN_OK;
    const int is_lossy =
        MISTAKE == CAP_LOSES_NAN && problem.logits_soft_cap != 0 && is_rows_of_floats(a.query);
    if (is_lossy) a.query = lossy(a.query, &rows, strides);
    a.kv_cache = of_four(a.kv_cache, &cache, numbers);
    const int status = target->ops->forward(i, &a, space, stream, error);
    if (is_lossy && a.query == &rows) free(rows.data);
    if (status == ATTN_OK && space != NULL && is_rows_of_floats(a.output)) spoil(a.output, a.lse);
    if (MISTAKE == OPTION_TOO_FAR && status == ATTN_OK && pieces == 64 && longest > 16384)
        *(float *)attn_data(a.output) = 0;
#if defined(__x86_64__)
    if (MISTAKE == CAP_FLUSHES && problem.logits_soft_cap != 0)
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000);
#endif
    return status;
}

static void put_mistakes(void) {
    put_pieces_option();
    ops.open = open_bad;
    ops.supports_combination = supports;
    ops.space_needed = space_bad;
    ops.kv_cache_shape = shape_bad;
    ops.build_metadata = build;
    ops.update_kv_cache = update;
    ops.forward = forward;
    can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    if (MISTAKE == FIVE_AXES) {
        can.kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO);
        can.features &= ~(uint64_t)(ATTN_F_DIFF_KV | ATTN_F_SEPARATE_KV);
    }
}
