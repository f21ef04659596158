// SPDX-License-Identifier: Apache-2.0
// What triton_packed.cuh and triton_packed_write.cuh compute without a device, on the host: which codes of a
// row meet which columns in the tensor cores, and the arithmetic that decides stored bits.
// tests/gpu/triton_packed runs the kernels.
#include "../../tap.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <string.h>

// The language of the kernels.
#define PTX_SM80_CUH
#define TRITON_ROWS_CUH
#define ATTN_DEV inline
struct float2 {
    float x, y;
};
struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
ATTN_DEV float2 make_float2(float x, float y) {
    return {x, y};
}
ATTN_DEV uint2 make_uint2(uint32_t x, uint32_t y) {
    return {x, y};
}
ATTN_DEV uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}
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
ATTN_DEV float __fadd_rz(float x, float y) { // y is 2^23, x from 0 to 15
    return (float)((double)y + floor((double)x));
}
ATTN_DEV float __fadd_rd(float, float) { // of the codes of other formats
    return 0;
}
ATTN_DEV float rcp_approx(float x) {
    return 1 / x;
}
ATTN_DEV float __saturatef(float x) {
    return x > 0 ? x < 1 ? x : 1 : 0;
}
ATTN_DEV uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
}
ATTN_DEV uint32_t prmt(uint32_t a, uint32_t b, uint32_t select) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) { // a selector's highest bit wants the sign eight times
        const uint32_t x = (uint32_t)(bytes >> 8 * (select >> 4 * i & 7) & 255);
        r |= (select >> 4 * i & 8 ? x & 128 ? 255u : 0u : x) << 8 * i;
    }
    return r;
}
template <class T>
T __shfl_sync(unsigned, T x, int) {
    return x;
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int) { // lanes run alone
    return x;
}
ATTN_DEV int __any_sync(unsigned, bool x) {
    return x;
}
ATTN_DEV int __all_sync(unsigned, bool x) {
    return x;
}
template <class T>
T __ldg(const T *p) {
    return *p;
}
ATTN_DEV uint32_t max(uint32_t x, uint32_t y) {
    return x > y ? x : y;
}
ATTN_DEV float rsqrtf(float x) {
    return 1 / sqrtf(x);
}
template <class F>
uint32_t halves_of(uint32_t x, uint32_t y, uint32_t z, F f) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16)
        r |= (uint32_t)attn_to_f16((float)f(attn_from_f16((uint16_t)(x >> i)),
                                            attn_from_f16((uint16_t)(y >> i)),
                                            attn_from_f16((uint16_t)(z >> i))))
             << i;
    return r;
}
ATTN_DEV uint32_t fma_f16x2(uint32_t x, uint32_t y, uint32_t z) {
    return halves_of(x, y, z, [](double a, double b, double c) { return a * b + c; });
}
ATTN_DEV float min_nan(float x, float y) {
    return x < y || x != x ? x : y;
}
ATTN_DEV uint32_t sub_f16x2(uint32_t x, uint32_t y) {
    return halves_of(x, y, 0, [](double a, double b, double) { return a - b; });
}
ATTN_DEV uint32_t f32x2_to_e4m3x2(float low, float high) {
    return attn_to_e4m3(low) | (uint32_t)attn_to_e4m3(high) << 8;
}

static unsigned char shared_memory[131072];
ATTN_DEV uint32_t ld_shared_u32(uint32_t a) {
    uint32_t x;
    memcpy(&x, shared_memory + a, 4);
    return x;
}
ATTN_DEV void st_shared_v4(uint32_t a, uint4 x) {
    memcpy(shared_memory + a, &x, 16);
}

// The A operands of a warp: of each product, or of each tile of the output where `first` is its first.
static uint32_t fragments[64][32][4];
static int lane_now, product_now;
static const float *first_tile;
ATTN_DEV void begin_lane(int lane, const float *first) {
    lane_now = lane, product_now = 0, first_tile = first;
}
ATTN_DEV void keep_fragment(const float *d, const uint32_t *a) {
    const int at = first_tile != nullptr ? (int)((d - first_tile) / 4) : product_now++;
    memcpy(fragments[at][lane_now], a, 16);
}
ATTN_DEV double fragment_value(int at, int row, int k) {
    const uint32_t x = fragments[at][row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
    return attn_from_f16((uint16_t)(x >> k % 2 * 16));
}

static uint64_t state = 1;
ATTN_DEV uint32_t next_random() {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
ATTN_DEV float random_normal() {
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)next_random() / 2147483648.0f;
    return sum - 6;
}

#define TL_PACKED 1
#define TL_D      128
#define attn_cuda int4_128
#include "triton_packed_host.h"
#define TL_PACKED 1
#define TL_D      32
#define attn_cuda int4_32
#include "triton_packed_host.h"
#define TL_PACKED 2
#define TL_D      128
#define attn_cuda k8v4_128
#include "triton_packed_host.h"
#define TL_PACKED 2
#define TL_D      72
#define attn_cuda k8v4_72
#include "triton_packed_host.h"
#define TL_PACKED 3
#define TL_D      128
#define attn_cuda c4v4_128
#include "triton_packed_host.h"
#define TL_PACKED 3
#define TL_D      64
#define attn_cuda c4v4_64
#include "triton_packed_host.h"
#define TL_PACKED 4
#define TL_D      128
#define attn_cuda c3v4_128
#include "triton_packed_host.h"
#define TL_PACKED 5
#define TL_D      256
#define attn_cuda c3v3_256
#include "triton_packed_host.h"
#define TL_PACKED 5
#define TL_D      64
#define attn_cuda c3v3_64
#include "triton_packed_host.h"

int main() {
    state = tap_seed() | 1;
    int4_128::check_all(), int4_32::check_all();
    k8v4_128::check_all(), k8v4_72::check_all();
    c4v4_128::check_all(), c4v4_64::check_all();
    c3v4_128::check_all(), c3v3_256::check_all(), c3v3_64::check_all();
    return tap_done();
}
