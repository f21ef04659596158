/* SPDX-License-Identifier: Apache-2.0 */
/* A step of few query tokens a request, as speculative decoding checks them: rows of the decode kernel, which
 * reads the keys again for each 16 of a KV head, or tiles of the prefill kernel with several heads each. By
 * what each takes, as measured (dense-notes.md). */
#include "flash_plan.h"

/* Times beside reading a key of a KV head, by a multiprocessor's share of the memory's rate: of decode with
 * `blocks` of 16 rows, and of a tile. H200, 64 requests of 8192 keys: 1.46 and 2.1 for 2 and 4 blocks of head
 * size 128, 1.55 for 2 of 256, 1.56 and 3.03 of 64, 1.98 and 3.94 of bytes, which each block widens. */
static double decode_time(int blocks, int head_size, int key_bytes) {
    if (blocks < 2) return 1;
    return key_bytes == 1 ? 0.98 * blocks : head_size <= 64 ? 0.76 * blocks : 0.8 + 0.33 * blocks;
}
static double tile_time(int head_size, int key_bytes) {
    return key_bytes == 1 ? 2.3 : head_size <= 64 ? 1.52 : 1.16;
}

/* Tiles of all requests, `a_request` each, on num_sms. */
static double tiles_time(double keys, double longest, double requests, double a_request, int num_sms) {
    const double tiles = requests * a_request,
                 waves = (double)(int64_t)((tiles + num_sms - 1) / num_sms) * longest,
                 drawn = keys * a_request / num_sms + longest / 2, time = waves < drawn ? waves : drawn;
    return time > longest ? time : longest;
}

int flash_plan_packed(const flash_plan_input *in, int32_t tile_heads, int32_t head_size, int32_t num_sms,
                      int32_t key_bytes) {
    double keys = 0, longest = 0, requests = 0;
    int most = 0;
    if (!flash_may_pack(in)) return 0;
    for (int s = 0; s < in->num_seqs; s++) {
        const int q = in->q_start[s + 1] - in->q_start[s];
        if (q <= 0) continue;
        const double span = flash_visible_span(in, s, q, 0, q - 1);
        keys += span;
        longest = span > longest ? span : longest;
        most = q > most ? q : most;
        requests++;
    }
    if (requests < 1) return 0;
    const double heads = in->num_kv_heads, tile = tile_time(head_size, key_bytes);
    const double packed = tile * tiles_time(keys, longest, requests, heads * in->group / tile_heads, num_sms);
    const double apart =
        most > in->decode_tokens
            ? tile * tiles_time(keys, longest, requests,
                                heads * in->group / (in->tile_heads > 0 ? in->tile_heads : 1), num_sms)
            : keys * heads / num_sms * decode_time((most * in->group + 15) / 16, head_size, key_bytes);
    return packed < 0.95 * apart;
}

/* No time of tiles is below that of the longest one, nor below an equal share of all. */
int flash_may_be_packed(const flash_plan_input *in, int32_t tokens, int32_t tile_heads, int32_t head_size,
                        int32_t num_sms, int32_t key_bytes) {
    const double tiles = (double)in->num_seqs * in->num_kv_heads * in->group / tile_heads,
                 filled = tiles < num_sms ? tiles / num_sms : 1;
    return flash_may_pack(in) && tile_time(head_size, key_bytes) <
                                     filled * tile_heads / in->group *
                                         decode_time((tokens * in->group + 15) / 16, head_size, key_bytes);
}
