/* SPDX-License-Identifier: Apache-2.0 */
/* Portable prefill with bf16 keys and values, head sizes up to 256 (V: 256). */
#include "prefill_sm80.cuh"
FLASH_PREFILL_SM80_INSTANCE(flash_prefill_sm80_bf16_d256, DT_BF16, DT_BF16, 256, 256)
