/* SPDX-License-Identifier: Apache-2.0 */
/* Byte products of the row-dot path for int4 rows (AVX512_VNNI, asked at open), for 16-bit outputs: included
 * once per level by cpu_level.c, levels from avx512; cpu_rowdot_nibbles.h has the other levels.
 *
 * vpdpbusd adds four products of an unsigned byte and a signed one to each word. Codes with their zero
 * point z are the unsigned side, q and P the signed one, in two parts: high + low / 256. z times the sum of
 * q leaves by one multiplication for each 16 scores; z times P is summed for the whole item and leaves at its
 * end. Sums of products are integers and exact.
 *
 * Scores: words of 16 keys' rows are transposed, so that lanes are keys and no sum across lanes is left; a
 * word of q is a broadcast from memory. Outputs: bytes of four keys in turn make words of one column.
 *
 * A byte holds codes c0 + 16 c1. As it is, times l, it is what both of its codes need for their low parts:
 * c0 l + c1 (16 l). So q0 = h0 + l / 256 and q1 = h1 + l / 16: of l = 16 a + b, b is what q1 needs, a what q0
 * needs then, and h1 is short of a; both come within 1/32, where q's largest is 119. Three products instead
 * of four. For the outputs the byte gives O0 + 16 O1, and its high code alone gives O1. */

/* Keys of a tile: what one costs for each row of P, and for each sum that goes to memory, is shared by 64. */
enum { RD_QUADS_TB = 64, RD_QUADS_LDP = 128 }; /* and bytes of a row of P */

#if CPU_X86 >= 2
/* The largest P, and q. */
enum { RD_QUADS_TOP = 32512, RD_QUADS_Q_TOP = 119, RD_QUADS_PARTS = 3 };

/* acc + the four products of each word; q: of one word, in memory. */
SI vi rd_quads_dot(vi acc, vi u, vi s) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u), "v"(s)); /* compiled without its flag */
    return acc;
}
SI vi rd_quads_dot_word(vi acc, vi u, const int32_t *s) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(u), "m"(*s));
    return acc;
}

SI int rd_quads_serve(const struct cpu_attn *a, int vnni) {
    return vnni && a->kv_dtype == CPU_I4 && a->q_dtype == CPU_BF16 && rd_words_serve(a);
}

/* A query row of n floats as bytes [high parts of the low codes, of the high codes, low parts][n / 2]; the
 * sums that its high and low products have for each unit of z. Returns its factor: NaN if one of them is not
 * finite. */
static float rd_quads_bytes(const float *q, int n, char *out, int32_t sums[2]) {
    vf top = v_zero(), nan = v_zero();
    vi high = vi_set1(0), low = vi_set1(0);
    for (int i = 0; i < n; i += VW) {
        const vf x = v_load(q + i);
        top = v_max(_mm512_abs_ps(x), top);
        nan = v_add(nan, v_sub(x, x));
    }
    const float most = v_hmax(top);
    const vf by = v_set1(most > 1e-30f ? RD_QUADS_Q_TOP / most : 0.0f);
    for (int i = 0; i < n; i += 2 * VW, out += VW) {
        vf x = v_mul(v_load(q + i), by), y = v_mul(v_load(q + i + VW), by);
        v_unzip(&x, &y);
        const vi k = _mm512_cvtps_epi32(v_mul(y, v_set1(16.0f))), b = _mm512_and_si512(k, vi_set1(15));
        vi h = _mm512_cvtps_epi32(x);
        vi a = _mm512_cvtps_epi32(
            v_fms(v_sub(x, vi_to_f(h)), v_set1(16.0f), v_mul(vi_to_f(b), v_set1(1 / 16.0f))));
        const vi up = _mm512_srai_epi32(vi_add(a, vi_set1(8)), 4); /* -1, 0 or 1: a leaves -8 to 7 */
        a = vi_sub(a, _mm512_slli_epi32(up, 4));
        h = vi_add(h, up);
        const vi g = vi_sub(_mm512_srai_epi32(vi_sub(k, b), 4), a), l = vi_add(_mm512_slli_epi32(a, 4), b);
        _mm_storeu_si128((void *)out, _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((void *)(out + n / 2), _mm512_cvtepi32_epi8(g));
        _mm_storeu_si128((void *)(out + n), _mm512_cvtepi32_epi8(l));
        high = vi_add(high, vi_add(h, g));
        low = vi_add(low, vi_add(l, _mm512_slli_epi32(l, 4)));
    }
    sums[0] = _mm512_reduce_add_epi32(high);
    sums[1] = _mm512_reduce_add_epi32(low);
    return most * (1.0f / RD_QUADS_Q_TOP) + v_hsum(nan);
}

/* Rows in groups of 4, 2 and 1: that of row r. */
SI int rd_quads_group(int rows, int r) {
    return rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
}

/* A head's query rows as the words of each group, [word][part][row]. */
static void rd_quads_query(const struct rd_state *st, size_t at) {
    const int n = st->ldq, words = n / 8;
    int32_t bytes[RD_WORDS_MAX_SIZE / 8 * RD_QUADS_PARTS];
    for (int r = 0, g; r < st->rows; r += g) {
        int32_t *out = (int32_t *)(void *)(st->q16 + (at + (size_t)r) * n);
        g = rd_quads_group(st->rows, r);
        for (int i = 0; i < g; i++, out++) {
            const size_t row = at + (size_t)(r + i);
            st->qf[row] = rd_quads_bytes(st->q + row * n, n, (char *)bytes, st->q_sum + 2 * row);
            for (int part = 0; part < RD_QUADS_PARTS; part++)
                for (int j = 0; j < words; j++)
                    out[(j * RD_QUADS_PARTS + part) * g] = bytes[part * words + j];
        }
    }
}

/* 32 bytes at p and at q behind each other, or the first n of each. */
SI vi rd_quads_two(const char *p, const char *q, int n) {
    if (n >= 32)
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)p)),
                                  _mm256_loadu_si256((const void *)q), 1);
    const __mmask32 first = n <= 0 ? 0 : (__mmask32)((1ull << n) - 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi8(first, p)),
                              _mm256_maskz_loadu_epi8(first, q), 1);
}

