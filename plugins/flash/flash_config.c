/* SPDX-License-Identifier: Apache-2.0 */
/* Which instance of which kernel serves a shape on a device. Numbers behind the choices: README.md. */
#include "flash_config.h"
#include "flash_params.h"

const flash_class flash_decode_classes[] = {{64, 64},   {96, 96},   {128, 128},
                                            {192, 128}, {192, 192}, {256, 256}};
const int flash_num_decode_classes = sizeof(flash_decode_classes) / sizeof(flash_decode_classes[0]);

/* Head sizes of the wgmma kernel. Sizes between classes run padded, except 72 and 80, which vision models use. */
const flash_sm90_class flash_sm90_classes[] = {{{64, 64}, 3, 112, 2, 112},   {{72, 72}, 3, 96, 2, 96},
                                               {{80, 80}, 3, 96, 2, 112},    {{96, 96}, 3, 112, 2, 80},
                                               {{128, 128}, 2, 128, 2, 128}, {{192, 128}, 2, 128, 1, 128},
                                               {{192, 192}, 2, 96, 1, 96},   {{256, 256}, 2, 80, 1, 80}};
const int flash_num_sm90_classes = sizeof(flash_sm90_classes) / sizeof(flash_sm90_classes[0]);

/* An e4m3 cache, whose rows are one 128-byte line: under e4m3 queries products of bytes, else keys widened to f16. */
const flash_sm90_class flash_e4m3_classes[] = {{{128, 128}, 2, 128, 2, 128}, {{128, 128}, 2, 128, 2, 128}};
const int flash_num_e4m3_classes = sizeof(flash_e4m3_classes) / sizeof(flash_e4m3_classes[0]);

