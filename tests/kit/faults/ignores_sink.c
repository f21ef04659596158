/* SPDX-License-Identifier: Apache-2.0 */
/* No sink in the denominator. Caught by: numerics, feature sink */
#include "bad.h"

#define simple_start(sink, has_sink, max, sum) simple_start(sink, 0 * (has_sink), max, sum)

#include "bad_plugin.h"
