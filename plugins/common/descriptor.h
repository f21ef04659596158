/* SPDX-License-Identifier: Apache-2.0 */
/* What the descriptors of this tree have alike. Included by plugin.c, and by what holds its options. */
#ifndef ATTN_DESCRIPTOR_H
#define ATTN_DESCRIPTOR_H

#include <attn/attn_plugin.h>

#ifndef ATTN_BUILD_ID /* a packager's -D */
#define ATTN_BUILD_ID ""
#endif

/* Members of attn_plugin_t; the name, the backends and the options are the plugin's own. */
#define PLUGIN_OF_TREE                                                                                       \
    .magic = ATTN_PLUGIN_MAGIC, .struct_size = sizeof(attn_plugin_t), .abi_major = ATTN_ABI_MAJOR,           \
    .abi_minor = ATTN_ABI_MINOR, .version = PACKAGE_VERSION, .vendor = "libattn", .license = "Apache-2.0",   \
    .build_id = ATTN_BUILD_ID

/* The option of plugins whose kernels are for several architectures; 1 is sm80. */
#define OPTION_ARCH                                                                                          \
    {                                                                                                        \
        .struct_size = sizeof(attn_option_spec_t), .type = ATTN_OPTION_ENUM, .name = "arch",                 \
        .doc = "kernels to use: auto takes the device's own, sm80 the portable ones everywhere",             \
        .default_value = "auto", .choices = "auto sm80"                                                      \
    }

#endif
