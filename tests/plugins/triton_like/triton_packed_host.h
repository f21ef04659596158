/* SPDX-License-Identifier: Apache-2.0 */
/* One instance of triton_packed.cuh on the host: TL_PACKED, TL_D and `attn_cuda`, the name of its namespace,
 * are defined before this is included, which may be again and again. A warp's lanes run one after the other,
 * and what they give to the tensor cores is kept in `fragments`. */
#undef TRITON_PACKED_CUH
#undef TRITON_CODES_CUH
#undef TRITON_PACKED_WRITE_CUH
#undef TRITON_PACKED_WIDEN_CUH
#undef TRITON_PACKED_ROWS_CUH
#define TL_DV   TL_D
#define TL_Q2   1
#define TL_SVEC 2

namespace attn_cuda {
enum { DT_F16 = 1, DT_BF16 = 2, DT_F32 = 5 };
constexpr int element_bytes(int dt) {
    return dt == DT_F32 ? 4 : 2;
}
template <int DT>
float load_float(const void *, int64_t) {
    return 0;
}
template <int DT>
float2 unpack2(uint32_t x) {
    return make_float2((float)attn_from_f16((uint16_t)x), (float)attn_from_f16((uint16_t)(x >> 16)));
}
template <int DT>
uint32_t pack2(float low, float high) {
    return attn_to_f16(low) | (uint32_t)attn_to_f16(high) << 16;
}
template <int HIGH>
uint32_t e4m3x2_to_f16x2(uint32_t x) {
    x >>= 16 * HIGH;
    return pack2<DT_F16>((float)attn_from_e4m3((uint8_t)x), (float)attn_from_e4m3((uint8_t)(x >> 8)));
}
template <int DT>
void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b, uint32_t) {
    if (b != 0x3c003c00u) keep_fragment(d, a); /* products with ones sum squares */
}
} // namespace attn_cuda
#include "plugins/triton_like/triton_packed.cuh"
#include "plugins/triton_like/triton_packed_widen.cuh"
#include "plugins/triton_like/triton_packed_write.cuh"

namespace attn_cuda {
static unsigned code_at(const unsigned char *row, int bits, int i) {
    return bits == 8 ? row[i] : turboquant_code(row, bits, i);
}

static const char *const places[3] = {"any place", "words", "two bytes behind words"};
/* Rows of random bytes, each at a multiple of ALIGN. */
static void make_rows(uint32_t (&at)[16], int bytes, int first, int second) {
    for (int r = 0; r < 16; r++) {
        const int place = r < 8 ? first : second;
        at[r] = 4096u + 320u * (unsigned)r +
                (place == packed::ANY    ? (unsigned)(r % 4 * packed::ALIGN)
                 : place == packed::HALF ? 2u
                                         : 0u);
        for (int i = 0; i < bytes; i++)
            shared_memory[at[r] + (unsigned)i] = (unsigned char)next_random();
    }
}

template <int FIRST, int SECOND = FIRST>
static void check_values() {
    uint32_t at[16];
    float o[1][packed::M_TILES][4];
    int wrong = 0, seen[TL_DV] = {0};
    make_rows(at, packed::V_BYTES, FIRST, SECOND);
    for (int lane = 0; lane < 32; lane++) {
        const int q = lane & 3;
        const uint32_t rows[4] = {at[2 * q], at[2 * q + 1], at[2 * q + 8], at[2 * q + 9]},
                       pb[1][2] = {{0, 0}};
        begin_lane(lane, &o[0][0][0]);
        packed::add_values<FIRST, SECOND>(o, pb, rows, lane >> 2);
    }
    for (int tile = 0; tile < packed::M_TILES; tile++)
        for (int row = 0; row < 16; row++) {
            const int e = row / 8, d = packed::value_column(tile, e, row % 8);
            if (d >= TL_DV) continue;
            seen[d]++;
            for (int token = 0; token < 16; token++)
                wrong += fragment_value(tile, row, token) * (double)packed::value_factor(tile, e) !=
                         code_at(shared_memory + at[token], packed::V_BITS, d);
        }
    for (int d = 0; d < TL_DV; d++)
        wrong += seen[d] != 1;
    ok(wrong == 0,
       "format %d, head size %d: values of 16 tokens reach their columns, rows at %s, %s (%d do not)",
       TL_PACKED, TL_D, places[FIRST], places[SECOND], wrong);
}

template <int FIRST, int SECOND = FIRST>
static void check_keys() {
    uint32_t at[16];
    float s[1][4] = {{0}}, squares[2];
    const uint32_t table = 65536, qf[1][packed::Q_WORDS] = {{0}};
    int wrong = 0, seen[TL_D] = {0};
    make_rows(at, packed::K_BYTES, FIRST, SECOND);
    packed::fill_table(table, 0, 1);
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t rows[2] = {at[lane >> 2], at[(lane >> 2) + 8]};
        begin_lane(lane, nullptr);
        packed::add_scores<FIRST, SECOND>(s, qf, rows, lane & 3, table + 4u * (unsigned)lane, squares);
    }
    for (int step = 0; step < packed::Q_WORDS / 2; step++)
        for (int k = 0; k < 16; k++) {
            const int w = 2 * step + k / 8, d = packed::query_column(w, k % 2, k % 8 / 2);
            if (d >= TL_D) continue;
            seen[d]++;
            for (int row = 0; row < 16; row++) {
                const unsigned code = code_at(shared_memory + at[row], packed::K_BITS, d);
                const double is = fragment_value(step, row, k),
                             want = packed::K_BITS == 8 ? attn_from_e4m3((uint8_t)code)
                                    : packed::IS_INT4   ? code / (w % 2 ? 1048576.0 : 16777216.0)
                                                        : attn_from_f16(attn_to_f16(packed::centroid(code)));
                wrong += !(is == want || (is != is && want != want));
            }
        }
    for (int d = 0; d < TL_D; d++)
        wrong += seen[d] != 1;
    ok(wrong == 0, "format %d, head size %d: keys meet the columns of the query, rows at %s, %s (%d do not)",
       TL_PACKED, TL_D, places[FIRST], places[SECOND], wrong);
}

