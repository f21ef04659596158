/* SPDX-License-Identifier: Apache-2.0 */
/* bad_kernel.h: the example plugin with its exported object hidden, so that bad_plugin.h can export another
 * one. */
#ifndef BAD_KERNEL_H
#define BAD_KERNEL_H

#undef ATTN_PLUGIN_EXPORT
#define ATTN_PLUGIN_EXPORT ATTN_UNUSED static
#undef ATTN_PLUGIN_SYMBOL
#define ATTN_PLUGIN_SYMBOL bad_unused_plugin

#include "../../../examples/plugin/simple_attn.c"

#endif
