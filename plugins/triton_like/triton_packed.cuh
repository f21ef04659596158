/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of int4_per_token_head (semantics 3.4) and TurboQuant (3.7) as the kernels read them: where their
 * parts lie, the rotation, and codes as fragments of 16 bits.
 *
 * What is the same for a whole row stays out of the products: scores are multiplied by the scale or the norm
 * of their key, P by the scale or step of its value, and what is added to every value of a row (a zero point,
 * a minimum) is one sum a query row. Queries are rotated instead of keys, and outputs of int4 back.
 *
 * Codes of values, and of int4 keys, enter the tensor cores as the subnormal f16 whose bits they are: code *
 * 2^-24, and a code further up in its half is a power of two larger. So a pair of codes costs one AND. Two
 * neighbours of a register are tokens for V (two halves joined by PRMT), and for K columns whose order the
 * query follows. Centroids come from a table of pairs, one copy for each lane, so that no bank is asked
 * twice.
 *
 * Macros: TL_PACKED (below), TL_JOINT (K and V are one row), TL_D, TL_DV. */
#ifndef TRITON_PACKED_CUH
#define TRITON_PACKED_CUH

#include "ptx_sm80.cuh"
#if TL_PACKED
#include "../common/rotation_signs.h"
#include "../common/turboquant_levels.h"
#endif

namespace attn_cuda {
namespace packed {

enum { INT4 = 1, K8V4 = 2, C4V4 = 3, C3V4 = 4, C3V3 = 5 }; /* TL_PACKED: as in triton_config.h */
constexpr bool IS_INT4 = TL_PACKED == INT4, CENTROIDS = TL_PACKED >= C4V4, ROTATED = IS_INT4 || CENTROIDS;
constexpr int K_BITS = TL_PACKED == K8V4 ? 8 : TL_PACKED >= C3V4 ? 3 : 4, V_BITS = TL_PACKED == C3V3 ? 3 : 4;
constexpr int K_DATA = TL_D * K_BITS / 8, V_DATA = TL_DV * V_BITS / 8;
constexpr int K_BYTES = K_DATA + (IS_INT4     ? 4
                                  : CENTROIDS ? 2
                                              : 0),
              V_BYTES = V_DATA + 4, ROW_BYTES = K_BYTES + V_BYTES; /* of K and V as one row */
/* Fragments of decode. */
constexpr int CODES_A_UNIT = K_BITS == 8 ? 4 : K_BITS == 4 ? 8 : 16; /* columns that a lane takes at a time */
constexpr int UNIT_BYTES = K_BITS == 3 ? 6 : 4;
constexpr int K_UNITS = TL_D / CODES_A_UNIT, K_STEPS = (K_UNITS + 3) / 4;
constexpr int Q_WORDS = K_STEPS * CODES_A_UNIT / 2; /* registers of a fragment of Q */
constexpr int V_CODES = V_BITS == 4 ? 8 : 16, V_STEPS = (TL_DV + 8 * V_CODES - 1) / (8 * V_CODES);
constexpr int M_TILES = V_STEPS * V_CODES / 2; /* of 16 columns of the output */
constexpr int TABLE_SIZE = !CENTROIDS ? 0 : K_BITS == 4 ? 256 * 128 : 64 * 128;
/* The table of 3 bits begins at a multiple of its size, so that its address joins an index by OR. */
constexpr int TABLE_ALIGN = CENTROIDS && K_BITS == 3 ? TABLE_SIZE : 1,
              TABLE_BYTES = TABLE_SIZE + (TABLE_ALIGN > 1 ? TABLE_ALIGN : 0);
/* Queries of int4 are up by 4 beside a code, and down by 4 beside 16 times a code. */
constexpr float UP = IS_INT4 ? 4.f : 1.f, K_UNIT = IS_INT4 ? 16777216.f / UP : 1.f;
constexpr int ALIGN = IS_INT4 ? 4 : 2; /* of rows, and of what is behind their codes */

/* Where words of a row lie: at any multiple of 2; at multiples of 4; 2 behind such. */
enum { ANY = 0, WORD = 1, HALF = 2 };

/* Queries are rotated by H * 2^-HALF_LOG, so that they keep about their size. */
constexpr int half_log(int n) {
    int log = 0;
    while (1 << log < n)
        log++;
    return (log + 1) / 2;
}
constexpr int HALF_LOG = half_log(TL_D);
constexpr float ONE_ROOT = TL_D == 32 || TL_D == 128 || TL_D == 512 ? 1.41421356237309505f : 1.f;
constexpr float Q_UNIT = 1.f / (1 << HALF_LOG); /* 2^HALF_LOG / sqrt(D) is ONE_ROOT */
constexpr float SCORE = IS_INT4 ? (float)(1 << HALF_LOG) / TL_D : CENTROIDS ? ONE_ROOT : 1.f;

#if TL_PACKED
ATTN_DEV float f16_bits(uint32_t x) {
    return unpack2<DT_F16>(x & 0xffff).x;
}

/* f16 has less range than bf16; NaN stays. */
ATTN_DEV float in_f16(float x) {
    return x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x;
}

/* ------------------------------------------------------------------ rotation */

/* H x for rows of 32 E values, value lane * E + j in x[j]. */
template <int E>
ATTN_DEV void warp_hadamard(float (&x)[E], int lane) {
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int j = 0; j < E; j++)
            if ((j & h) == 0) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b, x[j + h] = a - b;
            }
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int j = 0; j < E; j++) {
            const float y = __shfl_xor_sync(~0u, x[j], h);
            x[j] = lane & h ? y - x[j] : y + x[j];
        }
}

