/* SPDX-License-Identifier: Apache-2.0 */
/* PTX wrappers that every GPU from sm_80 on has: cp.async, ldmatrix, mma.sync m16n8k16, movmatrix, ex2, and
 * the conversions between f32, f16, bf16 and e4m3. Names follow the instructions. */
#ifndef PTX_SM80_CUH
#define PTX_SM80_CUH

#include <stdint.h>

#define ATTN_DEV __device__ __forceinline__

namespace attn_cuda {

/* Element types of the kernels. Values equal enum flash_dtype, so that a host switch maps one to one. */
enum { DT_F16 = 1, DT_BF16 = 2, DT_E4M3 = 3, DT_E5M2 = 4 };

ATTN_DEV uint32_t smem_addr(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

ATTN_DEV float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
ATTN_DEV float rsqrt_approx(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Weights are 2^fma(s, c, -b) with b = m * c rounded. Beyond DEEP that rounding is no small factor any more,
 * and from 1e8 on it leaves the exponent's range: such rows multiply by __fmul_rn and subtract then. LOWEST,
 * the maximum of a row without keys, is not deep. Scores that are multiplied before their maximum is taken
 * give 2^__fsub_rn(s, m), since the compiler may make an fma of a plain difference. */
constexpr float DEEP = 16777216.f, LOWEST = -3.402823466e38f;
ATTN_DEV bool is_deep(float b) {
    return fabsf(b) > DEEP && fabsf(b) < -LOWEST;
}
ATTN_DEV float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
ATTN_DEV float rcp_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* tanh(x) = 1 - 2 / (1 + e^2x) in f32: tanh.approx has only 11 bits, which a soft cap of 50 turns into
 * 0.02. */
ATTN_DEV float tanh_f32(float x) {
    return 1.f - __fdividef(2.f, 1.f + ex2(x * 2.885390081777927f));
}

template <int BYTES>
ATTN_DEV void cp_async(uint32_t dst, const void *src) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES) : "memory");
}
/* For bytes that are used once: they make way in the L2 for each other, before anything else does. */
ATTN_DEV uint64_t read_once_policy() {
    uint64_t x;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(x));
    return x;
}
ATTN_DEV void cp_async16_by(uint64_t policy, uint32_t dst, const void *src) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "l"(policy)
                 : "memory");
}
ATTN_DEV void st_global_v4_by(uint64_t policy, void *to, uint4 v) {
    asm volatile("st.global.L1::no_allocate.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)
                 : "memory");
}
/* As cp_async, but writes zeros and reads nothing where `valid` is false. */
template <int BYTES>
ATTN_DEV void cp_async_zfill(uint32_t dst, const void *src, bool valid) {
    int n = valid ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES), "r"(n)
                     : "memory");
}
ATTN_DEV void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
ATTN_DEV void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

ATTN_DEV void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

ATTN_DEV void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
ATTN_DEV void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
ATTN_DEV uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
ATTN_DEV uint32_t prmt(uint32_t a, uint32_t b, uint32_t sel) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sel));
    return r;
}
ATTN_DEV void st_shared_u16(uint32_t a, uint16_t x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "h"(x) : "memory");
}
ATTN_DEV void st_shared_f32(uint32_t a, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(x) : "memory");
}
ATTN_DEV float ld_shared_f32(uint32_t a) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(a) : "memory");
    return x;
}
ATTN_DEV uint32_t ld_shared_u32(uint32_t a) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(a) : "memory");
    return x;
}
ATTN_DEV uint32_t ld_shared_u16(uint32_t a) {
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(a) : "memory");
    return x;
}
ATTN_DEV void st_shared_v4(uint32_t a, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
ATTN_DEV uint4 ld_shared_v4(uint32_t a) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(a)
                 : "memory");
    return x;
}

