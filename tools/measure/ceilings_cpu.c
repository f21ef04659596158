/* SPDX-License-Identifier: Apache-2.0 */
/* Measured ceilings of the CPU. Loops of known instruction counts; per-function target attributes, because
 * each function is one loop that calls nothing. */
#include "measure/ceilings_cpu.h"

#include <string.h>
#include <time.h>

#ifdef _OPENMP
#include <omp.h>
#endif

double ceiling_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs body(arg, worker, threads) on every thread and returns the seconds of the whole region. */
static double on_threads(int threads, float (*body)(const void *, int, int), const void *arg) {
    float sum = 0;
    const double t = ceiling_now();
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += body(arg, omp_get_thread_num(), omp_get_num_threads());
#else
    (void)threads;
    sum = body(arg, 0, 1);
#endif
    static volatile float sink; /* keeps the loops alive */
    sink = sum;
    (void)sink;
    return ceiling_now() - t;
}

enum { ISSUE_STEPS = 60000, ISSUE_CHAINS = 8 };

/* Independent additions, as many as a core issues: a busy hyperthread beside it halves the rate. */
static float add_loop(const void *arg, int worker, int threads) {
    uint64_t c[ISSUE_CHAINS] = {0}, sum = 0;
    (void)arg, (void)worker, (void)threads;
    for (long i = 0; i < ISSUE_STEPS; i++) {
        for (int k = 0; k < ISSUE_CHAINS; k++)
            c[k]++;
        __asm__ volatile(""
                         : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]), "+r"(c[6]),
                           "+r"(c[7]));
    }
    for (int k = 0; k < ISSUE_CHAINS; k++)
        sum += c[k];
    return (float)sum;
}

double ceiling_issue(int threads) {
    return (double)ISSUE_STEPS * ISSUE_CHAINS * threads / on_threads(threads, add_loop, NULL) / 1e9;
}

enum { FMA_STEPS = 1000000, FMA_CHAINS = 12 };

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FMA_LOOP(TARGET, NAME, V, SET1, OP)                                                                  \
    __attribute__((target(TARGET))) static float NAME(const void *arg, int worker, int threads) {            \
        V c[FMA_CHAINS], x = SET1(1.0000001f), y = SET1(1e-9f);                                              \
        float out[sizeof(V) / 4];                                                                            \
        (void)arg, (void)worker, (void)threads;                                                              \
        for (int k = 0; k < FMA_CHAINS; k++)                                                                 \
            c[k] = SET1((float)k * 1e-9f);                                                                   \
        for (long i = 0; i < FMA_STEPS; i++) {                                                               \
            _Pragma("GCC unroll 12") for (int k = 0; k < FMA_CHAINS; k++) c[k] = OP;                         \
            __asm__ volatile("" : "+x"(x), "+x"(y));                                                         \
        }                                                                                                    \
        for (int k = 1; k < FMA_CHAINS; k++)                                                                 \
            c[0] += c[k];                                                                                    \
        memcpy(out, &c[0], sizeof out);                                                                      \
        return out[0];                                                                                       \
    }
