/* SPDX-License-Identifier: Apache-2.0 */
/* Work lists of a batch, made on the host from host lengths: which requests the decode kernel serves and into
 * how many pieces their keys are cut, which query tiles the prefill kernel runs and in what order. Pure
 * functions. */
#ifndef FLASH_PLAN_H
#define FLASH_PLAN_H

#include "../cut_keys.h"
#include "flash_config.h"
#include "flash_params.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FLASH_MAX_PIECES = 256 };
/* Query rows of a decode CTA up to which four warps multiply faster than an SM reads. */
enum { FLASH_FEW_ROWS = 16 };

typedef struct flash_plan_limits {
    int32_t max_seqs;                   /* requests */
    int32_t max_tokens;                 /* query tokens of a batch */
    int32_t max_items;                  /* capacities of the lists */
    int32_t max_tiles, max_whole_tiles; /* with pieces; where none is cut, as in captured launches */
    int32_t max_slots;                  /* partial results: pieces of split requests */
    int64_t max_cut_rows; /* rows of heads in all pieces of tiles, an input; 0: tiles are never cut */
    int32_t max_spans;    /* requests whose tiles are cut */
} flash_plan_limits;

/* CTAs of the decode kernel: of 4 warps; of 8, twice the bytes in flight, for batches that do not fill the
 * machine; of 2, for batches that are one wave of them, but two of others. */
enum flash_decode_mode { FLASH_SMALL_CTAS = 0, FLASH_LARGE_CTAS = 1, FLASH_NARROW_CTAS = 2, FLASH_MODES = 3 };

/* A configuration of the decode kernel as the planner sees it. */
typedef struct flash_plan_mode {
    int32_t slots;       /* CTAs that run at once: SMs * CTAs per SM; 0: there is no such configuration */
    int32_t ctas_per_sm; /* of those, on one SM; a CTA alone on an SM reads so many times as fast */
    int32_t min_piece;   /* fewest keys worth a CTA: warps * 16 */
} flash_plan_mode;

typedef struct flash_plan_input {
    const int32_t *q_start;        /* [num_seqs + 1] */
    const int32_t *seq_lens;       /* [num_seqs] */
    const int32_t *k_start;        /* [num_seqs] first rows of contiguous keys; NULL: paged */
    const int32_t *causal_per_seq; /* may be NULL */
    int32_t num_seqs;
    int32_t num_kv_heads, group;
    int32_t decode_tokens; /* requests with at most this many query tokens go to the decode kernel; 0: none */
    int32_t decode_rows;   /* query rows (token * group) of a decode CTA */
    flash_plan_mode modes[FLASH_MODES]; /* by enum flash_decode_mode */
    int32_t block_rows; /* query rows of a prefill tile, of one head where they are not packed */
    int32_t tile_heads; /* heads of a prefill tile; 0: 1 */
    int32_t packed;     /* rows of a tile are token * group */
    int32_t causal, window_left, window_right;
    int32_t chunk, lookback;
    int32_t max_cluster; /* largest cluster that may merge pieces: 8 on Hopper, else 0 */
    int32_t captured; /* > 0: CTAs of one piece of every request, of a launch that serves later batches too */
    int32_t num_splits; /* 0: choose, else exactly so many pieces (1: batch invariant) */
    int32_t first_key;  /* keys before it are another pass's (cascade): 0, or the common prefix */
    int32_t num_sms, head_size;
    int32_t key_bytes;  /* of an element of the cache */
    int32_t piece_keys; /* prefill tiles are cut at its multiples (flash_plan_cut); 0: they are not */
} flash_plan_input;

static inline int flash_is_causal(const flash_plan_input *in, int seq) {
    return in->causal_per_seq ? in->causal_per_seq[seq] != 0 : in->causal != 0;
}

/* Tiles of a head that so many query tokens of a request are, and CTAs that each becomes: packed tiles hold
 * the heads of a group, others as many as they say. */
static inline int32_t flash_row_tiles(const flash_plan_input *in, int32_t tokens) {
    return (tokens * (in->packed ? in->group : 1) + in->block_rows - 1) / in->block_rows;
}
static inline int32_t flash_tile_ctas(const flash_plan_input *in) {
    return in->num_kv_heads * (in->packed ? 1 : in->group / (in->tile_heads > 1 ? in->tile_heads : 1));
}

/* Scratch of the planner, allocated once by the caller: max_seqs requests and max_tiles tiles. Both are
 * sorted by their first member and have one size. */
typedef struct flash_plan_request {
    int32_t span; /* keys; in the end those of its longest piece */
    int32_t seq, ctas, pieces;
} flash_plan_request;

typedef struct flash_plan_tile {
    int32_t keys;
    int32_t seq, block, piece;
} flash_plan_tile;

/* How tiles are cut: piece_keys 0: not at all. */
typedef struct flash_cut {
    int32_t piece_keys, pieces;  /* of the request that has most */
    int32_t first_row, num_rows; /* of Q, from the first request that is tiles to the last */
} flash_cut;

