/* SPDX-License-Identifier: Apache-2.0 */
/* A short prompt behind a long context has few tiles, each with all the keys: they are cut into pieces, which
 * the merge joins, so that no SM is idle. Every row sees all of a piece but its request's last, so the others
 * are tiles without a mask. Measurements: dense-notes.md. */
#include "flash_plan.h"

int32_t flash_pieces_of(const flash_plan_input *in, int32_t seq) {
    const int32_t keys = in->seq_lens[seq], tokens = in->q_start[seq + 1] - in->q_start[seq];
    return cut_pieces_of(keys, flash_is_causal(in, seq) ? keys - tokens + 1 : keys, in->piece_keys);
}

double flash_plan_cut(const flash_plan_input *in, const flash_plan_limits *lim, cut_request *r,
                      flash_cut *cut) {
    int32_t n = 0, end = 0;
    *cut = (flash_cut){.pieces = 1};
    for (int32_t s = 0; s < in->num_seqs; s++) {
        const int32_t tokens = in->q_start[s + 1] - in->q_start[s];
        if (tokens <= in->decode_tokens || tokens <= 0) continue;
        const int32_t keys = flash_visible_span(in, s, tokens, 0, tokens - 1);
        if (n == 0) cut->first_row = in->q_start[s];
        end = in->q_start[s + 1];
        r[n++] = (cut_request){keys, flash_is_causal(in, s) ? keys - tokens + 1 : keys,
                               flash_row_tiles(in, tokens)};
    }
    cut->num_rows = end - cut->first_row;
    const cut_limits limits = {.heads = flash_tile_ctas(in),
                               .slots = in->num_sms,
                               .grain = 128,
                               .max_entries = lim->max_tiles,
                               .max_rows = flash_may_cut(in) ? lim->max_cut_rows : 0,
                               .rows_a_piece = (int64_t)cut->num_rows * in->num_kv_heads * in->group,
                               .start = 160,
                               .merge = 400};
    double time;
    cut->piece_keys = cut_keys(r, n, &limits, &cut->pieces, &time);
    return time;
}
