/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are read at data, without byte_offset. Caught by: offsets, byte_offset of */
#include "bad.h"

#define attn_data(t) ((t)->data)

#include "bad_plugin.h"