FMA_LOOP("sse2", fma_generic, __m128, _mm_set1_ps, _mm_add_ps(_mm_mul_ps(c[k], x), y))
FMA_LOOP("avx2,fma", fma_avx2, __m256, _mm256_set1_ps, _mm256_fmadd_ps(c[k], x, y))
__attribute__((target("avx512f"))) static float fma_avx512(const void *arg, int worker, int threads) {
    __m512 c[FMA_CHAINS], x = _mm512_set1_ps(1.0000001f), y = _mm512_set1_ps(1e-9f);
    (void)arg, (void)worker, (void)threads;
    for (int k = 0; k < FMA_CHAINS; k++)
        c[k] = _mm512_set1_ps((float)k * 1e-9f);
    for (long i = 0; i < FMA_STEPS; i++) {
        _Pragma("GCC unroll 12") for (int k = 0; k < FMA_CHAINS; k++) c[k] = _mm512_fmadd_ps(c[k], x, y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int k = 1; k < FMA_CHAINS; k++)
        c[0] = _mm512_add_ps(c[0], c[k]);
    return _mm512_reduce_add_ps(c[0]);
}
__attribute__((target("avx512f,avx512bf16"))) static float dot_bf16(const void *arg, int worker,
                                                                    int threads) {
    __m512 c[FMA_CHAINS], x = _mm512_set1_ps(1.0f), y = _mm512_set1_ps(1e-9f);
    (void)arg, (void)worker, (void)threads;
    for (int k = 0; k < FMA_CHAINS; k++)
        c[k] = _mm512_set1_ps((float)k * 1e-9f);
    for (long i = 0; i < FMA_STEPS; i++) {
        _Pragma("GCC unroll 12") for (int k = 0; k < FMA_CHAINS; k++) c[k] =
            _mm512_dpbf16_ps(c[k], (__m512bh)x, (__m512bh)y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int k = 1; k < FMA_CHAINS; k++)
        c[0] = _mm512_add_ps(c[0], c[k]);
    return _mm512_reduce_add_ps(c[0]);
}

double ceiling_fma(const char *level, int threads) {
    float (*body)(const void *, int, int) = fma_generic;
    double flop = 4 * 2;
    if (strncmp(level, "avx512", 6) == 0) {
        if (!__builtin_cpu_supports("avx512f")) return 0;
        body = fma_avx512;
        flop = 16 * 2;
    } else if (strcmp(level, "avx2") == 0) {
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
        body = fma_avx2;
        flop = 8 * 2;
    }
    return flop * FMA_CHAINS * FMA_STEPS * threads / on_threads(threads, body, NULL) / 1e9;
}

double ceiling_bf16_dot(int threads) {
    if (!__builtin_cpu_supports("avx512bf16")) return 0;
    return 16.0 * 4 * FMA_CHAINS * FMA_STEPS * threads / on_threads(threads, dot_bf16, NULL) / 1e9;
}

enum { TILE_STEPS = 250000 };
/* Four sums of tile products, operands in tiles: 16 x 16 x 32 multiply-adds each. */
static float dot_tiles(const void *arg, int worker, int threads) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } whole = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    float c[256];
    (void)arg, (void)worker, (void)threads;
    memset(c, 0, sizeof c);
    __asm__ volatile("ldtilecfg %0" : : "m"(whole));
    /* Zeros as operands would run at another clock. */
    for (int i = 0; i < 256; i++)
        c[i] = 1.0f;
    __asm__ volatile(
        "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5\n\ttileloadd (%0,%1,1), %%tmm6\n\t"
        "tileloadd (%0,%1,1), %%tmm7"
        :
        : "r"(c), "r"(64L)
        : "memory");
    for (long i = 0; i < TILE_STEPS; i++)
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilerelease" : : "r"(c), "r"(64L) : "memory");
    return c[0];
}

double ceiling_bf16_tiles(int threads) {
    uint32_t a, b, c, d;
#ifdef __linux__
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, asm/prctl.h */
    if (!__builtin_cpu_supports("avx512bf16") || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        (d >> 22 & 5) != 5 || syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) != 0)
        return 0;
    return 4.0 * 16384 * TILE_STEPS * threads / on_threads(threads, dot_tiles, NULL) / 1e9;
#else
    (void)a, (void)b, (void)c, (void)d, (void)threads, (void)dot_tiles;
    return 0;
#endif
}

#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

