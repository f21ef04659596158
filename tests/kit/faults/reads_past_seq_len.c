/* SPDX-License-Identifier: Apache-2.0 */
/* Keys behind seq_len are read and weighted with zero; NaN there spreads.
 * Caught by: memory, nothing is written */
#include "bad.h"

#define simple_key_end(l, q, n) ((void)(q), ((n) + (l)->block_size - 1) / (l)->block_size * (l)->block_size)
static _Thread_local int bad_hidden;
#define simple_is_visible(l, q, k, n) (bad_hidden = !simple_is_visible(l, q, k, n), (k) >= (n) || !bad_hidden)
#define simple_score(l, dot)          (bad_hidden ? -1e300 : simple_score(l, dot))

#include "bad_plugin.h"
