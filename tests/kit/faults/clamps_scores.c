/* SPDX-License-Identifier: Apache-2.0 */
/* Large scores are clamped, so that extremes lose their order. Caught by: numerics, extremes */
#include "bad.h"

#define simple_score(l, dot) fmin(simple_score(l, dot), 40)

#include "bad_plugin.h"
