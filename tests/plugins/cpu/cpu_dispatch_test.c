/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the instruction-set level from feature bits alone, masks as intervals, and the rows that the
 * cache write makes, against the definitions of the formats. */
#include "cpu_case.h"
#include "cpu_mask.h"

static const uint32_t haswell = CPU_BIT_AVX2 | CPU_BIT_FMA | CPU_BIT_F16C;
static const uint32_t skylake = CPU_BIT_AVX2 | CPU_BIT_FMA | CPU_BIT_F16C | CPU_BIT_AVX512F |
                                CPU_BIT_AVX512BW | CPU_BIT_AVX512DQ | CPU_BIT_AVX512VL;

static const char *level(const char *name, uint32_t bits, uint32_t *missing) {
    const struct cpu_kernels *k = cpu_choose_level(name, bits, missing);
    return k ? k->name : "none";
}

static void test_levels(void) {
    uint32_t missing;
    const uint32_t best = cpu_levels[0]->needs;
    is_str(level("auto", 0, &missing), "generic", "no bits: generic");
    is_str(level("generic", ~0u, &missing), "generic", "generic can be asked for on any CPU");
    is_str(level("sse9", ~0u, &missing), "none", "no such level");
    is_str(level("neon", 0, &missing), "none", "neon is not for every CPU");
    is_int(missing, best & CPU_BIT_NEON, "what it lacks has a name where the build has it");
    if (best & CPU_BIT_NEON) {
        is_str(level("auto", CPU_BIT_NEON, &missing), "neon", "AArch64: neon");
        is_str(level("neon", CPU_BIT_NEON, &missing), "neon", "and by its name");
        is_int(cpu_bits() & CPU_BIT_NEON, CPU_BIT_NEON, "every such CPU has it");
        is_str(cpu_bit_name(__builtin_ctz(CPU_BIT_NEON)), "neon", "the bit's name");
        const uint32_t both = CPU_BIT_NEON | CPU_BIT_NEON_BF16;
        is_str(level("auto", both, &missing), best & CPU_BIT_NEON_BF16 ? "neonbf16" : "neon",
               "with products of bf16: neonbf16");
        level("neonbf16", CPU_BIT_NEON, &missing);
        is_int(missing, best & CPU_BIT_NEON_BF16, "without them the missing bit is named");
        const uint32_t sve = both | CPU_BIT_SVE256 | CPU_BIT_SVE_BF16;
        is_str(level("auto", sve, &missing), best & CPU_BIT_SVE256 ? "sve256" : level("auto", both, &missing),
               "vectors of 256 bits: sve256");
        level("sve256", sve & ~(uint32_t)CPU_BIT_SVE256, &missing);
        is_int(missing, best & CPU_BIT_SVE256, "not for vectors of another length");
    }
    if (!(best & CPU_BIT_AVX2)) {
        skip(8, "this build has no levels of x86-64");
        return;
    }
    is_str(level("auto", haswell, &missing), "avx2", "AVX2, FMA, F16C: avx2");
    is_str(level("auto", haswell & ~(uint32_t)CPU_BIT_F16C, &missing), "generic", "without F16C: generic");
    is_str(level("auto", skylake, &missing), "avx512", "AVX-512 F, BW, DQ, VL: avx512");
    is_str(level("auto", skylake | CPU_BIT_AVX512BF16, &missing), "avx512",
           "slow bf16 products: auto stays with f32");
    is_str(level("avx512bf16", skylake | CPU_BIT_AVX512BF16, &missing), "avx512bf16",
           "but they can be asked for");
    is_str(level("auto", skylake | CPU_BIT_AVX512BF16 | CPU_BIT_FAST_BF16, &missing), "avx512bf16",
           "fast ones: taken");
    level("avx512", haswell | CPU_BIT_AVX512F | CPU_BIT_AVX512BW | CPU_BIT_AVX512DQ, &missing);
    is_int(missing, CPU_BIT_AVX512VL, "a level that cannot run names the missing bit");
    is_str(level("avx512", haswell, &missing), "none", "and is not chosen");
}

