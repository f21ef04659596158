/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of kernel instances: [cache type][head-size class], in the order of flash_decode_classes. */
#include "flash_launch.h"

#define DECLARE_CLASSES(RETURN_ARGS, PREFIX)                                                                           \
    RETURN_ARGS(PREFIX##_d64) RETURN_ARGS(PREFIX##_d96) RETURN_ARGS(PREFIX##_d128) RETURN_ARGS(PREFIX##_d192v128)     \
    RETURN_ARGS(PREFIX##_d192) RETURN_ARGS(PREFIX##_d256)
#define DECODE(NAME) int NAME(const flash_params *, const flash_decode_config *, int, void *);
#define PREFILL(NAME) int NAME(const flash_params *, const flash_prefill_config *, int, void *);
#define ROW(PREFIX)                                                                                                    \
    { PREFIX##_d64, PREFIX##_d96, PREFIX##_d128, PREFIX##_d192v128, PREFIX##_d192, PREFIX##_d256 }

DECLARE_CLASSES(DECODE, flash_decode_f16)
DECLARE_CLASSES(DECODE, flash_decode_bf16)
DECLARE_CLASSES(DECODE, flash_decode_e4m3)
DECLARE_CLASSES(PREFILL, flash_prefill_sm80_f16)
DECLARE_CLASSES(PREFILL, flash_prefill_sm80_bf16)
DECLARE_CLASSES(PREFILL, flash_prefill_sm80_e4m3)

flash_decode_func_t flash_decode_instance(int kv_dtype, int class_index) {
    static const flash_decode_func_t table[3][6] = {ROW(flash_decode_f16), ROW(flash_decode_bf16),
                                                    ROW(flash_decode_e4m3)};
    if (kv_dtype < FLASH_F16 || kv_dtype > FLASH_E4M3 || class_index < 0 || class_index >= 6)
        return 0;
    return table[kv_dtype - FLASH_F16][class_index];
}

/* With 16-bit keys the query has their type; an e4m3 cache serves both, the kernel converts Q. */
flash_prefill_func_t flash_prefill_sm80_instance(int kv_dtype, int class_index) {
    static const flash_prefill_func_t table[3][6] = {ROW(flash_prefill_sm80_f16), ROW(flash_prefill_sm80_bf16),
                                                     ROW(flash_prefill_sm80_e4m3)};
    if (kv_dtype < FLASH_F16 || kv_dtype > FLASH_E4M3 || class_index < 0 || class_index >= 6)
        return 0;
    return table[kv_dtype - FLASH_F16][class_index];
}
