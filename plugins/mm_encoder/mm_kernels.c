/* SPDX-License-Identifier: Apache-2.0 */
/* mm_kernels.c: the kernels of plugins/flash that encoders need, in place of flash_instances.c, which names them all: prefill of
 * 16-bit keys with equal head sizes. Nothing decodes here (mm_open.c), so no decode kernel is linked. */
#include "mm_instance.h"

#include "flash/prefill_sm90_launch.h"

#include <cuda_runtime_api.h>

#define PREFILL80(NAME) int NAME(const flash_params *, const flash_prefill_config *, int, void *);
#define PREFILL90(NAME) int NAME(const flash_sm90_params *, int, int, int, void *);
#define SIZES80(M, P)   M(P##_d64) M(P##_d96) M(P##_d128) M(P##_d192) M(P##_d256)
#define SIZES90(M, P)   M(P##_d64) M(P##_d72) M(P##_d80) M(P##_d96) M(P##_d128) M(P##_d192) M(P##_d256)
SIZES80(PREFILL80, flash_prefill_sm80_f16)
SIZES80(PREFILL80, flash_prefill_sm80_bf16)
SIZES90(PREFILL90, flash_prefill_sm90_f16)
SIZES90(PREFILL90, flash_prefill_sm90_bf16)

/* In the order of flash_decode_classes and flash_sm90_classes; 192/128 is not among an encoder's sizes. */
#define ROW80(P)                                                                                             \
    { P##_d64, P##_d96, P##_d128, NULL, P##_d192, P##_d256 }
#define ROW90(P)                                                                                             \
    { P##_d64, P##_d72, P##_d80, P##_d96, P##_d128, NULL, P##_d192, P##_d256 }

flash_prefill_func_t flash_prefill_sm80_instance(int kv_dtype, int class_index) {
    static const flash_prefill_func_t table[2][6] = {ROW80(flash_prefill_sm80_f16),
                                                     ROW80(flash_prefill_sm80_bf16)};
    return table[kv_dtype - FLASH_F16][class_index];
}

flash_prefill_sm90_func_t flash_prefill_sm90_instance(int dtype, int class_index) {
    static const flash_prefill_sm90_func_t table[2][8] = {ROW90(flash_prefill_sm90_f16),
                                                          ROW90(flash_prefill_sm90_bf16)};
    return table[dtype - FLASH_F16][class_index];
}

/* flash_open loads every kernel it may launch; here that is none. */
static int nothing_decodes(const flash_params *params, const flash_decode_config *config, int num_items,
                           void *stream) {
    (void)config, (void)num_items, (void)stream;
    return params == NULL ? (int)cudaSuccess : (int)cudaErrorInvalidDeviceFunction;
}

flash_decode_func_t flash_decode_instance(int kv_dtype, int class_index) {
    (void)kv_dtype, (void)class_index;
    return nothing_decodes;
}
