/* SPDX-License-Identifier: Apache-2.0 */
/* For which GPUs the machine code in this binary is. A list of architectures is that of --with-cuda-arch with
 * '_' between them, "80_90a", and its meaning that of build-aux/nvcc-libtool. */
#ifndef ATTN_GPU_ARCH_H
#define ATTN_GPU_ARCH_H

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

/* The list of this build. */
const char *gpu_archs(void);

/* Whether code compiled for the list runs on a compute capability, major * 10 + minor. [pure] */
int gpu_arch_runs(const char *archs, int compute_capability);
/* Whether the list names exactly this one, "90a": without it the kernels of *_sm90*.cu are empty. [pure] */
int gpu_arch_names(const char *archs, const char *name);

/* A reason if the device is known and this build has no code for it; none if the backend's table already
 * refuses it, since then no other build would help. [any thread] */
void gpu_check_arch(const attn_device_t *device, attn_reasons_t *reasons);

#endif
