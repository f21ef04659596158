/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the Hopper prefill kernel: the common ones, and the tensor maps by which TMA reads Q, K and
 * V. */
#ifndef PREFILL_SM90_H
#define PREFILL_SM90_H

#include "flash_launch.h"

#include <cuda.h>

typedef struct flash_sm90_params {
    CUtensorMap q_map, k_map, v_map, k_tail_map;
    CUtensorMap q_tail_map, v_tail_map; /* resident: columns behind whole lines; k_tail_map's too */
    CUtensorMap o_map;                  /* 16 rows of the result */
    flash_params p;
    /* paged: coordinate of a page and head in the last dimension of the maps = page * page_units + head *
     * head_units */
    int32_t k_page_units, k_head_units, v_page_units, v_head_units;
    int32_t box_rows; /* keys of one box: a power of two that divides the page and the tile; resident: of a
                        * block */
    int32_t resident_keys; /* that there is shared memory for */
    int32_t overlap;       /* run the end of a tile under the start of the next */
    int32_t k_tail_at;     /* columns of contiguous keys from here on are those of k_tail_map */
    int32_t o_boxes;       /* whole boxes of the result may leave by o_map */
    /* Of a tile's rows: the tokens of one head after those of the one before. Where there is room for more
     * heads, the rows left over are nobody's. token_mask, token_shift: of a row, its token and its head. Or,
     * with band_tokens, so are each warpgroup's 64 rows, with the tokens after those of the one before.
     * head_mask: of a row, what says its head. */
    int32_t tile_tokens, tile_heads, token_mask, token_shift, band_tokens, head_mask;
    int32_t second_token; /* from a row of a tile to the one 8 behind it: 8, or 0 in tiles of 8 tokens */
    int32_t head_section; /* query heads that run side by side; divides num_q_heads */
    flash_prefill_more more;
} flash_sm90_params;

#endif
