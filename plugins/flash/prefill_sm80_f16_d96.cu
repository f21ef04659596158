/* SPDX-License-Identifier: Apache-2.0 */
/* Portable prefill with f16 keys and values, head sizes up to 96 (V: 96). */
#include "prefill_sm80.cuh"
FLASH_PREFILL_SM80_INSTANCE(flash_prefill_sm80_f16_d96, DT_F16, DT_F16, 96, 96)
