/* SPDX-License-Identifier: Apache-2.0 */
/* ref_kv_rows.c: cache rows, their formats and their quantisation (semantics 3.2, 3.4, 3.6
 * to 3.8). */
#include "ref_kv_rows.h"

#include "ref_int4_row.h"
#include "ref_nvfp4_row.h"
#include "ref_turbo_row.h"

#include <math.h>

call_cache_t ref_cache_of(const attn_instance_t *in) {
    return (call_cache_t){.role = in->p.role,
                          .kv = in->kv,
                          .storage = in->storage,
                          .kv_heads = in->kv_heads,
                          .block_size = in->block_size,
                          .head_size = in->d,
                          .head_size_v = in->dv,
                          .is_separate = in->is_separate,
                          .layout = in->p.kv_layout != 0 ? in->p.kv_layout : (uint32_t)ATTN_LAYOUT_NHD,
                          .dtype = in->p.dtype};
}

static ref_cache_part_t part_of_page(const DLTensor *t, const attn_kv_part_t *p) {
    return (ref_cache_part_t){(char *)attn_data(t) + p->at, attn_byte_stride(t, 0), p->head, p->token};
}

ref_cache_side_t ref_cache_side(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                                const attn_scales_t *scales, int is_value) {
    const DLTensor *t = in->is_separate && is_value ? v_cache : kv_cache;
    const call_cache_t c = ref_cache_of(in);
    const int64_t v_offset = in->is_separate ? 0 : call_cache_row_bytes(&c, 0);
    ref_cache_side_t s = {
        .values = {(char *)attn_data(t) + (is_value ? v_offset : 0), attn_byte_stride(t, 0),
                   attn_byte_stride(t, 1), attn_byte_stride(t, 2)},
        .size = is_value ? in->dv : in->d,
        .kv = in->kv,
        .dtype = in->storage,
        .is_value = is_value,
        .turbo_bits = !attn_kv_is_turboquant(in->kv) ? 0
                      : is_value                     ? (int)attn_kv_format(in->kv)->v_bits
                                                     : (int)attn_kv_format(in->kv)->k_bits,
        .scale = attn_kv_has_static_scales(in->kv) ? (is_value ? scales->v : scales->k) : NULL,
    };
    if (attn_kv_is_whole_page(in->kv)) {
        const attn_kv_page_t page = call_cache_page(&c);
        s.values = part_of_page(t, &page.values[is_value]);
        if (page.scales[is_value].row != 0) s.scales = part_of_page(t, &page.scales[is_value]);
        if (attn_kv_rounds_query(in->kv)) s.dtype = ATTN_DTYPE_INT8;
        if (in->kv == ATTN_KV_INT8_K_ONLY && is_value) s.dtype = in->p.dtype;
        if (attn_kv_has_channel_scales(in->kv) && is_value) s.channels = scales->v;
    } else if (attn_kv_is_per_token_head(in->kv)) {
        s.scales = s.values;
        s.scales.base += call_cache_data_bytes(&c, is_value);
    }
    return s;
}

ref_cache_row_t ref_cache_row(const ref_cache_side_t *s, int64_t block, int64_t token, int64_t head) {
    const ref_cache_part_t *v = &s->values, *b = &s->scales;
    ref_cache_row_t row = {v->base + block * v->block + token * v->token + head * v->head, NULL};
    if (b->base != NULL) row.scales = b->base + block * b->block + token * b->token + head * b->head;
    return row;
}

enum { PIECE = 256 }; /* elements converted at a time: rows of any length without an allocation */

static int64_t load_piece(const void *x, uint32_t dtype, int64_t at, int64_t size, double *out) {
    int64_t n = size - at < PIECE ? size - at : PIECE;
    ref_load_row((const char *)x + at * (int64_t)attn_dtype_size(dtype), dtype, n, out);
    return n;
}

/* Semantics 3.4: max(absmax / 127 or 448, 1e-6) in float32. A NaN anywhere makes the scale NaN, so that it is
 * still a NaN when it is read: int8 has no code for it. */
