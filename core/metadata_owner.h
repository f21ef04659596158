/* SPDX-License-Identifier: Apache-2.0 */
/* metadata_owner.h: which kind of group built a metadata buffer last. A model with windows in every second layer has two
 * kinds, and a layer that runs on the metadata of the other one computes wrong numbers without an error. */
#ifndef ATTNI_METADATA_OWNER_H
#define ATTNI_METADATA_OWNER_H

#include "group.h"

/* The kind of a group: backend, device and problem, which equal groups share (semantics 6.1). */
uint16_t attni_metadata_kind(const attn_group_t *g);
/* Notes that g has built `metadata`. [any thread] */
void attni_metadata_note(const attn_group_t *g, const void *metadata);
/* ATTN_E_STATE if a group of another kind built it last. What is no longer known passes. [any thread] */
int attni_metadata_check(const attn_group_t *g, const void *metadata, attn_error_t *error);

#endif
