/* SPDX-License-Identifier: Apache-2.0 */
/* nvfp4 rows (semantics 3.6) as the kernels read and write them. A code becomes the f16 whose exponent and
 * mantissa its bits are, which is its value times 2^-14, and is multiplied by its group's e4m3 scale: the
 * product is a multiple of 2^-24 and below 1, so that f16 has it exactly. What is left, 2^14 and the tensor's
 * scale, goes where scores and outputs have their factors (UNIT). */
#ifndef TRITON_FP4_CUH
#define TRITON_FP4_CUH

#include "ptx_sm80.cuh"
#include "triton_codes.cuh"

namespace attn_cuda {
namespace fp4 {

constexpr float UNIT = 16384.f;

/* Eight codes of a word as upper bytes of f16: 0, 2, 4, 6 and, among other bits, 1, 3, 5, 7. PARTS: the bits
 * that count, of two f16. */
constexpr uint32_t PARTS = 0x8e008e00u;
/* A sign that is 1 carries into bit 7, the mask takes what is left of 0x70. two: 2, and best a number that
 * ptxas does not know, so that this is IMAD, which another pipe has time for, and not LEA. */
ATTN_DEV uint32_t even_bytes(uint32_t x, uint32_t two) {
    uint32_t r;
    asm("mad.lo.u32 %0, %1, %2, 0x70707070;" : "=r"(r) : "r"(x & 0x0f0f0f0fu), "r"(two));
    return r & 0x8e8e8e8eu;
}
ATTN_DEV uint32_t odd_bytes(uint32_t x) { /* bits 7 of x's bytes, and the others of x >> 3 */
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, 0x80808080, 0xe4;" : "=r"(r) : "r"(x), "r"(x >> 3));
    return r;
}
ATTN_DEV uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
/* Of the eight codes of a word: 0 and 4, 2 and 6, 1 and 5, 3 and 7, times the two halves of `scale`. Of two
 * tokens' four codes: 0, 2, 1 and 3 of both. */
ATTN_DEV void pairs(uint32_t x, uint32_t scale, uint32_t two, uint32_t (&r)[4]) {
    const uint32_t even = even_bytes(x, two), odd = odd_bytes(x);
    r[0] = mul_f16x2(prmt(even, 0, 0x2404), scale), r[1] = mul_f16x2(even & 0xff00ff00u, scale);
    r[2] = mul_f16x2(odd << 8 & PARTS, scale), r[3] = mul_f16x2(odd & PARTS, scale);
}
/* Columns of half h of the w-th of these registers, in order of a lane's words. */
constexpr int pair_column(int w, int h) {
    return (w & 1) * 2 + (w >> 1) + 4 * h;
}

/* The lower or the upper half, twice: what a product of halves can have of its operand for nothing. */
template <int UPPER>
ATTN_DEV uint32_t twice(uint32_t x) {
    uint32_t r;
    if constexpr (UPPER)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(r) : "r"(x));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(r) : "r"(x));
    return r;
}
/* A byte as f16, twice. */
ATTN_DEV uint32_t scale_of(uint8_t x) {
    const uint32_t y = e4m3x2_to_f16x2<0>(x);
    return prmt(y, y, 0x1010);
}

/* Columns 8 c to 8 c + 7 of a row, in order. */
ATTN_DEV uint4 load_chunk(const uint8_t *row, const uint8_t *scales, int c) {
    uint32_t r[4];
    pairs(__ldg((const uint32_t *)row + c), scale_of(__ldg(scales + (c >> 1))), 2, r);
    return make_uint4(prmt(r[0], r[2], 0x5410), prmt(r[1], r[3], 0x5410), prmt(r[0], r[2], 0x7632),
                      prmt(r[1], r[3], 0x7632));
}

ATTN_DEV float element(const uint8_t *row, const uint8_t *scales, int d) {
    const uint32_t x = (uint32_t)__ldg(row + d / 2) >> d % 2 * 4;
    return unpack2<DT_F16>(mul_f16x2((x & 8) << 12 | (x & 7) << 9, scale_of(__ldg(scales + d / 16)))).x;
}

/* ------------------------------------------------------------------ fragments from shared memory (decode) */

