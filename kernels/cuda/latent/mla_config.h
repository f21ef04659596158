/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel attends: a pure function of the problem and the device. */
#ifndef MLA_CONFIG_H
#define MLA_CONFIG_H

#include "mla_params.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mla_kernel {
    MLA_KERNEL_PORTABLE = 0,
    MLA_KERNEL_SM90 = 1,
    MLA_KERNEL_SPARSE_SM90 = 2 /* of plugins/mla_sparse */
} mla_kernel;

typedef struct mla_config_input {
    int compute_capability; /* 90: Hopper */
    int num_sms;
    int clusters; /* of two CTAs that the device runs at once */
    int heads, latent, value, cache_kind, is_sparse;
    double scale;
    int portable; /* the option: never a kernel of one architecture */
} mla_config_input;

typedef struct mla_config {
    mla_kernel kernel;
    int ctas;      /* of a tile: 2 where a token has more than 64 rows */
    int tile_rows; /* ctas * MLA_TILE_ROWS */
    int parts;     /* of a persistent launch, 0 elsewhere */
    /* absorptions of so many rows at most: our kernel even where there is cuBLAS, because the kernel that
     * attends starts beside it */
    int own_rows;
    int slots; /* tiles that run at once */
} mla_config;

mla_config mla_config_choose(const mla_config_input *in);
/* Bytes of mla_attend_params.lists, 0: there are none. */
static inline size_t mla_packed_bytes(const mla_config *c, int32_t topk) {
    if (c->kernel != MLA_KERNEL_SPARSE_SM90 || topk > MLA_PACKED_LIST) return 0;
    return (size_t)c->parts * (size_t)c->ctas * (size_t)topk * sizeof(int32_t);
}

#ifdef __cplusplus
}
#endif
#endif