/* Every key of a mask, word by word, for random masks. */
static void test_masks(uint64_t *rng) {
    int wrong = 0;
    for (int i = 0; i < 400; i++) {
        int32_t spans[4];
        struct cpu_seq s = {.kv_len = (int32_t)tap_rand_in(rng, 1, 90)};
        s.q_len = (int32_t)tap_rand_in(rng, 1, s.kv_len);
        s.q_offset = s.kv_len - s.q_len;
        s.mask = (struct cpu_mask){.causal = 1, .window_left = -1, .window_right = -1};
        const int kind = (int)tap_rand_in(rng, 0, 5);
        if (kind == 1)
            s.mask.causal = 0, s.mask.window_left = s.mask.window_right = (int)tap_rand_in(rng, 0, 20);
        if (kind == 2)
            s.mask.chunk = (int)tap_rand_in(rng, 1, 30), s.mask.lookback = (int)tap_rand_in(rng, 0, 2);
        if (kind == 3)
            s.mask.window_left = (int)tap_rand_in(rng, 0, 20), s.mask.prefix = (int)tap_rand_in(rng, 1, 40);
        if (kind >= 4) {
            spans[0] = (int32_t)tap_rand_in(rng, 0, 40);
            spans[1] = (int32_t)tap_rand_in(rng, 0, 60);
            spans[2] = 61;
            spans[3] = (int32_t)tap_rand_in(rng, 61, 99);
            s.mask.spans = spans;
            s.mask.num_spans = 2;
            s.mask.window_left = kind == 5 ? (int)tap_rand_in(rng, 0, 9) : -1;
            s.mask.span_window = kind == 5 ? s.mask.window_left + 1 : 0;
        }
        const int32_t a = (int32_t)tap_rand_in(rng, 0, 20), b = (int32_t)tap_rand_in(rng, 20, 100);
        for (int t = 0; t < s.q_len; t++) {
            const struct cpu_interval2 v = cpu_mask_token(&s, t, a, b);
            for (int32_t k = 0; k < 100; k++) {
                const int have = (k >= v.lo0 && k < v.hi0) || (k >= v.lo1 && k < v.hi1);
                wrong += have != (k >= a && k < b && case_allowed(&s, s.q_offset + t, k));
            }
        }
    }
    is_int(wrong, 0, "400 random masks as two intervals, every key");
}

