/* SPDX-License-Identifier: Apache-2.0 */
/* What an instance of a backend over the dense kernels holds, and how a metadata buffer is laid out. Between
 * the ABI and the kernels; shared by the plugins flash and mm_encoder, which hand over a flash_backend. */
#ifndef FLASH_INSTANCE_H
#define FLASH_INSTANCE_H

#include "../gpu_metadata.h"
#include "../gpu_device.h"
#include "../gpu_output.h"
#include "kernels/cuda/dense/flash_config.h"
#include "kernels/cuda/dense/flash_launch.h"
#include "kernels/cuda/dense/flash_plan.h"
#include "kernels/cuda/dense/read_lengths.h"

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

enum { FLASH_MAX_GROUP_ROWS = 64 }; /* query rows (tokens * group) up to which a request counts as decode */

/* What a plugin hands to the code that both share. */
typedef struct flash_backend {
    const char *name;
    const attn_capabilities_t *capabilities; /* that a problem is checked against */
    const flash_kernels *kernels; /* without kernels that decode every request is tiles of prefill */
    int (*quantise)(const quantise_params *p, void *stream); /* NULL: no quantised outputs */
} flash_backend;

struct attn_instance {
    const flash_backend *backend;
    attn_problem_t problem;
    uint64_t features;
    int device_id;
    int q_dtype, kv_dtype, out_dtype; /* enum flash_dtype */
    int kv_heads, group, d, dv;
    int has_cache, is_separate, page_size;
    int num_splits; /* 0: the planner chooses */
    flash_shape shape;
    flash_device device;
    flash_runtime runtime;
    /* [row_tiles - 1][enum flash_decode_mode] */
    flash_decode_config decode[DECODE_SM80_MOST_ROW_TILES][FLASH_MODES];
    flash_prefill_config prefill;
    flash_prefill_config resident; /* kind 0: short requests are tiles of `prefill` too */
    flash_plan_input plan_input;   /* everything but the batch */
    flash_plan_limits limits;
    gpu_metadata metadata;
    /* byte offsets in metadata and in its host mirror, after flash_counts at 0 */
    size_t q_start_at, items_at, tickets_at, tiles_at;
    size_t k_start_at; /* first rows of contiguous keys: q_start_at, but with lengths of their own */
    size_t draws_at;   /* one int, behind the tickets: prefill tiles that were drawn; 0 between launches */
    size_t prefix_counts_at, prefix_tiles_at;
    int32_t max_prefix_tiles; /* 0: no cascade */
    size_t part_lse_at;       /* part_out at 0 */
    /* quantised outputs: flash_step in the metadata, and the 16-bit output in the workspace */
    size_t step_at, output_at;
    /* what is merged, in the workspace: results of a cascade's passes or of pieces of tiles, and their LSE */
    size_t part_rows_at, part_rows_lse_at;
    int max_decode_tokens;
    int32_t ticket_stride;
    int32_t *causal; /* scratch of build_metadata, as those below */
    flash_plan_request *requests;
    flash_plan_tile *tile_keys;
    cut_request *cut_requests;
};

/* The tokens of the step, as a replay finds them on the device. */
typedef struct flash_step {
    const int32_t *starts; /* lengths on the device (semantics 1.6), [num_reqs + 1]; NULL: num_tokens */
    int32_t num_tokens, num_reqs;
} flash_step;

/* Head of the host buffer; the mirror of the metadata follows at FLASH_MIRROR_AT. Forward reads nothing
 * else. */
typedef struct flash_host_header {
    gpu_header head;
    int32_t grid_items, grid_tiles; /* launch sizes; the real counts are on the device */
    int32_t listed_items;           /* of grid_items, those that are there for certain */
    int32_t max_decode_tokens;
    int32_t row_tiles, mode; /* which decode configuration */
    int32_t cluster;         /* of the decode kernel */
    int32_t keys_per_tile;
    int32_t beside;             /* SMs of prefill, while decode runs on the others; 0: one after the other */
    int32_t num_key_rows;       /* of contiguous keys */
    int32_t first_key;          /* the common prefix, 0 without a cascade */
    flash_prefill_config tiles; /* that this batch has */
    flash_prefix_plan prefix;
    flash_cut cut;
    int32_t num_spans, longest_span; /* with cut: requests that are merged, rows of the longest */
    /* lengths on the device (semantics 1.6), which the lists bound; else NULL */
    const int32_t *device_starts, *device_lens;
} flash_host_header;
#define FLASH_MAGIC     UINT64_C(0x3168736c66747461)
#define FLASH_MIRROR_AT 192
_Static_assert(sizeof(flash_host_header) <= FLASH_MIRROR_AT, "the header lies before the mirror");

enum { FLASH_OPTION_ARCH, FLASH_OPTION_NUM_SPLITS, FLASH_NUM_OPTIONS };

/* The kernel of an instance that decodes, NULL if it has none. */
static inline flash_decode_func_t flash_decode_of(const attn_instance_t *in) {
    return in->backend->kernels->decode[in->kv_dtype - FLASH_F16][in->decode[0][0].class_index];
}
/* What the planner has to know of the decode configurations. */
void flash_set_modes(const attn_instance_t *in, int row_tiles, flash_plan_input *input);
/* Of its decode kernel where the requests have at most so many query tokens. */
int flash_row_tiles_of(const attn_instance_t *in, int tokens);
int flash_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);
/* open of the ABI, of a backend that outlives the instance. */
int flash_open(const flash_backend *backend, const attn_problem_t *problem, const attn_device_t *device,
               const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
               attn_instance_t **instance, attn_error_t *error);
void flash_close(attn_instance_t *instance);
/* gpu_metadata's copy. */
int flash_copy(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
               attn_error_t *error);
int flash_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                         attn_error_t *error);
int flash_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error);
int flash_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                         void *stream, attn_error_t *error);
int flash_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                             void *stream, attn_error_t *error);
int flash_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream,
                          attn_error_t *error);
int flash_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                  attn_error_t *error);

/* Quantised outputs (semantics 7.7), flash_output.c: attention writes 16 bits into the workspace, whose rows
 * finish quantises. A cudaError_t as int. */
int flash_check_output_rows(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                            attn_error_t *error);
int flash_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                       attn_error_t *error);
const DLTensor *flash_output_begin(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                                   gpu_output_view *view);
int flash_output_finish(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                        int64_t tokens, void *stream);
/* The profiling run (semantics 7.10). */
int flash_output_zero(const attn_instance_t *in, const DLTensor *output, void *stream);

/* The cache of a call, checked. */
int flash_view_cache(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                     gpu_cache_view *view, attn_error_t *error);

#endif
