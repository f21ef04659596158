/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill, f16, head size 64 (V: 64): 3 warpgroups, blocks of 112 keys. */
#include "prefill_sm90.cuh"
FLASH_PREFILL_SM90_INSTANCE(flash_prefill_sm90_f16_d64, DT_F16, 64, 64, 3, 112, 2, 112)
