/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, f16, head size 96 (V: 96): 3 warpgroups, blocks of 112 keys (80 with features), 2 Q buffer(s). */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_f16_d96, DT_F16, 96, 96, 3, 112, 2, 80)
