/* SPDX-License-Identifier: Apache-2.0 */
/* TRITON_MLA: from a problem and an architecture to the constants that its kernels are compiled with; a pure
 * function, as triton_config.h is for TRITON_ATTN. */
#ifndef LATENT_CONFIG_H
#define LATENT_CONFIG_H

#include "triton_compile.h"

typedef struct latent_config {
    int cc;
    int is_virtual; /* as PTX, which later architectures run: option arch */
    int type;       /* TRITON_F16 or TRITON_BF16 */
    int is_e4m3;    /* the cache */
    int latent, rope, page;
    int rows, keys; /* of a tile */
    int ctas;       /* of a multiprocessor at once */
    int smem;       /* bytes of a CTA */
} latent_config;

enum { LATENT_THREADS = 256, LATENT_PROGRAM_ATTEND = 0, LATENT_PROGRAM_ROWS = 1 };

/* Zero on success; -1: no tile fits the shared memory of that architecture. The problem was checked
 * before, page: tokens. */
int latent_configure(const attn_problem_t *problem, int page, int cc, latent_config *config);
/* Both programs. */
int latent_make_code(const latent_config *config, const triton_toolchain_t *tools, triton_code_t *code,
                     attn_error_t *error);

#endif
