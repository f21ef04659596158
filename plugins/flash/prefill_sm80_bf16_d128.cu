/* SPDX-License-Identifier: Apache-2.0 */
/* Portable prefill with bf16 keys and values, head sizes up to 128 (V: 128). */
#include "prefill_sm80.cuh"
FLASH_PREFILL_SM80_INSTANCE(flash_prefill_sm80_bf16_d128, DT_BF16, DT_BF16, 128, 128)
