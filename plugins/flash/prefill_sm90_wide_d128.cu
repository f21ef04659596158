/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper prefill of 16-bit queries over an e4m3 cache, head sizes up to 128: 2 warpgroups, blocks of 128 keys. */
#include "prefill_sm90.cuh"
FLASH_PREFILL_WIDE_SM90_INSTANCE(flash_prefill_wide_d128, 128, 128, 2, 128, 2)
