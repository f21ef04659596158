/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts over 656-byte rows by a 16-bit copy of them (kernels/cuda/sparse/widen_rows.h). */
#ifndef MLA_SPARSE_WIDEN_H
#define MLA_SPARSE_WIDEN_H

#include "../common/latent/mla_instance.h"

extern const mla_widen_ops widen_ops;

#endif
