/* SPDX-License-Identifier: Apache-2.0 */
/* Every instance. */
#include "flash_kernels.h"

#define EVERY(type, dk, dv, paged) 1
const flash_kernels flash_all_kernels = FLASH_KERNELS(EVERY, EVERY);
