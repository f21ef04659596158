/* SPDX-License-Identifier: Apache-2.0 */
/* Work list of a cascade's pass over the common prefix. Every query row sees the whole prefix, so all tiles
 * cost the same; few tiles get the keys in pieces, so that no SM is idle, and the merge takes the pieces with
 * the suffix. */
#include "flash_plan.h"

enum { MIN_PIECE = 512, MAX_PIECES = 8 };

static int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

static int32_t pieces_of(const flash_plan_input *in, int32_t tiles) {
    int32_t fit = in->num_sms / (tiles * flash_tile_ctas(in));
    return fit < 1 ? 1 : fit > MAX_PIECES ? MAX_PIECES : fit;
}

int32_t flash_prefix_capacity(const flash_plan_input *shape, int32_t max_tokens) {
    int32_t tiles = flash_row_tiles(shape, max_tokens), most = tiles;
    for (int32_t n = 1; n <= tiles && n <= shape->num_sms; n++) {
        int32_t cut = n * pieces_of(shape, n);
        most = cut > most ? cut : most;
    }
    return most;
}

int flash_plan_prefix(const flash_plan_input *in, int32_t tokens, int32_t capacity, flash_tile *tiles,
                      flash_prefix_plan *plan) {
    int32_t prefix = in->first_key, blocks = tokens > 0 ? flash_row_tiles(in, tokens) : 0;
    *plan = (flash_prefix_plan){0, 0, 0};
    if (blocks == 0 || prefix <= 0) return 0;
    int32_t pieces = pieces_of(in, blocks), most = prefix / MIN_PIECE;
    if (pieces > most) pieces = most > 0 ? most : 1;
    plan->piece_keys = ceil_div(ceil_div(prefix, pieces), 128) * 128;
    plan->pieces = ceil_div(prefix, plan->piece_keys);
    if (plan->pieces * blocks > capacity) return -1;
    for (int32_t b = 0; b < blocks; b++)
        for (int32_t k = 0; k < plan->pieces; k++) {
            int32_t first = k * plan->piece_keys, end = first + plan->piece_keys;
            tiles[plan->num_tiles++] =
                (flash_tile){0, b, 0, first, 0, tokens, end < prefix ? end : prefix, 0};
        }
    return 0;
}
