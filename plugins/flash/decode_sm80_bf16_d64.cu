/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a bf16 cache, head sizes up to 64 (V: 64). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_bf16_d64, DT_BF16, 64, 64)
