/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread of the row-dot path keeps for one item, in its scratch. Included by cpu_rowdot.h. */

enum { RD_TB = CPU_ROWDOT_TILE };
enum { RD_TILE_ROWS = 16 }; /* query rows that AMX tiles take */

/* What a thread keeps for the heads of its item; carved from its scratch. */
struct rd_state {
    int rows, row0, heads, ldq, ldo, tile; /* tile: keys of one */
    float *q, *o, *m, *l;                  /* [heads][rows][ldq | ldo | 1 | VW] */
    float *s;                              /* [rows][tile] */
    struct cpu_interval2 *mask;            /* [rows] */
    const char **ptr;                      /* [2][K, V, two lists to prefetch][tile] */
    const char **groups;                   /* [2][K, V][tile], or NULL */
    float *ks, *vs;                        /* [tile] */
    float *qf; /* [heads][rows] factor of the query row: 1, or of its 16-bit form */
    /* Integer products: q [heads][rows][ldq] and P [rows][tile] in 16 bits, P's factors [rows]. */
    int16_t *q16, *p16;
    float *pf;
    int words, vnni, table;
    int nibbles;      /* they come straight from int4 rows: sums of q's words [heads][rows], */
    int32_t *q_sum;   /* and zero points */
    int32_t *zk, *zv; /* [tile] */
    int quads;        /* by products of bytes: q16 and p16 hold bytes, q_sum two sums a row, lows sums of P
                       * times zero points; */
    char *mixed;      /* V's bytes of four keys in turn, [tile][64] */
    int dots; /* bf16 pairs, with words for V alone: q16 and p16 hold bf16; sums of P as bf16, V's scales */
    float *l_bf16, *vd; /* [heads][rows][VW], [RD_TB] */
    /* V's scales far from 1 do not fit between P's and e4m3's powers of two: those of a tile are divided by
     * 2^lift, and its outputs, [rows][ldo], are added when they are multiplied by it. */
    int has_lift, lift;
    float *lifted;
    int crossed;  /* rows of a head whose scores go by 16 (cpu_rowdot_cross.h): */
    float *cross; /* their q, [heads][rows, up to a multiple of VW][ldq / 2] in panels of VW rows */
    /* AMX: queries [heads][ldq / 2][rows], K and V as tiles, scores [RD_TB][16], P in bf16 [rows][RD_TB]. */
    int tiles;
    uint32_t *tile_q;
    char *tile_k, *tile_v, *tile_s, *tile_p;
    /* Straight from codes of CPU_PACKED (cpu_rowdot_codes.h): what K's stand for, scales of groups of K and
     * of V, whether one of V's is NaN; V's steps and minima [RD_TB], sums of P times minima, as l. */
    int codes, nan;
    int16_t *look;
    float *group_k, *group_v, *step, *low, *lows;
    int pairs, vbmi; /* products of bf16 pairs, look-ups of bytes: for e4m3 keys beside such values */
    int key_scales;  /* each key has one, in ks */
    float gain;      /* of what the products leave in the scores and in O */
    /* int4 and packed rows: the tile's rows of K and V as bytes or floats, [RD_TB][byte_ldk | byte_ldv]
     * bytes, and pointers to them, [2][RD_TB]. */
    struct turbo_table turbo;
    int byte_ldk, byte_ldv;
    char *byte_k, *byte_v;
    const char **byte_rows;
};

/* Words of a head's panels. */
SI size_t rd_panel_words(const struct rd_state *st) {
    return (size_t)(st->crossed + VW - 1) / VW * VW * (size_t)st->ldq / 2;
}

#include "cpu_rowdot_words.h"
#include "cpu_rowdot_nibbles.h"
#include "cpu_rowdot_quads.h"
#include "cpu_rowdot_table.h"
#include "cpu_rowdot_dots.h"
#include "cpu_rowdot_tiles.h"
#include "cpu_rowdot_codes.h"