static float token_head_scale(const void *x, uint32_t dtype, int64_t size, uint32_t storage) {
    double piece[PIECE];
    float absmax = 0.0f;
    for (int64_t at = 0, n; at < size; at += n) {
        n = load_piece(x, dtype, at, size, piece);
        for (int64_t i = 0; i < n; i++) {
            float a = fabsf((float)piece[i]);
            if (isnan(a)) return a;
            if (a > absmax) absmax = a;
        }
    }
    float scale = absmax / (storage == ATTN_DTYPE_INT8 ? 127.0f : 448.0f);
    return scale > 1e-6f ? scale : 1e-6f;
}

/* One number, or one for each head and channel. */
static float channel_scale(const DLTensor *t, int64_t head, int64_t i) {
    return t->ndim == 2 ? ref_read_float(ref_at2(t, head, i)) : ref_read_float(attn_data(t));
}

void ref_round_query(double *row, int64_t n) {
    int8_t code[PIECE];
    const float scale = token_head_scale(row, ATTN_DTYPE_FLOAT64, n, ATTN_DTYPE_INT8);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t count = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = at; i < at + count; i++)
            row[i] = (double)((float)row[i] / scale);
        ref_store_row(code, ATTN_DTYPE_INT8, count, row + at);
        for (int64_t i = 0; i < count; i++)
            row[at + i] = code[i] * (double)scale;
    }
}

void ref_cache_load(const ref_cache_side_t *s, ref_cache_row_t row, int64_t head, double *out) {
    if (s->kv == ATTN_KV_INT4_PER_TOKEN_HEAD) {
        ref_int4_load(row.values, s->size, out);
        return;
    }
    if (s->turbo_bits != 0) {
        ref_turbo_load(row.values, s->size, s->turbo_bits, s->is_value, out);
        return;
    }
    if (s->kv == ATTN_KV_NVFP4) {
        ref_nvfp4_load(row.values, row.scales, s->size, ref_scale_of(s->scale, head), out);
        return;
    }
    ref_load_row(row.values, s->dtype, s->size, out);
    for (int64_t i = 0; s->channels != NULL && i < s->size; i++)
        out[i] *= (double)channel_scale(s->channels, head, i);
    if (row.scales == NULL && s->scale == NULL) return;
    double scale = row.scales != NULL ? ref_read_float(row.scales) : ref_scale_of(s->scale, head);
    for (int64_t i = 0; i < s->size; i++)
        out[i] *= scale;
}

void ref_cache_store(const ref_cache_side_t *s, ref_cache_row_t row, int64_t head, const void *x,
                     uint32_t dtype, int is_raw) {
    if (s->kv == ATTN_KV_INT4_PER_TOKEN_HEAD) {
        ref_int4_store(row.values, s->size, x, dtype);
        return;
    }
    if (s->turbo_bits != 0) {
        ref_turbo_store(row.values, s->size, s->turbo_bits, s->is_value, x, dtype);
        return;
    }
    if (s->kv == ATTN_KV_NVFP4) {
        ref_nvfp4_store(row.values, row.scales, s->size, (float)ref_scale_of(s->scale, head), x, dtype);
        return;
    }
    double piece[PIECE];
    float scale = 1.0f;
    if (row.scales != NULL) scale = token_head_scale(x, dtype, s->size, s->dtype);
    if (s->scale != NULL && !is_raw) scale = (float)ref_scale_of(s->scale, head);
    int is_divided = row.scales != NULL || (s->scale != NULL && !is_raw);
    for (int64_t at = 0, n; at < s->size; at += n) {
        n = load_piece(x, dtype, at, s->size, piece);
        for (int64_t i = 0; is_divided && i < n; i++)
            piece[i] = (double)((float)piece[i] / scale);
        for (int64_t i = 0; s->channels != NULL && i < n; i++)
            piece[i] = (double)((float)piece[i] / channel_scale(s->channels, head, at + i));
        ref_store_row(row.values + at * (int64_t)attn_dtype_size(s->dtype), s->dtype, n, piece);
    }
    if (row.scales != NULL) memcpy(row.scales, &scale, sizeof scale);
}
