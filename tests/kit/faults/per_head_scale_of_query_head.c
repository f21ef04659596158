/* SPDX-License-Identifier: Apache-2.0 */
/* Per-head scales are indexed as if there were one for all heads.
 * Caught by: numerics, feature per_head_scales */
#include "bad.h"

#define simple_scale_of(scales, count, head) simple_scale_of(scales, count, 0 * (head))

#include "bad_plugin.h"
