/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a f16 cache, head sizes up to 64 (V: 64). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_f16_d64, DT_F16, 64, 64)
