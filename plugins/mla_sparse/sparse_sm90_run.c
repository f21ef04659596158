/* SPDX-License-Identifier: Apache-2.0 */
/* The Hopper kernels of sparse attention as mla_forward.c and mla_open.c call them. */
#include "../mla/mla_instance.h"
#include "sparse_sm90_launch.h"

static int attend(const attn_instance_t *in, const mla_attend_params *params, int num_items, void *stream) {
    static int (*const kernels[2][2])(const mla_attend_params *, int, int,
                                      void *) = {{sparse_attend_sm90_f16, sparse_attend_sm90_bf16},
                                                 {sparse_attend_sm90_ds_f16, sparse_attend_sm90_ds_bf16}};
    return kernels[in->cache_kind == MLA_CACHE_DS][in->dtype == MLA_BF16](params, num_items, in->num_sms,
                                                                          stream);
}

const mla_sparse_ops mla_sparse_functions = {.attend = attend};
