/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, bf16, head size 128 (V: 128): 2 warpgroups, blocks of 128 keys, 2 Q buffer(s). */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_bf16_d128, DT_BF16, 128, 128, 2, 128, 2, 128)
