/* SPDX-License-Identifier: Apache-2.0 */
/* The window is one token too wide. Caught by: numerics, window edges */
#include "bad.h"

#define simple_is_visible(l, q, k, n)                                                                        \
    (simple_is_visible(l, q, k, n) || ((l)->window != 0 && (k) >= 0 && (q) - (k) == (l)->window))

#include "bad_plugin.h"