template <int E>
ATTN_DEV void warp_signs(float (&x)[E], int lane) {
#pragma unroll
    for (int j = 0; j < E; j++)
        if (rotation_is_negative(lane * E + j)) x[j] = -x[j];
}

/* What multiplies a key rotates a query; E values from lane * E on. */
template <int E>
ATTN_DEV void rotate_query(float (&x)[E], int lane) {
    if constexpr (IS_INT4) warp_signs(x, lane);
    warp_hadamard(x, lane);
#pragma unroll
    for (int j = 0; j < E; j++)
        x[j] *= Q_UNIT;
}

/* Outputs of int4 from the space of its values. */
template <int E>
ATTN_DEV void rotate_back(float (&x)[E], int lane) {
#pragma unroll
    for (int j = 0; j < E; j++)
        x[j] *= 1.f / TL_DV; /* first: a sum may leave float32 */
    warp_hadamard(x, lane);
    warp_signs(x, lane);
}

/* The same for an accumulator: x[4 j + 2 e + i] is row e of a thread, column 8 j + 2 q + i. */
template <int N>
ATTN_DEV void rotate_back_fragment(float (&x)[N], int q) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        const float a = x[k], b = x[k + 1];
        x[k] = a + b, x[k + 1] = a - b;
    }
#pragma unroll
    for (int h = 1; h < 4; h *= 2)
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float y = __shfl_xor_sync(~0u, x[k], h);
            x[k] = q & h ? y - x[k] : y + x[k];
        }
#pragma unroll
    for (int h = 4; h < N; h *= 2)
#pragma unroll
        for (int k = 0; k < N; k++)
            if ((k & h) == 0) {
                const float a = x[k], b = x[k + h];
                x[k] = a + b, x[k + h] = a - b;
            }
#pragma unroll
    for (int k = 0; k < N; k++) {
        const uint32_t bit = rotation_negative[k / 16] >> (k / 4 % 4 * 8 + (k & 1)) >> 2 * q & 1;
        x[k] = __uint_as_float(__float_as_uint(x[k] * (1.f / TL_DV)) ^ bit << 31);
    }
}

/* ---------------------------------------------------------- rows in memory, eight values at a time */

