/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a bf16 cache, head sizes up to 192 (V: 128). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_bf16_d192v128, DT_BF16, 192, 128)
