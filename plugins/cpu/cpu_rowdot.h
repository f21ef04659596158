/* SPDX-License-Identifier: Apache-2.0 */
/* Row-dot path: few query rows per KV head (decode, speculative verification). Lanes are head elements;
 * memory decides, so all KV heads of a tile of tokens are walked before the next tile, and the rows of the
 * next (tile, head) are prefetched while this one computes. Softmax per row with lazy rescaling: m moves only
 * when a score exceeds it by more than 2^8 (the threshold idea is FlashAttention-4's). Included once per
 * level by cpu_level.c. */

#include "cpu_rowdot_products.h"
#include "cpu_rowdot_state.h"
#include "cpu_rowdot_softmax.h"
#include "cpu_rowdot_quads_softmax.h"
#include "cpu_rowdot_convert.h"
#include "cpu_rowdot_lift.h"

/* Rows of keys [k0, k0 + tile) for head 0 in p[0..tile) (K) and p[tile..2 tile) (V); keys that no row sees
 * are redirected to one that some do. Behind them two lists of rows to prefetch, one for each of the two
 * products: token by token, K and V in turn, where both have the same strides; else the rows of K, then those
 * of V. Packed rows fetched K first would draw V along (the hardware prefetcher) and leave memory idle during
 * the second product. */
static void rd_pointers(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_mask_bounds *b,
                        int k0, const int tile, const char **p, const char **groups) {
    const int even = a->k.head == a->v.head && a->head_size == a->head_size_v;
    row_pointers(a, sq, &a->k, k0, tile, b, p);
    row_pointers(a, sq, &a->v, k0, tile, b, p + tile);
    if (a->k_apart.base) row_pointers(a, sq, &a->k_apart, k0, tile, b, groups);
    if (a->v_apart.base) row_pointers(a, sq, &a->v_apart, k0, tile, b, groups + tile);
    for (int i = 0; i < tile; i++) {
        p[2 * tile + (even ? 2 * i : i)] = p[i];
        p[2 * tile + (even ? 2 * i + 1 : tile + i)] = p[tile + i];
    }
}

/* The next tile at or after k0 that some row sees, or `end`. */
SI int rd_next_tile(const struct cpu_mask_bounds *b, int k0, int end, const int tile) {
    while (k0 < end && cpu_bounds_cover(b, k0, k0 + tile) == CPU_COVER_NONE)
        k0 = b->lo_min[0] >= k0 + tile && b->hi_max[1] <= k0 ? b->lo_min[0] / tile * tile : k0 + tile;
    return k0 < end ? k0 : end;
}

/* A row of V follows that of K and its scale: fetching the one nearly always fetches the end of the other. */
SI int rd_has_v_behind_k(const struct cpu_attn *a) {
    return a->v.base - a->k.base == cpu_row_bytes(a->kv_dtype, a->head_size) + 4 && a->v.head == a->k.head &&
           a->v.token == a->k.token && a->v.block == a->k.block;
}

/* The last byte of a row of K with what lies behind it, where that is another line; of V. */
SI int rd_k_tail(const struct cpu_attn *a) {
    if (a->kv_dtype != CPU_PACKED)
        return rd_has_v_behind_k(a) ? 0 : cpu_row_bytes(a->kv_dtype, a->head_size) + 3;
    const int bytes = cpu_row_bytes(a->k_row, a->head_size) + (is_centroids(a->k_row) ? 2 : 0);
    return a->k_row == CPU_E2M1 || a->v.base - a->k.base == bytes ? 0 : bytes - 1;
}
SI int rd_v_tail(const struct cpu_attn *a) {
    if (a->kv_dtype != CPU_PACKED) return cpu_row_bytes(a->kv_dtype, a->head_size_v) + 3;
    return is_steps(a->v_row) ? cpu_row_bytes(a->v_row, a->head_size_v) + 3 : 0;
}

/* q and O are in the order of rows of bf16 as v_pair() gives them. */
SI int rd_in_pairs(const struct cpu_attn *a, const struct rd_state *st) {
    return (a->kv_dtype == CPU_BF16 && !st->dots) || st->table;
}

