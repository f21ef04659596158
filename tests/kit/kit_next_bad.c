/* SPDX-License-Identifier: Apache-2.0 */
/* kit_next_bad.c: the reference plugin with one mistake, -DMISTAKE=name, for tests/kit/kit_next.sh: what one
 * call leaves for the next, and what is right for the first case alone. It has one option, pieces, of 1 to
 * 64. -DREFERENCE="path" is the plugin that does the work. */
#define BAD_NAME "BAD_NEXT"
#include "over_reference.h"

#include <math.h>
#include <stdlib.h>

enum mistakes {
    NOTHING,
    FIRST_SAYS_LSE,     /* whether later calls get one */
    SAME_LENGTHS_BUILT, /* once for all tables */
    REFUSES_EVER_AFTER, /* a block that a cache does not have */
    FULL_READS_HOST,    /* lengths of the batch in forward, with the mask full */
    OFFSET_AT_BUILD,    /* of the table ignored, by build_metadata alone */
    OUTPUT_LIKE_QUERY,  /* strides of heads */
    SINK_HAS_FLOOR,     /* of -1e4, -infinity too */
    E5M2_CLAMPS_NAN,    /* to the largest number */
    OPTION_FILLS_ROOM,  /* and more, with 64 pieces and all tokens */
    DEVICE_LEAKS,       /* that is refused */
    TABLE_IGNORES_TAIL, /* of the batch of update_block_table */
    E5M2_HEADS          /* are refused, over the only cache of 8 bits */
};

static attn_problem_t problem; /* of the last open */
static int64_t pieces;
static int lse_said, refused, is_off, lens_of_host; /* lse_said: 1 with, 2 without */
static uint64_t last_lens;
static void *last_metadata;
static const int32_t *host_lens;

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *given,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, NULL, 0, given, i, error);
    if (MISTAKE == E5M2_HEADS && (args->features & ATTN_F_PER_HEAD_SCALES) != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "per_head_scales", "scales of heads are not served");
    problem = *args;
    pieces = num_options == 1 ? options[0].i : 1;
    lse_said = refused = 0;
    last_metadata = NULL;
    const int status = target->ops->open(args, device, NULL, 0, given, i, error);
    if (MISTAKE == DEVICE_LEAKS && status != ATTN_OK && device != NULL && device->type != kDLCPU) {
        void *volatile lost = malloc(sizeof problem);
        (void)lost;
    }
    return status;
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    const attn_batch_t b = *args;
    if (b.seq_lens_host == NULL || b.num_reqs < 0 || b.block_table == NULL || space == NULL)
        return target->ops->build_metadata(i, args, space, stream, error);
    const uint64_t lens = attn_fingerprint64(0, b.seq_lens_host, (size_t)b.num_reqs * 4);
    if (MISTAKE == SAME_LENGTHS_BUILT && space->metadata == last_metadata && lens == last_lens)
        return ATTN_OK;
    is_off = MISTAKE == OFFSET_AT_BUILD && b.block_table->byte_offset != 0;
    const int status = target->ops->build_metadata(i, args, space, stream, error);
    if (status != ATTN_OK) return status;
    last_metadata = space->metadata;
    last_lens = lens;
    host_lens = b.seq_lens_host;
    lens_of_host = b.num_reqs > 0 ? b.seq_lens_host[0] : 0;
    if (MISTAKE == OPTION_FILLS_ROOM && pieces == 64 && b.num_actual_tokens > 64 &&
        b.num_actual_tokens == (int32_t)problem.max_num_batched_tokens)
        ((char *)space->metadata)[space->metadata_bytes] = 1;
    return status;
}

static int table(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    attn_batch_t b;
    is_off = 0;
    if (MISTAKE == TABLE_IGNORES_TAIL) {
        const int status = attn_intake_known(&b, sizeof b, args, "batch", error);
        return status != ATTN_OK ? status : target->ops->update_block_table(i, &b, space, stream, error);
    }
    return target->ops->update_block_table(i, args, space, stream, error);
}

static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    attn_kv_update_t a = *args;
    DLTensor key;
    const DLTensor *k = a.key;
    float *copy = NULL;
    if (MISTAKE == E5M2_CLAMPS_NAN && problem.kv_cache_dtype == ATTN_KV_FP8_E5M2 && k != NULL &&
        k->ndim == 3 && k->dtype.bits == 32 && k->strides != NULL) {
        const int64_t n = k->shape[0] * k->strides[0];
        copy = malloc((size_t)n * sizeof *copy + 1);
        for (int64_t j = 0; copy != NULL && j < n; j++) {
            const float x = ((const float *)attn_data(k))[j];
            copy[j] = isnan(x) ? 57344 : x;
        }
        key = *k;
        key.data = copy;
        key.byte_offset = 0;
        if (copy != NULL) a.key = &key;
    }
    const int status = target->ops->update_kv_cache(i, &a, stream, error);
    free(copy);
    return status;
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    attn_forward_t a = *args;
    float floors[256];
    DLTensor sinks;
    if (space != NULL && MISTAKE == FIRST_SAYS_LSE) {
        if (lse_said == 0) lse_said = a.lse != NULL ? 1 : 2;
        if (lse_said == 2) a.lse = NULL;
    }
    if (MISTAKE == REFUSES_EVER_AFTER && space != NULL && a.kv_cache != NULL && a.kv_cache->ndim == 4) {
        refused |= a.kv_cache->shape[0] == 1;
        if (refused) return attn_fail(error, ATTN_E_INVALID, "block_table", "a block lies outside");
    }
    if (MISTAKE == SINK_HAS_FLOOR && a.sinks != NULL && a.sinks->shape != NULL && a.sinks->shape[0] <= 256 &&
        a.sinks->dtype.bits == 32) {
        for (int64_t h = 0; h < a.sinks->shape[0]; h++)
            floors[h] = fmaxf(((const float *)attn_data(a.sinks))[h], -1e4f);
        sinks = *a.sinks;
        sinks.data = floors;
        sinks.byte_offset = 0;
        a.sinks = &sinks;
    }
    const int status = target->ops->forward(i, &a, space, stream, error);
    if (status != ATTN_OK || space == NULL) return status;
    const int is_unlike = MISTAKE == OUTPUT_LIKE_QUERY && a.query->shape[2] == a.output->shape[2] &&
                          a.query->strides[1] != a.output->strides[1];
    const int is_changed = MISTAKE == FULL_READS_HOST && problem.mask == ATTN_MASK_FULL &&
                           host_lens != NULL && host_lens[0] != lens_of_host;
    if (is_off || is_unlike || is_changed) memset(attn_data(a.output), 0x42, a.output->dtype.bits / 8u);
    return status;
}

static void put_mistakes(void) {
    put_pieces_option();
    ops.open = open_bad;
    ops.build_metadata = build;
    ops.update_block_table = table;
    ops.update_kv_cache = update;
    ops.forward = forward;
    can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    if (MISTAKE == E5M2_HEADS) can.kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E5M2);
}