template <int BYTES>
ATTN_DEV uint32_t load_bytes(const uint8_t *p) {
    if constexpr (BYTES == 4 && ALIGN >= 4) return __ldg((const uint32_t *)p);
    if constexpr (BYTES == 4)
        return __ldg((const uint16_t *)p) | (uint32_t)__ldg((const uint16_t *)(p + 2)) << 16;
    if constexpr (BYTES == 3) return __ldg(p) | (uint32_t)__ldg(p + 1) << 8 | (uint32_t)__ldg(p + 2) << 16;
    return __ldg((const uint16_t *)p);
}

/* Codes 8 c to 8 c + 7 of a row, in `bits` bits each. */
template <int BITS>
ATTN_DEV uint32_t load_codes(const uint8_t *row, int c) {
    return load_bytes < BITS == 3 ? 3 : 4 > (row + c * BITS);
}
template <int BITS>
ATTN_DEV uint32_t code_of(uint32_t codes, int j) {
    return codes >> j * BITS & ((1 << BITS) - 1);
}

/* Centroids times 2^HALF_LOG, which makes them about 1; the factor goes where the norm is corrected. */
ATTN_DEV float centroid(uint32_t code) {
    float c[16], x = 0.f;
    turboquant_centroids(TL_D, K_BITS, c);
#pragma unroll
    for (int i = 0; i < 1 << K_BITS; i++)
        x = code == (uint32_t)i ? c[i] : x;
    return x * (1 << HALF_LOG);
}
template <class table_t>
ATTN_DEV void fill_centroids(table_t *table, int thread, int threads) {
    if constexpr (CENTROIDS)
        for (int i = thread; i < 1 << K_BITS; i += threads)
            table[i] = centroid(i);
}

/* Scale and zero point of a row of int4: the words behind its codes. */
ATTN_DEV float scale_of(uint32_t word) {
    return __uint_as_float(word & ~15u);
}

ATTN_DEV float key_norm(const uint8_t *row) {
    return f16_bits(load_bytes<2>(row + K_DATA));
}
/* The squares of eight f16, summed. */
ATTN_DEV float squares(uint4 w) {
    const uint32_t x[4] = {w.x, w.y, w.z, w.w};
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float2 f = unpack2<DT_F16>(x[j]);
        sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
    }
    return sum;
}

/* What scores with a key are multiplied by. centroids: of fill_centroids. */
ATTN_DEV float key_scale(const uint8_t *row, const float *centroids) {
    if constexpr (IS_INT4)
        return scale_of(load_bytes<4>(row + K_DATA));
    else if constexpr (CENTROIDS) {
        float sum = 0.f;
#pragma unroll 4
        for (int c = 0; c < TL_D / 8; c++) {
            const uint32_t codes = load_codes<K_BITS>(row, c);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float x = centroids[code_of<K_BITS>(codes, j)];
                sum = fmaf(x, x, sum);
            }
        }
        return key_norm(row) * rsqrtf(sum);
    } else
        return 1.f;
}
/* What values of a row, as element() has them, are multiplied by, and what is added then. */
ATTN_DEV float2 value_terms(const uint8_t *row) {
    if constexpr (IS_INT4)
        return make_float2(scale_of(load_bytes<4>(row + V_DATA)), 0.f);
    else
        return make_float2(f16_bits(load_bytes<2>(row + V_DATA)), f16_bits(load_bytes<2>(row + V_DATA + 2)));
}

/* Value d of a row, without its factor; of int4 without the zero point. */
template <bool IS_V>
ATTN_DEV float element(const uint8_t *row, int d, const float *centroids) {
    constexpr int BITS = IS_V ? V_BITS : K_BITS, DATA = IS_V ? V_DATA : K_DATA;
    if constexpr (BITS == 8) {
        return unpack2<DT_F16>(e4m3x2_to_f16x2<0>(__ldg(row + d))).x;
    } else {
        const uint32_t code = code_of<BITS>(load_codes<BITS>(row, d >> 3), d & 7);
        if constexpr (!IS_V && CENTROIDS) return centroids[code];
        return IS_INT4 ? (float)((int)code - (int)(__ldg(row + DATA) & 15)) : (float)code;
    }
}

