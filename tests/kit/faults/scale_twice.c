/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax scale is applied twice. Caught by: numerics, query heads per */
#include "bad.h"

#define simple_score(l, dot) simple_score(l, (dot) * (l)->scale)

#include "bad_plugin.h"
