/* SPDX-License-Identifier: Apache-2.0 */
/* TRITON_MLA between the ABI, plugins/common/latent and the kernels that NVRTC makes. */
#ifndef LATENT_BACKEND_H
#define LATENT_BACKEND_H

#include "../common/latent/mla_instance.h"
#include "latent_config.h"
#include "triton_driver.h"

enum { LATENT_LEAST_CC = 75 };

extern const attn_backend_t latent_backend;
extern const mla_device_ops latent_device;
/* The option arch as a compute capability; 0: auto. */
int latent_arch_of(const attn_option_value_t *options, uint32_t num_options);

#endif