/* 64 bytes (of n left) of 16 rows as words of lanes that are rows: a transposition whose first step is how
 * the rows are loaded. Step `step` of four of one half, in place. */
SI void rd_quads_turn_step(const char *const *rows, int64_t off, int n, const int half, const int step,
                           vi a[8]) {
    vi b[8];
    UNROLL for (int i = 0; i < 8; i++) b[i] = step ? a[i] : vi_set1(0);
    UNROLL for (int i = 0; i < 8; i++) {
        const int row = i / 4 * 8 + i % 4, first = i / 4 * 4 + i % 4 / 2, j = i / 4;
        if (step == 0)
            a[i] = rd_quads_two(rows[row] + off + 32 * half, rows[row + 4] + off + 32 * half, n - 32 * half);
        if (step == 1)
            a[i] = i % 2 ? _mm512_unpackhi_epi32(b[i - 1], b[i]) : _mm512_unpacklo_epi32(b[i], b[i + 1]);
        if (step == 2)
            a[i] = i % 2 ? _mm512_unpackhi_epi64(b[first], b[first + 2])
                         : _mm512_unpacklo_epi64(b[first], b[first + 2]);
        if (step == 3)
            a[i] =
                j ? _mm512_shuffle_i32x4(b[i - 4], b[i], 0xdd) : _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    }
}
SI void rd_quads_turn(const char *const *rows, int64_t off, int n, vi out[VW]) {
    UNROLL for (int half = 0; half < 2; half++) UNROLL for (int step = 0; step < 4; step++)
        rd_quads_turn_step(rows, off, n, half, step, out + 8 * half);
}

/* Scales of n keys and the zero points in their lowest bits, `at` bytes from where the pointers show. */
static void rd_quads_scales(const char *const *p, int64_t at, int n, float *scales, int32_t *zeros) {
    for (int t = 0; t < n; t += VW) {
        int32_t raw[VW];
        UNROLL for (int i = 0; i < VW; i++) memcpy(&raw[i], p[t + i] + at, sizeof *raw);
        const vi bits = vi_load(raw);
        _mm512_storeu_si512(scales + t, _mm512_andnot_si512(vi_set1(15), bits));
        _mm512_storeu_si512(zeros + t, _mm512_and_si512(vi_set1(15), bits));
    }
}

