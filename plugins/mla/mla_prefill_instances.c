/* SPDX-License-Identifier: Apache-2.0 */
/* The attention kernels of plugins/flash that MLA prefill uses, in place of flash_instances.c, which names them all. */
#include "../flash/flash_launch.h"
#include "../flash/prefill_sm90_launch.h"

#define PREFILL80(NAME) int NAME(const flash_params *, const flash_prefill_config *, int, void *);
#define PREFILL90(NAME) int NAME(const flash_sm90_params *, int, int, int, void *);
PREFILL80(flash_prefill_sm80_f16_d192v128)
PREFILL80(flash_prefill_sm80_f16_d256)
PREFILL80(flash_prefill_sm80_bf16_d192v128)
PREFILL80(flash_prefill_sm80_bf16_d256)
PREFILL90(flash_prefill_sm90_f16_d192v128)
PREFILL90(flash_prefill_sm90_f16_d256)
PREFILL90(flash_prefill_sm90_bf16_d192v128)
PREFILL90(flash_prefill_sm90_bf16_d256)

/* 0: 192 and 128, 1: 256 and 256, -1: not linked. */
static int size_of(const flash_class *c) {
    return c->dk == 192 && c->dv == 128 ? 0 : c->dk == 256 && c->dv == 256 ? 1 : -1;
}

flash_prefill_func_t flash_prefill_sm80_instance(int kv_dtype, int class_index) {
    static const flash_prefill_func_t table[2][2] = {
        {flash_prefill_sm80_f16_d192v128, flash_prefill_sm80_f16_d256},
        {flash_prefill_sm80_bf16_d192v128, flash_prefill_sm80_bf16_d256}};
    int size = size_of(&flash_decode_classes[class_index]);
    return size < 0 || kv_dtype > FLASH_BF16 ? 0 : table[kv_dtype - FLASH_F16][size];
}

flash_prefill_sm90_func_t flash_prefill_sm90_instance(int dtype, int class_index) {
    static const flash_prefill_sm90_func_t table[2][2] = {
        {flash_prefill_sm90_f16_d192v128, flash_prefill_sm90_f16_d256},
        {flash_prefill_sm90_bf16_d192v128, flash_prefill_sm90_bf16_d256}};
    int size = size_of(&flash_sm90_classes[class_index].dim);
    return size < 0 || dtype > FLASH_BF16 ? 0 : table[dtype - FLASH_F16][size];
}
