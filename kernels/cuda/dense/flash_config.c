/* SPDX-License-Identifier: Apache-2.0 */
/* Which instance of which kernel serves a shape on a device. Numbers behind the choices: dense-notes.md. */
#include "flash_config.h"
#include "flash_params.h"
#include "flash_plan.h"

#define ROW(NAME, DK, DV, ...)                            {DK, DV},
#define SM90_ROW(NAME, DK, DV, WG, BK, QB, FK, ...)       {{DK, DV}, WG, BK, QB, FK},
#define E4M3_ROW(KIND, NAME, DK, DV, WG, BK, QB, FK, ...) {{DK, DV}, WG, BK, QB, FK},
const flash_class flash_classes[FLASH_NUM_CLASSES] = {DENSE_SM80_CLASSES(ROW, )};
const flash_sm90_class flash_sm90_classes[FLASH_NUM_SM90_CLASSES] = {DENSE_SM90_CLASSES(SM90_ROW, )};
const flash_sm90_class flash_e4m3_classes[FLASH_NUM_E4M3_CLASSES] = {DENSE_SM90_E4M3_CLASSES(E4M3_ROW, )};

int flash_class_of(int dk, int dv) {
    int best = -1, best_size = 0;
    for (int i = 0; i < FLASH_NUM_CLASSES; i++) {
        int size = flash_classes[i].dk + flash_classes[i].dv;
        if (dk <= flash_classes[i].dk && dv <= flash_classes[i].dv && (best < 0 || size < best_size)) {
            best = i;
            best_size = size;
        }
    }
    return best;
}

static int shape_is_served(const flash_shape *s) {
    return s->head_size >= 8 && s->head_size % 8 == 0 && s->head_size_v >= 8 && s->head_size_v % 8 == 0 &&
           s->num_kv_heads > 0 && s->num_q_heads % s->num_kv_heads == 0 && s->num_q_heads > 0 &&
           (s->page_size == 0 || s->page_size % 16 == 0) &&
           (s->kv_dtype == FLASH_E4M3 || s->kv_dtype == s->q_dtype);
}

/* CTAs of `warps` warps, or fewer where shared memory holds no more; -1: it does not hold one. */
static int size_decode(const flash_shape *s, const flash_device *d, int warps, flash_decode_config *c) {
    const flash_class *k = &flash_classes[c->class_index];
    const int warp_bytes =
        DECODE_SM80_WARP_SMEM(k->dk, k->dv, s->kv_dtype == FLASH_E4M3 ? 1 : 2, c->row_tiles);
    const int q_bytes = DECODE_SM80_Q_SMEM(k->dk, c->row_tiles), most = d->smem_optin - 4096 - q_bytes;
    while (warps > 1 && warps * warp_bytes > most)
        warps /= 2;
    if (warps * warp_bytes > most) return -1;
    c->warps = warps;
    c->cluster = 0;
    c->smem_bytes = warps * warp_bytes + q_bytes;
    /* beside the ring: 1 KB that the system takes, and the exchange of row maxima and sums */
    c->ctas_per_sm = d->smem_per_sm / (c->smem_bytes + 1024 + 128 + 64 * 8 * c->row_tiles);
    const int by_warps =
        DECODE_SM80_SM_WARPS(k->dk, k->dv, s->kv_dtype == FLASH_E4M3 ? 1 : 2, c->row_tiles) / warps;
    if (c->ctas_per_sm > by_warps) c->ctas_per_sm = by_warps;
    if (c->ctas_per_sm < 1) c->ctas_per_sm = 1;
    return 0;
}

/* As few CTAs as have room for all rows, and of those the smallest: each reads all keys. */
int flash_row_tiles_for(const flash_class *dim, int rows) {
    const int most = 8 * DECODE_SM80_ROW_TILES(dim->dk, dim->dv), blocks = (rows + most - 1) / most;
    return (rows + 8 * blocks - 1) / (8 * blocks);
}