/* One row written at every level: values, scale, and NaN. */
static void test_rows(uint64_t *rng) {
    static const enum cpu_dtype to[] = {CPU_F32, CPU_F16, CPU_BF16, CPU_E4M3, CPU_E5M2};
    const uint32_t bits = cpu_bits();
    for (int l = 0; cpu_levels[l]; l++) {
        const struct cpu_kernels *k = cpu_levels[l];
        if (k->needs & ~bits) continue;
        int wrong = 0, wrong8 = 0, finite = 0;
        float row_scale_4;
        for (int i = 0; i < 300; i++) {
            float src[80], scratch[256], scale, row_scale;
            char out[80 * 4], want[80 * 4] = {0};
            const int n = (int)tap_rand_in(rng, 1, 80);
            const double size = ldexp(1, (int)tap_rand_in(rng, -12, 12));
            for (int d = 0; d < n; d++)
                src[d] = (float)(tap_rand_normal(rng) * size);
            const enum cpu_dtype type = to[i % 5];
            scale = cpu_dtype_size(type) == 1 ? 0.37f : 1.0f;
            k->write_row(CPU_F32, (const char *)src, n, type, scale, out, NULL, scratch);
            for (int d = 0; d < n; d++)
                case_round(type, src[d] / scale, (unsigned char *)want + d * cpu_dtype_size(type));
            wrong += memcmp(out, want, (size_t)(n * cpu_dtype_size(type))) != 0;
            k->write_row(CPU_F32, (const char *)src, n, CPU_I8, 1, out, (char *)&row_scale, scratch);
            float top = 0;
            for (int d = 0; d < n; d++)
                top = fmaxf(top, fabsf(src[d]));
            wrong8 += row_scale != fmaxf(top / 127.0f, 1e-6f);
            for (int d = 0; d < n; d++)
                wrong8 += out[d] != (char)(int)roundf(fmaxf(-128, fminf(127, src[d] / row_scale)));
            src[n / 2] = NAN;
            k->write_row(CPU_F32, (const char *)src, n, CPU_E4M3, 1, out, (char *)&row_scale, scratch);
            finite += !(row_scale != row_scale);
            k->write_row(CPU_F32, (const char *)src, n, CPU_E4M3, 1, out, NULL, scratch);
            finite += (out[n / 2] & 0x7f) != 0x7f;
            src[n / 2] = 1e30f;
            k->write_row(CPU_F32, (const char *)src, n, CPU_E5M2, 1, out, NULL, scratch);
            finite += out[n / 2] != 0x7b;
        }
        int wrong4 = 0;
        /* every size and dtype; one channel 100 times the others; zeros; equal values */
        for (int i = 0; i < 60; i++) {
            static const enum cpu_dtype from[] = {CPU_F32, CPU_F16, CPU_BF16};
            static const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
            const int n = 2 << i % 10;
            const double size = ldexp(1, (int)tap_rand_in(rng, -10, 10));
            float x[1024], scratch[1024 + 64];
            unsigned char src[4096], out[1024 / 2 + 4], want[1024 / 2 + 4];
            for (int d = 0; d < n; d++) {
                x[d] = (float)(i / 10 == 3 ? size
                                           : tap_rand_normal(rng) * size * (i / 10 == 4 && d == 1 ? 100 : 1));
                if (i / 10 == 5) x[d] = 0;
                x[d] = case_round(from[i % 3], x[d], src + d * cpu_dtype_size(from[i % 3]));
            }
            int4_row_encode(dtypes[i % 3], x, n, want);
            k->write_row(from[i % 3], (const char *)src, n, CPU_I4, 1, (char *)out, (char *)out + n / 2,
                         scratch);
            wrong4 += memcmp(out, want, (size_t)n / 2 + 4) != 0;
            x[n / 2] = i % 2 ? NAN : INFINITY;
            k->write_row(CPU_F32, (const char *)x, n, CPU_I4, 1, (char *)out, (char *)&row_scale_4, scratch);
            wrong4 += !(row_scale_4 != row_scale_4);
        }
        int wrong3 = 0;
        for (int i = 0; i < 4 * 8 * 3; i++) {
            static const enum cpu_dtype rows[] = {CPU_C4, CPU_C3, CPU_V4, CPU_V3};
            static const enum cpu_dtype from[] = {CPU_F32, CPU_F16, CPU_BF16};
            const enum cpu_dtype to = rows[i % 4];
            const int is_value = i % 4 / 2, bits = i % 2 ? 3 : 4, n = 8 << i / 4 % 8;
            const double size = ldexp(1, (int)tap_rand_in(rng, -10, 10));
            float x[1024], scratch[1024 + 64];
            unsigned char src[4096], out[1024], want[1024];
            for (int d = 0; d < n; d++) {
                x[d] = (float)(i / 32 == 1 ? size
                                           : tap_rand_normal(rng) * size * (i / 32 == 2 && d == 1 ? 100 : 1));
                x[d] = case_round(from[i % 3], x[d], src + d * cpu_dtype_size(from[i % 3]));
            }
            turbo_row_encode(bits, is_value, x, n, want);
            k->write_row(from[i % 3], (const char *)src, n, to, 1, (char *)out, NULL, scratch);
            wrong3 += memcmp(out, want, (size_t)turbo_row_bytes(bits, is_value, n)) != 0;
            x[n / 2] = i % 5 ? NAN : INFINITY;
            k->write_row(CPU_F32, (const char *)x, n, to, 1, (char *)out, NULL, scratch);
            const double beside = turbo_row_half_at(out + n * bits / 8); /* its exponent of 31 as a number */
            wrong3 += !(fabs(beside) > 65536) || out[0] != 0;
        }
        int wrong2 = 0;
        /* every size and dtype; one channel 100 times the others; zeros; ties; saturation; NaN */
        for (int i = 0; i < 72; i++) {
            static const enum cpu_dtype from[] = {CPU_F32, CPU_F16, CPU_BF16};
            const int n = 16 * (1 + i % 8 * (i % 8 + 1)), kind = i / 12;
            const double size = ldexp(1, (int)tap_rand_in(rng, -8, 8));
            const float t = (float)(size * (0.001 + tap_rand_unit(rng)));
            float x[1024], scratch[1024 + 64];
            unsigned char src[4096], out[1024], want[1024];
            for (int d = 0; d < n; d++) {
                x[d] = (float)(tap_rand_normal(rng) * size * (kind == 1 && d % 16 == 1 ? 100 : 1));
                if (kind == 2 && d / 16 % 2 == 0) x[d] = 0;
                if (kind == 3) x[d] = (float)((d % 16 == 0 ? 24 : d % 16 - 8) * size / 4); /* quarters of 1 */
                if (kind == 4) x[d] *= 6000;
                x[d] = case_round(from[i % 3], x[d], src + d * cpu_dtype_size(from[i % 3]));
                if (kind == 5 && i % 3 == 0 && d == n / 2)
                    x[d] = i % 2 ? NAN : -INFINITY, memcpy(src + 4 * d, x + d, 4);
            }
            const float scale = kind == 3 ? (float)size : t;
            nvfp4_row_encode(x, n, scale, want, want + n / 2);
            k->write_row(from[i % 3], (const char *)src, n, CPU_E2M1, scale, (char *)out, (char *)out + n / 2,
                         scratch);
            wrong2 += memcmp(out, want, (size_t)(n / 2 + n / 16)) != 0;
        }
        int wrong1 = 0;
        for (int i = 0; i < 24; i++) { /* int8 by a scale for each value; ends, halves and NaN */
            const int n = 4 * (1 + i * i);
            float x[4096], by[4096], scratch[4096 + 64];
            signed char out[4096];
            for (int d = 0; d < n; d++) {
                by[d] = (float)(0.01 + tap_rand_unit(rng));
                x[d] = (float)tap_rand_normal(rng) * 100;
                if (d % 9 == 1) by[d] = 0.5f, x[d] = (float)(tap_rand_in(rng, -300, 300)) / 4;
            }
            x[n - 1] = NAN;
            k->write_channels(CPU_F32, (const char *)x, n, by, (char *)out, scratch);
            for (int d = 0; d < n; d++) {
                const float q = x[d] / by[d];
                wrong1 += out[d] != (q != q ? 0 : (int)roundf(fminf(127, fmaxf(-128, q))));
            }
        }
        is_int(wrong1, 0, "%s: int8 rows by scales of channels", k->name);
        is_int(wrong2, 0, "%s: nvfp4 rows, bit by bit", k->name);
        is_int(wrong3, 0, "%s: TurboQuant rows, bit by bit, and NaN", k->name);
        is_int(wrong4, 0, "%s: int4 rows, bit by bit, and NaN", k->name);
        is_int(wrong, 0, "%s: rows of five formats, bit by bit", k->name);
        is_int(wrong8, 0, "%s: int8 rows and their scales", k->name);
        is_int(finite, 0, "%s: NaN stays NaN, huge values saturate", k->name);
    }
}

int main(void) {
    uint64_t rng = tap_seed();
    test_levels();
    test_masks(&rng);
    test_rows(&rng);
    return tap_done();
}
