/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders of short requests: their keys fit shared memory whole. Which blocks of keys, and how many rows of
 * a request a CTA takes (dense-notes.md). */
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
enum { BLOCK_COST = 48 };

static int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}
static int32_t tokens_of(const flash_plan_input *in, int s) { /* 0: the decode kernel's, or none */
    const int32_t tokens = in->q_start[s + 1] - in->q_start[s];
    return tokens > in->decode_tokens ? tokens : 0;
}

/* The block of keys by which all requests take least, and the keys of the longest; 0: it has too many. */
static int32_t choose_block(const flash_plan_input *in, int size, int32_t longest, int32_t *keys) {
#define SIZE(BN) BN,
    static const int32_t blocks[] = {RESIDENT_SM90_SIZES(SIZE)};
    int32_t best = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < (int)(sizeof blocks / sizeof *blocks); i++) {
        const int32_t block = blocks[i], most = ceil_div(longest, block);
        int64_t time = 0;
        if (!RESIDENT_SM90_FITS(size, block) || most < 1 || most > RESIDENT_SM90_BLOCKS ||
            most * block > RESIDENT_SM90_KEYS(size))
            continue;
        for (int s = 0; s < in->num_seqs; s++)
            if (tokens_of(in, s) > 0)
                time += (int64_t)ceil_div(in->seq_lens[s], block) * (block + BLOCK_COST);
        if (time < least) least = time, best = block, *keys = most * block;
    }
    return best;
}

static int32_t tiles_of(const flash_plan_input *in, int32_t rows) {
    int32_t n = 0;
    for (int s = 0; s < in->num_seqs; s++)
        n += ceil_div(tokens_of(in, s), rows);
    return n;
}

int flash_plan_resident(const flash_plan_input *in, const flash_plan_limits *lim,
                        const flash_prefill_config *chosen, int32_t longest, flash_prefill_config *c) {
    const int32_t heads = in->num_kv_heads * in->group;
    int32_t most_keys = longest, most_tokens = longest;
    if (in->num_splits != 0 || in->window_left >= 0 || in->window_right >= 0 || in->chunk != 0 ||
        in->first_key != 0)
        return 0;
    for (int s = 0; s < in->num_seqs; s++) {
        const int32_t tokens = tokens_of(in, s);
        if (tokens == 0) continue;
        if (flash_is_causal(in, s)) return 0;
        if (in->seq_lens[s] > most_keys) most_keys = in->seq_lens[s];
        if (tokens > most_tokens) most_tokens = tokens;
    }
    *c = *chosen;
    c->block_keys = choose_block(in, flash_resident_classes[c->class_index], most_keys, &c->keys);
    if (most_tokens == 0 || c->block_keys == 0) return 0;
    /* All rows of a request read its keys once, where that leaves no SM idle. A graph's batches have the
     * tiles of the other kernel, whichever of the two was captured. */
    c->block_rows = longest > 0 ? in->block_rows : 256;
    for (; longest == 0 && c->block_rows > 64; c->block_rows /= 2)
        if (most_tokens > c->block_rows / 2 && (tiles_of(in, c->block_rows) * heads >= in->num_sms ||
                                                tiles_of(in, c->block_rows / 2) > lim->max_tiles))
            break;
    return tiles_of(in, c->block_rows) <= lim->max_tiles;
}