/* Small CTAs, several per SM: one reads while another starts or ends. Together 96 KB and more in flight. */
int flash_choose_decode(const flash_shape *s, const flash_device *d, flash_decode_config *c) {
    if (!shape_is_served(s) || d->major < 8) return -1;
    int rows = s->num_q_heads / s->num_kv_heads * (s->max_decode_tokens > 0 ? s->max_decode_tokens : 1);
    c->class_index = flash_class_of(s->head_size, s->head_size_v);
    if (c->class_index < 0) return -1;
    c->row_tiles = flash_row_tiles_for(&flash_classes[c->class_index], rows);
    return size_decode(s, d, 4, c);
}

void flash_resize_decode(const flash_shape *s, const flash_device *d, int mode, flash_decode_config *c) {
    static const int warps[FLASH_MODES] = {4, 8, 2};
    size_decode(s, d, warps[mode], c);
}

/* A page box brings whole 64-column chunks at once, so a head size that ends inside the second or a later
 * chunk of a class made of whole chunks cannot be filled with zeros there; contiguous keys and classes like
 * 80 can. */
static int box_fits(int size, int of_class, int paged) {
    return !paged || of_class % 64 != 0 || of_class == 64 || size == of_class;
}

/* Of the largest kernel that an instance of the class launches: features need registers, so that Q is not
 * held in them. */
static int sm90_smem(const flash_sm90_class *k, int has_features) {
    const int dk = k->dim.dk, dv = k->dim.dv, wg = k->warpgroups;
    if (has_features) return PREFILL_SM90_SMEM(dk, dv, wg, k->feature_keys, k->q_buffers, 0, 0);
    return PREFILL_SM90_SMEM(dk, dv, wg, k->block_keys, k->q_buffers,
                             PREFILL_SM90_HOLDS_Q(dk, dv, wg, k->block_keys),
                             PREFILL_SM90_HAS_SHORT(dk, dv, wg, k->block_keys));
}

/* Heads of a tile that share their keys, instead of as many times the tokens, where the kernel takes them
 * (prefill_sm90.cuh): tiles end nearer to their last key and to the last token. Bands of 8 tokens have two
 * heads a warp, and ALiBi one slope. */
static int heads_of_tile(const flash_shape *s, const flash_sm90_class *k) {
    const int packs = PREFILL_SM90_PACKS(k->dim.dk, k->dim.dv, k->warpgroups),
              bands = PREFILL_SM90_BANDS(k->dim.dk, k->dim.dv, k->warpgroups),
              most = !packs                     ? 1
                     : k->dim.dk == 128         ? 2
                     : bands && s->has_features ? 4
                                                : 8;
    int heads = 1;
    while (2 * heads <= most && s->num_q_heads / s->num_kv_heads % (2 * heads) == 0)
        heads *= 2;
    return heads;
}

/* Keys in the blocks that a tile of a window takes, which begin 8 keys before its first one, on average. */
static int window_columns(const flash_shape *s, const flash_sm90_class *k) {
    const int keys = 64 * k->warpgroups / heads_of_tile(s, k) + s->window - 1 + 8;
    return s->window > 0 ? (keys + k->block_keys - 1) / k->block_keys * k->block_keys : 0;
}

static int choose_sm90(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    if (s->force_sm80 || d->major != 9 || s->kv_dtype != s->q_dtype || s->q_dtype == FLASH_E4M3) return -1;
    int best = -1, best_size = 0, paged = s->page_size != 0;
    for (int i = 0; i < FLASH_NUM_SM90_CLASSES; i++) {
        const flash_sm90_class *x = &flash_sm90_classes[i];
        const flash_class *k = &x->dim;
        if (s->head_size > k->dk || s->head_size_v > k->dv || !box_fits(s->head_size, k->dk, paged) ||
            !box_fits(s->head_size_v, k->dv, paged))
            continue;
        const int size = k->dk + k->dv;
        /* a tenth less, for more blocks of fewer keys */
        if (best < 0 || size < best_size ||
            (size == best_size &&
             11 * window_columns(s, x) < 10 * window_columns(s, &flash_sm90_classes[best])))
            best = i, best_size = size;
    }
    if (best < 0) return -1;
    const flash_sm90_class *k = &flash_sm90_classes[best];
    int rows = 64 * k->warpgroups;
    c->kind = FLASH_PREFILL_SM90;
    c->class_index = best;
    c->packed = 0;
    c->all_heads = 0;
    c->tile_heads = heads_of_tile(s, k);
    c->band_tokens =
        PREFILL_SM90_BANDS(k->dim.dk, k->dim.dv, k->warpgroups) && c->tile_heads > 1 ? 64 / c->tile_heads : 0;
    c->block_rows = rows / c->tile_heads;
    c->smem_bytes = sm90_smem(k, s->has_features);
    return c->smem_bytes + 1024 <= d->smem_optin ? 0 : -1;
}

