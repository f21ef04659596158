/* SPDX-License-Identifier: Apache-2.0 */
/* PTX wrappers of Hopper's copies from shared memory to tensors, and of waiting for those of a thread. */
#ifndef PTX_SM90_BULK_STORE_CUH
#define PTX_SM90_BULK_STORE_CUH

#include "ptx_sm80.cuh"

namespace attn_cuda {

ATTN_DEV void tma_store_3d(uint32_t src, const void *map, int a, int b, int c) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1,%2,%3}], [%4];" ::"l"(map),
                 "r"(a), "r"(b), "r"(c), "r"(src)
                 : "memory");
}
ATTN_DEV void bulk_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
ATTN_DEV void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
ATTN_DEV void bulk_store_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

} /* namespace attn_cuda */
#endif
