/* SPDX-License-Identifier: Apache-2.0 */
/* Decode from a e4m3 cache, head sizes up to 192 (V: 192). */
#include "decode_sm80.cuh"
FLASH_DECODE_INSTANCE(flash_decode_e4m3_d192, DT_E4M3, 192, 192)
