/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of MLA prefill. */
#include "mla_prefill_plan.h"

#include <string.h>

/* Launches of a prefill that a batch without one does not have: about 40 us of a GPU that makes 250e12
 * multiplications a second. */
#define LAUNCH_COST 10e9

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Work behind a border, in multiplications (semantics 7.4): each query against the keys that it sees, on
 * average, and the projections of queries and results, or of the keys. */
typedef struct work {
    double absorbed, attention, projection, tiles;
} work;

static void add_request(work *w, const mla_prefill_sizes *s, double query, double seq) {
    const double pairs = s->heads * query * (seq - (query - 1) / 2),
                 one = (double)s->heads * s->latent * (s->nope + s->value);
    w->absorbed += pairs * (2.0 * s->latent + s->rope) + query * one;
    w->attention += pairs * (s->nope + s->rope + s->value);
    w->projection += seq * one;
    const int64_t blocks = s->block_rows > 0 ? ((int64_t)query + s->block_rows - 1) / s->block_rows : 0;
    w->tiles += s->heads * (double)blocks;
}

/* What the multi-head form saves. Its attention does not cut keys: with few tiles most of the device
 * waits. */
static double gain_of(const work *w, const mla_prefill_sizes *s) {
    double idle = w->tiles > 0 && w->tiles < s->ctas ? s->ctas / w->tiles : 1;
    return w->absorbed - w->attention * idle - w->projection - LAUNCH_COST;
}

int32_t mla_prefill_border(const int32_t *q_start, const int32_t *seq_lens, int32_t num_reqs,
                           const mla_prefill_sizes *sizes, int is_forced) {
    work w = {0, 0, 0, 0};
    double best = 0;
    int32_t border = num_reqs;
    for (int32_t r = num_reqs - 1; r >= 0; r--) {
        int32_t query = q_start[r + 1] - q_start[r];
        if (query > 0) add_request(&w, sizes, query, seq_lens[r]);
        double gain = gain_of(&w, sizes);
        if (is_forced ? query > 1 : gain > best) {
            best = gain;
            border = r;
        }
    }
    return border;
}

int32_t mla_prefill_tile_capacity(const mla_prefill_limits *l, int32_t block_rows) {
    int64_t tiles = (int64_t)l->max_tokens / block_rows + l->max_seqs;
    return (int32_t)(tiles < l->max_tokens ? tiles : l->max_tokens);
}

static size_t pass_bytes(int32_t num_reqs, int32_t tiles) {
    return round_up(sizeof(flash_counts) + (2 * (size_t)num_reqs + 1) * 4, 32) +
           (size_t)tiles * sizeof(flash_tile);
}

void mla_prefill_capacity(mla_prefill_limits *l, int32_t block_rows) {
    const size_t most = (size_t)4 << 20,
                 one = pass_bytes(l->max_seqs, mla_prefill_tile_capacity(l, block_rows));
    l->metadata_bytes = round_up(one * MLA_MAX_PASSES < most ? one * MLA_MAX_PASSES
                                 : one > most                ? one
                                                             : most,
                                 256);
    l->max_passes = MLA_MAX_PASSES;
}

/* As many heads as the projected keys of this pass leave room for, in equal launches. */
static int32_t heads_of_pass(const mla_prefill_input *in, const mla_prefill_limits *l, int64_t rows,
                             int is_partial) {
    int64_t heads = l->kv_elements / ((rows > 0 ? rows : 1) * in->row_elements);
    if (is_partial && heads > l->part_heads) heads = l->part_heads;
    if (heads > in->num_heads) heads = in->num_heads;
    if (heads < 1) return 0;
    int64_t launches = (in->num_heads + heads - 1) / heads;
    return (int32_t)((in->num_heads + launches - 1) / launches);
}

