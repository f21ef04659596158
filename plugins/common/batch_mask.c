/* SPDX-License-Identifier: Apache-2.0 */
/* Causal flags, R-SWA prefixes and spans of a batch: checks, and reading them on the host. */
#include "batch_mask.h"

int batch_check_masks(const attn_problem_t *p, const attn_batch_t *b, attn_error_t *error) {
    int status = ATTN_OK;
    if (b->num_reqs == 0) return ATTN_OK;
    if (p->mask == ATTN_MASK_PER_REQUEST && b->causal_host == NULL)
        status = batch_check_list(b->causal, "causal", b->num_reqs, error);
    if (status == ATTN_OK && p->rswa_window != 0 && b->rswa_prefix_lens_host == NULL)
        status = batch_check_list(b->rswa_prefix_lens, "rswa_prefix_lens", b->num_reqs, error);
    return status;
}

static int32_t entry(const DLTensor *t, int32_t r) {
    return ((const int32_t *)attn_data(t))[r * t->strides[0]];
}

int32_t batch_causal(const attn_problem_t *p, const attn_batch_t *b, int32_t r) {
    if (p->mask != ATTN_MASK_PER_REQUEST) return p->mask == ATTN_MASK_CAUSAL;
    return b->causal_host != NULL ? b->causal_host[r] != 0 : entry(b->causal, r) != 0;
}

int32_t batch_prefix(const attn_problem_t *p, const attn_batch_t *b, int32_t r) {
    if (p->rswa_window == 0) return 0;
    return b->rswa_prefix_lens_host != NULL ? b->rswa_prefix_lens_host[r] : entry(b->rswa_prefix_lens, r);
}

int batch_check_spans(const attn_problem_t *p, const attn_batch_t *b, uint32_t max_spans, int32_t *count,
                      attn_error_t *error) {
    int64_t n = 0;
    *count = 0;
    if (b->mm_prefix_ranges_host != NULL) {
        n = b->num_mm_ranges;
    } else if (b->mm_prefix_ranges != NULL) {
        const int64_t shape[3] = {-1, -1, 2};
        int status =
            attn_check_tensor(b->mm_prefix_ranges, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, shape, error);
        if (status != ATTN_OK) return status;
        if (b->mm_prefix_ranges->shape[0] < b->num_reqs)
            return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                             "mm_prefix_ranges has %lld rows for %d requests",
                             (long long)b->mm_prefix_ranges->shape[0], b->num_reqs);
        n = b->mm_prefix_ranges->shape[1];
    }
    if (n != 0 && (attn_problem_features(p) & ATTN_F_MM_PREFIX) == 0)
        return attn_fail(
            error, ATTN_E_INVALID, "mm_prefix_ranges",
            "spans were given, but the problem has no feature mm_prefix; request it in features");
    if (n < 0 || n > max_spans)
        return attn_fail(error, ATTN_E_INVALID, "mm_prefix_ranges",
                         "%lld spans per request were given; at most %u (max_mm_ranges) were declared",
                         (long long)n, max_spans);
    *count = (int32_t)n;
    return ATTN_OK;
}

void batch_copy_spans(const attn_batch_t *b, int32_t count, int32_t *out) {
    const DLTensor *t = b->mm_prefix_ranges;
    for (int32_t r = 0; r < b->num_reqs; r++)
        for (int32_t i = 0; i < count; i++, out += 2) {
            const int32_t *span = b->mm_prefix_ranges_host != NULL
                                      ? b->mm_prefix_ranges_host + ((int64_t)r * count + i) * 2
                                      : (const int32_t *)attn_data(t) + r * t->strides[0] + i * t->strides[1];
            out[0] = span[0];
            out[1] = span[1];
        }
}
