/* SPDX-License-Identifier: Apache-2.0 */
/* Portable prefill with e4m3 keys and values, head sizes up to 192 (V: 192). */
#include "prefill_sm80.cuh"
FLASH_PREFILL_SM80_INSTANCE(flash_prefill_sm80_e4m3_d192, DT_F16, DT_E4M3, 192, 192)
