/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a e4m3 cache, head sizes up to 64 (V: 64). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_e4m3_d64, DT_E4M3, 64, 64)