/* Sums every word of n bytes (a multiple of 256), prefetching `ahead` bytes of `next` meanwhile. */
__attribute__((target("avx2"))) static __m256 sum_bytes(const char *p, size_t n, const char *next,
                                                        size_t ahead, __m256 acc) {
    __m256 a = acc, b = _mm256_setzero_ps(), c = b, d = b;
    for (size_t i = 0; i < n; i += 256) {
        for (size_t j = i; j < i + 256 && j < ahead; j += 64)
            PREFETCH(next + j);
        for (size_t j = i; j < i + 256; j += 128) {
            a = _mm256_add_ps(a, _mm256_loadu_ps((const float *)(const void *)(p + j)));
            b = _mm256_add_ps(b, _mm256_loadu_ps((const float *)(const void *)(p + j + 32)));
            c = _mm256_add_ps(c, _mm256_loadu_ps((const float *)(const void *)(p + j + 64)));
            d = _mm256_add_ps(d, _mm256_loadu_ps((const float *)(const void *)(p + j + 96)));
        }
    }
    return _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
}
__attribute__((target("avx2"))) static float sum_pieces(const char *const *pieces, size_t first, size_t end,
                                                        size_t bytes, enum ceiling_prefetch prefetch) {
    const size_t ahead = prefetch == CEILING_PREFETCH_NONE   ? 0
                         : prefetch == CEILING_PREFETCH_HEAD ? 128
                                                             : bytes;
    __m256 acc = _mm256_setzero_ps();
    for (size_t i = first; i < end; i++)
        acc = sum_bytes(pieces[i], bytes, pieces[i + 1 < end ? i + 1 : i], ahead, acc);
    return _mm256_cvtss_f32(acc);
}
#else
static float fma_generic(const void *arg, int worker, int threads) {
    typedef float v4 __attribute__((vector_size(16)));
    v4 c[FMA_CHAINS], x = {1.0000001f, 1.0000001f, 1.0000001f, 1.0000001f};
    (void)arg, (void)worker, (void)threads;
    for (int k = 0; k < FMA_CHAINS; k++)
        c[k] = x * (float)k;
    for (long i = 0; i < FMA_STEPS; i++) {
        for (int k = 0; k < FMA_CHAINS; k++)
            c[k] = c[k] * x + x;
        __asm__ volatile("" : : : "memory");
    }
    for (int k = 1; k < FMA_CHAINS; k++)
        c[0] += c[k];
    return c[0][0];
}
#if defined(__aarch64__)
#include <arm_neon.h>
static float fma_neon(const void *arg, int worker, int threads) {
    float32x4_t c[FMA_CHAINS], x = vdupq_n_f32(1.0000001f), y = vdupq_n_f32(1e-9f);
    (void)arg, (void)worker, (void)threads;
    for (int k = 0; k < FMA_CHAINS; k++)
        c[k] = vdupq_n_f32((float)k * 1e-9f);
    for (long i = 0; i < FMA_STEPS; i++) {
        _Pragma("GCC unroll 12") for (int k = 0; k < FMA_CHAINS; k++) c[k] = vfmaq_f32(y, c[k], x);
        __asm__ volatile("" : "+w"(x), "+w"(y));
    }
    for (int k = 1; k < FMA_CHAINS; k++)
        c[0] = vaddq_f32(c[0], c[k]);
    return vaddvq_f32(c[0]);
}
#endif
double ceiling_fma(const char *level, int threads) {
    float (*body)(const void *, int, int) = fma_generic;
#if defined(__aarch64__)
    if (strcmp(level, "neon") == 0) body = fma_neon;
#endif
    if (body == fma_generic && strcmp(level, "generic") != 0) return 0;
    return 8.0 * FMA_CHAINS * FMA_STEPS * threads / on_threads(threads, body, NULL) / 1e9;
}
double ceiling_bf16_dot(int threads) {
    (void)threads;
    return 0;
}
double ceiling_bf16_tiles(int threads) {
    (void)threads;
    return 0;
}
static float sum_pieces(const char *const *pieces, size_t first, size_t end, size_t bytes,
                        enum ceiling_prefetch prefetch) {
    uint64_t a = 0, b = 0, c = 0, d = 0, w[4];
    (void)prefetch;
    for (size_t i = first; i < end; i++)
        for (size_t j = 0; j < bytes; j += 32) {
            memcpy(w, pieces[i] + j, 32);
            a += w[0];
            b += w[1];
            c += w[2];
            d += w[3];
        }
    return (float)(a + b + c + d);
}
#endif

struct read_job {
    const char *const *pieces;
    size_t count, bytes;
    enum ceiling_prefetch prefetch;
};

static float read_share(const void *arg, int worker, int threads) {
    const struct read_job *j = arg;
    return sum_pieces(j->pieces, j->count * (size_t)worker / (size_t)threads,
                      j->count * (size_t)(worker + 1) / (size_t)threads, j->bytes, j->prefetch);
}

double ceiling_read_pieces(const char *const *pieces, size_t count, size_t bytes, int threads,
                           enum ceiling_prefetch prefetch) {
    const struct read_job job = {pieces, count, bytes & ~(size_t)255, prefetch};
    return (double)count * (double)job.bytes / on_threads(threads, read_share, &job) / 1e9;
}

double ceiling_read(const void *buffer, size_t bytes, int threads) {
    const char *pieces[256];
    size_t n = (size_t)threads < 256 ? (size_t)threads : 256, each = bytes / n & ~(size_t)4095;
    for (size_t i = 0; i < n; i++)
        pieces[i] = (const char *)buffer + i * each;
    return ceiling_read_pieces(pieces, n, each, threads, CEILING_PREFETCH_NONE);
}
