/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the flash kernels. Each returns a cudaError_t as int. With params == NULL a launcher only
 * prepares its kernel (shared memory limit, code loading), which must happen before any stream capture. */
#ifndef FLASH_LAUNCH_H
#define FLASH_LAUNCH_H

#include "flash_config.h"
#include "flash_params.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int (*flash_decode_func_t)(const flash_params *, const flash_decode_config *, int num_items,
                                   void *stream);
typedef int (*flash_prefill_func_t)(const flash_params *, const flash_prefill_config *, int num_tiles,
                                    void *stream);

struct flash_sm90_params;
typedef int (*flash_prefill_sm90_func_t)(const struct flash_sm90_params *, int feature, int ctas,
                                         void *stream);

/* The instances that a plugin carries, NULL where it has none; flash_kernels.h fills such a table in. With
 * 16-bit keys the query has their type; the portable kernels convert it under an e4m3 cache, Hopper's have
 * instances for both. */
typedef struct flash_kernels {
    flash_decode_func_t decode[FLASH_NUM_DTYPES][FLASH_NUM_CLASSES]; /* [type of keys - FLASH_F16] */
    flash_prefill_func_t prefill_sm80[FLASH_NUM_DTYPES][FLASH_NUM_CLASSES];
    flash_prefill_sm90_func_t prefill_sm90[2][FLASH_NUM_SM90_CLASSES][2]; /* [type][class][keys are paged] */
    flash_prefill_sm90_func_t prefill_e4m3[FLASH_NUM_E4M3_CLASSES];
    flash_prefill_sm90_func_t resident[2][FLASH_NUM_RESIDENT_CLASSES]; /* for ctas: tiles */
} flash_kernels;
extern const flash_kernels flash_all_kernels; /* flash_all_kernels.c */

/* What a launch needs beyond its parameters; made once per instance. */
typedef struct flash_runtime {
    const flash_kernels *kernels;
    int32_t num_sms;
    void *encode_tiled; /* cuTensorMapEncodeTiled, NULL below sm_90 */
} flash_runtime;

/* Error numbers of our own, beside cudaError_t: a tensor that TMA cannot address. */
enum { FLASH_E_MAP_Q = -1, FLASH_E_MAP_K = -2, FLASH_E_MAP_V = -3 };

int flash_runtime_init(flash_runtime *runtime, const flash_kernels *kernels, int num_sms,
                       int needs_tensor_maps);
/* What the Hopper kernels do beyond their parameters. All zero: nothing of it. ticket: 0 before and after a
 * launch, CTAs draw their tiles from it; without it tiles are dealt out beforehand. old_lse, only with head
 * sizes 192 and 128 (flash_has_more): the natural LSE of an earlier result that lies in params->out, one
 * token after the other; both are merged. It may be params->lse. */
typedef struct flash_prefill_more {
    int32_t *ticket;
    const float *old_lse;
    int64_t old_lse_head;
    int32_t ctas; /* > 0: at most so many, and the launch behind it may begin at once, on the other SMs */
} flash_prefill_more;

int flash_has_more(const flash_prefill_config *config);
int flash_run_prefill_more(const flash_params *params, const flash_prefill_more *more,
                           const flash_shape *shape, const flash_prefill_config *config, int num_tiles,
                           const flash_runtime *runtime, void *stream);
/* The prefill kernel that `config` names. params NULL: prepare only. */
int flash_run_prefill(const flash_params *params, const flash_shape *shape,
                      const flash_prefill_config *config, int num_tiles, const flash_runtime *runtime,
                      void *stream);
/* out [rows, heads, head_size] of 16-bit elements, strides in elements; NULL: prepare only. */
int flash_zero_rows(void *out, int64_t rows, int heads, int head_size, int64_t token, int64_t head,
                    void *stream);
int flash_merge(const flash_merge_params *params, void *stream);
int flash_write_cache(const flash_write_params *params, void *stream);

#ifdef __cplusplus
}
#endif
#endif
