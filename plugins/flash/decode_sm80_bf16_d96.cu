/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a bf16 cache, head sizes up to 96 (V: 96). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_bf16_d96, DT_BF16, 96, 96)
