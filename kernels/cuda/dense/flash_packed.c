/* SPDX-License-Identifier: Apache-2.0 */
/* A step of few query tokens a request, as speculative decoding checks them: rows of the decode kernel, which
 * reads the keys again for each 16 of a KV head, or tiles of the prefill kernel with several heads each. By
 * what each takes, as measured (dense-notes.md). */
#include "flash_plan.h"

/* Of a KV head. */
static int row_blocks(const flash_plan_input *in, int tokens) {
    return (tokens * in->group + in->decode_rows - 1) / in->decode_rows;
}

/* Times beside reading a key of a KV head, by a multiprocessor's share of the memory's rate: of decode with
 * `blocks` of rows, and of a tile. H200, 64 requests of 8192 keys: 1.46 and 2.1 for 2 and 4 blocks of 16 rows
 * of head size 128, 1.55 for 2 of 256, 1.56 and 3.03 of 64, 1.98 and 3.94 of bytes, which each block widens;
 * of 32 rows 1.05 for one and 1.6 for two, 1.05 and 1.9 of 64, 1.4 for one of bytes. */
static double decode_time(const flash_plan_input *in, int tokens) {
    const int blocks = row_blocks(in, tokens);
    if (in->decode_rows > FLASH_FEW_ROWS) {
        const double one = in->key_bytes == 1 ? 1.4 : 1.05;
        return blocks < 2                                  ? one
               : in->key_bytes == 1 || in->head_size <= 64 ? 0.9 * one * blocks
                                                           : 0.8 * blocks;
    }
    if (blocks < 2) return 1;
    return in->key_bytes == 1 ? 0.98 * blocks : in->head_size <= 64 ? 0.76 * blocks : 0.8 + 0.33 * blocks;
}
static double tile_time(const flash_plan_input *in) {
    return in->key_bytes == 1 ? 2.3 : in->head_size <= 64 ? 1.52 : 1.16;
}

/* What decode takes besides, in keys: 5 us of 512 bytes each, which shows where requests are few. H200, by
 * decode of 24 and 32 rows and by tiles: 96/8 heads, 4x5 on 8192 keys 50.6 and 45.3 us, 64/8 of 64, 8x5 on
 * 2048 22.9 and 20.4; 8/1, 16x8 on 4096 22.4 and 19.2, and 4x5 on 8192 14.0 and 18.9. Not where tiles are
 * never cut, as in captured launches, which have tiles or not whatever the number of keys is. */
static double decode_start(const flash_plan_input *in, const flash_plan_limits *lim) {
    return lim->max_cut_rows > 0 ? 350.0 * 256 / (in->head_size * in->key_bytes) : 0;
}

/* CTAs of decode where no keys are cut. */
static double decode_ctas(const flash_plan_input *in, int requests, int tokens) {
    return (double)requests * in->num_kv_heads * row_blocks(in, tokens);
}
/* How much longer than on average a multiprocessor is at work where there are between one CTA and two for
 * each: decode does not cut keys there, and some have two. */
static double unevenness(const flash_plan_input *in, int requests, int tokens) {
    const double ctas = decode_ctas(in, requests, tokens);
    return ctas > in->num_sms && ctas <= 2.0 * in->num_sms ? 2.0 * in->num_sms / ctas : 1;
}

int flash_plan_packed(const flash_plan_input *in, const flash_plan_limits *lim, int32_t block_rows,
                      int32_t tile_heads, cut_request *scratch, flash_cut *cut) {
    double decode_keys = 0;
    int decode_tokens = 0, requests = 0, decodes = 0;
    const double whole = tile_time(in) * flash_plan_cut(in, lim, scratch, cut);
    if (!flash_may_pack(in)) return 0;
    for (int s = 0; s < in->num_seqs; s++) {
        const int q = in->q_start[s + 1] - in->q_start[s];
        if (q <= 0) continue;
        requests++;
        if (q > in->decode_tokens) continue;
        decodes++;
        decode_keys += flash_visible_span(in, s, q, 0, q - 1);
        decode_tokens = q > decode_tokens ? q : decode_tokens;
    }
    if (requests < 1) return 0;
    flash_cut packed_cut;
    flash_plan_input tiles = *in;
    tiles.decode_tokens = 0, tiles.block_rows = block_rows, tiles.tile_heads = tile_heads;
    const double packed = tile_time(in) * flash_plan_cut(&tiles, lim, scratch, &packed_cut),
                 apart = decode_keys * in->num_kv_heads / in->num_sms * decode_time(in, decode_tokens) *
                             unevenness(in, decodes, decode_tokens) +
                         (decodes > 0 ? decode_start(in, lim) : 0) + whole;
    if (packed >= 0.95 * apart) return 0;
    *cut = packed_cut;
    return 1;
}

/* No time of tiles is below that of the longest one, nor below an equal share of all; decode of fewer
 * requests may be uneven. */
int flash_may_be_packed(const flash_plan_input *in, int32_t tokens, int32_t tile_heads) {
    const double tiles = (double)in->num_seqs * in->num_kv_heads * in->group / tile_heads,
                 filled = tiles < in->num_sms ? tiles / in->num_sms : 1,
                 uneven = decode_ctas(in, in->num_seqs, tokens) > in->num_sms ? 2 : 1;
    return flash_may_pack(in) &&
           tile_time(in) < uneven * filled * tile_heads / in->group * decode_time(in, tokens);
}
