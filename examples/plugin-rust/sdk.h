/* SPDX-License-Identifier: Apache-2.0 */
/* sdk.h: what bindgen reads: the installed header, and as constants those of its macros that it cannot
 * evaluate. */
#include <attn/attn_plugin.h>

static const uint64_t SDK_MAGIC = ATTN_PLUGIN_MAGIC;
static const uint64_t SDK_SLIDING_WINDOW = ATTN_F_SLIDING_WINDOW;
static const uint64_t SDK_SOFT_CAP = ATTN_F_SOFT_CAP;
static const uint64_t SDK_RSWA = ATTN_F_RSWA;
static const uint64_t SDK_NON_CAUSAL = ATTN_F_NON_CAUSAL;
static const uint64_t SDK_PER_REQUEST_CAUSAL = ATTN_F_PER_REQUEST_CAUSAL;
static const uint64_t SDK_DIFF_KV = ATTN_F_DIFF_KV;
static const uint64_t SDK_LSE = ATTN_F_LSE;
static const uint64_t SDK_QUANT_QUERY = ATTN_F_QUANT_QUERY;
static const uint64_t SDK_BATCH_INVARIANT = ATTN_F_BATCH_INVARIANT;
static const uint64_t SDK_DCP = ATTN_F_DCP;
static const uint64_t SDK_BLOCK_STRIDE = ATTN_F_BLOCK_STRIDE;
