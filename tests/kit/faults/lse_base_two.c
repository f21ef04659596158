/* SPDX-License-Identifier: Apache-2.0 */
/* The log-sum-exp has base 2. Caught by: numerics, feature lse */
#include "bad.h"

#define simple_lse(max, sum) (simple_lse(max, sum) * 1.4426950408889634)

#include "bad_plugin.h"