/* The scales of K's fragments: of row `at` of SIZE / 16 bytes, group 2 u + (q >> 1) for each u, twice. */
template <int SIZE>
ATTN_DEV void key_scales(uint32_t at, int q, uint32_t (&scale)[SIZE / 32]) {
    const uint32_t select = q & 2 ? 0x7531 : 0x6420;
#pragma unroll
    for (int i = 0; i < SIZE / 64; i += 2) {
        const uint32_t x = ld_shared_u32(at + 4 * i),
                       y = i + 1 < SIZE / 64 ? ld_shared_u32(at + 4 * i + 4) : 0, z = prmt(x, y, select),
                       low = e4m3x2_to_f16x2<0>(z), high = e4m3x2_to_f16x2<1>(z);
        scale[2 * i] = twice<0>(low), scale[2 * i + 1] = twice<1>(low);
        if (i + 1 < SIZE / 64) scale[2 * i + 2] = twice<0>(high), scale[2 * i + 3] = twice<1>(high);
    }
}
/* Those of V's: group 2 u + (g >> 2) of two tokens, whose rows lie at `at` and SIZE / 16 bytes further. */
template <int SIZE>
ATTN_DEV void value_scales(uint32_t at, int g, uint32_t (&scale)[SIZE / 32]) {
    const uint32_t select = g & 4 ? 0x7531 : 0x6420;
#pragma unroll
    for (int i = 0; i < SIZE / 64; i += 2) {
        uint32_t z[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const uint32_t row = at + t * (SIZE / 16) + 4 * i;
            z[t] = prmt(ld_shared_u32(row), i + 1 < SIZE / 64 ? ld_shared_u32(row + 4) : 0, select);
        }
        const uint32_t low = prmt(z[0], z[1], 0x5140), high = prmt(z[0], z[1], 0x7362);
        scale[2 * i] = e4m3x2_to_f16x2<0>(low), scale[2 * i + 1] = e4m3x2_to_f16x2<1>(low);
        if (i + 1 < SIZE / 64)
            scale[2 * i + 2] = e4m3x2_to_f16x2<0>(high), scale[2 * i + 3] = e4m3x2_to_f16x2<1>(high);
    }
}

/* S += K Q^T for 16 keys, whose rows of scales begin at `scales`; unit(i): as in decode_sm80_tile.cuh, of 64
 * columns. Of 32 columns a lane has 8 q to 8 q + 7, in rows g and g + 8. */
template <int D, int NT, int WORDS, class UNIT>
ATTN_DEV void add_scores(float (&s)[NT][4], const uint32_t (&qf)[NT][WORDS], uint32_t scales, int g, int q,
                         uint32_t two, UNIT unit) {
    uint32_t scale[2][D / 32];
#pragma unroll
    for (int i = 0; i < 2; i++)
        key_scales<D>(scales + (g + 8 * i) * (D / 16), q, scale[i]);
#pragma unroll
    for (int st = 0; st < D / 64; st++) {
        uint32_t r[4];
        ldmatrix_x4(r, unit(st));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t x[4], y[4];
            pairs(r[2 * h], scale[0][2 * st + h], two, x);
            pairs(r[2 * h + 1], scale[1][2 * st + h], two, y);
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const uint32_t a[4] = {x[w], y[w], x[w + 1], y[w + 1]};
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma_16816<DT_F16>(s[n], a, qf[n][8 * st + 4 * h + w], qf[n][8 * st + 4 * h + w + 1]);
            }
        }
    }
}

/* O^T += V^T P^T for 16 tokens: of 32 columns a lane has 4 g to 4 g + 3, as codes 0, 2, 1 and 3 of two
 * tokens. */
template <int DV, int NT, int TILES, class UNIT>
ATTN_DEV void add_values(float (&o)[NT][TILES][4], const uint32_t (&pb)[NT][2], uint32_t scales, int g, int q,
                         uint32_t two, UNIT unit) {
    uint32_t scale[2][DV / 32]; /* of tokens 2 q and 2 q + 1, 2 q + 8 and 2 q + 9 */
#pragma unroll
    for (int i = 0; i < 2; i++)
        value_scales<DV>(scales + (2 * q + 8 * i) * (DV / 16), g, scale[i]);
#pragma unroll
    for (int x = 0; x < DV / 64; x++) {
        uint32_t r[4];
        ldmatrix_x4_trans(r, unit(x));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t y[4], z[4];
            pairs(r[h], scale[0][2 * x + h], two, y);
            pairs(r[2 + h], scale[1][2 * x + h], two, z);
#pragma unroll
            for (int t = 0; t < 2; t++) {
                const uint32_t a[4] = {y[t], y[t + 2], z[t], z[t + 2]};
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma_16816<DT_F16>(o[n][4 * x + 2 * h + t], a, pb[n][0], pb[n][1]);
            }
        }
    }
}

/* ------------------------------------------------------------------ writing */

/* 16 values of a group to eight bytes of codes; returns the group's scale. */
ATTN_DEV uint8_t write_group(const float (&x)[16], float scale, uint2 &codes) {
    float low = 0.f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        low = min_nan(low, -fabsf(x[i]));
    const float top = -low;
    const uint32_t stored =
        top < INFINITY ? f32x2_to_e4m3x2(quotient(scale).of(divided<6>(top)), 0.f) & 0xff : 0x7f;
    const float unit = unpack2<DT_F16>(e4m3x2_to_f16x2<0>(stored)).x * scale;
    const quotient by(unit);
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
        w[i / 8] |= e2m1_code(by.of(x[i])) << i % 8 * 4;
    codes = unit > 0.f ? make_uint2(w[0], w[1]) : make_uint2(0, 0);
    return (uint8_t)stored;
}

} /* namespace fp4 */
} /* namespace attn_cuda */
#endif