static void rd_store(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                     const struct rd_state *st, float *parts) {
    const int G = a->num_q_heads / a->num_kv_heads, Dv = a->head_size_v;
    const int64_t pf = cpu_part_floats(Dv);
    const float gain = st->gain;
    for (int h = 0; h < st->heads; h++)
        for (int r = 0; r < st->rows; r++) {
            float *o = st->o + (size_t)(h * st->rows + r) * st->ldo, m = st->m[h * st->rows + r];
            float l = v_hsum(v_load(st->l + (size_t)(h * st->rows + r) * VW));
            if (rd_in_pairs(a, st))
                for (int d = 0; d < st->ldo; d += CHUNK) {
                    vf x = v_load(o + d), y = v_load(o + d + VW);
                    v_zip(&x, &y);
                    v_store(o + d, x);
                    v_store(o + d + VW, y);
                }
            if (st->codes)
                rd_codes_order(a, st, o, (size_t)(h * st->rows + r));
            else if (st->quads)
                rd_quads_order(o, st->ldo, st->lows + (size_t)(h * st->rows + r) * VW);
            else if (st->nibbles)
                rd_nibbles_order(o, st->ldo);
            else if (st->words || (st->dots && a->kv_dtype != CPU_E4M3))
                rd_words_order(o, st->ldo);
#if CPU_X86 >= 3
            if (st->tiles || (st->dots && a->kv_dtype == CPU_E4M3)) rd_tiles_order(o, st->ldo);
#endif
            if (a->kv_dtype == CPU_I4) rotate_back(o, Dv);
            if (a->v_channel) scale_channels(a, it->head0 + h, o);
            float f = gain * (a->v_scale ? a->v_scale[a->scale_per_head ? it->head0 + h : 0] : 1.0f);
            if (st->dots) {
                const float as_bf16 = v_hsum(v_load(st->l_bf16 + (size_t)(h * st->rows + r) * VW));
                f = as_bf16 == 0.0f ? f : f * (l / as_bf16);
            }
            if (it->part >= 0) {
                float *p = parts + (it->part + (int64_t)h * st->rows + r) * pf;
                scale_copy(p, o, Dv, f);
                p[Dv] = m;
                p[Dv + 1] = l;
            } else {
                const int row = it->row0 + r;
                finish_row(a, sq->q_start + row / G, (it->head0 + h) * G + row % G, o, m, l, f);
            }
        }
}

/* Query rows, masks and empty sums of an item; q in the order of the kernels, and in 16 bits for integer
 * products. */
static void rd_begin(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                     struct rd_state *st, struct cpu_mask_bounds *bounds) {
    const int G = a->num_q_heads / a->num_kv_heads, rows = st->rows;
    st->row0 = it->row0;
    cpu_bounds_init(bounds);
    for (int r = 0; r < rows; r++) {
        st->mask[r] = cpu_mask_token(sq, (it->row0 + r) / G, it->key0, it->key1);
        cpu_bounds_add(bounds, &st->mask[r]);
    }
    for (int at = 0; at < st->heads * rows; at++) {
        const int row = it->row0 + at % rows, hq = (it->head0 + at / rows) * G + row % G;
        float *q = st->q + (size_t)at * st->ldq, *l = st->l + (size_t)at * VW;
        memset(q, 0, (size_t)st->ldq * sizeof *q);
        row_to_f32(a->q_dtype, a->q + (sq->q_start + row / G) * a->q_token + hq * a->q_head, a->head_size, q);
        if (a->q_dtype == CPU_E4M3)
            for (int d = 0; d < st->ldq; d++)
                q[d] *= 256.0f;
        if (a->kv_dtype == CPU_I4) rotate_row(q, a->head_size, 1.0f / (float)a->head_size);
        turbo_query(a, q);
        const float query_scale = a->rounds_query ? round_query(q, a->head_size) : 1.0f;
        if (rd_in_pairs(a, st))
            for (int d = 0; d < st->ldq; d += CHUNK) {
                vf x = v_load(q + d), y = v_load(q + d + VW);
                v_unzip(&x, &y);
                v_store(q + d, x);
                v_store(q + d + VW, y);
            }
        int16_t *q16 = st->q16 + (size_t)at * st->ldq;
        st->qf[at] = query_scale;
        if (st->words && !st->quads) {
            if (!a->rounds_query) st->qf[at] = rd_words_from(q, st->ldq, q16);
            for (int d = 0; a->rounds_query && d < st->ldq; d++)
                q16[d] = (int16_t)q[d];
            if (st->nibbles) st->q_sum[at] = rd_nibbles_query(q16, st->ldq);
        }
        memset(l, 0, VW * sizeof *l);
        start_row(a, it, hq, &st->m[at], l);
#if CPU_BF16_DOT
        if (!st->dots) continue;
        if (!st->words) st->qf[at] = rd_dots_query(a, q, st->ldq, q16);
        memcpy(st->l_bf16 + (size_t)at * VW, l, VW * sizeof *l);
#endif
    }
#if CPU_BF16_DOT
    for (int h = 0; st->dots && h < st->heads; h++)
        rd_dots_panels(st, h);
#endif
    for (int at = 0; st->quads && at < st->heads * rows; at += rows)
        rd_quads_query(st, (size_t)at);
    if (st->quads) memset(st->lows, 0, (size_t)st->heads * rows * VW * sizeof *st->lows);
    if (st->codes) rd_codes_begin(a, st);
    for (int at = 0; st->codes && at < st->heads * rows; at += rows)
        rd_codes_query(a, st, (size_t)at);
    memset(st->o, 0, (size_t)st->heads * rows * st->ldo * sizeof *st->o);
#if CPU_X86 >= 3
    if (!st->tiles) return;
    memset(st->tile_s, 0, RD_TB * 64);
    for (int at = 0; at < st->heads * rows; at += rows)
        rd_tiles_query(st, st->q + (size_t)at * st->ldq, st->qf + at, st->tile_q + (size_t)at * st->ldq / 2);
    rd_tiles_begin(rows);
#endif
}