/* Values 8 c to 8 c + 7 of a row as f16, as element() has them. */
template <bool IS_V>
ATTN_DEV uint4 load_chunk(const uint8_t *row, int c, const float *centroids) {
    constexpr int BITS = IS_V ? V_BITS : K_BITS, DATA = IS_V ? V_DATA : K_DATA;
    if constexpr (BITS == 8) {
        const uint32_t x = load_bytes<4>(row + 8 * c), y = load_bytes<4>(row + 8 * c + 4);
        return make_uint4(e4m3x2_to_f16x2<0>(x), e4m3x2_to_f16x2<1>(x), e4m3x2_to_f16x2<0>(y),
                          e4m3x2_to_f16x2<1>(y));
    } else {
        const uint32_t codes = load_codes<BITS>(row, c);
        uint32_t w[4];
        if constexpr (!IS_V && CENTROIDS) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[j] = pack2<DT_F16>(centroids[code_of<BITS>(codes, 2 * j)],
                                     centroids[code_of<BITS>(codes, 2 * j + 1)]);
        } else { /* 1024 + code, minus 1024 and the zero point: exact */
            const uint32_t zero = IS_INT4 ? __ldg(row + DATA) & 15 : 0, less = 0x64006400u | zero * 0x10001u;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t y =
                    code_of<BITS>(codes, 2 * j) | code_of<BITS>(codes, 2 * j + 1) << 16 | 0x64006400u;
                w[j] = sub_f16x2(y, less);
            }
        }
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* ------------------------------------------------------------------ fragments from shared memory (decode) */

/* Column of half h of register w of a fragment of Q. */
constexpr int query_column(int w, int h, int q) {
    return IS_INT4 ? 8 * (q + w / 4 * 4) + w % 4 + 4 * h
                   : CODES_A_UNIT * (q + w / (CODES_A_UNIT / 2) * 4) + w % (CODES_A_UNIT / 2) * 2 + h;
}
/* Column of row half e of output tile j, and what its codes must be multiplied by. */
constexpr int value_column(int j, int e, int g) {
    return V_CODES * (g + j / (V_CODES / 2) * 8) + j % (V_CODES / 2) * 2 + e;
}
constexpr float value_factor(int j, int e) {
    const int code = (2 * j + e) % 8;
    const bool third = V_BITS == 3 && (code == 2 || code == 7), second = code == 1 || code == 4 || code == 6;
    return V_BITS == 4 ? (e ? 1048576.f : 16777216.f) : third ? 262144.f : second ? 2097152.f : 16777216.f;
}

/* A word as the one or two words of shared memory that hold it. */
template <int PLACE>
struct word {
    uint32_t low, high;
    ATTN_DEV word() {}
    ATTN_DEV word(uint32_t a) {
        const uint32_t down = PLACE == ANY ? a & ~3u : PLACE == HALF ? a - 2 : a;
        low = ld_shared_u32(down), high = PLACE == WORD ? 0 : ld_shared_u32(down + 4);
        if (PLACE == ANY) low = __funnelshift_r(low, high, a << 3);
    }
    /* byte I, and e4m3 codes 2 I and 2 I + 1 as f16 */
    template <int I>
    ATTN_DEV uint32_t byte() const {
        return PLACE == HALF && I > 1 ? prmt(high, 0, 0x4440 | (I - 2))
                                      : prmt(low, 0, 0x4440 | (PLACE == HALF ? I + 2 : I));
    }
    template <int I>
    ATTN_DEV uint32_t e4m3_pair() const {
        return PLACE != HALF ? e4m3x2_to_f16x2<I>(low)
               : I           ? e4m3x2_to_f16x2<0>(high)
                             : e4m3x2_to_f16x2<1>(low);
    }
};
/* The lower, the upper halves of two words, as one. */
template <int PLACE>
ATTN_DEV uint32_t join_halves(const word<PLACE> &x, const word<PLACE> &y, bool upper) {
    return PLACE != HALF ? prmt(x.low, y.low, upper ? 0x7632 : 0x5410)
           : upper       ? prmt(x.high, y.high, 0x5410)
                         : prmt(x.low, y.low, 0x7632);
}
/* Six bytes: the first 32 bits, and the last 16. */
ATTN_DEV uint2 lds_six(uint32_t a) {
    const uint32_t down = a & ~3u, x = ld_shared_u32(down), y = ld_shared_u32(down + 4);
    return make_uint2(__funnelshift_r(x, y, a << 3), y >> (a << 3 & 31));
}

