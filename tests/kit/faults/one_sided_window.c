/* SPDX-License-Identifier: Apache-2.0 */
/* Without a causal mask the window limits the left side only. Caught by: numerics, a window without */
#include "bad.h"

#define simple_is_visible(l, q, k, n)                                                                        \
    (simple_is_visible(l, q, k, n) || (!(l)->is_causal && (k) < (n) && (k) >= (q) && (l)->window != 0))

#include "bad_plugin.h"
