/* SPDX-License-Identifier: Apache-2.0 */
/* The causal mask is aligned at the first query, not at the last. Caught by: numerics, query heads per */
#include "bad.h"

#define simple_query_position(i, query_len, seq_len) ((void)(query_len), (int64_t)(i))

#include "bad_plugin.h"