/* Where the table begins in the TABLE_BYTES from `a` on. */
ATTN_DEV uint32_t table_at(uint32_t a) {
    return (a + (TABLE_ALIGN - 1)) & ~(uint32_t)(TABLE_ALIGN - 1);
}

/* The table of pairs, a copy for every lane: entry i at i * 128. By all threads. */
ATTN_DEV void fill_table(uint32_t table, int thread, int threads) {
    if constexpr (CENTROIDS)
        for (int i = thread; i < TABLE_SIZE / 16; i += threads) {
            const int pair = i >> 3;
            const uint32_t x = pack2<DT_F16>(centroid(pair & ((1 << K_BITS) - 1)), centroid(pair >> K_BITS));
            st_shared_v4(table + i * 16, make_uint4(x, x, x, x));
        }
}

/* The eight f16x2 of one unit of a key: columns as in query_column. table: this lane's copy. */
template <int PLACE>
ATTN_DEV void key_unit(uint32_t at, uint32_t table, uint32_t (&r)[CODES_A_UNIT / 2]) {
    if constexpr (IS_INT4) {
        const uint32_t x = ld_shared_u32(at), y = x >> 8;
        r[0] = x & 0x000f000fu, r[1] = x & 0x00f000f0u, r[2] = y & 0x000f000fu, r[3] = y & 0x00f000f0u;
    } else if constexpr (K_BITS == 8) {
        const word<PLACE> x(at);
        r[0] = x.template e4m3_pair<0>(), r[1] = x.template e4m3_pair<1>();
    } else if constexpr (K_BITS == 4) {
        const word<PLACE> x(at);
        r[0] = ld_shared_u32(table + x.template byte<0>() * 128);
        r[1] = ld_shared_u32(table + x.template byte<1>() * 128);
        r[2] = ld_shared_u32(table + x.template byte<2>() * 128);
        r[3] = ld_shared_u32(table + x.template byte<3>() * 128);
    } else {
        const uint2 x = lds_six(at);
        const uint32_t i[8] = {x.x << 7,  x.x << 1,  x.x >> 5,
                               x.x >> 11, x.x >> 17, __funnelshift_r(x.x, x.y, 23),
                               x.y << 3,  x.y >> 3};
#pragma unroll
        for (int j = 0; j < 8; j++)
            r[j] = ld_shared_u32(table | (i[j] & 0x1f80u));
    }
}

/* S += K Q^T for 16 keys: rows g and g + 8 begin at at[0] and at[1]. squares: of a row's centroids. FIRST,
 * SECOND: where the words of rows g, of rows g + 8 lie. */
template <int FIRST, int SECOND, int NT>
ATTN_DEV void add_scores(float (&s)[NT][4], const uint32_t (&qf)[NT][Q_WORDS], const uint32_t (&at)[2], int q,
                         uint32_t table, float (&squares)[2]) {
    constexpr int REGS = CODES_A_UNIT / 2;
    /* Two squares a half in f16, whose roundings are the same for all of a row of equal ones; a product with
     * ones sums them in float32 over the four lanes of a row. */
    float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int w = 0; w < K_STEPS; w++) {
        uint32_t r[2][REGS];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int unit = q + 4 * w;
            if (K_UNITS % 4 == 0 || unit < K_UNITS)
                i ? key_unit<SECOND>(at[i] + unit * UNIT_BYTES, table, r[i])
                  : key_unit<FIRST>(at[i] + unit * UNIT_BYTES, table, r[i]);
            else
#pragma unroll
                for (int j = 0; j < REGS; j++)
                    r[i][j] = 0;
        }
        if constexpr (CENTROIDS) {
#pragma unroll
            for (int j = 0; j < REGS; j += 4) {
                uint32_t sum[2][2];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t x = r[i & 1][j + (i >> 1)], y = r[i & 1][j + 2 + (i >> 1)];
                    sum[i & 1][i >> 1] = fma_f16x2(x, x, fma_f16x2(y, y, 0));
                }
                const uint32_t a[4] = {sum[0][0], sum[1][0], sum[0][1], sum[1][1]}, one = 0x3c003c00u;
                mma_16816<DT_F16>(d, a, one, one);
            }
        }
