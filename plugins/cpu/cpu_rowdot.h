/* SPDX-License-Identifier: Apache-2.0 */
/* Row-dot path: few query rows per KV head (decode, speculative verification). Lanes are head elements; memory decides,
 * so all KV heads of a tile of tokens are walked before the next tile, and the rows of the next (tile, head) are
 * prefetched while this one computes. Softmax per row with lazy rescaling: m moves only when a score exceeds it by
 * more than 2^8 (the threshold idea is FlashAttention-4's). Included once per level by cpu_level.c. */

/* One tile of tokens of one head: row pointers of head 0 plus the head's offset, the same for the tile to prefetch. */
struct rd_tile {
    int n, n_used; /* tokens rounded up to the vector width, and truly used */
    const char *const *k, *const *v, *const *k_next, *const *v_next;
    int64_t k_off, v_off, k_next_off, v_next_off;
};

#if CPU_LEVEL >= 2
#define RD_NC 2
#else
#define RD_NC 1
#endif

#define RD_TYPE f32
#define RD_ENUM CPU_F32
#define RD_SIZE 4
#include "cpu_rowdot_kernel.h"
#define RD_TYPE f16
#define RD_ENUM CPU_F16
#define RD_SIZE 2
#include "cpu_rowdot_kernel.h"
#define RD_TYPE bf16
#define RD_ENUM CPU_BF16
#define RD_SIZE 2
#include "cpu_rowdot_kernel.h"
#define RD_TYPE e4m3
#define RD_ENUM CPU_E4M3
#define RD_SIZE 1
#include "cpu_rowdot_kernel.h"
#define RD_TYPE e5m2
#define RD_ENUM CPU_E5M2
#define RD_SIZE 1
#include "cpu_rowdot_kernel.h"
#define RD_TYPE i8
#define RD_ENUM CPU_I8
#define RD_SIZE 1
#include "cpu_rowdot_kernel.h"

typedef void rd_qk_func(const struct rd_tile *, const float *q, int ldq, int D, int rows, float *s);
typedef void rd_pv_func(const struct rd_tile *, const float *p, float *o, int ldo, int D, int rows);
static rd_qk_func *const rd_qk[CPU_NUM_DTYPES] = {rd_qk_f32, rd_qk_f16, rd_qk_bf16, rd_qk_e4m3, rd_qk_e5m2, rd_qk_i8};
static rd_pv_func *const rd_pv[CPU_NUM_DTYPES] = {rd_pv_f32, rd_pv_f16, rd_pv_bf16, rd_pv_e4m3, rd_pv_e5m2, rd_pv_i8};

enum { RD_TB = CPU_ROWDOT_TILE };

/* What a thread keeps for the heads of its item; carved from its scratch. */
struct rd_state {
    int rows, row0, heads, ldq, ldo;
    float *q, *o, *m, *l; /* [heads][rows][ldq | ldo | 1 | VW] */
    float *s;             /* [rows][RD_TB] */
    struct cpu_interval2 *mask; /* [rows] */
    const char **ptr;     /* [2][K, V, two lists to prefetch][RD_TB] */
    float *ks, *vs;       /* [RD_TB] */
    float *qf;            /* [heads][rows] factor of the query row: 1, or of its 16-bit form */
    /* Integer products: q [heads][rows][ldq] and P [rows][RD_TB] in 16 bits, P's factors [rows]. */
    int16_t *q16, *p16;
    float *pf;
    /* Products by tiles: q as the kernels read it, and room for a tile of K, V, P and scores. */
    uint32_t *tile_q;
    uint16_t *tile_k, *tile_v, *tile_p;
    float *tile_s;
    int tile_words; /* of a head's tile_q */
    int words, vnni, table, tiles;
    float gain;     /* of what the products leave in the scores and in O */
};

#include "cpu_rowdot_words.h"
#include "cpu_rowdot_table.h"
#include "cpu_rowdot_tiles.h"

