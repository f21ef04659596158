/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, bf16, head size 72 (V: 72): 3 warpgroups, blocks of 96 keys. */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_bf16_d72, DT_BF16, 72, 72, 3, 96, 2, 96)
