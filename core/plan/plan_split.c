/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_split.c: where decodes end and prefills begin in a batch, and the order that makes such a border exist
 * (semantics 1.4).
 */
#include "base/arith.h"
#include "plan/check_batch.h"

#include <attn/attn_plan.h>

static void put_border(const int32_t *starts, int32_t num_reqs, int32_t first_prefill, attn_split_t *split) {
    split->num_decodes = first_prefill;
    split->num_prefills = num_reqs - first_prefill;
    split->num_decode_tokens = starts[first_prefill];
    split->num_prefill_tokens = starts[num_reqs] - starts[first_prefill];
}

/* The longest query; *uniform: all have the first one's length or, as graph padding, none. */
static int32_t longest_query(const int32_t *starts, int32_t num_reqs, int *uniform) {
    int32_t longest = 0, first = num_reqs > 0 ? starts[1] : 0;
    *uniform = 1;
    for (int32_t r = 0; r < num_reqs; r++) {
        int32_t len = starts[r + 1] - starts[r];
        if (len > longest) longest = len;
        if (len != first && len != 0) *uniform = 0;
    }
    return longest;
}

int attn_plan_split(const int32_t *query_start_loc, int32_t num_reqs, const uint8_t *is_prefilling,
                    int32_t threshold, uint32_t flags, attn_split_t *split, attn_error_t *error) {
    const uint32_t known = ATTN_SPLIT_REQUIRE_UNIFORM | ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL;
    ATTNI_NEED(split, "split", error);
    ATTNI_AT_LEAST(threshold, 1, "threshold", error);
    if ((flags & ~known) != 0)
        return attn_fail(error, ATTN_E_INVALID, "flags", "flags is 0x%x; only 0x%x is known", (unsigned)flags,
                         (unsigned)known);
    int code = attni_check_starts(query_start_loc, num_reqs, error);
    if (code != ATTN_OK) return code;
    int need_uniform = (flags & ATTN_SPLIT_REQUIRE_UNIFORM) != 0;
    int extends_decode = (flags & ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL) == 0;
    if (!extends_decode && num_reqs > 0) ATTNI_NEED(is_prefilling, "is_prefilling", error);

    int uniform;
    int32_t longest = longest_query(query_start_loc, num_reqs, &uniform);
    int32_t first_prefill = num_reqs;
    if (longest <= threshold && (!need_uniform || threshold <= 1) && extends_decode) {
        put_border(query_start_loc, num_reqs, num_reqs, split);
        return ATTN_OK;
    }
    if (num_reqs > 0 && query_start_loc[1] > threshold) {
        put_border(query_start_loc, num_reqs, 0, split);
        return ATTN_OK;
    }
    if (!(need_uniform && extends_decode && uniform)) {
        for (int32_t r = 0; r < num_reqs && first_prefill == num_reqs; r++) {
            int32_t len = query_start_loc[r + 1] - query_start_loc[r];
            int is_prefill = need_uniform ? len != query_start_loc[1] : len > threshold;
            if (is_prefill || (!extends_decode && is_prefilling[r])) first_prefill = r;
        }
    }
    put_border(query_start_loc, num_reqs, first_prefill, split);
    return ATTN_OK;
}

int attn_plan_split3(const int32_t *query_start_loc, const int32_t *seq_lens, int32_t num_reqs,
                     int32_t threshold, attn_split3_t *split, attn_error_t *error) {
    ATTNI_NEED(split, "split", error);
    ATTNI_AT_LEAST(threshold, 1, "threshold", error);
    int code = attni_check_starts(query_start_loc, num_reqs, error);
    if (code == ATTN_OK) code = attni_check_lens(query_start_loc, seq_lens, num_reqs, error);
    if (code != ATTN_OK) return code;
    int32_t first_long = num_reqs, first_prefill = num_reqs;
    for (int32_t r = num_reqs - 1; r >= 0; r--) {
        int32_t len = query_start_loc[r + 1] - query_start_loc[r];
        if (len <= threshold) continue;
        first_long = r;
        if (seq_lens[r] == len) first_prefill = r;
    }
    split->num_decodes = first_long;
    split->num_extends = first_prefill - first_long;
    split->num_prefills = num_reqs - first_prefill;
    split->num_decode_tokens = query_start_loc[first_long];
    split->num_extend_tokens = query_start_loc[first_prefill] - query_start_loc[first_long];
    split->num_prefill_tokens = query_start_loc[num_reqs] - query_start_loc[first_prefill];
    return ATTN_OK;
}

enum { DECODE, SHORT_EXTEND, LONG_EXTEND, PREFILL, NUM_REGIONS };

static int region_of(int32_t context_len, int32_t query_len, int unfinished, int32_t threshold) {
    if (context_len == 0) return PREFILL;
    if (query_len > threshold) return LONG_EXTEND;
    return unfinished ? SHORT_EXTEND : DECODE;
}

/* The requests that sit in another region's places trade those places among themselves, in the order of
 * regions and, within one, in their own order. Two cursors do it without a buffer: `to` runs over the
 * misplaced places, `from` over the misplaced requests of one region. */
int attn_plan_reorder(const int32_t *context_lens, const int32_t *query_lens, const uint8_t *is_prefilling,
                      int32_t num_reqs, int32_t threshold, int32_t *order, int32_t *moved,
                      attn_error_t *error) {
    ATTNI_AT_LEAST(num_reqs, 0, "num_reqs", error);
    ATTNI_AT_LEAST(threshold, 1, "threshold", error);
    ATTNI_NEED(moved, "moved", error);
    if (num_reqs > 0) {
        ATTNI_NEED(context_lens, "context_lens", error);
        ATTNI_NEED(query_lens, "query_lens", error);
        ATTNI_NEED(order, "order", error);
    }
    int32_t border[NUM_REGIONS + 1] = {0}; /* border[g]: first place of region g */
    for (int32_t r = 0; r < num_reqs; r++) {
        ATTNI_AT_LEAST(context_lens[r], 0, "context_lens", error);
        ATTNI_AT_LEAST(query_lens[r], 0, "query_lens", error);
        border[region_of(context_lens[r], query_lens[r], is_prefilling && is_prefilling[r], threshold) + 1]++;
    }
    for (int g = 0; g < NUM_REGIONS; g++)
        border[g + 1] += border[g];

#define REGION(r)   region_of(context_lens[r], query_lens[r], is_prefilling &&is_prefilling[r], threshold)
#define IN_PLACE(r) ((r) >= border[REGION(r)] && (r) < border[REGION(r) + 1])
    int32_t to = 0;
    *moved = 0;
    for (int g = 0; g < NUM_REGIONS; g++) {
        for (int32_t from = 0; from < num_reqs; from++) {
            if (REGION(from) != g) continue;
            if (IN_PLACE(from)) {
                order[from] = from;
                continue;
            }
            while (IN_PLACE(to))
                to++;
            order[to++] = from;
            *moved = 1;
        }
    }
#undef IN_PLACE
#undef REGION
    return ATTN_OK;
}

int32_t attn_plan_reorder_threshold(int32_t base, int32_t spec_as_decode, int32_t num_spec_tokens,
                                    int32_t parallel_drafting, int32_t dcp_world_size, int32_t dcp_varlen) {
    if (base <= 0) return 0;
    int64_t threshold = base;
    if (spec_as_decode && num_spec_tokens > 0)
        threshold = attni_max64(threshold, 1 + (parallel_drafting ? 2 : 1) * (int64_t)num_spec_tokens);
    if (dcp_world_size > 1 && !dcp_varlen) threshold = 1;
    return threshold > INT32_MAX ? INT32_MAX : (int32_t)threshold;
}