/* Word j of 16 keys' rows, k, times q's; their scores from the sums. */
SI void rd_quads_word(vi k, const int32_t *w, vi high[4], vi low[4], const int rows) {
    const vi codes = _mm512_set1_epi8(15);
    const vi c0 = _mm512_and_si512(k, codes), c1 = _mm512_and_si512(_mm512_srli_epi16(k, 4), codes);
    UNROLL for (int r = 0; r < rows; r++) {
        high[r] = rd_quads_dot_word(high[r], c0, w + r);
        high[r] = rd_quads_dot_word(high[r], c1, w + rows + r);
        low[r] = rd_quads_dot_word(low[r], k, w + 2 * rows + r);
    }
}
SI void rd_quads_finish(const vi high[4], const vi low[4], const int32_t *sums, const int32_t *zeros,
                        float *s, const int rows) {
    const vf z = vi_to_f(vi_load(zeros)), below = v_set1(1 / 256.0f);
    UNROLL for (int r = 0; r < rows; r++) {
        const vf sum = v_fma(vi_to_f(low[r]), below, vi_to_f(high[r]));
        const float unit = (float)sums[2 * r] + (float)sums[2 * r + 1] / 256.0f;
        v_store(s + r * RD_QUADS_TB, v_fma(z, v_set1(-unit), sum));
    }
}

/* Scores of a group of `rows` query rows against 16 keys from t. */
SI void rd_quads_qk_(const struct rd_tile *x, int t, int bytes, const int32_t *q, const int32_t *sums,
                     const int32_t *zeros, float *s, const int rows) {
    vi high[4], low[4];
    UNROLL for (int r = 0; r < rows; r++) high[r] = low[r] = vi_set1(0);
    if (x->k_next) rd_fetch_k_tail(x, t, VW);
    for (int b = 0; b < bytes; b += 64, q += VW * RD_QUADS_PARTS * rows) {
        vi k[VW];
        rd_quads_turn(x->k + t, x->k_off + b, bytes - b, k);
        UNROLL for (int j = 0; j < VW; j++) {
            if (x->k_next) rd_fetch_k(x, t + j, 1, b);
            rd_quads_word(k[j], q + j * RD_QUADS_PARTS * rows, high, low, rows);
        }
    }
    rd_quads_finish(high, low, sums, zeros + t, s + t, rows);
}

/* V's bytes of four keys in turn: 64 columns' pairs of codes, from byte b of the rows. Of each 32 keys group
 * 2 i has those from 4 i on and group 2 i + 1 those from 16 + 4 i on, as packing leaves their P. */
SI void rd_quads_mix(const struct rd_tile *x, int g, int b, int bytes, vi out[4]) {
    const int key = g / 8 * 32 + g % 2 * 16 + g % 8 / 2 * 4;
    vi raw[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const char *row = x->v[key + i] + x->v_off + b;
        raw[i] = b + 64 <= bytes ? v_bytes(row) : v_bytes_tail(row, bytes - b);
    }
    const vi lo0 = _mm512_unpacklo_epi8(raw[0], raw[1]), lo1 = _mm512_unpacklo_epi8(raw[2], raw[3]);
    const vi hi0 = _mm512_unpackhi_epi8(raw[0], raw[1]), hi1 = _mm512_unpackhi_epi8(raw[2], raw[3]);
    out[0] = _mm512_unpacklo_epi16(lo0, lo1);
    out[1] = _mm512_unpackhi_epi16(lo0, lo1);
    out[2] = _mm512_unpacklo_epi16(hi0, hi1);
    out[3] = _mm512_unpackhi_epi16(hi0, hi1);
}

/* The scores of four rows against 32 keys from t of 64-byte rows, and V's rows mixed on the way: shuffles
 * find products beside them. */
