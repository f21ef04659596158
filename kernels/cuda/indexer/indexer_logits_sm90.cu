/* SPDX-License-Identifier: Apache-2.0 */
/* The index logits on Hopper: every instance that indexer_logits_sm90.h lists. */
#include "indexer_logits_sm90.cuh"

INDEXER_SM90_INSTANCES(INDEXER_LOGITS_SM90_INSTANCE)
