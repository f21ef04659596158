/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of kernels: pure functions (shape, device) -> configuration, free of CUDA and of the plugin ABI. */
#ifndef FLASH_CONFIG_H
#define FLASH_CONFIG_H

#include "dense_instances.h"
#include "dense_tiles.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct flash_device {
    int32_t major, minor; /* compute capability */
    int32_t num_sms;
    int32_t smem_optin; /* shared memory that one CTA may use */
    int32_t smem_per_sm;
} flash_device;

typedef struct flash_shape {
    int32_t q_dtype, kv_dtype; /* enum flash_dtype; an e4m3 q comes with e4m3 keys */
    int32_t num_q_heads, num_kv_heads;
    int32_t head_size, head_size_v;
    int32_t page_size;         /* 0: contiguous keys */
    int32_t has_features;      /* soft cap or ALiBi */
    int32_t max_decode_tokens; /* query tokens per request that the decode kernel serves */
    int32_t force_sm80;
    int32_t window; /* keys that a token sees at most, its own included; 0: no bound */
} flash_shape;

typedef struct flash_decode_config {
    int32_t class_index; /* row of the instance table, -1: no kernel */
    int32_t row_tiles;   /* query rows per CTA / 8 */
    int32_t warps;
    int32_t ctas_per_sm;
    int32_t smem_bytes;
    int32_t cluster; /* CTAs of neighbouring pieces that merge through shared memory; 0 and 1: none do */
} flash_decode_config;

enum flash_prefill_kind {
    FLASH_PREFILL_SM80 = 1,
    FLASH_PREFILL_SM90 = 2,
    FLASH_PREFILL_SM90_E4M3 = 3, /* an e4m3 cache; class_index says under which queries */
    FLASH_PREFILL_RESIDENT = 4   /* keys of short requests whole in shared memory (resident_sm90.cuh) */
};

typedef struct flash_prefill_config {
    int32_t kind; /* enum flash_prefill_kind, 0: no kernel */
    int32_t class_index;
    int32_t block_rows;  /* query tokens of a tile; packed rows (token * group + head) when packed */
    int32_t tile_heads;  /* query heads of a tile, whose rows are the tokens of one after those of another */
    int32_t band_tokens; /* > 0: of a warpgroup, whose rows are so too; the next one has those behind them */
    int32_t all_heads;   /* run side by side: tiles of few tokens, as good as decode, which does so */
    int32_t packed;
    int32_t smem_bytes;
    int32_t block_keys, keys; /* resident: keys of a block, and of all blocks of the longest request */
} flash_prefill_config;

/* Head-size classes: a head size runs in the smallest class that holds it, padded with zeros. */
typedef struct flash_class {
    int16_t dk, dv;
} flash_class;
typedef struct flash_sm90_class {
    flash_class dim;
    int16_t warpgroups; /* of 64 query rows */
    int16_t block_keys, q_buffers;
    int16_t feature_keys; /* block_keys of the kernels with soft cap and ALiBi */
} flash_sm90_class;

/* The rows of dense_instances.h, by index and, for the instances, by name. */
#define FLASH_INDEX(NAME, ...)            FLASH_CLASS_##NAME,
#define FLASH_SM90_INDEX(NAME, ...)       FLASH_SM90_CLASS_##NAME,
#define FLASH_E4M3_INDEX(KIND, NAME, ...) FLASH_E4M3_CLASS_##KIND##_##NAME,
#define FLASH_RESIDENT_INDEX(NAME, ...)   FLASH_RESIDENT_CLASS_##NAME,
enum { DENSE_SM80_CLASSES(FLASH_INDEX, ) FLASH_NUM_CLASSES };
enum { DENSE_SM90_CLASSES(FLASH_SM90_INDEX, ) FLASH_NUM_SM90_CLASSES };
enum { DENSE_SM90_E4M3_CLASSES(FLASH_E4M3_INDEX, ) FLASH_NUM_E4M3_CLASSES };
enum { DENSE_RESIDENT_CLASSES(FLASH_RESIDENT_INDEX, ) FLASH_NUM_RESIDENT_CLASSES };
extern const flash_class flash_classes[FLASH_NUM_CLASSES];
extern const flash_sm90_class flash_sm90_classes[FLASH_NUM_SM90_CLASSES];
extern const flash_sm90_class flash_e4m3_classes[FLASH_NUM_E4M3_CLASSES];
extern const int16_t flash_resident_classes[FLASH_NUM_RESIDENT_CLASSES]; /* head sizes */
#ifdef __cplusplus
#define FLASH_NAMED(NAME, DK, DV, ...) constexpr flash_class flash_class_##NAME = {DK, DV};
#define FLASH_SM90_NAMED(NAME, DK, DV, WG, BK, QB, FK, ...)                                                  \
    constexpr flash_sm90_class flash_sm90_class_##NAME = {{DK, DV}, WG, BK, QB, FK};
#define FLASH_E4M3_NAMED(KIND, NAME, DK, DV, WG, BK, QB, FK, ...)                                            \
    constexpr flash_sm90_class flash_e4m3_class_##KIND##_##NAME = {{DK, DV}, WG, BK, QB, FK};
#define FLASH_RESIDENT_NAMED(NAME, D, ...) constexpr int flash_resident_class_##NAME = D;
DENSE_SM80_CLASSES(FLASH_NAMED, )
DENSE_SM90_CLASSES(FLASH_SM90_NAMED, )
DENSE_SM90_E4M3_CLASSES(FLASH_E4M3_NAMED, )
DENSE_RESIDENT_CLASSES(FLASH_RESIDENT_NAMED, )
#endif

/* Of a decode CTA of a class where requests have at most so many query rows (tokens * group). */
int flash_row_tiles_for(const flash_class *dim, int rows);
/* 0 on success, -1 when the shape or the device has no kernel. */
int flash_choose_decode(const flash_shape *shape, const flash_device *device, flash_decode_config *config);
/* CTAs of config->row_tiles in a mode, enum flash_decode_mode, whose warps shared memory holds. */
void flash_resize_decode(const flash_shape *shape, const flash_device *device, int mode,
                         flash_decode_config *config);
int flash_choose_prefill(const flash_shape *shape, const flash_device *device, flash_prefill_config *config);
/* The same kernel with as many heads of a group in a tile as have room in it where requests have at most
 * `tokens` query tokens, so that fewer tiles read the same keys. -1: not with several heads. */
int flash_pack_prefill(const flash_shape *shape, const flash_prefill_config *prefill, int32_t tokens,
                       flash_prefill_config *packed);
/* The kernel of short encoders, for flash_plan_resident to complete. -1: this shape has none. */
int flash_choose_resident(const flash_shape *shape, const flash_device *device, flash_prefill_config *config);
/* The row of flash_classes that a head size runs in, -1: none. */
int flash_class_of(int dk, int dv);

#ifdef __cplusplus
}
#endif
#endif
