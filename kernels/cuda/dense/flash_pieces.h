/* SPDX-License-Identifier: Apache-2.0 */
/* Into how many pieces decode cuts the keys of requests, and which CTAs read them: flash_plan.c's choice. */
#ifndef FLASH_PIECES_H
#define FLASH_PIECES_H

#include "flash_plan.h"

static inline int min_i(int a, int b) {
    return a < b ? a : b;
}
static inline int max_i(int a, int b) {
    return a > b ? a : b;
}
static inline int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

/* What decode serves of a batch. */
typedef struct flash_decode_batch {
    const flash_plan_input *in;
    flash_plan_request *r;
    int n, longest, ctas; /* longest: keys; ctas: of all requests in one piece */
    int rows;             /* query rows of a CTA that are there at most */
    int max_slots;
    int is_alone; /* there are no prompts, beside which clusters would find no room */
} flash_decode_batch;

/* The pieces of every request, and the plan's mode, cluster and most_items. */
void flash_choose_pieces(flash_decode_batch *batch, flash_plan *plan);

#endif
