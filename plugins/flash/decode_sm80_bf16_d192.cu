/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a bf16 cache, head sizes up to 192 (V: 192). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_bf16_d192, DT_BF16, 192, 192)