/* D += A * B, A 16x16 row-major fragment, B 16x8 column fragment, f32 accumulators. DT: DT_F16 or DT_BF16. */
template <int DT>
ATTN_DEV void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (DT == DT_BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two f32 into one register, the first in the low half. */
template <int DT>
ATTN_DEV uint32_t pack2(float lo, float hi) {
    uint32_t r;
    if constexpr (DT == DT_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
template <int DT>
ATTN_DEV float2 unpack2(uint32_t x) {
    float2 f;
    if constexpr (DT == DT_BF16) {
        f.x = __uint_as_float(x << 16);
        f.y = __uint_as_float(x & 0xffff0000u);
    } else {
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
            : "=f"(f.x), "=f"(f.y)
            : "r"(x));
    }
    return f;
}

/* Two f32 as float16, which ends at 65504; NaN stays. */
ATTN_DEV uint32_t pack2_limited(float2 f) {
    const auto limited = [](float x) { return x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x; };
    return pack2<DT_F16>(limited(f.x), limited(f.y));
}

/* The lesser; NaN where one is. */
ATTN_DEV float min_nan(float x, float y) {
    float z;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
ATTN_DEV uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
ATTN_DEV uint32_t sub_f16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Two e4m3 bytes (the low or the high 16 bits of x) into f16x2. Exact: every e4m3 value is an f16. Before
 * sm_89 there is no instruction: move sign and the 7 other bits into place of an f16 and multiply by 2^8 (the
 * exponent biases are 7 and 15), which is right for subnormals too; e4m3's NaN (0x7f) is set apart. */
template <int HIGH>
ATTN_DEV uint32_t e4m3x2_to_f16x2(uint32_t x) {
    uint32_t r;
#if __CUDA_ARCH__ >= 890
    if constexpr (HIGH)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(x));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(r) : "r"(x));
#else
    uint32_t y = HIGH ? prmt(x, 0, 0x3424) : prmt(x, 0, 0x1404); /* each byte to the top of a half */
    uint32_t v = (y & 0x80008000u) | ((y & 0x7f007f00u) >> 1);
    uint32_t nan = __vcmpeq2(y & 0x7f007f00u, 0x7f007f00u);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(0x5c005c00u));
    r |= nan & 0x7e007e00u;
#endif
    return r;
}

/* One f32 to e4m3, nearest even, saturating at 448; NaN stays NaN. Used by the cache writer, element by
 * element before sm_89. */
ATTN_DEV uint32_t f32x2_to_e4m3x2(float lo, float hi) {
#if __CUDA_ARCH__ >= 890
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
#else
    uint32_t out = 0;
    for (int i = 0; i < 2; i++) {
        float v = i ? hi : lo, a = fabsf(v);
        uint32_t sign = __float_as_uint(v) >> 31 << 7, code;
        if (!(a <= 448.f))
            code = a != a ? 0x7f : 0x7e;
        else if (a < 0.015625f) /* below 2^-6: multiples of 2^-9 */
            code = (uint32_t)__float2int_rn(a * 512.f);
        else {
            uint32_t u = __float_as_uint(a);
            u += 0x7ffff + (u >> 20 & 1); /* round to 3 mantissa bits, ties to even */
            code = (u >> 20) - (120 << 3);
            code = code > 0x7e ? 0x7e : code;
        }
        out |= (sign | code) << (8 * i);
    }
    return out;
#endif
}

#if __CUDA_ARCH__ >= 900
ATTN_DEV void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/* The address in CTA `rank` of the cluster that corresponds to a shared-memory address of this one. */
ATTN_DEV uint32_t cluster_addr(uint32_t addr, int rank) {
    uint32_t a;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(addr), "r"(rank));
    return a;
}
ATTN_DEV void st_cluster2(uint32_t addr, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(addr), "f"(v.x), "f"(v.y) : "memory");
}
ATTN_DEV void st_cluster4(uint32_t addr, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
}
/* The halves of cluster_sync. This arrival only says that the thread has started: nothing before it is
 * for others. */
ATTN_DEV void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
/* This one says that it has done what comes before it. */
ATTN_DEV void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
ATTN_DEV void cluster_wait() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
#endif

ATTN_DEV void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
ATTN_DEV void pdl_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} /* namespace attn_cuda */
#endif