SI void rd_quads_whole_(const struct rd_tile *x, int t, const int32_t *q, const int32_t *sums,
                        const int32_t *zeros, float *s, vi *v) {
    vi k[VW], next[VW], high[4], low[4];
    rd_quads_turn(x->k + t, x->k_off, 64, k);
    UNROLL for (int r = 0; r < 4; r++) high[r] = low[r] = vi_set1(0);
    if (x->k_next) rd_fetch_k_tail(x, t, 2 * VW);
    UNROLL for (int i = 0; i < 8; i++) {
        rd_quads_turn_step(x->k + t + VW, x->k_off, 64, i / 4, i % 4, next + i / 4 * 8);
        if (x->k_next) rd_fetch_k(x, t + 2 * i, 2, 0);
        rd_quads_word(k[2 * i], q + 2 * i * RD_QUADS_PARTS * 4, high, low, 4);
        rd_quads_word(k[2 * i + 1], q + (2 * i + 1) * RD_QUADS_PARTS * 4, high, low, 4);
    }
    rd_quads_finish(high, low, sums, zeros + t, s + t, 4);
    UNROLL for (int r = 0; r < 4; r++) high[r] = low[r] = vi_set1(0);
    UNROLL for (int i = 0; i < 8; i++) {
        rd_quads_mix(x, t / 4 + i, 0, 64, v + t + 4 * i);
        if (x->k_next) rd_fetch_k(x, t + VW + 2 * i, 2, 0);
        rd_quads_word(next[2 * i], q + 2 * i * RD_QUADS_PARTS * 4, high, low, 4);
        rd_quads_word(next[2 * i + 1], q + (2 * i + 1) * RD_QUADS_PARTS * 4, high, low, 4);
    }
    rd_quads_finish(high, low, sums, zeros + t + VW, s + t + VW, 4);
}
static __attribute__((noinline)) void rd_quads_whole(const struct rd_tile *x, int t, const int32_t *q,
                                                     const int32_t *sums, const int32_t *zeros, float *s,
                                                     vi *v) {
    rd_quads_whole_(x, t, q, sums, zeros, s, v);
}
static __attribute__((noinline)) void rd_quads_whole_all(const struct rd_tile *x, int t, const int32_t *q,
                                                         const int32_t *sums, const int32_t *zeros, float *s,
                                                         vi *v) {
    const struct rd_tile y = rd_fetches_all(x, 1);
    rd_quads_whole_(&y, t, q, sums, zeros, s, v);
}
SI int rd_quads_is_whole(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x) {
    const int serves = st->quads || (st->codes && st->vnni && is_centroids(a->k_row));
    return serves && st->rows >= 4 && x->n_used % RD_TB == 0 && a->head_size == 128 && a->head_size_v == 128;
}

#define RD_QUADS_QK(R)                                                                                       \
    static __attribute__((noinline)) void rd_quads_qk##R(const struct rd_tile *x, int t, int bytes,          \
                                                         const int32_t *q, const int32_t *sums,              \
                                                         const int32_t *zeros, float *s) {                   \
        rd_quads_qk_(x, t, bytes, q, sums, zeros, s, R);                                                     \
    }
RD_QUADS_QK(1)
RD_QUADS_QK(2)
RD_QUADS_QK(4)

/* Only the first group prefetches. */
static void rd_quads_qk(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x,
                        size_t at) {
    struct rd_tile y = *x;
    const int whole = rd_quads_is_whole(a, st, x) ? 4 : 0, all = rd_has_all(x, 1);
    if (whole) {
        for (int t = 0; t < x->n; t += RD_TB)
            (all ? rd_quads_whole_all
                 : rd_quads_whole)(x, t, (const int32_t *)(const void *)(st->q16 + at * st->ldq),
                                   st->q_sum + 2 * at, st->zk, st->s, (vi *)(void *)st->mixed);
        y.k_next = NULL;
    }
    for (int t = 0; t < x->n && whole < st->rows; t += VW) {
        if (!whole) y.k_next = x->k_next;
        for (int r = whole, g; r < st->rows; r += g, y.k_next = NULL) {
            const size_t row = at + (size_t)r;
            g = rd_quads_group(st->rows, r);
            (g == 4   ? rd_quads_qk4
             : g == 2 ? rd_quads_qk2
                      : rd_quads_qk1)(&y, t, a->head_size / 2,
                                      (const int32_t *)(const void *)(st->q16 + row * st->ldq),
                                      st->q_sum + 2 * row, st->zk, st->s + r * RD_QUADS_TB);
        }
    }
}

#include "cpu_rowdot_quads_out.h"
#else
SI int rd_quads_serve(const struct cpu_attn *a, int vnni) {
    (void)a, (void)vnni;
    return 0;
}
SI int rd_quads_is_whole(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x) {
    (void)a, (void)st, (void)x;
    return 0;
}
SI void rd_quads_scales(const char *const *p, int64_t at, int n, float *scales, int32_t *zeros) {
    (void)p, (void)at, (void)n, (void)scales, (void)zeros;
}
SI void rd_quads_query(const struct rd_state *st, size_t at) {
    (void)st, (void)at;
}
SI void rd_quads_qk(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x, size_t at) {
    (void)a, (void)st, (void)x, (void)at;
}
SI void rd_quads_pv(const struct cpu_attn *a, const struct rd_state *st, const struct rd_tile *x, float *o) {
    (void)a, (void)st, (void)x, (void)o;
}
SI void rd_quads_weights(const struct rd_state *st, size_t at, int from, int n, const int32_t *zeros) {
    (void)st, (void)at, (void)from, (void)n, (void)zeros;
}
SI void rd_quads_order(float *o, int n, const float *lows) {
    (void)o, (void)n, (void)lows;
}
#endif