/* The arithmetic of the writers against its definition. */
static void check_codes() {
    float c[16], middle[7];
    int wrong = 0;
    if constexpr (packed::CENTROIDS) {
        constexpr int HALF = 1 << (packed::K_BITS - 1);
        turboquant_centroids(TL_D, packed::K_BITS, c);
        for (int j = 0; j < HALF - 1; j++)
            middle[j] = (c[HALF + j] + c[HALF + j + 1]) * 0.5f;
        float of_eight[8];
        uint32_t codes = 0;
        for (int i = 0; i < 40000; i++) {
            const int j = i % 16;
            float y = i % 5 == 4 ? (i % 2 ? -0.0f : 0.0f) : random_normal() / sqrtf(TL_D);
            if (i % 5 == 0 && j < 2 * HALF - 1) y = (c[j] + c[j + 1]) * 0.5f;
            if (i % 5 == 1 && j < 2 * HALF - 1)
                y = nextafterf((c[j] + c[j + 1]) * 0.5f, i % 2 ? 9.0f : -9.0f);
            unsigned want = 0;
            for (int k = 0; k + 1 < 2 * HALF; k++)
                want += y >= (c[k] + c[k + 1]) * 0.5f;
            of_eight[i % 8] = y, codes |= want << i % 8 * packed::K_BITS;
            if (i % 8 != 7) continue;
            wrong += packed::centroid_codes<packed::K_BITS>(of_eight, 1.0f, middle) != codes, codes = 0;
        }
        ok(wrong == 0, "format %d, head size %d: indices of centroids, at their middles too", TL_PACKED,
           TL_D);
    }
    wrong = 0;
    for (int i = 0; i < 40000; i++) {
        const float by = ldexpf(1 + fabsf(random_normal()), (int)(next_random() % 190) - 70);
        const packed::divisor divisor(by);
        const float x = by * 20 * random_normal(), y = ldexpf(x, (int)(next_random() % 8) - 7);
        wrong += divisor.divide(y) != y / by;
    }
    ok(wrong == 0, "format %d, head size %d: quotients are rounded as IEEE's (%d are not)", TL_PACKED, TL_D,
       wrong);
    wrong = 0;
    for (int i = 0; i < 4000; i++) {
        constexpr int BITS = packed::V_BITS, TOP = (1 << BITS) - 1;
        float x[8];
        uint32_t want = 0;
        for (int j = 0; j < 8; j++) {
            x[j] = i % 3 ? 10 * random_normal() : (float)(next_random() % 40) * 0.5f - 2;
            want |= (uint32_t)fminf((float)TOP, fmaxf(0, floorf(x[j]))) << BITS * j;
        }
        wrong += packed::pack_codes<BITS>(x) != want;
    }
    ok(wrong == 0, "format %d, head size %d: codes are cut off and packed", TL_PACKED, TL_D);
    wrong = 0;
    for (int i = 0; i < 40000; i++) { /* a row's ends, and what lies between, need no cutting off */
        constexpr int BITS = packed::V_BITS, TOP = (1 << BITS) - 1;
        const float low = random_normal(), high = low + ldexpf(fabsf(random_normal()), -(i % 20)),
                    step = fmaxf((high - low) / TOP, 1e-8f);
        const plain_quotient by(step);
        float x[8], steps[8];
        for (int j = 0; j < 8; j++) {
            x[j] = j == 0 ? low : j == 1 ? high : fminf(high, fmaxf(low, low + (high - low) * (float)j / 8));
            steps[j] = by.of(x[j] - low) + 0.5f;
        }
        wrong += packed::pack_codes<BITS, true, true>(steps) != packed::pack_codes<BITS, true>(steps);
    }
    ok(wrong == 0, "format %d, head size %d: codes of values between a row's ends", TL_PACKED, TL_D);
}

