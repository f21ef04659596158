/* SPDX-License-Identifier: Apache-2.0 */
/* The two products of the lanes path by AMX tiles, instead of cpu_lanes_product.h: S^T[key][lane] from K rows
 * (A) and the Q panel (B), O^T[column][lane] from V transposed (A) and the P panel (B). A block is two tiles
 * of A against two of B: four loads for four products. The panels of Q and P are those of the bf16 dots; K is
 * copied with its rows padded to whole tiles, V becomes [32 keys][column][pair of keys]. Included by
 * cpu_lanes_kernel.h. */

enum { TILE_WORDS = 16, TILE_KEYS = 32 };

/* One factor of a block: where its first tile lies, words from row to row, to its second tile, to the next
 * step. */
struct tile_side {
    const float *at;
    long row, tile, step;
};

/* C[16 or 32][32] (+)= A B over `steps` tiles; c_row words from row to row of C. */
SI void tile_product(struct tile_side A, struct tile_side B, int steps, float *C, long c_row, const int two,
                     const int add) {
    float *const low = C + TILE_WORDS * c_row;
    if (add) {
        AMX_LOAD(0, C, c_row * 4);
        AMX_LOAD(1, C + TILE_WORDS, c_row * 4);
        if (two) {
            AMX_LOAD(2, low, c_row * 4);
            AMX_LOAD(3, low + TILE_WORDS, c_row * 4);
        }
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        if (two) {
            AMX_ZERO(2);
            AMX_ZERO(3);
        }
    }
    for (int i = 0; i < steps; i++, A.at += A.step, B.at += B.step) {
        AMX_LOAD(4, A.at, A.row * 4);
        AMX_LOAD(6, B.at, B.row * 4);
        AMX_DOT(0, 4, 6);
        AMX_LOAD(7, B.at + B.tile, B.row * 4);
        AMX_DOT(1, 4, 7);
        if (two) {
            AMX_LOAD(5, A.at + A.tile, A.row * 4);
            AMX_DOT(2, 5, 6);
            AMX_DOT(3, 5, 7);
        }
    }
    AMX_STORE(0, C, c_row * 4);
    AMX_STORE(1, C + TILE_WORDS, c_row * 4);
    if (two) {
        AMX_STORE(2, low, c_row * 4);
        AMX_STORE(3, low + TILE_WORDS, c_row * 4);
    }
}

/* Scores of a whole tile, n = ln_round() keys, and the maxima of the first `used`. */
static void LN_(ln_qk)(struct LN_(ln_state) * st, const float *B, int n, int used) {
    const int steps = st->steps / TILE_WORDS;
    for (int k = 0; k < n; k += 2 * TILE_WORDS)
        for (int j = 0; j < LN_L; j += 2 * TILE_WORDS) {
            const struct tile_side K = {st->kt + (long)k * st->ldk, st->ldk, (long)TILE_WORDS * st->ldk,
                                        TILE_WORDS};
            const struct tile_side Q = {B + j, LN_L, TILE_WORDS, (long)TILE_WORDS * LN_L};
            float *S = st->s + (long)k * LN_L + j;
            LN_(ln_prefetch)(st);
            if (n - k > TILE_WORDS)
                tile_product(K, Q, steps, S, LN_L, 1, 0);
            else
                tile_product(K, Q, steps, S, LN_L, 0, 0);
        }
    vf top[LN_NR];
    UNROLL for (int j = 0; j < LN_NR; j++) top[j] = v_load(st->top + j * VW);
    for (int k = 0; k < used; k++)
        UNROLL for (int j = 0; j < LN_NR; j++) top[j] = v_max(v_load(st->s + k * LN_L + j * VW), top[j]);
    UNROLL for (int j = 0; j < LN_NR; j++) v_store(st->top + j * VW, top[j]);
}

/* All columns of O += V P over `steps` pairs of keys; ln_softmax() has scaled O and left zeros behind P's
 * last pair. */
static void LN_(ln_pv)(const float *V, const float *P, float *O, const float *alpha, long steps, int D) {
    const int whole = (int)(steps + TILE_WORDS - 1) / TILE_WORDS;
    (void)alpha;
    for (int d = 0; d < D; d += 2 * TILE_WORDS)
        for (int j = 0; j < LN_L; j += 2 * TILE_WORDS) {
            const struct tile_side A = {V + (long)d * TILE_WORDS, TILE_WORDS, TILE_WORDS * TILE_WORDS,
                                        (long)D * TILE_WORDS};
            const struct tile_side B = {P + j, LN_L, TILE_WORDS, (long)TILE_WORDS * LN_L};
            float *C = O + (long)d * LN_L + j;
            if (D - d > TILE_WORDS)
                tile_product(A, B, whole, C, LN_L, 1, 1);
            else
                tile_product(A, B, whole, C, LN_L, 0, 1);
        }
}

/* Values of n keys behind row pointers, transposed; zeros for the keys that fill the last tile. */
static void LN_(ln_pack_v)(const struct cpu_attn *a, const struct LN_(ln_state) * st, int64_t off, int n) {
    const int ld = (a->head_size_v + CHUNK - 1) / CHUNK * CHUNK;
    for (int k = 0; k < n; k += TILE_KEYS) {
        float *const to = st->vt + (long)k / TILE_KEYS * st->Dp * TILE_WORDS;
        for (int i = 0; i < TILE_WORDS; i++)
            if (k + 2 * i < n) {
                char bytes[2][ROW_BUFFER];
                enum cpu_dtype type;
                const char *v0 = LN_(ln_value_row)(a, st, k + 2 * i, off, bytes[0], &type);
                const char *v1 = LN_(ln_value_row)(a, st, k + 2 * i + 1, off, bytes[1], &type);
                rows_to_pairs(type, v0, v1, a->head_size_v, st->row + i * ld);
            } else
                memset(st->row + i * ld, 0, (size_t)ld * sizeof *st->row);
        for (int d = 0; d < st->Dp; d += TILE_WORDS) {
            vf v[VW];
            UNROLL for (int i = 0; i < VW; i++) v[i] = v_load(st->row + i * ld + d);
            v_transpose(v);
            UNROLL for (int i = 0; i < VW; i++) v_store(to + (long)(d + i) * TILE_WORDS, v[i]);
        }
    }
}