/* The lists of one pass, whose starts and rows are in place. */
static int put_tiles(const mla_prefill_input *in, const mla_prefill_limits *l,
                     const mla_prefill_scratch *scratch, int32_t num_reqs, int is_last, mla_pass *pass,
                     char *metadata, size_t *at) {
    flash_plan plan = {.tile_keys = scratch->tiles};
    flash_plan_input input = in->tiles;
    int32_t *cu = (int32_t *)(void *)(metadata + pass->cu_at);
    for (int32_t r = 0; r < num_reqs; r++) {
        scratch->lens[r] = cu[r + 1] - cu[r];
        scratch->causal[r] = is_last;
    }
    int32_t tiles = 0;
    for (int32_t r = 0; r < num_reqs; r++)
        tiles += (scratch->q_start[r + 1] - scratch->q_start[r] + input.block_rows - 1) / input.block_rows;
    pass->tiles_at = *at = round_up(*at, 32);
    if (*at + (size_t)tiles * sizeof(flash_tile) > l->metadata_bytes) return -1;
    input.q_start = scratch->q_start, input.seq_lens = scratch->lens, input.k_start = cu;
    input.causal_per_seq = scratch->causal, input.num_seqs = num_reqs;
    input.num_kv_heads = in->num_heads, input.group = 1, input.window_left = input.window_right = -1;
    flash_plan_limits limits = {.max_seqs = num_reqs, .max_tokens = l->max_tokens, .max_tiles = tiles};
    plan.tiles = (flash_tile *)(void *)(metadata + *at);
    if (flash_plan_build(&input, &limits, &plan)) return -1;
    *at += (size_t)tiles * sizeof(flash_tile);
    pass->num_tiles = plan.counts.num_tiles;
    pass->keys_per_tile = plan.keys_per_tile;
    pass->num_rows = cu[num_reqs];
    memcpy(metadata + pass->counts_at, &plan.counts, sizeof plan.counts);
    return 0;
}

int32_t mla_prefill_build(const mla_prefill_input *in, const mla_prefill_limits *l,
                          const mla_prefill_scratch *scratch, mla_pass *passes, char *metadata,
                          size_t *used) {
    const int32_t n = in->num_reqs - in->first_request, *q = in->q_start + in->first_request;
    const attn_mla_context_params_t params = {
        .struct_size = sizeof params, .block_size = in->page_size, .workspace_tokens = l->workspace_tokens};
    attn_mla_context_t c;
    for (int32_t r = 0; r < n; r++) { /* a request without queries needs no keys */
        scratch->q_start[r] = q[r] - q[0];
        scratch->lens[r] = q[r + 1] > q[r] ? in->seq_lens[in->first_request + r] : 0;
    }
    scratch->q_start[n] = q[n] - q[0];
    if (in->table->mla_context_size(&params, scratch->q_start, scratch->lens, n, &c, NULL) != ATTN_OK)
        return 0;
    const int32_t num_passes = c.num_chunks > 1 ? c.num_chunks : 1;
    const size_t ints = (size_t)num_passes * (2 * (size_t)n + 1) * 4;
    size_t at = round_up((size_t)num_passes * sizeof(flash_counts), 32), starts_at = at;
    at += ints;
    if (num_passes > l->max_passes || at > l->metadata_bytes) return 0;
    int32_t *starts = (int32_t *)(void *)(metadata + starts_at),
            *cu = starts + (size_t)num_passes * (size_t)n;
    memset(starts, 0, ints);
    if (in->table->mla_context(&params, scratch->q_start, scratch->lens, n, c.num_chunks, starts, cu, NULL,
                               NULL, NULL) != ATTN_OK)
        return 0;
    int32_t *last_start = starts + (size_t)(num_passes - 1) * (size_t)n,
            *last_cu = cu + (size_t)(num_passes - 1) * ((size_t)n + 1);
    last_cu[0] = 0;
    for (int32_t r = 0; r < n; r++) { /* the new tokens join the last chunk */
        const int32_t context = scratch->lens[r] - (scratch->q_start[r + 1] - scratch->q_start[r]);
        if (last_start[r] > context) last_start[r] = context;
        last_cu[r + 1] = last_cu[r] + scratch->lens[r] - last_start[r];
    }
    for (int32_t j = 0; j < num_passes; j++) {
        mla_pass *p = &passes[j];
        p->counts_at = (size_t)j * sizeof(flash_counts);
        p->starts_at = starts_at + (size_t)j * (size_t)n * 4;
        p->cu_at = starts_at + ((size_t)num_passes * (size_t)n + (size_t)j * ((size_t)n + 1)) * 4;
        if (put_tiles(in, l, scratch, n, j == num_passes - 1, p, metadata, &at)) return 0;
        p->heads = heads_of_pass(in, l, p->num_rows, num_passes > 1);
        if (p->heads < 1) return 0;
    }
    *used = at;
    return num_passes;
}