static size_t rd_carve(struct rd_state *st, const struct cpu_attn *a, int heads, int rows, char *mem) {
    size_t at = 0;
    st->rows = rows;
    st->heads = heads;
    st->ldq = (a->head_size + 63) / 64 * 64;
    st->ldo = (a->head_size_v + 63) / 64 * 64;
#define CARVE(member, type, count)                                                                                     \
    st->member = mem ? (type *)(void *)(mem + at) : NULL;                                                              \
    at += ((size_t)(count) * sizeof(type) + 63) & ~(size_t)63
    CARVE(q, float, (size_t)heads * rows * st->ldq);
    CARVE(o, float, (size_t)heads * rows * st->ldo);
    CARVE(m, float, (size_t)heads * rows);
    CARVE(l, float, (size_t)heads * rows * VW);
    CARVE(s, float, (size_t)rows * RD_TB);
    CARVE(mask, struct cpu_interval2, rows);
    CARVE(ptr, const char *, 8 * RD_TB);
    CARVE(ks, float, RD_TB);
    CARVE(vs, float, RD_TB);
    CARVE(qf, float, (size_t)heads * rows);
    st->words = rd_words_serve(a);
    CARVE(q16, int16_t, st->words ? (size_t)heads * rows * st->ldq : 0);
    CARVE(p16, int16_t, st->words ? rows * RD_TB : 0);
    CARVE(pf, float, rows);
    const size_t k_wide = (size_t)(a->head_size + 31) / 32 * 32, v_wide = (size_t)(a->head_size_v + 31) / 32 * 32;
    st->tile_words = (int)k_wide / 2 * rows;
    CARVE(tile_q, uint32_t, CPU_LEVEL >= 3 ? (size_t)heads * (size_t)st->tile_words : 0);
    CARVE(tile_k, uint16_t, CPU_LEVEL >= 3 ? RD_TB * k_wide : 0);
    CARVE(tile_v, uint16_t, CPU_LEVEL >= 3 ? RD_TB * v_wide : 0);
    CARVE(tile_p, uint16_t, CPU_LEVEL >= 3 ? rows * RD_TB : 0);
    CARVE(tile_s, float, CPU_LEVEL >= 3 ? rows * RD_TB : 0);
#undef CARVE
    return at;
}

/* Scaling, cap, mask and bias of one row's scores; leaves log2 units and returns the lanes' maxima. */
SI vf rd_scores(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st, int row, int hq, int k0,
                int n, float c, int partial) {
    float *s = st->s + row * RD_TB;
    const int tok = (st->row0 + row) / (a->num_q_heads / a->num_kv_heads);
    const struct cpu_interval2 *iv = &st->mask[row];
    const float log2e = 1.442695041f;
    const int plain = !(a->soft_cap > 0) && !a->alibi && !a->qq_bias;
    vf top = v_set1(-INFINITY);
    for (int t = 0; t < n; t += VW) {
        vf x = v_load(s + t);
        vi k = vi_add(vi_set1(k0 + t), vi_load(lane_numbers));
        if (a->k_row_scale.base)
            x = v_mul(x, v_load(st->ks + t));
        if (plain) {
            x = v_mul(x, v_set1(c * log2e));
        } else {
            x = v_mul(x, v_set1(c));
            if (a->soft_cap > 0)
                x = v_mul(v_set1(a->soft_cap), v_tanh(v_mul(x, v_set1(1.0f / a->soft_cap))));
            if (a->alibi)
                x = v_add(x, alibi_term(a->alibi_sqrt, v_set1(a->alibi[hq]), vi_sub(k, vi_set1(sq->q_offset + tok))));
            if (a->qq_bias) {
                float b[VW];
                for (int i = 0; i < VW; i++)
                    b[i] = qq_bias_at(a, sq, tok, k0 + t + i);
                x = v_add(x, v_load(b));
            }
            x = v_mul(x, v_set1(log2e));
        }
        if (partial)
            x = v_mask2(x, k, vi_set1(iv->lo0), vi_set1(iv->hi0), vi_set1(iv->lo1), vi_set1(iv->hi1));
        v_store(s + t, x);
        top = v_max(x, top);
    }
    return top;
}

/* Row r of head h moves to a new maximum: rare, because m may lag behind by 2^8. */
static __attribute__((noinline)) void rd_rescale(const struct rd_state *st, int at, float new_m) {
    float *o = st->o + (size_t)at * st->ldo, *l = st->l + (size_t)at * VW;
    const vf al = v_exp2(v_set1(st->m[at] - new_m));
    st->m[at] = new_m;
    v_store(l, v_mul(v_load(l), al));
    for (int d = 0; d < st->ldo; d += VW)
        v_store(o + d, v_mul(v_load(o + d), al));
}

/* Whole tiles of plain scores: scale, look at the maximum, exponential, all in registers. */
SI void rd_softmax_plain(const struct rd_state *st, int h, float c, int scaled) {
    for (int r = 0; r < st->rows; r++) {
        const int at = h * st->rows + r;
        float *s = st->s + r * RD_TB, *l = st->l + (size_t)at * VW;
        vf x[RD_TB / VW], top = v_set1(-INFINITY), m = v_set1(st->m[at]), f = v_set1(c * st->qf[at]);
        UNROLL for (int t = 0; t < RD_TB / VW; t++) {
            x[t] = v_mul(v_load(s + t * VW), scaled ? v_mul(f, v_load(st->ks + t * VW)) : f);
            top = v_max(x[t], top);
        }
        if (__builtin_expect(v_any_gt(top, v_add(m, v_set1(8.0f))), 0)) {
            rd_rescale(st, at, v_hmax(top));
            m = v_set1(st->m[at]);
        }
        vf sum = v_load(l);
        UNROLL for (int t = 0; t < RD_TB / VW; t++) {
            const vf p = v_exp2(v_sub(x[t], m));
            sum = v_add(sum, p);
            v_store(s + t * VW, scaled ? v_mul(p, v_load(st->vs + t * VW)) : p);
        }
        v_store(l, sum);
    }
}

