/* SPDX-License-Identifier: Apache-2.0 */
/* ref_mask.c: the mask of one request as a predicate over (query, key). */
#include "ref_mask.h"

static int in_span(const ref_mask_t *m, int64_t q, int64_t k) {
    for (int32_t i = 0; i < m->num_spans; i++) {
        int64_t start = m->spans[2 * i], end = m->spans[2 * i + 1];
        if (start >= end) continue; /* padding and single tokens (semantics 2.7) */
        if (q < start || q > end || k < start || k > end) continue;
        if (m->is_span_clamped && m->window > 0 && q - k >= m->window) continue;
        return 1;
    }
    return 0;
}

/* The order is semantics 2.6: (bound AND (lookback, else window) AND R-SWA) OR span. */
int ref_mask_visible(const ref_mask_t *m, int64_t q, int64_t k) {
    if (k < 0 || k >= m->seq_len) return 0;
    int visible = !m->is_causal || k <= q;
    if (m->chunk > 0) visible = visible && k <= q && k / m->chunk == q / m->chunk;
    if (m->lookback_chunk > 0)
        visible = visible && k <= q && q / m->lookback_chunk - k / m->lookback_chunk <= m->lookback;
    else if (m->window > 0 && m->rswa_window == 0)
        visible =
            visible && q - k < m->window && k - q < m->window; /* right side: never met by a causal row */
    if (m->rswa_window > 0) visible = visible && k <= q && (k < m->rswa_prefix || q - k < m->rswa_window);
    return visible || (m->num_spans > 0 && in_span(m, q, k));
}
