/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, f16, head size 256 (V: 256): 2 warpgroups, blocks of 80 keys, 1 Q buffer(s). */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_f16_d256, DT_F16, 256, 256, 2, 80, 1, 80)