static void rd_softmax(const struct cpu_attn *a, const struct cpu_seq *sq, const struct rd_state *st, int h, int head,
                       int k0, int n, int partial) {
    const int G = a->num_q_heads / a->num_kv_heads, kh = a->scale_per_head ? head : 0;
    const float c = a->scale * a->q_scale * (a->k_scale ? a->k_scale[kh] : 1.0f) * st->gain;
    if (!partial && n == RD_TB && !(a->soft_cap > 0) && !a->alibi && !a->qq_bias) {
        if (a->k_row_scale.base)
            rd_softmax_plain(st, h, c * 1.442695041f, 1);
        else
            rd_softmax_plain(st, h, c * 1.442695041f, 0);
        return;
    }
    for (int r = 0; r < st->rows; r++) {
        const int at = h * st->rows + r;
        float *s = st->s + r * RD_TB, *l = st->l + (size_t)at * VW;
        const vf top = rd_scores(a, sq, st, r, head * G + (st->row0 + r) % G, k0, n, c * st->qf[at], partial);
        if (v_any_gt(top, v_set1(st->m[at] + 8.0f)))
            rd_rescale(st, at, v_hmax(top));
        vf sum = v_load(l);
        const vf m = v_set1(st->m[at]);
        for (int t = 0; t < n; t += VW) {
            vf p = v_exp2(v_sub(v_load(s + t), m));
            sum = v_add(sum, p);
            if (a->v_row_scale.base)
                p = v_mul(p, v_load(st->vs + t));
            v_store(s + t, p);
        }
        v_store(l, sum);
    }
}

/* Rows of keys [k0, k0 + RD_TB) for head 0 in p[0..TB) (K) and p[TB..2TB) (V); keys that no row sees are redirected to
 * one that some do. Behind them two lists of rows to prefetch, one for each of the two products: token by token, K and V
 * in turn, where both have the same strides; else the rows of K, then those of V. Packed rows fetched K first would
 * draw V along (the hardware prefetcher) and leave memory idle during the second product. */
static void rd_pointers(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_mask_bounds *b, int k0,
                        const char **p) {
    const int even = a->k.head == a->v.head && a->head_size == a->head_size_v;
    row_pointers(a, sq, &a->k, k0, RD_TB, b, p);
    row_pointers(a, sq, &a->v, k0, RD_TB, b, p + RD_TB);
    for (int i = 0; i < RD_TB; i++) {
        p[2 * RD_TB + (even ? 2 * i : i)] = p[i];
        p[2 * RD_TB + (even ? 2 * i + 1 : RD_TB + i)] = p[RD_TB + i];
    }
}

/* The next tile at or after k0 that some row sees, or `end`. */
SI int rd_next_tile(const struct cpu_mask_bounds *b, int k0, int end) {
    while (k0 < end && cpu_bounds_cover(b, k0, k0 + RD_TB) == CPU_COVER_NONE)
        k0 = b->lo_min[0] >= k0 + RD_TB && b->hi_max[1] <= k0 ? b->lo_min[0] / RD_TB * RD_TB : k0 + RD_TB;
    return k0 < end ? k0 : end;
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
            if ((a->kv_dtype == CPU_BF16 && !st->tiles) || st->table)
                for (int d = 0; d < st->ldo; d += CHUNK) {
                    vf x = v_load(o + d), y = v_load(o + d + VW);
                    v_zip(&x, &y);
                    v_store(o + d, x);
                    v_store(o + d + VW, y);
                }
            if (st->words || st->tiles)
                rd_words_order(o, st->ldo);
            float f = gain * (a->v_scale ? a->v_scale[a->scale_per_head ? it->head0 + h : 0] : 1.0f);
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

/* Query rows, masks and empty sums of an item; q in the order of the kernels, and in 16 bits for integer products. */
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
        if ((a->kv_dtype == CPU_BF16 && !st->tiles) || st->table)
            for (int d = 0; d < st->ldq; d += CHUNK) {
                vf x = v_load(q + d), y = v_load(q + d + VW);
                v_unzip(&x, &y);
                v_store(q + d, x);
                v_store(q + d + VW, y);
            }
        st->qf[at] = st->words ? rd_words_from(q, st->ldq, st->q16 + (size_t)at * st->ldq) : 1.0f;
        const int sink = a->sinks && it->key0 == 0;
        st->m[at] = sink ? a->sinks[hq] * 1.442695041f : -1e30f;
        memset(l, 0, VW * sizeof *l);
        l[0] = sink ? 1.0f : 0.0f;
    }
