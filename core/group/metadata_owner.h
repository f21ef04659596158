/* SPDX-License-Identifier: Apache-2.0 */
/* metadata_owner.h: which kind of group built a metadata buffer last. A model with windows in every second
 * layer has two kinds, and a layer that runs on the metadata of the other one computes wrong numbers without
 * an error. */
#ifndef ATTNI_METADATA_OWNER_H
#define ATTNI_METADATA_OWNER_H

#include "group/group.h"

/* The kind of a group: backend with its options and buffers, device and problem, which equal groups share
 * (semantics 6.1). */
uint16_t attni_metadata_kind(const attn_group_t *g);
/* What of a batch goes into metadata beside the tables: requests, lengths, masks; of the engine's batch,
 * after its check. */
uint32_t attni_metadata_batch(const attn_batch_t *batch);
/* Whether a request of the batch that `metadata` was built for has no earlier tokens, or the batch is a
 * captured one, which may be replayed with such requests. What is no longer known does. [any thread] */
int attni_metadata_begins(const void *metadata);
/* Notes that g has built `metadata` for that batch. [any thread] */
void attni_metadata_note(const attn_group_t *g, const void *metadata, uint32_t batch);
/* ATTN_E_STATE if a group of another kind built it last. What is no longer known passes. [any thread] */
int attni_metadata_check(const attn_group_t *g, const void *metadata, attn_error_t *error);
/* ATTN_E_STATE if this kind built it last for another batch. *is_known: it was for this one, so that its
 * tables can be replaced. [any thread] */
int attni_metadata_check_batch(const attn_group_t *g, const void *metadata, uint32_t batch, int *is_known,
                               attn_error_t *error);

#endif
