/* SPDX-License-Identifier: Apache-2.0 */
/* From a configuration to the launch of its prefill instance; for Hopper that includes the tensor maps of Q,
 * K, V, encoded anew for each call (about 0.1 us each) because they hold addresses. */
#include "flash_launch.h"
#include "prefill_sm90.h"
#include "../tensor_map.h"

#include <string.h>

int flash_runtime_init(flash_runtime *r, const flash_kernels *kernels, int num_sms, int needs_tensor_maps) {
    r->kernels = kernels;
    r->num_sms = num_sms;
    r->encode_tiled = 0;
    if (!needs_tensor_maps) return 0;
    return tensor_map_find(&r->encode_tiled);
}

static int bytes_of(int dtype) {
    return dtype == FLASH_E4M3 ? 1 : 2;
}

/* A swizzle of the box's lines of 128, 64 or 32 bytes, zeros outside, and no L2 promotion: it fetches
 * neighbours that nobody asked for. */
static int encode(const flash_runtime *r, CUtensorMap *map, int dtype, int rank, const void *base,
                  const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box) {
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    const unsigned line = box[0] * (unsigned)bytes_of(dtype);
    return (int)((tensor_map_encode_t)r->encode_tiled)(
        map,
        dtype == FLASH_E4M3   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
        : dtype == FLASH_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        (cuuint32_t)rank, (void *)(uintptr_t)base, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        line == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
        : line == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                     : CU_TENSOR_MAP_SWIZZLE_32B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Rows of all heads: {columns, rows, heads}, a box of `line` bytes a row. A dimension of size 1 gets a
 * canonical stride. */
static int map_lines(const flash_runtime *r, CUtensorMap *map, int dtype, const void *base, int columns,
                     int64_t rows, int heads, int64_t token, int64_t head, int box_rows, int box_heads,
                     unsigned line) {
    cuuint64_t dims[3] = {(cuuint64_t)columns, (cuuint64_t)(rows > 0 ? rows : 1), (cuuint64_t)heads};
    if (rows <= 1) token = (int64_t)heads * columns;
    const unsigned eb = (unsigned)bytes_of(dtype);
    cuuint64_t strides[2] = {(cuuint64_t)token * eb, (cuuint64_t)(heads > 1 ? head : token) * eb};
    cuuint32_t box[3] = {line / eb, (cuuint32_t)box_rows, (cuuint32_t)box_heads};
    return encode(r, map, dtype, 3, base, dims, strides, box);
}

static int map_heads(const flash_runtime *r, CUtensorMap *map, int dtype, const void *base, int columns,
                     int64_t rows, int heads, int64_t token, int64_t head, int box_rows, int box_heads) {
    return map_lines(r, map, dtype, base, columns, rows, heads, token, head, box_rows, box_heads, 128);
}

static int map_rows(const flash_runtime *r, CUtensorMap *map, int dtype, const void *base, int columns,
                    int64_t rows, int heads, int64_t token, int64_t head, int box_rows) {
    return map_heads(r, map, dtype, base, columns, rows, heads, token, head, box_rows, 1);
}

static int64_t gcd(int64_t a, int64_t b) {
    return b ? gcd(b, a % b) : a;
}

/* A paged cache in groups of 8 rows; page and head share the last dimension, whose stride is the greatest
 * common divisor of theirs. `whole`: all 64-column chunks in one box. */
static int map_pages(const flash_runtime *r, CUtensorMap *map, int dtype, const void *base, int columns,
                     int whole, const flash_params *p, int64_t page, int64_t token, int64_t head,
                     int box_rows, int32_t *page_units, int32_t *head_units) {
    int64_t unit = p->num_kv_heads > 1 ? gcd(page, head) : page;
    if (unit <= 0) return -1;
    int64_t pu = page / unit, hu = p->num_kv_heads > 1 ? head / unit : 0;
    int64_t extent = (p->num_pages > 0 ? p->num_pages - 1 : 0) * pu + (p->num_kv_heads - 1) * hu + 1;
    if (extent > INT32_MAX) return -1;
    *page_units = (int32_t)pu;
    *head_units = (int32_t)hu;
    if (whole) {
        cuuint64_t dims[5] = {(cuuint64_t)(columns < 64 ? columns : 64), 8, (cuuint64_t)((columns + 63) / 64),
                              (cuuint64_t)p->page_size / 8, (cuuint64_t)extent};
        cuuint64_t strides[4] = {(cuuint64_t)token * 2, 128, (cuuint64_t)token * 16, (cuuint64_t)unit * 2};
        cuuint32_t box[5] = {64, 8, (cuuint32_t)((columns + 63) / 64), (cuuint32_t)box_rows / 8, 1};
        return encode(r, map, dtype, 5, base, dims, strides, box);
    }
    const unsigned eb = (unsigned)bytes_of(dtype);
    cuuint64_t dims[4] = {(cuuint64_t)columns, 8, (cuuint64_t)p->page_size / 8, (cuuint64_t)extent};
    cuuint64_t strides[3] = {(cuuint64_t)token * eb, (cuuint64_t)token * 8 * eb, (cuuint64_t)unit * eb};
    cuuint32_t box[4] = {128 / eb, 8, (cuuint32_t)box_rows / 8, 1};
    return encode(r, map, dtype, 4, base, dims, strides, box);
}

int flash_has_more(const flash_prefill_config *c) {
    const flash_class *k = &flash_sm90_classes[c->class_index].dim;
    return c->kind == FLASH_PREFILL_SM90 && k->dk == 192 && k->dv == 128;
}

/* How many heads run side by side: as many as 16 where tiles are dealt out in rounds, so that the keys in use
 * stay within the L2. Where tiles are drawn nothing depends on a round, and fewer heads need less of the L2
 * (dense-notes.md): 4, but 8 where tiles differ much in length and are drawn a tile ahead. Short tiles of
 * three warpgroups do best with many. */
static int heads_side_by_side(const flash_params *p, int draws, const flash_sm90_class *k) {
    if (!draws || (k->warpgroups == 3 && p->keys_per_tile < 2048)) return 16;
    /* lengths differ by the new tokens of a request, at most by those of all */
    const int are_alike = p->keys_per_tile < 2048 || 2 * (int64_t)p->keys_per_tile >= 3 * p->q_rows;
    return k->q_buffers == 1 || are_alike ? 4 : 8;
}

static int run_sm90(const flash_params *p, const flash_prefill_more *more, const flash_shape *s,
                    const flash_prefill_config *c, int num_tiles, const flash_runtime *r, void *stream) {
    const int bytes = c->kind == FLASH_PREFILL_SM90_E4M3;
    const flash_sm90_class *k = &(bytes ? flash_e4m3_classes : flash_sm90_classes)[c->class_index];
    int feature = s->has_features, paged = s->page_size != 0;
    int block_keys = feature ? k->feature_keys : k->block_keys;
    flash_prefill_sm90_func_t f =
        bytes ? r->kernels->prefill_e4m3[c->class_index]
              : r->kernels->prefill_sm90[s->kv_dtype - FLASH_F16][c->class_index][paged];
    if (!f) return (int)cudaErrorInvalidDeviceFunction;
    if (!p) return f(0, feature, 0, stream);
    flash_sm90_params sp;
    memset(&sp, 0, sizeof sp);
    sp.p = *p;
    sp.overlap = p->keys_per_tile == 0 || p->keys_per_tile >= 1024 || k->warpgroups == 3;
    sp.tile_tokens = c->block_rows, sp.tile_heads = c->tile_heads;
    const int room = 64 * k->warpgroups / c->block_rows; /* for heads */
    /* of a tile's rows or of a warpgroup's: tokens of a head */
    const int tokens = c->band_tokens > 0 ? c->band_tokens : c->block_rows;
    sp.band_tokens = c->band_tokens, sp.head_mask = c->band_tokens > 0 ? 63 : -1;
    sp.token_mask = room > 1 ? tokens - 1 : -1;
    sp.token_shift = room > 1 ? 3 : 31;
    while (room > 1 && 1 << sp.token_shift < tokens)
        sp.token_shift++;
    sp.second_token = tokens == 8 ? 0 : 8;
    /* all of these rows, whether a tile has so many heads or not */
    if (map_heads(r, &sp.q_map, s->q_dtype, p->q, p->head_size, p->q_rows, p->num_q_heads, p->q_token,
                  p->q_head, tokens, room))
        return FLASH_E_MAP_Q;
    const int halves = PREFILL_SM90_HAS_SHORT(k->dim.dk, k->dim.dv, k->warpgroups, k->block_keys) && !bytes &&
                       !feature && !sp.overlap;
    if (halves) /* where the result cannot leave by boxes, it leaves by rows */
        sp.o_boxes = !map_rows(r, &sp.o_map, p->out_dtype, p->out, p->head_size_v, p->q_rows, p->num_q_heads,
                               p->out_token, p->out_head, 16);
    if (paged) {
        int box = 128;
        while (p->page_size % box || block_keys % box)
            box /= 2;
        sp.box_rows = box;
        if (map_pages(r, &sp.k_map, s->kv_dtype, p->k, p->head_size, !bytes && k->dim.dk % 64 == 0, p,
                      p->k_page, p->k_token, p->k_head, box, &sp.k_page_units, &sp.k_head_units))
            return FLASH_E_MAP_K;
        if (map_pages(r, &sp.v_map, s->kv_dtype, p->v, p->head_size_v, !bytes && k->dim.dv % 64 == 0, p,
                      p->v_page, p->v_token, p->v_head, box, &sp.v_page_units, &sp.v_head_units))
            return FLASH_E_MAP_V;
    } else {
        const int box_keys = halves ? block_keys / 2 : block_keys;
        sp.box_rows = block_keys;
        sp.k_tail_at = p->k_tail ? p->k_tail_at : INT32_MAX;
        if (map_rows(r, &sp.k_map, s->kv_dtype, p->k, p->k_tail ? p->k_tail_at : p->head_size, p->kv_rows,
                     p->num_kv_heads, p->k_token, p->k_head, box_keys))
            return FLASH_E_MAP_K;
        if (p->k_tail && map_rows(r, &sp.k_tail_map, s->kv_dtype, p->k_tail, p->head_size - p->k_tail_at,
                                  p->kv_rows, 1, p->k_tail_token, 0, block_keys))
            return FLASH_E_MAP_K;
        if (map_rows(r, &sp.v_map, s->kv_dtype, p->v, p->head_size_v, p->kv_rows, p->num_kv_heads, p->v_token,
                     p->v_head, box_keys))
            return FLASH_E_MAP_V;
    }
    const int most = c->all_heads ? p->num_q_heads : heads_side_by_side(p, more && more->ticket, k);
    int section = p->num_q_heads < most ? p->num_q_heads : most;
    while (section > 1 && p->num_q_heads % section != 0)
        section--;
    sp.head_section = section % c->tile_heads ? c->tile_heads : section;
    if (more) sp.more = *more;
    int64_t work = (int64_t)num_tiles * (p->num_q_heads / c->tile_heads);
    const int limit = more && more->ctas > 0 && more->ctas < r->num_sms ? more->ctas : r->num_sms;
    return f(&sp, feature, work < limit ? (int)work : limit, stream);
}

static int run_resident(const flash_params *p, const flash_shape *s, const flash_prefill_config *c,
                        int num_tiles, const flash_runtime *r, void *stream) {
    const flash_prefill_sm90_func_t f = r->kernels->resident[s->kv_dtype - FLASH_F16][c->class_index];
    if (!f) return (int)cudaErrorInvalidDeviceFunction;
    if (!p) return f(0, 0, 0, stream);
    flash_sm90_params sp;
    memset(&sp, 0, sizeof sp);
    sp.p = *p;
    sp.tile_tokens = c->block_rows, sp.tile_heads = 1;
    sp.box_rows = c->block_keys, sp.resident_keys = c->keys;
    if (map_rows(r, &sp.q_map, s->q_dtype, p->q, p->head_size, p->q_rows, p->num_q_heads, p->q_token,
                 p->q_head, 64))
        return FLASH_E_MAP_Q;
    if (map_rows(r, &sp.k_map, s->kv_dtype, p->k, p->head_size, p->kv_rows, p->num_kv_heads, p->k_token,
                 p->k_head, c->block_keys))
        return FLASH_E_MAP_K;
    if (map_rows(r, &sp.v_map, s->kv_dtype, p->v, p->head_size, p->kv_rows, p->num_kv_heads, p->v_token,
                 p->v_head, c->block_keys))
        return FLASH_E_MAP_V;
    const unsigned tail = RESIDENT_SM90_TAIL((unsigned)flash_resident_classes[c->class_index]) * 2;
    if (tail == 0) return f(&sp, 0, num_tiles, stream);
    if (map_lines(r, &sp.q_tail_map, s->q_dtype, p->q, p->head_size, p->q_rows, p->num_q_heads, p->q_token,
                  p->q_head, 64, 1, tail))
        return FLASH_E_MAP_Q;
    if (map_lines(r, &sp.k_tail_map, s->kv_dtype, p->k, p->head_size, p->kv_rows, p->num_kv_heads, p->k_token,
                  p->k_head, c->block_keys, 1, tail))
        return FLASH_E_MAP_K;
    if (map_lines(r, &sp.v_tail_map, s->kv_dtype, p->v, p->head_size, p->kv_rows, p->num_kv_heads, p->v_token,
                  p->v_head, c->block_keys, 1, tail))
        return FLASH_E_MAP_V;
    return f(&sp, 0, num_tiles, stream);
}

int flash_run_prefill(const flash_params *p, const flash_shape *s, const flash_prefill_config *c,
                      int num_tiles, const flash_runtime *r, void *stream) {
    return flash_run_prefill_more(p, 0, s, c, num_tiles, r, stream);
}

int flash_run_prefill_more(const flash_params *p, const flash_prefill_more *more, const flash_shape *s,
                           const flash_prefill_config *c, int num_tiles, const flash_runtime *r,
                           void *stream) {
    if (p && num_tiles <= 0) return 0;
    if (c->kind == FLASH_PREFILL_RESIDENT) return run_resident(p, s, c, num_tiles, r, stream);
    if (c->kind != FLASH_PREFILL_SM80) return run_sm90(p, more, s, c, num_tiles, r, stream);
    flash_prefill_func_t f = r->kernels->prefill_sm80[s->kv_dtype - FLASH_F16][c->class_index];
    return f ? f(p, c, num_tiles, stream) : (int)cudaErrorInvalidDeviceFunction;
}
