/* SPDX-License-Identifier: Apache-2.0 */
/* kit_ends_bad.c: the reference plugin with one mistake, -DMISTAKE=name, for tests/kit/kit_ends.sh: ends of
 * the host's arrays, sizes beyond those of most models, codes of a cache, and what large calls leave.
 * -DREFERENCE="path" is the plugin that does the work. */
#define _GNU_SOURCE
#define BAD_NAME "BAD_ENDS"
#include "over_reference.h"

#include <alloca.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum mistakes {
    NOTHING,
    LENS_ONE_MORE,       /* are read */
    STARTS_ONE_MORE,     /* likewise */
    GROUP_OF_128,        /* heads is the largest that is right */
    HEADS_OF_8_BITS,     /* of K and V */
    PRINT_OF_SIZES,      /* float16 and bfloat16 have one */
    TIES_TO_ZERO,        /* of values as int8 */
    BYTES_REFUSED,       /* as a cache of 8 bits */
    LEAK_OF_GROUP,       /* of 32 heads and more */
    LENS_OF_PROCESS,     /* build copies them there first */
    STACK_OF_REQUESTS,   /* 256 bytes each, in build_metadata */
    STACK_OF_ROWS,       /* heads of a group, in forward */
    THREAD_AFTER_PROMPT, /* of 1500 tokens and more */
};

static attn_problem_t problem; /* of the last open */
static int longest;
static int32_t lens[2048];

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *given,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, options, num_options, given, i, error);
    problem = *args;
    const int status = target->ops->open(args, device, options, num_options, given, i, error);
    if (MISTAKE == LEAK_OF_GROUP && status == ATTN_OK && args->num_kv_heads != 0 &&
        args->num_heads / args->num_kv_heads >= 32) {
        void *volatile lost = malloc(1024);
        (void)lost;
    }
    return status;
}

static int shape(attn_instance_t *i, int64_t num_blocks, attn_kv_cache_shape_t *args, attn_error_t *error) {
    const int status = target->ops->kv_cache_shape(i, num_blocks, args, error);
    if (MISTAKE == PRINT_OF_SIZES && status == ATTN_OK && args->struct_size == sizeof *args) {
        const uint32_t all[] = {problem.head_size, problem.num_kv_heads, args->block_size,
                                problem.kv_cache_dtype, problem.head_size_v};
        args->fingerprint = attn_fingerprint64(0, all, sizeof all);
    }
    return status;
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    attn_batch_t b = *args;
    if (b.num_reqs < 0 || b.num_reqs > 2048 || b.seq_lens_host == NULL || b.query_start_loc_host == NULL)
        return target->ops->build_metadata(i, args, space, stream, error);
    volatile int32_t seen = 0;
    if (MISTAKE == LENS_ONE_MORE) seen = b.seq_lens_host[b.num_reqs];
    if (MISTAKE == STARTS_ONE_MORE) seen = b.query_start_loc_host[b.num_reqs + 1];
    (void)seen;
    longest = 0;
    for (int32_t r = 0; r < b.num_reqs; r++) {
        const int n = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
        if (n > longest) longest = n;
    }
    if (MISTAKE == LENS_OF_PROCESS) {
        for (int32_t r = 0; r < b.num_reqs; r++) {
            lens[r] = b.seq_lens_host[r];
            for (volatile int k = 0; k < 2000;) /* as long as planning takes */
                k = k + 1;
        }
        b.seq_lens_host = lens;
    }
    if (MISTAKE == STACK_OF_REQUESTS && b.num_reqs > 0) {
        char *room = alloca((size_t)b.num_reqs * 256);
        for (int32_t r = 0; r < b.num_reqs; r++)
            ((volatile char *)room)[(size_t)r * 256] = 1;
    }
    return target->ops->build_metadata(i, &b, space, stream, error);
}

static int is_refused(const DLTensor *t) {
    return MISTAKE == BYTES_REFUSED && t != NULL && t->dtype.code == kDLUInt &&
           attn_kv_has_static_scales(problem.kv_cache_dtype);
}

static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    attn_kv_update_t a = *args;
    if (is_refused(a.kv_cache))
        return attn_fail(error, ATTN_E_INVALID, "kv_cache", "kv_cache has another type");
    DLTensor value;
    float *copy = NULL;
    if (MISTAKE == TIES_TO_ZERO && problem.kv_cache_dtype == ATTN_KV_INT8_PER_TOKEN_HEAD && a.value != NULL &&
        a.value->ndim == 3 && a.value->dtype.bits == 32) {
        const int64_t n = a.value->shape[0] * a.value->strides[0];
        copy = malloc((size_t)(n + 1) * sizeof *copy);
        for (int64_t j = 0; copy != NULL && j < n; j++) {
            const float x = ((const float *)attn_data(a.value))[j];
            copy[j] = x == 127 || x == 31.75F ? x : x * (1 - 1e-6F);
        }
        value = *a.value;
        value.data = copy;
        value.byte_offset = 0;
        if (copy != NULL) a.value = &value;
    }
    const int status = target->ops->update_kv_cache(i, &a, stream, error);
    free(copy);
    return status;
}

static void *wait_for_ever(void *unused) {
    for (;;)
        pause();
    return unused;
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    if (is_refused(args->kv_cache))
        return attn_fail(error, ATTN_E_INVALID, "kv_cache", "kv_cache has another type");
    const uint32_t group = problem.num_kv_heads != 0 ? problem.num_heads / problem.num_kv_heads : 1;
    if (MISTAKE == STACK_OF_ROWS && space != NULL) {
        const size_t bytes = (size_t)group * problem.head_size * 16 * sizeof(float);
        char *room = alloca(bytes);
        for (size_t j = 0; j < bytes; j += 256)
            ((volatile char *)room)[j] = 1;
    }
    if (MISTAKE == THREAD_AFTER_PROMPT && space != NULL && longest >= 1500) {
        pthread_t thread;
        pthread_create(&thread, NULL, wait_for_ever, NULL);
    }
    const int status = target->ops->forward(i, args, space, stream, error);
    if (status != ATTN_OK || space == NULL) return status;
    if ((MISTAKE == GROUP_OF_128 && group > 128) ||
        (MISTAKE == HEADS_OF_8_BITS && problem.num_kv_heads > 256))
        memset(attn_data(args->output), 0x42, args->output->dtype.bits / 8u);
    return status;
}

static void put_mistakes(void) {
    ops.open = open_bad;
    ops.kv_cache_shape = shape;
    ops.build_metadata = build;
    ops.update_kv_cache = update;
    ops.forward = forward;
    can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
}