int flash_class_of(const flash_class *classes, int n, int dk, int dv) {
    int best = -1, best_size = 0;
    for (int i = 0; i < n; i++) {
        int size = classes[i].dk + classes[i].dv;
        if (dk <= classes[i].dk && dv <= classes[i].dv && (best < 0 || size < best_size)) {
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

/* Three stages of 16 rows (K and V, whole 128-byte lines) per warp, as in decode_sm80.cuh. */
static int decode_warp_bytes(const flash_class *c, int kv_dtype) {
    int row = (c->dk + c->dv) * (kv_dtype == FLASH_E4M3 ? 1 : 2);
    return 3 * 16 * ((row + 127) / 128 * 128);
}

/* CTAs of `warps` warps, or fewer where shared memory holds no more; -1: it does not hold one. */
static int size_decode(const flash_shape *s, const flash_device *d, int warps, flash_decode_config *c) {
    const flash_class *k = &flash_decode_classes[c->class_index];
    int warp_bytes = decode_warp_bytes(k, s->kv_dtype), exchange = c->row_tiles * 8 * (k->dv + 4) * 4;
    if (exchange > warp_bytes) warp_bytes = exchange;
    while (warps > 1 && warps * warp_bytes > d->smem_optin - 4096)
        warps /= 2;
    if (warps * warp_bytes > d->smem_optin - 4096) return -1;
    c->warps = warps;
    c->cluster = 0;
    c->smem_bytes = warps * warp_bytes;
    /* beside the ring: 1 KB that the system takes, and the exchange of row maxima and sums */
    c->ctas_per_sm = d->smem_per_sm / (c->smem_bytes + 1024 + 128 + 64 * 8 * c->row_tiles);
    /* registers: about 120 at 16 warps, 255 at 8 */
    int by_warps = (s->kv_dtype == FLASH_E4M3 || k->dk + k->dv <= 192 ? 16 : 8) / warps;
    if (c->ctas_per_sm > by_warps) c->ctas_per_sm = by_warps;
    if (c->ctas_per_sm < 1) c->ctas_per_sm = 1;
    return 0;
}

/* Small CTAs, several per SM: one reads while another starts or ends. Together 96 KB and more in flight. */
int flash_choose_decode(const flash_shape *s, const flash_device *d, flash_decode_config *c) {
    if (!shape_is_served(s) || d->major < 8) return -1;
    int rows = s->num_q_heads / s->num_kv_heads * (s->max_decode_tokens > 0 ? s->max_decode_tokens : 1);
    c->class_index =
        flash_class_of(flash_decode_classes, flash_num_decode_classes, s->head_size, s->head_size_v);
    c->row_tiles = rows > 8 ? 2 : 1;
    return c->class_index < 0 ? -1 : size_decode(s, d, 4, c);
}

void flash_widen_decode(const flash_shape *s, const flash_device *d, flash_decode_config *c) {
    size_decode(s, d, 8, c);
}

/* A page box brings whole 64-column chunks at once, so a head size that ends inside the second or a later chunk of a
 * class made of whole chunks cannot be filled with zeros there; contiguous keys and classes like 80 can. */
static int box_fits(int size, int of_class, int paged) {
    return !paged || of_class % 64 != 0 || of_class == 64 || size == of_class;
}

static int choose_sm90(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    if (s->force_sm80 || d->major != 9 || s->kv_dtype != s->q_dtype || s->q_dtype == FLASH_E4M3) return -1;
    int best = -1, best_size = 0, paged = s->page_size != 0;
    for (int i = 0; i < flash_num_sm90_classes; i++) {
        const flash_class *k = &flash_sm90_classes[i].dim;
        if (s->head_size <= k->dk && s->head_size_v <= k->dv && box_fits(s->head_size, k->dk, paged) &&
            box_fits(s->head_size_v, k->dv, paged) && (best < 0 || k->dk + k->dv < best_size)) {
            best = i;
            best_size = k->dk + k->dv;
        }
    }
    if (best < 0) return -1;
    const flash_sm90_class *k = &flash_sm90_classes[best];
    int rows = 64 * k->warpgroups, kc = (k->dim.dk + 63) / 64, vc = (k->dim.dv + 63) / 64;
    c->kind = FLASH_PREFILL_SM90;
    c->class_index = best;
    c->packed = 0;
    /* Two heads that share their keys instead of twice the tokens, where the kernel takes them (prefill_sm90.cuh): tiles end
     * nearer to their last key and to the last token. */
    c->tile_heads =
        rows == 128 && k->dim.dk == 128 && k->dim.dv == 128 && s->num_q_heads / s->num_kv_heads % 2 == 0 ? 2
                                                                                                         : 1;
    c->block_rows = rows / c->tile_heads;
    /* two stages of keys, or, with three warpgroups, one Q buffer and three stages (prefill_sm90.cuh) */
    int q = rows * kc, keys = k->block_keys * (kc + vc), chunks = k->q_buffers * q + 2 * keys;
    if (k->warpgroups == 3 && q + 3 * keys > chunks) chunks = q + 3 * keys;
    c->smem_bytes = 128 * chunks + 1536;
    return c->smem_bytes + 1024 <= d->smem_optin ? 0 : -1;
}

/* Tensor copies move 16 bytes, so strides of odd multiples of 8 are not for them; sizes far below the class would waste
 * more than the kernels gain. */
static int choose_e4m3(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    int wide = s->q_dtype != FLASH_E4M3;
    const flash_sm90_class *k = &flash_e4m3_classes[wide];
    if (s->force_sm80 || d->major != 9 || s->kv_dtype != FLASH_E4M3 || s->page_size == 0 ||
        s->head_size % 16 != 0 || s->head_size_v % 16 != 0 || s->head_size > k->dim.dk ||
        s->head_size_v > k->dim.dv || s->head_size <= 64 || s->head_size_v <= 64)
        return -1;
    int rows = 64 * k->warpgroups, line = 128 * k->block_keys;
    c->kind = FLASH_PREFILL_SM90_E4M3;
    c->class_index = wide;
    c->packed = 0;
    c->tile_heads = 1;
    c->block_rows = rows;
    /* wide: Q, two stages of K and V in f16, one of bytes; else Q, two stages of K, of V and of V transposed, and O */
    c->smem_bytes = wide ? k->q_buffers * rows * 256 + 2 * 4 * line + 2 * line + 1536
                         : k->q_buffers * rows * 128 + 2 * 3 * line + rows * 256 + 1024;
    return c->smem_bytes + 1024 <= d->smem_optin ? 0 : -1;
}

int flash_choose_prefill(const flash_shape *s, const flash_device *d, flash_prefill_config *c) {
    if (!shape_is_served(s) || d->major < 8) return -1;
    if (choose_sm90(s, d, c) == 0 || choose_e4m3(s, d, c) == 0) return 0;
    int index = flash_class_of(flash_decode_classes, flash_num_decode_classes, s->head_size, s->head_size_v);
    if (index < 0) return -1;
    const flash_class *k = &flash_decode_classes[index];
    c->kind = FLASH_PREFILL_SM80;
    c->class_index = index;
    c->packed = 1;
    c->tile_heads = 1;
    /* as in prefill_sm80.cuh */
    int keys = k->dk <= 96 || k->dk == 192 ? 64 : 32;
    c->block_rows = k->dk <= 128 ? 128 : 64;
    c->smem_bytes = c->block_rows * (k->dk * 2 + 16) + keys * (k->dk * 2 + k->dv * 2 + 32);
    return c->smem_bytes <= d->smem_optin ? 0 : -1;
}
