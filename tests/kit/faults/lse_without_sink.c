/* SPDX-License-Identifier: Apache-2.0 */
/* The output knows the sink, the log-sum-exp does not. Caught by: numerics, feature sink */
#include "bad.h"

#define simple_lse(max, sum) simple_lse(max, l->has_sink ? (sum)-exp(sink - (max)) : (sum))

#include "bad_plugin.h"
