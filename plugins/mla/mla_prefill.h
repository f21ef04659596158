/* SPDX-License-Identifier: Apache-2.0 */
/* The multi-head form of prefill within an instance: keys and values of 192 and 128 columns (or 256 and 256) projected up
 * from gathered latents, attended by the kernels of plugins/flash. The sparse backend has none. */
#ifndef MLA_PREFILL_H
#define MLA_PREFILL_H

#include "../flash/flash_config.h"
#include "../flash/flash_launch.h"
#include "mla_instance.h"
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
    int64_t max_rows;                 /* latents of a pass */
    size_t metadata_at;               /* the lists, behind those of the absorbed form */
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

/* Called through a table, so that a backend without this form does not contain its kernels. */
struct mla_prefill_ops {
    /* Sets in->prefill and raises the sizes of the buffers; leaves it NULL where the host, the device or the sizes lack
     * something: then every token goes the absorbed way. */
    int (*open)(attn_instance_t *in, const attn_host_t *host, const attn_device_t *device,
                attn_error_t *error);
    void (*close)(mla_prefill *prefill);
    /* Plans the requests from the border on. *used: bytes of lists at metadata_at of the mirror; 0 where all requests
     * go the absorbed way. */
    void (*build)(const attn_instance_t *in, const attn_batch_t *batch, mla_prefill_plan *plan, char *mirror,
                  size_t *used);
    /* Returns a cudaError_t, or one of FLASH_E_*. */
    int (*forward)(const attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space,
                   const mla_prefill_plan *plan, void *stream);
};

/* Functions of the two plugins' plugin.c and of mla_prefill_*.c. */
extern const mla_prefill_ops mla_prefill_functions;
int mla_prefill_forward(const attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space,
                        const mla_prefill_plan *plan, void *stream);

#endif
