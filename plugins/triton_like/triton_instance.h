/* SPDX-License-Identifier: Apache-2.0 */
/* What an instance of TRITON_ATTN holds, and how a metadata buffer is laid out. Between the ABI and the
 * kernels. */
#ifndef TRITON_INSTANCE_H
#define TRITON_INSTANCE_H

#include "../common/batch_mask.h"
#include "../common/gpu_metadata.h"
#include "../common/problem_check.h"
#include "triton_compile.h"
#include "triton_config.h"
#include "triton_driver.h"
#include "triton_params.h"
#include "triton_plan.h"

#include <attn/draft/attn_rope_write.h>

struct attn_instance {
    attn_problem_t problem;
    uint64_t features;
    triton_config_t config, wide; /* wide: of decode_wide */
    triton_driver_t driver;
    void *modules[TRITON_MAX_PROGRAMS];
    void *prefill, *decode, *reduce, *write, *quantize; /* kernels */
    void *decode_wide;                                  /* for more rows than decode's; may be NULL */
    int kv_heads, has_cache, is_separate;
    uint32_t layout; /* of the cache, ATTN_LAYOUT_* */
    triton_plan_input_t plan_input;
    triton_plan_limits_t limits;
    gpu_metadata metadata;
    /* byte offsets in the metadata and in its host mirror, after triton_counts_t at 0 */
    size_t q_start_at, seq_lens_at, causal_at, prefix_at, spans_at, tickets_at, items_at, splits_at, tiles_at;
    size_t k_start_at;           /* first rows of keys with lengths of their own, else 0 */
    size_t part_lse_at, rows_at; /* part_out at 0; rows_at: the result before group scales */
    int max_spans;
    int32_t *tile_keys, *scratch;
    cut_request *cuts; /* scratch too */
};

/* Head of the host buffer; the mirror of the metadata follows at TRITON_MIRROR_AT. Forward reads nothing
 * else. */
typedef struct triton_host_header {
    gpu_header head;
    int32_t grid_items, grid_splits, grid_tiles; /* launch sizes; the real counts are on the device */
    int32_t decode_tokens;                       /* most query tokens of a request that decodes */
    int32_t is_wide;                             /* by decode_wide */
    int32_t num_key_rows;                        /* of contiguous keys */
    int32_t cut_rows;                            /* rows of a slot of tiles that are cut */
    /* lengths on the device (semantics 1.6), which the lists bound; else NULL */
    const int32_t *device_starts, *device_lens;
} triton_host_header_t;
#define TRITON_MAGIC     UINT64_C(0x306e747461746c74)
#define TRITON_MIRROR_AT 128
_Static_assert(sizeof(triton_host_header_t) <= TRITON_MIRROR_AT, "the header has room before the mirror");

extern const attn_capabilities_t triton_capabilities;

int triton_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);
/* The checks of open without the device: also for compiling ahead of time. */
int triton_check_problem(const attn_problem_t *p, const attn_device_t *device, attn_error_t *error);
int triton_open(const attn_problem_t *problem, const attn_device_t *device,
                const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                attn_instance_t **instance, attn_error_t *error);
void triton_close(attn_instance_t *instance);
/* gpu_metadata's copy, by the driver. */
int triton_copy(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
                attn_error_t *error);
int triton_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                          attn_error_t *error);
size_t triton_tickets_bytes(const attn_instance_t *in);
int triton_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error);
int triton_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error);
int triton_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error);
int triton_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                           attn_error_t *error);
int triton_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error);
const void *triton_get_extension(attn_instance_t *instance, const char *id);
extern const attn_rope_extension_t triton_rope_extension;
/* The members of a new instance that follow from the problem alone. */
void triton_set_problem(attn_instance_t *in, const attn_problem_t *problem);
/* Finds a kernel in the loaded modules and prepares it for `smem` bytes of dynamic shared memory. */
int triton_find_kernel(attn_instance_t *in, int program, const char *name, int smem, void **kernel,
                       attn_error_t *error);
/* Code into in->modules; the device's context is current. */
int triton_load_modules(attn_instance_t *in, const triton_code_t *code, attn_error_t *error);

/* The cache of a call, checked. */
int triton_view_cache(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                      gpu_cache_view *view, attn_error_t *error);
/* The v_scale of a call where V has scales of channels, checked; its strides in elements, 0 for one
 * number. */
int triton_view_channels(const attn_instance_t *in, const DLTensor *v_scale, int64_t *head, int64_t *channel,
                         attn_error_t *error);
/* The checks of update_kv_cache; *w: what the kernel is told; w->num_tokens may be 0. */
int triton_prepare_write(const attn_instance_t *in, const attn_kv_update_t *args, triton_write_params_t *w,
                         attn_error_t *error);

#endif
