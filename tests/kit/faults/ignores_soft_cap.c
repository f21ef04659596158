/* SPDX-License-Identifier: Apache-2.0 */
/* No soft cap. Caught by: numerics, soft caps */
#include "bad.h"

#define simple_score(l, dot) ((l)->scale * (dot))

#include "bad_plugin.h"
