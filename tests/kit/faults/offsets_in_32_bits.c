/* SPDX-License-Identifier: Apache-2.0 */
/* Block times stride overflows 32 bits. Caught by: offsets, blocks beyond */
#include "bad.h"

#define simple_cache_row(c, block, head, token)                                                              \
    ((c)->base + (int32_t)((block) * (c)->block_stride) + (head) * (c)->head_stride +                        \
     (token) * (c)->token_stride)

#include "bad_plugin.h"
