/* SPDX-License-Identifier: Apache-2.0 */
/* Masked scores go through the soft cap too and come out as -cap instead of -inf.
 * Caught by: numerics, soft caps */
#include "bad.h"

static _Thread_local int bad_hidden;
#define simple_is_visible(l, q, k, n)                                                                        \
    (bad_hidden = !simple_is_visible(l, q, k, n), (k) < (n) && (!bad_hidden || (l)->soft_cap > 0))
#define simple_score(l, dot)    (bad_hidden ? -(l)->soft_cap : simple_score(l, dot))
#define simple_key_end(l, q, n) ((void)(q), (n))

#include "bad_plugin.h"
