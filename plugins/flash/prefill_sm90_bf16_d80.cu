/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, bf16, head size 80 (V: 80): 3 warpgroups, blocks of 96 keys (112 with features). */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_bf16_d80, DT_BF16, 80, 80, 3, 96, 2, 112)
