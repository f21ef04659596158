/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, f16, head size 192 (V: 192): 2 warpgroups, blocks of 96 keys, 1 Q buffer(s). */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_f16_d192, DT_F16, 192, 192, 2, 96, 1, 96)
