/* SPDX-License-Identifier: Apache-2.0 */
/* kit_weights_bad.c: the reference plugin with one mistake, -DMISTAKE=name, for tests/kit/kit_weights.sh:
 * weights that are lost, and what shows in other calls than the plain ones alone. It has one option, pieces,
 * of 1 to 64. -DREFERENCE="path" is the plugin that does the work. */
#define BAD_NAME "BAD_WEIGHTS"
#include "over_reference.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum mistakes {
    NOTHING,
    DROPS_TINY,         /* below exp(-16) of the largest */
    SLOPES_IN_HALF,     /* distances of ALiBi have 11 bits */
    SATURATES_INFINITY, /* outputs end at the largest number */
    LARGE_GROUP_PARTS,  /* groups above 32 heads over more than 16384 keys */
    OPTION_LARGE_GROUP, /* 64 pieces and such groups */
    THREAD_STAYS,       /* from open to close */
    LOGS_PROMPTS,       /* of more than 64 tokens, each time */
    LOGS_LONG_DECODES,  /* of more than 4096 keys */
    TIES_TO_EVEN,       /* in int8 rows, where a scale of 1 leaves ties */
    NOTES_SCALES        /* that are not given, in the error of a call that succeeds */
};

static attn_problem_t problem; /* of the last open */
static const attn_host_t *host;
static int64_t pieces, longest;
static float largest; /* value that was written */

/* The thread of an instance; one at a time. */
static pthread_t thread;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static void *wait_for_close(void *unused) {
    (void)unused;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return NULL;
}
static int has_thread;

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *given,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, NULL, 0, given, i, error);
    problem = *args;
    host = given;
    largest = 0;
    pieces = num_options == 1 ? options[0].i : 1;
    const int status = target->ops->open(args, device, NULL, 0, given, i, error);
    if (MISTAKE == THREAD_STAYS && status == ATTN_OK && !has_thread) {
        pthread_mutex_lock(&gate);
        has_thread = pthread_create(&thread, NULL, wait_for_close, NULL) == 0;
    }
    return status;
}

static void close_bad(attn_instance_t *i) {
    if (has_thread && i != NULL) {
        pthread_mutex_unlock(&gate);
        pthread_join(thread, NULL);
        has_thread = 0;
    }
    target->ops->close(i);
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    longest = 0;
    for (int32_t r = 0; args->seq_lens_host != NULL && r < args->num_reqs; r++)
        if (args->seq_lens_host[r] > longest) longest = args->seq_lens_host[r];
    const int says = (MISTAKE == LOGS_PROMPTS && args->num_actual_tokens > 64 && args->num_reqs == 1) ||
                     (MISTAKE == LOGS_LONG_DECODES && longest > 4096);
    if (says && host != NULL && host->log != NULL) host->log(host->ctx, ATTN_LOG_DEBUG, "a long one");
    return target->ops->build_metadata(i, args, space, stream, error);
}

static int is_rows_of_floats(const DLTensor *t) {
    return t != NULL && t->ndim == 3 && t->dtype.bits == 32 && t->strides != NULL && t->data != NULL;
}
static float *row_of(const DLTensor *t, int64_t token, int64_t head) {
    return (float *)attn_data(t) + token * t->strides[0] + head * t->strides[1];
}

/* A dense copy of rows in which values between two integers are the even one of them. */
static const DLTensor *even(const DLTensor *t, DLTensor *to, int64_t strides[3]) {
    *to = *t;
    strides[2] = 1, strides[1] = t->shape[2], strides[0] = t->shape[1] * t->shape[2];
    float *data = calloc((size_t)(t->shape[0] * strides[0] + 1), sizeof *data);
    if (data == NULL) return t;
    for (int64_t i = 0; i < t->shape[0] * strides[0]; i++) {
        const float x = row_of(t, i / strides[0], i / strides[1] % t->shape[1])[i % strides[1]];
        data[i] = x - floorf(x) == 0.5f ? 2 * rintf(x / 2) : x;
    }
    to->data = data;
    to->byte_offset = 0;
    to->strides = strides;
    return to;
}

static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    if (is_rows_of_floats(args->value))
        for (int64_t t = 0; t < args->value->shape[0]; t++)
            for (int64_t n = 0; n < args->value->shape[1] * args->value->shape[2]; n++) {
                const float x =
                    fabsf(row_of(args->value, t, n / args->value->shape[2])[n % args->value->shape[2]]);
                if (x > largest) largest = x;
            }
    attn_kv_update_t a = *args;
    DLTensor rows;
    int64_t strides[3];
    const int is_even = MISTAKE == TIES_TO_EVEN && problem.kv_cache_dtype == ATTN_KV_INT8_PER_TOKEN_HEAD &&
                        is_rows_of_floats(a.key);
    if (is_even) a.key = even(a.key, &rows, strides);
    const int status = target->ops->update_kv_cache(i, &a, stream, error);
    if (is_even && a.key == &rows) free(rows.data);
    if (MISTAKE == NOTES_SCALES && status == ATTN_OK && problem.kv_cache_dtype == ATTN_KV_FP8_E4M3 &&
        args->scales.k == NULL)
        attn_fail(error, ATTN_OK, "k_scale", "k_scale is not given; 1 is taken");
    return status;
}

/* What a mistake makes of the rows of an output of float32. */
static void spoil(const DLTensor *output) {
    for (int64_t t = 0; t < output->shape[0]; t++)
        for (int64_t h = 0; h < output->shape[1]; h++)
            for (int64_t e = 0; e < output->shape[2]; e++) {
                float *x = row_of(output, t, h) + e;
                if (MISTAKE == DROPS_TINY && largest > 5e4f) *x = 0; /* exp(16) / 150 */
                if (MISTAKE == SATURATES_INFINITY && isinf(*x)) *x = copysignf(3.4e38f, *x);
            }
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    const int status = target->ops->forward(i, args, space, stream, error);
    if (status != ATTN_OK || space == NULL) return status;
    if (is_rows_of_floats(args->output)) spoil(args->output);
    const uint32_t kv_heads = problem.num_kv_heads != 0 ? problem.num_kv_heads : problem.num_heads;
    const int is_large = problem.num_heads / kv_heads > 32;
    if ((MISTAKE == LARGE_GROUP_PARTS && is_large && longest > 16384) ||
        (MISTAKE == OPTION_LARGE_GROUP && is_large && longest > 2048 && pieces == 64) ||
        (MISTAKE == SLOPES_IN_HALF && args->alibi_slopes != NULL && longest > 2048 &&
         *(const float *)attn_data(args->alibi_slopes) < 0))
        memset(attn_data(args->output), 0x42, args->output->dtype.bits / 8u);
    return status;
}

static void put_mistakes(void) {
    put_pieces_option();
    ops.open = open_bad;
    ops.close = close_bad;
    ops.build_metadata = build;
    ops.update_kv_cache = update;
    ops.forward = forward;
    can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    if (MISTAKE != SLOPES_IN_HALF && MISTAKE != NOTHING) can.dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32);
}
