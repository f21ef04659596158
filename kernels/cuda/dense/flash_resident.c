/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders of short requests: their keys fit shared memory whole. Which blocks of keys, and how many rows of a
 * request a CTA takes (dense-notes.md). */
#include "dense_tiles.h"
#include "flash_plan.h"

#define ROW(NAME, D, ...) D,
const int16_t flash_resident_classes[FLASH_NUM_RESIDENT_CLASSES] = {DENSE_RESIDENT_CLASSES(ROW, )};

int flash_choose_resident(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    if (s->force_sm80 || d->major != 9 || s->page_size != 0 || s->kv_dtype != s->q_dtype ||
        s->q_dtype == FLASH_E4M3 || s->head_size != s->head_size_v || s->has_features)
        return -1;
    for (int i = 0; i < FLASH_NUM_RESIDENT_CLASSES; i++) {
        const int size = flash_resident_classes[i];
        if (s->head_size > size ||
            RESIDENT_SM90_SMEM(size, 2, RESIDENT_SM90_KEYS(size)) + 1024 > d->smem_optin)
            continue;
        *c = (flash_prefill_config){.kind = FLASH_PREFILL_RESIDENT, .class_index = i, .tile_heads = 1};
        return 0;
    }
    return -1;
}

/* What a block of keys takes beside its keys, in keys. */
enum { BLOCK_COST = 24 };

static int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

/* Blocks of that size of all requests that are tiles, in time; -1: the longest does not fit. */
static double time_of(const flash_plan_input *in, int32_t block, int32_t longest, int32_t most) {
    double time = 0;
    if (ceil_div(longest, block) * block > most || ceil_div(longest, block) > RESIDENT_SM90_BLOCKS) return -1;
    for (int s = 0; s < in->num_seqs; s++)
        if (in->q_start[s + 1] - in->q_start[s] > in->decode_tokens)
            time += (double)ceil_div(in->seq_lens[s], block) * (block + BLOCK_COST);
    return time;
}

/* Tiles of that many rows; later batches have no more than one a request. */
static int32_t tiles_of(const flash_plan_input *in, int32_t rows) {
    int32_t n = 0;
    for (int s = 0; s < in->num_seqs; s++) {
        const int32_t tokens = in->q_start[s + 1] - in->q_start[s];
        if (tokens > in->decode_tokens) n += ceil_div(tokens, rows);
    }
    return n;
}

int flash_plan_resident(const flash_plan_input *in, const flash_plan_limits *lim,
                        const flash_prefill_config *chosen, int32_t longest, flash_prefill_config *c) {
#define SIZE(BN) BN,
    static const int32_t blocks[] = {RESIDENT_SM90_WIDE(SIZE) RESIDENT_SM90_NARROW(SIZE)};
    static const int num_wide = sizeof(int32_t[]){RESIDENT_SM90_WIDE(SIZE)} / sizeof(int32_t);
    if (in->num_splits != 0 || in->window_left >= 0 || in->window_right >= 0 || in->chunk != 0 ||
        in->first_key != 0)
        return 0;
    int32_t most_keys = longest, most_tokens = longest, requests = 0;
    for (int s = 0; s < in->num_seqs; s++) {
        const int32_t tokens = in->q_start[s + 1] - in->q_start[s];
        if (tokens <= in->decode_tokens) continue;
        if (flash_is_causal(in, s)) return 0;
        requests++;
        if (in->seq_lens[s] > most_keys) most_keys = in->seq_lens[s];
        if (tokens > most_tokens) most_tokens = tokens;
    }
    if (requests == 0 && longest == 0) return 0;
    const int size = flash_resident_classes[chosen->class_index];
    const int num_blocks = size <= 64 ? (int)(sizeof blocks / sizeof *blocks) : num_wide;
    *c = *chosen;
    double least = 0;
    for (int i = 0; i < num_blocks; i++) {
        const double time = time_of(in, blocks[i], most_keys, RESIDENT_SM90_KEYS(size));
        if (time < 0 || (c->keys > 0 && time >= least)) continue;
        least = time;
        c->block_keys = blocks[i], c->keys = ceil_div(most_keys, blocks[i]) * blocks[i];
    }
    if (c->keys == 0) return 0;
    /* All rows of a request read its keys once, where that leaves no SM idle. */
    for (c->block_rows = 256; c->block_rows > 64; c->block_rows /= 2) {
        const int32_t half = c->block_rows / 2;
        if (most_tokens <= half) continue;
        if (longest > 0 || tiles_of(in, c->block_rows) * in->num_kv_heads * in->group >= in->num_sms ||
            tiles_of(in, half) > lim->max_tiles)
            break;
    }
    return tiles_of(in, c->block_rows) <= lim->max_tiles;
}
