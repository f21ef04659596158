/* SPDX-License-Identifier: Apache-2.0 */
/* A row without a visible key has LSE +inf. Caught by: numerics, rows without */
#include "bad.h"

#define simple_lse(max, sum) ((sum) == 0 ? (double)INFINITY : simple_lse(max, sum))

#include "bad_plugin.h"