static size_t rd_carve(struct rd_state *st, const struct cpu_attn *a, int heads, int rows,
                       const struct cpu_tiling *tiling, char *mem) {
    size_t at = 0;
    st->rows = rows;
    st->heads = heads;
    st->words = rd_words_serve(a) || rd_words_keys(a, tiling->dots);
    st->nibbles = rd_nibbles_serve(a);
    st->dots = tiling->dots;
    st->vnni = tiling->vnni;
    st->quads = rd_quads_serve(a, st->vnni);
    st->codes = rd_codes_serve(a);
    st->tile = st->quads ? RD_QUADS_TB : RD_TB;
    const int is_e2m1 = st->codes && a->k_row == CPU_E2M1;
    const int unit = (st->nibbles || st->codes) && RD_CODES > 64 ? RD_CODES : 64;
    st->ldq = (a->head_size + unit - 1) / unit * unit;
    st->ldo = (a->head_size_v + unit - 1) / unit * unit;
#define CARVE(member, type, count)                                                                           \
    st->member = mem ? (type *)(void *)(mem + at) : NULL;                                                    \
    at += ((size_t)(count) * sizeof(type) + 63) & ~(size_t)63
    CARVE(q, float, (size_t)heads *rows * st->ldq);
    CARVE(o, float, (size_t)heads *rows * st->ldo);
    CARVE(m, float, (size_t)heads *rows);
    CARVE(l, float, (size_t)heads *rows *VW);
    CARVE(s, float, (size_t)rows * st->tile);
    CARVE(mask, struct cpu_interval2, rows);
    CARVE(ptr, const char *, 8 * st->tile);
    CARVE(groups, const char *, cpu_has_groups(a) || a->rounds_query ? 4 * st->tile : 0);
    CARVE(ks, float, st->tile);
    CARVE(vs, float, st->tile);
    CARVE(qf, float, (size_t)heads *rows);
    CARVE(q16, int16_t, st->words || st->dots || st->codes ? (size_t)heads * rows * st->ldq : 0);
    CARVE(p16, int16_t, st->words || st->dots || st->codes ? rows * RD_QUADS_TB : 0);
    CARVE(q_sum, int32_t, st->nibbles ? (size_t)heads * rows * 2 : 0);
    CARVE(mixed, char, st->quads || st->codes ? st->tile * 64 : 0);
    CARVE(zk, int32_t, st->nibbles ? st->tile : 0);
    CARVE(zv, int32_t, st->nibbles || st->codes ? st->tile : 0);
    CARVE(look, int16_t, st->codes ? 32 : 0);
    CARVE(group_k, float, is_e2m1 ? st->ldq / 16 * RD_TB : 0);
    CARVE(group_v, float, is_e2m1 ? st->ldo / 8 * RD_TB : 0);
    CARVE(step, float, st->codes ? RD_TB : 0);
    CARVE(low, float, st->codes ? RD_TB : 0);
    CARVE(lows, float, st->codes || st->quads ? (size_t)heads * rows * VW : 0);
    CARVE(l_bf16, float, st->dots ? (size_t)heads *rows *VW : 0);
    CARVE(vd, float, st->dots ? RD_TB : 0);
    CARVE(pf, float, rows);
    st->crossed = 0;
#if CPU_BF16_DOT && CPU_X86 >= 3
    if (st->dots && a->kv_dtype == CPU_BF16) st->crossed = rd_cross_rows(rows, a->head_size);
#endif
    CARVE(cross, float, (size_t)heads *rd_panel_words(st));
#if CPU_X86 >= 3
    st->tiles = tiling->amx && tiling->vbmi && rd_tiles_serve(a, rows);
#else
    st->tiles = 0;
#endif
    st->has_lift = a->kv_dtype == CPU_E4M3 && (st->dots || st->tiles);
    st->lift = 0;
    CARVE(lifted, float, st->has_lift ? rows * st->ldo : 0);
    CARVE(tile_q, uint32_t, st->tiles ? (size_t)heads * rows * st->ldq / 2 : 0);
    CARVE(tile_k, char, st->tiles ? RD_TB * 2 * st->ldq : 0);
    CARVE(tile_v, char, st->tiles ? RD_TB * 2 * st->ldo : 0);
    CARVE(tile_s, char, st->tiles ? RD_TB * 64 : 0);
    CARVE(tile_p, char, st->tiles ? rows * 64 : 0);
    /* bytes of an element; packed rows are followed by a chunk */
    const int size = a->kv_dtype == CPU_I4 && !st->nibbles                  ? 1
                     : a->kv_dtype == CPU_PACKED && !st->dots && !st->codes ? 4
                                                                            : 0;
    const int room = a->kv_dtype == CPU_PACKED ? CHUNK : 0;
    st->byte_ldk = st->codes && a->k_row == CPU_C3 ? st->ldq / 2 : size * (st->ldq + room);
    st->byte_ldv = st->codes && a->v_row == CPU_V3 ? st->ldo / 2
                   : cpu_is_shared(a)              ? 0
                                                   : size * (st->ldo + room);
    const int rebuilt = st->byte_ldk + st->byte_ldv > 0;
    CARVE(byte_k, char, RD_TB * st->byte_ldk);
    CARVE(byte_v, char, RD_TB * st->byte_ldv);
    CARVE(byte_rows, const char *, rebuilt ? 2 * RD_TB : 0);
    for (int i = 0; mem && rebuilt && i < RD_TB; i++) {
        st->byte_rows[i] = st->byte_k + (size_t)i * st->byte_ldk;
        st->byte_rows[RD_TB + i] =
            cpu_is_shared(a) ? st->byte_rows[i] : st->byte_v + (size_t)i * st->byte_ldv;
    }
#undef CARVE
    return at;
}
