// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the cache writers (triton_codes.cuh) on the host against its definitions (semantics 3.2,
// 3.4, 3.6, 3.8): at ties, beside them, beyond the ends, and with NaN and infinity.
#include "../../tap.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#define PTX_SM80_CUH
#define ATTN_DEV inline
ATTN_DEV uint32_t __float_as_uint(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
ATTN_DEV float __uint_as_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
ATTN_DEV float __fadd_rz(float x, float y) {
    volatile float a = x, b = y, sum;
    fesetround(FE_TOWARDZERO);
    sum = a + b;
    fesetround(FE_TONEAREST);
    return sum;
}
ATTN_DEV float __fadd_rd(float x, float y) {
    volatile float a = x, b = y, sum;
    fesetround(FE_DOWNWARD);
    sum = a + b;
    fesetround(FE_TONEAREST);
    return sum;
}
static float nudge = 0; // the approximate reciprocal is up to one step off
ATTN_DEV float rcp_approx(float x) {
    const float y = 1.f / x;
    return y != 0 && fabsf(y) < INFINITY && nudge != 0 ? nextafterf(y, nudge * INFINITY) : y;
}
#include "plugins/triton_like/triton_codes.cuh"

static uint64_t state;
static uint32_t next_random() {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}
static float uniform() { // -1 to 1
    return (float)(int32_t)next_random() * 0x1p-31f;
}
// A number near n/4, at it or one step away, or anywhere within `most`.
static float hard(float most) {
    const uint32_t kind = next_random() % 8;
    if (kind == 0) return uniform() * most;
    const float x = roundf(uniform() * most * 4) / 4;
    return kind < 4 ? x : nextafterf(x, kind % 2 ? 1e9f : -1e9f);
}
static const float ends[] = {0.f,      -0.f,     NAN,    INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f,
                             127.499f, -128.49f, 127.5f, -128.5f,  1e-38f,    0.25f,   5.f,      -5.f};
enum { NUM_ENDS = sizeof ends / sizeof ends[0] };

int main() {
    int wrong = 0;
    state = tap_seed() | 1;
    for (int i = 0; i < 400000; i++) {
        const float x = i < NUM_ENDS ? ends[i] : hard(140);
        const int want = x != x ? 0 : (int)fminf(fmaxf(roundf(x), -128.f), 127.f);
        wrong += (attn_cuda::int8_bits(x) & 255) != ((unsigned)want & 255);
        wrong += x >= -128 && x <= 127 && (attn_cuda::int8_low(x) & 255) != ((unsigned)want & 255);
    }
    ok(wrong == 0, "int8 codes are the nearest, half away from zero (%d are not)", wrong);
    wrong = 0;
    for (int i = 0; i < 400000; i++) {
        const float x = i < NUM_ENDS ? ends[i] : hard(9), a = fabsf(x);
        if (x != x) continue;
        const unsigned want = (unsigned)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                              (a >= 3.5f) + (a > 5.f);
        wrong += attn_cuda::e2m1_code(x) != (want | (signbit(x) ? 8u : 0u));
    }
    ok(wrong == 0, "e2m1 codes are the nearest, ties to even (%d are not)", wrong);
    wrong = 0;
    for (int i = 0; i < 400000; i++) {
        const float by = ldexpf(1 + fabsf(uniform()), (int)(next_random() % 240) - 120);
        nudge = (float)(i % 3) - 1;
        const attn_cuda::quotient q(i % 5 ? by : -by);
        const float x = i % 50 < NUM_ENDS ? ends[i % 50] : by * 130 * uniform(), got = q.of(x),
                    want = x / (i % 5 ? by : -by);
        // below 2^-20 every format's code is zero
        wrong += !(got == want || (got != got && want != want) ||
                   (fabsf(want) < 0x1p-20f && fabsf(got) < 0x1p-20f)) ||
                 (got == got && signbit(got) != signbit(want)); // -0 has a code of its own in e4m3 and e5m2
    }
    for (int i = 0; i < 400000; i++) {
        const float by = ldexpf(1 + fabsf(uniform()), (int)(next_random() % 118) - 59);
        nudge = (float)(i % 3) - 1;
        if (!attn_cuda::plain_quotient::fits(by)) wrong++;
        const float x = by * 500 * uniform() * ldexpf(1, -(int)(next_random() % 30) * (i % 2)),
                    got = attn_cuda::plain_quotient(by).of(i % 7 ? x : copysignf(0, x)),
                    want = (i % 7 ? x : copysignf(0, x)) / by;
        wrong += got != want || signbit(got) != signbit(want);
    }
    for (int i = 0; i < 400000; i++) {
        const float x = i < NUM_ENDS ? ends[i] : ldexpf(uniform(), (int)(next_random() % 200) - 90);
        const float got[3] = {attn_cuda::divided<127>(x), attn_cuda::divided<448>(x),
                              attn_cuda::divided<6>(x)},
                    want[3] = {x / 127, x / 448, x / 6};
        for (int j = 0; j < 3; j++)
            wrong += !(got[j] == want[j] || (got[j] != got[j] && x != x)) && fabsf(x) > 1e-30f;
    }
    for (int i = 0; i < 3 * NUM_ENDS; i++) {
        const float by = i % 3 == 0 ? 0.f : i % 3 == 1 ? INFINITY : NAN, x = ends[i / 3];
        const attn_cuda::quotient q(by);
        const float got = q.of(x), want = x / by;
        wrong += !(got == want || (got != got && want != want));
    }
    ok(wrong == 0, "quotients are rounded as IEEE's (%d are not)", wrong);
    return tap_done();
}