#if CPU_LEVEL >= 3
    for (int h = 0; h < st->heads && st->tiles; h++)
        rd_tiles_query(st->q + (size_t)h * rows * st->ldq, st->ldq, rows, a->head_size,
                       st->tile_q + (size_t)h * st->tile_words);
#endif
    memset(st->o, 0, (size_t)st->heads * rows * st->ldo * sizeof *st->o);
}

static void rd_item(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                    const struct cpu_tiling *tiling, char *scratch, float *parts) {
    struct rd_state st;
    struct cpu_mask_bounds bounds;
    rd_carve(&st, a, it->head1 - it->head0, it->row1 - it->row0, scratch);
    st.vnni = tiling->vnni;
#if CPU_LEVEL >= 3
    st.tiles = tiling->amx && st.rows <= RT_ROWS && a->kv_dtype != CPU_I8;
    if (st.tiles)
        rd_tiles_begin(st.rows);
#else
    st.tiles = 0;
#endif
    st.table = !st.tiles && tiling->vbmi && a->kv_dtype == CPU_E4M3;
    st.gain = st.tiles || st.table ? 1.0f : dtype_gain(a->kv_dtype);
    rd_begin(a, sq, it, &st, &bounds);
    const int end = cpu_bounds_end(&bounds);
    int k0 = rd_next_tile(&bounds, cpu_bounds_first(&bounds) / RD_TB * RD_TB, end), flip = 0;
    const char **ptr[2] = {st.ptr, st.ptr + 4 * RD_TB};
    if (k0 < end)
        rd_pointers(a, sq, &bounds, k0, ptr[0]);
    while (k0 < end) {
        const int next = rd_next_tile(&bounds, k0 + RD_TB, end), used = cpu_min(end - k0, RD_TB);
        const int n = (used + VW - 1) / VW * VW;
        const int partial = n > used || cpu_bounds_cover(&bounds, k0, k0 + n) != CPU_COVER_FULL;
        const char **p = ptr[flip], **pn = ptr[!flip];
        if (next < end)
            rd_pointers(a, sq, &bounds, next, pn);
        for (int h = 0; h < st.heads; h++) {
            struct rd_tile x = {.n = n, .n_used = used, .k = p, .v = p + RD_TB};
            const int last = h + 1 == st.heads, hn = it->head0 + (last ? 0 : h + 1);
            x.k_off = (int64_t)(it->head0 + h) * a->k.head;
            x.v_off = (int64_t)(it->head0 + h) * a->v.head;
            if (!last || next < end) {
                x.k_next = (last ? pn : p) + 2 * RD_TB;
                x.v_next = x.k_next + RD_TB;
                x.k_next_off = (int64_t)hn * a->k.head;
                x.v_next_off = (int64_t)hn * a->v.head;
            }
            if (a->k_row_scale.base) {
                row_scales(p, x.k_off + (a->k_row_scale.base - a->k.base), n, st.ks);
                row_scales(p + RD_TB, x.v_off + (a->v_row_scale.base - a->v.base), n, st.vs);
            }
            const size_t at = (size_t)h * st.rows;
#if CPU_LEVEL >= 3
            if (st.tiles)
                rd_tiles_qk(&st, &x, st.tile_q + (size_t)h * st.tile_words, a->kv_dtype, a->head_size);
            else
#endif
            if (st.words)
                rd_words_qk(&st, &x, st.q16 + at * st.ldq, a->head_size);
#if CPU_LEVEL >= 2
            else if (st.table)
                rd_table_qk(&x, st.q + at * st.ldq, st.ldq, a->head_size, st.rows, st.s);
#endif
            else
                rd_qk[a->kv_dtype](&x, st.q + at * st.ldq, st.ldq, a->head_size, st.rows, st.s);
            rd_softmax(a, sq, &st, h, it->head0 + h, k0, n, partial);
#if CPU_LEVEL >= 3
            if (st.tiles)
                rd_tiles_pv(&st, &x, st.o + at * st.ldo, a->kv_dtype, a->head_size_v);
            else
#endif
            if (st.words)
                rd_words_pv(&st, &x, st.o + at * st.ldo, a->head_size_v);
#if CPU_LEVEL >= 2
            else if (st.table)
                rd_table_pv(&x, st.s, st.o + at * st.ldo, st.ldo, a->head_size_v, st.rows);
#endif
            else
                rd_pv[a->kv_dtype](&x, st.s, st.o + at * st.ldo, st.ldo, a->head_size_v, st.rows);
        }
        k0 = next;
        flip = !flip;
    }
    rd_store(a, sq, it, &st, parts);
#if CPU_LEVEL >= 3
    if (st.tiles)
        amx_end();
#endif
}