/* Rows as prefill's tiles have them: every code at its place, times its factor. */
template <int BITS>
static void check_widened(bool is_key) {
    constexpr int WORDS = BITS; /* a quarter of 128 codes */
    int wrong = 0;
    for (int i = 0; i < 2000; i++) {
        uint32_t words[4], w[4];
        const unsigned zero = next_random() % 16;
        for (int k = 0; k < WORDS; k++)
            words[k] = (uint32_t)(next_random() << 20 ^ next_random() << 9 ^ next_random());
        for (int c = 0; c < 4; c++) {
            const uint32_t codes = packed::codes_in<BITS>(words, c);
            const bool is_centroid = is_key && packed::CENTROIDS;
            if (packed::IS_INT4)
                packed::zero_point(zero).widen(codes, w);
            else if (is_centroid) {
                uint32_t sums[2] = {0, 0};
                double squares = 0;
                packed::centroid_bytes().widen(codes, w, sums);
                for (int j = 0; j < 8; j++)
                    squares += pow(attn_from_f16((uint16_t)(w[j / 2] >> j % 2 * 16)), 2);
                wrong += fabs(packed::centroid_bytes::sum_of(sums) - squares) > 8 * 0x1p-13;
            } else
                packed::widen_masked<BITS>(codes, w);
            for (int j = 0; j < 8; j++) {
                const unsigned code = code_at((const unsigned char *)words, BITS, 8 * c + j);
                const int at = is_centroid ? j : packed::masked_place(j);
                const double is = attn_from_f16((uint16_t)(w[at / 2] >> at % 2 * 16)),
                             want = is_centroid       ? attn_from_f16(attn_to_f16(packed::centroid(code)))
                                    : packed::IS_INT4 ? (double)code - zero
                                                      : code / (double)packed::masked_factor(at / 2);
                wrong += is != want;
            }
        }
    }
    ok(wrong == 0, "format %d, head size %d: %s of prefill's tiles (%d are wrong)", TL_PACKED, TL_D,
       is_key ? "keys" : "values", wrong);
}

static void check_all() {
    if constexpr (packed::K_BITS < 8) check_widened<packed::K_BITS>(true);
    check_widened<packed::V_BITS>(false);
    check_values<packed::WORD>(), check_keys<packed::WORD>();
    if constexpr (packed::ALIGN < 4) {
        check_values<packed::ANY>(), check_keys<packed::ANY>();
        check_values<packed::HALF>(), check_keys<packed::HALF>();
        check_values<packed::HALF, packed::WORD>(), check_keys<packed::HALF, packed::WORD>();
        check_values<packed::WORD, packed::HALF>(), check_keys<packed::WORD, packed::HALF>();
    }
    check_codes();
}
} // namespace attn_cuda

#undef TL_DV
#undef TL_Q2
#undef TL_SVEC
#undef TL_PACKED
#undef TL_D
#undef attn_cuda