/* Tensor copies move 16 bytes, so strides of odd multiples of 8 are not for them; sizes far below the class
 * would waste more than the kernels gain. */
static int choose_e4m3(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    const int index = s->q_dtype == FLASH_E4M3 ? FLASH_E4M3_CLASS_e4m3_d128 : FLASH_E4M3_CLASS_widened_d128;
    const flash_sm90_class *k = &flash_e4m3_classes[index];
    if (s->force_sm80 || d->major != 9 || s->kv_dtype != FLASH_E4M3 || s->page_size == 0 ||
        s->head_size % 16 != 0 || s->head_size_v % 16 != 0 || s->head_size > k->dim.dk ||
        s->head_size_v > k->dim.dv || s->head_size <= 64 || s->head_size_v <= 64)
        return -1;
    c->kind = FLASH_PREFILL_SM90_E4M3;
    c->class_index = index;
    c->packed = 0;
    c->tile_heads = 1;
    c->band_tokens = 0;
    c->block_rows = 64 * k->warpgroups;
    c->smem_bytes =
        index == FLASH_E4M3_CLASS_e4m3_d128
            ? PREFILL_SM90_E4M3_SMEM(k->warpgroups, k->block_keys, k->q_buffers)
            : PREFILL_SM90_WIDENED_SMEM(k->dim.dk, k->dim.dv, k->warpgroups, k->block_keys, k->q_buffers);
    return c->smem_bytes + 1024 <= d->smem_optin ? 0 : -1;
}

int flash_pack_prefill(const flash_shape *s, const flash_prefill_config *prefill, int32_t tokens,
                       flash_prefill_config *c) {
    const int bytes = prefill->kind == FLASH_PREFILL_SM90_E4M3, group = s->num_q_heads / s->num_kv_heads;
    if (prefill->kind != FLASH_PREFILL_SM90 && (!bytes || s->q_dtype == FLASH_E4M3)) return -1;
    const flash_sm90_class *k = &(bytes ? flash_e4m3_classes : flash_sm90_classes)[prefill->class_index];
    if (!PREFILL_SM90_PACKS(k->dim.dk, k->dim.dv, k->warpgroups)) return -1;
    const int rows = 64 * k->warpgroups;
    /* 8 tokens, two heads a warp, where 16 make more tiles of a group; ALiBi has one slope a warp */
    int tile_tokens = tokens <= 8 && group > rows / 16 && group % 2 == 0 && !s->has_features ? 8 : 16;
    while (tile_tokens < tokens)
        tile_tokens *= 2;
    if (tile_tokens > 64) return -1;
    const int most = rows / tile_tokens;
    int tiles = (group + most - 1) / most;
    while (group % tiles != 0 || (tile_tokens == 8 && group / tiles % 2 != 0))
        tiles++;
    *c = *prefill;
    c->block_rows = tile_tokens;
    c->band_tokens = 0;
    c->all_heads = 1;
    c->tile_heads = group / tiles;
    return c->tile_heads > 1 && c->tile_heads >= prefill->tile_heads ? 0 : -1;
}

int flash_choose_prefill(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    if (!shape_is_served(s) || d->major < 8) return -1;
    if (choose_sm90(s, d, c) == 0 || choose_e4m3(s, d, c) == 0) return 0;
    const int index = flash_class_of(s->head_size, s->head_size_v);
    if (index < 0) return -1;
    const flash_class *k = &flash_classes[index];
    c->kind = FLASH_PREFILL_SM80;
    c->class_index = index;
    c->packed = 1;
    c->tile_heads = 1;
    c->band_tokens = 0;
    c->block_rows = PREFILL_SM80_ROWS(k->dk);
    c->smem_bytes = PREFILL_SM80_SMEM(k->dk, k->dv);
    return c->smem_bytes <= d->smem_optin ? 0 : -1;
}
