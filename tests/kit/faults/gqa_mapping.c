/* SPDX-License-Identifier: Apache-2.0 */
/* Query head h reads KV head h mod Hkv instead of h / G. Caught by: numerics, query heads per */
#include "bad.h"

#define simple_kv_head(l, h) ((h) % (l)->num_kv_heads)

#include "bad_plugin.h"
