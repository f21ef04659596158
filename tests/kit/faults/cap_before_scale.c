/* SPDX-License-Identifier: Apache-2.0 */
/* The soft cap comes before the scale. Caught by: numerics, soft caps */
#include "bad.h"

#define simple_score(l, dot)                                                                                 \
    ((l)->soft_cap > 0 ? (l)->scale * (l)->soft_cap * tanh((dot) / (l)->soft_cap) : (l)->scale * (dot))

#include "bad_plugin.h"
