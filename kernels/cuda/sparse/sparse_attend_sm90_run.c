/* SPDX-License-Identifier: Apache-2.0 */
/* Which Hopper kernel of sparse attention serves a cache and a dtype. */
#include "sparse_attend_sm90.h"

int sparse_attend_sm90(const mla_attend_params *params, int num_items, int ctas, void *stream) {
    static int (*const kernels[2][2])(const mla_attend_params *, int, int,
                                      void *) = {{sparse_attend_sm90_f16, sparse_attend_sm90_bf16},
                                                 {sparse_attend_sm90_ds_f16, sparse_attend_sm90_ds_bf16}};
    return kernels[params->cache_kind == MLA_CACHE_DS][params->dtype == MLA_BF16](params, num_items, ctas,
                                                                                  stream);
}
