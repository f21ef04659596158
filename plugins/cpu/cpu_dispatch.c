/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the level: a pure function of CPU bits and a name, compiled with baseline flags. */
#include "cpu_kernels.h"

#include <string.h>

const struct cpu_kernels *const cpu_levels[] = {
#ifdef CPU_HAVE_X86_LEVELS
    &cpu_kernels_avx512bf16, &cpu_kernels_avx512,
    &cpu_kernels_avx2,
#endif
#ifdef CPU_HAVE_NEON_LEVEL
#ifdef CPU_HAVE_SVE256_LEVEL
    &cpu_kernels_sve256,
#endif
#ifdef CPU_HAVE_NEON_BF16_LEVEL
    &cpu_kernels_neonbf16,
#endif
    &cpu_kernels_neon,
#endif
    &cpu_kernels_generic,    NULL};

const struct cpu_kernels *cpu_choose_level(const char *name, uint32_t bits, uint32_t *missing) {
    *missing = 0;
    for (int i = 0; cpu_levels[i]; i++) {
        const uint32_t lacks = cpu_levels[i]->needs & ~bits;
        if (strcmp(name, "auto") == 0) {
            if (!lacks && !(cpu_levels[i]->wants & ~bits)) return cpu_levels[i];
        } else if (strcmp(name, cpu_levels[i]->name) == 0) {
            *missing = lacks;
            return lacks ? NULL : cpu_levels[i];
        }
    }
    return NULL;
}
