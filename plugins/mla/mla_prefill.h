/* SPDX-License-Identifier: Apache-2.0 */
/* The multi-head form of prefill within an instance: keys and values of 192 and 128 columns (or 256 and 256)
 * projected up from gathered latents, attended by the dense kernels. The sparse backend has none. */
#ifndef MLA_PREFILL_H
#define MLA_PREFILL_H

#include "kernels/cuda/dense/flash_config.h"
#include "kernels/cuda/dense/flash_launch.h"
#include "../common/latent/mla_instance.h"
#include "mla_prefill_plan.h"

typedef struct mla_prefill {
    const attn_plan_table_t *table; /* the host's */
    mla_prefill_sizes sizes;
    mla_prefill_limits limits;
    mla_prefill_scratch scratch;
    flash_shape shape;
    flash_prefill_config config;
    flash_runtime runtime;
    int row_elements;                 /* of the projected keys and values of a token and head */
    int merges_inside;                /* the attention kernel merges with the passes before */
    size_t kv_at, part_at, lse_at[3]; /* in the workspace; gathered latents at 0 */
    size_t ticket_at;                 /* one int */
} mla_prefill;

/* What the plan of a batch leaves for forward, in the host buffer behind the launches. */
typedef struct mla_prefill_plan {
    int32_t first_request, first_token, num_reqs, num_tokens; /* of the multi-head form */
    int32_t num_passes, reserved;
    mla_pass passes[MLA_MAX_PASSES];
} mla_prefill_plan;

/* For plugin.c, and the part of it in mla_prefill_forward.c. */
extern const mla_prefill_ops mla_prefill_functions;
int mla_prefill_forward(const attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space,
                        const struct mla_prefill_plan *plan, void *stream);

#endif
