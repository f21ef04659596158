/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of kernel instances: [cache type][head-size class], in the order of flash_decode_classes. */
#include "flash_launch.h"
#include "prefill_sm90_launch.h"

#define DECLARE_CLASSES(RETURN_ARGS, PREFIX)                                                                 \
    RETURN_ARGS(PREFIX##_d64)                                                                                \
    RETURN_ARGS(PREFIX##_d96)                                                                                \
    RETURN_ARGS(PREFIX##_d128)                                                                               \
    RETURN_ARGS(PREFIX##_d192v128) RETURN_ARGS(PREFIX##_d192) RETURN_ARGS(PREFIX##_d256)
#define DECODE(NAME)  int NAME(const flash_params *, const flash_decode_config *, int, void *);
#define PREFILL(NAME) int NAME(const flash_params *, const flash_prefill_config *, int, void *);
#define ROW(PREFIX)                                                                                          \
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
    if (kv_dtype < FLASH_F16 || kv_dtype > FLASH_E4M3 || class_index < 0 || class_index >= 6) return 0;
    return table[kv_dtype - FLASH_F16][class_index];
}

/* With 16-bit keys the query has their type; an e4m3 cache serves both, the kernel converts Q. */
flash_prefill_func_t flash_prefill_sm80_instance(int kv_dtype, int class_index) {
    static const flash_prefill_func_t table[3][6] = {
        ROW(flash_prefill_sm80_f16), ROW(flash_prefill_sm80_bf16), ROW(flash_prefill_sm80_e4m3)};
    if (kv_dtype < FLASH_F16 || kv_dtype > FLASH_E4M3 || class_index < 0 || class_index >= 6) return 0;
    return table[kv_dtype - FLASH_F16][class_index];
}

#define PREFILL90(NAME) int NAME(const flash_sm90_params *, int, int, int, void *);
#define CLASSES90(M, P)                                                                                      \
    M(P##_d64) M(P##_d72) M(P##_d80) M(P##_d96) M(P##_d128) M(P##_d192v128) M(P##_d192) M(P##_d256)
#define ROW90(P)                                                                                             \
    { P##_d64, P##_d72, P##_d80, P##_d96, P##_d128, P##_d192v128, P##_d192, P##_d256 }

CLASSES90(PREFILL90, flash_prefill_sm90_f16)
CLASSES90(PREFILL90, flash_prefill_sm90_bf16)

PREFILL90(flash_prefill_e4m3_d128)
PREFILL90(flash_prefill_wide_d128)

flash_prefill_sm90_func_t flash_prefill_sm90_instance(int dtype, int class_index) {
    static const flash_prefill_sm90_func_t table[2][8] = {ROW90(flash_prefill_sm90_f16),
                                                          ROW90(flash_prefill_sm90_bf16)};
    if (dtype == FLASH_E4M3)
        return class_index == 0 ? flash_prefill_e4m3_d128 : class_index == 1 ? flash_prefill_wide_d128 : 0;
    if (dtype < FLASH_F16 || dtype > FLASH_BF16 || class_index < 0 || class_index >= 8) return 0;
    return table[dtype - FLASH_F16][class_index];
}
