/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the given buffers are not looked at. Caught by: errors */
#include "bad.h"

#define ATTN_E_SPACE_UNUSED 0
#undef ATTN_E_SPACE
#define ATTN_E_SPACE ATTN_OK

#include "bad_plugin.h"
