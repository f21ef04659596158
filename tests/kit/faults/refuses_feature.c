/* SPDX-License-Identifier: Apache-2.0 */
/* The table lists ALiBi, open refuses it. Caught by: capabilities */
#include "bad.h"
#include "bad_kernel.h"

#define BAD_FEATURES (SIMPLE_FEATURES | ATTN_F_ALIBI)

#include "bad_plugin.h"
