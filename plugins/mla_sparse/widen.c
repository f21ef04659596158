/* SPDX-License-Identifier: Apache-2.0 */
/* Between the adapter and the 16-bit copy: its room, the choice of requests, its launch, and the parameters
 * of slices that attend to it. In the workspace lie the counts and the table that the copy makes, then its
 * rows. */
#include "widen.h"

/* Rows of the copy, 144 MiB of them at most; entries of its table beside their pages, for requests of
 * different lengths. */
enum { WIDEN_MOST_ROWS = 131072, TABLES = 4 };

static size_t table_at(const attn_instance_t *in) {
    return in->widen_at + mla_round_up(sizeof(mla_counts), 256);
}
static size_t rows_at(const attn_instance_t *in) {
    return table_at(in) + mla_round_up((size_t)in->widen_pages * TABLES * sizeof(int32_t), 256);
}

/* Not with batch invariance, since which kernel attends would depend on the batch; nor where lengths are
 * known to the device alone. */
static void open_copy(attn_instance_t *in, const attn_option_value_t *options, uint32_t num_options) {
    const int choice = num_options > MLA_OPTION_WIDEN ? (int)options[MLA_OPTION_WIDEN].i : MLA_WIDEN_AUTO;
    const int64_t longest = in->problem.max_model_len ? (int64_t)in->problem.max_model_len : WIDEN_MOST_ROWS;
    const int64_t most = longest * in->limits.max_seqs,
                  rows = most < WIDEN_MOST_ROWS ? most : WIDEN_MOST_ROWS;
    if (in->config.kernel != MLA_KERNEL_SPARSE_SM90 || in->cache_kind != MLA_CACHE_DS || in->plan.is_bound ||
        in->is_fp8_query || in->page_size % 4 != 0 || choice == MLA_WIDEN_OFF ||
        (attn_problem_features(&in->problem) & ATTN_F_BATCH_INVARIANT) != 0)
        return;
    in->widen_always = choice == MLA_WIDEN_ON;
    in->widen_pages = (int32_t)((rows + in->page_size - 1) / in->page_size);
    in->widen_starts_at = in->metadata.bytes;
    in->metadata.bytes += mla_round_up(((size_t)in->limits.max_seqs + 1) * sizeof(int32_t), 256);
    in->widen_at = in->metadata.workspace_bytes;
    in->metadata.workspace_bytes =
        rows_at(in) + mla_round_up((size_t)in->widen_pages * (size_t)in->page_size * WIDENED_ROW, 256);
}

static size_t build(const attn_instance_t *in, const attn_batch_t *b, widened *chosen, char *mirror) {
    const widen_batch batch = {.q_start = b->query_start_loc_host,
                               .seq_lens = b->seq_lens_host,
                               .num_reqs = b->num_reqs,
                               .num_heads = in->heads,
                               .topk = in->plan.topk,
                               .page_size = in->page_size,
                               .max_pages = in->widen_pages,
                               .max_entries = in->widen_pages * TABLES,
                               .always = in->widen_always};
    *chosen = widen_choose(&batch);
    if (chosen->num_pages == 0) return 0;
    widen_starts(&batch, chosen, (int32_t *)(void *)(mirror + in->widen_starts_at));
    return ((size_t)chosen->num_reqs + 1) * sizeof(int32_t);
}

static int copy(const attn_instance_t *in, const mla_attend_params *p, const attn_space_t *s,
                const widened *chosen, void *stream) {
    char *work = s->workspace;
    const widen_params x = {.counts = p->counts,
                            .made = (mla_counts *)(void *)(work + in->widen_at),
                            .starts = (const int32_t *)(void *)((char *)s->metadata + in->widen_starts_at),
                            .table = (int32_t *)(void *)(work + table_at(in)),
                            .cache = p->cache,
                            .rows = work + rows_at(in),
                            .cache_page = p->cache_page,
                            .cache_row = p->cache_row,
                            .cache_pages = p->num_pages,
                            .first_request = chosen->first_request,
                            .num_reqs = chosen->num_reqs,
                            .longest = chosen->longest,
                            .page_size = in->page_size,
                            .dtype = in->dtype};
    return widen_rows(&x, stream);
}

static void use(const attn_instance_t *in, const attn_space_t *s, const widened *chosen,
                mla_attend_params *p) {
    char *work = s->workspace;
    p->counts = (const mla_counts *)(void *)(work + in->widen_at);
    p->cache = work + rows_at(in), p->cache_kind = MLA_CACHE_16;
    p->cache_row = WIDENED_ROW, p->cache_page = (int64_t)in->page_size * WIDENED_ROW;
    p->num_pages = chosen->num_pages;
    p->in_order = 1; /* rows, table and counts come from a launch of this call */
}

const mla_widen_ops widen_ops = {.open = open_copy, .build = build, .copy = copy, .use = use};