#pragma unroll
        for (int j = 0; j < REGS; j += 2) {
            const uint32_t a[4] = {r[0][j], r[1][j], r[0][j + 1], r[1][j + 1]};
#pragma unroll
            for (int n = 0; n < NT; n++)
                mma_16816<DT_F16>(s[n], a, qf[n][w * REGS + j], qf[n][w * REGS + j + 1]);
        }
    }
    if constexpr (CENTROIDS) squares[0] = d[0], squares[1] = d[2];
}

/* O^T += V^T P^T for 16 tokens; rows 2q, 2q + 1, 2q + 8, 2q + 9 begin at at[0] to at[3]. FIRST, SECOND: where
 * the words of the first two, of the others lie. */
template <int FIRST, int SECOND, int NT, int TILES>
ATTN_DEV void add_values(float (&o)[NT][TILES][4], const uint32_t (&pb)[NT][2], const uint32_t (&at)[4],
                         int g) {
    auto add = [&](int tile, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
        const uint32_t a[4] = {a0, a1, a2, a3};
#pragma unroll
        for (int n = 0; n < NT; n++)
            mma_16816<DT_F16>(o[n][tile], a, pb[n][0], pb[n][1]);
    };
#pragma unroll
    for (int x = 0; x < V_STEPS; x++) {
        if constexpr (V_BITS == 4) {
            word<FIRST> v[2];
            word<SECOND> u[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                v[i] = word<FIRST>(at[i] + (g + 8 * x) * 4);
                u[i] = word<SECOND>(at[2 + i] + (g + 8 * x) * 4);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) { /* codes 0 to 3 of both tokens, then 4 to 7 */
                uint32_t y = join_halves(v[0], v[1], h), z = join_halves(u[0], u[1], h);
                add(4 * x + 2 * h, y & 0x000f000fu, y & 0x00f000f0u, z & 0x000f000fu, z & 0x00f000f0u);
                y >>= 8, z >>= 8;
                add(4 * x + 2 * h + 1, y & 0x000f000fu, y & 0x00f000f0u, z & 0x000f000fu, z & 0x00f000f0u);
            }
        } else {
            uint32_t v[4][2]; /* 24 bits each: eight codes */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint2 six = lds_six(at[i] + (g + 8 * x) * 6);
                v[i][0] = six.x, v[i][1] = __funnelshift_r(six.x, six.y, 24);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t r[2][8];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t low = prmt(v[2 * i][h], v[2 * i + 1][h], 0x5410), up = low >> 9,
                                   high = prmt(v[2 * i][h], v[2 * i + 1][h], 0x6521) >> 7;
                    r[i][0] = low & 0x00070007u, r[i][1] = low & 0x00380038u, r[i][2] = low & 0x01c001c0u;
                    r[i][3] = up & 0x00070007u, r[i][4] = up & 0x00380038u, r[i][5] = high & 0x00070007u;
                    r[i][6] = high & 0x00380038u, r[i][7] = high & 0x01c001c0u;
                }
#pragma unroll
                for (int t = 0; t < 4; t++)
                    add(8 * x + 4 * h + t, r[0][2 * t], r[0][2 * t + 1], r[1][2 * t], r[1][2 * t + 1]);
            }
        }
    }
}

#endif
} /* namespace packed */
} /* namespace attn_cuda */
#endif