static void rd_item(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                    const struct cpu_tiling *tiling, char *scratch, float *parts) {
    struct rd_state st;
    struct cpu_mask_bounds bounds;
    rd_carve(&st, a, it->head1 - it->head0, it->row1 - it->row0, tiling, scratch);
    for (int t = 0; t < st.tile; t++)
        st.vs[t] = 1.0f; /* stays where V has no scale of tokens */
    packed_begin(a, &st.turbo);
    const enum cpu_dtype product = a->kv_dtype == CPU_PACKED ? CPU_F32 : a->kv_dtype;
    st.table = tiling->vbmi && a->kv_dtype == CPU_E4M3 && !st.tiles && !st.dots;
    st.pairs = st.codes && tiling->fast_bf16 && tiling->vbmi;
    st.vbmi = st.codes && tiling->vbmi;
    st.key_scales = cpu_scales_keys(a) || (st.codes && is_centroids(a->k_row));
    st.gain = st.table ? 1.0f : dtype_gain(a->kv_dtype);
    if (st.has_lift) st.gain = 0x1p27f; /* E4M3_SCALE less P's 90 */
    rd_begin(a, sq, it, &st, &bounds);
    const int end = cpu_bounds_end(&bounds);
    const int tile = st.tile;
    int k0 = rd_next_tile(&bounds, cpu_bounds_first(&bounds) / tile * tile, end, tile), flip = 0;
    const char **ptr[2] = {st.ptr, st.ptr + 4 * tile};
    const char **groups[2] = {st.groups, st.groups + 2 * tile};
#if CPU_X86 >= 3
    int first = 1;
#endif
    if (k0 < end) rd_pointers(a, sq, &bounds, k0, tile, ptr[0], groups[0]);
    while (k0 < end) {
        const int next = rd_next_tile(&bounds, k0 + tile, end, tile), used = cpu_min(end - k0, tile);
        const int n = (used + VW - 1) / VW * VW;
        const int partial = n > used || cpu_bounds_cover(&bounds, k0, k0 + n) != CPU_COVER_FULL;
        const char **p = ptr[flip], **pn = ptr[!flip];
        if (next < end) rd_pointers(a, sq, &bounds, next, tile, pn, groups[!flip]);
        for (int h = 0; h < st.heads; h++) {
            struct rd_tile x = {.n = n, .n_used = used, .into_l2 = tiling->into_l2, .k = p, .v = p + tile};
            const int last = h + 1 == st.heads, hn = it->head0 + (last ? 0 : h + 1);
            const int wraps = h + 2 >= st.heads, hf = it->head0 + (wraps ? h + 2 - st.heads : h + 2);
            x.k_off = (int64_t)(it->head0 + h) * a->k.head;
            if (a->k_row_scale.base || st.codes) {
                x.k_tail = rd_k_tail(a);
                x.v_tail = rd_v_tail(a);
            }
            x.v_off = (int64_t)(it->head0 + h) * a->v.head;
            if (!last || next < end) {
                x.k_next = (last ? pn : p) + 2 * tile;
                x.v_next = x.k_next + tile;
                x.k_rows = last ? pn : p;
                x.v_rows = x.k_rows + tile;
                x.k_next_off = (int64_t)hn * a->k.head;
                x.v_next_off = (int64_t)hn * a->v.head;
                x.groups_next = a->k_apart.base ? groups[last ? !flip : flip] : NULL;
                x.k_groups_next = (int64_t)hn * a->k_apart.head;
                x.v_groups_next = (int64_t)hn * a->v_apart.head;
            }
            if (tiling->far && st.heads > 1 && (!wraps || next < end)) {
                x.k_far = (wraps ? pn : p) + 2 * tile;
                x.v_far = x.k_far + tile;
                x.k_far_off = (int64_t)hf * a->k.head;
                x.v_far_off = (int64_t)hf * a->v.head;
            }
            if (st.codes) {
                rd_codes_scales(a, &st, &x, groups[flip], it->head0 + h);
            } else if (st.nibbles && st.quads) {
                rd_quads_scales(p, x.k_off + a->head_size / 2, n, st.ks, st.zk);
                rd_quads_scales(p + tile, x.v_off + a->head_size_v / 2, n, st.vs, st.zv);
            } else if (st.nibbles) {
                rd_nibbles_scales(p, x.k_off + a->head_size / 2, n, st.ks, st.zk);
                rd_nibbles_scales(p + tile, x.v_off + a->head_size_v / 2, n, st.vs, st.zv);
            } else if (a->rounds_query) {
                row_scales(CPU_F32, groups[flip], (it->head0 + h) * a->k_apart.head, n, st.ks);
            } else if (a->k_row_scale.base) {
                row_scales(a->kv_dtype, p, x.k_off + (a->k_row_scale.base - a->k.base), n, st.ks);
                row_scales(a->kv_dtype, p + tile, x.v_off + (a->v_row_scale.base - a->v.base), n,
                           st.dots ? st.vd : st.vs);
                if (st.has_lift) st.lift = rd_lift(st.dots ? st.vd : st.vs, n);
            }
            if (a->kv_dtype == CPU_I4 && !st.nibbles) rd_bytes(a, &st, &x);
            if (a->kv_dtype == CPU_PACKED && !st.dots && !st.codes)
                rd_floats(a, &st, groups[flip], it->head0 + h, &x);
            const size_t at = (size_t)h * st.rows;
#if CPU_X86 >= 3
            if (st.tiles) {
                if (first) rd_tiles_keys(&st, &x, x.k, x.k_off, NULL);
                first = 0;
                rd_tiles_values(&st, &x, st.tile_q + at * st.ldq / 2);
                rd_tiles_scores(&st);
                rd_softmax(a, sq, &st, h, it->head0 + h, k0, n, partial);
                rd_tiles_weights(&st, n);
                rd_tiles_keys(&st, &x, x.k_rows, x.k_next_off, rd_sums(&st, at));
                rd_add_lifted(&st, at);
                continue;
            }
#endif
            if (st.codes)
                rd_codes_qk(a, &st, &x, at);
            else if (st.quads)
                rd_quads_qk(a, &st, &x, at);
            else if (st.nibbles)
                rd_nibbles_qk(&st, &x, at, a->head_size);
#if CPU_BF16_DOT
            else if (st.dots && !st.words)
                rd_dots_qk(a, &st, &x, at);
#endif
            else if (st.words)
                rd_words_qk(&st, &x, st.q16 + at * st.ldq, a->head_size);
#if CPU_X86 >= 2
            else if (st.table)
                rd_table_qk(&x, st.q + at * st.ldq, st.ldq, a->head_size, st.rows, st.s);
#endif
            else
                rd_qk[product](&x, st.q + at * st.ldq, st.ldq, a->head_size, st.rows, st.s);
            if (st.quads)
                rd_quads_softmax(a, sq, &st, h, it->head0 + h, k0, n, partial);
            else
                rd_softmax(a, sq, &st, h, it->head0 + h, k0, n, partial);
            if (st.codes)
                rd_codes_pv(a, &st, &x, at);
            else if (st.quads)
                rd_quads_pv(a, &st, &x, st.o + at * st.ldo);
            else if (st.nibbles)
                rd_nibbles_pv(&st, &x, st.o + at * st.ldo, a->head_size_v);
#if CPU_BF16_DOT
            else if (st.dots) {
                rd_dots_weights(a, &st, at, n);
                rd_dots_pv(a, &st, &x, rd_sums(&st, at));
                rd_add_lifted(&st, at);
            }
#endif
            else if (st.words)
                rd_words_pv(&st, &x, st.o + at * st.ldo, a->head_size_v);
#if CPU_X86 >= 2
            else if (st.table)
                rd_table_pv(&x, st.s, st.o + at * st.ldo, st.ldo, a->head_size_v, st.rows);
#endif
            else
                rd_pv[product](&x, st.s, st.o + at * st.ldo, st.ldo, a->head_size_v, st.rows);
        }
        k0 = next;
        flip = !flip;
    }
#if CPU_X86 >= 3
    if (st.tiles) amx_end();
#endif
    rd_store(a, sq, it, &st, parts);
}