typedef struct flash_plan {
    flash_plan_request *requests; /* scratch */
    flash_plan_tile *tile_keys;   /* scratch */
    flash_item *items;
    flash_tile *tiles; /* with piece_keys, the flash_spans of those requests follow the last one */
    flash_counts counts;
    int32_t num_spans;
    int32_t longest_span;  /* query rows */
    int32_t keys_per_tile; /* average over tiles */
    int32_t mode;          /* enum flash_decode_mode */
    int32_t cluster; /* > 1: every request has a multiple of so many pieces, which merge within a cluster */
    int32_t most_items;    /* of a captured launch of large CTAs, for any later batch; else 0 */
    int32_t decode_tokens; /* most query tokens of a request in items */
    int64_t decode_keys;   /* of all requests in items */
} flash_plan;

/* The pass of a cascade over the common prefix: all query tokens are one request whose keys, the first
 * `prefix` of request 0, are cut into pieces until the machine has work (semantics 6.4). */
typedef struct flash_prefix_plan {
    int32_t num_tiles, pieces, piece_keys;
} flash_prefix_plan;
int32_t flash_prefix_capacity(const flash_plan_input *shape, int32_t max_tokens); /* tiles */
/* 0, or -1 when `capacity` is too small. */
int flash_plan_prefix(const flash_plan_input *in, int32_t tokens, int32_t capacity, flash_tile *tiles,
                      flash_prefix_plan *plan);

/* Row tiles of a batch's decode CTAs, of which there would be fewest with `row_tiles`
 * (flash_row_tiles_for): so many, or CTAs of FLASH_FEW_ROWS, each of which reads the keys, from the L2 all
 * but the first, where there is little to read and many rows would take longer to merge. Not of a captured
 * launch, which serves any lengths and later batches of fewer requests, whose CTAs may not be more. */
int flash_choose_row_tiles(const flash_plan_input *in, int row_tiles, int is_captured);

/* Whether tiles of a problem may be cut at all: where no mask looks at distances, not where a number of
 * pieces is asked for, as batch invariance does, nor in a cascade, nor where a launch serves later
 * batches. */
static inline int flash_may_cut(const flash_plan_input *in) {
    return in->num_splits == 0 && in->window_left < 0 && in->window_right < 0 && in->chunk == 0 &&
           in->first_key == 0 && in->k_start == 0 && in->captured == 0;
}
/* The cut of a batch that takes least, and its time, in keys that a tile reads meanwhile. `requests`: scratch
 * of num_seqs. */
double flash_plan_cut(const flash_plan_input *input, const flash_plan_limits *limits, cut_request *requests,
                      flash_cut *cut);
/* Pieces of a request that is tiles, by the input's piece_keys. */
int32_t flash_pieces_of(const flash_plan_input *input, int32_t seq);

/* Capacities that any batch within max_seqs and max_tokens fits, cut within max_cut_rows. */
void flash_plan_capacity(flash_plan_limits *limits, const flash_plan_input *shape);
/* 0, or -1 when a list is too short (the caller broke its limits). */
int flash_plan_build(const flash_plan_input *input, const flash_plan_limits *limits, flash_plan *plan);
/* Keys that query tokens [first, last] of a request see together; the same rule as visible_keys() on the
 * device. */
int flash_visible_span(const flash_plan_input *input, int seq, int q_len, int first, int last);
/* Whether any batch of a problem may be tiles of several heads: not where a number of pieces is asked for,
 * as batch invariance does, with chunks, in a cascade, or with the portable kernel, which packs rows by
 * itself. */
static inline int flash_may_pack(const flash_plan_input *in) {
    return in->num_splits == 0 && in->chunk == 0 && in->first_key == 0 && !in->packed;
}
/* Whether a batch, which was not planned yet, had better be tiles of block_rows tokens, no fewer than any
 * request has, of `tile_heads` heads (flash_pack_prefill) than what it would be: 1 or 0; and the cut of what
 * it had better be. */
int flash_plan_packed(const flash_plan_input *input, const flash_plan_limits *limits, int32_t block_rows,
                      int32_t tile_heads, cut_request *scratch, flash_cut *cut);
/* Whether a batch of at most num_seqs requests, each of at most `tokens` query tokens that decode takes, is
 * ever such tiles, whatever its lengths are: 0 where flash_plan_packed says 0 of all of them. */
int flash_may_be_packed(const flash_plan_input *input, int32_t tokens, int32_t tile_heads);
/* Whether a batch, which was not planned yet, had better be tiles of the kernel for short encoders, `chosen`
 * by flash_choose_resident, and its blocks: 1 or 0. longest: > 0: later batches have requests of so many
 * query tokens and keys at most; 0: this batch alone. */
int flash_plan_resident(const flash_plan_input *input, const flash_plan_limits *limits,
                        const flash_prefill_config *chosen, int32_t longest, flash_prefill_config *config);
/* Of a plan that was built, where prefill draws its tiles: how many SMs it takes while decode runs on the
 * others; 0: one after the other. */
int32_t flash_plan_beside(const flash_plan_input *input, const flash_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
