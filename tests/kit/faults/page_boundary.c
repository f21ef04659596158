/* SPDX-License-Identifier: Apache-2.0 */
/* A last page with one token is forgotten. Caught by: numerics, page borders */
#include "bad.h"

#define simple_is_visible(l, q, k, n)                                                                        \
    (simple_is_visible(l, q, k, n) && !((k) > 0 && (k) == (n)-1 && (k) % (l)->block_size == 0))

#include "bad_plugin.h"
