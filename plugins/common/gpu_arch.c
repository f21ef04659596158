/* SPDX-License-Identifier: Apache-2.0 */
/* Architectures of a build against those of devices. */
#include "gpu_arch.h"

#include <stdlib.h>

#define TEXT_OF(LIST) #LIST
#define TEXT(LIST)    TEXT_OF(LIST)

const char *gpu_archs(void) {
    return TEXT(ATTN_CUDA_ARCH);
}

/* CUDA C++ Programming Guide, 3.1.2 and 5.1.2: code for X.Ya runs on X.Y alone, for X.Yf on X.Y and later of
 * its family; of the lowest that is neither there is PTX, which runs on it and on everything later. */
int gpu_arch_runs(const char *archs, int cc) {
    for (const char *at = archs; *at != '\0'; at += *at == '_') {
        char *end;
        const int arch = (int)strtol(at, &end, 10);
        const int is_exact = *end == 'a', is_family = *end == 'f';
        if (arch <= 0) return 0; /* no list */
        if (cc == arch || (cc > arch && !is_exact && (!is_family || cc / 10 == arch / 10))) return 1;
        at = end + (is_exact || is_family);
    }
    return 0;
}

int gpu_arch_names(const char *archs, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = archs; at != NULL; at = strchr(at, '_')) {
        at += *at == '_';
        if (strncmp(at, name, length) == 0 && (at[length] == '_' || at[length] == '\0')) return 1;
    }
    return 0;
}

/* The core asks a backend after its table, whose reasons are in the list by then. */
static int is_refused_by_table(const attn_reasons_t *reasons) {
    for (uint32_t i = 0; i < reasons->count && i < reasons->capacity; i++)
        if (reasons->items[i].code == ATTN_REASON_COMPUTE_CAPABILITY) return 1;
    return 0;
}

void gpu_check_arch(const attn_device_t *device, attn_reasons_t *reasons) {
    attn_device_t d;
    char have[16], want[64];
    if (device == NULL || attn_intake_known(&d, sizeof d, device, "device", NULL) != ATTN_OK) return;
    if (d.type != (int)kDLCUDA || d.compute_capability <= 0 || is_refused_by_table(reasons) ||
        gpu_arch_runs(gpu_archs(), d.compute_capability))
        return;
    snprintf(have, sizeof have, "sm_%d", (int)d.compute_capability);
    snprintf(want, sizeof want, "%s", gpu_archs());
    for (char *at = want; (at = strchr(at, '_')) != NULL; at++)
        *at = ' ';
    attn_add_reason(reasons, ATTN_REASON_COMPUTE_CAPABILITY, "compute_capability", have, want,
                    "this build has no code for %s, only for %s: configure libattn with --with-cuda-arch "
                    "naming it",
                    have, want);
}
