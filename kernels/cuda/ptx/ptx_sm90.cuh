/* SPDX-License-Identifier: Apache-2.0 */
/* PTX wrappers of Hopper (sm_90a): mbarriers, tensor copies, wgmma fences and descriptors, register
 * hand-over. */
#ifndef PTX_SM90_CUH
#define PTX_SM90_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

ATTN_DEV void mbar_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
ATTN_DEV void mbar_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
ATTN_DEV void mbar_expect(uint32_t bar, int bytes) { /* arrives, and adds bytes that copies will complete */
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
ATTN_DEV void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* The barrier may lie in another CTA of the cluster (cluster_addr). Plain semantics: for slots that only
 * wgmma and the copy engine touched; a release at cluster scope costs hundreds of cycles. */
ATTN_DEV void mbar_arrive_cluster(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
ATTN_DEV void mbar_wait(uint32_t bar, int phase) {
    asm volatile(
        "{\n.reg .pred p;\nWAIT%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE%=;\n"
        "bra WAIT%=;\nDONE%=:\n}" ::"r"(bar),
        "r"(phase)
        : "memory");
}

/* The same for waits that are long as a rule: the thread may sleep up to 10 ms at a time instead of asking
 * again. */
ATTN_DEV void mbar_sleep(uint32_t bar, int phase) {
    asm volatile("{\n.reg .pred p;\nWAIT%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n@p "
                 "bra DONE%=;\n"
                 "bra WAIT%=;\nDONE%=:\n}" ::"r"(bar),
                 "r"(phase), "r"(10000000)
                 : "memory");
}

ATTN_DEV void tma_3d(uint32_t dst, const void *map, int a, int b, int c, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4}], "
        "[%5];" ::"r"(dst),
        "l"(map), "r"(a), "r"(b), "r"(c), "r"(bar)
        : "memory");
}
/* The same under an L2 policy (read_once_policy). */
ATTN_DEV void tma_3d_by(uint64_t policy, uint32_t dst, const void *map, int a, int b, int c, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2,%3,%4}], [%5], %6;" ::"r"(dst),
                 "l"(map), "r"(a), "r"(b), "r"(c), "r"(bar), "l"(policy)
                 : "memory");
}
/* That into every CTA of the cluster whose bit is set in `ctas`: at the same offsets of its shared memory,
 * completing on its own barrier. */
ATTN_DEV void tma_3d_multicast_by(uint64_t policy, uint32_t dst, const void *map, int a, int b, int c,
                                  uint32_t bar, uint16_t ctas) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2,%3,%4}], [%5], %6, %7;" ::"r"(dst),
                 "l"(map), "r"(a), "r"(b), "r"(c), "r"(bar), "h"(ctas), "l"(policy)
                 : "memory");
}
ATTN_DEV void tma_4d(uint32_t dst, const void *map, int a, int b, int c, int d, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2,%3,%4,%5}], [%6];" ::"r"(dst),
                 "l"(map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(bar)
                 : "memory");
}
ATTN_DEV void tma_5d(uint32_t dst, const void *map, int a, int b, int c, int d, int e, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2,%3,%4,%5,%6}], [%7];" ::"r"(dst),
                 "l"(map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(bar)
                 : "memory");
}
ATTN_DEV void tma_prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

ATTN_DEV void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
ATTN_DEV void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* The same for warps that come to it at different places in the code. bar.sync, which is
 * barrier.sync.aligned, needs the same instruction in a warp only, but compute-sanitizer's synccheck wants it
 * of all that meet. */
ATTN_DEV void named_barrier_apart(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives without waiting; somebody else waits by named_barrier. */
ATTN_DEV void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int R>
ATTN_DEV void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
}
template <int R>
ATTN_DEV void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
}

ATTN_DEV void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
ATTN_DEV void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
ATTN_DEV void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Nothing that touches these registers moves across this point: they belong to a wgmma in flight until the
 * wait. */
template <int N>
ATTN_DEV void wgmma_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Matrix descriptor: start address, leading and stride byte offsets in units of 16 bytes, and the swizzle of
 * lines of 128, 64 or 32 bytes. */
ATTN_DEV uint64_t wgmma_desc(uint32_t addr, int leading, int stride, int line = 128) {
    const uint64_t swizzle = line == 128 ? 1 : line == 64 ? 2 : 3;
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | swizzle << 62;
}

ATTN_DEV void stmatrix_x4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}
ATTN_DEV void stmatrix_x2(uint32_t addr, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(addr), "r"(a), "r"(b)
                 : "memory");
}

} /* namespace attn_cuda */
#endif
