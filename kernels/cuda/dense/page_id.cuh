/* SPDX-License-Identifier: Apache-2.0 */
/* page_id.cuh: an entry of a block table as a page that exists. A bad one gives its request wrong numbers,
 * and no wild address; the copies of prefill_sm90 need no such care, since their tensor maps end with the
 * cache. */
#ifndef ATTN_KERNELS_DENSE_PAGE_ID_CUH
#define ATTN_KERNELS_DENSE_PAGE_ID_CUH

#include "flash_rows.cuh"

namespace attn_cuda {

ATTN_DEV int page_id(const flash_params &p, int entry) {
    return max(min(entry, (int)p.num_pages - 1), 0);
}

} /* namespace attn_cuda */
#endif
