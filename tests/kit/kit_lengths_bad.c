/* SPDX-License-Identifier: Apache-2.0 */
/* kit_lengths_bad.c: the reference plugin with one mistake about lengths, -DMISTAKE=name, for
 * tests/kit/kit_lengths.sh: what the conformance kit has to catch. -DREFERENCE="path" is the plugin that does
 * the work. */
#define BAD_NAME "BAD_LENGTHS"
#include "over_reference.h"


enum mistakes {
    NOTHING,
    /* keys with lengths of their own (semantics 2.16) */
    IGNORES_GAPS,    /* between the rows of two requests */
    ALIGNS_AT_START, /* the causal mask */
    FULL_IS_CAUSAL,
    EMPTY_HAS_LSE, /* 0 instead of -inf */
    TAKES_NO_ROWS, /* a batch without key_start_loc_host */
    /* lengths on the device (semantics 1.6) */
    READS_HOST_LENGTHS,
    READS_AT_BUILD,
    READS_STARTS_AT_BUILD, /* of the two lists one */
    TAKES_NO_LISTS
};

enum { MAX_REQS = 512 };
static attn_batch_t built;
static int32_t starts[MAX_REQS + 1], lens[MAX_REQS], kept_starts[MAX_REQS + 1], kept_lens[MAX_REQS];
static DLTensor kept[2];

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, options, num_options, host, i, error);
    attn_problem_t p = *args;
    if (MISTAKE == FULL_IS_CAUSAL && (p.features & ATTN_F_KEY_LENGTHS) != 0) p.mask = ATTN_MASK_CAUSAL;
    if (MISTAKE == READS_HOST_LENGTHS) p.features &= ~ATTN_F_DEVICE_LENGTHS;
    return target->ops->open(&p, device, options, num_options, host, i, error);
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    attn_batch_t b = *args;
    built = *args;
    if (MISTAKE == TAKES_NO_ROWS && b.key_start_loc_host == NULL && b.seq_lens_host != NULL) return ATTN_OK;
    if (b.key_start_loc_host != NULL && b.num_reqs > 0 && b.num_reqs <= MAX_REQS) {
        for (int32_t r = 0; r < b.num_reqs; r++) {
            const int32_t query = b.query_start_loc_host[r + 1] - b.query_start_loc_host[r];
            lens[r] = b.seq_lens_host[r];
            if (MISTAKE == ALIGNS_AT_START && query < lens[r]) lens[r] = query;
            starts[r + 1] = starts[r] + lens[r];
        }
        if (MISTAKE == ALIGNS_AT_START) b.seq_lens_host = lens;
        if (MISTAKE == IGNORES_GAPS && starts[b.num_reqs] <= b.key_start_loc_host[b.num_reqs])
            b.key_start_loc_host = starts;
    }
    const int may_keep = b.seq_lens != NULL && b.query_start_loc != NULL && b.num_reqs <= MAX_REQS;
    if (may_keep && (MISTAKE == READS_AT_BUILD || MISTAKE == READS_STARTS_AT_BUILD)) {
        memcpy(kept_starts, attn_data(b.query_start_loc), ((size_t)b.num_reqs + 1) * sizeof *kept_starts);
        memcpy(kept_lens, attn_data(b.seq_lens), (size_t)b.num_reqs * sizeof *kept_lens);
        kept[0] = *b.query_start_loc, kept[1] = *b.seq_lens;
        kept[0].data = kept_starts, kept[1].data = kept_lens;
        kept[0].byte_offset = kept[1].byte_offset = 0;
        b.query_start_loc = &kept[0];
        if (MISTAKE == READS_AT_BUILD) b.seq_lens = &kept[1];
    }
    if (MISTAKE == TAKES_NO_LISTS && (b.seq_lens == NULL || b.query_start_loc == NULL)) return ATTN_OK;
    return target->ops->build_metadata(i, &b, space, stream, error);
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    int status = target->ops->forward(i, args, space, stream, error);
    for (int64_t h = 0;
         MISTAKE == EMPTY_HAS_LSE && status == ATTN_OK && args->lse != NULL && h < args->lse->shape[0]; h++)
        for (int32_t t = 0; t < built.num_actual_tokens; t++) {
            float *lse = (float *)attn_data(args->lse) + h * args->lse->strides[0] + t;
            if (*lse < -1e30f) *lse = 0;
        }
    return status;
}

static void put_mistakes(void) {
    ops.open = open_bad;
    ops.build_metadata = build;
    ops.forward = forward;
}
